"""Places and sizes beyond 32 bits: what a program works out in 64 of them stays so, and what it works out in 32 is refused where these do not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_found_programs import GPUS, numbers

import tilewright
import tilewright.language as T
from tilewright.errors import WrongArgumentShape

PROCESSOR = "cpu"
FAR = (2**32, -(2**32), 2**32 - 40, 2**31, 3 * 2**32 + 5)


def alike(function: Callable[..., Any], target: str, *given: Any) -> None:
    """Of a kernel and the interpreter: what they return, and what they leave in the tensors given."""
    kernel = tilewright.jit(target=target)(function).compile(*given)
    made = []
    for run in (kernel if target == PROCESSOR else kernel.emulate, kernel.interpret):
        own = [one.copy() if isinstance(one, np.ndarray) else one for one in given]
        made.append([run(*own), *own])
    for found, expected in zip(*made, strict=True):
        np.testing.assert_equal(found, expected)


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("target", [PROCESSOR, *GPUS])
def test_places_beyond_32_bits_are_beyond_the_tensor(target: str, far: int) -> None:
    """Processors cut loops where the tensor begins and ends, and took these ends as 32 bits before they were compared: places 2^32
    further were the tensor's own."""

    def program(A, B, n: T.int64):
        A: T.Tensor((100, 32), "int32")
        B: T.Tensor((100, 32), "int32")
        O = T.empty((3, 64), "int32")
        with T.Kernel(1, threads=64):
            s, row = T.alloc_shared((16, 32), "int32"), T.alloc_shared((2, 32), "int32")
            T.copy(A[n, 0], s)
            T.copy(A[0:2, n : n + 32], row)
            for i in T.Parallel(64):
                O[0, i] = A[n + i, 3]
                O[1, i] = s[i // 4, i % 4]
                O[2, i] = row[i // 32, i % 32]
            T.copy(s, B[n, 0])
            for i, j in T.Parallel(16, 32):
                B[n + 40 + i, j] = 7
        return O

    alike(program, target, numbers(100, 32, dtype="int32"), numbers(100, 32, dtype="int32"), far)


@pytest.mark.parametrize("wide", [False, True])
def test_tensors_of_more_elements_than_32_bits_count(wide: bool) -> None:
    """Nothing was written: `M * 65536` was a negative number of 32 bits, and so was the number of blocks."""

    def program(A):
        M, N = T.dynamic("M, N", "int64" if wide else "int32")
        A: T.Tensor((M, N), "int8")
        with T.Kernel(T.ceildiv(M * N, 2**29), threads=32) as bx:
            flat = T.reshape(A, (M * N,))
            for i in T.Parallel(4):
                flat[T.cast(bx, "int64") * 2**29 + i] = bx + 1

    given = np.zeros((2**15 + 8, 2**16), np.int8)  # pages that nobody writes to are no memory
    kernel = tilewright.jit(target=PROCESSOR)(program).compile(given)
    if wide:
        kernel(given)
        np.testing.assert_array_equal(given.reshape(-1)[:: 2**29], [1, 2, 3, 4, 5])
    else:
        with pytest.raises(WrongArgumentShape) as told:
            kernel(given)
        assert told.value.message == "((M * N) + 536870911) is 2684878847 in this call, and an int32"
        assert told.value.hint == "declare it with 64 bits: T.dynamic('M', 'int64')"


@pytest.mark.parametrize("place", ["extent", "stride", "loop", "view"])
def test_sums_of_sizes_that_do_not_fit_are_told(place: str) -> None:
    def program(A, B):
        M, N = T.dynamic("M, N")
        A: T.Tensor((M, 2), "int8")
        B: T.Tensor((N,), "int8") if place != "stride" else T.StridedTensor((1, N), (N * 70000, 1), "int8")
        O = T.empty((M * N if place == "extent" else 4,), "int8")
        with T.Kernel(1, threads=32):
            if place == "loop":
                for k in T.serial(M * N):
                    O[k % 4] = 1
            if place == "view":
                flat = T.view(A, (M * 2,))
                O[0] = flat[M * N - 1]
            T.fill(O[0:4], 1)
        return O

    given = np.zeros((50000, 2), np.int8), np.zeros((1, 70000) if place == "stride" else 70000, np.int8)
    kernel = tilewright.jit(target=PROCESSOR)(program).compile(*given)
    for run in (kernel, kernel.interpret):
        with pytest.raises(WrongArgumentShape, match=r"in this call, and an int32"):
            run(*given)


def test_what_wraps_by_its_type_is_no_size() -> None:
    """Constants, and sizes as narrow or unsigned numbers, were taken for sums of sizes."""

    def program(A):
        M = T.dynamic("M")
        A: T.Tensor((M,), "int32")
        O = T.empty((M,), "int32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(M):
                narrow = T.cast(M, "uint8") * T.cast(100, "uint8") + T.cast(200, "uint8")
                fixed = T.cast(100, "int8") + T.cast(100, "int8")
                O[i] = T.cast(narrow, "int32") + T.cast(fixed, "int32") + T.cast(T.cast(1, "uint32") - 2 > 0, "int32")
        return O

    given = np.zeros(40, np.int32)
    kernel = tilewright.jit(target=PROCESSOR)(program).compile(given)
    np.testing.assert_array_equal(kernel(given), (40 * 100 + 200) % 256 - 56 + 1)
    np.testing.assert_array_equal(kernel.interpret(given), kernel(given))


@pytest.mark.parametrize("far", [0, 2**32, -(2**32)])
@pytest.mark.parametrize("side", ["rows", "depth", "columns"])
def test_products_of_operands_that_begin_at_places_of_64_bits(side: str, far: int) -> None:
    """How much of an operand lies in its tensor was a number of 64 bits, and the processor's product compared it with others."""

    def program(A, B, n: T.int64):
        A: T.Tensor((70, 60), "float16")
        B: T.Tensor((60, 50), "float16")
        O = T.empty((64, 32), "float32")
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 32), "float16")
            total = T.alloc_fragment((64, 32), "float32")
            T.clear(total)
            T.copy(A[n if side == "rows" else 0, n if side == "depth" else 0], a)
            T.copy(B[n if side == "depth" else 0, n if side == "columns" else 20], b)
            T.gemm(a, b, total)
            T.copy(total, O)
        return O

    alike(program, PROCESSOR, numbers(70, 60, dtype="float16"), numbers(60, 50, dtype="float16"), far)


@pytest.mark.parametrize("target", [PROCESSOR, "cuda -arch=sm_80", "hip -arch=gfx942"])
def test_vectors_whose_place_is_one_of_64_bits(target: str) -> None:
    """The bound that a vector load stood under was not known again in 64 bits: an internal error on GPUs."""

    def program(A, B, n: T.int32):
        A: T.Tensor((131, 8), "int32")
        B: T.Tensor((8,), "int32")
        O = T.empty((128, 8), "int32")
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((128, 8), "int32")
            for i, j in T.Parallel(128, 8):
                s[i, j] = A[i, T.cast(B[n], "int64") * 4 + j]
            T.copy(s, O)
        return O

    given = np.arange(131 * 8, dtype=np.int32).reshape(131, 8), np.array([0, 1, 2, -1, 2**30, 0, 0, 0], np.int32)
    kernel = tilewright.jit(target=target)(program).compile(*given, 0)
    for at in range(5):
        found = (kernel if target == "cpu" else kernel.emulate)(*given, at)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(kernel.interpret(*given, at)))
