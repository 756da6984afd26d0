"""Files of packed weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import errors
from tilewright.checkpoints.bounds import LARGEST_SIZE, json_value
from tilewright.checkpoints.safetensors import SafetensorsFile, save_safetensors
from tilewright.quant.weight import ARRAYS, QuantizedWeight, meaning
from tilewright.runtime.tensors import as_numpy

if TYPE_CHECKING:
    from tilewright.matmul.packed import PackedWeight

LAYOUT = "plain/1"
"""Id of the layout that every kernel of last resort reads."""


def write(weight: PackedWeight, path: str | Path) -> None:
    """See `PackedWeight.save`."""
    arrays = {name: as_numpy(array) for name, array in weight.arrays.items()}
    metadata = {
        "layout": LAYOUT,
        "format": weight.format.name,
        "shape": json.dumps(weight.shape),
        "block": json.dumps(weight.block),
        "zeros_mode": weight.zeros_mode,
        "tensor_scale": weight.tensor_scale.hex(),
        "arrays": json.dumps(sorted(arrays)),
    }
    save_safetensors(path, arrays, {f"tilewright.{name}": value for name, value in metadata.items()})


def read(kind: type[PackedWeight], path: str | Path) -> PackedWeight:
    """A weight of a file, on the host: see `PackedWeight.load`."""
    file = SafetensorsFile(path)
    given = {name.removeprefix("tilewright."): value for name, value in file.metadata.items()}
    if "layout" not in given:
        raise errors.InvalidCheckpoint(f"{path} holds no packed weight", hint="PackedWeight.save writes such files")
    if given["layout"] != LAYOUT:
        raise errors.InvalidCheckpoint(
            f"{path} holds a weight of layout {given['layout']!r}", hint=f"this version reads {LAYOUT!r}"
        )
    try:
        made = kind(
            given["format"],
            _sizes(given["shape"]),
            {name: np.array(file[name]) for name in file},
            block=_sizes(given["block"]),
            zeros_mode=given["zeros_mode"],
            tensor_scale=float.fromhex(given["tensor_scale"]),
        )
        _check_arrays(made, json_value(given["arrays"]) if "arrays" in given else sorted(made.held))
    except (LookupError, ValueError, TypeError, ArithmeticError, errors.TilewrightError) as error:
        raise errors.InvalidCheckpoint(f"{path} holds no weight that can be read: {error}") from None
    return made


def _sizes(text: str) -> Any:
    """Numbers out of a file's metadata, what they mean being looked at elsewhere.  Raises ValueError."""
    found = json_value(text)
    if not isinstance(found, list) or not all(type(one) is int and abs(one) < LARGEST_SIZE for one in found):
        raise ValueError(f"{text:.60} is no shape")
    return tuple(found)


def _check_arrays(weight: PackedWeight, named: list[str]) -> None:
    """Raise CannotQuantize where arrays out of a file are no weight of its metadata; codes are taken as they are."""
    if named != sorted(weight.held) or not {"codes"} <= {*named} <= {"codes", *ARRAYS}:
        raise errors.CannotQuantize(
            f"it has the arrays {', '.join(sorted(weight.held))}, where {', '.join(named)} are due"
        )
    arrays = {name: weight.held[name] for name in named if name != "codes"}
    anything = np.broadcast_to(np.zeros((), weight.format.carrier), weight.shape)
    QuantizedWeight(anything, weight.format, **meaning(weight), **arrays)
    bits = 8 * weight.format.carrier.itemsize if weight.format.is_dense else weight.format.bits
    width = -(-weight.facts.K * bits // 8) // weight.format.carrier.itemsize
    codes = weight.held["codes"]
    if codes.shape != (weight.shape[0], width) or codes.dtype != weight.format.carrier:
        raise errors.CannotQuantize(
            f"codes are {codes.dtype} {list(codes.shape)}, where {weight.format.carrier} "
            f"{[weight.shape[0], width]} is due"
        )
