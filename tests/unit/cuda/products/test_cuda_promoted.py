"""Products of bytes whose sums are promoted, of many rows and of few, with either order of the weight."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.kernels.dense_matmul import scaled_matmul
from tilewright.kernels.few_rows_matmul import few_rows_matmul
from tilewright.kernels.repertoire import MOST
from tilewright.kernels.tile_choice import DenseProduct, parts_for
from tilewright.kernels.tiles import (
    PROMOTED,
    RESERVED,
    ROW_BYTES,
    SHARED_BYTES,
    Tiles,
    all_tiles,
    padded_rows,
    with_stages,
)
from tilewright.specialization import JITFactory

E4M3 = "float8_e4m3fn"


def on_hopper(factory, *arguments, **named):
    return JITFactory(factory.function, None, "cuda -arch=sm_90a -cores=4", None)(*arguments, **named)


def operands(M, N, K, transpose_B):
    """Positive numbers, whose sums grow: what a sum of a few bits loses is seen."""
    rng = np.random.default_rng(M * N + K)
    a, b = (rng.random((size, K)).astype(tilewright.dtype(E4M3).numpy) for size in (M, N))
    scales = [(rng.random(size) + 0.5).astype(np.float32) for size in (M, N)]
    exact = (a.astype(np.float64) * scales[0][:, None]) @ (b.astype(np.float64) * scales[1][:, None]).T
    return a, scales[0], b if transpose_B else np.ascontiguousarray(b.T), scales[1], exact


@pytest.mark.parametrize("transpose_B", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_many_rows(transpose_B, turned):
    M, N, K = 72, 80, 1104
    tiles = Tiles(32, 64, 128, 2, 128, swapped=True) if turned else Tiles(64, 32, 128, 2, 128)
    a, of_a, b, of_b, exact = operands(M, N, K, transpose_B)
    errors = []
    for promote in (True, False):
        kernel = on_hopper(
            scaled_matmul, N, K, E4M3, out="float32", transpose_B=transpose_B, tiles=tiles, promote=promote
        )
        found = np.full((M, N), np.nan, np.float32)
        kernel.emulate(a, b, of_a, of_b, found)
        errors.append(np.abs(found - exact).max() / exact.max())
    assert errors[0] < 2.0**-10 and errors[1] > 3 * errors[0]


@pytest.mark.parametrize("transpose_B", [True, False])
@pytest.mark.parametrize("M, N, K, splits", [(1, 200, 1104, 2), (3, 72, 272, 1), (1, 64, 2048, 4)])
def test_few_rows(M, N, K, splits, transpose_B):
    a, of_a, b, of_b, exact = operands(M, N, K, transpose_B)
    kernel = on_hopper(
        few_rows_matmul, N, K, E4M3, "float32", M, splits, transpose_B=transpose_B, scaled=True, promote=True
    )  # fmt: skip
    found = np.full((M, N), np.nan, np.float32)
    kernel.emulate(a, of_a, b, of_b, found)
    assert found.shape == exact.shape and (np.abs(found - exact) <= 2.0**-10 * exact.max(initial=0)).all()


@pytest.mark.parametrize("turned", [None, True])
@pytest.mark.parametrize("M, N, K", [(1, 4096, 4096), (300, 4096, 4096), (777, 28672, 8192), (2300, 2112, 7168)])
def test_threads_hold_both_accumulators(M, N, K, turned):
    for _, tiles in parts_for(DenseProduct(N, K, "float8_e4m3fn", swapped=turned, promoted=True), M):
        assert tiles.block_M * tiles.block_N <= PROMOTED[tiles.threads] * tiles.threads
        assert turned is None or tiles.swapped


def test_rings_have_room_for_scales_of_rows():
    blocks = DenseProduct(128, 128, E4M3, promoted=True, in_blocks=True).lanes
    for tiles in all_tiles(1, None).of:
        one = with_stages(tiles, True, blocks)
        slot = (one.block_M + one.block_N) * ROW_BYTES + 4 * padded_rows(one.block_M)
        assert one.stages >= 2 and one.stages * slot <= SHARED_BYTES - RESERVED


@pytest.mark.parametrize("M, N, K", [(96, 3072, 8192), (128, 3072, 8192), (190, 1024, 1024)])
def test_what_is_chosen_for_blocks_compiles(M, N, K):
    """A ring of 128 x 128 tiles had one slot too many for the scales beside it, and the call raised an error."""
    parts = parts_for(DenseProduct(N, K, E4M3, promoted=True, in_blocks=True), M)
    kernel = JITFactory(scaled_matmul.function, None, "cuda -arch=sm_90a", None)(
        N, K, E4M3, E4M3, "bfloat16", "group", "block", tiles=parts
    )
    assert "of_group" in kernel.get_kernel_source()


@pytest.mark.parametrize("turned, promoted", [(None, True), (True, True), (True, False)])
def test_a_few_kernels_serve_all_numbers_of_rows(turned, promoted):
    for N, K in ((4096, 4096), (2112, 7168)):
        product = DenseProduct(N, K, "float8_e4m3fn", swapped=turned, promoted=promoted)
        of_rows = {parts_for(product, M) for M in range(1, 9000, 37)}
        assert 2 <= len(of_rows) <= MOST
