"""`T.unpack`: what its tables must be, and that they say the same as the codes' values."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir import ALL, UINT32, Buffer, Region, const
from tilewright.machine import E2M1, FragmentRecords
from tilewright.ops.unpack import TABLE, Unpack

HALF = ALL["float16"]


def tile(name: str, *shape: int, dtype: str = "uint32", scope: str = "shared") -> Region:
    buffer = Buffer(name, shape, ALL[dtype], scope)
    return Region(buffer, (const(0),) * len(shape), shape)


def unpack(form: FragmentRecords, table: Region | None) -> Unpack:
    return Unpack(
        tile("words", form.words), form, tile("codes", 16, 64, dtype="float16", scope="fragment"), table=table
    )


def test_a_table_is_for_codes_that_are_looked_up_and_has_a_column_for_each_lane() -> None:
    plain, looked_up = FragmentRecords(4, HALF), FragmentRecords(4, HALF, values=E2M1)
    assert list(unpack(looked_up, tile("table", *TABLE)).check()) == []
    (of_plain,) = unpack(plain, tile("table", *TABLE)).check()
    assert of_plain == f"codes of {plain} are not looked up, so that there is no table of them"
    (narrow,) = unpack(looked_up, tile("table", 256, 16)).check()
    assert narrow == "the table is uint32 of shape (256, 16), expected uint32 of (256, 32)"


def test_a_table_says_what_codes_stand_for() -> None:
    form = FragmentRecords(4, HALF, values=E2M1)
    codes = np.random.default_rng(0).integers(0, 16, (16, 128)).astype(np.uint8)
    words = form.pack({"codes": codes}).reshape(-1, form.words)[0]
    patterns = np.array(E2M1).astype(np.float16).view(np.uint16).astype(np.uint32)
    byte = np.arange(256)
    table = np.repeat((patterns[byte & 15] | patterns[byte >> 4] << 16).astype(UINT32.numpy)[:, None], 32, axis=1)
    operator = unpack(form, tile("table", *TABLE))
    (found,) = operator.reference(words, table)
    np.testing.assert_array_equal(found, np.array(E2M1)[codes[:, :64]].astype(np.float16))
    (plain,) = operator.reference(words)
    np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_codes_as_bytes_are_all_columns_in_another_order(bits: int) -> None:
    form = FragmentRecords(bits, HALF, HALF)
    codes = np.random.default_rng(0).integers(0, 1 << bits, (form.rows, 128)).astype(np.uint8)
    scales = np.ones((form.rows, 1), np.float16)
    words = form.pack({"codes": codes, "scales": scales})[0, 0]
    operator = Unpack(tile("words", form.words), form, tile("codes", form.rows, 128, dtype="int8", scope="fragment"))
    assert list(operator.check()) == []
    (found,) = operator.reference(words)
    k = np.arange(128)
    assert sorted(form.byte_column(k)) == list(range(128))
    np.testing.assert_array_equal(found, codes[:, form.byte_column(k)].astype(int) << form.byte_unit(k))


def test_what_cannot_be_lifted_or_come_as_bytes() -> None:
    form = FragmentRecords(4, HALF, HALF)
    words, halves = tile("words", form.words), tile("codes", 16, 64, dtype="float16", scope="fragment")
    (found,) = Unpack(words, form, halves, offset=7, scaled=True, lifted=True).check()
    assert (
        found
        == f"codes of {form} cannot be lifted here: that is for scaled integers, without zeros, offset by a power of two"
    )
    small = tile("codes", 16, 64, dtype="int8", scope="fragment")
    (found,) = Unpack(words, form, small, offset=8).check()
    assert found == f"codes of {form} come as bytes only as they are, without an offset or scales"
