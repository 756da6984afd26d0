"""Call plans: what a call with arguments of known shapes, types and devices has left to do.

The first call with some combination checks everything (`arguments`).  Later ones only look up the combination,
read addresses, allocate the outputs and launch; addresses are checked again, since they change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from tilewright.ir.nodes import Buffer, Function
from tilewright.runtime.arguments import byte_range
from tilewright.runtime.tensors import tensor_view

MISSED = object()
"""What a plan answers where the call needs the full checks after all."""

ALIGNMENT = 16
"""Addresses that kernels take for granted; others go through the full checks."""


def argument_key(value: Any) -> Any:
    """What a plan depends on; None for arguments that have none."""
    kind = type(value)
    if kind is np.ndarray:
        return value.shape, value.strides, value.dtype, value.flags.writeable
    if kind in _torch_types():
        return value.shape, value.dtype, value.get_device(), value.is_contiguous() or value.stride()
    return None


_TORCH_TYPES: list[frozenset[type]] = []


def _torch_types() -> frozenset[type]:
    """Torch's tensor types, once torch is loaded: only a torch tensor can be of them."""
    if _TORCH_TYPES:
        return _TORCH_TYPES[0]
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return frozenset()
    _TORCH_TYPES.append(frozenset((torch.Tensor, torch.nn.Parameter)))
    return _TORCH_TYPES[0]


def call_key(arguments: Sequence[Any]) -> Any:
    """The combination of all arguments; None where some argument has no key."""
    keys = tuple([argument_key(value) for value in arguments])
    return None if None in keys else keys


Plan = Callable[[Sequence[Any]], Any]
"""Runs a call again, or answers `MISSED`."""


def make_plan(
    function: Function,
    arguments: Sequence[Any],
    outputs: Sequence[Any],
    prepare: Callable[[], Callable[..., None]],
    written: Collection[Buffer],
) -> Plan:
    """A function of the arguments that runs the call again; one that always answers `MISSED` where there is none.

    Parameters
    ----------
    arguments, outputs : of a call that was checked.
    prepare : makes a function of the addresses of all buffers, in the order of the parameters.
    written : arguments that the kernel writes, so that overlaps must be looked for.
    """
    address = _addresses(arguments)
    allocate = [_allocator(output) for output in outputs]
    made = [param in function.outputs for param in function.params]
    plain = all(isinstance(param, Buffer) for param in function.params) and made == sorted(made)
    if not plain or address is None or None in allocate:
        return lambda arguments: MISSED
    pairs = _overlap_pairs(function, arguments, written)
    if len(allocate) == 1 and not pairs:
        return _plan_of_one_output(address, allocate[0], prepare())
    return _plan(address, allocate, prepare(), pairs)


def _plan_of_one_output(address: Callable[[Any], int], make: Any, launch: Callable[..., None]) -> Plan:
    """The usual case, with nothing to spare."""

    def run(arguments: Sequence[Any]) -> Any:
        pointers = [address(value) for value in arguments]
        for pointer in pointers:
            if pointer % ALIGNMENT:
                return MISSED
        output = make()
        launch(*pointers, address(output))
        return output

    return run


def _plan(
    address: Callable[[Any], int],
    allocate: Sequence[Any],
    launch: Callable[..., None],
    pairs: Sequence[tuple[int, int, int, int]],
) -> Plan:
    def run(arguments: Sequence[Any]) -> Any:
        pointers = [address(value) for value in arguments]
        for pointer in pointers:
            if pointer % ALIGNMENT:
                return MISSED
        for one, other, before, behind in pairs:
            if before < pointers[other] - pointers[one] < behind:
                return MISSED  # they share memory: the full checks say which
        outputs = [make() for make in allocate]
        launch(*pointers, *map(address, outputs))
        return None if not outputs else outputs[0] if len(outputs) == 1 else tuple(outputs)

    return run


def _overlap_pairs(
    function: Function, arguments: Sequence[Any], written: Collection[Buffer]
) -> list[tuple[int, int, int, int]]:
    """For each written argument and each other one, the differences of their addresses between which they overlap."""
    ranges = []
    for value in arguments:
        view = tensor_view(value)
        low, high = byte_range(view)
        ranges.append((low - view.pointer, high - view.pointer))
    inputs = function.inputs
    pairs = []
    for one, param in enumerate(inputs):
        if param not in written:
            continue
        for other in range(len(inputs)):
            (low, high), (other_low, other_high) = ranges[one], ranges[other]
            if other != one and low < high and other_low < other_high:
                pairs.append((one, other, low - other_high, high - other_low))
    return pairs


def _addresses(arguments: Sequence[Any]) -> Callable[[Any], int] | None:
    """How to read the address of every argument; None where they are of several kinds."""
    if all(type(value) is np.ndarray for value in arguments):
        return _numpy_address
    torch = sys.modules.get("torch")
    if torch is not None and arguments and all(isinstance(value, torch.Tensor) for value in arguments):
        return torch.Tensor.data_ptr  # type: ignore[no-any-return]
    return None


def _numpy_address(array: np.ndarray) -> int:
    return array.ctypes.data


def _allocator(output: Any) -> Callable[[], Any] | None:
    """A function that makes another tensor like `output`."""
    if type(output) is np.ndarray:
        shape, dtype = output.shape, output.dtype
        return lambda: np.empty(shape, dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(output, torch.Tensor):
        # Not empty_like: it would keep the first output alive for as long as the plan.
        empty, shape, dtype, device = torch.empty, output.shape, output.dtype, output.device
        return lambda: empty(shape, dtype=dtype, device=device)
    return None
