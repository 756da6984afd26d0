"""Clusters and persistent grids that the compiler makes of plain kernels: exact, and said by `explain`."""

import numpy as np
import pytest
from cuda_gemm import matmul, on, operands, product

import tilewright
import tilewright.language as T
from tilewright.kernels import matmul as library
from tilewright.passes.context import Schedule
from tilewright.specialization import JITFunction

FOUR = "sm_90a -cores=4"
SMALL = {"dtype": "int8", "accumulator": "int32", "out": "int32", "block": (64, 32, 64)}


def check(kernel, a, b, schedules=("late", "early", "random")):
    expected = product(a, b)[0].astype(np.int32)
    assert np.array_equal(kernel.interpret(a, b), expected)
    for schedule in schedules:
        assert np.array_equal(kernel.emulate(a, b, schedule=schedule, seed=1), expected)


def scheduled(architecture, schedule):
    return JITFunction(matmul, f"cuda -arch={architecture}", schedule)


@pytest.mark.parametrize("cluster, axis", [(1, None), (2, "by"), (4, "by")])
def test_neighbours_share_loads(cluster, axis):
    a, b = operands(256, 128, 192, "int8")
    wide = {**SMALL, "block": (64, 128, 64)}
    kernel = scheduled("sm_90a", Schedule(cluster=cluster, persistent=False)).compile(a, b, **wide)
    assert (f"{cluster} blocks along {axis} share loads of B" in kernel.explain()) == (cluster > 1)
    assert ("tma_load_multicast" in kernel.get_kernel_source()) == (cluster > 1)
    check(kernel, a, b)


def test_blocks_beyond_the_grid_store_nothing():
    a, b = operands(130, 72, 192, "int8")
    kernel = scheduled(FOUR, Schedule(cluster=2)).compile(a, b, **SMALL)
    assert "cluster: none (no load is shared along an axis that divides)" in kernel.explain()
    kernel = on(FOUR, library.matmul).compile(
        a, b, dtype="int8", accumulate="int32", out="int32", transpose_B=True, block_M=64, block_N=32, block_K=64,
        cluster=(1, 2),
    )  # fmt: skip
    assert "tma_load_multicast" in kernel.get_kernel_source()
    check(kernel, a, b)


@pytest.mark.parametrize("rows, columns", [(700, 200), (64, 480), (900, 32)])
def test_blocks_stay_for_many_tiles(rows, columns):
    a, b = operands(rows, columns, 192, "int8")
    kernel = scheduled(FOUR, Schedule(persistent=True)).compile(a, b, **SMALL)
    assert "grid: persistent" in kernel.explain()
    check(kernel, a, b)


def test_more_tiles_than_fit_are_reason_enough():
    a, b = operands(512, 128, 136, "bfloat16")
    kernel = on(FOUR, matmul).compile(a, b, dtype="bfloat16", block=(128, 64, 64), threads=256, num_stages=5)
    assert "grid: persistent, 2 at once, panels of 1 rows of tiles" in kernel.explain()
    exact, size = product(a, b)
    assert (np.abs(kernel.emulate(a, b) - exact) <= 2.0**-16 * size).all()


@pytest.mark.parametrize("m", [1, 64, 65, 400])
def test_any_number_of_rows(m):
    a, b = operands(m, 160, 96, "bfloat16")
    kernel = JITFunction(library.matmul.direct.function, f"cuda -arch={FOUR}", Schedule(persistent=True)).compile(
        a, b, dtype="bfloat16", transpose_B=True, block_M=64, block_N=32, block_K=32, cluster=(1, 2)
    )
    assert "tma_load_multicast" in kernel.get_kernel_source() and "grid: persistent" in kernel.explain()
    exact, size = product(a, b)
    for schedule in ("late", "early"):
        assert (np.abs(kernel.emulate(a, b, schedule=schedule) - exact) <= 2.0**-16 * size).all()


def test_batches_are_tiles_too():
    @T.prim_func
    def batched(
        A: T.Tensor((3, 130, 64), "int8"), B: T.Tensor((3, 96, 64), "int8"), C: T.Tensor((3, 130, 96), "int32")
    ):
        with T.Kernel(3, 3, 3, threads=128, persistent=True) as (bx, by, bz):
            T.use_swizzle(2, order="column")
            a, b = T.alloc_shared((64, 32), "int8"), T.alloc_shared((32, 32), "int8")
            c = T.alloc_fragment((64, 32), "int32")
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[bz, by * 64, k * 32], a)
                T.copy(B[bz, bx * 32, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[bz, by * 64, bx * 32])

    kernel = tilewright.compile(batched, out_idx=-1, target=f"cuda -arch={FOUR}")
    assert "grid: persistent" in kernel.explain()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (3, rows, 64)).astype(np.int8) for rows in (130, 96))
    expected = a.astype(np.int32) @ b.astype(np.int32).transpose(0, 2, 1)
    assert np.array_equal(kernel.emulate(a, b), expected)


@pytest.mark.parametrize("schedule", ["late", "early", "random"])
@pytest.mark.parametrize("persistent", [True, "claim"])
def test_tiles_may_differ_in_their_steps(persistent, schedule):
    """Numbers of slots go on from a tile that took more or fewer steps, whether tiles are dealt or claimed."""

    @T.prim_func
    def triangle(A: T.Tensor((320, 320), "int8"), C: T.Tensor((320, 64), "int32")):
        with T.Kernel(1, 5, threads=128, persistent=persistent) as (bx, by):
            a, c = T.alloc_shared((64, 64), "int8"), T.alloc_fragment((64, 64), "int32")
            T.clear(c)
            for k in T.Pipelined(by + 1, num_stages=2):
                T.copy(A[by * 64, k * 64], a)
                T.gemm(a, a, c, transpose_B=True)
            T.copy(c, C[by * 64, bx * 64])

    kernel = tilewright.compile(triangle, out_idx=-1, target="cuda -arch=sm_90a -cores=2")
    assert "grid: persistent, 2 at once" in kernel.explain()
    assert ("atomic_add(&claimed" in kernel.get_kernel_source()) == (persistent == "claim")
    a = operands(320, 8, 320, "int8")[0].astype(np.int32)
    rows = [a[by * 64 : by * 64 + 64, : by * 64 + 64] for by in range(5)]
    expected = np.concatenate([one @ one.T for one in rows])
    assert np.array_equal(kernel.interpret(a.astype(np.int8)), expected)
    assert np.array_equal(kernel.emulate(a.astype(np.int8), schedule=schedule), expected)


def test_clusters_of_the_compiler_stand_back_for_claims():
    a, b = operands(512, 128, 192, "int8")
    kernel = scheduled(FOUR, Schedule(persistent="claim")).compile(a, b, **SMALL)
    assert (
        "tiles are claimed" in kernel.explain()
        and "cluster: none (each block claims tiles of its own)" in kernel.explain()
    )


def test_blocks_of_clusters_do_not_claim():
    a, b = operands(512, 128, 192, "int8")
    kernel = scheduled(FOUR, Schedule(cluster=2, persistent="claim")).compile(a, b, **SMALL)
    assert "not persistent: blocks of a cluster would have to claim the same tiles" in kernel.explain()
