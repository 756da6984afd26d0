"""Arrays of NumPy and torch on any device, told apart and moved, without importing torch before the user does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from tilewright.errors import NoDevice, NotPrepared, WrongArgumentDevice, WrongArgumentKind
from tilewright.ir.arguments import numpy_dtype, row_major_strides
from tilewright.ir.dtypes import DType, dtype
from tilewright.libraries import torch
from tilewright.options import in_context
from tilewright.runtime.tensors import Array, allocator_like, is_torch

Made = TypeVar("Made")

ALIGNMENT = 16
"""Bytes: addresses that kernels for GPUs take for granted."""

ROUNDINGS = 1 / 16
"""How far kernels that round weights, activations or partial sums differently may differ, as a part of the largest
result."""


def device_of(array: Array, what: str = "a tensor") -> str:
    """``"cpu"``, or torch's name of the device with its index: ``"cuda:0"``; `what` is due, for the message. Raises
    WrongArgumentKind for what is neither a NumPy array nor a torch tensor."""
    if isinstance(array, np.ndarray):
        return "cpu"
    if is_torch(array):
        device = array.device
        return "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
    raise WrongArgumentKind.given(array, what, hint="pass a NumPy array or a torch tensor")


def element_type(array: Array) -> DType:
    """The number type of an array's elements."""
    return numpy_dtype(array.dtype) if isinstance(array, np.ndarray) else dtype(array.dtype)


def placed_like(array: np.ndarray, example: Array) -> Array:
    """`array` as a tensor of the kind and on the device of `example`."""
    return as_torch(array, example.device) if is_torch(example) else array


def as_torch(array: Any, device: Any) -> torch.Tensor:  # torch is imported when it is needed
    """A torch tensor on a device with the elements of an array, of the same type. Raises as `torch_device`."""
    device = torch_device(device)
    if is_torch(array):
        return array.to(device)
    name = numpy_dtype(array.dtype).name
    array = np.ascontiguousarray(array)
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array).to(device)
    bits = torch.from_numpy(array.view(np.uint8 if array.itemsize == 1 else np.int16))
    return bits.view(getattr(torch, name)).to(device)


def torch_device(device: str | torch.device) -> torch.device:
    """The device of a name, a number or a `torch.device`, which is here. Raises WrongArgumentDevice, NoDevice."""
    if isinstance(device, torch.device) and device.type == "cpu":
        return device
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise WrongArgumentDevice(
            f"torch knows no device {device!r}", hint="'cpu', 'cuda' and 'cuda:1' are some"
        ) from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise NoDevice(f"torch has no device {str(found)!r} here")
    return found


