"""Numbers and tensors as authors handle them: promotion, operators, indices, slices, views, number types."""

import itertools
import operator
import textwrap
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright.language as T
from tilewright.errors import InternalError, TilewrightError
from tilewright.interpreter import interpret
from tilewright.ir import Buffer, Const, Kernel, Load, Region, dtypes
from tilewright.language.mistakes import NumberExpected
from tilewright.language.promotion import promote
from tilewright.language.proxies import Scalar, as_expr
from tilewright.language.tensor_proxies import length

ALL = sorted(dtypes.ALL)


def body(prim: T.PrimFunc) -> str:
    lines = str(prim).splitlines()
    start = next(i for i, line in enumerate(lines) if line.lstrip().startswith("with kernel"))
    return textwrap.dedent("\n".join(lines[start + 1 :])).strip()


# Promotion ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [
        ("int8", "int32", "int32"), ("int32", "int64", "int64"), ("uint8", "int8", "int16"), ("uint8", "int32", "int32"),
        ("int32", "uint32", "int64"), ("int64", "uint64", "int64"), ("uint4", "int4", "int8"), ("int4", "int8", "int8"),
        ("float16", "float32", "float32"), ("float16", "bfloat16", "float32"), ("float32", "float64", "float64"),
        ("float8_e4m3fn", "float8_e5m2", "float32"), ("float8_e4m3fn", "float16", "float16"),
        ("int32", "float16", "float16"), ("int64", "float8_e5m2", "float8_e5m2"), ("tfloat32", "float32", "float32"),
        ("bool", "int8", "int8"), ("bool", "float16", "float16"), ("bool", "bool", "bool"),
    ],
)  # fmt: skip
def test_promotion(a: str, b: str, common: str) -> None:
    assert promote(dtypes.dtype(a), dtypes.dtype(b)).name == common
    assert promote(dtypes.dtype(b), dtypes.dtype(a)).name == common


@given(st.sampled_from(ALL), st.sampled_from(ALL))
@settings(deadline=None, max_examples=200)
def test_promotion_is_symmetric_and_stable(a: str, b: str) -> None:
    first, second = dtypes.dtype(a), dtypes.dtype(b)
    common = promote(first, second)
    assert common == promote(second, first)
    assert promote(common, first) == common and promote(common, second) == common


@given(st.sampled_from(ALL), st.sampled_from(ALL))
@settings(deadline=None, max_examples=200)
def test_promoted_integers_hold_both_ranges(a: str, b: str) -> None:
    first, second = dtypes.dtype(a), dtypes.dtype(b)
    if first.is_integer and second.is_integer and {first.bits, second.bits} != {64}:
        common = promote(first, second)
        if 64 not in (first.bits, second.bits):
            assert common.minimum <= min(first.minimum, second.minimum)
            assert common.maximum >= max(first.maximum, second.maximum)


@pytest.mark.parametrize(
    ("dtype", "literal", "common"),
    [
        ("int8", 3, "int8"), ("int8", 300, "int32"), ("uint8", -1, "int32"), ("int32", 1 << 40, "int64"),
        ("int32", 0.5, "float32"), ("float16", 3, "float16"), ("float16", 0.1, "float16"), ("float16", 1e6, "float32"),
        ("float16", 70000, "float32"), ("bfloat16", 1e30, "bfloat16"), ("float16", float("inf"), "float16"),
        ("float8_e4m3fn", float("inf"), "float32"), ("bool", 2, "int32"), ("int32", True, "int32"),
    ],
)  # fmt: skip
def test_literals_adapt_to_the_other_operand(dtype: str, literal: Any, common: str) -> None:
    value = T.cast(T.dynamic("n"), dtype)
    assert (value + literal).dtype == common
    assert (literal * value).dtype == common


SAFE = [operator.add, operator.sub, operator.mul, operator.lt, operator.le, operator.gt, operator.ge, operator.eq]
INTEGERS = [
    *SAFE,
    operator.ne,
    operator.floordiv,
    operator.mod,
    operator.and_,
    operator.or_,
    operator.xor,
    operator.pow,
]


