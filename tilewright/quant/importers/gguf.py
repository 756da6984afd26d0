"""Weights in the block formats of GGUF files: Q4_0, Q4_1, Q8_0 and MXFP4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import expect
from tilewright.quant.importers.assemble import assemble
from tilewright.quant.weight import QuantizedWeight

BLOCK = 32
"""Elements along K of a block, in each of the formats here."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A block format: bytes of a block, and how blocks ``[N, K / 32, bytes]`` become a weight of a name."""

    bytes: int
    read: Callable[[np.ndarray, str], QuantizedWeight]


def from_gguf(data: Any, type_name: str, shape: Sequence[int], *, name: str = "") -> QuantizedWeight:
    """A weight of a GGUF file.

    A row holds ``K / 32`` blocks one behind the other.  With B for the bytes of the block that k is in, ``i = k % 32``,
    ``nibble(x, i) = x[i % 16] >> 4 * (i // 16) & 15`` and halves of two bytes little-endian::

        Q4_0   18 bytes: half d, 16 bytes q            w = (nibble(q, i) - 8) * d
        Q4_1   20 bytes: half d, half m, 16 bytes q    w = nibble(q, i) * d + m
        Q8_0   34 bytes: half d, 32 int8 q             w = q[i] * d
        MXFP4  17 bytes: byte e, 16 bytes q            w = e2m1[nibble(q, i)] * 2**(e - 127)

    Parameters
    ----------
    data : uint8, the bytes of the tensor.
    type_name : ``"Q4_0"``, ``"Q4_1"``, ``"Q8_0"`` or ``"MXFP4"``.
    shape : ``(N, K)``; a file lists the extents the other way round.
    name : what messages call the weight.

    Raises
    ------
    InvalidTensor : another block format, a K that blocks do not divide, or another number of bytes.

    Source: the block structures of ggml.
    """
    if type_name not in FORMATS:
        raise InvalidTensor(
            f"{name} is of the GGUF type {type_name}", hint=f"{', '.join(FORMATS)} and unquantised types can be read"
        )
    if len(shape) != 2:
        raise InvalidTensor(f"{name} has the shape {list(shape)}, where [N, K] is due")
    N, K = (int(extent) for extent in shape)
    if K % BLOCK:
        raise InvalidTensor(f"{name} has rows of {K} elements, which blocks of {BLOCK} do not divide")
    of = FORMATS[type_name]
    flat = np.frombuffer(data, np.uint8) if isinstance(data, (bytes, bytearray, memoryview)) else data
    size = N * K // BLOCK * of.bytes
    blocks = expect(name, np.reshape(flat, -1), ["uint8"], [size], f"[N * K / 32 * {of.bytes}]")
    return of.read(blocks.reshape(N, K // BLOCK, of.bytes), name)


def _halves(blocks: np.ndarray, start: int) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view("<f2")[:, :, 0]


def _nibbles(blocks: np.ndarray, start: int) -> np.ndarray:
    packed = blocks[:, :, start : start + 16]
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=2).reshape(blocks.shape[0], -1)


def _read_q4_0(blocks: np.ndarray, name: str) -> QuantizedWeight:
    middle = np.full((1, 1), 8, np.uint8)
    return assemble(
        _nibbles(blocks, 2), "uint4", scales=_halves(blocks, 0), zeros=middle, zeros_mode="quantized", block=(1, BLOCK),
        name=name,
    )  # fmt: skip


def _read_q4_1(blocks: np.ndarray, name: str) -> QuantizedWeight:
    return assemble(
        _nibbles(blocks, 4), "uint4", scales=_halves(blocks, 0), zeros=-_halves(blocks, 2), zeros_mode="rescale",
        block=(1, BLOCK), name=name,
    )  # fmt: skip


def _read_q8_0(blocks: np.ndarray, name: str) -> QuantizedWeight:
    codes = np.ascontiguousarray(blocks[:, :, 2:]).reshape(blocks.shape[0], -1)
    return assemble(codes, "int8", scales=_halves(blocks, 0), block=(1, BLOCK), name=name)


def _read_mxfp4(blocks: np.ndarray, name: str) -> QuantizedWeight:
    powers = np.ascontiguousarray(blocks[:, :, 0]).view(ml_dtypes.float8_e8m0fnu)
    return assemble(_nibbles(blocks, 1), "e2m1", scales=powers, block=(1, BLOCK), name=name)


FORMATS = {
    "Q4_0": BlockFormat(18, _read_q4_0),
    "Q4_1": BlockFormat(20, _read_q4_1),
    "Q8_0": BlockFormat(34, _read_q8_0),
    "MXFP4": BlockFormat(17, _read_mxfp4),
}
"""The block formats by the names that GGUF gives them."""
