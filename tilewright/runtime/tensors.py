"""Looking at tensors of NumPy, torch and anything with DLPack, and making new ones like them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tilewright.errors import WrongArgumentDevice, WrongArgumentDType, an
from tilewright.ir import AS_BYTES, DType, dtypes
from tilewright.ir.arguments import TensorView, numpy_view, row_major_strides, storage_shape
from tilewright.libraries import is_mlx, torch
from tilewright.runtime import dlpack
from tilewright.runtime.dlpack import UnreadableTensor
from tilewright.targets.base import Promised

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Array: TypeAlias = "np.ndarray | torch.Tensor"
"""An array of the two libraries whose tensors products and layers take."""


def is_tensor(value: object) -> bool:
    """Whether `value` can be passed for a buffer."""
    return isinstance(value, (np.ndarray, Promised)) or is_torch(value) or hasattr(value, "__dlpack__")


def is_torch(value: object) -> TypeIs[torch.Tensor]:
    """Whether `value` is a torch tensor (a Parameter and other subclasses too), without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def count_write(tensor: object) -> None:
    """Let torch count that a kernel wrote to a tensor, as it counts writes by its own functions: it refuses gradients
    that would be taken of overwritten numbers, and what was made of the tensor is made again."""
    if is_torch(tensor):
        torch.autograd.graph.increment_version(tensor)


def as_float32(array: Array) -> Array:
    """An array of NumPy or torch itself where it is of float32, else its numbers in that type."""
    return array.astype(np.float32, copy=False) if isinstance(array, np.ndarray) else array.float()


def as_numpy(array: object) -> np.ndarray:
    """The same elements in NumPy's memory, no bit of them changed; types that NumPy lacks are carried by ml_dtypes.

    Raises
    ------
    WrongArgumentDevice : a tensor on the meta device.
    """
    if isinstance(array, np.ndarray):
        return array
    if not is_torch(array):
        return np.asarray(array)
    if array.is_meta:
        raise WrongArgumentDevice("a tensor is on the meta device: it has no numbers", hint="load them first")
    return memory_of(array.contiguous() if array.dtype.itemsize <= 2 else array)


