"""Blocks of 256 elements of GGUF files, Q2_K to Q6_K: small groups whose scales are themselves whole numbers times a
half.

With ``i`` for the element of a block, ``g`` for its group and d, m for the block's halves::

    Q2_K   groups of 16    w = q * (d * s[g]) - m * z[g]    s, z of 4 bits, q of 2
    Q3_K   groups of 16    w = q * (d * s[g])               s of 6 bits less 32, q of 3 bits less 4
    Q4_K   groups of 32    w = q * (d * s[g]) - m * z[g]    s, z of 6 bits, q of 4
    Q5_K   groups of 32    w = q * (d * s[g]) - m * z[g]    s, z of 6 bits, q of 5
    Q6_K   groups of 16    w = q * (d * s[g])               s of 8 bits, q of 6 bits less 32

Products of a half and a whole number of 8 bits are exact in float32.

Source: the block structures of ggml.
"""

from __future__ import annotations

import numpy as np

from tilewright.quant.importers.gguf_fields import BLOCK, Bytes, nibbles, pairs, single, weight
from tilewright.quant.weight import QuantizedWeight


def _six_bits(packed: Bytes) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and eight minima of 6 bits each, from 12 bytes."""
    first, second, third = (packed[:, :, at : at + 4] for at in (0, 4, 8))
    scales = np.concatenate([first & 63, third & 15 | (first >> 6) << 4], 2)
    minima = np.concatenate([second & 63, third >> 4 | (second >> 6) << 4], 2)
    return scales, minima


def _runs(packed: Bytes, width: int) -> np.ndarray:
    """Codes of 4 bits, two runs of so many in each as many bytes: ``[N, blocks, 256]`` of 128 bytes."""
    return nibbles(packed.reshape(*packed.shape[:2], -1, 1, width)).reshape(*packed.shape[:2], BLOCK)


def _ones(packed: Bytes) -> np.ndarray:
    """Single bits of 256 elements, eight runs of 32 in 32 bytes."""
    runs = [packed >> np.uint8(run) & np.uint8(1) for run in range(8)]
    return np.stack(runs, 2).reshape(*packed.shape[:2], BLOCK)


def read_q2(blocks: Bytes, name: str) -> QuantizedWeight:
    """84 bytes: 16 bytes of scales and minima, 64 of codes, d, m."""
    both, d, m = blocks[:, :, :16], single(blocks, 80), single(blocks, 82)
    return weight(pairs(blocks[:, :, 16:80]), "uint2", d * (both & 15), name, m * (both >> 4))


def read_q3(blocks: Bytes, name: str) -> QuantizedWeight:
    """110 bytes: 32 of the codes' highest bits, 64 of the others, 12 of scales, d."""
    high, packed = blocks[:, :, :32], blocks[:, :, 96:108]
    ones = _ones(high)
    low, lows = pairs(blocks[:, :, 32:96]), packed[:, :, :8]
    tops = np.concatenate([packed[:, :, 8:] >> np.uint8(2 * part) & np.uint8(3) for part in range(4)], 2)
    scales = (np.concatenate([lows & 15, lows >> 4], 2) | tops << 4).astype(np.int8) - np.int8(32)
    # Less 4 where the highest bit is not set: two's complement of 3 bits has it the other way round.
    return weight(low | (ones ^ 1) << 2, "int3", single(blocks, 108) * scales, name)


def read_q4(blocks: Bytes, name: str) -> QuantizedWeight:
    """144 bytes: d, m, 12 of scales and minima, 128 of codes."""
    scales, minima = _six_bits(blocks[:, :, 4:16])
    return weight(_runs(blocks[:, :, 16:], 32), "uint4", single(blocks, 0) * scales, name, single(blocks, 2) * minima)


def read_q5(blocks: Bytes, name: str) -> QuantizedWeight:
    """176 bytes: d, m, 12 of scales and minima, 32 of the codes' highest bits, 128 of the others."""
    scales, minima = _six_bits(blocks[:, :, 4:16])
    codes = _runs(blocks[:, :, 48:], 32) | _ones(blocks[:, :, 16:48]) << 4
    return weight(codes, "uint5", single(blocks, 0) * scales, name, single(blocks, 2) * minima)


def read_q6(blocks: Bytes, name: str) -> QuantizedWeight:
    """210 bytes: 128 of the codes' lower 4 bits, 64 of the others, 16 int8 scales, d."""
    codes = (_runs(blocks[:, :, :128], 64) | pairs(blocks[:, :, 128:192]) << 4) - np.uint8(32) & np.uint8(63)
    scales = np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8)
    return weight(codes, "int6", single(blocks, 208) * scales, name)
