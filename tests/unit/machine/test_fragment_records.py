"""The order of low-bit weights as records: what instructions want, tails, and mistakes."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tilewright.errors import InvalidLayout
from tilewright.formats import number_format
from tilewright.ir.dtypes import ALL
from tilewright.layout.digits import REGISTER, THREAD
from tilewright.machine import COLUMNS, E2M1, SIGNS, FragmentRecords
from tilewright.quant.importers.bitblas import bitblas_order
from tilewright.targets.cuda.instructions import mma_a

HALF, BRAIN, BYTE = (ALL[name] for name in ("float16", "bfloat16", "int8"))
FORMS = [FragmentRecords(bits, operand) for bits in (1, 2, 4, 8) for operand in (HALF, BRAIN, BYTE)]
FORMS += [FragmentRecords(4, HALF, values=E2M1), FragmentRecords(8, BYTE, ladder=True)]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_each_lane_finds_the_codes_of_its_registers_where_the_rule_says(form: FragmentRecords) -> None:
    step = 8 * form.packed
    instruction = mma_a(form.operand.bits, step)
    row, column = np.indices((form.rows, COLUMNS))
    position = form.codes().offset("memory", row, column)
    lane = instruction.offset(THREAD, row % 16, column % step)
    register, element = np.divmod(instruction.offset(REGISTER, row % 16, column % step), form.packed)
    word, within = np.divmod(position, 32 // form.bits)
    tile, word = np.divmod(word, form.tile_words)
    load, word = np.divmod(word, 32 * form.vector)
    h, q = register % 2, 2 * (column // step) + register // 2
    places = np.array([[form.place(a, b) for b in range(form.pairs)] for a in (0, 1)])[h, q]
    np.testing.assert_array_equal(tile, row // 16)
    np.testing.assert_array_equal(word // form.vector, lane)
    np.testing.assert_array_equal(load * form.vector + word % form.vector, places[..., 0])
    between = (form.packed, 1) if form.is_looked_up else (1, form.fields)
    np.testing.assert_array_equal(within, places[..., 1] * between[0] + element * between[1])
    assert form.codes().is_bijective


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_packing_is_undone_with_tails(data: st.DataObject) -> None:
    form = FragmentRecords(
        data.draw(st.sampled_from([1, 2, 4, 8])), HALF, data.draw(st.sampled_from([None, HALF, ALL["float32"]])),
        data.draw(st.sampled_from([None, HALF])), data.draw(st.sampled_from([32, 64, 128])),
    )  # fmt: skip
    rows, columns = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 700))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    groups = -(-columns // form.group)
    parts = {"codes": rng.integers(0, 1 << form.bits, (rows, columns)).astype(np.uint8)}
    for name, dtype in (("scales", form.scale), ("zeros", form.zero)):
        if dtype is not None:
            parts[name] = rng.standard_normal((rows, groups)).astype(dtype.numpy)
    packed = form.pack(parts)
    assert packed.shape == form.shape(rows, columns) and packed.dtype == np.uint32
    for name, part in parts.items():
        np.testing.assert_array_equal(form.unpack(packed, name, rows, columns), part)


def test_four_bits_lie_as_the_model_packs_them() -> None:
    rng = np.random.default_rng(0)
    down, across = 3, 8
    codes = rng.integers(0, 16, (16 * down, 128 * across)).astype(np.uint8)
    scales = rng.standard_normal((16 * down, across)).astype(np.float16)
    split = codes.reshape(down, 2, 8, across, 2, 4, 2, 4, 2).transpose(0, 3, 4, 2, 7, 5, 8, 6, 1)
    pairs = split.reshape(down, across, 1024, 2)
    lines = np.ascontiguousarray(scales.reshape(down, 2, 8, across).transpose(0, 3, 2, 1)).view(np.uint8)
    wanted = np.concatenate([pairs[..., 0] | pairs[..., 1] << 4, lines.reshape(down, across, 32)], axis=-1)
    packed = FragmentRecords(4, HALF, HALF).pack({"codes": codes, "scales": scales})
    np.testing.assert_array_equal(packed.view(np.uint8), wanted)


def test_scales_of_wide_groups_are_repeated() -> None:
    form = FragmentRecords(4, HALF, HALF)
    scales = np.arange(32, dtype=np.float16).reshape(16, 2)
    packed = form.pack({"codes": np.zeros((16, 1024), np.uint8), "scales": scales})
    np.testing.assert_array_equal(form.unpack(packed, "scales", 16, 1024), np.repeat(scales, 4, axis=1))


def test_an_order_has_a_name_with_a_version() -> None:
    assert str(FragmentRecords(4, HALF, HALF)) == "fragments1[u4 as float16, 16x128, groups of 128, scales float16]"


@pytest.mark.parametrize(
    ("bits", "group", "message"),
    [
        (3, 128, "codes of 3 bits have no order as operands of float16"),
        (4, 48, "a record of 128 columns has no groups of 48"),
    ],
)
def test_what_has_no_order_is_said(bits: int, group: int, message: str) -> None:
    with pytest.raises(InvalidLayout) as caught:
        FragmentRecords(bits, HALF, HALF, group=group)
    assert caught.value.message == message


def test_the_ladder_order_is_bitblas_order_of_propagated_int8() -> None:
    """Byte by byte, and no record is added at the end of a row."""
    codes = np.random.default_rng(0).integers(0, 256, (48, 3 * COLUMNS)).astype(np.uint8)
    form = FragmentRecords(8, BYTE, ladder=True)
    packed = form.pack({"codes": codes})
    assert packed.shape == (3, 3, form.words)
    expected = bitblas_order(8, "int8", 3, False).pack(codes)
    np.testing.assert_array_equal(packed.view(np.uint8).reshape(-1), expected.reshape(-1))
    for wrong in (
        {"bits": 4, "operand": BYTE},
        {"bits": 8, "operand": HALF},
        {"bits": 8, "operand": BYTE, "scale": HALF},
    ):
        with pytest.raises(InvalidLayout, match="have no ladder order"):
            FragmentRecords(**wrong, ladder=True)


def test_values_must_be_held_exactly() -> None:
    assert str(FragmentRecords(4, HALF, HALF, values=E2M1)).endswith("scales float16, e2m1]")
    with pytest.raises(InvalidLayout) as caught:
        FragmentRecords(4, HALF, HALF, values=(0.1,) * 16)
    assert caught.value.message == "16 values of codes of 4 bits cannot be looked up as float16"


@pytest.mark.parametrize(("bits", "parts", "name"), [(8, (3, 7), "e4m3"), (8, (2, 15), "e5m2"), (4, (1, 1), "e2m1")])
def test_small_floats_stand_for_their_formats_values(bits: int, parts: tuple[int, int], name: str) -> None:
    form, table = FragmentRecords(bits, BRAIN, floating=parts), number_format(name).table
    finite = np.isfinite(table)
    np.testing.assert_array_equal(form.numbers[finite], table[finite])
    assert str(form).endswith(f"{name} bias {parts[1]}]")


def test_floats_must_have_room_in_the_operand() -> None:
    with pytest.raises(InvalidLayout) as caught:
        FragmentRecords(8, HALF, floating=(1, 31))
    assert caught.value.message == "floats of 8 bits, 1 of mantissa, bias 31, cannot be decoded as float16"


def test_signs_are_bits_of_half_their_difference() -> None:
    for operand in (HALF, BRAIN):
        form = FragmentRecords(1, operand, values=SIGNS)
        for h in (0, 1):
            bit = [(number + form.raw_bias) * form.raw_unit(h) for number in SIGNS]
            assert bit[1] - bit[0] == (2.0 ** (h - 24) if operand == HALF else 1.0)