def memory_of(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor, on the host in the strides that it has; types that NumPy lacks are carried by
    ml_dtypes."""
    tensor, torch = tensor.detach().cpu().resolve_neg(), sys.modules["torch"]
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize > 2:
        return tensor.numpy()
    bits = tensor.view(torch.uint8 if tensor.dtype.itemsize == 1 else torch.int16).numpy()
    return bits if str(tensor.dtype) == TWO_CODES else bits.view(dtypes.dtype(tensor.dtype).numpy)


def tensor_view(value: object) -> TensorView:
    """Address, shape, strides, dtype and device of a tensor.

    Raises
    ------
    WrongArgumentDType : NumPy or torch element type without a tilewright dtype (complex, object, ...).
    UnreadableTensor : a DLPack export that fails.
    """
    if isinstance(value, np.ndarray):
        return numpy_view(value)
    if is_torch(value):
        return _torch_view(value)
    if isinstance(value, Promised):
        strides = row_major_strides(value.shape)
        return TensorView(0, value.shape, strides, value.dtype, ("metal", 0), False, value, bytes_for_floats=True)
    return dlpack.view(value)


TWO_CODES = "torch.float4_e2m1fn_x2"
"""The type of torch whose elements are two codes of 4 bits each, which a parameter of these takes as bytes."""


def _torch_view(tensor: Any) -> TensorView:
    if tensor.is_nested:
        raise UnreadableTensor("a tensor of torch is nested: it is many of different sizes", hint="pass x.values()")
    try:
        dtype = dtypes.UINT8 if str(tensor.dtype) == TWO_CODES else dtypes.dtype(tensor.dtype)
    except dtypes.UnknownDType:
        raise WrongArgumentDType(f"tensors of {tensor.dtype} have no tilewright dtype") from None
    device, pointer = tensor.device, _address(tensor)
    if tensor.is_neg():
        raise UnreadableTensor("a tensor of torch is a negated view of another", hint="pass tensor.resolve_neg()")
    kind = "hip" if device.type == "cuda" and sys.modules["torch"].version.hip else _KINDS.get(device.type, device.type)
    apple = kind == "metal"
    handle = tensor.untyped_storage().data_ptr() if apple and pointer else 0
    place = (kind, device.index or 0)
    return TensorView(pointer, tuple(tensor.shape), tuple(tensor.stride()), dtype, place, False, tensor, handle, apple)


def _address(tensor: Any) -> int:
    """Where a torch tensor begins; 0 for one without elements, and for one that has no memory because it is on
    ``meta``.

    Raises
    ------
    UnreadableTensor : a fake, sparse or freed tensor, or one that a transform of torch stands for.
    """
    is_fake = getattr(tensor, "fake_mode", None) is not None
    try:
        pointer = 0 if is_fake else tensor.data_ptr()
    except RuntimeError:
        pointer = 0
    if is_fake or (not pointer and tensor.numel() and not tensor.is_meta):
        raise UnreadableTensor(
            f"{an(type(tensor).__name__)} of torch has no memory: it is fake, sparse or freed, or stands for others",
            hint="kernels take tensors that lie in memory; torch.library.custom_op brings them to torch's transforms",
        )
    return int(pointer)


def table_of(tensors: Sequence[object], addresses: Sequence[int]) -> Any:
    """The addresses of tensors as one, where they are: what kernels take for a list of tensors."""
    if tensors and tensor_view(tensors[0]).device[0] == "metal":
        return Promised((len(tensors),), dtypes.UINT64)  # the launch makes it of the tensors themselves
    if tensors and is_torch(tensors[0]):
        torch = sys.modules["torch"]
        return torch.tensor(addresses, dtype=torch.int64, device=tensors[0].device)
    return np.array(addresses, np.uint64)


Allocator = Callable[[tuple[int, ...], DType], Any]


def allocator_like(example: object) -> Allocator:
    """A function that makes uninitialised tensors of the kind, and on the device, of `example`.

    Tensors that are neither NumPy's nor torch's say only where they are: `allocator_on` has what is made there.
    """
    if is_torch(example):
        return _torch_allocator(example.device)
    if is_mlx(example):
        return lambda shape, dtype: Promised(storage_shape(shape, dtype), _mlx_dtype(dtype))
    return allocator_on("cpu") if isinstance(example, np.ndarray) else allocator_on(*tensor_view(example).device)


def allocator_on(kind: str, index: int | None = None) -> Allocator:
    """A function that makes uninitialised tensors in a kind of memory: NumPy's on the host, torch's elsewhere.

    Parameters
    ----------
    kind, index : a device as `TensorView` names it; without an index the calling thread's current one.

    Raises
    ------
    WrongArgumentDevice : torch is missing, or has no such device.
    """
    if kind == "cpu":
        return lambda shape, dtype: np.empty(storage_shape(shape, dtype), np.uint8 if dtype.is_packed else dtype.numpy)
    name = _TORCH_NAMES.get(kind, kind)
    try:
        torch = importlib.import_module("torch")
        device = torch.empty(0, device=name if index is None else f"{name}:{index}").device
    except (ImportError, AssertionError, RuntimeError) as error:
        raise WrongArgumentDevice(
            f"an output has to be made on {kind}, which takes torch: {str(error).splitlines()[0]}",
            hint="install a torch for this device, or pass the outputs as arguments (out_idx=None)",
        ) from None
    return _torch_allocator(device)


_TORCH_NAMES = {"hip": "cuda", "metal": "mps"}
"""Kinds of memory that torch calls otherwise."""

_KINDS = {"mps": "metal"}


def _mlx_dtype(dtype: DType) -> DType:
    """What carries elements in MLX, which has no floats of 8 bits."""
    return dtypes.UINT8 if _as_bytes(dtype) or (dtype.is_float and dtype.bits == 8) else dtype


def _as_bytes(dtype: DType) -> bool:
    """Whether elements are carried as bytes."""
    return dtype.is_packed or dtype.name in AS_BYTES


def _torch_allocator(device: object) -> Allocator:
    torch = sys.modules["torch"]

    def allocate(shape: tuple[int, ...], dtype: DType) -> Array:
        name = "uint8" if _as_bytes(dtype) else dtype.carrier
        return torch.empty(storage_shape(shape, dtype), dtype=getattr(torch, name), device=device)

    return allocate
