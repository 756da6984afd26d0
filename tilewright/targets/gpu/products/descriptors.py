"""Tiles in shared memory as wgmma reads them: swizzles and descriptor fields.

A tile's layout enters as a function from coordinates to the byte of the element, so that every layout object
serves.  `wgmma_operand` finds out whether a descriptor can name such a tile, and with which fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.dtypes import DType
from tilewright.targets.gpu.copies.boxes import Swizzle

Offset = Callable[[Any, Any], Any]
"""Byte of element (mn, k) of an operand tile, counted from the tile's base, swizzle included; of index arrays too."""

STEP_BYTES = 32
"""Bytes along k that one wgmma takes of a K-major operand; of the dense operand of a sparse product twice as many."""


@dataclass(frozen=True, slots=True)
class WgmmaOperand:
    """An operand tile as wgmma descriptors name it.

    Attributes
    ----------
    major : ``"k"`` or ``"mn"``, the contiguous dimension.
    swizzle : of 16-byte chunks.
    leading, stride : the descriptor's byte offsets (LBO and SBO).
    steps : bytes from the tile's base to the start address of each instruction along k.
    """

    major: str
    swizzle: Swizzle
    leading: int
    stride: int
    steps: tuple[int, ...]

    @property
    def descriptor(self) -> int:
        """The 64 bits without the start address."""
        return (4 - self.swizzle) % 4 << 62 | (self.stride >> 4) << 32 | (self.leading >> 4) << 16


def wgmma_operand(offset: Offset, mn: int, k: int, dtype: DType, step_bytes: int = STEP_BYTES) -> WgmmaOperand | None:
    """How wgmma reads a tile of `mn` by `k` elements, `step_bytes` along k at once, or None where it cannot.

    The base of the tile is aligned to the swizzle's period.
    """
    depth = step_bytes * 8 // dtype.bits
    if k % depth or mn % 8:
        return None
    table = np.broadcast_to(offset(np.arange(mn)[:, None], np.arange(k)[None, :]), (mn, k)).astype(np.int64)
    for swizzle in (Swizzle.B128, Swizzle.B64, Swizzle.B32, Swizzle.NONE):
        linear = swizzle.apply(table)  # the permutation is its own inverse
        forms = (_k_major, _mn_major) if dtype.bits == 16 else (_k_major,)
        for form in forms:
            found = form(linear, swizzle, depth, dtype)
            if found is not None:
                return found
    return None


def _k_major(linear: np.ndarray, swizzle: Swizzle, depth: int, dtype: DType) -> WgmmaOperand | None:
    """Rows of k: groups of eight rows `stride` apart; without a swizzle, 16-byte columns `leading` apart."""
    mn = linear.shape[0]
    rows, bytes_of_k = np.arange(mn)[:, None], np.arange(depth)[None, :] * dtype.bits // 8
    stride = int(linear[8, 0] - linear[0, 0]) if mn > 8 else 8 * swizzle.span
    if swizzle is Swizzle.NONE:
        leading = int(linear[0, 128 // dtype.bits] - linear[0, 0])
        expected = rows // 8 * stride + bytes_of_k // 16 * leading + rows % 8 * 16 + bytes_of_k % 16
    else:
        leading = 16
        expected = rows // 8 * stride + rows % 8 * swizzle.span + bytes_of_k
    return _agreed("k", linear, expected, swizzle, leading, stride)


def _mn_major(linear: np.ndarray, swizzle: Swizzle, depth: int, dtype: DType) -> WgmmaOperand | None:
    """Rows of mn, 16-bit elements: with a swizzle `stride` leads along k and `leading` along mn, without one the
    reverse."""
    mn, run = linear.shape[0], swizzle.span // 2
    if mn % run:
        return None
    columns, rows = np.arange(mn)[:, None], np.arange(depth)[None, :]
    along_k = int(linear[0, 8] - linear[0, 0])
    along_mn = int(linear[run, 0] - linear[0, 0]) if mn > run else 8 * swizzle.span
    expected = columns // run * along_mn + rows // 8 * along_k + rows % 8 * swizzle.span + columns % run * 2
    leading, stride = (along_k, along_mn) if swizzle is Swizzle.NONE else (along_mn, along_k)
    return _agreed("mn", linear, expected, swizzle, leading, stride)


def _agreed(
    major: str, linear: np.ndarray, expected: np.ndarray, swizzle: Swizzle, leading: int, stride: int
) -> WgmmaOperand | None:
    """The operand where every step along k has its elements where the descriptor's formula expects them."""
    steps = tuple(int(start) for start in linear[0, :: expected.shape[1]])
    if any(value % 16 or not 0 <= value < 1 << 18 for value in (leading, stride, *steps)):
        return None
    tiles = linear.reshape(linear.shape[0], len(steps), -1)
    if not all(np.array_equal(tiles[:, index], start + expected) for index, start in enumerate(steps)):
        return None
    return WgmmaOperand(major, swizzle, leading, stride, steps)
