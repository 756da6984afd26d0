"""Slots that are received where no product runs: every warp says that it is done with them, so that none falls a turn behind."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.kernels.attention import flash_attention
from tilewright.options import override

STEPS, WIDE = 12, 32
SCHEDULES = [(name, seed) for seed in range(4) for name in ("random", "late", "early")]


def masked(inside: bool, stages: int) -> T.PrimFunc:
    """A product whose steps a mask decides on; `inside`: loads too."""

    @T.prim_func
    def product(
        Mk: T.Tensor((STEPS,), "int32"), A: T.Tensor((64, STEPS * WIDE), "float16"),
        B: T.Tensor((STEPS * WIDE, 64), "float16"), C: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, WIDE), "float16"), T.alloc_shared((WIDE, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(STEPS, num_stages=stages):
                if inside:
                    if Mk[k] != 0:
                        T.copy(A[0, k * WIDE], a)
                        T.copy(B[k * WIDE, 0], b)
                        T.gemm(a, b, c)
                else:
                    T.copy(A[0, k * WIDE], a)
                    T.copy(B[k * WIDE, 0], b)
                    if Mk[k] != 0:
                        T.gemm(a, b, c)
            T.copy(c, C)

    return product


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("stages", [2, 3])
def test_products_that_masks_leave_out(inside: bool, stages: int) -> None:
    rng = np.random.default_rng(stages)
    a = rng.standard_normal((64, STEPS * WIDE)).astype(np.float16)
    b = rng.standard_normal((STEPS * WIDE, 64)).astype(np.float16)
    kernel = tilewright.compile(masked(inside, stages), target="cuda -arch=sm_90a")
    for mask in (np.zeros(STEPS), np.arange(STEPS) % 3 == 0, np.ones(STEPS)):
        kept = np.repeat(mask.astype(bool), WIDE)
        expected = a[:, kept].astype(np.float64) @ b[kept].astype(np.float64)
        for schedule, seed in SCHEDULES:
            c = np.full((64, 64), np.nan, np.float32)
            kernel.emulate(mask.astype(np.int32), a, b, c, schedule=schedule, seed=seed)
            np.testing.assert_allclose(c, expected, atol=2e-3)


def test_attention_of_more_queries_than_keys() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, rows, 64)).astype(np.float16) for rows in (900, 30, 30))
    with override(target="cuda -arch=sm_90a -cores=4"):
        kernel = flash_attention.compile(q, k, v, causal=True, dtype="float16")
    results = [
        kernel.emulate(q, k, v, schedule=schedule, seed=seed) for schedule, seed in [*SCHEDULES[:5], ("random", 12)]
    ]
    assert all(np.array_equal(results[0], other, equal_nan=True) for other in results[1:])
