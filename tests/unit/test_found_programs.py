"""What programs of many features at once found (`tests/fuzz/mixed_writer.py`): each was wrong on some machine, or ended in a compiler's error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T

NVIDIA, AMPERE, AMD, APPLE = "cuda -arch=sm_90a", "cuda -arch=sm_80", "hip -arch=gfx942", "metal -arch=apple7"
GPUS = (AMPERE, NVIDIA, AMD, APPLE)


def agree(function: Callable[..., Any], target: str, *given: Any) -> None:
    kernel = tilewright.jit(target=target)(function).compile(*given)
    np.testing.assert_array_equal(kernel.emulate(*given), kernel.interpret(*given))


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-9, 10, shape).astype(dtype)


@pytest.mark.filterwarnings("ignore:.*not pipelined")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("target", GPUS)
def test_a_tile_of_a_pipeline_is_read_behind_it(target: str, around: bool, first: bool) -> None:
    """A tile that was filled before the loop too got slots, and behind the loop (or in the next turn around it) the old numbers were read."""

    def program(A, B):
        A: T.Tensor((16, 32), "float32")
        B: T.Tensor((3, 16, 32), "float32")
        O = T.empty((2, 16, 32), "float32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, 32), "float32")
            total = T.alloc_fragment((16, 32), "float32")
            T.clear(total)
            if first:
                T.copy(A, s)
            for _ in T.serial(2 if around else 1):
                if around:
                    for i, j in T.Parallel(16, 32):
                        total[i, j] += A[i, j] if not first else s[i, j]
                for k in T.Pipelined(3, num_stages=2):
                    T.copy(B[k, 0, 0], s)
                    for i, j in T.Parallel(16, 32):
                        total[i, j] += s[i, j]
            T.copy(s, O[0, :, :])
            T.copy(total, O[1, :, :])
        return O

    agree(program, target, numbers(16, 32), numbers(3, 16, 32))


@pytest.mark.parametrize("target", GPUS)
def test_absolute_values_of_64_bits_computed_with_literals(target: str) -> None:
    """Where int64_t is a long, a literal's long long was neither of the types of `abs`."""

    def program(A):
        A: T.Tensor((33,), "int64")
        O = T.empty((33,), "int64")
        with T.Kernel(1, threads=64):
            for i in T.Parallel(33):
                O[i] = T.abs(A[i] - T.cast(3, "int64")) + T.abs(T.cast(-2, "int64"))
        return O

    agree(program, target, numbers(33, dtype="int64"))


@pytest.mark.parametrize("bits", [1, 4])
def test_packed_fragments_that_pass_through_memory_on_apple(bits: int) -> None:
    """Single elements were set by the word around them: beyond the tile's end, and with what nobody had written."""

    def program(A):
        A: T.Tensor((16,), "int32")
        O = T.empty((3, 16), "int32")
        with T.Kernel(1, threads=64):
            codes = T.alloc_fragment((100,), f"uint{bits}")
            T.fill(codes, 1)
            for i, j in T.Parallel(3, 16):
                O[i, j] = T.cast(codes[j], "int32") + A[j]
        return O

    agree(program, APPLE, numbers(16, dtype="int32"))


@pytest.mark.parametrize("shape", [(2, 1, 4, 8), (2, 1, 1, 8), (1, 1, 4, 8), (3, 1, 5)])
def test_matrices_are_turned_one_by_one_whatever_stands_before_them(shape: tuple[int, ...]) -> None:
    """Tiles with an extent of 1 were taken for single matrices, and refused."""
    turned = (*shape[:-2], shape[-1], shape[-2])

    def program(A):
        A: T.Tensor(shape, "int32")
        O = T.empty(turned, "int32")
        with T.Kernel(1, threads=64):
            s = T.alloc_shared(shape, "int32")
            T.copy(A, s)
            T.transpose(s, O)
        return O

    given = numbers(*shape, dtype="int32")
    agree(program, AMPERE, given)
    np.testing.assert_array_equal(
        tilewright.jit(target="cpu")(program).compile(given).interpret(given), np.swapaxes(given, -1, -2)
    )
