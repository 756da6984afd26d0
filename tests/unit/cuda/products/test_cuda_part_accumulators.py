"""Products whose accumulator is the first columns of a fragment, and waits behind which accumulators of other branches are gone."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import NotAsynchronous
from tilewright.targets.cuda.compiler import compile_text

ROWS, DEPTH = 128, 64


def columns_that_are_there(N: int, whole: bool, first: int = 0):
    """The product with as many rows of B as `count` says, in the least width that holds them; other columns stay what they were."""

    @T.prim_func
    def main(
        A: T.Tensor((ROWS, DEPTH), "float16"), B: T.Tensor((N, DEPTH), "float16"), count: T.Tensor((1,), "int32"),
        C: T.Tensor((ROWS, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            A_shared = T.alloc_shared((ROWS, DEPTH), "float16")
            B_shared = T.alloc_shared((N, DEPTH), "float16")
            full = T.alloc_barrier([128])
            with T.ws(0):
                T.mbarrier_wait_parity(full[0], 0)
                if whole:
                    total = T.alloc_fragment((ROWS, N), "float32")
                    T.fill(total, 7.0)
                    if count[0] > N // 2:
                        T.wgmma_gemm(A_shared, B_shared, total, transpose_B=True, clear_accum=True)
                    else:
                        half = total[0:ROWS, first : first + N // 2]
                        T.wgmma_gemm(A_shared, B_shared[0 : N // 2, :], half, transpose_B=True, clear_accum=True)
                    T.wait_wgmma(0)
                    T.copy(total, C)
                elif count[0] > N // 2:
                    wide = T.alloc_fragment((ROWS, N), "float32")
                    T.wgmma_gemm(A_shared, B_shared, wide, transpose_B=True, clear_accum=True)
                    T.wait_wgmma(0)
                    T.copy(wide, C)
                else:
                    narrow = T.alloc_fragment((ROWS, N // 2), "float32")
                    T.wgmma_gemm(A_shared, B_shared[0 : N // 2, :], narrow, transpose_B=True, clear_accum=True)
                    T.wait_wgmma(0)
                    T.copy(narrow, C[0:ROWS, 0 : N // 2])
            with T.ws(1):
                T.tma_copy(A, A_shared, barrier=full[0])
                T.tma_copy(B, B_shared, barrier=full[0])
                T.mbarrier_arrive(full[0])

    return tilewright.compile(main, target="cuda -arch=sm_90a")


@pytest.mark.parametrize("whole", [True, False], ids=["first columns", "branches"])
@pytest.mark.parametrize("N", [64, 192])
def test_products_of_the_columns_that_are_there(N: int, whole: bool) -> None:
    kernel = columns_that_are_there(N, whole)
    sass = compile_text(kernel.get_kernel_source(), kernel.arch).machine_code()
    assert {f"64x{N}x16", f"64x{N // 2}x16"} <= set(re.findall(r"HGMMA\.(\w+)", sass))
    assert not re.search(r"\b(LDL|STL)\b", sass)
    rng = np.random.default_rng(N)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((ROWS, DEPTH), (N, DEPTH)))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    for count in (N // 2, N):
        expected = exact.copy()
        expected[:, count:] = 7.0 if whole else np.nan
        for run in (kernel.interpret, kernel.emulate):
            found = np.full((ROWS, N), np.nan, np.float32)
            run(a, b, np.array([count], np.int32), found)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_other_parts_of_a_fragment_are_no_accumulators() -> None:
    with pytest.raises(NotAsynchronous, match="the accumulator is not a whole fragment nor its first columns"):
        columns_that_are_there(64, True, first=32)
