"""Products that no matrix instruction executes, though one could: authors are told what to write."""

from __future__ import annotations

import warnings

import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightWarning


def product(source: str, dtype_b: str = "float16"):
    """A product whose operands are read from `source`: a tensor or a shared tile."""

    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16"), B: T.Tensor((64, 32), dtype_b), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            left, right = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), dtype_b)
            sums = T.alloc_fragment((64, 64), "float32")
            T.clear(sums)
            if source == "global":
                T.gemm(A, B, sums, transpose_B=True)
            else:
                T.copy(A, left)
                T.copy(B, right)
                T.gemm(left, right, sums, transpose_B=True)
            T.copy(sums, C)

    return main


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "source, dtype, message",
    [
        ("global", "float16", "A and B of this product lie in global memory; copy tiles of them into shared ones first"),
        ("shared", "float8_e4m3fn", "no instruction multiplies float16 by float8_e4m3fn; give both operands one type"),
    ],
)  # fmt: skip
def test_scalar_products_are_said(source, dtype, message, arch):
    with pytest.warns(TilewrightWarning, match=f"threads multiply element by element: {message}"):
        tilewright.compile(product(source, dtype), target=f"cuda -arch={arch}")


@pytest.mark.parametrize("source, target", [("shared", "cuda -arch=sm_90a"), ("global", "cpu"), ("shared", "cpu")])
def test_nothing_is_said_where_products_are_fast(source, target):
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        tilewright.compile(product(source), target=target)
