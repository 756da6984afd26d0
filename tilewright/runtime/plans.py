"""Call plans: what a call with arguments of known shapes, types and devices has left to do.

The first call with some combination checks everything (`arguments`).  Later ones only look up the combination,
read addresses, allocate the outputs and launch; addresses are checked again, since they change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.nodes import Buffer, Function

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


def make_plan(
    function: Function, arguments: Sequence[Any], outputs: Sequence[Any], launch: Callable[..., None], written: bool
) -> Callable[[Sequence[Any]], Any] | None:
    """A function of the arguments that runs the call again.

    Parameters
    ----------
    arguments, outputs : of a call that was checked.
    launch : takes the addresses of all buffers in the order of the parameters.
    written : whether the kernel writes into arguments, so that overlaps must be looked for.
    """
    if written or not all(isinstance(param, Buffer) for param in function.params):
        return None
    address = _addresses(arguments)
    allocate = [_allocator(output) for output in outputs]
    if address is None or None in allocate:
        return None
    in_order = [param in function.outputs for param in function.params] == sorted(
        param in function.outputs for param in function.params
    )
    return _plan(address, allocate, launch) if in_order else None


def _plan(
    address: Callable[[Any], int], allocate: Sequence[Any], launch: Callable[..., None]
) -> Callable[[Sequence[Any]], Any]:
    if len(allocate) == 1:
        (make,) = allocate

        def run_with_one_output(arguments: Sequence[Any]) -> Any:
            pointers = [address(value) for value in arguments]
            for pointer in pointers:
                if pointer % ALIGNMENT:
                    return MISSED
            output = make()
            launch(*pointers, address(output))
            return output

        return run_with_one_output

    def run(arguments: Sequence[Any]) -> Any:
        pointers = [address(value) for value in arguments]
        if any(pointer % ALIGNMENT for pointer in pointers):
            return MISSED
        outputs = [make() for make in allocate]
        launch(*pointers, *map(address, outputs))
        return tuple(outputs) if outputs else None

    return run


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
