"""Lanes of a warp exchange values in shared memory where a block is one thread."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError


def program(dtype: str, threads: tuple[int, int]) -> T.PrimFunc:
    count = threads[0] * threads[1]

    @T.prim_func
    def made(
        A: T.Tensor((count,), dtype),
        Lanes: T.Tensor((count,), "int32"),
        B: T.Tensor((8, count), dtype),
        Words: T.Tensor((count,), "uint32"),
    ):
        with T.Kernel(1, threads=threads):
            number = T.get_thread_binding(0) + T.get_thread_binding(1) * threads[0]
            own = A[number]
            B[0, number] = T.shfl_sync(own, Lanes[number])
            B[1, number] = T.shfl_xor(own, 5)
            B[2, number] = T.shfl_up(own, 3)
            B[3, number] = T.shfl_down(own, Lanes[number])
            B[4, number] = T.warp_reduce_sum(own)
            B[5, number] = T.warp_reduce_max(own)
            B[6, number] = T.warp_reduce_min(own)
            total = T.alloc_var(dtype, init=0)
            for k in T.serial(5):
                if k != 2:
                    total += T.shfl_xor(total + own, 1 << k)
            B[7, number] = total
            Words[number] = T.ballot(own > 0)

    return made


@pytest.mark.parametrize("threads", [(64, 1), (16, 6), (32, 1)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_a_processor_does_as_lanes_do(dtype: str, threads: tuple[int, int]) -> None:
    """All of it was refused on processors, whatever stood around it."""
    kernel = tilewright.compile(program(dtype, threads), target="cpu")
    rng, count = np.random.default_rng(0), threads[0] * threads[1]
    a, lanes = (rng.standard_normal(count) * 9).astype(dtype), rng.integers(0, 40, count).astype(np.int32)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for run in (kernel, kernel.interpret):
        b, words = np.zeros((8, count), dtype), np.zeros(count, np.uint32)
        run(a, lanes, b, words)
        found.append((b, words))
    (b, words), (expected, words_expected) = found
    assert np.array_equal(b, expected) and np.array_equal(words, words_expected)
    warps = a.reshape(-1, 32)
    assert np.array_equal(b[0].reshape(-1, 32), np.take_along_axis(warps, lanes.reshape(-1, 32) % 32, 1))
    assert np.array_equal(b[5].reshape(-1, 32), np.repeat(warps.max(1), 32).reshape(-1, 32))
    assert np.array_equal(words[::32], ((warps > 0) << np.arange(32)).sum(1).astype(np.uint32))


def test_one_warp_has_one_number() -> None:
    """Work under a condition on the number of a thread's warp is the block's, where there is but one; such conditions
    were taken for ones that divide the block."""

    @T.prim_func
    def chosen(A: T.Tensor((3, 32), "int32"), Wanted: T.Tensor((3,), "int32")):
        with T.Kernel(3, threads=32) as block:
            thread = T.get_thread_binding()
            if Wanted[thread // 32 + block] > 0:
                A[block, thread] = T.warp_reduce_sum(A[block, thread % 32])

    kernel = tilewright.compile(chosen, target="cpu")
    a = np.random.default_rng(0).integers(0, 9, (3, 32)).astype(np.int32)
    sums = np.broadcast_to(a.sum(1, keepdims=True), a.shape)
    for run in (kernel, kernel.interpret):
        ours = a.copy()
        run(ours, np.array([1, 0, 2], np.int32))
        assert np.array_equal(ours, np.where(np.array([[1], [0], [2]]) > 0, sums, a))


def test_warps_must_be_whole() -> None:
    @T.prim_func
    def refused(A: T.Tensor((48,), "int32")):
        with T.Kernel(1, threads=48):
            thread = T.get_thread_binding()
            A[thread] = T.shfl_xor(A[thread], 1)

    with pytest.raises(TilewrightError, match="exchanges values between the threads of a warp") as caught:
        tilewright.compile(refused, target="cpu")
    assert "A[thread] = T.shfl_xor(A[thread], 1)" in str(caught.value)


def test_threads_that_leave_at_different_times_cannot_meet() -> None:
    """It was an invalid program: a loop over the threads is left by all of them."""

    @T.prim_func
    def refused(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            thread = T.get_thread_binding()
            while T.shfl_sync(A[thread], 0) > 1:
                A[thread] = A[thread] // 2

    with pytest.raises(TilewrightError, match=r"threads leave this loop, .* at different times") as caught:
        tilewright.compile(refused, target="cpu")
    assert "while T.shfl_sync(A[thread], 0) > 1:" in str(caught.value)


def test_partial_functions_of_fragments() -> None:
    """What `functools.partial` has given a layout's function is no number of copies; it was a TypeError."""
    from functools import partial

    def place(i, j, width):
        return i * 8 + j // width % 8, j % width + j // (8 * width) * width

    made = T.Fragment((4, 64), forward_fn=partial(place, width=4))
    wanted = T.Fragment((4, 64), forward_fn=lambda i, j: place(i, j, 4))
    assert made.layout == wanted.layout
