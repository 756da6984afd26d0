"""What a function expects of a call's arguments, whoever runs it: types, ranks and memory orders are checked, and sizes
told by shapes and strides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import errors
from tilewright.errors import WrongArgumentDType, an
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.nodes import Buffer, Extent, Function, Var
from tilewright.ir.signature import POINTERS, size_variables, written_parameters
from tilewright.ir.sizes import arithmetic, evaluate, size_in, size_text, solve
from tilewright.ir.walking import variables
from tilewright.memory import HOST


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor as a kernel sees it.

    Attributes
    ----------
    pointer : address of the first element.
    shape, strides : in elements.
    device : kind and index, as frameworks say them.
    owner : keeps the memory alive.
    handle : of the memory, where devices have no addresses: tensors with other handles say nothing of one another.
    bytes_for_floats : whether frameworks have no floats of 8 bits on this device, and keep them as bytes.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: tuple[str, int]
    read_only: bool
    owner: object
    handle: int = 0
    bytes_for_floats: bool = False


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous array."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def storage_shape(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """Shape of the array that carries a tensor: the last dimension of packed types is in bytes."""
    if not dtype.is_packed or not shape:
        return shape
    return (*shape[:-1], -(-shape[-1] // dtype.per_byte))


def element_strides(strides: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """Strides, in elements, of the tensor that an array carries: of packed types a byte of it is several."""
    return (*(stride * dtype.per_byte for stride in strides[:-1]), *strides[-1:]) if dtype.is_packed else strides


_NUMPY_DTYPES: dict[np.dtype, DType] = {}


def numpy_dtype(of: np.dtype) -> DType:
    """The tilewright dtype of a NumPy (or ml_dtypes) element type."""
    found = _NUMPY_DTYPES.get(of)
    if found is None:
        try:
            found = dtypes.dtype(of)
        except dtypes.UnknownDType:
            raise WrongArgumentDType(f"arrays of {of} have no tilewright dtype") from None
        if not of.isnative:
            raise WrongArgumentDType(f"arrays of {of} are not in this machine's byte order", hint="use .astype")
        _NUMPY_DTYPES[of] = found
    return found


def numpy_view(array: np.ndarray) -> TensorView:
    """An array of NumPy's as a kernel sees it."""
    dtype = numpy_dtype(array.dtype)
    size = array.itemsize
    strides = tuple(stride // size for stride in array.strides)
    if any(stride % size for stride in array.strides):
        strides = tuple(-1 for _ in strides)  # no whole number of elements: never row-major
    pointer = array.__array_interface__["data"][0]
    return TensorView(pointer, array.shape, strides, dtype, HOST, not array.flags.writeable, array)


class Expectations:
    """What the parameters of a function expect of the arguments of a call.

    Parameters
    ----------
    packed_bytes : for each parameter declared packed, how many bytes its packed form has.
    """

    def __init__(self, function: Function, packed_bytes: Mapping[Buffer, int] | None = None) -> None:
        self.function, self.packed_bytes = function, dict(packed_bytes or {})
        self.sizes = size_variables(function)
        self.arithmetic = arithmetic(function, self.sizes)
        self.written = written_parameters(function)
        self.pointers = frozenset(function.attribute(POINTERS, ()))

    def check_writable(self, param: Buffer, view: TensorView) -> None:
        """Refuse read-only memory for what the function writes."""
        if param in self.written and view.read_only:
            raise errors.ReadOnlyArgument(f"argument {param.name!r} is written by the kernel and is read-only")

    @staticmethod
    def number(param: Var, value: object) -> int | float | bool:
        """An argument as the number that a parameter takes."""
        item = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
        if not isinstance(item, (bool, int, float)):
            raise errors.WrongArgumentKind(
                f"argument {param.name!r} is {an(type(value).__name__)}, expected {an(str(param.dtype))}"
            )
        if param.dtype.is_float:
            return float(item)
        if isinstance(item, float) and not item.is_integer():
            raise errors.WrongArgumentKind(
                f"argument {param.name!r} is {item}, expected a whole number ({param.dtype})"
            )
        number = int(item)
        if not param.dtype.minimum <= number <= param.dtype.maximum:
            raise errors.WrongArgumentKind(f"argument {param.name!r} is {number}, out of range for {param.dtype}")
        return number

    def told(self, views: Mapping[Buffer, TensorView], scalars: Mapping[Var, object]) -> dict[Var, int]:
        """The sizes of a call; all that depends on shapes, strides and types alone is checked."""
        sizes: dict[Var, int] = {var: value for var, value in scalars.items() if isinstance(value, int)}
        origin: dict[Var, str] = {var: var.name for var in sizes}
        for param, view in views.items():
            self._check_type(param, view)
            if param in self.packed_bytes:
                continue
            for axis, extent in enumerate(param.shape):
                packed_axis = param.dtype.is_packed and axis == param.rank - 1
                found = view.shape[axis] * (param.dtype.per_byte if packed_axis else 1)
                self.tell(sizes, origin, extent, found, f"dimension {axis} of {param.name!r}")
            given = element_strides(view.strides, param.dtype)
            for axis, stride in enumerate(param.strides or ()):
                self.tell(sizes, origin, stride, given[axis], f"stride {axis} of {param.name!r}")
        unbound = [var.name for var in self.sizes if var not in sizes]
        if unbound:
            raise errors.WrongArgumentShape(
                f"size {unbound[0]!r} cannot be told from the arguments",
                hint="a symbolic size must be a whole extent of some argument's shape",
            )
        for var, value in sizes.items():
            if isinstance(value, int) and not var.dtype.minimum <= value <= var.dtype.maximum:
                raise errors.WrongArgumentShape(
                    f"{origin.get(var, var.name)} is {value}, and {var.name!r} is an {var.dtype}",
                    hint=f"declare it with 64 bits: T.dynamic({var.name!r}, 'int64')",
                )
        for made in self.arithmetic:
            if not made.dtype.minimum <= (value := evaluate(made, sizes)) <= made.dtype.maximum:
                name = min(var.name for var in variables(made))
                raise errors.WrongArgumentShape(
                    f"{size_text(made)} is {value} in this call, and an {made.dtype}",
                    hint=f"declare it with 64 bits: T.dynamic({name!r}, 'int64')",
                )
        for param, view in views.items():
            self._check_shape(param, view, sizes, origin)
        for buffer in self.function.outputs:
            for extent in buffer.shape:
                if evaluate(extent, sizes) < 0:
                    raise errors.WrongArgumentShape(f"output {buffer.name!r} would have a negative size")
        return sizes

    @staticmethod
    def tell(sizes: dict[Var, int], origin: dict[Var, str], extent: Extent, found: int, place: str) -> None:
        """Take the size that an extent or a stride tells, where it is not known."""
        var = size_in(extent)
        if var is None or var in sizes:
            return
        solution = solve(extent, found)
        if solution is None or (solution < 0 <= found):
            raise errors.WrongArgumentShape(f"{place} is {found}, expected {size_text(extent)} of a whole {var.name!r}")
        sizes[var], origin[var] = solution, place

    def _check_type(self, param: Buffer, view: TensorView) -> None:
        expected = dtypes.UINT8 if param.dtype.is_packed or param in self.packed_bytes else param.dtype
        stored_bytes = expected.name == "uint8" and view.dtype.name in ("int8", "uint8")
        carried = param.dtype.name == "tfloat32" and view.dtype.name == "float32"
        as_bytes = param.dtype.name in dtypes.AS_BYTES
        as_bytes = as_bytes or (view.bytes_for_floats and param.dtype.is_float and param.dtype.bits == 8)
        carried = carried or (as_bytes and view.dtype.name == "uint8")
        carried = carried or (param.name in self.pointers and view.dtype.name == "int64")
        if view.dtype != expected and not (stored_bytes and expected is not param.dtype) and not carried:
            packed = f" holding packed {param.dtype}" if expected is not param.dtype else ""
            raise errors.WrongArgumentDType(
                f"argument {param.name!r} has dtype {view.dtype}, expected {expected}{packed}",
                hint=self._dtype_hint(param),
            )
        if len(view.shape) != param.rank and param not in self.packed_bytes:
            declared = ", ".join(size_text(extent) for extent in param.shape)
            raise errors.WrongArgumentRank(
                f"argument {param.name!r} has shape {view.shape}, expected {param.rank} dimensions ({declared})"
            )

    def _dtype_hint(self, param: Buffer) -> str:
        if param in self.packed_bytes:
            return f"pack it first: kernel.pack({param.name}=...)"
        if param.dtype.is_packed:
            return "pack the elements first: tilewright.pack(array, dtype)"
        return f"convert it to {param.dtype} first"

    def _check_shape(
        self, param: Buffer, view: TensorView, sizes: Mapping[Var, int], origin: Mapping[Var, str]
    ) -> None:
        if param in self.packed_bytes:
            # Row-major bytes of as many elements would fit too; only their shape tells them from the packed form.
            expected_bytes = self.packed_bytes[param]
            if view.shape != (expected_bytes,):
                raise errors.WrongArgumentShape(
                    f"argument {param.name!r} has shape {view.shape}, its packed form has shape ({expected_bytes},)",
                    hint=f"pack it first: kernel.pack({param.name}=...)",
                )
            return
        expected = storage_shape(tuple(evaluate(extent, sizes) for extent in param.shape), param.dtype)
        for axis, (found, wanted) in enumerate(zip(view.shape, expected, strict=True)):
            if found != wanted:
                extent = param.shape[axis]
                because = "" if isinstance(extent, int) else f" ({_reason(extent, sizes, origin)})"
                raise errors.WrongArgumentShape(
                    f"argument {param.name!r} has shape {view.shape}: dimension {axis} is {found}, expected "
                    f"{wanted}{because}"
                )
        given, strides = view.strides, row_major_strides(expected)
        if param.strides is not None:
            given = element_strides(given, param.dtype)
            strides = tuple(evaluate(stride, sizes) for stride in param.strides)
        for axis, (found, wanted) in enumerate(zip(given, strides, strict=True)):
            if found != wanted and expected[axis] > 1 and 0 not in expected:
                order = "row-major" if param.strides is None else f"strides {strides}"
                raise errors.WrongArgumentStrides(
                    f"argument {param.name!r} has strides {given}, expected {order}",
                    hint="pass a contiguous copy (np.ascontiguousarray, .contiguous()), or declare it T.StridedTensor",
                )


def _reason(extent: Any, sizes: Mapping[Var, int], origin: Mapping[Var, str]) -> str:
    if isinstance(extent, Var):
        return f"{extent.name} = {sizes[extent]} from {origin.get(extent, 'the arguments')}"
    return size_text(extent)
