"""Products whose K is divided among the blocks of a cluster, and tiles that take a ring's bytes once its loop is done."""

import re

import numpy as np
import pytest
from cuda_gemm import operands, product
from test_cuda_dense import on_hopper, run

import tilewright
import tilewright.language as T
from tilewright.errors import EmulationError
from tilewright.kernels.dense_matmul import dense_matmul, scaled_matmul
from tilewright.kernels.roofline import HOPPER
from tilewright.kernels.tiles import Tiles
from tilewright.passes.tile.pipelines import overlay_rings

SCHEDULES = (None, "late", "early", "random")


@pytest.mark.parametrize(
    "tiles, M, N, K",
    [
        (Tiles(64, 32, 64, 2, 128, None, 2), 80, 48, 200),  # a part ends beyond K
        (Tiles(64, 64, 64, 3, 128, None, 4), 200, 150, 330),  # more blocks than run at once
        (Tiles(128, 256, 64, 3, 256, None, 2), 130, 264, 300),
    ],
)
@pytest.mark.parametrize("transpose_A, transpose_B", [(False, True), (True, False)])
def test_parts_of_k(tiles, M, N, K, transpose_A, transpose_B):
    a, b = operands(M, N, K, "bfloat16", transpose_A, transpose_B)
    kernel = on_hopper(
        dense_matmul, N, K, "bfloat16", out="float32", transpose_A=transpose_A, transpose_B=transpose_B, tiles=tiles
    )
    exact, size = product(a, b, transpose_A, transpose_B)
    assert "cluster_sync" in kernel.get_kernel_source()
    for schedule in SCHEDULES:
        found = run(kernel, (M, N), "float32", a, b, schedule=schedule)
        assert (np.abs(found - exact) <= (K + 2) * 2.0**-24 * size).all()


@pytest.mark.parametrize(
    "tiles, sizes",
    [
        (Tiles(64, 64, 64, 3, 128, (2, 2), persistent=False), "22"),
        (Tiles(32, 64, 64, 3, 128, (4, 2), persistent=False, swapped=True), "24"),
        (Tiles(64, 64, 64, 3, 128, (2, 2), persistent=True, swapped=True), "22"),
        (Tiles(64, 64, 64, 3, 128, (2, 1), 2, persistent=False), "2"),
    ],
)
def test_rows_and_columns_of_a_cluster_share_loads(tiles, sizes):
    # Three by five tiles or more: no axis divides, and the blocks beyond the grid take part in the loads.
    M, N, K = 180, 296, 200
    a, b = operands(M, N, K, "bfloat16")
    kernel = on_hopper(dense_matmul, N, K, "bfloat16", None, "bfloat16", tiles=tiles)
    said, text = kernel.explain(), kernel.get_kernel_source()
    assert re.findall(r"(\d) blocks along", said) == list(sizes)
    assert text.count("tma_load_multicast") == len(sizes) and ("grid: persistent" in said) == bool(tiles.persistent)
    exact, size = product(a, b)
    for schedule in (None, "random"):
        found = run(kernel, (M, N), "bfloat16", a, b, schedule=schedule)
        assert (np.abs(found - exact) <= (K + 2) * 2.0**-24 * size + 2.0**-8 * np.abs(exact)).all()


@pytest.mark.parametrize("cluster", [None, (1, 2), (2, 1)])
def test_rows_come_first_where_a_block_has_one_tile(cluster):
    """All rows of tiles read columns of the weight beside one another, before the next ones."""
    M, N, K = 70, 200, 136
    a, b = operands(M, N, K, "bfloat16")
    tiles = Tiles(64, 64, 64, 2, 128, cluster, persistent=False)
    kernel = on_hopper(dense_matmul, N, K, "bfloat16", None, "float32", tiles=tiles)
    of_rows = re.search(r"A_map.*(b[xy]) \* 64", kernel.get_kernel_source())
    assert of_rows and of_rows[1] == "bx"
    exact, size = product(a, b)
    assert (np.abs(run(kernel, (M, N), "float32", a, b) - exact) <= (K + 2) * 2.0**-24 * size).all()


