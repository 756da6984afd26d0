"""Weights of HQQ (half-quadratic quantisation): float zero points, packed along groups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect, positive, take
from tilewright.quant.importers.assemble import assemble
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy

PACKINGS = {"8bit_u8": (1, 8), "4bit_u8": (2, 4), "2bit_u8": (4, 2), "1bit_u8": (8, 1), "3bit_32": (10, 3)}
"""Runs of rows that share words, and bits of a field, by HQQ's names; the first run lies in the highest bits."""


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
    name: str = "weight",
) -> QuantizedWeight:
    """A weight of HQQ with its groups along K (``axis=1``): ``w[n, k] = (code[n, k] - zero[e // g]) * scale[e // g]``.

    With ``e = n * K + k``, ``r = e // g`` the row of the matrix of groups and R the rows of ``W_q``::

        code[n, k] = W_q[r % R, e % g] >> shift[r // R] & 2**b - 1       shift counts down to 0 in steps of b

    Parameters
    ----------
    W_q : uint8 (int32 for ``3bit_32``, or the same bytes as floats) ``[R, g]``.
    scale, zero : floats, one for each group.
    shape : ``(N, K)``.
    bits : of a code; 1.58 has codes 0 to 2.
    group : elements that share a scale, None for K.
    packing : one of `PACKINGS`.
    axis : 1; groups that run down the columns (0) are no groups of rows and cannot be read.

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
    carrier = np.int32 if packing == "3bit_32" else np.uint8
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
        found = as_numpy(values)
        found = expect(f"{name}.{suffix}", found.reshape(-1), FLOATS, [groups], "[N * K / group]")
        return found[np.arange(0, N * K, part) // g].reshape(N, K // part)

    part = math.gcd(K, g)
    scales, zeros = of_groups("scale", scale), of_groups("zero", zero)
    return assemble(codes, f"uint{math.ceil(bits)}", scales=scales, zeros=zeros, block=(1, part), name=name)


def read_hqq(tensors: Mapping[str, object], name: str) -> QuantizedWeight:
    """The weight of the layer called `name` in a checkpoint, whose metadata are tensors too. Raises MissingTensor,
    InvalidTensor, also for scales that are quantised themselves."""

    def number(suffix: str) -> Any:
        found = as_numpy(take(tensors, name, f".{suffix}", "HQQ"))
        if found.size != 1 or found.dtype.kind not in "iuf" or not np.isfinite(found).all():
            raise InvalidTensor(f"{name}.{suffix} is {found.dtype} {list(found.shape)}, where one number is due")
        return found.reshape(-1)[0].item()

    for suffix in ("quant_scale", "quant_zero"):
        if f"{name}.{suffix}" in tensors and as_numpy(tensors[f"{name}.{suffix}"]).any():
            raise InvalidTensor(
                f"{name} has quantised scales or zero points ({suffix})", hint="HQQ itself gave them up"
            )
    text = bytes(as_numpy(take(tensors, name, ".packing", "HQQ")).astype(np.uint8)).decode("ascii", "replace")
    extents = expect(
        f"{name}.shape",
        np.reshape(as_numpy(take(tensors, name, ".shape", "HQQ")), -1),
        ["int64", "int32"],
        [2],
        "[N, K]",
    )
    shape = tuple(int(extent) for extent in extents)
    return from_hqq(
        tensors[f"{name}.W_q"],
        take(tensors, name, ".scale", "HQQ"),
        take(tensors, name, ".zero", "HQQ"),
        shape=(shape[0], shape[1]),
        bits=number("nbits"),
        group=number("group_size") if f"{name}.group_size" in tensors else None,
        packing=text,
        axis=number("axis"),
        name=name,
    )
