"""``tilelang.utils.tensor``: what kernels take, tensors to try them on, and comparisons."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from tilewright.compat.testing import ResultsDiffer, torch_assert_close
from tilewright.ir.arguments import storage_shape
from tilewright.ir.nodes import Buffer, Var
from tilewright.language.dtypes import NumberType
from tilewright.libraries import torch
from tilewright.specialization import InvalidUse

__all__ = [
    "KernelParam", "ResultsDiffer", "TensorSupplyType", "fp8_remove_negative_zeros_", "get_tensor_supply",
    "is_float8_dtype", "map_torch_type", "torch_assert_close",
]  # fmt: skip


class TensorSupplyType(Enum):
    """What arguments are made of."""

    Integer, Uniform, Normal, Randn, Zero, One, Auto = range(1, 8)


@dataclass(frozen=True, slots=True)
class KernelParam:
    """A parameter of a kernel.

    Attributes
    ----------
    dtype : of its elements.
    shape : ints, and variables where a size is known only at launch; empty for a scalar.
    """

    dtype: NumberType
    shape: tuple[Any, ...]

    @classmethod
    def of(cls, params: Iterable[Any]) -> list[KernelParam]:
        """Those of a traced function."""
        return [cls(NumberType(one.dtype), () if isinstance(one, Var) else tuple(one.shape)) for one in params]

    @classmethod
    def from_buffer(cls, buffer: Buffer) -> KernelParam:
        """Of a tensor of a traced function."""
        return cls.of([buffer])[0]

    @classmethod
    def from_var(cls, var: Var) -> KernelParam:
        """Of a number that a traced function takes."""
        return cls(NumberType(var.dtype), ())

    @property
    def tilelang_dtype(self) -> NumberType:
        """The type of the elements."""
        return self.dtype

    def is_float4(self) -> bool:
        """Whether it has floats of four bits."""
        return self.dtype.is_float and self.dtype.bits == 4

    def torch_dtype(self) -> torch.dtype:
        """torch's type of the elements."""
        return self.dtype.as_torch()

    def is_scalar(self) -> bool:
        """Whether it is a number."""
        return not self.shape

    def is_unsigned(self) -> bool:
        """Whether it has unsigned integers."""
        return self.dtype.record.kind == "uint"

    def is_float8(self) -> bool:
        """Whether it has floats of eight bits."""
        return self.dtype.is_float and self.dtype.bits == 8

    def is_boolean(self) -> bool:
        """Whether it has truths."""
        return self.dtype.record.kind == "bool"


def map_torch_type(intype: object) -> torch.dtype:
    """torch's type of a name."""
    return NumberType(intype).as_torch()


def filled(dtype: NumberType, shape: tuple[int, ...], supply: TensorSupplyType, device: str) -> torch.Tensor:
    """A tensor of torch's of so many elements, made where it is used: without more said, floats between -1 and 1, small
    integers."""
    kind, of = supply, dtype.as_torch()
    if dtype.record.is_packed:
        return torch.randint(0, 256, storage_shape(shape, dtype.record), device=device, dtype=torch.uint8).view(of)
    if kind is TensorSupplyType.Zero:
        return torch.zeros(shape, device=device).to(of)
    if kind is TensorSupplyType.One:
        return torch.ones(shape, device=device).to(of)
    if dtype.record.kind == "bool":
        return torch.randint(0, 2, shape, device=device, dtype=torch.bool)
    if not dtype.is_float or kind is TensorSupplyType.Integer:
        low, high = (0, 3) if dtype.record.kind == "uint" else (-2, 3)
        return torch.randint(low, high, shape, device=device, dtype=torch.int8).to(of)
    if kind in (TensorSupplyType.Normal, TensorSupplyType.Randn):
        return torch.randn(shape, device=device).to(of)
    made = torch.empty(shape, device=device, dtype=of if dtype.bits > 8 else torch.float16).uniform_(-1.0, 1.0)
    return made.to(of)


def is_float8_dtype(dtype: object) -> bool:
    """Whether a type has floats of eight bits."""
    found = NumberType(dtype)
    return found.is_float and found.bits == 8


def fp8_remove_negative_zeros_(tensor: torch.Tensor) -> None:
    """Make every -0 of a tensor of 8-bit floats a +0, in place."""
    if not is_float8_dtype(tensor.dtype):
        raise InvalidUse(f"a tensor of {tensor.dtype} has no floats of eight bits", hint="pass one of T.float8_e4m3fn")
    tensor.view(torch.uint8)[tensor.float() == 0] = 0


def get_tensor_supply(
    supply_type: TensorSupplyType = TensorSupplyType.Integer,
) -> Callable[[KernelParam], torch.Tensor]:
    """A function that makes a tensor for a parameter."""

    def supply(param: KernelParam) -> torch.Tensor:
        if param.is_scalar() or not all(isinstance(extent, int) for extent in param.shape):
            raise InvalidUse("tensors are made for shapes that are known", hint="pass tensors of your own")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return filled(param.dtype, tuple(param.shape), supply_type, device)

    return supply


def as_torch(result: object, arguments: Sequence[object]) -> object:
    """Results as torch's tensors, where the program has torch and passed nothing of NumPy's that says otherwise."""
    torch = sys.modules.get("torch")
    if torch is None or any(isinstance(one, np.ndarray) for one in arguments):
        return result
    if isinstance(result, tuple):
        return tuple(as_torch(one, arguments) for one in result)
    return _view_of_torch(result) if isinstance(result, np.ndarray) else result


def _view_of_torch(array: np.ndarray) -> torch.Tensor:
    torch = sys.modules["torch"]
    if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 and array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    carrier = np.dtype(f"u{array.dtype.itemsize}")  # ml_dtypes' types, which torch knows by their names alone
    return torch.from_numpy(array.view(carrier)).view(NumberType(array.dtype).as_torch())