@pytest.mark.parametrize("cluster, splits", [(None, 2), ((2, 2), 2), (None, 4)])
def test_rows_come_first_where_columns_fill_the_machine(cluster, splits):
    """The blocks of a wide weight's columns run beside one another: all rows of tiles read them before the next."""
    wide, K = 64 * (-(-HOPPER.cores // (2 * splits)) + 1) - 8, 136
    for M, N in ((70, wide), (70, wide // 16 * 8)):
        a, b = operands(M, N, K, "bfloat16")
        tiles = Tiles(64, 64, 64, 2, 128, cluster, splits, persistent=False)
        kernel = on_hopper(dense_matmul, N, K, "bfloat16", None, "float32", tiles=tiles)
        of_rows = re.search(r"&a_ring.*(b[xy]) \* 64", kernel.get_kernel_source())
        assert of_rows and of_rows[1] == ("bx" if wide == N else "by")
        exact, size = product(a, b)
        assert (np.abs(run(kernel, (M, N), "float32", a, b) - exact) <= (K + 2) * 2.0**-24 * size).all()


def test_factors_follow_the_rows_of_a_part():
    M, N, K = 72, 56, 320
    a, b = operands(M, N, K, "int8")
    rng = np.random.default_rng(1)
    rows, columns, bias = (rng.random(n, dtype=np.float32) + 0.5 for n in (M, N, N))
    kernel = on_hopper(
        scaled_matmul, N, K, "int8", None, "float32", bias=True, tiles=Tiles(64, 32, 128, 2, 128, None, 2)
    )
    exact = product(a, b)[0] * rows[:, None].astype(np.float64) * columns + bias
    for schedule in SCHEDULES:
        found = run(kernel, (M, N), "float32", a, b, rows, columns, bias, schedule=schedule)
        assert (np.abs(found - exact) <= 2.0**-21 * np.abs(exact) + 1e-3).all()


def behind_a_ring(K=512):
    """Sums pass through a tile that does not fit beside the ring: 4 x 48 KB and 132 KB."""
    M, N = 128, 256

    @T.prim_func
    def behind_a_ring(A: T.Tensor((M, K), "bfloat16"), B: T.Tensor((N, K), "bfloat16"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(1, threads=256) as _:
            a = T.alloc_shared((128, 64), "bfloat16")
            b = T.alloc_shared((256, 64), "bfloat16")
            sums = T.alloc_shared((128, 264), "float32")
            total = T.alloc_fragment((128, 256), "float32")
            T.clear(total)
            for k in T.Pipelined(K // 64, num_stages=4):
                T.copy(A[0, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, total, transpose_B=True)
            for i, j in T.Parallel(128, 256):
                sums[i, j] = total[i, j]
            for i, j in T.Parallel(128, 256):
                C[i, j] = sums[127 - i, j]

    return behind_a_ring


def test_a_tile_behind_the_loop_takes_the_ring_s_bytes():
    a, b = operands(128, 256, 512, "bfloat16")
    exact, size = product(a, b)
    kernel = tilewright.compile(behind_a_ring(), target="cuda -arch=sm_90a")
    text = kernel.get_kernel_source()
    assert "sums = reinterpret_cast<float*>(shared_memory + 0)" in text
    between = text[text.index("wgmma_wait<0>") : text.index("&sums[")]
    assert between.count("named_barrier_sync(1, 256)") == 1
    for schedule in SCHEDULES:
        found = run(kernel, (128, 256), "float32", a, b, schedule=schedule)
        assert (np.abs(found - exact[::-1]) <= 514 * 2.0**-24 * size[::-1]).all()


def test_a_warpgroup_that_is_done_waits_until_nobody_reads_the_ring(monkeypatch):
    monkeypatch.setattr(overlay_rings, "_with_barrier", lambda role, tiles: role)
    kernel = tilewright.compile(behind_a_ring(K=448), target="cuda -arch=sm_90a")
    a, b = operands(128, 256, 448, "bfloat16")
    with pytest.raises(EmulationError):
        for seed in range(4):
            kernel.emulate(a, b, np.zeros((128, 256), np.float32), schedule="random", seed=seed)
