"""What each operator says of operands that do not fit, word for word."""

from __future__ import annotations

import pytest
from one_block import scalar, tile

from tilewright.formats.sparse import LANE_BYTES, LANE_ROWS
from tilewright.ir import INT32, Buffer, Const, Region, TileOperator, Var, const, dtypes, whole
from tilewright.ops import Atomic, Copy, Decode, Fill, Gemm, Reduce, Scan, Transpose
from tilewright.ops.sparse_gemm import SparseGemm


def part(shape: tuple[int, ...], dtype: str = "float32", scope: str = "shared") -> Region:
    return whole(Buffer("t", shape, dtypes.dtype(dtype), scope=scope))


SYMBOLIC = whole(Buffer("s", (Var(INT32, "n"), 4), dtypes.dtype("float32")))
SOME = part((4, 4))
SUM = part((4, 4), scope="fragment")
LONG = Buffer("long", (8, 4), dtypes.dtype("float32"), scope="shared")
UPPER, LOWER, BETWEEN = (Region(LONG, (const(row), const(0)), (4, 4)) for row in (0, 4, 3))
OVERLAP = ["two operands overlap in 'long', one of which is changed while the other one is read"]

CASES: list[tuple[TileOperator, list[str]]] = [
    (Copy(part((4, 5)), part((5, 4))), ["shapes differ: source (4, 5), destination (5, 4)"]),
    (Copy(SYMBOLIC, part((4, 4))), ["shapes differ: source (?, 4), destination (4, 4)"]),
    (Fill(SOME, Const(dtypes.dtype("float32x4"), 0.0)), ["the value is a vector of float32x4, but a scalar was expected"]),
    (Transpose(part((4, 5)), part((4, 5))),
     ["the source has shape (4, 5), but the destination, (4, 5), is not its transpose"]),
    (Transpose(UPPER, UPPER), OVERLAP),
    (Transpose(BETWEEN, UPPER), OVERLAP),
    (Transpose(UPPER, LOWER), []),
    (Copy(UPPER, BETWEEN), OVERLAP),
    (Copy(UPPER, UPPER), []),
    (Copy(UPPER, LOWER), []),
    (Scan(BETWEEN, LOWER), OVERLAP),
    (Scan(UPPER, UPPER), []),
    (Atomic(UPPER, BETWEEN), OVERLAP),
    (Atomic(UPPER, UPPER), []),
    (Gemm(UPPER, LOWER, UPPER), OVERLAP),
    (Gemm(UPPER, UPPER, LOWER), []),
    (Gemm(part((4, 8)), part((9, 4)), SOME), ["a has k = 8 (shape (4, 8)), but b has k = 9 (shape (9, 4))"]),
    (Gemm(part((4, 8)), part((8, 4)), SOME, transpose_b=True),
     ["a has k = 8 (shape (4, 8)), but b has k = 4 (shape (8, 4), transposed)",
      "the product has shape (4, 8), but c has shape (4, 4)"]),
    (Gemm(part((8,)), part((8, 4)), SOME), ["a has shape (8), but two dimensions are needed"]),
    (Gemm(SYMBOLIC, part((4, 4)), SOME), ["the extents of a, (?, 4), must be known when compiling"]),
    (Gemm(part((4, 4)), part((4, 4)), part((4, 4), "int32")),
     ["c is int32, but the product of float32 and float32 needs a float accumulator"]),
    (Gemm(part((4, 4), "bool"), SOME, SUM),
     ["operands are bool, float32 and float32, but a product of bools is not defined"]),
    (Gemm(SOME, SOME, SUM, policy="diagonal"), ["the policy is 'diagonal', but should be one of square, full_row, full_col"]),
    (Gemm(SOME, SOME, SUM, promote_every=3), ["promote_every is 3, which does not divide k = 4"]),
    (Gemm(SOME, SOME, SUM, scale_a=part((3, 1))),
     ["the scale of a has shape (3, 1), which does not divide that of a, (4, 4)"]),
    (Gemm(part((4, 4), "int8"), part((4, 4), "int8"), part((4, 4), "int32"), scale_b=part((4,))),
     ["c is int32, but a scaled product needs a float accumulator"]),
    (Gemm(SOME, SOME, SUM, shift=part((3,))),
     ["the shift has shape (3), but one element for each of 4 rows is needed"]),
    (Gemm(SOME, SOME, SUM, scale_b=part((2, 1)), shift=part((4,))),
     ["a shift is added before scales, which must have one block along k"]),
    (Gemm(SOME, SOME, SUM, shift=part((4,)), shift_b=part((3,))),
     ["the shift's factor has shape (3), but one element for each of 4 columns is needed"]),
    (Gemm(SOME, SOME, SUM, shift_b=part((4,))), ["factors of a shift were given without it"]),
    (Gemm(SOME, SOME, SUM, groups=3), ["there are 3 groups, which do not divide k = 4"]),
    (Gemm(SOME, SOME, SUM, scale_b=part((4, 2)), shift=part((4,)), groups=2),
     ["the scale of b has shape (4, 2), but a line of 4 for each of 2 groups is needed",
      "the shift has shape (4), but a line of 4 for each of 2 groups is needed"]),
    (Gemm(SOME, SOME, SUM, shift=part((2, 4)), shift_b=part((4,)), groups=2),
     ["the shift's factor has shape (4), but a line of 4 for each of 2 groups is needed"]),
    (Reduce(SOME, part((4,)), "product"),
     ["the kind is 'product', but should be one of sum, abssum, max, absmax, min, bitand, bitor, bitxor, any, all"]),
    (Reduce(SOME, part((4,)), "sum", dim=2), ["dim is 2, but the source has 2 dimensions"]),
    (Reduce(part((4, 5)), part((5,)), "sum", dim=1),
     ["folding dimension 1 of (4, 5) gives (4), but the destination has shape (5)"]),
    (Reduce(SOME, part((4,)), "bitor"), ["bitor needs integers, but combines float32 into float32"]),
    (Reduce(SOME, part((4,), "int32"), "sum"), ["a sum of float32 needs a float destination, not int32"]),
    (Reduce(SOME, part((4,), "bool"), "max"), ["max of float32 does not fit a destination of bool"]),
    (Scan(SOME, part((4, 5))), ["shapes differ: source (4, 4), destination (4, 5)"]),
    (Scan(SOME, SOME, "min"), ["the kind is 'min', but should be one of sum, max"]),
    (Scan(SOME, SOME, dim=-3), ["dim is -3, but the source has 2 dimensions"]),
    (Scan(SOME, part((4, 4), "int8")), ["a running sum of float32 does not fit a destination of int8"]),
    (Atomic(SOME, part((4, 5))), ["shapes differ: value (4, 5), destination (4, 4)"]),
    (Atomic(SOME, scalar(1.0), "mul"), ["the kind is 'mul', but should be one of add, max, min, and, or, xor"]),
    (Atomic(SOME, scalar(1.0), "or"), ["atomic or needs integers, but the destination is float32"]),
    (Atomic(SOME, scalar(1.0), order="soon"),
     ["the memory order is 'soon', but should be one of relaxed, acquire, release, acq_rel, seq_cst"]),
    (Atomic(part((4,), scope="fragment"), scalar(1.0)),
     ["the destination is a fragment buffer, but atomics need global or shared memory"]),
    (Atomic(part((4,), "uint4"), const(1)),
     ["the destination is uint4, but atomics need numbers of 8 bits or more"]),
    (Decode(SOME, part((4, 5), "int4")), ["shapes differ: source (4, 5), destination (4, 4)"]),
    (Decode(SOME, part((4, 4), "int4"), axis=2), ["axis is 2, but the source has 2 dimensions"]),
    (Decode(SOME, part((4, 4), "int4"), part((4, 3))),
     ["the scale has shape (4, 3), which does not fit groups of a source of (4, 4)"]),
    (Decode(SOME, part((4, 4), "int4"), part((4, 1)), group_size=2),
     ["the scale has shape (4, 1), which does not fit groups of a source of (4, 4)"]),
    (Decode(SOME, part((4, 4), "int4"), zero=part((3, 1))),
     ["the zero has shape (3, 1), which does not fit groups of a source of (4, 4)"]),
    (Decode(SOME, part((4, 4), "int16")), ["the source is int16, but codes have 8 bits or fewer"]),
    (Decode(part((4, 4), "int32"), part((4, 4), "int4"), scalar(1.0)),
     ["the destination is int32, but scaled values need a float"]),
    (Decode(SOME, part((4, 4), "int4"), zeros_mode="signed"),
     ["zeros_mode is 'signed', but should be one of original, rescale, quantized"]),
    (Decode(SOME, part((4, 4), "int4"), zero=part((4, 1)), zeros_mode="quantized"),
     ["zeros_mode is 'quantized', but the zeros are float32, not integers"]),
    (Decode(SOME, part((4, 4), "uint4"), codebook=(0.0, 1.0)), ["the codebook has 2 values, but uint4 has 16 codes"]),
    (Decode(SOME, part((4, 4), "uint4"), group_size=0), ["the group size is 0, but should be positive"]),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "sentences"), CASES, ids=[f"{case[0].name}-{i}" for i, case in enumerate(CASES)])
