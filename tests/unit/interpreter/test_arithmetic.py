"""Expressions: rounding, wrapping and laziness, against exact arithmetic in Python."""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

import ml_dtypes  # noqa: F401  (registers the carriers)
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright.ops  # noqa: F401  (registers the operators)
from tilewright.interpreter import interpret
from tilewright.interpreter.arithmetic import fused_multiply_add
from tilewright.ir import ALL, DType, dtypes, nodes
from tilewright.ir.nodes import (
    Binary,
    Buffer,
    Call,
    Cast,
    Expr,
    Function,
    Kernel,
    Parallel,
    Reinterpret,
    Store,
    Unary,
    Var,
    const,
    load,
    seq,
)
from tilewright.ops.rounding import round_float

INTEGERS = [record for record in ALL.values() if record.is_integer]
FLOATS = [record for record in ALL.values() if record.is_float]


def evaluate(build: Any, arrays: list[np.ndarray], result: DType, *, names: list[DType], lanes: bool) -> np.ndarray:
    """``build(x, y, ...)`` of the arrays' elements: in a parallel loop, or one by one as scalars."""
    count = arrays[0].size
    inputs = [Buffer(f"x{i}", (count,), dtype) for i, dtype in enumerate(names)]
    output = Buffer("y", (count,), result)
    i = Var(dtypes.INT32, "i")
    body = seq(Store(output, (i,), build(*(load(buffer, i) for buffer in inputs))))
    loop = Parallel((i,), (count,), body) if lanes else nodes.For(i, const(0), const(count), const(1), body)
    thread_vars = (Var(dtypes.INT32, "tx"), Var(dtypes.INT32, "ty"), Var(dtypes.INT32, "tz"))
    kernel = Kernel((Var(dtypes.INT32, "bx"),), (1,), thread_vars, (1, 1, 1), seq(loop))
    function = Function("f", (*inputs, output), seq(kernel), outputs=(output,))
    packed = [dtypes.pack(array, dtype) for array, dtype in zip(arrays, names)]
    (values,) = interpret(function, packed)
    return dtypes.unpack(values, result, count)


def wrapped(value: int, dtype: DType) -> int:
    low = int(dtype.minimum)
    return (value - low) % (1 << dtype.bits) + low


INTEGER_OPERATIONS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "floormod": operator.mod, "and": operator.and_, "or": operator.or_, "xor": operator.xor, "min": min, "max": max,
}  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("lanes", [True, False])
def test_integers_wrap_and_round_down(dtype: DType, lanes: bool) -> None:
    rng = np.random.default_rng(dtype.bits)
    low, high = int(dtype.minimum), int(dtype.maximum)
    edge = [low, high, min(1, high), max(-1, low), low // 2, high // 2]
    values = [*edge, *(int(x) for x in rng.integers(low, high, 6, dtype=dtype.numpy, endpoint=True))]
    pairs = [(x, y) for x in values for y in values]
    a, b = (np.array(column, dtype=dtype.numpy) for column in zip(*pairs))
    for op, exact in INTEGER_OPERATIONS.items():
        got = evaluate(lambda x, y, op=op: Binary(dtype, op, x, y), [a, b], dtype, names=[dtype, dtype], lanes=lanes)
        for (x, y), z in zip(pairs, got.tolist()):
            if y != 0 or op not in ("floordiv", "floormod"):
                assert z == wrapped(exact(x, y), dtype), (op, x, y)
    if dtype.bits >= 4:
        shifts = np.array([y % dtype.bits for _, y in pairs], dtype=dtype.numpy)
        for op, exact in (("shl", operator.lshift), ("shr", operator.rshift)):
            got = evaluate(
                lambda x, y, op=op: Binary(dtype, op, x, y), [a, shifts], dtype, names=[dtype, dtype], lanes=lanes
            )
            assert got.tolist() == [wrapped(exact(x, int(s)), dtype) for (x, _), s in zip(pairs, shifts)]
    for op, exact in (("neg", operator.neg), ("invert", operator.invert)):
        got = evaluate(lambda x, op=op: Unary(dtype, op, x), [a], dtype, names=[dtype], lanes=lanes)
        assert got.tolist() == [wrapped(exact(x), dtype) for x, _ in pairs]
    got = evaluate(lambda x: Call(dtype, "abs", (x,)), [a], dtype, names=[dtype], lanes=lanes)
    assert got.tolist() == [wrapped(abs(x), dtype) for x, _ in pairs]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("lanes", [True, False])
def test_floats_round_once(dtype: DType, lanes: bool) -> None:
    rng = np.random.default_rng(3)
    count = 200 if lanes else 20
    a, b = (round_float(rng.standard_normal(count) * np.exp2(rng.integers(-3, 4, count)), dtype) for _ in range(2))
    for op, exact in (("add", operator.add), ("sub", operator.sub), ("mul", operator.mul), ("div", operator.truediv)):
        got = evaluate(lambda x, y, op=op: Binary(dtype, op, x, y), [a, b], dtype, names=[dtype, dtype], lanes=lanes)
        for x, y, z in zip(a.astype(np.float64), b.astype(np.float64), got.astype(np.float64)):
            if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)) or y == 0:
                continue
            true = exact(Fraction(float(x)), Fraction(float(y)))
            if dtype.name == "float64":
                assert z == float(true)
            else:
                # float64 keeps the direction of what it rounds away: these types are far narrower.
                assert z == float(round_float(np.array([float(true)]), dtype)[0]), (op, x, y)