@given(st.sampled_from(INTEGERS), st.integers(-50, 50), st.integers(-50, 50))
@settings(deadline=None, max_examples=150)
def test_integer_operators_mean_pythons(op: Any, a: int, b: int) -> None:
    if op in (operator.floordiv, operator.mod) and b == 0:
        return
    if op is operator.pow:
        b %= 5

    def kernel(A, C):
        A: T.Tensor((2,), "int64")
        C: T.Tensor((3,), "int64")
        with T.Kernel(1):
            C[0] = op(A[0], A[1]) if op is not operator.pow else A[0] ** b
            C[1] = op(A[0], b)
            C[2] = op(a, A[1]) if op is not operator.pow else A[0] ** b

    array, result = np.array([a, b], np.int64), np.zeros(3, np.int64)
    interpret(T.DirectFunction(kernel).trace({}, {}).function, [array, result])
    assert result.tolist() == [int(op(a, b))] * 3


@given(st.sampled_from([*SAFE, operator.truediv, operator.floordiv, operator.mod]), st.data())
@settings(deadline=None, max_examples=150)
def test_float_operators_mean_numpys(op: Any, data: Any) -> None:
    numbers = st.floats(-1e3, 1e3, width=32).filter(lambda x: abs(x) > 1e-2)
    a, b = np.float32(data.draw(numbers)), np.float32(data.draw(numbers))

    @T.prim_func
    def kernel(A: T.Tensor((2,), "float32"), C: T.Tensor((1,), "float32")):
        with T.Kernel(1):
            C[0] = op(A[0], A[1])

    result = np.zeros(1, np.float32)
    interpret(kernel.function, [np.array([a, b]), result])
    if op in (operator.floordiv, operator.mod):
        quotient = np.floor(a / b)
        expected = quotient if op is operator.floordiv else a - quotient * b
    else:
        expected = op(a, b)
    assert result[0] == np.float32(expected)


def test_bits_shifts_and_bools() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "uint8"), C: T.Tensor((8,), "int32"), flag: T.bool, n: T.int32):
        with T.Kernel(1):
            C[0] = A[0] >> 4
            C[1] = (A[0] & 0xF) << 1
            C[2] = 1 << n
            C[3] = ~n
            C[4] = flag & (n > 3) | ~flag
            C[5] = flag ^ (n > 3)
            C[6] = flag + flag
            C[7] = abs(-n)

    assert (
        body(kernel)
        == textwrap.dedent(
            """
        C[0] = int32(A[0] >> 4)
        C[1] = int32((A[0] & 15) << 1)
        C[2] = 1 << n
        C[3] = ~n
        C[4] = int32(flag and n > 3 or not flag)
        C[5] = int32(flag != (n > 3))
        C[6] = int32(flag) + int32(flag)
        C[7] = abs(-n)
        """
        ).strip()
    )


# Functions ----------------------------------------------------------------------------------------


def test_functions_of_the_table() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "float16"), n: T.int32):
        with T.Kernel(1):
            A[0] = T.exp2(A[0]) + T.rsqrt(A[1])
            A[1] = T.exp(n)
            A[2] = T.max(A[0], 0) + T.min(A[1], A[2], 3.0)
            A[3] = T.clamp(A[3], -1.0, 1.0)
            A[4] = T.if_then_else(T.isnan(A[4]), 0.0, A[4])
            A[5] = T.cast(A[5], "float32") * 2
            A[6] = T.float32(n) + T.ceildiv(n, 8)
            A[7] = max(A[0], A[1]) ** 0.5

    assert (
        body(kernel)
        == textwrap.dedent(
            """
        A[0] = exp2(A[0]) + rsqrt(A[1])
        A[1] = float16(exp(float32(n)))
        A[2] = max(A[0], 0.0) + min(min(A[1], A[2]), 3.0)
        A[3] = min(max(A[3], -1.0), 1.0)
        A[4] = 0.0 if isnan(A[4], dtype=bool) else A[4]
        A[5] = float16(float32(A[5]) * 2.0)
        A[6] = float16(float32(n) + float32((n + 7) // 8))
        A[7] = pow(max(A[0], A[1]), 0.5)
        """
        ).strip()
    )


