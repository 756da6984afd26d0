"""Weights of bitsandbytes: nf4 and fp4 (QLoRA), in blocks of the flattened weight whose scales may be quantised once
more; int8."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.checkpoints.bounds import is_sizes, json_value
from tilewright.errors import InvalidTensor, MissingTensor
from tilewright.formats import number_format
from tilewright.quant.importers.arrays import expect, positive
from tilewright.quant.importers.assemble import assemble
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy

STATES = {kind: f".quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")}
"""What a checkpoint appends to the weight's name for the JSON text of its metadata, kept as bytes."""

_STORED = ("int8", "float16", "bfloat16", "float32", "float64")
"""Types whose bytes may hold the codes (``quant_storage``), so that what shards models handles them as its other
weights."""

_FORMATS = {"nf4": "nf4", "fp4": "fp4_bnb"}


def from_bitsandbytes(
    weight: object,
    absmax: object,
    *,
    shape: Sequence[int],
    block: int = 64,
    quant_map: object = None,
    nested_absmax: object = None,
    nested_quant_map: object = None,
    nested_block: int = 256,
    nested_offset: float = 0.0,
    kind: str = "nf4",
    name: str = "weight",
) -> QuantizedWeight:
    """A weight of bitsandbytes in nf4 or fp4.

    With ``e = n * K + k``, the place of an element in the flattened weight::

        code[n, k] = weight[e // 2] >> 4   for even e,    weight[e // 2] & 15   for odd e
        w[n, k]    = table[code[n, k]] * scale[e // block]                     the table of nf4, or of fp4_bnb
        scale[b]   = absmax[b]                                                          absmax in float32
        scale[b]   = nested_quant_map[absmax[b]] * nested_absmax[b // nested_block] + nested_offset    in uint8

    (the product and the sum in float32).  Where `block` does not divide K, blocks run over from one row into the
    next; the weight then has groups of the greatest common divisor of both, and repeats scales.

    Parameters
    ----------
    weight : uint8 ``[ceil(N * K / 2), 1]`` or ``[ceil(N * K / 2)]``, or the same bytes as floats (``quant_storage``).
    absmax : float32 or uint8 ``[ceil(N * K / block)]``.
    shape : ``(N, K)``.
    quant_map : float32 ``[16]``, which must be the table of `kind`.
    nested_absmax : float32 ``[ceil(blocks / nested_block)]``, with absmax in uint8.
    nested_quant_map : float32 ``[256]``, with absmax in uint8.
    kind : ``"nf4"`` or ``"fp4"``.

    Source: Dettmers et al. 2023; the serialised form of bitsandbytes' 4-bit parameters.
    """
    if kind not in _FORMATS:
        raise InvalidTensor(f"{name} is quantised to {kind!r}", hint=f"{' and '.join(_FORMATS)} can be read, and int8")
    if len(shape) != 2:
        raise InvalidTensor(f"{name} has the shape {list(shape)}, where [N, K] is due")
    N, K = (positive(f"{name}: an extent of the shape", extent) for extent in shape)
    block = positive(f"{name}: blocksize", block)
    packed = np.ascontiguousarray(as_numpy(weight)).reshape(-1)
    if packed.dtype.name in _STORED:
        packed = packed.view(np.uint8)
    packed = expect(name, packed, ["uint8"], [-(-N * K // 2)], "[N * K / 2]")
    if quant_map is not None:
        table = expect(f"{name}.quant_map", quant_map, ["float32"], [16], "[16]")
        if not np.allclose(table, number_format(_FORMATS[kind]).table, rtol=0, atol=1e-5):
            raise InvalidTensor(f"{name}.quant_map is not the table of {kind}")
    blocks = -(-N * K // block)
    scales = _scales(name, absmax, blocks, nested_absmax, nested_quant_map, nested_block, nested_offset)
    codes = np.empty((packed.size, 2), np.uint8)
    codes[:, 0], codes[:, 1] = packed >> 4, packed & 15
    group = math.gcd(K, block)
    starts = np.arange(0, N * K, group) // block
    codes = codes.reshape(-1)[: N * K].reshape(N, K)
    scales = scales[starts].reshape(N, K // group)
    return assemble(name, codes, _FORMATS[kind], scales, group)


def _scales(
    name: str, absmax: object, blocks: int, nested_absmax: object, nested_map: object, nested_block: int, offset: float
) -> np.ndarray:
    """The float32 scale of every block."""
    found = expect(f"{name}.absmax", absmax, ["float32", "uint8"], [blocks], "[N * K / blocksize]")
    if found.dtype == np.float32:
        if nested_absmax is not None or nested_map is not None:
            raise InvalidTensor(f"{name}.absmax is float32 beside nested_absmax or nested_quant_map, which uint8 has")
        return found
    if nested_absmax is None or nested_map is None:
        raise MissingTensor(
            f"{name}.absmax is quantised, but {name}.nested_absmax or {name}.nested_quant_map is missing"
        )
    nested_block = positive(f"{name}: nested_blocksize", nested_block)
    outer_blocks = -(-blocks // nested_block)
    outer = expect(f"{name}.nested_absmax", nested_absmax, ["float32"], [outer_blocks], "[blocks / nested_blocksize]")
    table = expect(f"{name}.nested_quant_map", nested_map, ["float32"], [256], "[256]")
    return table[found] * np.repeat(outer, nested_block)[:blocks] + np.float32(offset)


_STATE = (
    "quant_type", "blocksize", "dtype", "shape", "nested_blocksize", "nested_dtype", "nested_offset",
)  # fmt: skip
"""What the metadata of a weight say; of the two types one is the layer's results', the other float32."""


def read_bitsandbytes(tensors: Mapping[str, object], name: str) -> QuantizedWeight:
    """The weight called `name` in a checkpoint, with the tensors and the metadata that go by longer names. Raises
    MissingTensor, InvalidTensor, also for metadata that is no JSON text."""
    kind, text = next(((k, name + state) for k, state in STATES.items() if name + state in tensors), ("", ""))
    if not kind:
        raise MissingTensor(f"{name + STATES['nf4']} is missing: a 4-bit weight of bitsandbytes needs it")
    try:
        state = json_value(bytes(as_numpy(tensors[text])))
        shape, block, kind = state["shape"], state["blocksize"], state.get("quant_type", kind)
        offset = state.get("nested_offset", 0.0)
        off = [word for word, value in state.items() if value is None or value is False]
        unknown = [word for word in state if word not in (*_STATE, *off)]
        if unknown:
            raise ValueError(f"{', '.join(unknown):.60}, which nothing here reads")
        if not is_sizes(shape) or not isinstance(kind, str) or type(offset) not in (int, float):
            raise ValueError(f"shape {shape!r:.60}, quant_type {kind!r:.60}, nested_offset {offset!r:.60}")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidTensor(f"{text} holds no metadata that can be read: {error!r}") from None
    return from_bitsandbytes(
        tensors[name],
        tensors.get(f"{name}.absmax"),
        shape=shape,
        block=block,
        quant_map=tensors.get(f"{name}.quant_map"),
        nested_absmax=tensors.get(f"{name}.nested_absmax"),
        nested_quant_map=tensors.get(f"{name}.nested_quant_map"),
        nested_block=state.get("nested_blocksize", 256),
        nested_offset=offset,
        kind=kind[:60],
        name=name,
    )


def from_bitsandbytes_int8(weight: object, scb: object, *, name: str = "weight") -> QuantizedWeight:
    """A weight of bitsandbytes in int8 (LLM.int8): ``w[n, k] = weight[n, k] * SCB[n] / 127``.

    Parameters
    ----------
    weight : int8 ``[N, K]``, row by row (``weight_format`` 0).
    scb : float32 ``[N]``, the largest magnitude of each row.

    Source: Dettmers et al. 2022; the serialised form of bitsandbytes' `Linear8bitLt`.
    """
    codes = expect(f"{name}.weight", weight, ["int8"], [None, None], "[N, K]")
    largest = expect(f"{name}.SCB", scb, ["float32"], [codes.shape[0]], "[N]")
    scales, columns = largest[:, None].copy(), max(1, codes.shape[1])
    return assemble(name, codes.view(np.uint8), "int8", scales, columns, tensor_scale=1 / 127)
