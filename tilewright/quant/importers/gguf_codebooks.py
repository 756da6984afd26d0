"""Blocks of GGUF files whose codes stand for the numbers of a list: IQ1 to IQ4; and the ternary TQ1_0 and TQ2_0, NVFP4.

With ``i`` for the element of a block, d for its half and ``ls`` for a scale of 4 or 6 bits::

    IQ4_NL   groups of 32    w = LIST[q] * d
    IQ4_XS   groups of 32    w = LIST[q] * d * (ls[g] - 32)
    TQ1_0, TQ2_0             w = (q - 1) * d                            one half for 256 elements
    NVFP4    groups of 16    w = e2m1[q] * e4m3[s[g]]                   64 elements a block

IQ1, IQ2 and IQ3 name eight or four elements at once, by numbers of rows of long tables. The tables are read out of the
package ``gguf`` (which its users have): it says what a block with scales of one stands for, and these few numbers
become codes of their own::

    IQ2_XXS, IQ2_XS, IQ2_S   w = s * a * d * (ls[g] + 1/2) / 4         a of 8, 25, 43: codes of 3 bits with their sign s
    IQ3_XXS                  w = s * a * d * (ls[g] + 1/2) / 2         a of 4, 12, 20, ..., 62: 4 bits
    IQ3_S                    w = (2 * q - 15) * d * (2 * ls[g] + 1)    4 bits
    IQ1_S, IQ1_M             w = a * d * (2 * ls[g] + 1) / 8           a of -9, -7, -1, 1, 7, 9: 3 bits

Source: the block structures of ggml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.formats import number_format
from tilewright.quant.importers.gguf_fields import Bytes, nibbles, pairs, single, weight, words
from tilewright.quant.weight import QuantizedWeight


def _low_and_high(blocks: Bytes) -> np.ndarray:
    """The low and the high nibble of each byte in turn."""
    return np.stack([blocks & np.uint8(15), blocks >> np.uint8(4)], -1).reshape(*blocks.shape[:2], -1)


def read_iq4_nl(blocks: Bytes, name: str) -> QuantizedWeight:
    """18 bytes for 32 elements: d, 16 of codes."""
    return weight(nibbles(blocks[:, :, 2:]), "iq4", single(blocks, 0), name)


def read_iq4_xs(blocks: Bytes, name: str) -> QuantizedWeight:
    """136 bytes: d, two with the upper bits of the scales, 4 with the lower ones, 128 of codes."""
    upper = words(blocks, 2, 4, "<u2").astype(np.int32) >> np.arange(0, 16, 2) & 3
    scales = single(blocks, 0) * ((_low_and_high(blocks[:, :, 4:8]) | upper << 4) - 32).astype(np.float32)
    codes = nibbles(blocks[:, :, 8:].reshape(*blocks.shape[:2], 8, 16))
    return weight(codes, "iq4", scales, name)


def _ternary(fields: np.ndarray, blocks: Bytes, scale_at: int, name: str) -> QuantizedWeight:
    if (fields > 2).any():
        raise InvalidTensor(f"{name} holds the code 3: a ternary weight has 0, 1 and 2")
    codes = (fields - np.uint8(1)) & np.uint8(3)  # two's complement of two bits
    return weight(codes, "ternary", single(blocks, scale_at), name)


def read_tq1_0(blocks: Bytes, name: str) -> QuantizedWeight:
    """54 bytes: 48 of five digits each, 4 of four, d; a byte is the fraction 0.d0 d1 d2 d3 d4 in base 3, times 256 and
    rounded up."""

    def digits(packed: Bytes, count: int) -> np.ndarray:
        shifted = packed[:, :, None, :] * np.array([3**place for place in range(count)], np.uint8)[:, None]
        return (shifted.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(*blocks.shape[:2], -1)

    parts = [digits(blocks[:, :, :32], 5), digits(blocks[:, :, 32:48], 5), digits(blocks[:, :, 48:52], 4)]
    return _ternary(np.concatenate(parts, 2), blocks, 52, name)


def read_tq2_0(blocks: Bytes, name: str) -> QuantizedWeight:
    """66 bytes: 64 of four codes each, runs of 32 elements; d."""
    return _ternary(pairs(blocks[:, :, :64]), blocks, 64, name)


def read_nvfp4(blocks: Bytes, name: str) -> QuantizedWeight:
    """36 bytes for 64 elements: 4 e4m3 scales without sign, 32 of codes."""
    scales = np.ascontiguousarray(blocks[:, :, :4])
    scales = np.where(scales == 0x7F, np.uint8(0), scales).view(ml_dtypes.float8_e4m3fn)
    codes = nibbles(blocks[:, :, 4:].reshape(*blocks.shape[:2], 4, 8))
    return weight(codes, "e2m1", scales, name)


# Blocks by tables -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableBlocks:
    """A block format whose codes are numbers of rows of a table.

    Attributes
    ----------
    type : its name.
    format : of the codes that it becomes.
    scale : what elements of each group are multiplied by beside the half, ``[N, blocks, groups]``, whole numbers and
        halves of them.
    unit : value of one unit of `format`, where half and scale are 1.
    half : the half of each block, ``[N, blocks, 1]``, and blocks in which it is 1.
    """

    type: str
    format: str
    scale: Callable[[Bytes], np.ndarray]
    unit: float
    half: Callable[[Bytes], tuple[np.ndarray, Bytes]]

    def __call__(self, blocks: Bytes, name: str) -> QuantizedWeight:
        """The weight of blocks."""
        factors = self.scale(blocks).astype(np.float32)
        halves, plain = self.half(blocks)
        numbers = _stands_for(plain, self.type, name).reshape(*factors.shape, -1)
        codes = number_format(self.format).exact(numbers / (factors[..., None] * np.float32(self.unit)))
        return weight(codes, self.format, halves * factors * np.float32(self.unit), name)


def _stands_for(blocks: Bytes, type: str, name: str) -> np.ndarray:
    """The float32 numbers of blocks, by the package ``gguf``. Raises InvalidTensor where it is not installed."""
    try:
        from gguf import GGMLQuantizationType, dequantize
    except ImportError:
        raise InvalidTensor(
            f"{name} is of the GGUF type {type}, whose tables are read out of the package gguf, which is not installed",
            hint="pip install gguf; or use a file of Q2_K to Q8_0, IQ4_NL or IQ4_XS",
        ) from None
    found = dequantize(np.ascontiguousarray(blocks).reshape(-1, blocks.shape[2]), GGMLQuantizationType[type])
    return np.asarray(found, np.float32)


def _at(start: int) -> Callable[[Bytes], tuple[np.ndarray, Bytes]]:
    """The half that lies at a byte."""

    def half(blocks: Bytes) -> tuple[np.ndarray, Bytes]:
        plain = np.array(blocks)
        plain[:, :, start : start + 2] = np.array([1], "<f2").view(np.uint8)
        return single(blocks, start), plain

    return half


def _in_high_nibbles(blocks: Bytes) -> tuple[np.ndarray, Bytes]:
    """IQ1_M's half: the highest four bits of each of the four words of scales, the lowest first."""
    four = words(blocks, 48, 56, "<u2")
    bits = sum((four[:, :, part : part + 1] >> np.uint16(12)) << np.uint16(4 * part) for part in range(4))
    plain, one = np.array(blocks), np.array([1], np.float16).view(np.uint16)[0]
    fresh = [four[:, :, part] & 0xFFF | (one >> 4 * part & 15) << 12 for part in range(4)]
    plain[:, :, 48:56] = np.stack(fresh, 2).astype("<u2").view(np.uint8)
    return np.asarray(bits, np.uint16).view(np.float16).astype(np.float32), plain


