"""Every operator: its generic lowering, interpreted, gives what its reference gives, and both what NumPy gives."""

from __future__ import annotations

import itertools

import ml_dtypes  # noqa: F401  (registers the carriers)
import numpy as np
import pytest
from one_block import both_ways, random_array, run_tiles, same_bits, scalar, tile

from tilewright.ir import TILE_OPERATORS, Region, const, dtypes, whole
from tilewright.ops import Atomic, Copy, Decode, Fill, Gemm, Reduce, Scan, Transpose, cast_array

NAMES = sorted(dtypes.ALL)


def test_all_operators_are_registered() -> None:
    assert {"atomic", "copy", "decode", "fill", "gemm", "reduce", "scan", "transpose"} <= set(TILE_OPERATORS)


@pytest.mark.parametrize("name", NAMES)
def test_copy_converts(name: str) -> None:
    rng = np.random.default_rng(3)
    for other in NAMES:
        source, destination = tile("source", (3, 6), name), tile("destination", (3, 6), other)
        array = random_array(rng, (3, 6), name)
        reference, lowered = both_ways(
            Copy(whole(source), whole(destination)), {source: array, destination: None}, destination
        )
        same_bits(reference, lowered)
        same_bits(reference, cast_array(array, source.dtype, destination.dtype))


def test_copy_drops_dimensions_of_one() -> None:
    source, destination = tile("source", (4, 3, 1, 5), "int32"), tile("destination", (3, 5), "int32")
    array = random_array(np.random.default_rng(0), (4, 3, 1, 5), "int32")
    part = Region(source, (const(2), const(0), const(0), const(0)), (1, 3, 1, 5))
    reference, lowered = both_ways(Copy(part, whole(destination)), {source: array, destination: None}, destination)
    same_bits(reference, array[2, :, 0])
    same_bits(lowered, array[2, :, 0])


@pytest.mark.parametrize("name", NAMES)
def test_fill(name: str) -> None:
    destination = tile("destination", (5, 7), name)
    reference, lowered = both_ways(Fill(whole(destination), scalar(1.0)), {destination: None}, destination)
    same_bits(reference, lowered)
    assert (reference.astype(np.float64) == (0.0 if name == "int1" else 1.0)).all()


def test_transpose() -> None:
    source, destination = tile("source", (1, 5, 9), "float16"), tile("destination", (9, 5), "float32")
    array = random_array(np.random.default_rng(1), (1, 5, 9), "float16")
    reference, lowered = both_ways(
        Transpose(whole(source), whole(destination)), {source: array, destination: None}, destination
    )
    same_bits(reference, array[0].T.astype(np.float32))
    same_bits(lowered, reference)


# Gemm -------------------------------------------------------------------------------------------

PAIRS = [
    ("float16", "float16", "float32"), ("bfloat16", "bfloat16", "float32"), ("float32", "float32", "float32"),
    ("float64", "float64", "float64"), ("float16", "float16", "float16"), ("float8_e4m3fn", "float8_e5m2", "float32"),
    ("bfloat16", "int4", "float32"), ("float4_e2m1fn", "float4_e2m1fn", "float32"), ("tfloat32", "tfloat32", "float32"),
    ("int8", "int8", "int32"), ("uint8", "int8", "int32"), ("int8", "uint4", "int32"), ("int32", "int32", "int32"),
    ("int64", "int32", "int64"), ("int8", "int2", "float32"), ("uint1", "int8", "int32"),
]  # fmt: skip


