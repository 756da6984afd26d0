"""Number types as data: one record a type, and how values of it are carried by NumPy.

A type is described by its bits alone, so that every room (interpreter, simplifier, emitters, packers)
derives what it needs from the same record.  Types of fewer than eight bits are stored packed, low bits
first, along the last dimension; in the interpreter a sub-byte integer travels as one ``int8`` or
``uint8`` an element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from tilewright.errors import OutOfRange, UnknownDType, WrongArgumentDType, WrongArgumentShape


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """A scalar number type, or a short vector of one (``lanes`` > 1, thread programs only): one object a type.

    Attributes
    ----------
    name : the type's canonical name without lanes, as in NumPy and PyTorch (``"float8_e4m3fn"``).
    kind : ``"bool"``, ``"int"``, ``"uint"`` or ``"float"``.
    bits : width of one element in storage (``tfloat32`` is stored in 32 bits, ``float6_e2m3fn`` in 8).
    exponent_bits, mantissa_bits, bias : the layout of a float; zero for integers.
    infinities, nans : whether the float format has them.
    carrier : NumPy type name that holds one unpacked element.
    lanes : elements in a vector of this type.
    """

    name: str
    kind: str
    bits: int
    exponent_bits: int = 0
    mantissa_bits: int = 0
    bias: int = 0
    infinities: bool = False
    nans: bool = False
    carrier: str = ""
    lanes: int = 1

    def __reduce__(self) -> tuple[Callable[[str, int], DType], tuple[str, int]]:
        return of_lanes, (self.name, self.lanes)

    def __str__(self) -> str:
        return self.name if self.lanes == 1 else f"{self.name}x{self.lanes}"

    def __repr__(self) -> str:
        return f"<{self}>"

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    @property
    def is_packed(self) -> bool:
        """True where several elements share a byte."""
        return self.bits < 8 and self.kind != "bool"

    @property
    def per_byte(self) -> int:
        """Elements that share one byte (1 for types of eight bits and more)."""
        return 8 // self.bits if self.is_packed else 1

    @property
    def stored_bits(self) -> int:
        """Bits that an element takes in memory: those of its values, but a byte for a truth."""
        return 8 if self.kind == "bool" else self.bits

    @property
    def code_bits(self) -> int:
        """Bits of a value's code where they are fewer than those that it is stored in: 6 of ``float6_e2m3fn``."""
        return min(self.bits, 1 + self.exponent_bits + self.mantissa_bits) if self.is_float else self.bits

    @property
    def storage_bytes(self) -> int:
        """Bytes of one element; only for types that are not packed."""
        if self.is_packed:
            raise ValueError(f"{self.name} elements share bytes: use nbytes(count)")
        return max(self.bits, 8) // 8

    def nbytes(self, count: int) -> int:
        """Bytes of `count` consecutive elements, rounded up to whole bytes."""
        return (count * self.lanes * self.stored_bits + 7) // 8

    @property
    def numpy(self) -> np.dtype:
        """NumPy type that carries one unpacked element."""
        return _carrier(self.carrier)

    @property
    def scalar(self) -> DType:
        return self if self.lanes == 1 else of_lanes(self.name, 1)

    def with_lanes(self, lanes: int) -> DType:
        return self if self.lanes == lanes else of_lanes(self.name, lanes)

    def holds(self, value: float) -> bool:
        """Whether a float of this type is exactly `value`: a literal of `float16` may be written 0.1, which is none."""
        if not np.isfinite(value):
            return True
        with np.errstate(all="ignore"):
            carried = float(np.float64(value).astype(self.numpy))
        return carried == value and math.ldexp(math.frexp(value)[0], self.mantissa_bits + 1).is_integer()

    def contains(self, other: DType) -> bool:
        """Whether this type has every finite number of another one.

        Examples
        --------
        >>> half = ALL["float16"]
        >>> half.contains(ALL["float8_e5m2"]), half.contains(ALL["bfloat16"]), ALL["bfloat16"].contains(ALL["uint8"])
        (True, False, True)
        """
        if other.kind == "bool":
            return True
        if not self.minimum <= other.minimum <= other.maximum <= self.maximum or (other.is_float and self.is_integer):
            return False
        if other.is_integer:
            return self.is_integer or other.bits - (other.kind == "int") <= self.mantissa_bits + 1
        return self.mantissa_bits >= other.mantissa_bits and self.least <= other.least

    @property
    def least(self) -> float:
        """The least positive number of a float."""
        return float(self.minimum) if self.minimum > 0 else math.ldexp(1.0, 1 - self.bias - self.mantissa_bits)

    @property
    @functools.cache  # noqa: B019 - there are few types, and they stay
    def minimum(self) -> int | float:
        """Smallest finite value."""
        if self.kind == "bool":
            return 0
        if self.is_integer:
            return -(1 << (self.bits - 1)) if self.kind == "int" else 0
        return float(ml_dtypes.finfo(self.numpy).min)

    @property
    @functools.cache  # noqa: B019
    def maximum(self) -> int | float:
        """Largest finite value."""
        if self.kind == "bool":
            return 1
        if self.is_integer:
            return (1 << (self.bits - (self.kind == "int"))) - 1
        return float(ml_dtypes.finfo(self.numpy).max)


