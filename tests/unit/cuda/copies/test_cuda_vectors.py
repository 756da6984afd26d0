"""Parallel loops whose elements move in vectors: what is stored waits for its neighbours, what is read again does not."""

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.targets.cuda.compiler import compile_text

N = 300


def test_what_was_stored_is_read_again():
    """By the next statement, within the tensor and beyond its end; and two stores meet where the distance is 0."""

    @T.prim_func
    def program(
        A: T.Tensor((N,), "float32"),
        Y: T.Tensor((N,), "float32"),
        Z: T.Tensor((N + 100,), "float32"),
        W: T.Tensor((N,), "float32"),
        distance: T.int32,
    ):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(512):
                Y[i] += A[i]
                Z[i] = Y[i] + 1
            for i in T.Parallel(512):
                W[i] = A[i]
                W[i + distance] = A[i] * 2

    a = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    kernel = tilewright.compile(program, target="cuda -arch=sm_80")
    for run in (kernel.interpret, kernel.emulate):
        y, z, w = np.ones(N, np.float32), np.full(N + 100, np.nan, np.float32), np.full(N, np.nan, np.float32)
        run(a, y, z, w, 0)
        assert np.array_equal(y, a + 1) and np.array_equal(z, [*(a + np.float32(1) + np.float32(1)), *[1] * 100])
        assert np.array_equal(w, a * 2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_vectors_of_tensors_of_any_size_stay_whole(dtype):
    """The compiler behind us takes vector stores apart whose address is a sum of many 64-bit terms."""
    rows, columns = T.dynamic("rows"), T.dynamic("columns")

    @T.prim_func
    def program(A: T.Tensor((rows, columns), dtype), C: T.Tensor((rows, columns), dtype)):
        with T.Kernel(T.ceildiv(columns, 128), T.ceildiv(rows, 32), threads=128) as (bx, by):
            for i, j in T.Parallel(32, 128):
                C[by * 32 + i, bx * 128 + j] = A[by * 32 + i, bx * 128 + j] + A[by * 32 + i, bx * 128 + j]

    kernel = tilewright.compile(program, target="cuda -arch=sm_90a")
    words = re.findall(r"\b(?:LDG|STG)\.E[\w.]*", compile_text(kernel.get_kernel_source(), kernel.arch).machine_code())
    assert set(words) == {"LDG.E.128.CONSTANT", "STG.E.128"}


@pytest.mark.parametrize("threads", [32, 128])
def test_running_sums_of_few_lines(threads):
    """Threads share a line; a result is rounded once."""

    @T.prim_func
    def program(
        A: T.Tensor((256,), "float16"),
        B: T.Tensor((3, 100), "float32"),
        C: T.Tensor((40, 2), "int32"),
        sums: T.Tensor((256,), "float16"),
        most: T.Tensor((3, 100), "float32"),
        rest: T.Tensor((40, 2), "int32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_fragment((256,), "float16")
            b = T.alloc_shared((3, 100), "float32")
            c = T.alloc_shared((40, 2), "int32")
            largest = T.alloc_fragment((3, 100), "float32")
            T.copy(A, a)
            T.cumsum(a, dim=0)
            T.copy(a, sums)
            T.copy(B, b)
            T.cummax(b, largest, dim=1)
            T.copy(largest, most)
            T.copy(C, c)
            T.cumsum(c, dim=0, reverse=True)
            T.copy(c, rest)

    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, 256).astype(np.float16), rng.standard_normal((3, 100)).astype(np.float32)
    c = rng.integers(-9, 10, (40, 2)).astype(np.int32)
    kernel = tilewright.compile(program, target="cuda -arch=sm_90a")
    for schedule in ("late", "random"):
        out = np.full(256, np.nan, np.float16), np.full((3, 100), np.nan, np.float32), np.zeros((40, 2), np.int32)
        kernel.emulate(a, b, c, *out, schedule=schedule)
        assert np.array_equal(out[0], np.cumsum(a)) and np.array_equal(out[1], np.maximum.accumulate(b, 1))
        assert np.array_equal(out[2], np.cumsum(c[::-1], 0)[::-1])


def test_vector_loops_in_parallel_loops():
    """Vectors that the author writes in a parallel loop, and packed atomics there."""

    @T.prim_func
    def program(A: T.Tensor((32, 64), "float16"), C: T.Tensor((32, 64), "float16"), S: T.Tensor((32, 64), "float16")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32, 64), "float16")
            for i, j in T.Parallel(32, 8):
                for v in T.vectorized(8):
                    tile[i, j * 8 + v] = A[i, j * 8 + v] + A[i, j * 8 + v]
            T.copy(tile, C)
            for i, j in T.Parallel(32, 32):
                T.atomic_addx2(S[i, j * 2], tile[i, j * 2])

    kernel = tilewright.compile(program, target="cuda -arch=sm_80")
    a = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float16)
    c, s = np.full_like(a, np.nan), np.ones_like(a)
    kernel.emulate(a, c, s)
    assert np.array_equal(c, a + a) and np.array_equal(s, a + a + np.float16(1))
    text = kernel.get_kernel_source()
    assert "load_fragment<8>" in text and "atomic_add_fragment<2>" in text