@pytest.mark.parametrize(("a_name", "b_name", "c_name"), PAIRS)
def test_gemm_of_every_kind(a_name: str, b_name: str, c_name: str) -> None:
    rng = np.random.default_rng(11)
    m, n, k = 5, 7, 19
    for transpose_a, transpose_b, clear in itertools.product((False, True), (False, True), (False, True)):
        a = tile("a", (k, m) if transpose_a else (m, k), a_name)
        b = tile("b", (n, k) if transpose_b else (k, n), b_name)
        c = tile("c", (m, n), c_name)
        arrays = {x: random_array(rng, x.static_shape, x.dtype) for x in (a, b, c)}
        gemm = Gemm(whole(a), whole(b), whole(c), transpose_a, transpose_b, clear)
        reference, lowered = both_ways(gemm, dict(arrays), c)
        wide = np.float64 if c.dtype.is_float else object
        left, right, old = (arrays[x].astype(np.int64 if wide is object else wide) for x in (a, b, c))
        left, right = left.T if transpose_a else left, right.T if transpose_b else right
        if c.dtype.is_integer:
            product = left.astype(object) @ right.astype(object) + (0 if clear else old.astype(object))
            bits = c.dtype.bits
            wrapped = (product + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
            same_bits(reference, wrapped.astype(c.dtype.numpy))
            same_bits(lowered, reference)
            continue
        product = left @ right + (0 if clear else old)
        magnitude = np.abs(left) @ np.abs(right) + (0 if clear else np.abs(old))
        unit = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}[c_name]
        assert (np.abs(reference.astype(np.float64) - product) <= unit * np.abs(product) + 2.0**-50 * magnitude).all()
        steps = 2.0**-53 if c_name == "float64" else 2.0**-24
        bound = unit * np.abs(product) + (k + 2) * steps * magnitude * 1.001
        assert (np.abs(lowered.astype(np.float64) - product) <= bound).all()


def test_gemm_clears_where_a_condition_says_so() -> None:
    rng = np.random.default_rng(2)
    a, b, c, flag = (
        tile("a", (4, 3), "int8"),
        tile("b", (3, 4), "int8"),
        tile("c", (4, 4), "int32"),
        tile("f", (1,), "int32"),
    )
    left, right = random_array(rng, (4, 3), "int8"), random_array(rng, (3, 4), "int8")
    product = left.astype(np.int32) @ right.astype(np.int32)
    from tilewright.ir.nodes import binary, load

    for first in (True, False):
        gemm = Gemm(whole(a), whole(b), whole(c), clear=binary("eq", load(flag, 0), const(0)))
        old = None if first else product
        tiles = {a: left, b: right, c: old, flag: np.array([0 if first else 1], np.int32)}
        for result in both_ways(gemm, tiles, c):
            same_bits(result, product if first else product * 2)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_gemm_scales_blocks(transpose_b: bool) -> None:
    rng = np.random.default_rng(8)
    m, n, k = 6, 4, 12
    a, c = tile("a", (m, k), "float8_e4m3fn"), tile("c", (m, n), "float32")
    b = tile("b", (n, k) if transpose_b else (k, n), "float8_e4m3fn")
    for sa_shape, sb_shape in (((6, 3), (2, 3)), ((2, 1), (1, 6)), ((6,), (4,)), ((1, 1), (4, 2)), ((1, 6), (1, 4))):
        if not transpose_b and len(sb_shape) == 2:
            sb_shape = (1, 4) if sb_shape == (1, 4) else sb_shape[::-1]
        sa, sb = tile("sa", sa_shape, "float32"), tile("sb", sb_shape, "float8_e8m0fnu")
        arrays = {x: random_array(rng, x.static_shape, x.dtype) for x in (a, b, c, sa, sb)}
        gemm = Gemm(
            whole(a), whole(b), whole(c), transpose_b=transpose_b, scale_a=whole(sa), scale_b=whole(sb), promote_every=4
        )
        reference, lowered = both_ways(gemm, dict(arrays), c)
        wide = {x: value.astype(np.float64) for x, value in arrays.items()}
        for scale in (sa, sb):  # a row is one factor for each row of op(a), or column of op(b)
            if scale.static_shape in ((1, 6), (1, 4)) and (scale is sa or scale.static_shape == (1, 4)):
                wide[scale] = wide[scale][0]
        left = wide[a] * _expanded(wide[sa], (m, k), 0)
        right = wide[b] * _expanded(wide[sb], b.static_shape, 0 if transpose_b else 1)
        right = right.T if transpose_b else right
        product, magnitude = left @ right + wide[c], np.abs(left) @ np.abs(right) + np.abs(wide[c])
        assert (np.abs(reference - product) <= 2.0**-24 * np.abs(product) + 2.0**-50 * magnitude).all()
        assert (np.abs(lowered - product) <= (k + 6) * 2.0**-24 * magnitude).all()


