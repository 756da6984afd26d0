"""`T.async_copy`: into any part of a tile, and on machines where nothing goes on beside a block."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T

N = 8 * 64


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80", "cuda -arch=sm_90a"])
def test_parts_of_a_tile_one_after_the_other(target: str) -> None:
    """Where a part begins in its tile is a number of the loop's: the parts were refused; and all of it on processors."""

    @T.prim_func
    def program(A: T.Tensor((5, N), "float16"), C: T.Tensor((5, N), "float32")):
        with T.Kernel(5, threads=32) as row:
            whole = T.alloc_shared((N,), "float16")
            T.async_copy(A[row, 0:64], whole[0:64])
            for k in T.serial(1, 8):
                T.async_copy(A[row, k * 64 : (k + 1) * 64], whole[k * 64 : (k + 1) * 64])
                T.ptx_wait_group(1)
                for i in T.Parallel(64):
                    C[row, (k - 1) * 64 + i] = whole[(k - 1) * 64 + i] * T.float32(2)
            T.ptx_wait_group(0)
            for i in T.Parallel(64):
                C[row, N - 64 + i] = whole[N - 64 + i] * T.float32(2)

    kernel = tilewright.compile(program, target=target)
    a = np.random.default_rng(0).standard_normal((5, N)).astype(np.float16)
    runs = [kernel] if target == "cpu" else [lambda *x, s=s: kernel.emulate(*x, schedule=s) for s in ("late", "early")]
    for run in (*runs, kernel.interpret):
        c = np.full((5, N), np.nan, np.float32)
        run(a, c)
        assert np.array_equal(c, a.astype(np.float32) * 2)
    if target != "cpu":
        assert "cp_async" in kernel.get_kernel_source()


def test_what_a_processor_starts_has_ended() -> None:
    """Stores and sums by the copy engine, and products of warpgroups."""

    @T.prim_func
    def program(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
        D: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            out = T.alloc_shared((64, 64), "float32")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.wgmma_gemm(a, b, c, clear_accum=True)
            T.wait_wgmma(0)
            T.copy(c, out)
            T.tma_copy(out, C)
            T.atomic_add(D[0, 0], out, use_tma=True)
            T.tma_store_wait(0)

    kernel = tilewright.compile(program, target="cpu")
    a, b = np.random.default_rng(0).integers(-3, 4, (2, 64, 64)).astype(np.float16)
    for run in (kernel, kernel.interpret):
        c, d = np.zeros((64, 64), np.float32), np.ones((64, 64), np.float32)
        run(a, b, c, d)
        assert np.array_equal(c, a.astype(np.float32) @ b) and np.array_equal(d, c + 1)


def test_the_width_of_a_copy_is_its_authors() -> None:
    """It was read by nothing but copies with a layout."""

    def moved(width: int | None) -> str:
        @T.prim_func
        def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
            with T.Kernel(1, threads=128):
                tile = T.alloc_fragment((64, 64), "float16")
                T.copy(A, tile, coalesced_width=width)
                T.copy(tile, C, coalesced_width=width)

        kernel = tilewright.compile(program, target="cuda -arch=sm_80")
        a = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)
        c = np.zeros_like(a)
        kernel.emulate(a, c)
        assert np.array_equal(a, c)
        return kernel.get_kernel_source()

    texts = {width: moved(width) for width in (None, 8, 4, 2)}
    assert texts[None] == texts[8] and len({*texts.values()}) == 3
