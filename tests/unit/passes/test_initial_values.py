"""The first value of a scalar is computed where its declaration stands: it reads, as any statement does."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir import FLOAT32, Allocate, Buffer, Load, const, uses

TARGETS = ["cuda -arch=sm_90a", "cuda -arch=sm_80", "cpu"]
RNG = np.random.default_rng(3)


def run(function: T.PrimFunc, target: str, *arrays: np.ndarray) -> None:
    kernel = tilewright.compile(function, target=target)
    (kernel if target == "cpu" else kernel.emulate)(*arrays)


def test_a_declaration_is_no_use_and_its_first_value_is() -> None:
    tile, scalar = Buffer("tile", (4,), FLOAT32, "shared"), Buffer("scalar", (1,), FLOAT32, "scalar")
    declaration = Allocate(scalar, Load(FLOAT32, tile, (const(2),)))
    assert [one for one in uses(declaration) if isinstance(one, Buffer)] == [tile]
    assert not [one for one in uses(Allocate(tile)) if isinstance(one, Buffer)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_tile_that_a_pipeline_stages(stages: int, target: str) -> None:
    @T.prim_func
    def fifth(X: T.Tensor((48,), "float32"), O: T.Tensor((6,), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8,), "float32")
            for k in T.Pipelined(6, num_stages=stages):
                T.copy(X[k * 8], s)
                v = T.alloc_var("float32", init=s[5])
                w = T.alloc_var("float32", init=0.0)
                w += s[4]
                O[k] = v + w

    x, out = RNG.standard_normal(48).astype(np.float32), np.full(6, np.nan, np.float32)
    run(fifth, target, x, out)
    rows = x.reshape(6, 8)
    np.testing.assert_array_equal(out, rows[:, 5] + rows[:, 4])


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_whose_last_reader_is_a_first_value_keeps_its_bytes(target: str) -> None:
    @T.prim_func
    def last(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32"), O: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            s, u = T.alloc_shared((64,), "float32"), T.alloc_shared((64,), "float32")
            T.copy(X, s)
            v = T.alloc_var("float32", init=s[63])
            T.copy(Y, u)
            for i in T.Parallel(64):
                O[i] = u[63 - i] + v

    x, y = RNG.standard_normal((2, 64)).astype(np.float32)
    out = np.full(64, np.nan, np.float32)
    run(last, target, x, y, out)
    np.testing.assert_array_equal(out, y[::-1] + x[63])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [1, 2, 16])
def test_sums_of_shared_lines_into_a_shared_tile(columns: int, target: str) -> None:
    @T.prim_func
    def sums(X: T.Tensor((16, columns), "float32"), O: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=64):
            s, o = T.alloc_shared((16, columns), "float32"), T.alloc_shared((16,), "float32")
            T.copy(X, s)
            T.clear(o)
            T.reduce_sum(s, o, dim=1)
            T.copy(o, O)

    x, out = RNG.standard_normal((16, columns)).astype(np.float32), np.full(16, np.nan, np.float32)
    run(sums, target, x, out)
    np.testing.assert_allclose(out, x.sum(1), atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [32, 128])
def test_running_sums_of_a_shared_tile_of_few_lines(threads: int, target: str) -> None:
    @T.prim_func
    def running(X: T.Tensor((5, 7), "int64"), O: T.Tensor((5, 7), "int64")):
        with T.Kernel(1, threads=threads):
            s = T.alloc_shared((5, 7), "int64")
            T.copy(X, s)
            T.cumsum(s, dim=0)
            T.copy(s, O)

    x, out = RNG.integers(-99, 99, (5, 7)), np.full((5, 7), -777)
    run(running, target, x, out)
    np.testing.assert_array_equal(out, np.cumsum(x, 0))
