"""Tiles with several names: what is written through a view is there for products, and where a product reads from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.targets.cpu.arch import runs_here

TYPES = ("float32", "float16", "bfloat16", "int8")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("changed", ["a", "b"])
@pytest.mark.parametrize("dtype", TYPES)
def test_products_of_tiles_that_views_change(dtype: str, changed: str, transposed: bool) -> None:
    """The product read the tensor that the tile was copied from, and packed the tile under a name that its view did not know."""
    total = "int32" if dtype == "int8" else "float32"

    @T.prim_func
    def program(
        A: T.Tensor((24, 32), dtype),
        B: T.Tensor((32, 32), dtype),
        C: T.Tensor((24, 32), total),
        D: T.Tensor((24, 32), dtype),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((24, 32), dtype), T.alloc_shared((32, 32), dtype)
            c = T.alloc_fragment((24, 32), total)
            view = T.view(a, (768,)) if changed == "a" else T.view(b, (1024,))
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            for i in T.Parallel(768 if changed == "a" else 1024):
                view[i] = view[i] * 2
            T.gemm(a, b, c, transpose_B=transposed)
            T.copy(c, C)
            T.copy(a, D)

    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, (rows, 32)).astype(dtype_of(dtype).numpy) for rows in (24, 32))
    c, d = np.full((24, 32), 99, total), np.full((24, 32), 99, a.dtype)
    tilewright.compile(program, target="cpu")(a, b, c, d)
    wide = [one.astype(np.float64) for one in (a, b)]
    assert np.array_equal(c, 2 * wide[0] @ (wide[1].T if transposed else wide[1]))
    assert np.array_equal(d, a * 2 if changed == "a" else a)


@pytest.mark.parametrize("machine", ["avx512", "avx2"])
def test_a_view_of_a_tile_that_a_product_would_pack(machine: str) -> None:
    """The tile got another order and another name, and its view had nothing left to be a view of."""

    @T.prim_func
    def program(B: T.Tensor((64, 64), "bfloat16"), O: T.Tensor((8, 512), "float32")):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 64), "bfloat16"), T.alloc_shared((64, 64), "bfloat16")
            c, view = T.alloc_fragment((64, 64), "float32"), T.view(b, (8, 512))
            T.fill(a, 1)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(8, 512):
                O[i, j] = T.cast(view[i, j], "float32") + c[i, 0]

    b = np.arange(4096).reshape(64, 64).astype(dtype_of("bfloat16").numpy)
    found, expected = np.zeros((8, 512), np.float32), np.zeros((8, 512), np.float32)
    kernel = tilewright.compile(program, target=f"cpu -arch={machine}")
    kernel.interpret(b, expected)
    assert np.array_equal(expected, b.astype(np.float32).reshape(8, 512) + b[0].astype(np.float32).sum())
    if runs_here(kernel.arch):
        kernel(b, found)
        assert np.array_equal(found, expected)
