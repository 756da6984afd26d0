"""Number formats: every code of every table against its definition, rounding, and packings over random tails."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import InvalidCode, NotRepresentable, UnknownFormat, WrongArgumentKind
from tilewright.formats import (
    BITBLAS,
    FORMATS,
    PLAIN,
    codebook,
    number_format,
    pack_plain,
    packing,
    scheme,
    unpack_plain,
)
from tilewright.ir.dtypes import pack, unpack

CODED = [entry for entry in FORMATS.values() if not entry.is_dense] + [
    number_format(n) for n in ("e3m2", "e2m3", "e1m2")
]


@pytest.mark.parametrize(
    ("name", "carrier"),
    [("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2"), ("e3m2", "float6_e3m2fn"), ("e2m3", "float6_e2m3fn"),
     ("e2m1", "float4_e2m1fn"), ("e8m0", "float8_e8m0fnu"), ("e4m3fnuz", "float8_e4m3fnuz"), ("e5m2fnuz", "float8_e5m2fnuz")],
)  # fmt: skip
def test_float_tables_are_those_of_ml_dtypes(name: str, carrier: str) -> None:
    entry = number_format(name)
    codes = np.arange(1 << entry.bits, dtype=np.uint8)
    np.testing.assert_array_equal(entry.table, codes.view(getattr(ml_dtypes, carrier)).astype(np.float64))


def test_integer_tables() -> None:
    assert number_format("int1").values == (-1.0, 1.0) and number_format("uint1").values == (0.0, 1.0)
    for bits in range(2, 9):
        codes = np.arange(1 << bits)
        np.testing.assert_array_equal(number_format(f"uint{bits}").table, codes)
        np.testing.assert_array_equal(number_format(f"int{bits}").table, (codes ^ 1 << bits - 1) - (1 << bits - 1))
    assert number_format("ternary").describe_values() == "-1, 0, 1"


@pytest.mark.parametrize("entry", CODED, ids=str)
def test_tables_agree_with_the_number_types_of_the_ir(entry: object) -> None:
    if entry.dtype is None or entry.unused:
        return
    codes = np.arange(1 << entry.bits, dtype=np.uint8)
    elements = (
        unpack(pack_plain(codes, entry.bits), entry.dtype, len(codes))
        if entry.bits < 8
        else codes.view(entry.dtype.numpy)
    )
    np.testing.assert_array_equal(elements.astype(np.float64), entry.table)
    if entry.bits < 8:
        np.testing.assert_array_equal(pack(elements, entry.dtype), pack_plain(codes, entry.bits))


@pytest.mark.parametrize("entry", CODED, ids=str)
def test_every_value_is_rounded_to_itself_and_others_to_the_nearest(entry: object) -> None:
    used = np.array(
        [c for c in range(1 << entry.bits) if c not in entry.unused and math.isfinite(entry.values[c])], np.uint8
    )
    values = entry.table[used]
    np.testing.assert_array_equal(entry.decode(entry.encode(values)), values)
    np.testing.assert_array_equal(entry.decode(entry.exact(values)), values)
    span = values.max() - values.min()
    tries = np.random.default_rng(0).uniform(values.min() - span / 8, values.max() + span / 8, 2000)
    found = entry.decode(entry.encode(tries))
    np.testing.assert_array_equal(np.abs(found - tries), np.abs(tries[:, None] - values).min(1))


@pytest.mark.parametrize("name", ["e2m1", "e3m2", "e4m3", "e5m2", "e4m3fnuz", "e1m6", "e4m2", "nf4", "e3m0", "ternary"])
def test_between_any_two_values_the_nearer_one_is_taken(name: str) -> None:
    of = number_format(name)
    numbers = np.unique(of.table[np.isfinite(of.table)])
    low, high = numbers[:-1], numbers[1:]
    middle = (low + high) / 2
    assert (of.decode(of.encode(np.nextafter(middle, -np.inf))) == low).all()
    assert (of.decode(of.encode(np.nextafter(middle, np.inf))) == high).all()
    assert (of.encode(middle) % 2 == 0).all() or name in ("nf4", "e3m0", "ternary")
    assert (of.decode(of.encode([-np.inf, -1e300, 1e300, np.inf])) == numbers[[0, 0, -1, -1]]).all()
    assert (of.encode(np.array([0.0, -0.0])) == of.encode(0.0)).all()


def test_ties_go_to_the_even_code() -> None:
    np.testing.assert_array_equal(
        number_format("int4").decode(number_format("int4").encode([0.5, 1.5, -0.5, 2.5])), [0, 2, 0, 2]
    )
    np.testing.assert_array_equal(
        number_format("e2m1").decode(number_format("e2m1").encode([2.5, 5.0, 0.25])), [2, 4, 0]
    )


def test_nan_where_the_format_has_one() -> None:
    assert math.isnan(number_format("e4m3").decode(number_format("e4m3").encode([math.nan]))[0])
    with pytest.raises(NotRepresentable):
        number_format("int4").encode([math.nan])


def test_whole_factors() -> None:
    found = {entry.name: entry.whole_factor for entry in CODED}
    assert found["e2m1"] == 2 and found["e2m3"] == 8 and found["ternary"] == 1 and found["uint8"] == 1
    assert found["nf4"] is found["e4m3"] is found["e3m2"] is found["e8m0"] is None


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 8), st.integers(1, 5), st.integers(1, 70), st.integers(0, 1 << 30))
def test_plain_packing_is_its_formula(bits: int, rows: int, columns: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (rows, columns), dtype=np.uint8)
    packed = pack_plain(codes, bits)
    np.testing.assert_array_equal(packed, PLAIN.pack(codes, bits))
    np.testing.assert_array_equal(unpack_plain(packed, columns, bits), codes)
    np.testing.assert_array_equal(PLAIN.unpack(packed, columns, bits), codes)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(BITBLAS)), st.integers(1, 4), st.integers(1, 100), st.integers(0, 1 << 30))
def test_interleaved_packings_lose_nothing(key: tuple[str, int], rows: int, columns: int, seed: int) -> None:
    bits, layout = key[1], BITBLAS[key]
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (rows, columns), dtype=np.uint8)
    assert packing(layout.id) is layout
    np.testing.assert_array_equal(layout.unpack(layout.pack(codes, bits), columns, bits), codes)


def test_interleaved_order_of_a_word() -> None:
    packed = BITBLAS["float16", 4].pack(np.arange(8, dtype=np.uint8)[None], 4).view("<u4")
    assert packed[0, 0] == sum(element << 4 * slot for slot, element in enumerate((0, 2, 4, 6, 1, 3, 5, 7)))


def test_names() -> None:
    assert number_format("fp4_e2m1") is number_format("e2m1") and number_format("torch.float8_e4m3fn").name == "e4m3"
    assert number_format("e3m3").bits == 7 and scheme("mxfp4").block == (1, 32)
    assert codebook("mine", (0.0, 0.5, 1.0, 4.0)).bits == 2
    with pytest.raises(UnknownFormat) as caught:
        number_format("int5x")
    assert str(caught.value) == "unknown format 'int5x'\n  help: did you mean 'int5' or 'uint5' or 'int8'?"
    with pytest.raises(UnknownFormat, match="unknown scheme 'mxfp5'"):
        scheme("mxfp5")


@pytest.mark.parametrize(("codes", "said"), [
    (np.array([3, 300]), r"300"), (np.array([[0], [-1]]), r"-1"), (np.array([16], np.uint8), "16"),
])  # fmt: skip
def test_numbers_that_are_no_codes_are_named(codes: np.ndarray, said: str) -> None:
    """Below zero they were counted from the end of the table."""
    with pytest.raises(InvalidCode, match=said):
        number_format("int4").decode(codes)
    with pytest.raises(WrongArgumentKind, match="codes of int4 are float64"):
        number_format("int4").decode(codes.astype(np.float64))