def test_sentences(operator: TileOperator, sentences: list[str]) -> None:
    assert list(operator.check()) == sentences


@pytest.mark.parametrize(("rows", "columns"), [(24, 8), (16, 4), (24, 4), (16, 8)])
def test_metadata_in_the_order_of_lanes_is_whole_pieces(rows: int, columns: int) -> None:
    """A byte stands for eight numbers along k, of which four are kept."""
    a, b = part((rows, 4 * columns), "float16"), part((8 * columns, 8), "float16")
    operator = SparseGemm(a, part((rows, columns), "uint8"), b, part((rows, 8)), order="lanes")
    fits = rows % LANE_ROWS == columns % LANE_BYTES == 0
    said = f"the metadata has shape ({rows}, {columns}); in the order of lanes it should have a multiple of 16 rows and of 8 columns"
    assert list(operator.check()) == [said] * (not fits)


def test_views_and_slices_fit_as_they_should() -> None:
    stages = tile("stages", (3, 16, 8), "float16")
    one = Region(stages, (const(1), const(0), const(0)), (1, 16, 8))
    fine: list[TileOperator] = [
        Gemm(one, part((8, 4), "float16"), part((16, 4))),
        Copy(one, part((16, 8))),
        Reduce(one, part((16,), "float32"), "sum"),
        Reduce(one, part((16, 1), "float32"), "sum"),
        Decode(part((16, 8)), Region(tile("w", (2, 16, 8), "int4"), (const(0),) * 3, (1, 16, 8)), part((16,))),
    ]
    for operator in fine:
        assert list(operator.check()) == [], operator.name