@pytest.mark.parametrize(
    "types", [("int8", "int32", "int32"), ("int8", "float32", "int32"), ("float32", "float32", "float32")]
)
@pytest.mark.parametrize("by_columns", [False, True])
def test_gemm_begins_with_a_shift_of_each_row(types: tuple[str, str, str], by_columns: bool) -> None:
    """Added before scales, where there are any, times a factor of each column; whole numbers, so that sums are
    exact."""
    rng = np.random.default_rng(3)
    ab, out, shift_type = types
    a, b, c, shift = (
        tile("a", (6, 12), ab),
        tile("b", (12, 4), ab),
        tile("c", (6, 4), out),
        tile("s", (6, 1), shift_type),
    )
    arrays = {x: rng.integers(-9, 10, x.static_shape).astype(x.dtype.numpy) for x in (a, b, c, shift)}
    factors = {}
    if out == "float32":
        sa, sb = tile("sa", (6,), "float32"), tile("sb", (1, 2), "float32")
        arrays |= {sa: 2.0 ** rng.integers(-2, 3, 6).astype(np.float32), sb: np.array([[2.0, 0.5]], np.float32)}
        factors = {"scale_a": whole(sa), "scale_b": whole(sb)}
    of_columns = tile("z", (4,), "uint8")
    if by_columns:
        arrays |= {of_columns: rng.integers(0, 255, 4).astype(np.uint8)}
        factors["shift_b"] = whole(of_columns)
    gemm = Gemm(whole(a), whole(b), whole(c), shift=whole(shift), **factors)
    assert not list(gemm.check())
    added = arrays[shift].astype(np.int64) * (arrays[of_columns] if by_columns else 1)
    product = arrays[a].astype(np.float64) @ arrays[b] + added
    if "scale_a" in factors:
        product *= arrays[sa][:, None] * np.repeat(arrays[sb], 2, axis=1)
    for result in both_ways(gemm, dict(arrays), c):
        np.testing.assert_array_equal(result, product + arrays[c])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("by_columns", [False, True])
def test_gemm_scales_and_shifts_group_by_group(transposed: bool, by_columns: bool) -> None:
    """As many groups as columns in a group, and rows as columns: whoever mistakes one axis for the other is found."""
    rng = np.random.default_rng(4)
    shapes = {"a": (12, 4) if transposed else (4, 12), "b": (4, 12) if transposed else (12, 4), "c": (4, 4)}
    kinds = {"a": "int8", "b": "int8", "c": "float32"} | dict.fromkeys(("sa", "sb"), "float32") | {"s": "int32"}
    kinds |= {"z": "float32"} if by_columns else {}
    tiles = {name: tile(name, shapes.get(name, (4, 4)), kind) for name, kind in kinds.items()}
    arrays = {x: rng.integers(1, 9, x.static_shape).astype(x.dtype.numpy) for x in tiles.values()}
    a, b, c, sa, sb, s = (tiles[name] for name in ("a", "b", "c", "sa", "sb", "s"))
    gemm = Gemm(whole(a), whole(b), whole(c), transposed, transposed, scale_a=whole(sa), scale_b=whole(sb),
                shift=whole(s), groups=4, shift_b=whole(tiles["z"]) if by_columns else None)  # fmt: skip
    assert not list(gemm.check())
    left, right = (arrays[x].astype(np.float64).T if transposed else arrays[x].astype(np.float64) for x in (a, b))
    exact = arrays[c].astype(np.float64)
    for g in range(4):
        step = slice(3 * g, 3 * g + 3)
        points = arrays[tiles["z"]][g] if by_columns else 1
        exact += (left[:, step] @ right[step] + arrays[s][g][:, None] * points) * arrays[sa][g][:, None] * arrays[sb][g]
    for result in both_ways(gemm, dict(arrays), c):
        np.testing.assert_array_equal(result, exact)


