"""Loops that threads leave at different times: no barrier of the whole block stands in them, and one stands in front of
them and behind them where other threads' elements are touched."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T

TARGETS = ["cuda -arch=sm_80", "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7"]


def histogram(form: str) -> object:
    """Counts in a shared tile, whose elements threads change in loops of their own numbers of iterations."""

    @T.prim_func
    def program(X: T.Tensor((T.dynamic("n"),), "int32"), C: T.Tensor((7,), "int32")):
        with T.Kernel(2, threads=64) as block:
            tx = T.get_thread_binding()
            counts = T.alloc_shared((7,), "int32")
            T.clear(counts)
            if form == "for":
                for i in T.serial(block * 64 + tx, X.shape[0], 128):
                    if X[i] >= 0:
                        T.atomic_add(counts[X[i]], 1)
            elif form == "while":
                at = T.alloc_var("int32", init=block * 64 + tx)
                while at < X.shape[0]:
                    if X[at] >= 0:
                        T.atomic_add(counts[X[at]], 1)
                    at += 128
            else:
                for turn in T.serial(T.ceildiv(X.shape[0], 128)):
                    if turn * 128 + block * 64 + tx >= X.shape[0]:
                        T.loop_break()
                    if X[turn * 128 + block * 64 + tx] >= 0:
                        T.atomic_add(counts[X[turn * 128 + block * 64 + tx]], 1)
            for i in T.serial(tx, 7, 64):
                T.atomic_add(C[i], counts[6 - i])

    return program


@pytest.mark.parametrize("form", ["for", "while", "break"])
@pytest.mark.parametrize("target", TARGETS)
def test_no_barrier_stands_in_a_loop_that_threads_leave_apart(target: str, form: str) -> None:
    """A barrier stood in front of each atomic, where the threads without an iteration never came."""
    kernel = tilewright.compile(histogram(form), target=target)
    for size in (0, 1, 127, 300):
        x = np.random.default_rng(size).integers(-1, 7, size).astype(np.int32)
        wanted = np.bincount(x[x >= 0], minlength=7)[::-1].astype(np.int32)
        for run in (kernel.emulate, kernel.interpret):
            counts = np.zeros(7, np.int32)
            run(x, counts)
            assert np.array_equal(counts, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_threads_meet_in_loops_that_they_leave_together(target: str) -> None:
    """Bounds that mention the thread, and as many iterations for each."""

    @T.prim_func
    def turned(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((64,), "float32")
            for i in T.serial(tx, 256, 64):
                tile[63 - tx] = A[i]
                B[i] = tile[tx]

    kernel = tilewright.compile(turned, target=target)
    a = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    b = np.full(256, np.nan, np.float32)
    kernel.emulate(a, b)
    assert np.array_equal(b, a.reshape(4, 64)[:, ::-1].ravel())
