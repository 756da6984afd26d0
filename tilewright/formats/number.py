"""`Format`: what the codes of a weight stand for, as a table from code to value.

Everything else that knows a format (rounding, packing, the reference product, the decoders of kernels) is derived
from this table or tested against it over all codes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from tilewright.errors import InvalidCode, NotRepresentable, WrongArgumentKind
from tilewright.ir.dtypes import DType


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a number in a few bits.

    Attributes
    ----------
    name : unique; formats compare by it.
    bits : width of a code.
    values : value of each of the ``2**bits`` codes (NaN and infinities where a float format has them); empty for
        dense formats of more than 8 bits, whose codes are elements of `dtype`.
    kind : ``"int"``, ``"uint"``, ``"float"`` or ``"codebook"``.
    dtype : the number type of the IR with the same bit patterns, None where there is none.
    unused : codes that stand for nothing and that no weight may hold.
    """

    name: str
    bits: int
    values: tuple[float, ...] = field(repr=False, compare=False)
    kind: str
    dtype: DType | None = field(default=None, repr=False, compare=False)
    unused: tuple[int, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        return self.name

    @property
    def is_dense(self) -> bool:
        """Whether elements are held as they are, in more than 8 bits each."""
        return not self.values

    @property
    def is_integer(self) -> bool:
        """Whether every value is a whole number of at most 8 bits."""
        return bool(self.values) and self.whole_factor == 1

    @property
    def whole_factor(self) -> int | None:
        """The least power of two that makes every value a whole number from -128 to 255, or None."""
        return _whole_factor(self)

    @property
    def carrier(self) -> np.dtype:
        """NumPy type of one unpacked code."""
        if self.is_dense:
            assert self.dtype is not None
            return self.dtype.numpy
        return np.dtype(np.uint8)

    @property
    def table(self) -> np.ndarray:
        """`values` as float64."""
        return _table(self)

    @property
    def minimum(self) -> float:
        """Smallest finite value."""
        return float(self.dtype.minimum) if self.dtype and self.is_dense else float(_finite(self)[0][0])

    @property
    def maximum(self) -> float:
        """Largest finite value."""
        return float(self.dtype.maximum) if self.dtype and self.is_dense else float(_finite(self)[0][-1])

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Between neighbouring values, the largest number that is rounded to the lower one, float64; and the values'
        codes, one more: the code of a number is ``codes[np.searchsorted(limits, number)]``."""
        return _limits(self)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Values of codes, float64, of the same shape.

        Raises
        ------
        InvalidCode : a number that is no code of so many bits.
        """
        if self.is_dense:
            return codes.astype(np.float64)
        if codes.dtype.kind not in "iu":
            raise WrongArgumentKind(f"codes of {self} are {codes.dtype}", hint="codes are whole numbers")
        self._refuse(codes, self._beyond(codes))
        return _table(self)[codes]

    def _beyond(self, codes: np.ndarray) -> np.ndarray:
        """Where a number has more bits than a code."""
        if codes.dtype == np.uint8 and self.bits == 8:
            return np.zeros((1,) * codes.ndim, bool)
        return (codes < 0) | (codes >= 1 << self.bits)

    def _refuse(self, codes: np.ndarray, wrong: np.ndarray) -> None:
        """Name the first code that is wrong.  Raises InvalidCode."""
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            allowed = f"0 to {(1 << self.bits) - 1}"
            allowed += f" without {', '.join(map(str, self.unused))}" if self.unused else ""
            raise InvalidCode(int(codes[place]), place, self.name, allowed)

    def encode(self, values: object) -> np.ndarray:
        """Codes of the nearest values, an even code where two are equally near; what is too large saturates.

        Parameters
        ----------
        values : array of finite floats (NaN is taken where the format has one).

        Raises
        ------
        NotRepresentable : a NaN, and the format has none.
        """
        wide = np.asarray(values, np.float64)
        if self.is_dense:
            return wide.astype(self.carrier)
        if (
            self.kind in ("int", "uint")
            and self.values[:2] == (0.0, 1.0)
            and not self.unused
            and np.isfinite(wide).all()
        ):
            # Whole numbers one apart: rint takes the even one of two, whose code is even too.
            whole = np.rint(wide)
            np.minimum(np.maximum(whole, self.minimum, out=whole), self.maximum, out=whole)
            return whole.astype(np.int16).astype(np.uint8) & np.uint8((1 << self.bits) - 1)
        shape = _float_shape(self)
        found = _search(self, wide) if shape is None else _float_codes(wide, self, *shape)
        missing = np.isnan(wide)
        if missing.any():
            nan = np.flatnonzero(np.isnan(_table(self)) & ~np.isin(np.arange(1 << self.bits), self.unused))
            if not len(nan):
                place = tuple(int(i) for i in np.argwhere(missing)[0])
                raise NotRepresentable("nan", place, self.name, f"{self.minimum:g} to {self.maximum:g}")
            found[missing] = nan[0]
        return found

    def exact(self, values: object) -> np.ndarray:
        """Codes of values that the format has exactly.

        Raises
        ------
        NotRepresentable : a value that it does not have, named with its index; nothing is rounded or cut off.
        """
        wide = np.asarray(values, np.float64)
        if self.is_dense:
            return wide.astype(self.carrier)
        codes = self.encode(np.nan_to_num(wide, nan=0.0))
        wrong = (self.decode(codes) != wide) & ~np.isnan(wide)
        wrong |= np.isnan(wide) & (not np.isnan(self.table).any())
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise NotRepresentable(f"{wide[place]:g}", place, self.name, self.describe_values())
        if np.isnan(wide).any():
            codes = self.encode(wide)
        return codes

    def check(self, codes: np.ndarray) -> None:
        """Every code is one of the format's.

        Raises
        ------
        InvalidCode : names the first that is not, with its index.
        """
        if self.is_dense or not codes.size:
            return
        wrong = self._beyond(codes)
        self._refuse(codes, wrong | np.isin(codes, self.unused) if self.unused else wrong)

    def describe_values(self) -> str:
        """The values in words, for messages."""
        numbers = _finite(self)[0]
        if len(numbers) <= 16 and not (self.kind in ("int", "uint") and len(numbers) > 4):
            return ", ".join(f"{value:g}" for value in numbers)
        whole = "the whole numbers from " if self.kind in ("int", "uint") else "values from "
        return f"{whole}{self.minimum:g} to {self.maximum:g}"


@functools.cache
def _table(of: Format) -> np.ndarray:
    table = np.array(of.values, np.float64)
    table.setflags(write=False)
    return table


@functools.cache
def _finite(of: Format) -> tuple[np.ndarray, np.ndarray]:
    """The finite values, ascending and once each, and the lowest code of each."""
    used = [code for code in range(1 << of.bits) if code not in of.unused and np.isfinite(of.values[code])]
    numbers, first = np.unique(np.array([of.values[code] for code in used]), return_index=True)
    return numbers, np.array(used, np.int64)[first]


FEW = 16
"""Up to so many limits are compared with one after the other, which is faster than a search."""


def _search(of: Format, wide: np.ndarray) -> np.ndarray:
    """Codes of the nearest values, looked up among the limits between them."""
    limits, codes = _limits(of)
    if len(limits) > FEW:
        return codes[np.searchsorted(limits, wide)]
    place = np.zeros(wide.shape, np.uint8)
    for limit in limits:
        place += wide > limit
    return codes[place]


@functools.cache
def _float_shape(of: Format) -> tuple[int, int, int] | None:
    """Bits of mantissa, exponent of the smallest normal number, largest code, of a format with a sign; None for others.

    Its codes count up from 0: numbers of one exponent are equally far apart, those of the next twice as far.
    """
    half = 1 << of.bits - 1
    finite = np.isfinite(of.table[:half])
    last = int(np.argmin(finite)) - 1 if not finite.all() else half - 1
    if of.kind != "float" or of.unused or not finite[: last + 1].all() or last < 2:
        return None
    codes, step = np.arange(last + 1), of.table[1]
    for mantissa in range(1, of.bits - 1):
        normal, rest = codes >> mantissa, codes & (1 << mantissa) - 1
        numbers = np.where(normal > 0, np.ldexp((1 << mantissa) + rest, normal - 1), rest) * step
        if (numbers == of.table[: last + 1]).all() and (-numbers[1:] == of.table[half + 1 : half + last + 1]).all():
            return mantissa, round(np.log2(step)) + mantissa, last
    return None


def _float_codes(wide: np.ndarray, of: Format, mantissa: int, least: int, last: int) -> np.ndarray:
    """Codes of the nearest values of a float format: multiples of the step of their exponent, the even one of two."""
    size = np.minimum(np.abs(wide), of.maximum)
    exponent = np.maximum((size.view(np.int64) >> 52) - 1023, least)
    steps = np.rint(size * ((1023 + mantissa - exponent) << 52).view(np.float64))
    with np.errstate(invalid="ignore"):  # a NaN, whose code is put in behind
        codes = steps.astype(np.int64) + (exponent - least << mantissa)
    codes |= ((wide < 0) & (codes > 0)).astype(np.int64) << of.bits - 1
    return codes.astype(np.uint8)


@functools.cache
def _limits(of: Format) -> tuple[np.ndarray, np.ndarray]:
    """Between neighbouring values, the largest number that is rounded to the lower one; and the values' codes.

    In the middle it is the one whose code is even.
    """
    numbers, codes = _finite(of)
    middle = (numbers[1:] + numbers[:-1]) / 2
    return np.where(codes[1:] % 2 == 0, np.nextafter(middle, -np.inf), middle), codes.astype(np.uint8)


@functools.cache
def _whole_factor(of: Format) -> int | None:
    if of.is_dense:
        return None
    used = np.array([value for code, value in enumerate(of.values) if code not in of.unused])
    if not np.isfinite(used).all():
        return None
    for factor in (1, 2, 4, 8, 16):
        scaled = used * factor
        if (scaled == np.rint(scaled)).all():
            return factor if scaled.min() >= -128 and scaled.max() <= (127 if scaled.min() < 0 else 255) else None
    return None