def test_functions_of_known_numbers_stay_pythons() -> None:
    assert T.ceildiv(10, 4) == 3 and T.floordiv(-1, 2) == -1 and T.floormod(-1, 4) == 3
    assert T.max(1, 2) == 2 and T.min([3, 1, 2]) == 1 and T.align_up(5, 4) == 8
    assert T.index_to_coordinates(11, (2, 3, 4)) == [0, 2, 3]
    assert T.if_then_else(True, "a", "b") == "a"
    assert float(-T.infinity("float16")) == float("-inf")
    assert float(T.infinity("float8_e4m3fn")) == 448.0
    assert int(T.max_value("int8")) == 127 and int(T.min_value("int8")) == -128


def test_reinterpret_reads_the_bits() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((1,), "float32"), C: T.Tensor((1,), "uint32")):
        with T.Kernel(1):
            C[0] = T.reinterpret(A[0], "uint32")

    result = np.zeros(1, np.uint32)
    interpret(kernel.function, [np.array([1.5], np.float32), result])
    assert result[0] == 0x3FC00000


# Number types -------------------------------------------------------------------------------------


def test_number_types_equal_their_names_and_convert() -> None:
    assert T.float16 == "float16" and T.float16 == "half" and T.float16 != "bfloat16"
    assert T.bfloat16 == np.dtype(ml_dtypes.bfloat16) and T.int8 == np.int8 and T.float32 != np.float64
    assert {T.float16: 1}["float16"] == 1
    assert (T.float16.bits, T.int4.bits, T.float32x4.lanes, str(T.float8_e4m3)) == (16, 4, 4, "float8_e4m3fn")
    assert T.dtype("bf16") is T.bfloat16 and T.dtype(np.float32) is T.float32
    converted = T.int8(3)
    assert converted.dtype == T.int8 and int(converted) == 3
    assert not hasattr(T, "__wrapped__")


def test_alloc_takes_any_form_of_a_dtype() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((4,), T.float16)):
        with T.Kernel(1):
            for dtype in ("float16", T.float16, np.float16, dtypes.FLOAT16):
                tile = T.alloc_shared(4, dtype)
                assert tile.dtype == A.dtype == "float16" and tile.shape == (4,) and tile.ndim == 1
                T.copy(A, tile)


# Indices, slices, views ---------------------------------------------------------------------------


def test_indices_and_slices() -> None:
    m = T.dynamic("m")

    @T.prim_func
    def kernel(A: T.Tensor((8, 16, m), "float32")):
        with T.Kernel(4) as block:
            tile = T.alloc_shared((4, 8), "float32")
            A[-1, 2, -1] = A[block, -16, 0]
            T.copy(A[block, 4:8, 8:16], tile)
            T.copy(A[block, block * 4 : (block + 1) * 4, block * 8 : block * 8 + 8], tile)
            T.copy(A[..., 0:1][0, 0:4, 0:8] if False else A[0, 0:4, 0:8], tile)
            T.copy(tile, A[block, block * 4, 8])
            T.clear(A[0, 0:-12, m - 8 :])

    assert (
        body(kernel)
        == textwrap.dedent(
            """
        tile = shared(float32[4, 8])
        A[7, 2, m + -1] = A[block, 0, 0]
        copy(source=A[block, 4 : +4, 8 : +8], destination=tile)
        copy(source=A[block, block * 4 : +4, block * 8 : +8], destination=tile)
        copy(source=A[0, 0 : +4, 0 : +8], destination=tile)
        copy(source=tile, destination=A[block, block * 4 : +4, 8 : +8])
        fill(destination=A[0, 0 : +4, m - 8 : +8], value=float32(0.0))
        """
        ).strip()
    )


def test_an_element_is_a_head_address_of_what_the_other_side_measures() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((2, 3, 64, 64), "float32")):
        with T.Kernel(2, 3) as (x, y):
            tile = T.alloc_shared((1, 16, 32), "float32")
            T.copy(A[x, y, 0, 32], tile)
            T.copy(tile, A[x, y, 16, 0])

    kernel_node = kernel.function.body.statements[0]
    assert isinstance(kernel_node, Kernel)
    loads = kernel_node.body.statements[1:]
    assert loads[0].source.extents == (1, 1, 16, 32) and loads[1].destination.extents == (1, 1, 16, 32)  # type: ignore[attr-defined]


