"""Which copies become cp.async, of which width, and why others do not; where tiles lie in shared memory."""

import re

import numpy as np
import pytest
from cuda_gemm import matmul, on

import tilewright.language as T
from tilewright.errors import SharedMemoryExceeded
from tilewright.interpreter import interpret


def staged(A, rows=16, columns=32, start=0, prefer=None, safe=0.0, out="float32"):
    """A tile through shared memory, read back by other threads than wrote it."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    C = T.empty((rows, columns), out)
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((rows, columns), out)
        if safe:
            T.annotate_safe_value({A: safe})
        T.copy(A[0, start], tile, prefer_instruction=prefer)
        for i, j in T.Parallel(rows, columns):
            C[i, j] = tile[rows - 1 - i, columns - 1 - j]
    return C


def expected_of(a, rows, columns, start, safe=0.0):
    padded = np.full((rows, columns), safe, np.float32)
    part = a[:rows, start : start + columns]
    padded[: part.shape[0], : part.shape[1]] = part
    return padded[::-1, ::-1]


@pytest.mark.parametrize(
    "shape, columns, start, size",
    [((16, 64), 32, 0, 16), ((11, 48), 32, 32, 16), ((9, 50), 32, 2, 8), ((16, 33), 31, 1, 4), ((16, 64), 20, 0, 16), ((5, 64), 2, 2, 8)],
)  # fmt: skip
@pytest.mark.parametrize("schedule", ["late", "random"])
def test_pieces_are_as_wide_as_rows_allow_and_zero_beyond(shape, columns, start, size, schedule):
    a = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    kernel = on("sm_80", staged).compile(a, columns=columns, start=start)
    assert f"cp_async of {size} bytes" in kernel.explain()
    assert re.search(rf"tw::cp_async(_zfill)?<{size}>", kernel.get_kernel_source())
    expected = expected_of(a, 16, columns, start)
    assert np.array_equal(kernel.emulate(a, schedule=schedule, seed=3), expected)
    assert np.array_equal(interpret(kernel.program.final, [a])[0], expected)


def test_inside_the_tensor_no_guard_is_left():
    a = np.ones((16, 64), np.float32)
    assert "tw::cp_async<16>" in on("sm_80", staged).compile(a).get_kernel_source()


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"out": "float16"}, "it converts float32 to float16"),
        ({"safe": 1.0, "start": 48}, "what is out of bounds is not zero"),
    ],
)
def test_copies_that_cannot_be_asynchronous_say_why(options, reason):
    a = np.random.default_rng(2).standard_normal((16, 64)).astype(np.float32)
    kernel = on("sm_80", staged).compile(a, **options)
    assert f"copy: loads and stores (not cp_async: {reason})" in kernel.explain()
    assert "cp_async" not in kernel.get_kernel_source()
    expected = expected_of(a, 16, 32, options.get("start", 0), options.get("safe", 0.0))
    assert np.array_equal(kernel.emulate(a), expected.astype(options.get("out", "float32")))


def test_the_author_chooses():
    a = np.ones((16, 64), np.float32)
    kernel = on("sm_80", staged).compile(a, prefer="sync")
    assert "cp_async" not in kernel.get_kernel_source()
    with pytest.warns(match="this copy cannot be cp_async: it converts float32 to float16"):
        on("sm_80", staged).compile(a, prefer="cp_async", out="float16")


def by_threads(A, B):
    A: T.Tensor((128, 128), "float16")
    B: T.Tensor((128, 64), "float16")
    C = T.empty((128, 64), "float16")
    with T.Kernel(2, threads=128) as by:
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[by * 64, k * 32], a, disable_tma=True)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 64, 0], disable_tma=True)
    return C


def test_without_the_engine_copies_are_those_of_threads():
    """TileLang's `disable_tma` leaves cp.async, in pipelines and in roles."""
    a, b = np.ones((128, 128), np.float16), np.ones((128, 64), np.float16)
    kernel = on("sm_90a", by_threads).compile(a, b)
    told = kernel.explain()
    assert "cp_async into a_ring (not tma_load: the author asks for threads)" in told and "tma_load into b_ring" in told
    assert "tma_store" not in kernel.get_kernel_source()
    assert np.array_equal(kernel.emulate(a, b), np.full((128, 64), 128))


