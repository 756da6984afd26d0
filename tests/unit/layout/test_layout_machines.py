"""Layouts that machines prescribe, against the formulas of their manuals."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import InvalidLayout
from tilewright.ir import dtypes
from tilewright.layout import (
    MEMORY,
    REGISTER,
    THREAD,
    Field,
    Layout,
    RecordLayout,
    Swizzle,
    TableLayout,
    bank_conflicts,
    byte_swizzle,
    column_major,
    divide,
    expand,
    from_function,
    from_tables,
    from_thread_and_index,
    padded,
    product,
    replicate,
    row_major,
    swizzled,
    vector_width,
    warp_conflicts,
)

T, R = THREAD, REGISTER

# mma.sync m16n8k16 with 16-bit inputs: registers count elements.
MMA_A = Layout.of([(8, T, 4), (2, R, 2)], [(2, R, 1), (4, T, 1), (2, R, 4)])
MMA_B = Layout.of([(2, R, 1), (4, T, 1), (2, R, 2)], [(8, T, 4)])
MMA_C = Layout.of([(8, T, 4), (2, R, 2)], [(2, R, 1), (4, T, 1)])


def wgmma_accumulator(n: int) -> Layout:
    return Layout.of([(8, T, 4), (2, R, 2), (4, T, 32)], [(2, R, 1), (4, T, 1), (n // 8, R, 4)])


def test_mma_fragments() -> None:
    for lane in range(32):
        g, t = lane >> 2, lane & 3
        for element in range(8):
            r, e = element >> 1, element & 1
            row, k = g + 8 * (r & 1), 2 * t + e + 8 * (r >> 1)
            assert MMA_A.coordinates(thread=lane, register=element) == (row, k)
            assert MMA_A.locate(row, k) == {T: lane, R: element}
        for element in range(4):
            r, e = element >> 1, element & 1
            assert MMA_B.coordinates(thread=lane, register=element) == (2 * t + e + 8 * r, g)
            assert MMA_C.coordinates(thread=lane, register=element) == (g + 8 * (element >> 1), 2 * t + (element & 1))


@pytest.mark.parametrize("n", [8, 48, 96, 256])
def test_wgmma_accumulator_is_a_tiling_of_mma(n: int) -> None:
    accumulator = wgmma_accumulator(n)
    assert accumulator.is_bijective and accumulator.extent(R) == n // 2
    for thread in range(128):
        w, g, t = thread // 32, thread % 32 >> 2, thread & 3
        for i in range(n // 2):
            row, column = 16 * w + g + 8 * ((i >> 1) & 1), 8 * (i >> 2) + 2 * t + (i & 1)
            assert accumulator.coordinates(thread=thread, register=i) == (row, column)
    outer = divide(accumulator, MMA_C)
    assert outer == Layout.of([(4, T, 1)], [(n // 8, R, 1)])
    assert product(outer, MMA_C) == accumulator
    assert divide(accumulator, MMA_B) is None


def test_the_result_of_one_product_feeds_the_next() -> None:
    """Two accumulator tiles side by side lie as the left operand does, for 16-bit types."""
    pair = product(Layout.of([], [(2, R, 1)]), MMA_C)
    assert pair == MMA_A


def test_block_of_warps_with_a_replicated_operand() -> None:
    """2 x 2 warps on a 64 x 32 tile of A: warps side by side hold the same rows."""
    warps = replicate(Layout.of([(2, R, 2), (2, T, 2)], [(2, R, 1)]), 2, THREAD, 1)
    operand = product(warps, MMA_A)
    assert operand.shape == (64, 32) and operand.replication == 2 and operand.extent(T) == 128
    assert divide(operand, MMA_A) == warps
    threads = operand.table(T)
    assert set(threads.reshape(-1).tolist()) == {t for t in range(128) if t // 32 % 2 == 0}


def tma_offset(row: int, byte: int, rows: int, span: int) -> int:
    """Boxes of `span` bytes, swizzled on byte offsets as NVIDIA's engine does it."""
    offset = byte // span * rows * span + row * span + byte % span
    return offset ^ (((offset >> 7) & {128: 7, 64: 3, 32: 1}[span]) << 4)


