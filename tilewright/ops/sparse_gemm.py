"""`T.gemm_sp`: multiply a 2:4 sparse tile, held as what was kept and where it stood, by a dense one into an
accumulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import ClassVar

import numpy as np

from tilewright.formats.sparse import LANE_BYTES, LANE_ROWS, PAIR, expand, group_of, in_rows
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import FLOAT32, INT32, UINT8, DType
from tilewright.ops.base import (
    accumulator,
    as_shape,
    begin,
    check_matrices,
    compute_dtype,
    element,
    get,
    matrix_shape,
    parallel,
    put,
    serial,
    shape_of_rank,
    shape_text,
    store_element,
)
from tilewright.ops.gemm import POLICIES, Gemm, accumulated, first_value
from tilewright.ops.gemm_plan import GemmPlan

ORDERS = ("rows", "lanes")
"""Of metadata: row by row, or as the lanes of warps give it to matrix instructions."""


@ir.tile_operator("sparse_gemm")
class SparseGemm(ir.TileOperator):
    """``c += expand(a, metadata) @ b``, or ``c = ...`` where `clear` holds.

    Fields
    ------
    a : (m, k / 2), two of every four elements along k (of tfloat32 one of every two).
    metadata : uint8 (m, k / 8), as `formats.sparse.compress` gives it; (m, k / 4) for tfloat32.
    b, c, transpose_b, clear, policy, plan : as those of `Gemm`.
    order : of the metadata: ``"rows"``, or ``"lanes"`` as `formats.sparse.in_lanes` makes it.

    The sum of one operator is rounded once to c's dtype; integers wrap.
    """

    conditions: ClassVar[tuple[str, ...]] = ("clear",)

    a: ir.Region
    metadata: ir.Region
    b: ir.Region
    c: ir.Region
    transpose_b: bool = False
    clear: bool | ir.Expr = False
    policy: str = "square"
    order: str = "rows"
    plan: GemmPlan | None = field(default=None, kw_only=True, metadata=ir.UNPRINTED)

    @property
    def transpose_a(self) -> bool:
        """Never: metadata goes with rows."""
        return False

    @property
    def operands(self) -> tuple[ir.Region, ...]:
        """What a matrix instruction reads of shared tiles, itself or through registers."""
        return (self.a, self.metadata, self.b)

    @property
    def group(self) -> int:
        """Neighbours along k of which half is kept; of float32 the metadata's width says it."""
        pairs = self.a.dtype == FLOAT32 and matrix_shape(self.metadata)[1] * 2 * PAIR == self.k
        return PAIR if pairs else group_of(self.a.dtype)

    @property
    def m(self) -> int:
        return matrix_shape(self.a)[0]

    @property
    def n(self) -> int:
        return matrix_shape(self.b)[0 if self.transpose_b else 1]

    @property
    def k(self) -> int:
        return matrix_shape(self.b)[1 if self.transpose_b else 0]

    def check(self) -> Iterator[str]:
        wrong = list(check_matrices(a=self.a, metadata=self.metadata, b=self.b, c=self.c))
        yield from wrong or self._check_shapes()
        if self.metadata.dtype != UINT8:
            yield f"the metadata is {self.metadata.dtype}, but should be uint8"
        if self.c.dtype.is_integer and not (self.a.dtype.is_integer and self.b.dtype.is_integer):
            yield f"c is {self.c.dtype}, but the product of {self.a.dtype} and {self.b.dtype} needs a float accumulator"
        if self.policy not in POLICIES:
            yield f"the policy is {self.policy!r}, but should be one of {', '.join(POLICIES)}"
        if self.order not in ORDERS:
            yield f"the order of the metadata is {self.order!r}, but should be one of {', '.join(ORDERS)}"

    def _check_shapes(self) -> Iterator[str]:
        step = 2 * self.group
        if self.k % step:
            yield f"k is {self.k}, but should be a multiple of {step}"
        elif matrix_shape(self.a) != (self.m, self.k // 2):
            yield f"b has k = {self.k}, so a should have {self.k // 2} columns, but it has shape {shape_text(self.a)}"
        elif matrix_shape(self.metadata) != (self.m, self.k // step):
            yield f"the metadata should have shape ({self.m}, {self.k // step}), but has {shape_text(self.metadata)}"
        elif self.order == "lanes":
            yield from self._check_lanes()
        if matrix_shape(self.c) != (self.m, self.n):
            yield f"the product has shape ({self.m}, {self.n}), but c has shape {shape_text(self.c)}"

    def _check_lanes(self) -> Iterator[str]:
        rows, columns = matrix_shape(self.metadata)
        if rows % LANE_ROWS or columns % LANE_BYTES:
            yield (
                f"the metadata has shape {shape_text(self.metadata)}; in the order of lanes it should have a "
                "multiple of "
                f"{LANE_ROWS} rows and of {LANE_BYTES} columns"
            )
        if tuple(self.metadata.extents[-2:]) != tuple(self.metadata.buffer.shape[-2:]):
            yield "the metadata is part of a tile, but in the order of lanes its rows lie together"

    def effects(self) -> ir.Effects:
        reads = [self.a, self.metadata, self.b]
        return ir.Effects(reads=tuple(reads if self.clear is True else [*reads, self.c]), writes=(self.c,))

    def reference(self, *reads: np.ndarray) -> tuple[np.ndarray]:
        kept, metadata, b = (
            as_shape(one, shape_of_rank(region, 2)) for one, region in zip(reads, (self.a, self.metadata, self.b))
        )
        old = None if self.clear is True else as_shape(reads[3], (self.m, self.n))
        if self.order == "lanes":
            metadata = in_rows(metadata, self.a.dtype.bits)
        return (accumulated(expand(kept, metadata, self.group), b.T if self.transpose_b else b, old, self.c.dtype),)

    def lower(self) -> ir.Statement:
        return parallel((self.m, self.n), self._lower_element, span=self.span)

    def _lower_element(self, i: ir.Var, j: ir.Var) -> list[ir.Statement]:
        """One element of c: a scalar accumulator over what was kept."""
        integers = self.c.dtype.is_integer
        wide: DType = self.c.dtype if integers else compute_dtype(self.a.dtype, self.b.dtype, self.c.dtype)
        first = first_value(self.c, (i, j), self.clear, wide)
        total = accumulator("total", wide)

        def step(kept: ir.Var) -> list[ir.Statement]:
            # Kept elements of a group have two bits each; the one of a pair is named by the last of its four.
            half = self.group // 2
            byte_place = self._metadata_place(i, kept // self.group)
            byte = ir.cast(element(self.metadata, byte_place), INT32)
            shift = kept % self.group * (4 // half)
            if half == 1:
                shift = shift + 3
            place = ir.binary("and", ir.binary("shr", byte, shift), ir.const(self.group - 1))
            first = kept // half * self.group
            k = first + place
            a = ir.cast(element(self.a, (i, kept)), wide)
            b = ir.cast(element(self.b, (j, k) if self.transpose_b else (k, j)), wide)
            return [put(total, ir.binary("add", get(total), ir.binary("mul", a, b)))]

        return [begin(total, first), serial("kept", 0, self.k // 2, step), store_element(self.c, (i, j), get(total))]

    def _metadata_place(self, row: ir.Expr, byte: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Where the metadata tile has a byte of a row."""
        if self.order == "rows":
            return row, byte
        number = row % LANE_ROWS
        g, half = number % 8, number // 8
        inside = byte % LANE_BYTES
        if self.a.dtype.bits == 8:
            lane = _sum((g, 4), (inside // 4, 2), (half, 1))
            part = inside % 4
        else:
            lane = _sum((g, 4), (inside // 2, 1))
            part = _sum((half, 2), (inside % 2, 1))
        piece = byte // LANE_BYTES
        return lane_place(matrix_shape(self.metadata)[1], row // LANE_ROWS, piece, lane, part)


def lane_place(
    columns: int, rows: ir.Expr, piece: ir.Expr, lane: ir.Expr, part: ir.Expr | int = 0
) -> tuple[ir.Expr, ir.Expr]:
    """Row and column of a byte in a tile whose metadata is in the order of lanes.

    Parameters
    ----------
    columns : of the tile.
    rows, piece : number of the 16 rows, and of the 8 bytes of each along k.
    lane, part : whose word it is, and which of its bytes.
    """
    inside = _sum((piece, LANE_ROWS * LANE_BYTES), (lane, 4), (part, 1))
    down = _sum((rows, LANE_ROWS), (inside // columns, 1))
    return down, inside % columns


def _sum(*terms: tuple[ir.Expr | int, int]) -> ir.Expr:
    total: ir.Expr = ir.const(0)
    for term, factor in terms:
        total = total + term * factor
    return total


Product = Gemm | SparseGemm
"""What matrix instructions execute: ``c += a @ b``."""
