"""The library's attention on machines whose warps multiply by themselves: tiles that shared memory and registers hold, and right results."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tilewright
from tilewright.kernels.attention import flash_attention
from tilewright.runtime.kernel import Kernel

MACHINES = [
    *(f"hip -arch={name}" for name in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")),
    *("metal -arch=apple7", "metal -arch=apple10", "cuda -arch=sm_80", "cuda -arch=sm_89"),
]


def compiled(target: str, queries: int, keys: int, dim: int, kind: str = "float16") -> tuple[Kernel, list[np.ndarray]]:
    rng = np.random.default_rng(dim)
    arrays = [rng.standard_normal((1, 1, length, dim)).astype(kind) for length in (queries, keys, keys)]
    attend = tilewright.jit(flash_attention.direct.function, target=target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attend.compile(*arrays, causal=True, dtype=kind, expected=(queries, keys)), arrays


@pytest.mark.parametrize("queries", [1, 512])
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("target", MACHINES)
def test_heads_of_every_size_fit_and_nothing_is_spilled(target: str, dim: int, queries: int) -> None:
    kernel, _ = compiled(target, queries, 2048, dim)
    if target.startswith("hip"):
        for resources in kernel.resources().values():
            assert (resources["scratch_bytes"], resources["vector_spills"]) == (0, 0)


@pytest.mark.parametrize(("target", "dim"), [("metal -arch=apple7", 128), ("hip -arch=gfx1100", 128)])
def test_what_did_not_fit_is_right(target: str, dim: int) -> None:
    kernel, (q, k, v) = compiled(target, 37, 70, dim)
    scores = q[0, 0].astype(np.float64) @ k[0, 0].astype(np.float64).T / np.sqrt(dim)
    scores[np.arange(70) > np.arange(37)[:, None] + 70 - 37] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v[0, 0].astype(np.float64)
    assert np.abs(kernel.emulate(q, k, v)[0, 0] - expected).max() <= 4 * 2.0**-11 * np.abs(v).max()