def test_minimum_and_maximum_ignore_nan() -> None:
    a, b = np.array([1, np.nan, np.nan, 2], np.float32), np.array([np.nan, 3, np.nan, 1], np.float32)
    f32 = dtypes.FLOAT32
    for lanes in (True, False):
        low = evaluate(lambda x, y: Binary(f32, "min", x, y), [a, b], f32, names=[f32, f32], lanes=lanes)
        high = evaluate(lambda x, y: Binary(f32, "max", x, y), [a, b], f32, names=[f32, f32], lanes=lanes)
        np.testing.assert_array_equal(low, [1, 3, np.nan, 1])
        np.testing.assert_array_equal(high, [1, 3, np.nan, 2])


@settings(deadline=None, max_examples=200)
@given(*[st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**60), max_value=2.0**60)] * 3)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    got = float(fused_multiply_add([np.float32(a), np.float32(b), np.float32(c)], dtypes.FLOAT32))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    near = [
        np.float32(got),
        np.nextafter(np.float32(got), np.float32(np.inf)),
        np.nextafter(np.float32(got), np.float32(-np.inf)),
    ]
    distances = [abs(Fraction(float(x)) - exact) for x in near if np.isfinite(x)]
    assert distances[0] == min(distances)
    if distances.count(distances[0]) > 1 and got != 0:
        assert int(np.float32(got).view(np.uint32)) % 2 == 0


def test_fma_where_two_roundings_would_differ() -> None:
    # The product is 1 + 2**-24 exactly halfway; c decides, but is too small for float64's sum to keep.
    a, b, c = np.float32(1 + 2.0**-12), np.float32(1 - 2.0**-12 + 2.0**-23), np.float32(2.0**-80)
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    got = Fraction(float(fused_multiply_add([a, b, c], dtypes.FLOAT32)))
    below = Fraction(float(np.nextafter(np.float32(float(got)), np.float32(0))))
    assert abs(got - exact) < abs(below - exact)
    wide = [np.float64(1 + 2.0**-30), np.float64(1 - 2.0**-30), np.float64(-1.0)]
    assert float(fused_multiply_add(wide, dtypes.FLOAT64)) == -(2.0**-60)


