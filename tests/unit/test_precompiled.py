"""Headers that the compiler has read once: the same object, the same complaints, from the second text on."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tilewright import precompiled as module
from tilewright.cache import digest
from tilewright.options import override
from tilewright.precompiled import precompiled

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="GNU's compiler is not here")


@pytest.fixture
def header(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_asked", set())
    monkeypatch.setattr(module, "_found", {})
    path = tmp_path / "sources" / "words.h"
    path.parent.mkdir()
    path.write_text("#pragma once\nstatic inline int twice(int x) { return 2 * x; }\n")
    with override(cache_dir=tmp_path / "cache"):
        yield path


COMMAND = ["gcc", "-O2", "-fPIC"]


def flags(header):
    return precompiled(COMMAND, "gcc 12", header, "c", digest(header.read_text()))


def compiled(header, found):
    """What the compiler says of a text that includes the header, and the object."""
    source, target = header.parent / "elsewhere" / "text.c", header.with_name("text.o")
    source.parent.mkdir(exist_ok=True)
    source.write_text('#include "words.h"\nint f(int x) { return twice(x) + 3; }\n')
    command = [*COMMAND, *found, f"-I{header.parent}", "-H", "-c", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done, target.read_bytes() if done.returncode == 0 else b""


def test_the_second_text_finds_it_and_gives_the_same_object(header):
    assert flags(header) == []
    found = flags(header)
    plain, with_it = compiled(header, []), compiled(header, found)
    assert "words.h.gch" in with_it[0].stderr and "words.h.gch" not in plain[0].stderr
    assert with_it[1] == plain[1] != b""


def test_later_processes_find_it_at_once(header, monkeypatch):
    flags(header), flags(header)
    monkeypatch.setattr(module, "_asked", set())
    monkeypatch.setattr(module, "_found", {})
    assert "words.h.gch" in compiled(header, flags(header))[0].stderr


def test_a_changed_header_is_another(header):
    flags(header), flags(header)
    header.write_text("static inline int twice(int x) { return x + x + 1; }\n")
    assert flags(header) == []
    assert compiled(header, flags(header))[1] == compiled(header, [])[1] != b""


def test_one_that_is_altered_or_gone_is_made_again(header):
    flags(header)
    place = flags(header)[0].removeprefix("-I")
    shutil.rmtree(place)
    assert "words.h.gch" in compiled(header, flags(header))[0].stderr


def test_a_header_that_the_compiler_refuses_is_told_of_with_the_text(header):
    header.write_text("int twice(int x) { return y; }\n")
    flags(header)
    done, _ = compiled(header, flags(header))
    assert done.returncode != 0 and "words.h" in done.stderr


def test_other_compilers_are_left_alone(header):
    for _ in range(2):
        assert precompiled(["clang"], "Debian clang version 14.0.6", header, "c", "") == []
