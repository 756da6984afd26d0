"""Fields of the blocks of GGUF files, and the weight that they make."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.quant.importers.assemble import assemble
from tilewright.quant.weight import QuantizedWeight

BLOCK = 256
"""Elements of a block in all formats but the oldest ones."""

Bytes = np.ndarray
"""Blocks ``[N, blocks of a row, bytes]``."""


def words(blocks: Bytes, start: int, stop: int, kind: str) -> np.ndarray:
    """Some bytes of each block as numbers of a type."""
    return np.ascontiguousarray(blocks[:, :, start:stop]).view(kind)


def half(blocks: Bytes, start: int) -> np.ndarray:
    """The half of each block that begins at a byte, float16 ``[N, blocks, 1]``."""
    return words(blocks, start, start + 2, "<f2")


def single(blocks: Bytes, start: int) -> np.ndarray:
    """The same half as float32, which holds its products with whole numbers of 8 bits."""
    return half(blocks, start).astype(np.float32)


def nibbles(packed: Bytes) -> np.ndarray:
    """The low and then the high nibbles of the last dimension."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], -1)


def pairs(packed: Bytes) -> np.ndarray:
    """Codes of 2 bits, four runs of 32 in each 32 bytes: ``[N, blocks, 256]`` of 64 bytes."""
    halves = packed.reshape(*packed.shape[:2], 2, 1, 32)
    runs = [halves >> np.uint8(2 * run) & np.uint8(3) for run in range(4)]
    return np.concatenate(runs, 3).reshape(*packed.shape[:2], BLOCK)


def weight(codes: np.ndarray, format: str, scales: np.ndarray, name: str, zeros: Any = None) -> QuantizedWeight:
    """The weight of codes, ``[N, ...]``, with scales (and what is subtracted) of groups of as many columns each."""
    rows = len(codes)
    codes, scales = codes.reshape(rows, -1), scales.reshape(rows, -1)
    rest = {} if zeros is None else {"zeros": zeros.reshape(rows, -1), "zeros_mode": "rescale"}
    group = codes.shape[1] // (scales.shape[1] or 1)
    return assemble(name, codes, format, scales, group, **rest)
