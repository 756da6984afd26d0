"""Every operation on every number type: the interpreter's numbers from the CPU, and from texts for every maker's GPU in the emulator.

Operands are all values of types of 8 bits and the edges of wider ones; one kernel has all operations of a type.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import MissingCapability
from tilewright.interpreter import interpret
from tilewright.ir.dtypes import ALL, dtype
from tilewright.targets.cuda.compiler import compile_text

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = [
    "float16", "bfloat16", "tfloat32", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn",
]  # fmt: skip
TARGETS = ["cpu", "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7"]

UNARY: dict[str, Callable[[Any], Any]] = {
    "negative": lambda x: -x, "absolute": T.abs, "square": lambda x: x * x,
    "chosen": lambda x: T.if_then_else(-x < x, x, x + x), "isnan": T.isnan, "isinf": T.isinf, "isfinite": T.isfinite,
}  # fmt: skip
UNARY_INTEGERS: dict[str, Callable[[Any], Any]] = {
    "inverted": lambda x: ~x, "popcount": T.popcount, "inverse shifted": lambda x: (~x) >> 1,
    "negative divided": lambda x: (-x) // 3, "negative modulo": lambda x: (-x) % 5,
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "min": T.min, "max": T.max,
    "less": lambda a, b: a < b, "equal": lambda a, b: a == b,
    "condition chosen": lambda a, b: T.if_then_else(a < b, a > 0, b > 1),
}  # fmt: skip
BINARY_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "floordiv": lambda a, b: a // b, "modulo": lambda a, b: a % b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "left": lambda a, b: a << (b & 3), "right": lambda a, b: a >> (b & 3),
    "constant left": lambda a, b: T.cast(5, a.dtype) << (b & 3), "sum divided": lambda a, b: (a + b) // 7,
    "difference shifted": lambda a, b: (a - b) >> 1,
}  # fmt: skip


SIGNALLING = {"float16": (np.uint16, 0x7D00), "bfloat16": (np.uint16, 0x7FA0), "float32": (np.uint32, 0x7FA00000),
              "float64": (np.uint64, 0x7FF4 << 48)}  # fmt: skip


def signalling(name: str) -> list[Any]:
    """The type's signalling NaN, to which machines' own instructions and NumPy's give different answers."""
    return [kind(bits).view(dtype(name).numpy) for kind, bits in [SIGNALLING[name]]] if name in SIGNALLING else []


