"""Reading DLPack capsules, so that tensors of any framework pass without importing it.

NumPy's own reader refuses bfloat16 and the 8-bit floats, hence this one.  Source: the DLPack specification,
``dlpack.h`` version 1.1 (struct layouts and type codes).
"""

from __future__ import annotations

import ctypes
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.ir import dtypes
from tilewright.ir.arguments import TensorView, row_major_strides


class UnreadableTensor(TilewrightError):
    """An object that offers DLPack but whose capsule cannot be used."""


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


_CODES: dict[tuple[int, int], str] = {
    (6, 8): "bool", (4, 16): "bfloat16", (2, 16): "float16", (2, 32): "float32", (2, 64): "float64",
    (10, 8): "float8_e4m3fn", (11, 8): "float8_e4m3fnuz", (12, 8): "float8_e5m2", (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 8: "metal", 10: "hip", 11: "cpu", 13: "cuda"}
_METAL = 8
_READ_ONLY = 1

_api = ctypes.pythonapi
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_IsValid.restype = ctypes.c_int
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p


def view(tensor: Any) -> TensorView:
    """The view of an object with ``__dlpack__``.

    Raises
    ------
    UnreadableTensor : the producer refuses, or the element type has no tilewright dtype.
    """
    try:
        try:
            capsule = tensor.__dlpack__(max_version=(1, 1))
        except TypeError:
            capsule = tensor.__dlpack__()
    except Exception as error:
        raise UnreadableTensor(f"{type(tensor).__name__} cannot be exported through DLPack: {error}") from error
    read_only = type(tensor).__module__.startswith("jaxlib.")  # arrays that never change; no capsule of theirs says so
    if _api.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))
        record, read_only = managed.tensor, read_only or bool(managed.flags & _READ_ONLY)
    elif _api.PyCapsule_IsValid(capsule, b"dltensor"):
        record = _Tensor.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor"))
    else:
        raise UnreadableTensor(f"{type(tensor).__name__}.__dlpack__() gave no DLPack capsule")
    name = _CODES.get((record.dtype.code, record.dtype.bits))
    if name is None or record.dtype.lanes != 1:
        code = (record.dtype.code, record.dtype.bits, record.dtype.lanes)
        raise UnreadableTensor(
            f"{type(tensor).__name__} has a DLPack element type {code} that tilewright does not know"
        )
    shape = tuple(record.shape[i] for i in range(record.ndim))
    strides = tuple(record.strides[i] for i in range(record.ndim)) if record.strides else row_major_strides(shape)
    # MLX says where its arrays are, and exports an address of the host's for them before 0.32.
    kind = _METAL if _said(tensor) == _METAL else record.device.type
    device = (_DEVICES.get(kind, f"dlpack device {kind}"), record.device.id)
    pointer = (record.data or 0) + record.byte_offset
    apple = kind == _METAL
    handle = (record.data or 0) if apple else 0
    # The capsule is not consumed: its own destructor gives the tensor back once the view is dropped.
    owner = (capsule, tensor)
    return TensorView(pointer, shape, strides, dtypes.dtype(name), device, read_only, owner, handle, apple)


def _said(tensor: Any) -> int:
    """The kind of device that a tensor says it is on; 0 where it does not."""
    try:
        return int(tensor.__dlpack_device__()[0])
    except (AttributeError, TypeError, ValueError):
        return 0
