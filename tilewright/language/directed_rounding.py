"""Arithmetic whose result is rounded where the author says: to nearest even, towards zero, up or down (`T.ieee_add` and
its kin).

The result to nearest, and the side of it on which the exact one lies, say what every rounding gives: the result itself,
or its neighbour. That side is the sign of an error which arithmetic of 64 bits knows exactly (T. J. Dekker 1971; S.
Boldo and J.-M. Muller 2011), so that no machine needs instructions of its own for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from tilewright.ir import nodes
from tilewright.ir.dtypes import ALL, FLOAT32, FLOAT64, DType
from tilewright.ir.nodes import Call, Expr, Var, binary, const
from tilewright.language.builder import named
from tilewright.language.interface import made_word
from tilewright.language.mistakes import NumberExpected
from tilewright.language.promotion import promote
from tilewright.language.proxies import Scalar, Value, as_expr, frame_of

MODES = ("rn", "rz", "ru", "rd")

Sides = tuple[Expr, Expr]
"""A result to nearest in float64, and a number of the sign of what it lacks."""


def _named(value: Expr) -> Expr:
    if isinstance(value, (Var, nodes.Const)):
        return value
    return named(value, "part", "a rounded operation")


def _call(name: str, *operands: Expr) -> Expr:
    return Call(operands[0].dtype, name, operands)


def _minus(value: Expr) -> Expr:
    return binary("mul", value, const(-1.0, value.dtype))


def _sum(a: Expr, b: Expr) -> Sides:
    total = _named(binary("add", a, b))
    of_b = _named(binary("sub", total, a))
    of_a = binary("sub", total, of_b)
    return total, _named(binary("add", binary("sub", a, of_a), binary("sub", b, of_b)))


def _product(a: Expr, b: Expr) -> Sides:
    product = _named(binary("mul", a, b))
    return product, _named(_call("fma", a, b, _minus(product)))


def _quotient(a: Expr, b: Expr) -> Sides:
    quotient = _named(binary("div", a, b))
    lacking = _named(_call("fma", _minus(quotient), b, a))
    return quotient, nodes.Select(FLOAT64, binary("lt", b, const(0.0, FLOAT64)), _minus(lacking), lacking)


def _fused(a: Expr, b: Expr, c: Expr) -> Sides:
    result = _named(_call("fma", a, b, c))
    high, low = _product(a, b)
    inner, behind = _sum(c, low)
    outer, between = _sum(high, inner)
    return result, binary("add", binary("add", binary("sub", outer, result), between), behind)


def _root(a: Expr) -> Sides:
    root = _named(_call("sqrt", a))
    return root, _call("fma", _minus(root), root, a)


def _rounded(sides: Sides, dtype: DType, mode: str) -> Expr:
    """The result of a type that `mode` asks for."""
    wide, lacking = sides
    nearest = _named(nodes.cast(wide, dtype))
    back = nodes.cast(nearest, FLOAT64)
    zero = const(0.0, FLOAT64)
    beyond = _named(nodes.Select(FLOAT64, binary("eq", wide, back), lacking, binary("sub", wide, back)))
    too_small, too_large = binary("gt", beyond, zero), binary("lt", beyond, zero)
    bits = _named(nodes.Reinterpret(ALL[f"int{dtype.bits}"], nearest))
    if mode == "ru":
        return nodes.Select(dtype, too_small, _above(nearest, bits), nearest)
    inwards = nodes.Reinterpret(dtype, binary("sub", bits, const(1, bits.dtype)))
    outside = nodes.Select(nodes.dtypes.BOOL, binary("gt", back, zero), too_large, too_small)
    return nodes.Select(dtype, binary("and", outside, binary("ne", back, zero)), inwards, nearest)


def _above(value: Expr, bits: Expr) -> Expr:
    """The least number greater than one that is not the greatest."""
    one, zero = const(1, bits.dtype), const(0.0, value.dtype)
    step = nodes.Select(bits.dtype, binary("gt", value, zero), binary("add", bits, one), binary("sub", bits, one))
    return nodes.Reinterpret(value.dtype, nodes.Select(bits.dtype, binary("eq", value, zero), one, step))


OPERATIONS: dict[str, tuple[int, Callable[..., Sides], tuple[int, ...]]] = {
    "ieee_add": (2, _sum, (0, 1)),
    "ieee_sub": (2, lambda a, b: _sum(a, _named(_minus(b))), (0, 1)),
    "ieee_mul": (2, _product, (0,)),
    "ieee_fdiv": (2, _quotient, (0,)),
    "ieee_fmaf": (3, _fused, (0, 2)),
    "ieee_frcp": (1, lambda a: _quotient(const(1.0, FLOAT64), a), (0,)),
    "ieee_fsqrt": (1, _root, ()),
}
"""For each operation how many operands it has, its result and the side of it, and which operands change sign where the
result does."""


def _round_down(name: str, operands: Sequence[Expr], dtype: DType) -> Expr:
    """Downwards is upwards with all signs negated."""
    _, sides, negated = OPERATIONS[name]
    if name == "ieee_fsqrt":
        return _rounded(sides(*operands), dtype, "rz")  # a root is not negative
    signed = [_named(_minus(value)) if place in negated else value for place, value in enumerate(operands)]
    return _minus(_rounded(sides(*signed), dtype, "ru"))


def _operation(name: str) -> Callable[..., object]:
    arity, sides, _ = OPERATIONS[name]

    def call(*given: object) -> Value:
        *values, rounding_mode = given
        if rounding_mode not in MODES:
            raise NumberExpected(f"the rounding of T.{name}", ", ".join(map(repr, MODES)), repr(rounding_mode))
        exprs = [as_expr(value, what=f"an operand of T.{name}") for value in values]
        dtype = functools.reduce(promote, (expr.dtype for expr in exprs))
        dtype = dtype if dtype.is_float else FLOAT32
        # A number that is a literal takes the type of the others, as everywhere.
        typed = [one.dtype for one, value in zip(exprs, values, strict=True) if isinstance(value, Scalar)]
        if typed and all(found.is_float for found in typed):
            dtype = functools.reduce(promote, typed)
        wide = [_named(nodes.cast(as_expr(value, dtype), FLOAT64)) for value in values]
        if rounding_mode == "rd":
            made = _round_down(name, wide, dtype)
        elif rounding_mode == "rn":
            made = _nearest(name, [as_expr(value, dtype) for value in values])
        else:
            made = _rounded(sides(*wide), dtype, rounding_mode)
        return Scalar(_named(made), frame_of(*values))

    example = ", ".join(f"{tensor}[i, 0]" for tensor in "ABC"[:arity])
    parameters = {
        ", ".join("xyz"[:arity]): f"the operand{'s' * (arity > 1)}, floats of one type.",
        "rounding_mode": '``"rn"`` to nearest even, ``"rz"`` towards zero, ``"ru"`` up, ``"rd"`` down.',
    }
    meaning = "The operation on floats, rounded as the last argument says."
    return made_word(call, name, meaning, parameters, f'C[i, 0] = T.{name}({example}, "rz")', rounding_mode="rn")


def _nearest(name: str, operands: Sequence[Expr]) -> Expr:
    """As every other operation is rounded."""
    plain = {"ieee_add": "add", "ieee_sub": "sub", "ieee_mul": "mul", "ieee_fdiv": "div"}
    if name in plain:
        return binary(plain[name], *operands)
    if name == "ieee_frcp":
        return binary("div", const(1.0, operands[0].dtype), operands[0])
    return _call({"ieee_fmaf": "fma", "ieee_fsqrt": "sqrt"}[name], *operands)


for _name in OPERATIONS:
    _operation(_name)
