"""Tensors of more elements than 32 bits count: what is multiplied is widened first, vectors stay."""

import numpy as np
import pytest
from cuda_gemm import on

import tilewright.language as T


def added(A, length):
    A: T.Tensor((length,), "int8")
    B = T.empty((length,), "int8")
    with T.Kernel(T.ceildiv(length, 4096), threads=128) as bx:
        first = bx * 4096
        for i in T.Parallel(4096):
            B[first + i] = A[first + i] + T.cast(1, "int8")
    return B


class Shape:
    """What compiling needs of an array."""

    dtype = np.dtype(np.float16)

    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize(
    "length, wide", [((1 << 32) + 4096, True), ((1 << 31) + 4096, True), ((1 << 31) - 4096, False)]
)
def test_indices(length, wide):
    text = on("sm_80", added).compile(Shape(length), length=length).get_kernel_source()
    assert ("&A[(int64_t)bx * 4096ll + (int64_t)i]" in text) == wide
    assert ("&A[bx * 4096 + i]" in text) != wide
    assert "tw::load_fragment<16>" in text


def rows(A, length, width=64):
    A: T.Tensor((length, width), "float16")
    B = T.empty((length, width), "float16")
    with T.Kernel(T.ceildiv(length, 64), threads=128) as bx:
        tile = T.alloc_shared((64, width), "float16")
        for _ in T.Pipelined(1, num_stages=2):
            T.copy(A[bx * 64, 0], tile)
            T.copy(tile, B[bx * 64, 0])
    return B


def test_rows_that_the_copy_engine_cannot_count():
    kernel = on("sm_90a", rows).compile(Shape(1 << 32, 64), length=1 << 32)
    assert "(int64_t)bx" in kernel.get_kernel_source() and "tma" not in kernel.get_kernel_source()


def collatz(N):
    N: T.Tensor((64,), "int64")
    C = T.empty((64,), "int64")
    with T.Kernel(1, threads=64):
        i = T.get_thread_binding()
        n = T.alloc_var("int64")
        count = T.alloc_var("int64", 0)
        n = N[i]
        while n > 1:
            n = T.if_then_else(n % 2 == 0, n // 2, 3 * n + 1)
            count += 1
        C[i] = T.min(count, 100)
    return C


def test_wide_numbers_meet_literals_in_functions():
    """`int64_t` is a long for the emulator's compiler and a long long for NVRTC."""
    numbers = np.arange(1, 65, dtype=np.int64)
    kernel = on("sm_80", collatz).compile(numbers)
    assert np.array_equal(kernel.emulate(numbers), kernel.interpret(numbers))
