"""``tilewright doctor``: what it says of this machine and of broken ones."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.cli import doctor
from tilewright.cli.terminal import Terminal
from tilewright.options import VARIABLES, override


@pytest.fixture(autouse=True)
def its_own_cache(tmp_path: Path) -> Iterator[None]:
    """A cache that nobody else fills: all files of this machine's would be counted again in every test."""
    with override(cache_dir=tmp_path / "own"):
        yield


def report() -> tuple[int, str]:
    stream = io.StringIO()
    status = doctor.run_doctor(argparse.Namespace(), Terminal(stream))
    return status, stream.getvalue()


def finding(subject: str) -> doctor.Finding:
    return next(found for found in doctor.findings() if found.subject == subject)


def test_it_names_what_is_here(tmp_path: Path) -> None:
    with override(cache_dir=tmp_path):
        _, text = report()
    for subject in ("tilewright", "Python", "numpy", "CPU", "C compiler", "cache", "NVIDIA GPU", "NVRTC", "torch"):
        assert subject in text
    assert str(tmp_path) in text


def test_a_compiler_that_does_not_exist_is_missing_with_a_remedy(tmp_path: Path) -> None:
    with override(compiler="no-such-compiler", cache_dir=tmp_path):
        found = finding("C compiler")
        status, text = report()
    assert found.state == "missing" and "no-such-compiler" in found.detail and "TILEWRIGHT_CC" in found.remedy
    assert status == 1 and "Kernels cannot run here yet: C compiler." in text


def test_a_compiler_that_cannot_compile_is_found_out(tmp_path: Path) -> None:
    fake = tmp_path / "fakecc"
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo fake 1.0 && exit 0\necho "fake: cannot compile" >&2\nexit 1\n'
    )
    fake.chmod(0o755)
    with override(compiler=str(fake)):
        found = finding("C compiler")
    assert found.state == "missing" and found.detail == f"{fake} does not work: fake: cannot compile"


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with override(cache_dir=blocked / "cache"):
        found = finding("cache")
    assert found.state == "missing" and "Not a directory" in found.detail and "TILEWRIGHT_CACHE_DIR" in found.remedy
    with override(cache_dir=blocked / "cache", cache=False):
        assert finding("cache").state == "ok"


def test_switches_that_are_set_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "3")
    assert finding("switch").detail == "TILEWRIGHT_NUM_THREADS=3"
    assert "(3 used)" in finding("CPU").detail


def test_a_target_that_there_is_not_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TILEWRIGHT_TARGET", "cup")
    assert (finding("switch").state, finding("switch").remedy) == ("missing", "known: cpu, cuda, hip, metal")


def test_files_that_vanish_meanwhile_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(bytes(3))
    listed = [(str(tmp_path), [], ["kept", "gone"]), (str(tmp_path / "building"), [], ["kernel.cpp"])]
    monkeypatch.setattr(doctor.os, "walk", lambda folder: listed)
    monkeypatch.setattr(doctor, "cache_directory", lambda: tmp_path)
    with override(cache_dir=tmp_path):
        assert finding("cache").detail == f"{tmp_path}, 1 files, 0.0 MiB"


def test_absent_packages_say_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    found = {finding.subject: finding for finding in doctor.findings()}
    assert "tilewright.Linear" in found["torch"].detail and found["torch"].state == "optional"
    assert found["onnxruntime"].detail == "not installed; only comparisons of speed need it"


def test_a_large_cache_is_not_counted_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MOST_FILES", 3)
    for number in range(5):
        with override(cache_dir=tmp_path):
            said = finding("cache").detail
        over = "over " if number > 3 else ""
        assert said == f"{tmp_path}, {over}{min(number, 3)} files, {over}{min(number, 3):.1f} MiB"
        (tmp_path / f"{number}").write_bytes(bytes(1 << 20))