def with_numbers(array: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory holds its numbers: torch has some that are another's with the sign flipped, or zeros
    without memory."""
    if array._is_zerotensor():
        return sys.modules["torch"].zeros(array.shape, dtype=array.dtype, device=array.device)
    if array.is_neg() and array.itemsize == 1:  # floats of 8 bits, of which torch resolves none itself
        return (-sys.modules["torch"]._neg_view(array).float()).to(array.dtype)
    return array.resolve_neg()


def check_strided(what: str, array: torch.Tensor) -> None:  # a tensor of torch
    """A tensor of torch has all its elements at strides.  Raises WrongArgumentKind."""
    torch = sys.modules["torch"]
    if array.is_nested or array.layout is not torch.strided:
        kind = "nested" if array.is_nested else array.layout
        raise WrongArgumentKind(
            f"{what} are a {kind} tensor", hint="pass x.values()" if array.is_nested else "pass x.to_dense()"
        )


def torch_type(of: DType) -> torch.dtype:
    """A number type as torch has it."""
    found: torch.dtype = getattr(sys.modules["torch"], of.name)
    return found


def viewed(array: Any, of: DType) -> Any:  # of the array's library
    """The same bytes as elements of another type."""
    return array.view(of.numpy) if isinstance(array, np.ndarray) else array.view(torch_type(of))


def contiguous(array: Array) -> Array:
    """The array itself where it is row-major and aligned, else a copy that is."""
    if isinstance(array, np.ndarray):
        array = np.ascontiguousarray(array)
        return array if _is_aligned(array) else array.copy()
    array = array.contiguous()
    return array if _is_aligned(array) else array.clone()


def with_rows_at(unit: int, array: Array) -> Array:
    """A matrix whose rows begin at multiples of so many bytes, each row's elements one after the other: itself, or part
    of a wider copy. Copy engines take no others."""
    rows, columns = array.shape
    each = unit // array.itemsize
    own = (stride // array.itemsize for stride in array.strides) if isinstance(array, np.ndarray) else array.stride()
    strides = tuple(own)
    if _is_aligned(array) and strides[1] == 1 and strides[0] >= columns and strides[0] % each == 0:
        return array
    wide = empty_like(array, (rows, -(-columns // each) * each), element_type(array))
    wide[:, :columns] = array
    return wide[:, :columns]


def is_row_major(array: Array) -> bool:
    """Whether a kernel can write to an array as it is."""
    if isinstance(array, np.ndarray):
        return array.flags.c_contiguous and _is_aligned(array)
    return tuple(array.stride()) == tuple(row_major_strides(tuple(array.shape))) and _is_aligned(array)


def _is_aligned(array: Array) -> bool:
    """Whether elements begin where kernels take them."""
    if isinstance(array, np.ndarray):
        return bool(array.flags.aligned)
    return array.data_ptr() % (array.itemsize if array.device.type == "cpu" else ALIGNMENT) == 0


def is_capturing(array: Array) -> bool:
    """Whether launches are being written down into a graph instead of run: then nothing can be made that outlives
    it."""
    return is_torch(array) and array.is_cuda and sys.modules["torch"].cuda.is_current_stream_capturing()


def wait_for_copies(example: object) -> None:
    """Wait for all that a GPU has been given to do, where `example` is on one.

    Kernels for a few rows read weights before the work ahead of them in the stream has ended (`T.pdl_sync`). What
    brought the weights there, a copy from the host above all, must have ended, in whatever stream: once, when a weight
    is first used.
    """
    if is_torch(example) and example.is_cuda:
        sys.modules["torch"].cuda.synchronize(example.device)


def aside(make: Callable[[], object], example: Array) -> Any:
    """What `make` gives, made by a thread of its own where `example` is on a GPU.

    What outlives a call must not lie in a memory pool that torch has the calling thread allocate in, for a graph of
    `torch.compile` that is being warmed up: such a pool knows when all of it is free again.
    """
    if not (is_torch(example) and example.is_cuda):
        return make()
    torch = sys.modules["torch"]
    wait_for_copies(example)  # whatever stream they are made in; the thread has one of its own

    def work() -> Any:
        with torch.cuda.device(example.device):
            made = make()
            wait_for_copies(example)
            return made

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(in_context(work)).result()


def kept(make: Callable[[], Made], example: Array, doing: str) -> Made:
    """What `make` gives, which outlives a call: made by `aside`. Raises NotPrepared while a graph is captured, of which
    it would be a part."""
    if is_capturing(example):
        raise NotPrepared(f"{doing} while a graph is captured", hint="call once with such activations before")
    made: Made = aside(make, example)
    return made


def constant(name: Hashable, make: Callable[[], np.ndarray], example: Array) -> Any:
    """A constant that `name` settles, as a tensor of the kind and on the device of `example`: copied to a GPU once.
    Raises NotPrepared where it is met for the first time while a graph is captured."""
    if not (is_torch(example) and example.is_cuda):
        return placed_like(make(), example)
    key = name, str(example.device)
    if key not in _CONSTANTS:
        _CONSTANTS[key] = kept(lambda: placed_like(make(), example), example, "a constant is copied to the device")
    return _CONSTANTS[key]


_CONSTANTS: dict[Hashable, object] = {}


def empty_like(example: Array, shape: tuple[int, ...], of: DType) -> Any:
    """An uninitialised array of the kind and on the device of `example`."""
    return allocator_like(example)(shape, of)


def agree(found: Any, expected: Any) -> bool:
    """Whether two ways to compute the same numbers differ by no more than roundings on the way and in their type could
    make them.

    Numbers that are not finite say nothing.
    """
    if 0 in expected.shape:
        return True
    of = element_type(expected)
    if is_torch(expected):
        found, expected = found.double(), expected.double()
    else:
        found, expected = found.astype(np.float64), expected.astype(np.float64)
    largest = float(abs(expected).max())
    if not largest < np.inf:
        return True
    rounding = max(ROUNDINGS, 0.5**of.mantissa_bits if of.is_float else 0.0)
    return bool(abs(found - expected).max() <= rounding * largest + of.is_integer)


def check_device(what: str, array: Array, other: str, device: str) -> None:
    """Two arrays are on one device. Raises WrongArgumentDevice, which says where each is."""
    found = device_of(array, what)
    if found != device:
        raise WrongArgumentDevice(
            f"{what} is on {found}, {other} on {device}", hint=f"move one: {what}.to({device!r}), for example"
        )
