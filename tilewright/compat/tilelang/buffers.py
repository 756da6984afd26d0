"""``tilelang.utils.language``: what programs ask of a buffer, and of a function."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from tilewright.ir.nodes import Extent
from tilewright.language.buffers import BufferProxy, RegionProxy
from tilewright.language.dtypes import NumberType
from tilewright.language.mistakes import TileExpected
from tilewright.language.proxies import Element, describe
from tilewright.language.reducers import ReducerProxy
from tilewright.language.tensors import TensorType


def _lies_in(memory: str, what: str) -> Callable[[object], bool]:
    def ask(buffer: object) -> bool:
        return _memory(buffer) == memory

    ask.__doc__ = f"Whether a buffer {what}."
    return ask


is_global, is_local = _lies_in("global", "is a tensor"), _lies_in("local", "is an array of each thread")
is_local_var, is_fragment = (
    _lies_in("scalar", "is a `T.alloc_var`"),
    _lies_in("fragment", "lies in registers of a block"),
)


def is_shared(buffer: object, allow_dynamic: bool = True) -> bool:
    """Whether a buffer is a shared tile."""
    return allow_dynamic and _memory(buffer) == "shared"


def is_shared_dynamic(buffer: object) -> bool:
    """Whether a buffer is a shared tile: all of them are of TileLang's kind ``shared.dyn``."""
    return is_shared(buffer)


def is_tensor_memory(buffer: object) -> bool:
    """Never: there is no tensor memory here."""
    return False


def is_reducer(buffer: object) -> bool:
    """Whether a buffer is a `T.alloc_reducer`."""
    return isinstance(buffer, ReducerProxy)


def _memory(value: Any) -> str:
    region = value.region.buffer if isinstance(value, RegionProxy) else getattr(value, "buffer", value)
    return str(region.scope)


def retrieve_shape(obj: Any) -> list[Extent]:
    """Extents of a buffer, of a slice, or of the single element that is named."""
    if isinstance(obj, RegionProxy):
        return list(obj.region.extents)
    return [1] * len(obj.indices) if isinstance(obj, Element) else list(obj.shape)


def retrieve_stride(obj: object) -> list[object]:
    """Strides of a row-major buffer or annotation, or of the buffer that a slice or an element is of, in elements."""
    if isinstance(obj, TensorType):
        obj = BufferProxy(obj.buffer("obj"))
    elif isinstance(obj, RegionProxy):
        obj = BufferProxy(obj.region.buffer)
    elif isinstance(obj, Element):
        obj = BufferProxy(obj.buffer)
    if not isinstance(obj, BufferProxy):
        raise TileExpected("the argument of retrieve_stride", describe(obj), "a buffer, or a part of one")
    return list(obj.strides)


def array_reduce(array: Iterable[int]) -> int:
    """The product of some numbers."""
    return math.prod(array)


def get_buffer_elems(buffer: Any) -> int:
    """Elements of a buffer of known size."""
    return math.prod(int(size) for size in buffer.shape)


def bits_product(shape: Iterable[int], dtype: object) -> int:
    """Bits of so many elements."""
    return math.prod(shape) * NumberType(dtype).bits


def get_prim_func_name(func: object, default: str | None = None) -> str | None:
    """The name of a traced function."""
    return getattr(func, "name", None) or getattr(func, "__name__", None) or default


def deprecated_warning(method_name: str, new_method_name: str, phaseout_version: str | None = None) -> None:
    """Say that something has another name now."""
    until = "" if phaseout_version is None else f", and goes in version {phaseout_version}"
    warnings.warn(f"{method_name} is {new_method_name} now{until}", DeprecationWarning, stacklevel=3)


def deprecated(method_name: str, new_method_name: str, phaseout_version: str | None = None) -> Callable[..., Any]:
    """Decorator of a function that has another name now: a call warns."""

    def decorate(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def call(*arguments: object, **named: object) -> object:
            deprecated_warning(method_name, new_method_name, phaseout_version)
            return function(*arguments, **named)

        return call

    return decorate