@given(st.lists(st.integers(-3, 3), min_size=4, max_size=4), st.integers(1, 64), st.data())
@settings(deadline=None, max_examples=100)
def test_length_of_a_slice_is_found_whenever_it_is_constant(factors: list[int], size: int, data: Any) -> None:
    """stop = start + size in any arrangement; the difference must come out as the int `size`."""
    symbols = [T.dynamic(name) for name in "abcd"]
    start: Any = sum(f * s for f, s in zip(factors, symbols, strict=True)) + data.draw(st.integers(-5, 5))
    start = start * data.draw(st.integers(1, 8)) + symbols[0] * symbols[1]
    shuffled = size + symbols[1] * symbols[0] + (start - symbols[0] * symbols[1])
    assert length(as_expr(start), as_expr(shuffled)) == size
    grown = length(as_expr(start), as_expr(shuffled + symbols[2]))
    assert not isinstance(grown, int)


def test_views_share_memory() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), C: T.Tensor((4, 32), "float16")):
        with T.Kernel(1):
            halves = T.view(A, dtype="float16")
            table = T.reshape(halves, (4, 32))
            T.copy(table, C)

    array = np.arange(64, dtype=np.float32)
    result = np.zeros((4, 32), np.float16)
    interpret(kernel.function, [array, result])
    np.testing.assert_array_equal(result.view(np.uint16).reshape(-1), array.view(np.uint16))


def test_reads_of_elements_are_loads_where_they_stand() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            x = A[0]
            A[0] = 5.0
            A[1] = x
            values = [A[2], A[3]]
            A[2] = 7.0
            A[3] = values[0]

    array = np.arange(8, dtype=np.float32)
    interpret(kernel.function, [array])
    assert array.tolist() == [5, 0, 7, 2, 4, 5, 6, 7]


def test_scalars_around_literals_are_known() -> None:
    value = Scalar(Const(dtypes.INT32, 4))
    assert int(value) == 4 and bool(value) and list(range(value)) == [0, 1, 2, 3]


def test_copy_operands_are_regions_of_the_buffers_named() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            tile = T.alloc_fragment((8, 8), "float32")
            T.copy(A, tile)

    copied = kernel.function.body.statements[0].body.statements[1]  # type: ignore[attr-defined]
    assert isinstance(copied.source, Region) and copied.source.is_whole
    assert isinstance(copied.destination.buffer, Buffer) and copied.destination.buffer.name == "tile"
    assert not isinstance(copied.source, Load)


NONSENSE = (0, -1, 2.5, "abc", None, [1], {}, b"x", 1 + 2j, object())
OF_NUMBERS = [
    "abs",
    "align_up",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "ceil",
    "ceildiv",
    "clamp",
    "exp",
    "exp2",
    "floor",
    "floordiv",
    "floormod",
    "if_then_else",
    "log",
    "log10",
    "log1p",
    "log2",
    "max",
    "min",
    "pow",
    "round",
    "rsqrt",
    "shift_left",
    "shift_right",
    "sigmoid",
    "sqrt",
    "tanh",
    "trunc",
    "truncdiv",
    "truncmod",
]


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_nonsense_in_place_of_numbers_is_an_error_of_ours_at_the_authors_line(name: str) -> None:
    """Whatever a word for numbers is given: it gives a value, or an error with a place."""
    refused = 0
    for nonsense in NONSENSE:
        for values in itertools.product(("n", nonsense), repeat=3):
            for arity in (1, 2, 3):

                def kernel(A: T.Tensor((64,), "float32"), n: T.int32) -> None:
                    with T.Kernel(1, threads=32):
                        A[0] = getattr(T, name)(*(n if one == "n" else one for one in values[:arity]))  # noqa: B023

                try:
                    T.prim_func(kernel)
                except TilewrightError as error:
                    assert not isinstance(error, InternalError) and error.span is not None
                    refused += 1
    assert refused


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: T.ceildiv(7, 0), "what T.ceildiv is given is 7 and 0"),
        (lambda: T.ceildiv(7, "abc"), "what T.ceildiv is given is 7 and 'abc'"),
        (lambda: T.max(1, None), "what T.max is given is 1 and None"),
        (lambda: T.truncmod(3, 0), "what T.truncdiv is given is 3 and 0"),
    ],
)
def test_what_nonsense_was_given_is_said(call: Any, message: str) -> None:
    with pytest.raises(NumberExpected, match=message):
        call()
