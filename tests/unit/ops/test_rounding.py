"""Conversions against exact arithmetic: every code of the 8-bit types, random and awkward values of the others."""

from __future__ import annotations

import bisect
from fractions import Fraction

import ml_dtypes  # noqa: F401  (registers the carriers)
import numpy as np
import pytest

from tilewright.ir import ALL, DType, dtypes
from tilewright.ops.rounding import cast_array, round_float, wrap

SMALL = [record for record in ALL.values() if record.is_float and record.bits <= 8]
FLOATS = [record for record in ALL.values() if record.is_float]
INTEGERS = [record for record in ALL.values() if record.is_integer]


def finite_codes(record: DType) -> list[tuple[Fraction, int]]:
    """Every finite value of a small float with its code, in order of value; of two zeros the positive one."""
    codes = np.arange(1 << record.code_bits, dtype=np.uint8)
    values = codes.view(record.numpy).astype(np.float64)
    pairs = {Fraction(float(v)): int(c) for v, c in reversed(list(zip(values, codes))) if np.isfinite(v)}
    return sorted(pairs.items())


def nearest_even(x: float, table: list[tuple[Fraction, int]]) -> Fraction:
    """The table's value nearest to x; of two as near the one whose code is even."""
    exact = Fraction(x)
    place = bisect.bisect_left(table, (exact, -1))
    return min(table[max(place - 1, 0) : place + 1], key=lambda pair: (abs(pair[0] - exact), pair[1] & 1))[0]


def awkward(record: DType) -> np.ndarray:
    """Every value, every midpoint, and their neighbours in float64; both signs, far outside and tiny ones."""
    values = np.array([float(v) for v, _ in finite_codes(record)])
    middles = (values[:-1] + values[1:]) / 2
    points = np.concatenate([values, middles])
    points = np.concatenate([points, np.nextafter(points, np.inf), np.nextafter(points, -np.inf)])
    wide = np.random.default_rng(5).standard_normal(500) * np.exp2(np.random.default_rng(6).integers(-20, 20, 500))
    extreme = [1e-300, -1e-300, 1e300, -1e300, 1e-42, -1e-42, 0.0, -0.0]
    return np.concatenate([points, wide, extreme])


@pytest.mark.parametrize("record", SMALL, ids=str)
def test_small_floats_round_to_nearest_even(record: DType) -> None:
    table = finite_codes(record)
    inputs = awkward(record)
    results = round_float(inputs, record).astype(np.float64)
    unsigned = record.minimum > 0
    for x, got in zip(inputs, results):
        if unsigned and x < 0:
            assert np.isnan(got), x
        else:
            assert Fraction(float(got)) == nearest_even(x, table), (x, got)


@pytest.mark.parametrize("record", SMALL, ids=str)
def test_small_floats_convert_to_float64_and_back(record: DType) -> None:
    codes = np.arange(1 << record.code_bits, dtype=np.uint8)
    values = codes.view(record.numpy)
    back = cast_array(cast_array(values, record, dtypes.FLOAT64), dtypes.FLOAT64, record)
    finite = np.isfinite(values.astype(np.float64))
    np.testing.assert_array_equal(back.view(np.uint8)[finite], codes[finite])
    assert np.isnan(back[np.isnan(values.astype(np.float64))].astype(np.float64)).all()


def test_special_values() -> None:
    specials = np.array([np.inf, -np.inf, np.nan])
    expected = {
        **dict.fromkeys(
            ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), [np.nan] * 3
        ),
        "float8_e5m2": [np.inf, -np.inf, np.nan], "float4_e2m1fn": [6, -6, 6], "float6_e2m3fn": [7.5, -7.5, 7.5],
        "float6_e3m2fn": [28, -28, 28],
        "bfloat16": [np.inf, -np.inf, np.nan], "float16": [np.inf, -np.inf, np.nan],
        "tfloat32": [np.inf, -np.inf, np.nan], "float32": [np.inf, -np.inf, np.nan],
        "float64": [np.inf, -np.inf, np.nan],
    }  # fmt: skip
    assert set(expected) == {record.name for record in FLOATS}
    for name, values in expected.items():
        np.testing.assert_array_equal(round_float(specials, ALL[name]).astype(np.float64), values, err_msg=name)


def test_types_without_a_negative_zero_have_none() -> None:
    for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz"):
        assert (round_float(np.array([-0.0, -1e-30]), ALL[name]).view(np.uint8) == 0).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "tfloat32", "float32"])
