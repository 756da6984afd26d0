"""Rounding a weight to nearest on the GPU where it lies, or on one that is there: to the bits that `quant.quantize` and
`PackedWeight.pack` give on the processor."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tilewright.errors import CannotQuantize
from tilewright.formats import Format
from tilewright.libraries import torch
from tilewright.matmul.arrays import as_torch
from tilewright.matmul.column_order import column_order
from tilewright.matmul.packed import PackedWeight, named
from tilewright.quant.quantize import to_nearest
from tilewright.quant.rounding import Rounding, sum_in_halves
from tilewright.runtime.tensors import as_numpy, is_torch

AT_ONCE = 1 << 22
"""Elements that are rounded at once: they take some 150 MB beside the weight."""

WORTH = 1 << 18
"""Elements from which on a weight on the processor is rounded on a GPU."""


def packed_to_nearest(weight: object, how: Rounding, name: str = "the weight", divisors: object = None) -> PackedWeight:
    """A weight ``[N, K]``, called `name` in messages, rounded and packed on the device that it is on (NumPy's arrays
    stay such). Raises CannotQuantize as `quant.quantize` does, and for a weight without rows or columns."""
    torch = sys.modules.get("torch")
    if torch is None or not is_torch(weight):
        return PackedWeight.pack(to_nearest(weight, how, divisors, name))
    if weight.is_meta:
        raise CannotQuantize(f"{name} is on the meta device: it has no numbers", hint="load the model's weights first")
    weight = weight.detach()
    device = _device_for(weight) if divisors is None else None
    if device is not None:
        try:
            return named(packed_there(weight.to(device), how, name).to(weight.device))
        except torch.cuda.OutOfMemoryError:
            pass  # the processor gives the same bits
    numbers = as_numpy(weight.float() if weight.dtype.is_floating_point and weight.itemsize < 4 else weight)
    return PackedWeight.pack(to_nearest(numbers, how, divisors, name), weight.device)


def _device_for(weight: torch.Tensor) -> torch.device | None:
    """The GPU on which to round a weight; None for the processor."""
    torch = sys.modules["torch"]
    if weight.is_cuda:
        return weight.device
    there = weight.device.type == "cpu" and weight.numel() >= WORTH and torch.cuda.is_available()
    return torch.device("cuda") if there else None


def packed_there(weight: torch.Tensor, how: Rounding, name: str) -> PackedWeight:
    """`packed_to_nearest` by torch's operations, on any device that has float64."""
    torch = sys.modules["torch"]
    how.check(tuple(weight.shape))
    rows, columns = map(int, weight.shape)
    if not rows or not columns:
        raise CannotQuantize(f"a weight of shape {[rows, columns]} has nothing to multiply by")
    if weight.is_complex():
        raise CannotQuantize(f"a weight of {weight.dtype} has no codes", hint="real numbers do")
    step, block = max(1, AT_ONCE // columns), how.whole_block((rows, columns))
    slabs = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
    least, most, total = _ranges(weight, slabs, block[1], how.takes_means, name)
    grid = how.settle(least, most, total, (rows, columns))
    divisor, offsets = (torch.from_numpy(one).to(weight.device) for one in (grid.divisor, grid.offsets))
    limits, codes_of = (torch.from_numpy(one).to(weight.device) for one in how.format.limits)
    shifted = bool(grid.offsets.any())
    order = column_order(columns, block[1], None)
    order = None if order is None else torch.from_numpy(order).to(weight.device)
    made = []
    for slab in slabs:
        group = torch.arange(slab.start, slab.stop, device=weight.device) // block[0]
        values = _parts(weight[slab], block[1]) / divisor[group, :, None]
        if shifted:
            values = values + (offsets[group, :, None] if offsets.numel() > 1 else offsets)
        place = torch.searchsorted(limits, values.contiguous(), out_int32=True)
        codes = codes_of[place].reshape(len(values), -1)[:, :columns]
        if order is not None:
            codes = torch.where(order >= 0, codes[:, order.clamp(min=0)], 0)
        made.append(_packed(codes, how.format))
    arrays = {"codes": torch.cat(made), "scales": as_torch(grid.scales, weight.device)}
    if grid.zeros is not None:
        arrays["zeros"] = as_torch(grid.zeros, weight.device)
    return PackedWeight(how.format, (rows, columns), arrays, block=block, tensor_scale=grid.tensor_scale)


def _parts(values: torch.Tensor, width: int) -> torch.Tensor:
    """Rows in parts of so many columns, ``[rows, parts, width]``, as float64; a cut one is filled up with zeros."""
    torch = sys.modules["torch"]
    wide = values.double()
    padding = -wide.shape[1] % width
    whole = torch.nn.functional.pad(wide, (0, padding)) if padding else wide
    return whole.reshape(len(wide), -1, width)


def _ranges(
    weight: torch.Tensor, slabs: list[slice], width: int, means: bool, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """What `Rounding.settle` asks for."""
    torch = sys.modules["torch"]
    found: list[list[Any]] = [[], [], []]
    for slab in slabs:
        parts = _parts(weight[slab], width)
        for kept, one in zip(found, (parts.amin(-1), parts.amax(-1), sum_in_halves(parts.abs()) if means else None)):
            kept.append(one)
    least, most = (torch.cat(kept).cpu().numpy() for kept in found[:2])
    if not (np.isfinite(least).all() and np.isfinite(most).all()):
        place = [int(one) for one in (~weight.double().isfinite()).nonzero()[0]]
        raise CannotQuantize(
            f"{name} is {float(weight[tuple(place)])} at {place}", hint="only finite weights have codes"
        )
    return least, most, torch.cat(found[2]).cpu().numpy() if means else None


def _packed(codes: torch.Tensor, of: Format) -> torch.Tensor:
    """`formats.pack_plain`: eight codes are as many bytes as one has bits."""
    torch = sys.modules["torch"]
    if of.bits == 8:
        return codes.contiguous()
    width = -(-codes.shape[1] * of.bits // 8)
    eight = torch.nn.functional.pad(codes, (0, -codes.shape[1] % 8)).reshape(len(codes), -1, 8).long()
    words = (eight << of.bits * torch.arange(8, device=codes.device)).sum(-1)
    octets = words[..., None] >> 8 * torch.arange(of.bits, device=codes.device) & 255
    return octets.to(torch.uint8).reshape(len(codes), -1)[:, :width].contiguous()
