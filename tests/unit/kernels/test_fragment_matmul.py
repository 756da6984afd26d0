"""Records decoded into the left operand of any matrix instruction: warps of one role, and a producer beside them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.ir.dtypes import dtype
from tilewright.kernels.fragment_matmul import fragment_matmul
from tilewright.machine.fragment_records import FragmentRecords

N, K, M, GROUP = 100, 300, 13, 64


@pytest.mark.parametrize(
    "arch, options", [("sm_80", {}), ("sm_90a", {}), ("sm_90a", {"splits": 2}), ("sm_90a", {"tiles": 2, "stages": 2})]
)
def test_product(arch, options):
    form = FragmentRecords(4, dtype("float16"), dtype("float16"), None, GROUP)
    kernel = tilewright.jit(fragment_matmul.function, target=f"cuda -arch={arch}")(N, K, form, **options)
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
    scales = (rng.random((N, -(-K // GROUP))) + 0.5).astype(np.float16)
    weight = (codes.astype(np.float64) - 8) * np.repeat(scales.astype(np.float64), GROUP, 1)[:, :K]
    a = rng.standard_normal((M, K)).astype(np.float16)
    exact, size = a.astype(np.float64) @ weight.T, np.abs(a.astype(np.float64)) @ np.abs(weight).T
    packed = form.pack({"codes": codes, "scales": scales})
    for schedule in ("late", "early", "random"):
        c = np.full((M, N), np.nan, np.float16)
        unused = np.zeros(1, np.float32)
        kernel.emulate(packed, a, np.ones(1, np.float32), unused, np.zeros((1, 1), np.float16), c, schedule=schedule)
        assert (np.abs(c - exact) <= 2.0**-11 * (np.abs(exact) + size) + (K + 2) * 2.0**-23 * size).all()
    assert ("wgmma_rs" in kernel.explain()) == (arch == "sm_90a")
