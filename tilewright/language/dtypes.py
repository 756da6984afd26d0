"""Number types as authors write them: objects that equal their name and convert when they are called.

``T.float16 == "float16"``, ``T.float32(x)`` converts a value, ``T.float32x4`` is a short vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType


class NumberType:
    """A number type: compares equal to its name, to NumPy's and to torch's type; calling it converts a value."""

    __slots__ = ("record",)

    def __init__(self, record: DType) -> None:
        self.record = record

    def __tilewright_dtype__(self) -> DType:
        return self.record

    def __call__(self, value: Any = 0) -> Any:
        from tilewright.language.math import cast

        return cast(value, self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NumberType):
            return self.record == other.record
        named = isinstance(other, (str, np.dtype)) or type(other).__module__ == "torch"
        if named or (isinstance(other, type) and issubclass(other, np.generic)):
            try:
                return self.record == dtypes.dtype(other)
            except dtypes.UnknownDType:
                return False
        return self.record == other

    def __hash__(self) -> int:
        return hash(str(self.record))

    def __str__(self) -> str:
        return str(self.record)

    def __repr__(self) -> str:
        return f"T.{self.record}"

    @property
    def name(self) -> str:
        return str(self.record)

    @property
    def bits(self) -> int:
        """Width of one element."""
        return self.record.bits

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


_MADE: dict[DType, NumberType] = {}


def number_type(name: object) -> NumberType:
    """The author's object for a name or a record (one object a type).

    Raises
    ------
    UnknownDType : no such type.
    """
    record = dtypes.dtype(name)
    if record not in _MADE:
        _MADE[record] = NumberType(record)
    return _MADE[record]


dtype = number_type

_SHORT = ("half", "float", "double", "int", "uint", "long", "ulong", "short", "ushort", "float8_e4m3")

TYPES: dict[str, NumberType] = {name: number_type(name) for name in (*dtypes.ALL, *_SHORT)}
"""Every number type that `T` names."""
