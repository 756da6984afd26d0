"""The numbers of a packed weight as a tensor of torch, worked out where the weight is."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.libraries import torch
from tilewright.matmul.arrays import as_torch, constant, kept
from tilewright.matmul.packed import PackedWeight
from tilewright.runtime.tensors import Array

AT_ONCE = 1 << 24
"""Elements that are decoded at a time: indices into the table of values take eight bytes each."""


def dense_tensor(weight: PackedWeight, dtype: Any) -> Any:
    """The weight that activations are multiplied by in effect, ``[N, K]`` of `dtype`, a floating type of torch,
    computed in float32 (float64 where asked for). It is of tensors, or of arrays of NumPy."""
    N, K = weight.shape
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    held = {name: as_torch(array, getattr(array, "device", "cpu")) for name, array in weight.arrays.items()}
    codes, of = held["codes"], weight.format
    out = torch.empty(N, K, dtype=dtype, device=codes.device)
    table = None if of.is_dense else constant(("values", of.name), lambda: np.nan_to_num(of.table), codes).to(wide)
    columns, places = weight.derived(("places", "torch"), lambda: _places(weight, codes))
    rows_each, group = weight.block[0], weight.facts.group
    step = max(1, AT_ONCE // columns // rows_each) * rows_each
    for first in range(0, N, step):
        part = slice(first, min(first + step, N))

        def spread(name: str, part: slice = part) -> torch.Tensor:
            """An array of groups with one element for each of these rows and columns, or one for all."""
            values = held[name].float().to(wide) if held[name].dtype.itemsize < 4 else held[name].to(wide)
            if len(values) > 1:
                values = values.repeat_interleave(rows_each, 0)[part]
            return values.repeat_interleave(group, 1)[:, :columns] if values.shape[1] > 1 else values

        numbers = codes[part].to(wide) if table is None else table[_unpacked(codes[part], of.bits, columns)]
        factor: float | torch.Tensor = weight.tensor_scale
        for name in ("multipliers", "scales"):
            if name in held:
                factor = spread(name) * factor
        if weight.zeros_mode == "rescale" and "zeros" in held:
            numbers = numbers * factor - spread("zeros")
        else:
            numbers = (numbers - spread("zeros") if "zeros" in held else numbers) * factor
        if places is not None:
            numbers = numbers[:, places]
        if "divisors" in held:
            numbers = numbers / held["divisors"].to(wide)
        if "rotation" in held:
            back = held["rotation"].to(wide).swapaxes(1, 2)
            parts = numbers.reshape(len(numbers), -1, back.shape[1]).swapaxes(0, 1)
            numbers = torch.matmul(parts, back).swapaxes(0, 1).reshape(numbers.shape)
        out[part] = numbers.to(dtype)
    return out


def _places(weight: PackedWeight, codes: Array) -> tuple[int, Array | None]:
    """Columns of the packed codes, and in which of them each column of the weight stands; None for where it would
    be."""
    gathered = weight.gathered
    if gathered is None:
        return weight.shape[1], None
    packed = np.flatnonzero(gathered >= 0)
    places = np.empty(weight.shape[1], np.int64)
    places[gathered[packed]] = packed
    return len(gathered), kept(lambda: as_torch(places, codes.device), codes, "columns are put in order")


def _unpacked(packed: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """Codes, one an element (int64), of bytes that hold them row by row, low bits first."""
    at = torch.arange(columns, device=packed.device) * bits
    found = packed[:, at // 8].long() >> at % 8
    if 8 % bits:
        following = (at // 8 + 1).clamp(max=packed.shape[1] - 1)
        found = found | packed[:, following].long() << (8 - at % 8)
    return found & ((1 << bits) - 1)
