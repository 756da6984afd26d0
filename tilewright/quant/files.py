"""A quantised weight among the tensors of a checkpoint or a state dict: which tensors, under which names.

A weight called ``layer`` is ``layer.codes`` (bytes, row by row, low bits first), ``layer.scales``, ``layer.zeros`` and what
else it has, and ``layer.quantization``: the bytes of a JSON text with everything that is no array.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.errors import InvalidTensor, MissingTensor, TilewrightError
from tilewright.formats import number_format, packing, unpack_plain
from tilewright.formats.packing import PLAIN
from tilewright.quant.importers.arrays import as_array
from tilewright.quant.weight import QuantizedWeight

VERSION = 1
ARRAYS = ("scales", "zeros", "multipliers", "g_idx", "divisors")
"""Fields of a weight that are tensors of their own, where it has them."""

METADATA = "quantization"
SUFFIXES = ("codes", METADATA, *ARRAYS)


def weight_tensors(weight: QuantizedWeight, name: str) -> dict[str, np.ndarray]:
    """The tensors of a weight, by their full names."""
    about = {
        "version": VERSION, "layout": PLAIN.id, "format": weight.format.name, "shape": list(weight.shape),
        "block": list(weight.block or ()), "zeros_mode": weight.zeros_mode, "tensor_scale": weight.tensor_scale,
    }  # fmt: skip
    made = {
        f"{name}.codes": np.ascontiguousarray(weight.packed),
        f"{name}.{METADATA}": np.frombuffer(json.dumps(about).encode(), np.uint8),
    }
    for field in ARRAYS:
        values = getattr(weight, field)
        if values is not None:
            made[f"{name}.{field}"] = np.ascontiguousarray(values)
    return made


def read_weight(tensors: Mapping[str, Any], name: str) -> QuantizedWeight:
    """The weight called `name`, the inverse of `weight_tensors`.

    Raises
    ------
    MissingTensor : its codes or its metadata are not there.
    InvalidTensor : metadata of another version or none at all; arrays that make no weight.
    """
    for suffix in ("codes", METADATA):
        if f"{name}.{suffix}" not in tensors:
            raise MissingTensor(f"{name}.{suffix} is missing: a quantised weight has one")
    try:
        about = json.loads(bytes(as_array(tensors[f"{name}.{METADATA}"])))
        version, shape, block = about["version"], tuple(about["shape"]), tuple(about["block"])
        layout, kind, mode, factor = about["layout"], about["format"], about["zeros_mode"], about["tensor_scale"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidTensor(f"{name}.{METADATA} holds no metadata that can be read: {error!r}") from None
    if version != VERSION or packing(layout) is not PLAIN:
        raise InvalidTensor(
            f"{name}.{METADATA} is of version {version} and layout {layout}", hint="a newer tilewright wrote it"
        )
    try:
        of, codes = number_format(kind), as_array(tensors[f"{name}.codes"])
        if not of.is_dense:
            width = -(-shape[1] * of.bits // 8)
            if codes.shape != (shape[0], width) or codes.dtype != np.uint8:
                raise InvalidTensor(
                    f"{name}.codes is {codes.dtype} {list(codes.shape)}, where uint8 [{shape[0]}, {width}] is due"
                )
            codes = unpack_plain(codes, shape[1], of.bits)
        rest = {field: as_array(tensors[f"{name}.{field}"]) for field in ARRAYS if f"{name}.{field}" in tensors}
        return QuantizedWeight(codes, of, block=block, zeros_mode=mode, tensor_scale=factor, **rest)  # type: ignore[arg-type]
    except InvalidTensor:
        raise
    except TilewrightError as error:
        raise InvalidTensor(f"{name}: {error.message}", hint=error.hint) from None