def _expanded(scale: np.ndarray, shape: tuple[int, ...], rows: int) -> np.ndarray:
    if scale.ndim == 1:
        scale = scale[:, None] if rows == 0 else scale[None, :]
    return np.kron(scale, np.ones((shape[0] // scale.shape[0], shape[1] // scale.shape[1])))


# Reduce and Scan --------------------------------------------------------------------------------

EXACT_KINDS = ["max", "min", "absmax", "any", "all"]


@pytest.mark.parametrize("kind", [*EXACT_KINDS, "bitand", "bitor", "bitxor", "sum", "abssum"])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "int8", "uint8", "int4", "int32", "bool"])
def test_reduce(kind: str, name: str) -> None:
    source_dtype = dtypes.dtype(name)
    if (kind.startswith("bit") and source_dtype.is_float) or (name == "bool" and kind in ("sum", "abssum")):
        return
    rng = np.random.default_rng(4)
    shape = (3, 11, 5)
    result_name = "bool" if kind in ("any", "all") else name
    for dim, clear, keep in itertools.product((0, 1, -1), (True, False), (True, False)):
        axis = dim % 3
        left = tuple(1 if keep and i == axis else n for i, n in enumerate(shape) if keep or i != axis)
        source, destination = tile("source", shape, name), tile("destination", left, result_name)
        arrays = {x: random_array(rng, x.static_shape, x.dtype) for x in (source, destination)}
        if name == "float32":
            arrays[source].reshape(-1)[::7] = np.nan
        operator = Reduce(whole(source), whole(destination), kind, dim, clear)
        reference, lowered = both_ways(operator, dict(arrays), destination)
        if kind in ("sum", "abssum") and source_dtype.is_float:
            wide = arrays[source].astype(np.float64)
            magnitude = np.abs(wide).sum(axis=axis).reshape(left) + np.abs(arrays[destination].astype(np.float64))
            unit = 2.0 ** -(source_dtype.mantissa_bits + 1)
            error = np.abs(reference.astype(np.float64) - lowered.astype(np.float64))
            assert (np.isnan(error) | (error <= (13 * 2.0**-24 + 2 * unit) * magnitude + 1e-9)).all()
        else:
            same_bits(reference, lowered)
        expected = _folded(kind, arrays[source].astype(np.float64), axis).reshape(left)
        if not clear:
            old = arrays[destination].astype(np.float64)
            expected = _folded(kind.removeprefix("abs") if kind != "abssum" else "sum", np.stack([old, expected]), 0)
        if source_dtype.is_float:
            rounded = cast_array(expected, dtypes.FLOAT64, destination.dtype).astype(np.float64)
            np.testing.assert_array_equal(reference.astype(np.float64), rounded)
        elif not (kind == "absmax" and (arrays[source] == source_dtype.minimum).any() and name in ("int4", "int8")):
            low, count = int(destination.dtype.minimum), 1 << destination.dtype.bits
            np.testing.assert_array_equal(reference.astype(np.int64), (expected.astype(np.int64) - low) % count + low)


def _folded(kind: str, values: np.ndarray, axis: int) -> np.ndarray:
    integers = values.astype(np.int64) if kind.startswith("bit") else None
    return {
        "max": lambda: np.fmax.reduce(values, axis=axis), "min": lambda: np.fmin.reduce(values, axis=axis),
        "absmax": lambda: np.fmax.reduce(np.abs(values), axis=axis), "sum": lambda: values.sum(axis=axis),
        "abssum": lambda: np.abs(values).sum(axis=axis),
        "any": lambda: (values != 0).any(axis=axis), "all": lambda: (values != 0).all(axis=axis),
        "bitand": lambda: np.bitwise_and.reduce(integers, axis=axis),
        "bitor": lambda: np.bitwise_or.reduce(integers, axis=axis),
        "bitxor": lambda: np.bitwise_xor.reduce(integers, axis=axis),
    }[kind]()  # fmt: skip


def test_reduce_a_vector_into_one() -> None:
    source, destination = tile("source", (37,), "float16"), tile("destination", (1,), "float32")
    array = random_array(np.random.default_rng(0), (37,), "float16")
    reference, lowered = both_ways(
        Reduce(whole(source), whole(destination), "sum"), {source: array, destination: None}, destination
    )
    assert reference[0] == np.float32(array.astype(np.float64).sum())
    assert abs(float(lowered[0]) - float(reference[0])) <= 37 * 2.0**-24 * np.abs(array.astype(np.float64)).sum()


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("name", ["float32", "int32", "uint8"])
def test_scan(kind: str, name: str) -> None:
    rng = np.random.default_rng(6)
    for dim, reverse in itertools.product((0, 1), (False, True)):
        source, destination = tile("source", (9, 6), name), tile("destination", (9, 6), name)
        array = random_array(rng, (9, 6), name)
        for target in (destination, source):
            tiles = {source: array} if target is source else {source: array, destination: None}
            operator = Scan(whole(source), whole(target), kind, dim, reverse)
            reference, lowered = both_ways(operator, tiles, target)
            values = np.flip(array, dim) if reverse else array
            fold = np.add if kind == "sum" else np.fmax
            wide = values.astype(np.float64) if name == "float32" else values
            expected = fold.accumulate(wide, axis=dim).astype(array.dtype)
            same_bits(reference, np.flip(expected, dim) if reverse else expected)
            if name == "float32" and kind == "sum":
                assert (np.abs(lowered - reference) <= 10 * 2.0**-24 * np.abs(array).sum(axis=dim, keepdims=True)).all()
            else:
                same_bits(lowered, reference)


# Atomic -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["add", "max", "min", "and", "or", "xor"])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "uint8"])
def test_atomic(kind: str, name: str) -> None:
    dtype = dtypes.dtype(name)
    if kind in ("and", "or", "xor") and dtype.is_float:
        return
    rng = np.random.default_rng(9)
    destination, value = tile("destination", (4, 5), name), tile("value", (4, 5), name)
    arrays = {x: random_array(rng, (4, 5), name) for x in (destination, value)}
    fold = {
        "add": np.add,
        "max": np.fmax,
        "min": np.fmin,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    expected = fold[kind](arrays[destination], arrays[value])
    for result in both_ways(Atomic(whole(destination), whole(value), kind), dict(arrays), destination):
        same_bits(result, expected)
    old = arrays[destination]
    expected = fold[kind](old, np.full_like(old, 3))
    constant = const(3, dtypes.INT32) if dtype.is_integer else scalar(3.0)
    for result in both_ways(Atomic(whole(destination), constant, kind), {destination: old}, destination):
        same_bits(result, expected)


# Decode -----------------------------------------------------------------------------------------

SOURCES = ["int1", "uint1", "int2", "uint2", "int4", "uint4", "int8", "uint8", "float4_e2m1fn", "float8_e4m3fn"]
NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302,
    0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0,
)  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("target", ["float32", "bfloat16", "float16", "float64"])
def test_decode_with_scales_and_zeros(name: str, target: str) -> None:
    rng = np.random.default_rng(12)
    n, k, group = 3, 16, 8
    source, destination = tile("source", (n, k), name), tile("destination", (n, k), target)
    codes = random_array(rng, (n, k), name)
    wide = codes.astype(np.float64)
    for mode, zero_name in (("original", "float16"), ("rescale", "float16"), ("quantized", "uint4")):
        scale, zero = tile("scale", (n, k // group), "float16"), tile("zero", (n, k // group), zero_name)
        scales, zeros = random_array(rng, (n, 2), "float16"), random_array(rng, (n, 2), zero_name)
        operator = Decode(whole(destination), whole(source), whole(scale), whole(zero), mode)
        tiles = {source: codes, destination: None, scale: scales, zero: zeros}
        reference, lowered = both_ways(operator, dict(tiles), destination)
        same_bits(reference, lowered)
        s, z = (np.repeat(x.astype(np.float64), group, axis=1) for x in (scales, zeros))
        exact = wide * s - z if mode == "rescale" else (wide - z) * s
        magnitude = np.abs(wide * s) + np.abs(z if mode == "rescale" else z * s)
        unit = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 2.0**-53}[target]
        assert (np.abs(reference.astype(np.float64) - exact) <= (unit + 2.0**-23) * magnitude + 2.0**-25).all()


def test_decode_without_scale_is_a_cast() -> None:
    for name in SOURCES:
        source, destination = tile("source", (4, 8), name), tile("destination", (4, 8), "float16")
        codes = random_array(np.random.default_rng(1), (4, 8), name)
        for result in both_ways(
            Decode(whole(destination), whole(source)), {source: codes, destination: None}, destination
        ):
            same_bits(result, codes.astype(np.float32).astype(np.float16))


def test_decode_by_codebook() -> None:
    source, destination, scale = tile("w", (2, 16), "uint4"), tile("d", (2, 16), "float32"), tile("s", (2,), "float32")
    codes = np.stack([np.arange(16), np.arange(16)[::-1]]).astype(np.uint8)
    scales = np.array([1.0, 0.5], np.float32)
    operator = Decode(whole(destination), whole(source), whole(scale), codebook=NF4)
    tiles = {source: codes, destination: None, scale: scales}
    for result in both_ways(operator, tiles, destination):
        np.testing.assert_array_equal(result, np.array(NF4, np.float32)[codes] * scales[:, None])


def test_decode_groups_that_do_not_divide_the_tile() -> None:
    source, destination, scale = tile("w", (20, 3), "int4"), tile("d", (20, 3), "float32"), tile("s", (3, 3), "float32")
    rng = np.random.default_rng(5)
    codes, scales = random_array(rng, (20, 3), "int4"), random_array(rng, (3, 3), "float32")
    operator = Decode(whole(destination), whole(source), whole(scale), group_size=8, axis=0)
    for result in both_ways(operator, {source: codes, destination: None, scale: scales}, destination):
        np.testing.assert_array_equal(result, codes.astype(np.float32) * scales[np.arange(20) // 8])


def test_decode_with_scalar_scale_and_zero() -> None:
    source, destination = tile("w", (2, 9), "uint4"), tile("d", (2, 9), "float32")
    codes = random_array(np.random.default_rng(5), (2, 9), "uint4")
    operator = Decode(whole(destination), whole(source), scalar(0.25), const(8))
    for result in both_ways(operator, {source: codes, destination: None}, destination):
        np.testing.assert_array_equal(result, (codes.astype(np.float32) - 8) * np.float32(0.25))


def test_an_operator_on_part_of_a_tile() -> None:
    buffer, total = tile("x", (4, 8), "float32"), tile("total", (4,), "float32")
    values = random_array(np.random.default_rng(0), (4, 8), "float32")
    part = Region(buffer, (const(1), const(2)), (2, 3))
    into = Region(total, (const(1),), (2,))
    operator = Reduce(part, into, "max", 1)
    old = np.zeros(4, np.float32)
    for result in (run_tiles(op, {buffer: values, total: old}, total) for op in (operator, operator.lower())):
        np.testing.assert_array_equal(result, [0, *values[1:3, 2:5].max(axis=1), 0])
