"""A quantised weight among the tensors of a checkpoint or a state dict: which tensors, under which names.

A weight called ``layer`` is ``layer.qweight`` (bytes, row by row, low bits first), ``layer.scales``, ``layer.zeros``
and what else it has, and ``layer.weight``: the bytes of a JSON text with everything that is no array. These are the
names that a state dict of `tilewright.Linear` has.

The text has the name of the dense weight and never its shape: whoever looks for a matrix there, and knows nothing of
codes, finds that the sizes differ. transformers fills what it does not find at all with random numbers. Files that were
written before that was so have the text as ``layer._extra_state``, torch's name for what is no tensor; they are read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tilewright.checkpoints.bounds import is_sizes, json_value
from tilewright.errors import InvalidTensor, MissingTensor, TilewrightError
from tilewright.formats import PLAIN, number_format, unpack_plain
from tilewright.quant.weight import ARRAYS, QuantizedWeight
from tilewright.runtime.tensors import Array, as_numpy

VERSION = 1

CODES = "qweight"
METADATA = "weight"
METADATA_BEFORE = "_extra_state"
"""The end of the text's name in older files, whose text is the same."""

SUFFIXES = (CODES, METADATA, METADATA_BEFORE, *ARRAYS)


def weight_tensors(weight: QuantizedWeight, name: str) -> dict[str, np.ndarray]:
    """The tensors of a weight, by their full names."""
    made = {f"{name}.{CODES}": np.ascontiguousarray(weight.packed), f"{name}.{METADATA}": metadata_bytes(weight)}
    for field in ARRAYS:
        values = getattr(weight, field)
        if values is not None:
            made[f"{name}.{field}"] = np.ascontiguousarray(values)
    return made


def stack_note() -> np.ndarray:
    """What has the name of a dense tensor of experts ``[experts, N, K]``, whose weights are ``name.0``, ``name.1``, ...

    As their metadata do, it keeps those who know no codes from taking the tensor for one that is missing.
    """
    return np.frombuffer(json.dumps({"version": VERSION, "codes of": "each expert"}).encode(), np.uint8)


def metadata_bytes(weight: Any) -> np.ndarray:  # anything with those fields
    """What is no array of a `QuantizedWeight` (or anything with its format, shape, block, zeros_mode and
    tensor_scale)."""
    about = {
        "version": VERSION, "layout": PLAIN.id, "format": number_format(weight.format).name,
        "shape": list(weight.shape),
        "block": list(weight.block), "zeros_mode": weight.zeros_mode, "tensor_scale": weight.tensor_scale,
        "arrays": [field for field in ARRAYS if _held(weight, field) is not None],
    }  # fmt: skip
    return np.frombuffer(json.dumps(about).encode(), np.uint8)


def _held(weight: object, field: str) -> Array | None:
    """An array of a weight of any kind."""
    held = getattr(weight, "held", None)
    return getattr(weight, field) if held is None else held.get(field)


def metadata_name(tensors: Collection[str], prefix: str) -> str:
    """What the text of a weight is called among tensors, whose names begin with `prefix`; what is due where none is."""
    before = prefix + METADATA_BEFORE
    return before if before in tensors else prefix + METADATA


def read_metadata(values: object, name: str) -> dict[str, Any]:  # JSON
    """The inverse of `metadata_bytes`, of a tensor of that name. Raises InvalidTensor: it holds no metadata, or that of
    a newer version; it is a dense weight."""
    held = as_numpy(values)
    if held.ndim != 1 or held.dtype != np.uint8:
        raise InvalidTensor(
            f"{name} is {held.dtype} {list(held.shape)}, where the metadata of a quantised weight is due",
            hint="a dense weight belongs into a dense model, which tilewright.quantize takes then",
        )
    try:
        about = json_value(bytes(held))
        version, layout = about["version"], about["layout"]
        found = {
            "format": about["format"],
            "zeros_mode": about["zeros_mode"],
            "tensor_scale": float(about["tensor_scale"]),
            "arrays": [str(name) for name in about.get("arrays", ())],
        }
        for field in ("shape", "block"):
            if not is_sizes(about[field]) or len(about[field]) != 2:
                raise ValueError(f"{field} {about[field]!r:.60}")
            found[field] = tuple(about[field])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise InvalidTensor(f"{name} holds no metadata that can be read: {error!r}") from None
    if version != VERSION or layout != PLAIN.id:
        raise InvalidTensor(f"{name} is of version {version} and layout {layout}", hint="a newer tilewright wrote it")
    return found


def read_weight(tensors: Mapping[str, object], name: str) -> QuantizedWeight:
    """The weight called `name`, the inverse of `weight_tensors`. Raises MissingTensor where its codes, its metadata or
    an array that these speak of are not there; InvalidTensor for metadata as in `read_metadata`, and arrays that make
    no weight."""
    text = metadata_name(tensors, f"{name}.")
    for due in (f"{name}.{CODES}", text):
        if due not in tensors:
            raise MissingTensor(f"{due} is missing: a quantised weight has one")
    about = read_metadata(tensors[text], text)
    shape = about.pop("shape")
    for field in about.pop("arrays"):
        if f"{name}.{field}" not in tensors:
            raise MissingTensor(f"{name}.{field} is missing: the weight had one when it was written")
    try:
        of, codes = number_format(about.pop("format")), as_numpy(tensors[f"{name}.{CODES}"])
        if not of.is_dense:
            width = -(-shape[1] * of.bits // 8)
            if codes.shape != (shape[0], width) or codes.dtype != np.uint8:
                raise InvalidTensor(
                    f"{name}.{CODES} is {codes.dtype} {list(codes.shape)}, where uint8 [{shape[0]}, {width}] is due"
                )
            codes = unpack_plain(codes, shape[1], of.bits)
        rest: dict[str, Any] = {
            field: as_numpy(tensors[f"{name}.{field}"]) for field in ARRAYS if f"{name}.{field}" in tensors
        }
        return QuantizedWeight(codes, of, **about, **rest)
    except InvalidTensor:
        raise
    except TilewrightError as error:
        raise InvalidTensor(f"{name}: {error.message}", hint=error.hint) from None
