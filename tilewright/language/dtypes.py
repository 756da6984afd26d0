"""Number types as authors write them: objects that equal their name and convert when they are called.

``T.float16 == "float16"``, ``T.float32(x)`` converts a value, ``T.float32x4`` is a short vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.ir import DType, dtypes
from tilewright.libraries import torch

_MADE: dict[DType, NumberType] = {}

_TORCH = {
    "tfloat32": "float32", "int4": "int8", "uint4": "uint8", "float4_e2m1fn": "float4_e2m1fn_x2",
    **dict.fromkeys(dtypes.AS_BYTES, "uint8"),
}  # fmt: skip
"""What tensors of torch carry, where it has no type of the name: two elements a byte, or a code each."""


_WRITTEN = ("inf", "-inf", "nan")
"""Numbers that Python's own literals cannot write: ``T.float32("inf")``."""


class NoTorchType(TilewrightError, ValueError):
    """A number type that torch does not have."""


class NumberType(str):
    """A number type: the text of its name, which also equals NumPy's and torch's type; calling it converts a value.

    Programs use it as the name that it is: ``getattr(torch, T.float16)``, ``{"float16": 2}[T.float16]``,
    ``f"{T.float16}"``.
    """

    __slots__ = ("record",)

    record: DType

    def __new__(cls, name: object) -> NumberType:
        """The type of a name, or of a type of NumPy, torch or Python (one object a type)."""
        if isinstance(name, cls):
            return name
        record = name if isinstance(name, DType) else dtypes.NAMES_ONLY.get(str(name)) or dtypes.dtype(name)
        made = _MADE.get(record)
        if made is None:
            made = _MADE[record] = super().__new__(cls, str(record))
            made.record = record
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return NumberType, (self.name,)

    def __call__(self, *values: object) -> Any:  # a number, or a vector of several
        from tilewright.language.builder import active
        from tilewright.language.conversions import cast
        from tilewright.language.tensors import dynamic
        from tilewright.language.vectors import Vector, vector_of

        if len(values) > 1 or (values and isinstance(values[0], Vector)):
            return vector_of(values, self)
        builder = active()
        if not values and self.is_integer and (builder is None or builder.kernel is None):
            return dynamic("size" if builder is None else builder.take_name("size"), self)  # as in TVM
        value = values[0] if values else 0
        return cast(float(value) if isinstance(value, str) and value in _WRITTEN else value, self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NumberType):
            return self.record == other.record
        if isinstance(other, str) and str.__eq__(self, other):
            return True
        named = isinstance(other, (str, np.dtype)) or type(other).__module__ == "torch"
        if named or (isinstance(other, type) and issubclass(other, np.generic)):
            try:
                return self.record == dtypes.dtype(other)
            except dtypes.UnknownDType:
                return False
        return self.record == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __repr__(self) -> str:
        return f"T.{self.record}"

    def as_torch(self) -> torch.dtype:
        """torch's type for tensors of this one: a byte for each, or two, of the types whose elements share bytes.

        Raises
        ------
        NoTorchType : torch has none.
        """
        found = getattr(torch, _TORCH.get(self.name, self.name), None)
        if not isinstance(found, torch.dtype):
            scalar = self.record.name
            raise NoTorchType(
                f"torch has no type for {self}", hint=f"its elements are {scalar}" if scalar != self else None
            )
        return found

    @property
    def name(self) -> str:
        return str(self.record)

    @property
    def bits(self) -> int:
        """Width of one element: of its code, where that takes a byte for itself."""
        return self.record.code_bits if self.record.bits == 8 else self.record.bits

    @property
    def itemsize(self) -> int:
        """Bytes of one value; of a type whose values share bytes, one."""
        return self.record.nbytes(1)

    @property
    def bytes(self) -> int:
        """The same as `itemsize`."""
        return self.itemsize

    @property
    def lanes(self) -> int:
        return self.record.lanes

    @property
    def is_float(self) -> bool:
        return self.record.is_float

    @property
    def is_integer(self) -> bool:
        return self.record.is_integer

    @property
    def min(self) -> int | float:
        """Smallest finite value."""
        return self.record.minimum

    @property
    def max(self) -> int | float:
        """Largest finite value."""
        return self.record.maximum


dtype = NumberType

_SHORT = ("half", "float", "double", "int", "uint", "long", "ulong", "short", "ushort", "float8_e4m3")

TYPES: dict[str, NumberType] = {name: NumberType(name) for name in (*dtypes.ALL, *_SHORT, *dtypes.NAMES_ONLY)}
"""Every number type that `T` names."""
