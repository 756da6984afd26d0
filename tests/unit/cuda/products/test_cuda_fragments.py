"""Fragments, descriptors and boxes against the formulas of the hardware's manual, element by element."""

from __future__ import annotations

import itertools

import pytest

from tilewright.ir.dtypes import ALL
from tilewright.layout import REGISTER, THREAD, Layout, parse_digits
from tilewright.machine.instructions import check_fragment
from tilewright.targets.cuda.arch import ARCHITECTURES, named
from tilewright.targets.cuda.headers import WgmmaShape
from tilewright.targets.cuda.instructions import (
    ENGINE,
    F64_A8,
    F64_B8,
    MATRIX_8X8,
    MATRIX_8X8_TRANSPOSED,
    PTX_NAMES,
    WGMMA_N,
    mma_a,
    mma_b,
    mma_d,
)
from tilewright.targets.gpu.copies.boxes import Swizzle, plan_boxes
from tilewright.targets.gpu.products.descriptors import wgmma_operand


def element_of(layout, thread, register):
    """Row and column of what a lane holds in a register."""
    numbers = {THREAD: thread, REGISTER: register}
    return layout.coordinates(**{place: numbers[place] for place in layout.places})


def place_of(layout, row, column):
    return layout.offset(THREAD, row, column), layout.offset(REGISTER, row, column)


WIDTHS = [(4, 64), (8, 32), (8, 16), (16, 16), (16, 8), (32, 8), (32, 4)]


@pytest.mark.parametrize(("bits", "k"), WIDTHS)
def test_mma_operands_follow_the_manual(bits, k):
    a, b, packed = mma_a(bits, k), mma_b(bits, k), 32 // bits
    for lane in range(32):
        g, t = lane >> 2, lane & 3
        for index in range(a.extent(REGISTER)):
            r, e = divmod(index, packed)
            assert element_of(a, lane, index) == (g + 8 * (r & 1), packed * t + e + 4 * packed * (r >> 1))
        for index in range(b.extent(REGISTER)):
            r, e = divmod(index, packed)
            assert element_of(b, lane, index) == (packed * t + e + 4 * packed * r, g)


