"""Products of one row and of few with codes of four bits on machines of every kind of vectors: what whole tiles of columns leave, zeros."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.targets.cpu.arch import runs_here
from tilewright.targets.registry import resolve

MACHINES = ("native", "x86_64", "x86_64+sse4_2", "avx2", "avxvnni", "avx512", "avx512-vnni")
SIZES = ((133, 256, 32), (208, 128, 128), (75, 192, 64), (290, 96, 32), (8, 64, 32), (96, 128, 16))
"""N, K and groups: less than a tile of columns, whole ones, one to five vectors more, parts of vectors."""


@pytest.mark.parametrize("zeros", ["one", "groups", "scaled"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("machine", MACHINES)
def test_few_rows(machine: str, size: tuple[int, int, int], zeros: str) -> None:
    """Against float64; rows beside the result and the end of it stay as they were."""
    arch = resolve(f"cpu -arch={machine}")[1]
    if not runs_here(arch):
        pytest.skip(f"this machine is no {machine}")
    N, K, group = size
    draw = np.random.default_rng(N + K)
    codes = draw.integers(0, 16, (N, K), dtype=np.uint8)
    scales = draw.uniform(0.5, 2, (K // group, N)).astype(np.float32)
    points = np.full(scales.shape, 7.0, np.float32) if zeros == "one" else draw.integers(0, 16, scales.shape)
    given = {"one": (), "groups": (points.astype(np.float32),), "scaled": ((points * scales).astype(np.float32),)}
    kernel = quant_matmul.for_target(
        arch, N, K, "uint4", group, zero=7.0 if zeros == "one" else None, rescale=zeros == "scaled"
    )
    packed = kernel.pack(W=tilewright.pack(codes, tilewright.dtype("uint4")))
    weight = ((codes.reshape(N, -1, group) - points.T[:, :, None].astype(np.float64)) * scales.T[:, :, None]).reshape(
        N, K
    )
    for rows in (1, 2, 5):
        x = draw.standard_normal((rows, K)).astype(np.float32)
        memory = np.full((rows + 2, N), np.nan, np.float32)
        kernel(x, packed, scales, *given[zeros], memory[1:-1])
        step = np.abs(x).max(axis=1, keepdims=True) / 127
        expected = (np.rint(x / step) @ weight.T) * step
        assert np.isnan(memory[0]).all() and np.isnan(memory[-1]).all()
        np.testing.assert_allclose(memory[1:-1], expected, rtol=0, atol=1e-5 * np.abs(expected).max())
