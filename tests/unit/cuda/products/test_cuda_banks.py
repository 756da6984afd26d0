"""Bank conflicts of the kernels that are emitted, counted by the layout algebra in every shared access of every warp."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from cuda_gemm import on
from gemm_grid import cases
from shared_conflicts import shared_accesses

import tilewright
import tilewright.language as T
from tilewright.kernels.attention import flash_attention

warnings.simplefilter("ignore")

ELEMENTS = ("float64", "tfloat32", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")
"""Operands that lanes may read element by element: no matrix load turns them."""


@pytest.mark.parametrize("case", cases(seed=3, count=40), ids=str)
def test_operands_of_products(case):
    """Matrix loads and copies meet none; lanes that gather single elements wait for one other at most."""
    found, extra = shared_accesses(case.kernel(*case.operands()))
    assert found
    for label, count in found.items():
        if "staging" in label:
            continue
        gathers = label.endswith((": 1 bytes", ": 4 bytes", ": 8 bytes")) and case.dtype in ELEMENTS
        assert extra[label] <= (count * (2 if label.endswith(": 8 bytes") else 1) if gathers else 0), label


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_attention(arch):
    q = np.zeros((1, 128, 2, 64), np.float16)
    found, extra = shared_accesses(on(arch, flash_attention).compile(q, q, q, causal=True, dtype="float16"))
    assert found and not +extra


def test_results_that_leave_through_shared_memory():
    """Halves by stmatrix: none."""
    a = np.zeros((256, 128), np.float16)
    found, extra = shared_accesses(on("sm_90a", _halves).compile(a, a))
    assert any("staging" in label for label in found) and not +extra


def _halves(A, B):
    A: T.Tensor((256, 128), "float16")
    B: T.Tensor((256, 128), "float16")
    C = T.empty((256, 256), "float16")
    with T.Kernel(2, 2, threads=256) as (bx, by):
        a = T.alloc_shared((128, 64), "float16")
        b = T.alloc_shared((128, 64), "float16")
        c = T.alloc_fragment((128, 128), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[by * 128, k * 64], a)
            T.copy(B[bx * 128, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[by * 128, bx * 128])
    return C


def test_the_count_sees_conflicts():
    """Columns of a tile whose author lays rows out plainly."""

    @T.prim_func
    def main(A: T.Tensor((32, 32), "float32"), C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((32, 32), "float32")
            for i in T.serial(32):
                tile[i, tx] = A[i, tx]
            T.sync_threads()
            for i in T.serial(32):
                C[i, tx] = tile[tx, i]

    _, extra = shared_accesses(tilewright.compile(main, target="cuda -arch=sm_80"))
    assert sum(extra.values()) == 31 * 3
