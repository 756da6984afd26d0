"""Copies of tiles from tensors that end within them, wherever: what is there arrives, and zeros behind it."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import ALL

TYPES = ("int8", "float16", "float32", "float64")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("tiles", [1, 2, 5])
def test_tiles_of_a_few_pieces_of_a_shorter_tensor(name: str, tiles: int, arch: str) -> None:
    """All lengths of a tensor at once, a tile of so many pieces of 16 bytes for each; known when compiling and not."""
    unit = 16 // ALL[name].storage_bytes
    size = tiles * unit
    lengths = sorted({1, unit - 1, unit, unit + 1, size - 1, size} - {0})
    lengths = [one for one in lengths if 0 < one <= size]
    rows = T.dynamic("rows")

    for length in lengths[:: 1 if tiles == 1 else 2]:

        @T.prim_func
        def padded(X: T.Tensor((length,), name), Y: T.Tensor((rows, length), name), O: T.Tensor((2, 3, size), name)):
            with T.Kernel(1, threads=32):
                s, t = T.alloc_shared((size,), name), T.alloc_shared((3, size), name)
                T.copy(X[0:size], s)
                T.copy(Y[0:3, 0:size], t)
                T.copy(s, O[0, 0, :])
                T.copy(t, O[1, :, :])

        kernel = tilewright.compile(padded, target=f"cuda -arch={arch}")
        x, y = (np.arange(length) + 1).astype(name), (np.arange(2 * length) + 3).astype(name).reshape(2, length)
        out = np.full((2, 3, size), 77, name)
        kernel.emulate(x, y, out)
        expected = np.zeros_like(out)
        expected[0, 0, :length], expected[1, :2, :length] = x, y
        expected[0, 1:] = 77
        np.testing.assert_array_equal(out, expected)