def test_casts_in_both_forms_agree() -> None:
    rng = np.random.default_rng(0)
    for source in ALL.values():
        if source.is_float:
            values = round_float(rng.standard_normal(12) * 50, source)
        else:
            values = rng.integers(int(source.minimum), min(int(source.maximum), 1 << 62), 12, endpoint=True).astype(
                source.numpy
            )
        for target in ALL.values():
            one, many = (
                evaluate(lambda x, t=target: Cast(t, x), [values], target, names=[source], lanes=lanes)
                for lanes in (False, True)
            )
            assert one.tobytes() == many.tobytes(), (source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "uint32"),
        ("int16", "bfloat16"),
        ("uint4", "int4"),
        ("uint8", "float8_e4m3fn"),
        ("int4", "float4_e2m1fn"),
        ("int64", "float64"),
    ],
)
def test_reinterpret_keeps_the_bits(source: str, target: str) -> None:
    a, b = ALL[source], ALL[target]
    codes = np.random.default_rng(0).integers(0, 256, 8 * 16).astype(np.uint8)
    values = dtypes.unpack(codes, a, codes.size * a.per_byte)[:16] if a.is_packed else codes.view(a.numpy)[:16]
    for lanes in (True, False):
        got = evaluate(lambda x: Reinterpret(b, x), [values], b, names=[a], lanes=lanes)
        np.testing.assert_array_equal(dtypes.pack(got, b).view(np.uint8), dtypes.pack(values, a).view(np.uint8))


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "sqrt", "rsqrt", "tanh", "sin", "erf", "floor", "round"])
def test_functions_are_rounded_once(name: str) -> None:
    import math

    exact = {
        "exp": math.exp, "exp2": lambda x: 2.0**x, "log": math.log, "sqrt": math.sqrt, "rsqrt": lambda x: 1 / math.sqrt(x),
        "tanh": math.tanh, "sin": math.sin, "erf": math.erf, "floor": math.floor, "round": round,
    }[name]  # fmt: skip
    for record in (ALL["float32"], ALL["float16"], ALL["bfloat16"]):
        values = round_float(np.abs(np.random.default_rng(0).standard_normal(20)) + 0.01, record)
        expected = round_float(np.array([exact(float(x)) for x in values]), record)
        for lanes in (True, False):
            got = evaluate(lambda x, r=record: Call(r, name, (x,)), [values], record, names=[record], lanes=lanes)
            np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def test_constants_take_their_dtype() -> None:
    def tenth(x: Expr) -> Expr:
        return Binary(ALL["bfloat16"], "add", x, const(0.1, ALL["bfloat16"]))

    got = evaluate(tenth, [np.zeros(1, ALL["bfloat16"].numpy)], ALL["bfloat16"], names=[ALL["bfloat16"]], lanes=False)
    assert float(got[0]) == 0.10009765625


# Lanes against scalars --------------------------------------------------------------------------

INT, REAL, TRUTH = dtypes.INT32, dtypes.FLOAT32, dtypes.BOOL
INPUTS = [INT, INT, REAL, REAL]


@st.composite
def expressions(draw: Any, of: DType, depth: int = 4) -> Any:
    """A function from four loaded values to an expression of dtype `of`; divisors may be zero only unread."""
    if depth == 0:
        if of is TRUTH:
            value = draw(st.booleans())
            return lambda *x: const(value)
        if draw(st.booleans()):
            value = draw(st.integers(-9, 9))
            return lambda *x: const(value if of is INT else value / 4, of)
        which = draw(st.sampled_from([i for i, dtype in enumerate(INPUTS) if dtype is of]))
        return lambda *x: x[which]
    below = lambda dtype: draw(expressions(dtype, depth - 1))  # noqa: E731
    if of is TRUTH:
        kind = draw(st.sampled_from(["lt", "eq", "ge", "all", "any", "not"]))
        if kind == "not":
            a = below(TRUTH)
            return lambda *x: Unary(TRUTH, "not", a(*x))
        dtype = TRUTH if kind in ("all", "any") else draw(st.sampled_from([INT, REAL]))
        a, b = below(dtype), below(dtype)
        return lambda *x: Binary(TRUTH, kind, a(*x), b(*x))
    kind = draw(st.sampled_from(["binary", "select", "cast", "negate"]))
    if kind == "select":
        c, a, b = below(TRUTH), below(of), below(of)
        return lambda *x: nodes.Select(of, c(*x), a(*x), b(*x))
    if kind == "cast":
        a = below(REAL if of is INT else INT)
        return lambda *x: Cast(of, a(*x))
    a, b = below(of), below(of)
    if kind == "negate":
        return lambda *x: Unary(of, "neg", a(*x))
    names = ["add", "sub", "mul", "min", "max"] + (["and", "or", "xor"] if of is INT else [])
    name = draw(st.sampled_from(names))
    return lambda *x: Binary(of, name, a(*x), b(*x))


@settings(deadline=None, max_examples=120)
@given(st.data(), st.sampled_from([INT, REAL]), st.integers(0, 1 << 30))
def test_lanes_and_scalars_agree_bit_by_bit(data: Any, of: DType, seed: int) -> None:
    build = data.draw(expressions(of))
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-(1 << 31), 1 << 31, 6).astype(np.int32) for _ in range(2)]
    arrays += [(rng.standard_normal(6) * 10.0 ** rng.integers(-3, 12, 6)).astype(np.float32) for _ in range(2)]
    many, one = (evaluate(build, arrays, of, names=INPUTS, lanes=lanes) for lanes in (True, False))
    np.testing.assert_array_equal(many.view(np.uint32), one.view(np.uint32))
