"""What programs say on Apple's machines goes to the system's log: the interpreter's lines, assertions with their place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.extend(str(Path(__file__).parents[1] / "cuda" / folder) for folder in ("programs", "words"))
from front_end import complaints
from printing_programs import PRINTING
from test_cuda_prints import copies, interpreted

import tilewright
import tilewright.language as T
from tilewright.errors import EmulationError, MissingCapability, SharedMemoryExceeded


@pytest.mark.parametrize("program", PRINTING)
def test_lines_are_the_interpreters(program: Callable[[], tuple[Any, list[Any], bool]]) -> None:
    function, arguments, _ = program()
    try:
        kernel = tilewright.compile(function, target="metal -arch=apple7")
    except (MissingCapability, SharedMemoryExceeded) as error:
        assert "float64" in str(error) or "32768" in str(error)
        return
    text, lines = kernel.get_kernel_source(), []
    assert not complaints(text) and "#include <metal_logging>" in text
    kernel.emulate(*copies(arguments), report=lines.append)
    assert len(lines) > 2 and sorted(lines) == sorted(interpreted(function, arguments))


@T.prim_func
def speaks(A: T.Tensor((64,), "float32"), n: T.int32):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        T.device_assert(A[tx] < n, '100% of "A"')
        if tx == 5:
            print("é", T.cast(tx, "int64") * 4000000000, T.cast(A[tx], "float16"), tx > 3, T.cast(tx, "uint8"))


def test_numbers_of_every_width_and_an_assertion() -> None:
    kernel = tilewright.compile(speaks, target="metal -arch=apple10")
    text, lines = kernel.get_kernel_source(), []
    assert not complaints(text) and text.isascii() and "%lld" not in text
    values = np.arange(64, dtype=np.float32) / 3
    kernel.emulate(values, 50, report=lines.append)
    assert lines == interpreted(speaks, [values, 50])
    with pytest.raises(EmulationError, match='100% of "A"'):
        kernel.emulate(values, 20)


def test_programs_that_say_nothing_include_no_log() -> None:
    @T.prim_func
    def silent(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            A[T.get_thread_binding()] = 1.0

    assert "metal_logging" not in tilewright.compile(silent, target="metal -arch=apple7").get_kernel_source()