def edges(name: str, most: int = 64) -> np.ndarray:
    of = dtype(name)
    if of.is_float:
        values = [-np.inf, np.inf, np.nan, -0.0, 0.0, 1.5, -2.25, 3.0, 0.125, -1.0, 100.0, -7.0]
        return np.array([*np.array(values).astype(of.numpy), *signalling(name)], of.numpy)
    low, high = int(of.minimum), int(of.maximum)
    if of.bits == 8 and most >= 256:
        return np.arange(low, high + 1).astype(of.numpy)
    return np.array(
        [low, low + 1, -2 if low else 2, -1 if low else 1, 0, 1, 2, 3, 7, high // 2, high - 1, high], of.numpy
    )


def unary(name: str) -> tuple[Any, list[np.ndarray], list[str]]:
    """All operations of one operand, each a row of the result, as the type itself."""
    operations = {**UNARY, **(UNARY_INTEGERS if dtype(name).is_integer else {})}
    values = edges(name, 256)
    count, functions = len(values), list(operations.values())

    @T.prim_func
    def program(A: T.Tensor((count,), name), O: T.Tensor((len(functions), count), name)):
        with T.Kernel(1, threads=32):
            for row, operation in enumerate(functions):
                for i in T.Parallel(count):
                    O[row, i] = T.cast(operation(A[i]), name)

    return program, [values, np.zeros((len(functions), count), values.dtype)], list(operations)


def binary(name: str) -> tuple[Any, list[np.ndarray], list[str]]:
    """All operations of two operands, on all pairs of edges, divisors of zero included."""
    operations = {**BINARY, **(BINARY_INTEGERS if dtype(name).is_integer else {})}
    values = edges(name)
    left, right = (np.array(part, values.dtype) for part in zip(*itertools.product(values, values)))
    count, functions = len(left), list(operations.values())

    @T.prim_func
    def program(A: T.Tensor((count,), name), B: T.Tensor((count,), name), O: T.Tensor((len(functions), count), name)):
        with T.Kernel(1, threads=32):
            for row, operation in enumerate(functions):
                for i in T.Parallel(count):
                    O[row, i] = T.cast(operation(A[i], B[i]), name)

    return program, [left, right, np.zeros((len(functions), count), values.dtype)], list(operations)


REDUCTIONS = ["sum", "max", "min", "abssum", "absmax"]
BITWISE = ["bitand", "bitor", "bitxor"]


def reductions(name: str) -> tuple[Any, list[np.ndarray], list[str]]:
    """All reductions, of fragments and of shared tiles."""
    of, values = dtype(name), edges(name)
    if of.is_float:
        values = np.array(
            [*values[3:12], *signalling(name)], values.dtype
        )  # sums of infinities are no numbers anywhere
    rows = np.stack([values, np.roll(values, 1), values[::-1]])
    names = REDUCTIONS + (BITWISE if of.is_integer else [])
    shape, functions = rows.shape, [getattr(T, f"reduce_{one}") for one in names]

    @T.prim_func
    def program(A: T.Tensor(shape, name), O: T.Tensor((2 * len(functions), shape[0]), name)):
        with T.Kernel(1, threads=32):
            tile, shared = T.alloc_fragment(shape, name), T.alloc_shared(shape, name)
            result = T.alloc_fragment((shape[0],), name)
            T.copy(A, tile)
            T.copy(A, shared)
            for row, reduce in enumerate(functions):
                reduce(tile, result, dim=1)
                T.copy(result, O[2 * row, :])
                reduce(shared, result, dim=1)
                T.copy(result, O[2 * row + 1, :])

    labels = [f"{one} of {where}" for one in names for where in ("a fragment", "a shared tile")]
    return program, [rows, np.zeros((len(labels), shape[0]), values.dtype)], labels


def agree(made: tuple[Any, list[np.ndarray], list[str]], target: str, translate: bool) -> None:
    program, arguments, labels = made
    expected, found = [one.copy() for one in arguments], [one.copy() for one in arguments]
    with np.errstate(all="ignore"):
        interpret(program.function, expected)
    kernel = tilewright.compile(program, target=target)
    (kernel if target == "cpu" else kernel.emulate)(*found)
    for row, label in enumerate(labels):
        one, other = expected[-1][row], found[-1][row]
        with np.errstate(invalid="ignore"):
            same = (one == other) | ((one != one) & (other != other))
        at = np.flatnonzero(~same)[:1]
        operands = [value.reshape(-1)[at] for value in arguments[:-1]]
        assert same.all(), f"{label}: {other[at]}, not {one[at]}, of {operands}"
    if translate and target.startswith("cuda"):
        compile_text(kernel.get_kernel_source(), kernel.arch)


KINDS = {"unary": unary, "binary": binary, "reductions": reductions}


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_operation_gives_the_interpreters_numbers(kind, name, target):
    if name == "float64" and target.startswith("metal"):
        with pytest.raises(MissingCapability, match="no numbers of type float64"):
            tilewright.compile(KINDS[kind](name)[0], target=target)
        return
    agree(KINDS[kind](name), target, translate=name in ("int8", "uint16", "float16", "float8_e4m3fn"))


FUNCTIONS = (
    "tanh", "sigmoid", "exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "sinh", "cosh", "erf", "sqrt", "rsqrt",
    "atan", "sin", "cos", "tan", "asin", "acos", "asinh", "acosh", "atanh", "floor", "ceil", "trunc", "round", "abs",
)  # fmt: skip
SPECIAL = [0, 1e-7, 0.3, 1, 2.5, 11.5, 20, 45, 89, 104, 800, 60000, np.inf]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("target", TARGETS)
def test_functions_of_special_numbers_are_infinite_or_no_number_where_the_interpreter_says_so(target, name):
    """log1p of minus infinity was minus infinity on Metal."""
    values = np.array([*SPECIAL, *(-one for one in SPECIAL), np.nan]).astype(dtype(name).numpy)

    @T.prim_func
    def program(X: T.Tensor(values.shape, name), Y: T.Tensor((len(FUNCTIONS), *values.shape), name)):
        with T.Kernel(1, threads=32):
            for k, function in enumerate(list(FUNCTIONS)):
                for i in T.Parallel(values.size):
                    Y[k, i] = getattr(T, function)(X[i])

    kernel = tilewright.compile(program, target=target)
    found, expected = (np.zeros((len(FUNCTIONS), values.size), values.dtype) for _ in range(2))
    (kernel if target == "cpu" else kernel.emulate)(values, found)
    kernel.interpret(values, expected)
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (found == expected) | (np.abs(found - expected) <= 2.0**-6 * np.abs(expected) + 1e-6)
    same |= np.isnan(found) & np.isnan(expected)
    assert not [(FUNCTIONS[k], values[i], found[k, i], expected[k, i]) for k, i in np.argwhere(~same)]


def test_every_number_type_that_computes_is_here():
    computing = {
        name for name, one in ALL.items() if one.bits >= 8 and one.lanes == 1 and (one.is_integer or one.is_float)
    }
    assert computing - {*INTEGERS, *FLOATS} <= {"float8_e8m0fnu"}, computing  # which has no sign, and no zero


def test_conditions_of_other_widths_are_chosen_between():
    """On the CPU masks of 32 and 64 bits met in one choice."""

    @T.prim_func
    def program(X: T.Tensor((16,), "int64"), O: T.Tensor((16,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                O[i] = T.cast(T.if_then_else(i > 2, i > 5, X[i] > 3), "int32")

    values, found = np.arange(16) * 3 - 9, np.zeros(16, np.int32)
    tilewright.compile(program, target="cpu")(values, found)
    assert (found == np.where(np.arange(16) > 2, np.arange(16) > 5, values > 3)).all()


def test_products_of_fewer_rows_than_their_tile_compile():
    """On the CPU a loop that never runs named sums of rows that the tile has not."""

    @T.prim_func
    def program(A: T.Tensor((1, 20), "int8"), B: T.Tensor((20, 40), "int8"), C: T.Tensor((1, 40), "int32")):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((5, 20), "int8"), T.alloc_shared((20, 40), "int8")
            c = T.alloc_fragment((5, 40), "int32")
            T.copy(A[0:5, 0:20], a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c)
            T.copy(c, C[0:5, 0:40])

    draw = np.random.default_rng(0)
    left, right = (draw.integers(-128, 128, shape).astype(np.int8) for shape in ((1, 20), (20, 40)))
    found = np.zeros((1, 40), np.int32)
    tilewright.compile(program, target="cpu")(left, right, found)
    assert (found == left.astype(np.int32) @ right.astype(np.int32)).all()
