"""Strides of tensors whose elements share bytes: in elements, as those of all others."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import WrongArgumentStrides


def widened(element: str, stride: int | None) -> object:
    """Rows of 32 elements that lie apart, as float32."""
    n, step = T.dynamic("n"), T.dynamic("step") if stride is None else stride

    @T.prim_func
    def program(X: T.StridedTensor((n, 32), (step, 1), element), Y: T.Tensor((n, 32), "float32")):
        with T.Kernel(n, threads=32) as row:
            for j in T.Parallel(32):
                Y[row, j] = X[row, j]

    return program


@pytest.mark.parametrize("stride", [64, None])
@pytest.mark.parametrize("element", ["int4", "uint2", "float4_e2m1fn"])
@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7"])
def test_rows_of_packed_elements_lie_apart(target: str, element: str, stride: int | None) -> None:
    """A stride without a number was that of the bytes, so that rows were read from wrong places; one with a number was
    refused."""
    kernel = tilewright.compile(widened(element, stride), target=target)
    bits = 2 if element == "uint2" else 4
    whole = np.random.default_rng(0).integers(0, 256, (5, 64 * bits // 8), np.uint8)
    part = whole[:, : 32 * bits // 8]
    codes = (part[:, :, None] >> np.arange(0, 8, bits, dtype=np.uint8)) % 2**bits
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    meaning = {"int4": np.arange(16) - np.arange(16) // 8 * 16, "uint2": np.arange(4), "float4_e2m1fn": [*e2m1, *-e2m1]}
    wanted = np.asarray(meaning[element], np.float32)[codes.reshape(5, 32)]
    for run in (kernel if target == "cpu" else kernel.emulate, kernel.interpret):
        found = np.full((5, 32), np.nan, np.float32)
        run(part, found)
        assert np.array_equal(found, wanted)


def test_other_strides_of_packed_rows_are_refused() -> None:
    kernel = tilewright.compile(widened("int4", 64), target="cpu")
    with pytest.raises(WrongArgumentStrides, match=r"'X' has strides \(32, 1\), expected strides \(64, 1\)"):
        kernel(np.zeros((5, 16), np.uint8), np.zeros((5, 32), np.float32))
