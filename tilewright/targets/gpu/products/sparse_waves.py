"""`T.gemm_sp` on smfmac: the loads of a gemm, half of A, and for each tile of rows where each lane's elements stood.

A lane has a row of A, and of a step of k a quarter: the bytes of metadata of that row and quarter are its word.
"""

from __future__ import annotations

import numpy as np

from tilewright.formats.sparse import LANE_BYTES, LANE_ROWS, expand
from tilewright.interpreter.collectives import read_each
from tilewright.interpreter.evaluate import Evaluator
from tilewright.ir import UINT32, Call, Expr, Load, Statement, binary, cast, const
from tilewright.ops.sparse_gemm import SparseGemm, lane_place
from tilewright.passes.context import Context
from tilewright.targets.gpu.gemm import SparseWarpProduct
from tilewright.targets.gpu.meanings import accumulate, assemble, instruction_of


def lower_sparse_gemm(gemm: SparseGemm, context: Context) -> Statement | None:
    """The thread code of a sparse gemm that has a plan."""
    return _SparseWaveGemm.lower(gemm, context)


class _SparseWaveGemm(SparseWarpProduct):
    def word(self, first_row: Expr, step: Expr) -> Expr:
        instruction = self.plan.instruction
        size = instruction.k // 8 // (instruction.threads // instruction.m)  # bytes of a lane
        lane = self.block.thread % instruction.threads
        row = first_row + lane % instruction.m
        first = step * (instruction.k // 8)
        first = first + lane // instruction.m * size
        word: Expr = const(0, UINT32)
        for number in range(size):
            part = cast(self._byte(row, first + number), UINT32)
            word = part if number == 0 else binary("or", word, binary("shl", part, const(8 * number, UINT32)))
        return word

    def _byte(self, row: Expr, byte: Expr) -> Expr:
        """A byte of a row's metadata, wherever it lies."""
        region = self.gemm.metadata
        if self.gemm.order == "lanes":
            row, byte = self._among_lanes(row, byte)
        leading: list[Expr] = [const(0)] * (region.buffer.rank - 2)
        place = self.block.shared(region, [*leading, self.block.simplify(row), self.block.simplify(byte)])
        return Load(place.buffer.dtype, place.buffer, place.starts)

    def _among_lanes(self, row: Expr, byte: Expr) -> tuple[Expr, Expr]:
        """Where `formats.sparse.in_lanes` puts a byte of a row: lanes are those of a warp of 32 there."""
        width = 4 if self.gemm.a.dtype.bits == 8 else 2  # neighbours along a row that stay together
        inside, half = byte % LANE_BYTES, row % LANE_ROWS
        line, upper = half % 8, half // 8
        column, part = inside // width, inside % width
        pieces = LANE_BYTES // width
        place = line * pieces + column
        place = (place * 2 + upper) * width + part
        columns = self.gemm.metadata.buffer.static_shape[-1]
        rows, piece = row // LANE_ROWS, byte // LANE_BYTES
        return lane_place(columns, rows, piece, const(0), place)


def multiply_sparse(state: Evaluator, node: Call) -> int:
    """``d += expand(a, places) @ b`` in every wave, each element rounded once."""
    d, a, b = node.regions
    (word,) = node.operands
    instruction = instruction_of(state, node, a, b, d)
    assert instruction.a_fragment is not None and instruction.b_fragment is not None
    kept = assemble(read_each(state, a), instruction.a_fragment)
    words = np.broadcast_to(np.asarray(state.value(word)), state.lanes).reshape(-1, 4, instruction.m)
    size = instruction.k // 32
    parts = np.stack([(words >> (8 * number)) & 255 for number in range(size)], -1).astype(np.uint8)
    places = parts.transpose(0, 2, 1, 3).reshape(-1, instruction.m, 4 * size)
    left = np.stack([expand(one, where) for one, where in zip(kept, places, strict=True)])
    right = assemble(read_each(state, b), instruction.b_fragment)
    accumulate(state, d, left, right, instruction.d_fragment)
    return 0
