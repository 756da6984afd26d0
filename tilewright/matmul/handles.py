"""Handles: tensors by which graphs of torch name layers and weights, operands like any others."""

from __future__ import annotations

import os
import weakref
from typing import Any

from tilewright.errors import WeightIsGone
from tilewright.libraries import torch
from tilewright.matmul.arrays import is_capturing

_OWNERS: dict[int | bytes, weakref.ref[object]] = {}
"""Owners by the addresses of their handles, and by what these hold."""

_CAPTURED: weakref.WeakKeyDictionary[object, dict[int, object]] = weakref.WeakKeyDictionary()
"""Handles of each owner that graphs of the GPU were captured with: their addresses are not given to others."""


def handle_of(owner: object, device: Any, old: torch.Tensor | None = None) -> torch.Tensor:  # as torch names one
    """A tensor on a device by which operators find its owner, a layer or a weight, for as long as both live.

    They know it by its address, which nothing else has meanwhile, and copies of it by its random bytes. When the weight
    is replaced the layer keeps the `old` one, but not one that a graph of the GPU was captured with: such a graph reads
    memory that is no longer the weight's, and torch makes it anew where an address has changed.
    """
    device = torch.device(device)
    if type(old) is torch.Tensor and old.device.type == device.type and device.index in (None, old.device.index):
        address = old.data_ptr()
        if _OWNERS.get(address, _nobody)() is owner and address not in _CAPTURED.get(owner, ()):
            return old
    name = os.urandom(16)
    with torch.inference_mode(False):
        handle = torch.tensor(list(name), dtype=torch.uint8, device=device)
    if type(handle) is torch.Tensor and not handle.is_meta:
        for key in (handle.data_ptr(), name):
            _OWNERS[key] = weakref.ref(owner)
            weakref.finalize(handle, _OWNERS.pop, key, None).atexit = False
        # Torch marks tensors of modules so, which graphs of the GPU take where they are: it would hand others over as
        # copies.
        handle._dynamo_static_input_type = "unguarded"  # type: ignore[attr-defined]
    return handle


_HEIRS: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
"""Weights that have the handle of their layer, by its address: they may live longer."""


def shared_with(weight: object, handle: torch.Tensor) -> torch.Tensor:
    """The handle of a layer, which names its weight when the layer is gone."""
    if not handle.is_meta:
        _HEIRS[handle.data_ptr()] = weight
    return handle


def owner_of(handle: torch.Tensor) -> Any:
    """What has a handle. Raises WeightIsGone where it was deleted."""
    address = handle.data_ptr()
    owner = (_OWNERS.get(address) or _OWNERS.get(bytes(handle.tolist())) or _nobody)()
    owner = _HEIRS.get(address) if owner is None else owner
    if owner is None:
        raise WeightIsGone(
            "a graph calls a layer that was deleted, or whose weight was replaced after the graph was made",
            hint="keep the layer alive while its graph runs; an exported program that was saved has no layers in "
            "another process",
        )
    if is_capturing(handle):
        _CAPTURED.setdefault(owner, {})[handle.data_ptr()] = handle
    return owner


def _nobody() -> None:
    return None
