"""Turns of loops whose warps part: around them others that begin anywhere, and places that variables without a first value say."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T

HOPPER = "cuda -arch=sm_90a"
SIDE, TURNS = 64, 3


def compared(function, *given: np.ndarray) -> None:
    kernel = tilewright.jit(function, target=HOPPER).compile(*given)
    assert "channel" in kernel.show_program("specialize_warps")
    for schedule in ("late", "random"):
        assert np.array_equal(kernel.emulate(*given, schedule=schedule, seed=1), kernel.interpret(*given))


def small(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-2, 3, shape).astype(np.float16)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("first", [1, 2])
def test_a_loop_around_begins_anywhere(first: int, stages: int) -> None:
    """Slots and phases of a ring go by the turns that were, and not by the number that the outer loop counts."""

    def program(A, B):
        A: T.Tensor((4, SIDE, SIDE * TURNS), "float16")
        B: T.Tensor((SIDE, SIDE * TURNS), "float16")
        O = T.empty((SIDE, SIDE), "float32")
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((SIDE, SIDE), "float16"), T.alloc_shared((SIDE, SIDE), "float16")
            total = T.alloc_fragment((SIDE, SIDE), "float32")
            T.clear(total)
            for outer in T.serial(first, 4):
                for k in T.Pipelined(TURNS, num_stages=stages, specialize=True):
                    T.copy(A[outer, 0, k * SIDE], a)
                    T.copy(B[0, k * SIDE], b)
                    T.gemm(a, b, total, transpose_B=True)
            T.copy(total, O)
        return O

    compared(program, small(4, SIDE, SIDE * TURNS), small(SIDE, SIDE * TURNS))


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_pipelined_loop_begins_anywhere(first: int) -> None:
    """Slots and phases count the turns from the first one: no loop whose warps part began elsewhere than at nought."""

    def program(A, B):
        A: T.Tensor((SIDE, SIDE * 8), "float16")
        B: T.Tensor((SIDE, SIDE * 8), "float16")
        O = T.empty((SIDE, SIDE), "float32")
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((SIDE, SIDE), "float16"), T.alloc_shared((SIDE, SIDE), "float16")
            total = T.alloc_fragment((SIDE, SIDE), "float32")
            T.clear(total)
            for k in T.Pipelined(first, first + 5, num_stages=2, specialize=True):
                T.copy(A[0, k * SIDE], a)
                T.copy(B[0, k * SIDE], b)
                T.gemm(a, b, total, transpose_B=True)
            T.copy(total, O)
        return O

    compared(program, small(SIDE, SIDE * 8), small(SIDE, SIDE * 8))


def test_a_variable_without_a_first_value_says_where() -> None:
    """Producers read what it was set to; that it was declared with nothing is no value."""

    def program(A, B, where):
        A: T.Tensor((4, SIDE, SIDE * TURNS), "float16")
        B: T.Tensor((SIDE, SIDE * TURNS), "float16")
        where: T.Tensor((1,), "int32")
        O = T.empty((SIDE, SIDE), "float32")
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((SIDE, SIDE), "float16"), T.alloc_shared((SIDE, SIDE), "float16")
            total = T.alloc_fragment((SIDE, SIDE), "float32")
            T.clear(total)
            chosen = T.alloc_var("int32")
            chosen = where[0] + 1
            for k in T.Pipelined(TURNS, num_stages=2, specialize=True):
                T.copy(A[chosen, 0, k * SIDE], a)
                T.copy(B[0, k * SIDE], b)
                T.gemm(a, b, total, transpose_B=True)
            T.copy(total, O)
        return O

    compared(program, small(4, SIDE, SIDE * TURNS), small(SIDE, SIDE * TURNS), np.array([2], np.int32))
