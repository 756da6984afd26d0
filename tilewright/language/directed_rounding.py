"""Arithmetic whose result is rounded where the author says: to nearest even, towards zero, up or down (`T.ieee_add` and
its kin).

The result to nearest, and the side of it on which the exact one lies, say what every rounding gives: the result itself,
or its neighbour. That side is the sign of an error which arithmetic of 64 bits knows exactly (T. J. Dekker 1971; S.
Boldo and J.-M. Muller 2011), so that no machine needs instructions of its own for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import ALL, FLOAT32, FLOAT64, DType
from tilewright.language.mistakes import NumberExpected
from tilewright.language.promotion import promote
from tilewright.language.proxies import Scalar, Value, as_expr, frame_of
from tilewright.language.recording import made_word, named

MODES = ("rn", "rz", "ru", "rd")

Sides = tuple[ir.Expr, ir.Expr]
"""A result to nearest in float64, and a number of the sign of what it lacks."""


def _named(value: ir.Expr) -> ir.Expr:
    if isinstance(value, (ir.Var, ir.Const)):
        return value
    return named(value, "part", "a rounded operation")


def _call(name: str, *operands: ir.Expr) -> ir.Expr:
    return ir.Call(operands[0].dtype, name, operands)


def _minus(value: ir.Expr) -> ir.Expr:
    return ir.binary("mul", value, ir.const(-1.0, value.dtype))


def _sum(a: ir.Expr, b: ir.Expr) -> Sides:
    total = _named(ir.binary("add", a, b))
    of_b = _named(ir.binary("sub", total, a))
    of_a = ir.binary("sub", total, of_b)
    return total, _named(ir.binary("add", ir.binary("sub", a, of_a), ir.binary("sub", b, of_b)))


def _product(a: ir.Expr, b: ir.Expr) -> Sides:
    product = _named(ir.binary("mul", a, b))
    return product, _named(_call("fma", a, b, _minus(product)))


def _quotient(a: ir.Expr, b: ir.Expr) -> Sides:
    quotient = _named(ir.binary("div", a, b))
    lacking = _named(_call("fma", _minus(quotient), b, a))
    return quotient, ir.Select(FLOAT64, ir.binary("lt", b, ir.const(0.0, FLOAT64)), _minus(lacking), lacking)


def _fused(a: ir.Expr, b: ir.Expr, c: ir.Expr) -> Sides:
    result = _named(_call("fma", a, b, c))
    high, low = _product(a, b)
    inner, behind = _sum(c, low)
    outer, between = _sum(high, inner)
    return result, ir.binary("add", ir.binary("add", ir.binary("sub", outer, result), between), behind)


def _root(a: ir.Expr) -> Sides:
    root = _named(_call("sqrt", a))
    return root, _call("fma", _minus(root), root, a)


def _rounded(sides: Sides, dtype: DType, mode: str) -> ir.Expr:
    """The result of a type that `mode` asks for."""
    wide, lacking = sides
    nearest = _named(ir.cast(wide, dtype))
    back = ir.cast(nearest, FLOAT64)
    zero = ir.const(0.0, FLOAT64)
    beyond = _named(ir.Select(FLOAT64, ir.binary("eq", wide, back), lacking, ir.binary("sub", wide, back)))
    too_small, too_large = ir.binary("gt", beyond, zero), ir.binary("lt", beyond, zero)
    bits = _named(ir.Reinterpret(ALL[f"int{dtype.bits}"], nearest))
    if mode == "ru":
        return ir.Select(dtype, too_small, _above(nearest, bits), nearest)
    inwards = ir.Reinterpret(dtype, ir.binary("sub", bits, ir.const(1, bits.dtype)))
    outside = ir.Select(ir.dtypes.BOOL, ir.binary("gt", back, zero), too_large, too_small)
    return ir.Select(dtype, ir.binary("and", outside, ir.binary("ne", back, zero)), inwards, nearest)


def _above(value: ir.Expr, bits: ir.Expr) -> ir.Expr:
    """The least number greater than one that is not the greatest."""
    one, zero = ir.const(1, bits.dtype), ir.const(0.0, value.dtype)
    step = ir.Select(bits.dtype, ir.binary("gt", value, zero), ir.binary("add", bits, one), ir.binary("sub", bits, one))
    return ir.Reinterpret(value.dtype, ir.Select(bits.dtype, ir.binary("eq", value, zero), one, step))


OPERATIONS: dict[str, tuple[int, Callable[..., Sides], tuple[int, ...]]] = {
    "ieee_add": (2, _sum, (0, 1)),
    "ieee_sub": (2, lambda a, b: _sum(a, _named(_minus(b))), (0, 1)),
    "ieee_mul": (2, _product, (0,)),
    "ieee_fdiv": (2, _quotient, (0,)),
    "ieee_fmaf": (3, _fused, (0, 2)),
    "ieee_frcp": (1, lambda a: _quotient(ir.const(1.0, FLOAT64), a), (0,)),
    "ieee_fsqrt": (1, _root, ()),
}
"""For each operation how many operands it has, its result and the side of it, and which operands change sign where the
result does."""


def _round_down(name: str, operands: Sequence[ir.Expr], dtype: DType) -> ir.Expr:
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
        wide = [_named(ir.cast(as_expr(value, dtype), FLOAT64)) for value in values]
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


def _nearest(name: str, operands: Sequence[ir.Expr]) -> ir.Expr:
    """As every other operation is rounded."""
    plain = {"ieee_add": "add", "ieee_sub": "sub", "ieee_mul": "mul", "ieee_fdiv": "div"}
    if name in plain:
        return ir.binary(plain[name], *operands)
    if name == "ieee_frcp":
        return ir.binary("div", ir.const(1.0, operands[0].dtype), operands[0])
    return _call({"ieee_fmaf": "fma", "ieee_fsqrt": "sqrt"}[name], *operands)


for _name in OPERATIONS:
    _operation(_name)
