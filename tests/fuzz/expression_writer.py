"""Random expressions on elements, whose meaning is the same in every order of evaluation and on every machine.

Integers take any value; those of 32 and 64 bits with a sign are kept within their range, since the language says nothing of
what goes beyond it.  Floats are either whole numbers that their type holds exactly, or anything at all: then they are
only moved, compared, converted and asked for what they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tilewright.ir import ALL, INTRINSICS

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
NUMBERS = (*SIGNED, *UNSIGNED, *FLOATS)

WHOLE = ("floor", "ceil", "trunc", "round", "abs")
"""Functions that leave whole numbers as they are, but for the sign."""


def exact(dtype: str) -> float:
    """The largest whole number up to which a type holds all: what sums may reach."""
    record = ALL[dtype]
    if record.is_float:
        return min(2.0 ** (record.mantissa_bits + 1), float(record.maximum))
    return float(record.maximum)


def wraps(dtype: str) -> bool:
    """Whether arithmetic beyond a type's range has a meaning."""
    return ALL[dtype].is_integer and dtype not in ("int32", "int64")


class Value(NamedTuple):
    """An expression: its text, its type, and the range of its numbers; no range for floats that may be anything."""

    text: str
    dtype: str
    range: tuple[float, float] | None

    @property
    def bound(self) -> float | None:
        return None if self.range is None else max(abs(self.range[0]), abs(self.range[1]))


Leaf = Callable[[], Value]


def whole_range(dtype: str) -> tuple[float, float]:
    record = ALL[dtype]
    return (int(record.minimum), int(record.maximum)) if not record.is_float else (-exact(dtype), exact(dtype))


