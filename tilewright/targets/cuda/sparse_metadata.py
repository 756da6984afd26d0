"""The words of metadata that the lanes of a warp give sparse matrix instructions, read from a row-major shared tile.

A step of k has 4 bytes a row for elements of 16 and 32 bits, 8 for bytes.  Of bytes each lane has a word of one row, so that all
lanes count.  Of the others two lanes of a quad have all of a step, a halfword of row g and one of row g + 8 each, and the selector
says which two: where instructions have one, lanes 0 and 1 hold what belongs to a step and lanes 2 and 3 what belongs to the next.

Source: `hardware.md`, section 8.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.dtypes import UINT32
from tilewright.ir.nodes import Call, Expr, Let, Region, Statement, Var, const, index_binary
from tilewright.ops.sparse_gemm import SparseGemm
from tilewright.passes.lower.block_view import BlockView
from tilewright.passes.tile.select_instructions import GemmPlan

WARP, WARP_ROWS = 32, 16

STEP_BYTES = 4
"""Metadata of one row and step of elements of 16 or 32 bits; bytes have twice as much."""


def lane_word(gemm: SparseGemm, block: BlockView, first_row: Expr, first_byte: Expr, pairs: int) -> Expr:
    """A lane's word for the 16 rows from `first_row` on.

    Parameters
    ----------
    first_byte : where the step's metadata begins in a row.
    pairs : halfwords along a row that the lanes of a quad share: 2 for one step, 4 for two.
    """
    lane = index_binary("floormod", block.thread, WARP)
    g, q = index_binary("floordiv", lane, 4), index_binary("floormod", lane, 4)
    if gemm.a.dtype.bits == 8:
        row = index_binary("add", g, index_binary("mul", index_binary("floormod", q, 2), 8))
        return _places(
            gemm, block, first_row, [row], first_byte, index_binary("mul", index_binary("floordiv", q, 2), 4)
        )
    byte = index_binary("mul", q if pairs == 4 else index_binary("floormod", q, 2), 2)
    return _places(gemm, block, first_row, [g, index_binary("add", g, 8)], first_byte, byte)


def _places(
    gemm: SparseGemm, block: BlockView, first_row: Expr, rows: list[Expr], first_byte: Expr, byte: Expr
) -> Expr:
    region = gemm.metadata
    leading: list[Expr] = [const(0)] * (region.buffer.rank - 2)
    column = block.simplify(index_binary("add", first_byte, byte))
    places: list[Region] = []
    for row in rows:
        places.append(block.shared(region, [*leading, block.simplify(index_binary("add", first_row, row)), column]))
    return Call(UINT32, "sparse_places", tuple(places))


@dataclass(slots=True)
class PlacesOfLane:
    """The words of a warpgroup's gemm, by name.

    Attributes
    ----------
    group : number of the executing warpgroup along rows.
    """

    gemm: SparseGemm
    plan: GemmPlan
    block: BlockView
    group: Expr
    words: dict[tuple[int, int], Var] = field(default_factory=dict)

    @property
    def _shared(self) -> int:
        """Steps that share the words of a warp's lanes."""
        return 1 if self.gemm.a.dtype.bits == 8 else 2

    def statements(self) -> list[Statement]:
        """Reads all words."""
        made: list[Statement] = []
        warp = index_binary("floormod", index_binary("floordiv", self.block.thread, WARP), 4)
        for tile in range(self.plan.tiles_m):
            first = index_binary("add", index_binary("mul", self.group, self.plan.tiles_m), tile)
            row = index_binary("mul", first, self.plan.instruction.m)
            row = index_binary("add", row, index_binary("mul", warp, WARP_ROWS))
            for step in range(0, self.plan.tiles_k, self._shared):
                byte = step * STEP_BYTES * (2 if self._shared == 1 else 1)
                pairs = 2 * min(self._shared, self.plan.tiles_k - step)
                word = Var(UINT32, "places")
                self.words[tile, step] = word
                made.append(Let(word, lane_word(self.gemm, self.block, row, const(byte), pairs), span=self.gemm.span))
        return made

    def word(self, tile: int, step: int) -> tuple[Var, int]:
        """The word for a tile of rows and a step, and which of the lanes count."""
        selector = step % self._shared
        return self.words[tile, step - selector], selector