def of_lanes(name: str, lanes: int) -> DType:
    """The one object of a scalar type's vector."""
    record = _RECORDS.get((name, lanes))
    return record or _RECORDS.setdefault((name, lanes), replace(_RECORDS[name, 1], lanes=lanes))


@functools.cache
def _carrier(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def _integers() -> list[DType]:
    records = []
    for bits in (1, 2, 4, 8, 16, 32, 64):
        for kind in ("int", "uint"):
            records.append(DType(f"{kind}{bits}", kind, bits, carrier=f"{kind}{max(bits, 8)}"))
    return records


_FLOATS = [
    #     name             kind     bits  e   m   bias  inf    nan    carrier
    DType("float16", "float", 16, 5, 10, 15, True, True, "float16"),
    DType("bfloat16", "float", 16, 8, 7, 127, True, True, "bfloat16"),
    # Stored as float32; the ten low mantissa bits that the matrix units ignore are rounded away by a cast.
    DType("tfloat32", "float", 32, 8, 10, 127, True, True, "float32"),
    DType("float32", "float", 32, 8, 23, 127, True, True, "float32"),
    DType("float64", "float", 64, 11, 52, 1023, True, True, "float64"),
    DType("float8_e4m3fn", "float", 8, 4, 3, 7, False, True, "float8_e4m3fn"),
    DType("float8_e4m3fnuz", "float", 8, 4, 3, 8, False, True, "float8_e4m3fnuz"),
    DType("float8_e5m2", "float", 8, 5, 2, 15, True, True, "float8_e5m2"),
    DType("float8_e5m2fnuz", "float", 8, 5, 2, 16, False, True, "float8_e5m2fnuz"),
    DType("float8_e8m0fnu", "float", 8, 8, 0, 127, False, True, "float8_e8m0fnu"),
    DType("float8_e4m3b11fnuz", "float", 8, 4, 3, 11, False, True, "float8_e4m3b11fnuz"),
    # Codes of six bits take a byte each.
    DType("float6_e2m3fn", "float", 8, 2, 3, 1, False, False, "float6_e2m3fn"),
    DType("float6_e3m2fn", "float", 8, 3, 2, 3, False, False, "float6_e3m2fn"),
    DType("float4_e2m1fn", "float", 4, 2, 1, 1, False, False, "float4_e2m1fn"),
]

_ALIASES = {
    "half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32",
    "double": "float64", "fp64": "float64", "tf32": "tfloat32", "int": "int32", "uint": "uint32",
    "short": "int16", "ushort": "uint16", "long": "int64", "ulong": "uint64", "char": "int8",
    "uchar": "uint8", "boolean": "bool", "bool_": "bool",
    "float8_e4m3": "float8_e4m3fn", "e4m3": "float8_e4m3fn", "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz", "e4m3_float8": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "e5m2fnuz": "float8_e5m2fnuz", "e5m2_float8": "float8_e5m2",
    "e8m0": "float8_e8m0fnu", "e8m0fnu": "float8_e8m0fnu",
    "e4m3b11fnuz": "float8_e4m3b11fnuz", "e2m3": "float6_e2m3fn", "e2m3fn": "float6_e2m3fn",
    "fp6_e2m3": "float6_e2m3fn",
    "e3m2": "float6_e3m2fn", "e3m2fn": "float6_e3m2fn", "fp6_e3m2": "float6_e3m2fn",
    "e2m1": "float4_e2m1fn", "e2m1fn": "float4_e2m1fn", "fp4_e2m1": "float4_e2m1fn",
}  # fmt: skip

BOOL = DType("bool", "bool", 1, carrier="bool")
ALL: dict[str, DType] = {record.name: record for record in (BOOL, *_integers(), *_FLOATS)}

NAMES_ONLY: dict[str, DType] = {
    record.name: record for record in (DType("float8_e3m4", "float", 8, 3, 4, 3, True, True, "float8_e3m4"),)
}
"""Types that other programs mention, and that nothing here computes with: the language has their names, `dtype` refuses
them."""

_RECORDS = {(name, 1): record for name, record in (ALL | NAMES_ONLY).items()}

AS_BYTES = frozenset({"float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn"})
"""Types that torch has no word for: its tensors hold their codes as uint8."""

INT8, INT32, INT64 = ALL["int8"], ALL["int32"], ALL["int64"]
UINT8, UINT32, UINT64 = ALL["uint8"], ALL["uint32"], ALL["uint64"]
FLOAT16, BFLOAT16 = ALL["float16"], ALL["bfloat16"]
FLOAT32, FLOAT64 = ALL["float32"], ALL["float64"]

_PYTHON: dict[type, DType] = {bool: BOOL, int: INT32, float: FLOAT32}


def dtype(name: object) -> DType:
    """The record for a name, an alias, a NumPy type or a torch type.

    Examples
    --------
    >>> dtype("bf16"), dtype(np.float32), dtype("float32x4").lanes
    (<bfloat16>, <float32>, 4)

    Raises
    ------
    UnknownDType : no such type; the message lists near names.
    """
    if isinstance(name, DType):
        return name
    if isinstance(name, str):
        found = _lookup(name)
        if found is not None:
            return found
    elif type(name).__module__ == "torch":
        found = _lookup(str(name).removeprefix("torch."))
        if found is not None:
            return found
    elif isinstance(name, type) and name in _PYTHON:  # not NumPy's dtypes, which compare equal to these
        return _PYTHON[name]
    elif name is not None:  # which NumPy takes for float64
        try:
            found = _lookup(np.dtype(name).name)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            found = None
        if found is not None:
            return found
    is_known = isinstance(name, str) and name in NAMES_ONLY
    raise UnknownDType(name, sorted(ALL), "nothing here computes with it" if is_known else None)


@functools.cache
def _lookup(name: str) -> DType | None:
    name = _ALIASES.get(name, name)
    if name in ALL:
        return ALL[name]
    base, x, lanes = name.rpartition("x")
    base = _ALIASES.get(base, base)
    if x and lanes.isdigit() and base in ALL:
        return ALL[base].with_lanes(int(lanes))
    return None


def pack(values: np.ndarray, to: DType | str) -> np.ndarray:
    """Pack unpacked elements along the last dimension, low bits first; a tail byte is filled with zeros.

    Parameters
    ----------
    values : array of ``to.numpy`` (or any integers in range), shape ``[..., n]``.
    to : a dtype or its name.

    Returns
    -------
    uint8 array of shape ``[..., ceil(n / per_byte)]``; `values` itself viewed unchanged for types of
    eight bits and more.

    Raises
    ------
    OutOfRange : a number that the integer type does not have; nothing is cut off silently.
    WrongArgumentDType : numbers of another type for a float type.
    """
    to, values = dtype(to), np.asarray(values)
    if not to.is_packed:
        return values
    if to.is_integer:
        _check_range(values, to)
    elif values.dtype != to.numpy:
        raise WrongArgumentDType(f"values of {values.dtype} were given for {to.name}", hint="convert them: .astype")
    codes = values.view(np.uint8) if to.is_float else values.astype(np.int64).astype(np.uint8)
    codes = codes & np.uint8((1 << to.bits) - 1)
    tail = -codes.shape[-1] % to.per_byte
    if tail:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], tail), np.uint8)], axis=-1)
    codes = codes.reshape(*codes.shape[:-1], codes.shape[-1] // to.per_byte, to.per_byte)
    shifts = np.arange(to.per_byte, dtype=np.uint8) * np.uint8(to.bits)
    return np.bitwise_or.reduce(codes << shifts, axis=-1).astype(np.uint8)


def _check_range(values: np.ndarray, to: DType) -> None:
    """Raise OutOfRange for the first number that an integer type does not have."""
    if values.size and not to.minimum <= values.min() <= values.max() <= to.maximum:
        wrong = ~((values >= to.minimum) & (values <= to.maximum))
    elif values.dtype.kind == "f":
        wrong = values != np.rint(values)
    else:
        return
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise OutOfRange(values[place], place, to.name, (to.minimum, to.maximum))


def unpack(packed: np.ndarray, of: DType | str, count: int) -> np.ndarray:
    """Inverse of `pack`: `count` elements along the last dimension, as ``of.numpy``.

    Raises
    ------
    WrongArgumentShape, WrongArgumentDType : packed elements are bytes, and at least so many.
    """
    of = dtype(of)
    if not of.is_packed:
        return packed
    if packed.dtype.itemsize != 1:
        raise WrongArgumentDType(f"packed {of.name} is given as {packed.dtype}, expected uint8")
    if not 0 <= count <= packed.shape[-1] * of.per_byte:
        raise WrongArgumentShape(f"{packed.shape[-1]} bytes do not hold {count} elements of {of.name}")
    shifts = np.arange(of.per_byte, dtype=np.uint8) * np.uint8(of.bits)
    codes = (packed.view(np.uint8)[..., None] >> shifts) & np.uint8((1 << of.bits) - 1)
    codes = codes.reshape(*packed.shape[:-1], packed.shape[-1] * of.per_byte)[..., :count]
    if of.is_float:
        return np.ascontiguousarray(codes).view(of.numpy)
    if of.kind == "int":
        unused = np.uint8(8 - of.bits)
        return (codes << unused).view(np.int8) >> np.int8(unused)
    return codes