class ExpressionWriter:
    """Writes expressions over leaves that its owner offers: elements, indices, scalars."""

    def __init__(self, chooser: random.Random, leaves: Sequence[Leaf], note: Callable[..., None]) -> None:
        self.random, self.leaves, self.note = chooser, leaves, note
        self.signs = 0.0
        """How often a sign stands before another one."""

    def value(self, dtype: str, depth: int) -> Value:
        """An expression of a type."""
        if depth <= 0 or self.random.random() < 0.12:
            return self.cast(self._leaf(dtype), dtype)
        if ALL[dtype].kind == "bool":
            return self.condition(depth - 1)
        if ALL[dtype].is_integer:
            return self._integer(dtype, depth - 1)
        return self._float(dtype, depth - 1)

    def _leaf(self, dtype: str) -> Value:
        if self.leaves and self.random.random() < 0.85:
            return self.random.choice(self.leaves)()
        record = ALL[dtype]
        if record.is_integer:
            number = self.random.choice((0, 1, 2, 3, 5, -1, int(record.maximum), int(record.minimum), 7))
            number = max(int(record.minimum), min(number, int(record.maximum)))
        else:
            number = self.random.choice((0, 1, 2, 3, -1, -2))
        return Value(f'T.cast({number}, "{dtype}")', dtype, (number, number))

    def cast(self, value: Value, dtype: str) -> Value:
        """Converted, where it is of another type: integers wrap, floats saturate on the way to integers."""
        if value.dtype == dtype:
            return value
        record, source = ALL[dtype], ALL[value.dtype]
        text = f'T.cast({value.text}, "{dtype}")'
        if record.kind == "bool":
            return Value(text, dtype, (0, 1))
        if record.is_integer:
            low, high = whole_range(dtype)
            if value.range is not None and low <= value.range[0] and value.range[1] <= high:
                return Value(text, dtype, value.range)
            return Value(text, dtype, (low, high))
        if value.range is None:
            return Value(text, dtype, None)
        if value.bound is not None and value.bound <= exact(dtype):
            return Value(text, dtype, value.range)
        if value.bound is not None and value.bound < float(record.maximum) / 2:  # rounded, to a whole number
            return Value(text, dtype, (value.range[0] * 1.2 - 1, value.range[1] * 1.2 + 1))
        del source
        return Value(text, dtype, None)

    def _pair(self, dtype: str, depth: int) -> tuple[Value, Value]:
        """What two operands are: as often as not whole elements, whose least and greatest numbers meet as they are."""
        if self.random.random() < 0.4:
            return self.value(dtype, 0), self.value(dtype, 0)
        return self.value(dtype, depth), self.value(dtype, self.random.randint(0, max(depth, 0)))

    def condition(self, depth: int) -> Value:
        """Something that holds or does not."""
        pick = self.random.choice
        if depth > 0 and self.random.random() < 0.3:
            a, b = self.condition(depth - 1), self.condition(depth - 1)
            return Value(f"({a.text} {pick(('and', 'or'))} {b.text})", "bool", (0, 1))
        dtype = pick(NUMBERS)
        if ALL[dtype].is_float and self.random.random() < 0.3:
            name = pick(("isnan", "isinf", "isfinite"))
            self.note("function", name, dtype)
            return Value(f"T.{name}({self.value(dtype, depth).text})", "bool", (0, 1))
        a, b = self._pair(dtype, depth)
        word = pick(("<", "<=", ">", ">=", "==", "!="))
        self.note("function", word, dtype)
        return Value(f"({a.text} {word} {b.text})", "bool", (0, 1))

    def choice(self, dtype: str, depth: int) -> Value:
        """One of two values."""
        a, b = self._pair(dtype, depth)
        held = (
            None if a.range is None or b.range is None else (min(a.range[0], b.range[0]), max(a.range[1], b.range[1]))
        )
        self.note("function", "if_then_else", dtype)
        return Value(f"T.if_then_else({self.condition(depth - 1).text}, {a.text}, {b.text})", dtype, held)

    def extreme(self, dtype: str, depth: int) -> Value:
        """The greater or the smaller of two; a zero has no sign here."""
        a, b = self._pair(dtype, depth)
        word = self.random.choice(("max", "min"))
        self.note("function", word, dtype)
        fold = max if word == "max" else min
        held = None
        if a.range is not None and b.range is not None:
            held = (fold(a.range[0], b.range[0]), fold(a.range[1], b.range[1]))
        return Value(f"T.{word}({a.text}, {b.text})", dtype, held)

    # Integers --------------------------------------------------------------------------------------

    def _integer(self, dtype: str, depth: int) -> Value:
        ways = [
            self._sum, self._sum, self._division, self._bits, self._shift, self._unary, self._unary, self.choice, self.extreme,
            self._converted, self._reinterpreted,
        ]  # fmt: skip
        return self.random.choice(ways)(dtype, depth)

    def _fits(self, dtype: str, low: float, high: float) -> tuple[float, float] | None:
        """The range of a result, None where the language says nothing of it."""
        least, most = whole_range(dtype)
        if least <= low and high <= most:
            return (low, high)
        return (least, most) if wraps(dtype) else None

    def _sum(self, dtype: str, depth: int) -> Value:
        a, b = self._pair(dtype, depth)
        word = self.random.choice("+-*")
        held = _arithmetic(word, a, b)
        fits = held and self._fits(dtype, *held)
        if not fits:
            return a
        self.note("function", word, dtype)
        return Value(f"({a.text} {word} {b.text})", dtype, fits)

    def _division(self, dtype: str, depth: int) -> Value:
        a, b = self._pair(dtype, depth)
        word = self.random.choice(("//", "%"))
        low, high = whole_range(dtype)
        if self.random.random() < 0.5:
            chosen = self.random.choice([2, 3, 7, 8, *([-1, -1, -3] if ALL[dtype].is_signed else [])])
            b = Value(f'T.cast({chosen}, "{dtype}")', dtype, (chosen, chosen))
        else:
            b = Value(f'({b.text} | T.cast(1, "{dtype}"))', dtype, (low, high))
        assert a.range is not None and b.range is not None
        if word == "//" and a.range[0] == low < 0 and b.range[0] <= -1 <= b.range[1] and not wraps(dtype):
            word = "%"
        self.note("function", word, dtype)
        return Value(f"({a.text} {word} {b.text})", dtype, (low, high))

    def _bits(self, dtype: str, depth: int) -> Value:
        a, b = self._pair(dtype, depth)
        word = self.random.choice("&|^")
        self.note("function", word, dtype)
        return Value(f"({a.text} {word} {b.text})", dtype, whole_range(dtype))

    def _shift(self, dtype: str, depth: int) -> Value:
        a = self.value(dtype, depth)
        bits = ALL[dtype].bits
        by = f'T.cast({self.random.randrange(bits)}, "{dtype}")'
        if self.random.random() < 0.5:
            by = f'({self.value(dtype, 0).text} & T.cast({bits - 1}, "{dtype}"))'
        word = "<<" if wraps(dtype) and self.random.random() < 0.5 else ">>"
        self.note("function", word, dtype)
        return Value(f"({a.text} {word} {by})", dtype, whole_range(dtype))

    def _unary(self, dtype: str, depth: int) -> Value:
        a = self._unary(dtype, depth) if self.signs and self.random.random() < self.signs else self.value(dtype, depth)
        assert a.range is not None
        low, high = a.range
        word = self.random.choice(("-", "~", "abs", "popcount"))
        self.note("function", word if word != "-" else "neg", dtype)
        if word == "~":
            return Value(f"(~{a.text})", dtype, whole_range(dtype))
        if word == "popcount":
            return Value(f"T.popcount({a.text})", dtype, (0, ALL[dtype].bits))
        if word == "-":
            fits = self._fits(dtype, -high, -low)
            return Value(f"(-{a.text})", dtype, fits) if fits else a
        fits = self._fits(dtype, 0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high)))
        return Value(f"T.abs({a.text})", dtype, fits) if fits else a

    def _converted(self, dtype: str, depth: int) -> Value:
        source = self.random.choice(NUMBERS)
        self.note("cast", source, dtype)
        return self.cast(self.value(source, depth), dtype)

    def _reinterpreted(self, dtype: str, depth: int) -> Value:
        others = [name for name in NUMBERS if ALL[name].bits == ALL[dtype].bits and name != dtype]
        source = self.random.choice(others)
        if ALL[source].is_float:  # the bits of a NaN are a machine's own, unless they were only moved
            source = next(name for name in others if ALL[name].is_integer)
        self.note("reinterpret", source, dtype)
        held = None if ALL[dtype].is_float else whole_range(dtype)
        return Value(f'T.reinterpret({self.value(source, depth).text}, "{dtype}")', dtype, held)

    # Floats ----------------------------------------------------------------------------------------

    def _float(self, dtype: str, depth: int) -> Value:
        ways = [
            self._float_sum, self._float_sum, self._float_unary, self._float_unary, self.choice, self.extreme, self._converted,
            self._reinterpreted, self._reinterpreted,
        ]  # fmt: skip
        return self.random.choice(ways)(dtype, depth)

    def _float_sum(self, dtype: str, depth: int) -> Value:
        a, b = self._pair(dtype, depth)
        word = self.random.choice("+-*")
        held = _arithmetic(word, a, b)
        if held is None or max(abs(held[0]), abs(held[1])) > exact(dtype):
            return a
        self.note("function", word, dtype)
        return Value(f"({a.text} {word} {b.text})", dtype, held)

    def _float_unary(self, dtype: str, depth: int) -> Value:
        a = (
            self._float_unary(dtype, depth)
            if self.signs and self.random.random() < self.signs
            else self.value(dtype, depth)
        )
        word = self.random.choice(("-", *WHOLE))
        self.note("function", word, dtype)
        if word == "-":
            return Value(f"(-{a.text})", dtype, a.range and (-a.range[1], -a.range[0]))
        held = a.range if word != "abs" else a.range and (0, max(abs(a.range[0]), abs(a.range[1])))
        return Value(f"T.{word}({a.text})", dtype, held)

    def near(self, dtype: str, depth: int) -> Value:
        """A function that machines have to a place or two, of a small number that is no whole one."""
        name = self.random.choice([one for one, record in INTRINSICS.items() if record.floats_only and record.pure])
        self.note("function", name, dtype)
        a = self.cast(self.value("int8", depth), dtype)
        place = f'(T.cast({a.text}, "float32") * T.cast(0.0078125, "float32"))'
        inside = f'T.cast({place} * {place} + T.cast(0.125, "float32"), "{dtype}")'
        return Value(f"T.{name}({', '.join([inside] * (INTRINSICS[name].arity or 1))})", dtype, None)


def _arithmetic(word: str, a: Value, b: Value) -> tuple[float, float] | None:
    """The range of a sum, a difference or a product."""
    if a.range is None or b.range is None:
        return None
    (low, high), (least, most) = a.range, b.range
    if word == "+":
        return (low + least, high + most)
    if word == "-":
        return (low - most, high - least)
    corners = [low * least, low * most, high * least, high * most]
    return (min(corners), max(corners))
