"""`T.gemm_sp` on ``mma.sp``, and the words of metadata that the lanes of a warp give sparse matrix instructions, read
from a shared tile.

In the order of lanes (`formats.sparse.in_lanes`) a warp's words lie side by side, and one access of a word each brings
them.

A step of k has 4 bytes a row for elements of 16 and 32 bits, 8 for bytes. Of bytes each lane has a word of one row, so
that all lanes count. Of the others two lanes of a quad have all of a step, a halfword of row g and one of row g + 8
each, and the selector says which two: where instructions have one, lanes 0 and 1 hold what belongs to a step and lanes
2 and 3 what belongs to the next.

Source: NVIDIA's manual of PTX, mma.sp; which lanes' words count was measured (`tests/gpu/cuda_facts_sparse.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.formats.sparse import LANE_BYTES
from tilewright.ir import UINT32, Allocate, Buffer, Call, Expr, Region, Statement, Store, const, perform, whole
from tilewright.ir.nodes import WARP
from tilewright.ops import GemmPlan, SparseGemm, lane_place
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BlockView
from tilewright.targets.gpu.gemm import SparseWarpProduct

WARP_ROWS = 16

STEP_BYTES = 4
"""Metadata of one row and step of elements of 16 or 32 bits; bytes have twice as much."""


def lane_word(gemm: SparseGemm, block: BlockView, first_row: Expr, first_byte: Expr, pairs: int) -> Expr:
    """A lane's word for the 16 rows from `first_row` on.

    Parameters
    ----------
    first_byte : where the step's metadata begins in a row.
    pairs : halfwords along a row that the lanes of a quad share: 2 for one step, 4 for two.
    """
    lane = block.thread % WARP
    g, q = lane // 4, lane % 4
    if gemm.order == "lanes":
        return _lane_order(gemm, block, first_row, first_byte, pairs, lane)
    if gemm.a.dtype.bits == 8:
        row = g + q % 2 * 8
        return _places(gemm, block, first_row, [row], first_byte, q // 2 * 4)
    byte = (q if pairs == 4 else q % 2) * 2
    return _places(gemm, block, first_row, [g, g + 8], first_byte, byte)


def _lane_order(gemm: SparseGemm, block: BlockView, first_row: Expr, first_byte: Expr, pairs: int, lane: Expr) -> Expr:
    """A word of metadata in the order of lanes, where each piece has a step of bytes or two steps of wider elements."""
    if (
        gemm.a.dtype.bits > 8 and pairs == 2
    ):  # one of the two steps: lanes 0 and 1 of a quad read what is theirs, or what 2 and 3 have
        second = first_byte // STEP_BYTES % 2
        own = lane // 4 * 4
        of_step = second * 2 + lane % 2
        lane = own + of_step
    columns = gemm.metadata.buffer.static_shape[-1]
    piece, rows = first_byte // LANE_BYTES, first_row // WARP_ROWS
    row, column = lane_place(columns, rows, piece, lane)
    return _places(gemm, block, const(0), [row], const(0), column)


def _places(
    gemm: SparseGemm, block: BlockView, first_row: Expr, rows: list[Expr], first_byte: Expr, byte: Expr
) -> Expr:
    region = gemm.metadata
    leading: list[Expr] = [const(0)] * (region.buffer.rank - 2)
    column = block.simplify(first_byte + byte)
    places: list[Region] = []
    for row in rows:
        places.append(block.shared(region, [*leading, block.simplify(first_row + row), column]))
    return Call(UINT32, "sparse_places", tuple(places))


@dataclass(slots=True)
class PlacesOfLane:
    """The words of a warpgroup's gemm, in registers.

    Attributes
    ----------
    group : number of the executing warpgroup along rows.
    """

    gemm: SparseGemm
    plan: GemmPlan
    block: BlockView
    group: Expr
    registers: Buffer | None = None

    @property
    def _shared(self) -> int:
        """Steps that share the words of a warp's lanes."""
        return self.plan.instruction.metadata_steps

    def statements(self) -> list[Statement]:
        """Reads all words into the registers that the plan has for them, or into some of their own."""
        made: list[Statement] = []
        span = self.gemm.span
        if self.plan.words is not None:
            self.registers = self.block.registers(self.plan.words)
        else:
            self.registers = Buffer("places", (self.plan.metadata_words,), UINT32, "register")
            made.append(Allocate(self.registers, span=span))
        warp = self.block.thread // WARP % 4
        for tile in range(self.plan.tiles_m):
            first = self.group * self.plan.tiles_m + tile
            row = first * self.plan.instruction.m
            row = row + warp * WARP_ROWS
            for step in range(0, self.plan.tiles_k, self._shared):
                byte = step * STEP_BYTES * (2 if self._shared == 1 else 1)
                pairs = 2 * min(self._shared, self.plan.tiles_k - step)
                value = lane_word(self.gemm, self.block, row, const(byte), pairs)
                made.append(Store(self.registers, (const(self._number(tile, step)),), value, span=span))
        return made

    def _number(self, tile: int, step: int) -> int:
        """Which word has the places of a tile of rows at a step."""
        return tile * (self.plan.metadata_words // self.plan.tiles_m) + step // self._shared

    def word(self, tile: int, step: int) -> tuple[Region, int]:
        """The word for a tile of rows and a step, and which of the lanes count."""
        assert self.registers is not None
        return Region(self.registers, (const(self._number(tile, step)),), (1,)), step % self._shared

    def held(self) -> Statement:
        """A use of the words behind the wait for the products, which read them until then."""
        assert self.registers is not None
        return hold(self.registers)


def hold(registers: Buffer) -> Statement:
    """A use of words of metadata: until then their registers are not given to others."""
    return perform("sparse_hold", whole(registers))


def lower_sparse_gemm(gemm: SparseGemm, context: Context) -> Statement | None:
    """The thread code of a sparse gemm that has a plan."""
    return _SparseWarpGemm.lower(gemm, context)


class _SparseWarpGemm(SparseWarpProduct):
    def word(self, first_row: Expr, step: Expr) -> Expr:
        step_bytes = STEP_BYTES * (2 if self.gemm.a.dtype.bits == 8 else 1)
        return lane_word(self.gemm, self.block, first_row, step * step_bytes, 2)
