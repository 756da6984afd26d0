"""What the emulator keeps on disk is bound to its key and its content, and is kept nowhere where caching is off."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tilewright.emulator import emulate, toolchain
from tilewright.options import override
from tilewright.targets.emulation import Vocabulary

HEADER = """
#pragma once
#include "interface.h"
#define TW_WARP_SIZE 32
#define TW_KERNEL(threads, min_blocks) extern "C" void
"""
TEXT = '#include "{name}.h"\nTW_KERNEL(32, 1) scale(float* x) {{ x[tw_thread()->thread_index.x] *= {factor}; }}'


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A cache of a test's own, beside the core that other tests have built."""
    library = toolchain.core_path("")
    monkeypatch.setattr(toolchain, "core_path", lambda wanted="": library)
    monkeypatch.setattr(toolchain, "_loaded", {})
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "words.h").write_text(HEADER)
    with override(cache_dir=tmp_path / "cache"):
        yield tmp_path


def scaled(place, factor):
    toolchain._loaded.clear()
    x = np.arange(32, dtype=np.float32)
    text = TEXT.format(name="words", factor=factor)
    emulate(text, "scale", [x], grid=(1,), block=(32,), vocabulary=Vocabulary("words", place / "words"), check=False)
    return x[1]


def replaced(path: Path, content: bytes) -> None:
    """Under the name a new file, since this process has the old one mapped."""
    path.unlink()
    path.write_bytes(content)


def test_texts_are_bound_to_key_and_content(kept):
    assert [scaled(kept, factor) for factor in (2, 3)] == [2, 3]
    two, three = (
        next(path.parent for path in kept.rglob("kernel.cpp") if f"*= {factor}" in path.read_text())
        for factor in (2, 3)
    )
    library = (two / "kernel.so").read_bytes()
    for damaged in (
        b"",
        library[: len(library) // 2],
        library[:4000] + bytes(64) + library[4064:],
        (three / "kernel.so").read_bytes(),
    ):
        replaced(two / "kernel.so", damaged)
        assert scaled(kept, 2) == 2
    os.rename(two, kept / "aside")
    os.rename(three, two)
    os.rename(kept / "aside", three)
    assert [scaled(kept, factor) for factor in (2, 3)] == [2, 3]


def test_nothing_is_kept_where_caching_is_off(kept):
    with override(cache=False):
        assert scaled(kept, 5) == 5
    assert not (kept / "cache").exists()


def test_the_core_is_bound_to_key_and_content(monkeypatch, tmp_path):
    """Built by a stand-in for the compiler, which writes down how often it was called."""
    calls = []

    def together(commands, what):
        calls.append(what)
        for command in commands:
            Path(command[command.index("-o") + 1]).write_bytes(b"built")
        return [""] * len(commands)

    monkeypatch.setattr(toolchain, "_run_together", together)
    with override(cache_dir=tmp_path / "cache"):
        made = toolchain._core_path.__wrapped__("")
        assert made.read_bytes() == b"built" and len(calls) == 2 and list(made.parent.glob("*.o")) == []
        assert toolchain._core_path.__wrapped__("") == made and len(calls) == 2
        for damage in (
            lambda: made.write_bytes(b"bu"),
            lambda: made.write_bytes(b""),
            made.unlink,
            lambda: shutil.rmtree(made.parent),
        ):
            damage()
            assert toolchain._core_path.__wrapped__("").read_bytes() == b"built"
        assert len(calls) == 10
    with override(cache_dir=tmp_path / "unused", cache=False):
        assert toolchain._core_path.__wrapped__("").read_bytes() == b"built"
    assert not (tmp_path / "unused").exists()
