"""Words that no kernel of the repository needs: each in a program that is interpreted, emulated and run on this machine."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T

TARGETS = ("interpreter", "cuda -arch=sm_80", "cuda -arch=sm_90a", "cpu")
RNG = np.random.default_rng(3)


def run(function, target, *arguments):
    """The last argument after a run."""
    given = [one.copy() for one in arguments]
    kernel = tilewright.compile(function, target="cuda -arch=sm_90a" if target == "interpreter" else target)
    {"interpreter": kernel.interpret, "cpu": kernel}.get(target, kernel.emulate)(*given)
    return given[-1]


FUNCTIONS = {
    "cos": np.cos, "tan": np.tan, "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc, "atan": np.arctan, "exp10": lambda x: 10.0**x,
    "log10": lambda x: np.log10(np.abs(x)), "log1p": lambda x: np.log1p(np.abs(x)), "sinh": np.sinh, "cosh": np.cosh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "pow": lambda x: np.power(np.abs(x), 1.5), "fmod": lambda x: np.fmod(x, 0.75),
    "round": np.round, "nearbyint": np.round, "__exp": np.exp, "fast_rcp": lambda x: 1 / x,
    "atan2": lambda x: np.arctan2(x, 0.5), "isfinite": lambda x: np.ones_like(x), "ieee_frsqrt": lambda x: 1 / np.sqrt(np.abs(x)),
}  # fmt: skip
POSITIVE = ("log10", "log1p", "ieee_frsqrt")


@pytest.mark.parametrize("target", TARGETS)
def test_functions_of_numbers(target):
    names = list(FUNCTIONS)

    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((len(names), 64), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                for row, name in enumerate(names):
                    x = T.abs(X[i]) if name in (*POSITIVE, "pow") else X[i]
                    more = {"pow": (1.5,), "fmod": (0.75,), "atan2": (0.5,)}.get(name, ())
                    Y[row, i] = T.cast(getattr(T, name)(x, *more), "float32")

    x = RNG.uniform(-3, 3, 64).astype(np.float32)
    found = run(main, target, x, np.full((len(names), 64), np.nan, np.float32))
    for row, (name, reference) in enumerate(FUNCTIONS.items()):
        wanted = reference(x.astype(np.float64))
        assert np.allclose(found[row], wanted, rtol=4e-6, atol=1e-6), name


@pytest.mark.parametrize("target", TARGETS)
def test_operations_on_integers(target):
    @T.prim_func
    def main(X: T.Tensor((64,), "int32"), Y: T.Tensor((7, 64), "int32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                Y[0, i] = T.shift_left(X[i], 3)
                Y[1, i] = T.shift_right(X[i], 2)
                Y[2, i] = T.bitwise_xor(X[i], 0x55)
                Y[3, i] = T.popcount(X[i])
                Y[4, i] = T.Select(X[i] > 0, X[i], -X[i])
                Y[5, i] = T.floordiv(X[i], 7) * 100 + T.floormod(X[i], 7)
                Y[6, i] = T.clamp(X[i], -10, 10)

    x = RNG.integers(-1000, 1000, 64).astype(np.int32)
    ones = np.array([int(v).bit_count() for v in x.view(np.uint32)])
    expected = [x << 3, x >> 2, x ^ 0x55, ones, np.abs(x), x // 7 * 100 + x % 7, np.clip(x, -10, 10)]
    assert np.array_equal(run(main, target, x, np.zeros((7, 64), np.int32)), np.stack(expected))


REDUCTIONS = {
    "abssum": lambda x: np.abs(x).sum(1), "absmax": lambda x: np.abs(x).max(1), "min": lambda x: x.min(1),
    "bitand": lambda x: np.bitwise_and.reduce(x, 1), "bitor": lambda x: np.bitwise_or.reduce(x, 1),
    "bitxor": lambda x: np.bitwise_xor.reduce(x, 1),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions(target, kind):
    @T.prim_func
    def main(X: T.Tensor((32, 48), "int32"), Y: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((32, 48), "int32")
            line = T.alloc_fragment((32,), "int32")
            T.copy(X, tile)
            getattr(T, f"reduce_{kind}")(tile, line)
            T.copy(line, Y)

    x = RNG.integers(-99, 99, (32, 48)).astype(np.int32)
    assert np.array_equal(run(main, target, x, np.zeros(32, np.int32)), REDUCTIONS[kind](x))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_running_maxima_and_atomics(target, dtype):
    @T.prim_func
    def main(X: T.Tensor((16, 32), dtype), M: T.Tensor((16, 32), dtype), Y: T.Tensor((5,), dtype)):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((16, 32), dtype)
            T.copy(X, tile)
            T.cummax(tile, dim=1)
            T.copy(tile, M)
            for i, j in T.Parallel(16, 32):
                T.atomic_min(Y[0], X[i, j])
                T.atomic_max(Y[1], X[i, j])
                T.atomic_or(Y[2], X[i, j])
                T.atomic_and(Y[3], X[i, j])
                T.atomic_xor(Y[4], X[i, j])

    x = RNG.integers(0, 1 << 20, (16, 32)).astype(dtype)
    start = np.array([1 << 30, 0, 0, (1 << 31) - 1, 0], dtype)
    m, y = np.zeros_like(x), start.copy()
    kernel = tilewright.compile(main, target="cpu" if target == "interpreter" else target)
    {"interpreter": kernel.interpret, "cpu": kernel}.get(target, kernel.emulate)(x, m, y)
    if "cuda" in target:
        kernel.ptx()
    assert np.array_equal(m, np.maximum.accumulate(x, 1))
    bits = (np.bitwise_or.reduce(x.ravel()), np.bitwise_and.reduce(x.ravel()), np.bitwise_xor.reduce(x.ravel()))
    assert np.array_equal(y, [x.min(), x.max(), *bits])


@pytest.mark.parametrize("target", TARGETS)
def test_names_of_the_grid(target):
    """What a kernel may ask about its launch, and loops and allocations under their other names."""
    size = T.symbolic("size")

    @T.prim_func
    def main(X: T.Buffer((size, 4, 8), "int32"), Y: T.Buffer((size, 4, 8), "int32")):
        T.func_attr({"global_symbol": "main"})
        with T.Kernel(4, size, threads=(8, 4)):
            by, bz = T.get_block_bindings()
            tx, ty, _ = T.get_thread_bindings()
            own = T.alloc_buffer((4,), "int32", scope="local")
            total = T.alloc_var("int32", 0)
            for i in T.Vectorized(4):
                own[i] = T.get_thread_extent(0) + T.get_block_extent(0)
            for i in T.Unroll(4):
                for j in T.Serial(100):
                    if j == 3:
                        T.loop_break()
                    total = total + own[i]
            if T.get_block_binding(0) == 1:
                Y[bz, ty, tx] = X[bz, ty, tx] + total + by * T.get_thread_extents()[1] + T.get_block_extents()[0]

    x = RNG.integers(0, 99, (3, 4, 8)).astype(np.int32)
    found = run(main, target, x, np.zeros_like(x))
    assert np.array_equal(found, x + 4 * 3 * (8 + 4) + 1 * 4 + 4)


@pytest.mark.parametrize("target", ["interpreter", "cuda -arch=sm_90a"])
def test_a_kernel_of_clusters(target):
    @T.prim_func
    def main(Y: T.Tensor((8,), "int32")):
        with T.ClusterKernel(8, cluster_dims=2, threads=128) as block:
            rank = T.block_rank_in_cluster()
            T.cluster_sync()
            if T.get_thread_binding() == 0:
                Y[block] = rank * 10 + T.get_warp_group_idx() + T.get_warp_idx_sync()

    assert np.array_equal(run(main, target, np.zeros(8, np.int32)), [0, 10] * 4)
