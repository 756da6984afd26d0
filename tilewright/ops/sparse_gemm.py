"""`T.gemm_sp`: multiply a 2:4 sparse tile, held as what was kept and where it stood, by a dense one into an
accumulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import ClassVar

import numpy as np

from tilewright.formats.sparse import LANE_BYTES, LANE_ROWS, PAIR, expand, group_of, in_rows
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import FLOAT32, INT32, UINT8
from tilewright.ops import base
from tilewright.ops.gemm_plan import ProductPlan
from tilewright.ops.product import Product

ORDERS = ("rows", "lanes")
"""Of metadata: row by row, or as the lanes of warps give it to matrix instructions."""


@ir.tile_operator("sparse_gemm")
class SparseGemm(Product):
    """``c += expand(a, metadata) @ b``, or ``c = ...`` where `clear` holds.

    Fields
    ------
    a : (m, k / 2), two of every four elements along k (of tfloat32 one of every two).
    metadata : uint8 (m, k / 8), as `formats.sparse.compress` gives it; (m, k / 4) for tfloat32.
    b, c, transpose_b, clear, policy, plan : as those of every `Product`.
    order : of the metadata: ``"rows"``, or ``"lanes"`` as `formats.sparse.in_lanes` makes it.
    """

    multiplied: ClassVar[tuple[str, ...]] = ("a", "metadata", "b")

    a: ir.Region
    metadata: ir.Region
    b: ir.Region
    c: ir.Region
    transpose_b: bool = False
    clear: bool | ir.Expr = False
    policy: str = "square"
    order: str = "rows"
    plan: ProductPlan | None = field(default=None, kw_only=True, metadata=ir.UNPRINTED)

    @property
    def group(self) -> int:
        """Neighbours along k of which half is kept; of float32 the metadata's width says it."""
        pairs = self.a.dtype == FLOAT32 and base.matrix_shape(self.metadata)[1] * 2 * PAIR == self.k
        return PAIR if pairs else group_of(self.a.dtype)

    def check(self) -> Iterator[str]:
        yield from Product.check(self)
        if self.order not in ORDERS:
            yield f"the order of the metadata is {self.order!r}, but should be one of {', '.join(ORDERS)}"

    def _check_dtypes(self) -> Iterator[str]:
        if self.metadata.dtype != UINT8:
            yield f"the metadata is {self.metadata.dtype}, but should be uint8"
        yield from Product._check_dtypes(self)

    def _check_shapes(self) -> Iterator[str]:
        step = 2 * self.group
        if self.k % step:
            yield f"k is {self.k}, but should be a multiple of {step}"
        elif base.matrix_shape(self.a) != (self.m, self.k // 2):
            shape = base.shape_text(self.a)
            yield f"b has k = {self.k}, so a should have {self.k // 2} columns, but it has shape {shape}"
        elif base.matrix_shape(self.metadata) != (self.m, self.k // step):
            shape = base.shape_text(self.metadata)
            yield f"the metadata should have shape ({self.m}, {self.k // step}), but has {shape}"
        elif self.order == "lanes":
            yield from self._check_lanes()
        yield from Product._check_shapes(self)

    def _check_lanes(self) -> Iterator[str]:
        rows, columns = base.matrix_shape(self.metadata)
        if rows % LANE_ROWS or columns % LANE_BYTES:
            yield (
                f"the metadata has shape {base.shape_text(self.metadata)}; in the order of lanes it should have a "
                "multiple of "
                f"{LANE_ROWS} rows and of {LANE_BYTES} columns"
            )
        if tuple(self.metadata.extents[-2:]) != tuple(self.metadata.buffer.shape[-2:]):
            yield "the metadata is part of a tile, but in the order of lanes its rows lie together"

    def reference(self, *reads: np.ndarray) -> tuple[np.ndarray]:
        of = dict(zip(self.read(), reads))
        kept, metadata, b = (
            base.as_shape(of[name], base.shape_of_rank(region, 2))
            for name, region in zip(self.multiplied, self.operands)
        )
        if self.order == "lanes":
            metadata = in_rows(metadata, self.a.dtype.bits)
        whole = expand(kept, metadata, self.group)
        return (self.accumulated(whole, b.T if self.transpose_b else b, of.get("c")),)

    def _lower_element(self, i: ir.Var, j: ir.Var) -> list[ir.Statement]:
        """One element of c: a scalar accumulator over what was kept."""
        return self._summed((i, j), lambda total: [self._kept_products((i, j), total)], self.clear)

    def _kept_products(self, index: tuple[ir.Var, ir.Var], total: ir.Buffer) -> ir.Statement:
        (i, j), wide = index, total.dtype

        def step(kept: ir.Var) -> list[ir.Statement]:
            # Kept elements of a group have two bits each; the one of a pair is named by the last of its four.
            half = self.group // 2
            byte_place = self._metadata_place(i, kept // self.group)
            byte = ir.cast(base.element(self.metadata, byte_place), INT32)
            shift = kept % self.group * (4 // half)
            if half == 1:
                shift = shift + 3
            place = ir.binary("and", ir.binary("shr", byte, shift), ir.const(self.group - 1))
            k = kept // half * self.group + place
            a = ir.cast(base.element(self.a, (i, kept)), wide)
            b = ir.cast(base.element(self.b, (j, k) if self.transpose_b else (k, j)), wide)
            return [base.put(total, ir.binary("add", base.get(total), ir.binary("mul", a, b)))]

        return base.serial("kept", 0, self.k // 2, step)

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
        return lane_place(base.matrix_shape(self.metadata)[1], row // LANE_ROWS, piece, lane, part)


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