def test_wide_floats_round_once(name: str) -> None:
    record = ALL[name]
    rng = np.random.default_rng(1)
    base = (rng.standard_normal(2000) * np.exp2(rng.integers(-30, 14, 2000))).astype(np.float32)
    coarse = round_float(base.astype(np.float64), record).astype(np.float64)
    # Just beside the middle of two neighbours: what rounds by way of float32 gets these wrong.
    if record.bits == 16:
        step = (coarse.astype(record.numpy).view(np.uint16) + np.uint16(1)).view(record.numpy).astype(np.float64)
    elif name == "tfloat32":
        step = (coarse.astype(np.float32).view(np.uint32) + np.uint32(1 << 13)).view(np.float32).astype(np.float64)
    else:
        step = np.nextafter(coarse.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    low, high = np.minimum(coarse, step), np.maximum(coarse, step)
    middle = (low + high) / 2
    above, below = np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)
    np.testing.assert_array_equal(round_float(above, record).astype(np.float64), high)
    np.testing.assert_array_equal(round_float(below, record).astype(np.float64), low)
    ties = round_float(middle, record)
    shift = 13 if name == "tfloat32" else 0
    bits = ties.view(np.uint16 if record.bits == 16 else np.uint32) >> shift
    assert (bits % 2 == 0).all()


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("destination", INTEGERS, ids=str)
def test_float_to_integer_truncates_and_saturates(source: DType, destination: DType) -> None:
    low, high = int(destination.minimum), int(destination.maximum)
    near = [0.5, 1.9, 3.0, float(low), float(high), low - 1.5, high + 1.5, 2.0**63, 2.0**64, 1e30]
    values = np.array([*near, *(-x for x in near), np.inf, -np.inf, np.nan])
    values = round_float(values, source)
    for x, got in zip(values.astype(np.float64), cast_array(values, source, destination)):
        if np.isnan(x):
            expected = 0
        elif np.isinf(x):
            expected = high if x > 0 else low
        else:
            expected = min(max(int(x), low), high)
        assert int(got) == expected, (x, got)


@pytest.mark.parametrize("destination", INTEGERS, ids=str)
def test_integers_wrap(destination: DType) -> None:
    for source in INTEGERS:
        low, high = int(source.minimum), int(source.maximum)
        values = np.array([low, high, low + (high - low) // 3, high // 2, min(1, high)], dtype=source.numpy)
        for x, got in zip(values.tolist(), cast_array(values, source, destination).tolist()):
            assert got == (x - int(destination.minimum)) % (1 << destination.bits) + int(destination.minimum)
    assert wrap(np.array([True, False]), destination).astype(np.int64).tolist()[1] == 0


@pytest.mark.parametrize("destination", FLOATS, ids=str)
def test_integers_to_floats_round_once(destination: DType) -> None:
    big = [(1 << 62) + (1 << 38) + 1, (1 << 53) + 1, (1 << 61) + 3, (1 << 54) + (1 << 30), 12345, 1, 7]
    values = np.array([*big, *(-x for x in big)], dtype=np.int64)
    got = cast_array(values, ALL["int64"], destination).astype(np.float64)
    for x, y in zip(values.tolist(), got.tolist()):
        if destination.name == "float64":
            assert y == float(x)
        elif destination.name == "float32":
            assert y == float(np.int64(x).astype(np.float32))
        elif destination.minimum > 0 and x < 0:
            assert np.isnan(y)
        elif abs(x) > destination.maximum:
            assert abs(y) in (destination.maximum, np.inf)
        elif not destination.minimum > 0:
            spacing = 2.0 ** (int(abs(x)).bit_length() - 1 - destination.mantissa_bits)
            assert abs(Fraction(y) - x) <= Fraction(spacing) / 2


def test_sixty_four_bit_integers_just_above_a_tie() -> None:
    # 2**62 + half a float32 step + 1: by way of float64 the 1 is lost and the tie goes down.
    value = (1 << 62) + (1 << 38) + 1
    assert float(cast_array(np.array([value]), ALL["int64"], ALL["float32"])[0]) == float((1 << 62) + (1 << 39))
    half = (1 << 62) + (1 << 54) + 1  # the same for bfloat16
    assert float(cast_array(np.array([half]), ALL["int64"], ALL["bfloat16"])[0]) == float((1 << 62) + (1 << 55))


def test_to_bool_asks_for_nonzero() -> None:
    for record in FLOATS:
        values = round_float(np.array([1.0, 0.5, 2.0]), record)
        assert cast_array(values, record, dtypes.BOOL).all(), record
    assert cast_array(np.array([0.0, np.nan], np.float32), ALL["float32"], dtypes.BOOL).tolist() == [False, True]
    assert cast_array(np.array([True, False]), dtypes.BOOL, ALL["float16"]).tolist() == [1.0, 0.0]
