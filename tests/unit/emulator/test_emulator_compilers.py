"""Other compilers and other ways to switch fibres: the same kernels, and the core for another machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.emulator.toolchain import HOST, Compiler

ZIG = (sys.executable, "-m", "ziglang", "c++")
needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs the package ziglang")
RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from emulator_kernels import KERNELS, correct
for kernel in KERNELS:
    problem = kernel.make(np.random.default_rng(1))
    assert not kernel.run(problem, schedule="random", seed=3).reports and correct(problem), kernel.name
"""


def test_objects_are_linked_by_the_same_command() -> None:
    assert Compiler(ZIG, "").linker == ZIG
    assert Compiler(("gcc", "-O1", "-x", "c++"), "").linker == ("gcc", "-O1")


@pytest.mark.proof
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(ZIG, marks=needs_zig, id="clang"),
        pytest.param((*ZIG, "-DTW_UCONTEXT"), marks=needs_zig, id="clang, ucontext"),
        pytest.param(("g++", "-DTW_UCONTEXT"), marks=pytest.mark.skipif(not shutil.which("g++"), reason="needs g++"), id="g++, ucontext"),
    ],
)  # fmt: skip
def test_kernels_by_other_compilers_and_ways_to_switch(command: tuple[str, ...]) -> None:
    environment = {**os.environ, "TILEWRIGHT_CC": " ".join(command)}
    subprocess.run([sys.executable, "-c", RUN, str(Path(__file__).parent)], env=environment, check=True)


@pytest.mark.proof
@needs_zig
@pytest.mark.parametrize("source", sorted((HOST / "core").glob("*.cpp")), ids=lambda path: path.name)
def test_the_core_compiles_for_aarch64(source: Path, tmp_path: Path) -> None:
    flags = ("-target", "aarch64-linux-gnu", "-std=c++17", "-fPIC", "-fno-strict-aliasing", "-pthread", "-c")
    subprocess.run([*ZIG, *flags, str(source), "-o", str(tmp_path / "core.o")], check=True)
