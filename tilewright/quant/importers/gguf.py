"""Weights in the block formats of GGUF files: Q4_0 to Q8_0, Q2_K to Q6_K, MXFP4, and those of `gguf_codebooks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers import gguf_codebooks, gguf_fields, gguf_k
from tilewright.quant.importers.arrays import expect, positive
from tilewright.quant.importers.assemble import assemble
from tilewright.quant.importers.gguf_fields import half, nibbles, weight
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import Array

BLOCK = 32
"""Elements of a block along K, in the formats with the shortest blocks (others: `gguf_fields.BLOCK`)."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A block format: bytes of a block, how blocks ``[N, K / elements, bytes]`` become a weight of a name, and a
    block's elements."""

    bytes: int
    read: Callable[[np.ndarray, str], QuantizedWeight]
    elements: int = BLOCK


def from_gguf(data: Array | bytes, type_name: str, shape: Sequence[int], *, name: str = "weight") -> QuantizedWeight:
    """A weight of a GGUF file.

    A row holds ``K / 32`` blocks (others have 64 or 256 elements: `gguf_k`, `gguf_codebooks`) one behind the other.
    With B for the bytes of the block that k is in, ``i = k % 32``, ``nibble(x, i) = x[i % 16] >> 4 * (i // 16) & 15``
    and halves of two bytes little-endian::

        Q4_0   18 bytes: half d, 16 bytes q            w = (nibble(q, i) - 8) * d
        Q4_1   20 bytes: half d, half m, 16 bytes q    w = nibble(q, i) * d + m
        Q5_0   22 bytes: half d, 4 bytes h, 16 bytes q          w = (nibble(q, i) + 16 * (h >> i & 1) - 16) * d
        Q5_1   24 bytes: half d, half m, 4 bytes h, 16 bytes q  w = (nibble(q, i) + 16 * (h >> i & 1)) * d + m
        Q8_0   34 bytes: half d, 32 int8 q             w = q[i] * d
        MXFP4  17 bytes: byte e, 16 bytes q            w = e2m1[nibble(q, i)] * 2**(e - 127)

    Parameters
    ----------
    data : uint8, the bytes of the tensor.
    type_name : a name of `FORMATS`: ``"Q4_0"``, ``"Q4_K"``, ...
    shape : ``(N, K)``; a file lists the extents the other way round.

    Source: the block structures of ggml.
    """
    if type_name not in FORMATS:
        raise InvalidTensor(
            f"{name} is of the GGUF type {type_name}", hint=f"{', '.join(FORMATS)} and unquantised types can be read"
        )
    if len(shape) != 2:
        raise InvalidTensor(f"{name} has the shape {list(shape)}, where [N, K] is due")
    N, K = (positive(f"{name}: an extent of the shape", int(extent)) for extent in shape)
    of = FORMATS[type_name]
    if K % of.elements:
        raise InvalidTensor(f"{name} has rows of {K} elements, which blocks of {of.elements} do not divide")
    flat = np.frombuffer(data, np.uint8) if isinstance(data, (bytes, bytearray, memoryview)) else data
    size = N * K // of.elements * of.bytes
    blocks = expect(name, np.reshape(flat, -1), ["uint8"], [size], f"[N * K / {of.elements} * {of.bytes}]")
    return of.read(blocks.reshape(N, K // of.elements, of.bytes), name)


def _plain(bits: int, has_least: bool) -> Callable[[np.ndarray, str], QuantizedWeight]:
    """The reader of Q4_0 to Q5_1: half d, half m where the format has it, the fifth bits h of 5-bit codes, nibbles."""

    def read(blocks: np.ndarray, name: str) -> QuantizedWeight:
        rows, at = len(blocks), 4 if has_least else 2
        codes = nibbles(blocks[:, :, -16:]).reshape(rows, -1)
        if bits == 5:
            high = np.ascontiguousarray(blocks[:, :, at : at + 4])
            codes = codes | np.unpackbits(high, axis=2, bitorder="little").reshape(rows, -1) << np.uint8(4)
        if has_least:
            return weight(codes, f"uint{bits}", half(blocks, 0), name, -half(blocks, 2))
        return assemble(name, codes, f"uint{bits}", half(blocks, 0)[:, :, 0], BLOCK, 1 << bits - 1)

    return read


def _read_q8_0(blocks: np.ndarray, name: str) -> QuantizedWeight:
    return weight(np.ascontiguousarray(blocks[:, :, 2:]), "int8", half(blocks, 0), name)


def _read_mxfp4(blocks: np.ndarray, name: str) -> QuantizedWeight:
    powers = np.ascontiguousarray(blocks[:, :, 0]).view(ml_dtypes.float8_e8m0fnu)
    return weight(nibbles(blocks[:, :, 1:]), "e2m1", powers, name)


FORMATS = {
    "Q4_0": BlockFormat(18, _plain(4, False)),
    "Q4_1": BlockFormat(20, _plain(4, True)),
    "Q5_0": BlockFormat(22, _plain(5, False)),
    "Q5_1": BlockFormat(24, _plain(5, True)),
    "Q8_0": BlockFormat(34, _read_q8_0),
    "Q2_K": BlockFormat(84, gguf_k.read_q2, gguf_fields.BLOCK),
    "Q3_K": BlockFormat(110, gguf_k.read_q3, gguf_fields.BLOCK),
    "Q4_K": BlockFormat(144, gguf_k.read_q4, gguf_fields.BLOCK),
    "Q5_K": BlockFormat(176, gguf_k.read_q5, gguf_fields.BLOCK),
    "Q6_K": BlockFormat(210, gguf_k.read_q6, gguf_fields.BLOCK),
    "MXFP4": BlockFormat(17, _read_mxfp4),
    "NVFP4": BlockFormat(36, gguf_codebooks.read_nvfp4, 64),
    "IQ4_NL": BlockFormat(18, gguf_codebooks.read_iq4_nl),
    "IQ4_XS": BlockFormat(136, gguf_codebooks.read_iq4_xs, gguf_fields.BLOCK),
    "TQ1_0": BlockFormat(54, gguf_codebooks.read_tq1_0, gguf_fields.BLOCK),
    "TQ2_0": BlockFormat(66, gguf_codebooks.read_tq2_0, gguf_fields.BLOCK),
    **{n: BlockFormat(size, read, gguf_fields.BLOCK) for n, (size, read) in gguf_codebooks.BY_TABLES.items()},
}
"""The block formats by the names that GGUF gives them."""