@pytest.mark.parametrize("n", [8, 24, 96, 256])
def test_wgmma_accumulators_follow_the_manual(n):
    layout = mma_d(n, 4)
    for thread in range(128):
        w, g, t = thread // 32, thread % 32 >> 2, thread & 3
        for i in range(n // 2):
            expected = (16 * w + g + 8 * (i >> 1 & 1), 8 * (i >> 2) + 2 * t + (i & 1))
            assert element_of(layout, thread, i) == expected
            assert place_of(layout, *expected) == (thread, i)


def test_doubles_and_matrices_follow_the_manual():
    for lane in range(32):
        g, t = lane >> 2, lane & 3
        assert [element_of(F64_A8, lane, r) for r in range(4)] == [
            (g + 8 * (r & 1), t + 4 * (r >> 1)) for r in range(4)
        ]
        assert [element_of(F64_B8, lane, r) for r in range(2)] == [(t, g), (t + 4, g)]
        assert [element_of(MATRIX_8X8, lane, e) for e in (0, 1)] == [(g, 2 * t), (g, 2 * t + 1)]
        assert [element_of(MATRIX_8X8_TRANSPOSED, lane, e) for e in (0, 1)] == [(2 * t, g), (2 * t + 1, g)]


def test_the_accumulator_of_one_product_is_the_operand_of_the_next():
    d, a = mma_d(16), mma_a(16, 16)
    for lane, r, e in itertools.product(range(32), range(4), range(2)):
        assert element_of(a, lane, 2 * r + e) == element_of(d, lane, 4 * (r >> 1) + 2 * (r & 1) + e)


@pytest.mark.parametrize(
    ("digits", "replicas"),
    [
        ([(4, THREAD, 1)], ""),  # covers 4 of 8 rows
        ([(8, THREAD, 2)], ""),  # leaves odd threads empty
        ([(8, THREAD, 1)], "2:r2"),  # leaves a register empty
        ([(4, THREAD, 1), (2, THREAD, 1)], ""),  # two digits in one place
        ([(8, THREAD, 1)], "2:t4"),  # a copy where other elements are
    ],
)
def test_impossible_fragments_are_refused(digits, replicas):
    layout = Layout.of(digits, replicas=parse_digits(replicas))
    with pytest.raises(ValueError, match="a fragment"):
        check_fragment("a fragment", layout, (8,), 8)


def test_a_fragment_may_have_replicas():
    layout = Layout.of([(8, THREAD, 1)], replicas=parse_digits("2:t8"))
    check_fragment("a fragment", layout, (8,), 16)
    assert [element_of(layout, thread, 0) for thread in (3, 11)] == [(3,), (3,)]


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_instruction_tables_are_consistent(name):
    arch = named(name)
    rates = [instruction.rate for instruction in arch.matrix_instructions]
    assert rates == sorted(rates, reverse=True)
    assert any(instruction.asynchronous for instruction in arch.matrix_instructions) == arch.has("wgmma")
    for instruction in arch.matrix_instructions:
        assert instruction.d_fragment.extent(REGISTER) * instruction.threads == instruction.m * instruction.n
        if instruction.asynchronous:
            for n in instruction.n_choices:
                sized = instruction.sized(n)
                assert sized.d_fragment == mma_d(n, 4)
                kinds = (PTX_NAMES[d] for d in (sized.accumulator, sized.a, sized.b))
                assert WgmmaShape(n, *kinds).k == sized.k
    refused = max(8, *(n for n in WGMMA_N)) + 8
    with pytest.raises(ValueError, match="has no n"):
        arch.matrix_instructions[0].sized(refused)


# Operand tiles of wgmma ---------------------------------------------------------------------------


def manual_offset(swizzle, major, mn, k, size, k_first):
    """Byte of an element and the descriptor's two fields, as the table of the manual has them."""
    span = {Swizzle.B128: 128, Swizzle.B64: 64, Swizzle.B32: 32, Swizzle.NONE: 0}[swizzle]
    if major == "k" and span:
        leading, stride = 16, 8 * span
        formula = lambda m, kb: kb // span * (mn * span) + m * span + kb % span  # noqa: E731
    elif major == "k":
        leading, stride = (128, k * size // 16 * 128) if k_first else (mn * 16, 128)
        formula = lambda m, kb: m // 8 * stride + kb // 16 * leading + m % 8 * 16 + kb % 16  # noqa: E731
    elif span:
        leading, stride = (k * span, 8 * span) if k_first else (8 * span, mn * 2 // span * 8 * span)
        wide = span // 2
        formula = lambda m, kb: (  # noqa: E731
            m // wide * leading + kb // size // 8 * stride + kb // size % 8 * span + m % wide * 2
        )
    else:
        leading, stride = (128, k // 8 * 128) if k_first else (mn // 8 * 128, 128)
        formula = lambda m, kb: m // 8 * stride + kb // size // 8 * leading + kb // size % 8 * 16 + m % 8 * 2  # noqa: E731

    def offset(m, column):
        byte = formula(m, column * size)
        return byte ^ ((byte >> 7 & max(span // 16 - 1, 0)) << 4)

    return offset, leading, stride


SHAPES = [
    (swizzle, major, size, k_first)
    for swizzle in Swizzle
    for major in ("k", "mn")
    for size in (1, 2, 4)
    for k_first in (True, False)
    if (major == "k" or size == 2) and not (major == "k" and swizzle is not Swizzle.NONE and not k_first)
]


@pytest.mark.parametrize(("swizzle", "major", "size", "k_first"), SHAPES)
@pytest.mark.parametrize("mn", [64, 192])
def test_operand_tiles_are_recognised(swizzle, major, size, k_first, mn):
    dtype = {1: ALL["int8"], 2: ALL["bfloat16"], 4: ALL["tfloat32"]}[size]
    k = 256 // size  # bytes enough for two atoms of the widest swizzle
    offset, leading, stride = manual_offset(swizzle, major, mn, k, size, k_first)
    found = wgmma_operand(offset, mn, k, dtype)
    assert found is not None
    assert (found.major, found.swizzle) == (major, swizzle)
    leads = major == "k" or swizzle is Swizzle.NONE or mn > swizzle.span // 2  # else there is nothing to lead to
    assert (found.leading if leads else leading, found.stride) == (leading, stride)
    step = 32 // size
    unswizzled = [found.swizzle.apply(offset(0, step * index)) for index in range(k // step)]
    assert list(found.steps) == unswizzled
    if major == "k" and swizzle is Swizzle.B128:
        assert found.descriptor == 0x4000004000010000
        assert found.steps[:4] == (0, 32, 64, 96) and found.steps[4] == mn * 128
    if major == "k" and swizzle is Swizzle.B64:
        assert found.descriptor == 0x8000002000010000
    if major == "k" and swizzle is Swizzle.B32:
        assert found.descriptor == 0xC000001000010000


def test_tiles_that_wgmma_cannot_read_are_refused():
    row_major = lambda m, k: m * 144 + k * 2  # noqa: E731 (a padded pitch)
    assert wgmma_operand(row_major, 64, 64, ALL["float16"]) is None
    transposed_bytes, _, _ = manual_offset(Swizzle.B128, "mn", 64, 64, 2, True)
    assert wgmma_operand(transposed_bytes, 64, 64, ALL["int8"]) is None
    swapped = lambda m, k: manual_offset(Swizzle.B128, "k", 64, 64, 2, True)[0](m ^ 1, k)  # noqa: E731
    assert wgmma_operand(swapped, 64, 64, ALL["float16"]) is None


@pytest.mark.parametrize("swizzle", list(Swizzle))
@pytest.mark.parametrize(("dtype", "rows", "columns"), [("bfloat16", 128, 64), ("int8", 64, 256), ("float32", 24, 96)])
def test_what_the_copy_engine_writes_wgmma_can_read(swizzle, dtype, rows, columns):
    kind = ALL[dtype]
    plan = plan_boxes((columns, rows), kind, ENGINE, swizzle)
    assert plan is not None
    operand = wgmma_operand(
        lambda mn, k: plan.offset(k, mn), rows, columns, ALL["tfloat32"] if dtype == "float32" else kind
    )
    if swizzle is Swizzle.NONE:
        assert operand is None or columns * kind.storage_bytes == 16
    else:
        assert operand is not None and operand.swizzle is swizzle and operand.stride == 8 * swizzle.span


def test_boxes_cover_a_tile_once():
    plan = plan_boxes((192, 40, 3), ALL["float16"], ENGINE)
    assert plan is not None and plan.swizzle is Swizzle.B128 and plan.box == (64, 40, 3)
    seen = {plan.offset(x, y, z) for x in range(192) for y in range(40) for z in range(3)}
    assert seen == set(range(0, 192 * 40 * 3 * 2, 2))
    starts = dict(plan.boxes())
    assert len(starts) == 3
    for first, byte in starts.items():
        assert plan.offset(*first) == byte
    assert plan_boxes((20, 8), ALL["int8"], ENGINE) is None  # rows of 20 bytes
    assert plan_boxes((320, 512), ALL["int8"], ENGINE, Swizzle.B64).box == (64, 256)
