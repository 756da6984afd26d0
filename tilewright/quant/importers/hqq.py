"""Weights of HQQ (half-quadratic quantisation) and of SINQ: float zero points, packed along groups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect, positive, take
from tilewright.quant.importers.assemble import assemble, smoothed
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy

PACKINGS = {
    "8bit_u8": (1, 8), "4bit_u8": (2, 4), "2bit_u8": (4, 2), "1bit_u8": (8, 1), "3bit_32": (10, 3),
    "5bit_32": (6, 5), "6bit_32": (5, 6),
}  # fmt: skip
"""Runs of rows that share words, and bits of a field, by HQQ's and SINQ's names; the first run lies in the highest
bits."""


def from_hqq(
    W_q: object,
    scale: object,
    zero: object,
    *,
    shape: tuple[int, int],
    bits: float,
    group: int | None,
    packing: str,
    axis: int = 1,
    format: str | None = None,
    name: str = "weight",
) -> QuantizedWeight:
    """A weight of HQQ with its groups along K (``axis=1``): ``w[n, k] = (code[n, k] - zero[e // g]) * scale[e // g]``.

    With ``e = n * K + k``, ``r = e // g`` the row of the matrix of groups and R the rows of ``W_q``::

        code[n, k] = W_q[r % R, e % g] >> shift[r // R] & 2**b - 1       shift counts down to 0 in steps of b

    Parameters
    ----------
    W_q : uint8 (int32 for ``..._32``, or the same bytes as floats) ``[R, g]``.
    scale, zero : floats, one for each group, or one zero for all.
    shape : ``(N, K)``.
    bits : of a code; 1.58 has codes 0 to 2.
    group : elements that share a scale, None for K.
    packing : one of `PACKINGS`.
    axis : 1; groups that run down the columns (0) are no groups of rows and cannot be read.
    format : what codes are numbers of; unsigned integers by default.

    Source: Badri and Shaji 2023; the state dicts of `hqq.core.quantize.HQQLinear`.
    """
    if packing not in PACKINGS:
        raise InvalidTensor(f"{name}: no packing {packing!r} of HQQ", hint=f"known: {', '.join(PACKINGS)}")
    if axis != 1:
        raise InvalidTensor(
            f"{name} has groups down its columns (HQQ's axis={axis})",
            hint="quantise with axis=1, groups along the rows",
        )
    N, K = (positive(f"{name}: an extent of the shape", int(extent)) for extent in shape)
    g = positive(f"{name}: group_size", K if group in (None, -1) else group)
    runs, width = PACKINGS[packing]
    if not 0 < bits <= width:
        raise InvalidTensor(f"{name} has {bits} bits, where the packing {packing} has fields of {width}")
    groups = -(-N * K // g)
    carrier = np.int32 if packing.endswith("_32") else np.uint8
    packed = as_numpy(W_q)
    row = packed.shape[-1] * packed.itemsize if packed.ndim else 1
    if packed.dtype.kind in "fV" and row % np.dtype(carrier).itemsize == 0:  # words that pass for floats
        packed = packed.view(carrier)
    packed = expect(f"{name}.W_q", packed, [np.dtype(carrier).name], [-(-groups // runs), g], "[rows, group]")
    mask = carrier((1 << width) - 1)
    fields = [packed >> carrier(width * (runs - 1 - run)) & mask for run in range(runs)]
    codes = np.concatenate(fields)[:groups].astype(np.uint8).reshape(-1)[: N * K].reshape(N, K)
    if N * K % g:
        raise InvalidTensor(f"{name} has {N} x {K} elements, which groups of {g} do not divide")

    def of_groups(suffix: str, values: object) -> np.ndarray:
        found = as_numpy(values).reshape(-1)
        if found.size == 1 and suffix == "zero":
            return found.reshape(1, 1).astype(np.float64)
        found = expect(f"{name}.{suffix}", found, FLOATS, [groups], "[N * K / group]")
        return found[np.arange(0, N * K, part) // g].reshape(N, K // part)

    part = math.gcd(K, g)
    scales, zeros = of_groups("scale", scale), of_groups("zero", zero)
    return assemble(name, codes, format or f"uint{math.ceil(bits)}", scales, part, zeros=zeros)


def read_hqq(tensors: Mapping[str, object], name: str) -> QuantizedWeight:
    """The weight of the layer called `name` in a checkpoint, whose metadata are tensors too. Raises MissingTensor,
    InvalidTensor, also for scales that are quantised themselves."""
    for suffix in ("quant_scale", "quant_zero"):
        if f"{name}.{suffix}" in tensors and as_numpy(tensors[f"{name}.{suffix}"]).any():
            raise InvalidTensor(
                f"{name} has quantised scales or zero points ({suffix})", hint="HQQ itself gave them up"
            )
    group = int(_number(tensors, f"{name}.group_size")) if f"{name}.group_size" in tensors else None
    scale, zero = (take(tensors, name, part, "HQQ") for part in (".scale", ".zero"))
    return from_hqq(tensors[f"{name}.W_q"], scale, zero, group=group, **_about(tensors, name, name))


def read_sinq(tensors: Mapping[str, object], name: str) -> QuantizedWeight:
    """The weight of the layer called `name` in a checkpoint of SINQ: one of HQQ, beside whose scales each column has
    one, ``w[n, k] = hqq[n, k] * scale2[k]``; activations are multiplied by these first. Scales and zero points may be
    bytes: ``scale = scale.x * scale.s + scale.m`` in the type of these, row by row of ``scale.x``. Raises
    MissingTensor, InvalidTensor, also for tiles with column scales of their own and codes of ``nf3``.

    Source: Müller et al. 2025; what sinq 0.2 saves.
    """
    about = f"{name}.meta"
    method, rows = _text(tensors, f"{about}.method").lower(), as_numpy(tensors[f"{name}.W_q"])
    unknown = set(method.split("_")) - _WORDS
    if unknown:
        raise InvalidTensor(f"{about}.method is {method!r}", hint=f"words that are known: {', '.join(sorted(_WORDS))}")
    scale, zero = (_of_bytes(tensors, f"{about}.{part}") for part in ("scale", "zero"))
    if scale.ndim > 2 or "nf3" in method or rows.ndim != 2:
        what = "codes of nf3" if "nf3" in method else "tiles, each with scales of its columns (tiling_mode 2D)"
        raise InvalidTensor(f"{name} has {what}", hint="SINQ's integers and nf4 with tiling_mode 1D can be read")
    # Where groups do not divide a row they were halved until they did, and only the codes' shape says it.
    made = from_hqq(
        rows,
        scale,
        zero,
        group=rows.shape[1],
        format="nf4" if "nf4" in method else None,
        **_about(tensors, about, name),
    )
    return smoothed(made, tensors.get(f"{about}.scale2"), f"{about}.scale2")


_WORDS = {
    "dual", "rtn", "hqq", "sinq", "asinq", "awq", "l1", "l2", "noz", "nf4", "nf3", "quantaux", "nogemlite",
}  # fmt: skip
"""What SINQ's names of its methods are made of."""


def _of_bytes(tensors: Mapping[str, object], name: str) -> np.ndarray:
    """Numbers that may be bytes, each with a factor and a summand of its column."""
    if f"{name}.x" not in tensors:
        return as_numpy(take(tensors, name, "", "SINQ"))
    factor, summand = (as_numpy(take(tensors, name, part, "SINQ")) for part in (".s", ".m"))
    width = factor.size
    factor = expect(f"{name}.s", factor, FLOATS, [1, None], "[1, columns]")
    summand = expect(f"{name}.m", summand, [factor.dtype.name], [1, width], "[1, columns]")
    found = expect(f"{name}.x", tensors[f"{name}.x"], ["uint8"], [None, width], "[rows, columns]")
    given = expect(f"{name}.shape", take(tensors, name, ".shape", "SINQ"), ["int64"], [None], "sizes")
    shape = tuple(int(one) for one in given)
    if len(shape) == 1 or math.prod(shape) != found.size:
        raise InvalidTensor(f"{name}.x holds {found.size} numbers, where {name}.shape says {list(shape)}")
    return (found.astype(factor.dtype) * factor + summand).reshape(shape)


def _about(tensors: Mapping[str, object], prefix: str, name: str) -> dict[str, Any]:
    """What metadata say beside groups, as the parameters of `from_hqq`."""
    extents = np.reshape(as_numpy(take(tensors, prefix, ".shape", "HQQ or SINQ")), -1)
    shape = tuple(int(one) for one in expect(f"{prefix}.shape", extents, ["int64", "int32"], [2], "[N, K]"))
    bits, axis = (_number(tensors, f"{prefix}.{part}") for part in ("nbits", "axis"))
    return {
        "shape": shape,
        "bits": bits,
        "axis": int(axis),
        "packing": _text(tensors, f"{prefix}.packing"),
        "name": name,
    }


def _text(tensors: Mapping[str, object], name: str) -> str:
    found = expect(name, take(tensors, name, "", "HQQ or SINQ"), ["uint8"], [None], "text")
    return bytes(found).decode("ascii", "replace")


def _number(tensors: Mapping[str, object], name: str) -> float:
    """One finite number.  Raises MissingTensor, InvalidTensor."""
    found = as_numpy(take(tensors, name, "", "HQQ or SINQ"))
    if found.size != 1 or found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        raise InvalidTensor(f"{name} is {found.dtype} {list(found.shape)}, where one number is due")
    number: float = found.reshape(-1)[0].item()
    return number