def _ofwords(start: int, stop: int, each: int) -> Callable[[Bytes], np.ndarray]:
    """Scales in the highest four bits of 32-bit words, one word in `each`: ``ls + 1/2``."""
    return lambda blocks: (words(blocks, start, stop, "<u4")[:, :, each - 1 :: each] >> np.uint32(28)) + 0.5


def _of_nibbles(start: int, offset: float, step: float = 1.0) -> Callable[[Bytes], np.ndarray]:
    """Scales in nibbles of the bytes from one on: ``step * ls + offset``."""
    return lambda blocks: _low_and_high(blocks[:, :, start:]) * step + offset


def _three_bits(start: int, stop: int, shifts: tuple[int, ...]) -> Callable[[Bytes], np.ndarray]:
    """Scales of three bits at places of 16-bit words: ``2 * ls + 1``."""

    def scale(blocks: Bytes) -> np.ndarray:
        found = words(blocks, start, stop, "<u2").astype(np.int32)
        return 2 * (found[..., None] >> np.array(shifts) & 7).reshape(*blocks.shape[:2], -1) + 1

    return scale


BY_TABLES = {
    "IQ2_XXS": (66, TableBlocks("IQ2_XXS", "iq2", _ofwords(2, 66, 2), 1 / 4, _at(0))),
    "IQ2_XS": (74, TableBlocks("IQ2_XS", "iq2", _of_nibbles(66, 0.5), 1 / 4, _at(0))),
    "IQ2_S": (82, TableBlocks("IQ2_S", "iq2", _of_nibbles(74, 0.5), 1 / 4, _at(0))),
    "IQ3_XXS": (98, TableBlocks("IQ3_XXS", "iq3", _ofwords(66, 98, 1), 1 / 2, _at(0))),
    "IQ3_S": (110, TableBlocks("IQ3_S", "iq3s", _of_nibbles(106, 1, 2), 1.0, _at(0))),
    "IQ1_S": (50, TableBlocks("IQ1_S", "iq1", _three_bits(34, 50, (12,)), 1 / 8, _at(0))),
    "IQ1_M": (56, TableBlocks("IQ1_M", "iq1", _three_bits(48, 56, (0, 3, 6, 9)), 1 / 8, _in_high_nibbles)),
}
"""Bytes of a block and its reader."""