@pytest.mark.parametrize("span", [128, 64, 32])
@pytest.mark.parametrize("name", ["float16", "float32", "int8"])
def test_tma_swizzle_modes(name: str, span: int) -> None:
    bits = dtypes.dtype(name).bits
    rows, columns = 16, 2 * span * 8 // bits
    layout = swizzled((rows, columns), bits, span)
    assert layout.is_bijective
    for row in range(rows):
        for column in range(columns):
            expected = tma_offset(row, column * bits // 8, rows, span)
            assert layout.offset(MEMORY, row, column) * bits // 8 == expected
    assert vector_width(layout, bits) * bits == 128
    staged = expand(layout, 3)
    stride = staged.offset(MEMORY, 1, 0, 0) * bits // 8
    assert stride >= layout.extent(MEMORY) * bits // 8 and stride % (8 * span) == 0


def test_narrow_boxes_are_padded_to_the_span() -> None:
    layout = swizzled((8, 32), 16, 128)
    assert layout.extent(MEMORY) == 8 * 64 and not layout.is_bijective and layout.is_injective


def ldmatrix_conflicts(layout: Layout | TableLayout, bits: int) -> int:
    """The worst of all ldmatrix.x1 whose eight lanes read consecutive rows of 16 bytes."""
    width = 128 // bits
    lanes = np.arange(8)
    rows, columns = layout.shape
    return max(
        warp_conflicts(layout, [row + lanes, np.full(8, column)], bits, width, banks=32)
        for row in range(0, rows, 8)
        for column in range(0, columns, width)
    )


def test_plain_rows_do_meet_conflicts() -> None:
    assert ldmatrix_conflicts(row_major((8, 64)), 16) == 7
    assert ldmatrix_conflicts(row_major((8, 32)), 16) == 3
    assert ldmatrix_conflicts(padded((8, 64), 8), 16) == 0
    assert ldmatrix_conflicts(swizzled((8, 64), 16), 16) == 0


def test_bank_conflicts_by_the_book() -> None:
    lanes = np.arange(32)
    assert bank_conflicts(lanes * 4, 4, 32) == 0
    assert bank_conflicts(lanes * 8, 4, 32) == 1
    assert bank_conflicts(lanes * 128, 4, 32) == 31
    assert bank_conflicts(lanes * 0, 4, 32) == 0  # one word for all is a broadcast
    assert bank_conflicts(lanes * 2, 2, 32) == 0  # two lanes a word
    assert bank_conflicts(lanes * 16, 16, 32) == 0  # four groups of eight lanes
    assert bank_conflicts(lanes * 128, 16, 32) == 4 * 7
    assert bank_conflicts(lanes * 8, 8, 32) == 0


def test_authors_index_maps() -> None:
    swizzle = from_function((64, 64), lambda i, j: (i, ((j // 8) ^ (i % 8)) * 8 + j % 8))
    assert swizzle == swizzled((64, 64), 16) and isinstance(swizzle, Layout)
    blocks = from_function((32, 32), lambda i, j: (i // 8, j // 16, i % 8, j % 16))
    assert str(blocks) == "layout(shape=(32, 32), digits=('8:m16 4:m256', '16:m1 2:m128'))"
    fragment = from_thread_and_index((16, 8), lambda i, j: i % 8 * 4 + j // 2, lambda i, j: i // 8 * 2 + j % 2)
    assert fragment == MMA_C
    assert from_thread_and_index((16, 8), lambda i, j: i % 8 * 4 + j // 2) == MMA_C
    scalar = from_function((4, 4), lambda i, j: (0 if i == 0 else i * 4) + j)
    assert scalar == row_major((4, 4))
    copies = from_thread_and_index((8,), lambda i: i, lambda i: 0 * i, replicate=4)
    assert copies == replicate(Layout.of([(8, T, 1)]), 4)


def test_index_maps_that_are_no_digits() -> None:
    triangle = from_function((4, 4), lambda i, j: (i * (i + 1) // 2 + j) * (j <= i) + (10 + i * 4 + j) * (j > i))
    assert isinstance(triangle, TableLayout) and triangle.is_injective and not triangle.is_bijective
    from tilewright.ir.literals import LITERALS

    assert LITERALS["table_layout"](str(triangle)) == triangle
    with pytest.raises(InvalidLayout, match="not sums of digits"):
        triangle.expression(MEMORY, (0, 0))
    assert vector_width(triangle, 16) == 1
    with pytest.raises(InvalidLayout, match="one non-negative integer"):
        from_tables((2, 2), {MEMORY: np.array([0, 1, -1, 2])})


def test_packed_weights() -> None:
    """A permutation packs and unpacks; sizes need not be powers of two."""
    layout = product(row_major((3, 5)), Layout.of([(2, MEMORY, 1), (3, MEMORY, 8)], [(4, MEMORY, 2)]))
    assert layout.shape == (18, 20) and layout.is_bijective
    weights = np.arange(18 * 20).reshape(18, 20)
    packed = np.empty(layout.extent(MEMORY), np.int64)
    packed[layout.permutation()] = weights
    assert (packed[layout.permutation()] == weights).all()
    block = packed[:24].reshape(3, 4, 2)
    assert (block == weights[:6, :4].reshape(3, 2, 4).transpose(0, 2, 1)).all()


def test_records_bundle_codes_and_scales() -> None:
    codes = Field("codes", dtypes.dtype("uint4"), Layout.of([(8, MEMORY, 16)], [(16, MEMORY, 1)]))
    scales = Field("scales", dtypes.FLOAT16, row_major((8, 1)))
    record = RecordLayout(column_major((3, 5)), (codes, scales))
    assert record.offset("scales") == 64 and record.record_bytes == 80 and record.nbytes == 15 * 80
    random = np.random.default_rng(0)
    parts = {
        "codes": random.integers(0, 16, (24, 80), dtype=np.uint8),
        "scales": random.standard_normal((24, 5)).astype(np.float16),
    }
    packed = record.pack(parts)
    assert packed.dtype == np.uint8 and packed.shape == (1200,)
    for name, whole in parts.items():
        assert (record.unpack(packed, name) == whole).all()
    second = packed[80:160]  # column-major grid: the block below the first
    assert (second[64:80].view(np.float16) == parts["scales"][8:16, 0]).all()
    assert (second[:8] & 15 == parts["codes"][8, 0:16:2]).all()
    with pytest.raises(InvalidLayout, match="no field 'zeros'"):
        record.offset("zeros")


@pytest.mark.parametrize(
    "text",
    [
        "layout(shape=(4,), digits=('4:q1',))",
        "layout(shape=(5,), digits=('4:m1',))",
        "layout(digits=('4:m1',))",
        "layout(shape=(4,), digits=('4:m1',), extra=1)",
        "layout(shape=(4,), digits=('4:m1',), swizzle=(0, 1, 2))",
        "layout(",
        "fragment(shape=(4,), digits=('4:m1',))",
    ],
)
def test_text_that_is_no_layout(text: str) -> None:
    with pytest.raises(InvalidLayout):
        Layout.parse(text)


def test_mistakes() -> None:
    with pytest.raises(InvalidLayout, match="no place 'warp'"):
        Layout.of([(4, "warp", 1)])
    with pytest.raises(InvalidLayout, match="1 coordinates for a layout of rank 2"):
        MMA_A.offset(T, 3)
    with pytest.raises(InvalidLayout, match="overlap"):
        Layout.of([(4, MEMORY, 1)], [(4, MEMORY, 2)]).coordinates(memory=3)
    with pytest.raises(InvalidLayout, match="shift >= bits"):
        Swizzle(3, 0, 2)
    with pytest.raises(InvalidLayout, match="no whole number of 128-byte boxes"):
        swizzled((8, 96), 16)
    with pytest.raises(InvalidLayout, match="no swizzle of 48 bytes"):
        swizzled((8, 96), 16, 48)


def test_swizzles() -> None:
    swizzle = byte_swizzle(3, 16)
    assert swizzle == Swizzle(3, 3, 3) and swizzle.period == 512 and swizzle.scaled(1) == Swizzle(3, 4, 3)
    offsets = np.arange(2048)
    assert (swizzle(swizzle(offsets)) == offsets).all()
    assert (np.sort(swizzle(offsets)) == offsets).all()