def test_rows_of_two_bytes_are_too_narrow():
    def narrow(A):
        A: T.Tensor((64, 3), "float16")
        C = T.empty((64,), "float16")
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((64, 1), "float16")
            T.copy(A[0, 1], tile)
            for i in T.Parallel(64):
                C[i] = tile[63 - i, 0]
        return C

    a = np.arange(192).reshape(64, 3).astype(np.float16)
    kernel = on("sm_80", narrow).compile(a)
    assert "not cp_async" in kernel.explain()
    assert np.array_equal(kernel.emulate(a), a[::-1, 1])


def several(A, B):
    """Copies side by side are waited for together."""
    A: T.Tensor((32, 32), "float16")
    B: T.Tensor((32, 32), "float16")
    C = T.empty((32, 32), "float16")
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((32, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        T.copy(A, a)
        T.copy(B, b)
        for i, j in T.Parallel(32, 32):
            C[i, j] = a[j, i] + b[31 - i, j]
    return C


def test_neighbouring_copies_share_a_wait():
    a, b = (np.random.default_rng(seed).integers(-9, 9, (32, 32)).astype(np.float16) for seed in (1, 2))
    kernel = on("sm_80", several).compile(a, b)
    text = kernel.get_kernel_source()
    assert text.count("tw::cp_async_wait<0>") == text.count("tw::cp_async_commit") == text.count("sync_threads") == 1
    assert np.array_equal(kernel.emulate(a, b, schedule="late"), a.T + b[::-1])


# Shared memory ----------------------------------------------------------------------------------


def chain(A):
    """Tiles that live one after the other."""
    A: T.Tensor((4, 256), "float32")
    C = T.empty((4, 256), "float32")
    with T.Kernel(1, threads=64):
        first = T.alloc_shared((256,), "float32")
        second = T.alloc_shared((256,), "float32")
        third = T.alloc_shared((256,), "float32")
        T.copy(A[0, 0], first)
        for i in T.Parallel(256):
            second[i] = first[255 - i]
        for i in T.Parallel(256):
            third[i] = second[255 - i] * 2.0
        for i in T.Parallel(256):
            C[0, i] = third[255 - i]
    return C


@pytest.mark.parametrize("schedule", ["late", "early", "random"])
def test_tiles_that_do_not_meet_share_their_bytes(schedule):
    a = np.random.default_rng(4).standard_normal((4, 256)).astype(np.float32)
    kernel = on("sm_80", chain).compile(a)
    assert dict(kernel.program.source.metadata)["shared_bytes"] == (2048,)
    assert np.array_equal(kernel.emulate(a, schedule=schedule, seed=5)[0], a[0, ::-1] * 2)


def test_tiles_that_do_not_fit_are_named():
    a = np.zeros((256, 256), np.float16)
    with pytest.raises(SharedMemoryExceeded) as error:
        on("sm_80", matmul).compile(a, a, block=(256, 128, 64), num_stages=4)
    message = error.value.message
    assert "need 196608 bytes at once, but a block of sm_80 has 166912" in message
    assert "A_shared_stages (65536 x float16, line 21): 131072 bytes" in message
    assert "B_shared_stages (32768 x float16, line 22): 65536 bytes" in message
    assert error.value.span.line == 21


def test_fragments_that_do_not_fit_are_foretold():
    a = np.zeros((256, 256), np.float16)
    with pytest.warns(
        match=r"fragments need \d+ registers of each thread, of 255: they will spill, C_local first with 512\n(?s:.*)help: it fits with 512 threads, or C_local of a quarter of its size"
    ):
        on("sm_80", matmul).compile(a, a, block=(256, 256, 16), threads=128)
