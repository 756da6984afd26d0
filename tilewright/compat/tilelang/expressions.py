"""Words of ``tvm.tir`` that the language spells otherwise: constants of a type, and expressions by their classes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import tilewright.language as T
from tilewright.language.dtypes import NumberType
from tilewright.language.proxies import Value, is_number, known_value


def const(value: object, dtype: object = None, span: object = None) -> object:
    """A number of a type; int32 or float32 where none is said."""
    if dtype is None:
        dtype = "float32" if isinstance(value, float) else "int32"
    return NumberType(dtype)(value)


def convert(value: object) -> object:
    """What may stand in an expression: numbers and values as they are."""
    return const(value) if is_number(value) else value


class _Constants(type):
    """Classes of numbers that the program knows: calling one makes a number of a type."""

    kinds: tuple[type, ...]

    def __call__(cls, dtype: object, value: object, span: object = None) -> object:
        return const(value, dtype)

    def __instancecheck__(cls, instance: object) -> bool:
        known = known_value(instance)
        return isinstance(known, cls.kinds) and not isinstance(known, bool)


class IntImm(metaclass=_Constants):
    """Integers."""

    kinds = (int,)


class FloatImm(metaclass=_Constants):
    """Floats."""

    kinds = (float,)


def Not(value: Value, span: object = None) -> object:
    """Whether a condition does not hold."""
    return T.if_then_else(value, T.bool(False), T.bool(True))  # type: ignore[operator]


def _folded(one: Callable[[Value, Value], object]) -> Callable[..., object]:
    return lambda *conditions, span=None: functools.reduce(one, conditions)


def _both(a: Value, b: Value) -> object:
    return T.if_then_else(a, T.Cast("bool", b), T.bool(False))  # type: ignore[operator]


def _either(a: Value, b: Value) -> object:
    return T.if_then_else(a, T.bool(True), T.Cast("bool", b))  # type: ignore[operator]


all, any = _folded(_both), _folded(_either)
And, Or = all, any
Add, Sub, Mul, Div = operator.add, operator.sub, operator.mul, T.truncdiv
FloorDiv, FloorMod, Mod, Min, Max = T.floordiv, T.floormod, T.truncmod, T.min, T.max
EQ, NE, LT, LE, GT, GE = operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge
indexdiv, indexmod, Evaluate, Broadcast = T.floordiv, T.floormod, T.evaluate, T.Broadcast

_NAMES = "Add And Div EQ FloatImm FloorDiv FloorMod GE GT IntImm LE LT Max Min Mod Mul NE Not Or Sub"
WORDS: dict[str, object] = {name: globals()[name] for name in _NAMES.split()}
"""Those that programs write as words of ``T``, where TileLang had them until 0.1.13."""
