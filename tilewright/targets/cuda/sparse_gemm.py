"""`T.gemm_sp` on ``mma.sp``: the loads of a gemm, half of A, and for each tile of rows a word of metadata a lane.

The first lanes of each quad give the words of 16-bit elements, all lanes those of bytes (`formats.sparse.metadata_word`); a word
is put together from the bytes of one row or two.
"""

from __future__ import annotations

from tilewright.ir.dtypes import BOOL, INT32, UINT32
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Evaluate,
    Expr,
    For,
    Let,
    Load,
    Region,
    Seq,
    Statement,
    Var,
    binary,
    cast,
    const,
    index_binary,
    seq,
)
from tilewright.ops.sparse_gemm import SparseGemm
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK
from tilewright.passes.tile.select_instructions import FACT, GemmPlan
from tilewright.targets.cuda.gemm import Operand, WarpGemm

FIRST_TWO = 0x44
"""A byte of metadata that keeps the first two elements of both its groups."""


def lower_sparse_gemm(gemm: SparseGemm, context: Context) -> Statement | None:
    """The thread code of a sparse gemm that has a plan."""
    plan: GemmPlan | None = context.facts.get(FACT, {}).get(gemm)
    return None if plan is None else _SparseWarpGemm(gemm, plan, context.facts[BLOCK]).statements()  # type: ignore[arg-type]


class _SparseWarpGemm(WarpGemm):
    """A warp's gemm whose left operand is half as deep."""

    gemm: SparseGemm  # type: ignore[assignment]

    def statements(self) -> Seq:
        gemm, plan = self.gemm, self.plan
        assert plan.instruction.a_fragment is not None and plan.instruction.b_fragment is not None
        depth = plan.instruction.k
        left = Operand(gemm.a, True, False, plan.tiles_m, plan.instruction.a_fragment.registers, depth // 2)
        right = Operand(gemm.b, False, not gemm.transpose_b, plan.tiles_n, plan.instruction.b_fragment.registers, depth)
        a, b = self._part(left, "a"), self._part(right, "b")
        step = Var(INT32, "k_step")
        self.block.bind(step, plan.tiles_k)
        loads = [
            statement for operand, part in ((left, a), (right, b)) for statement in self._loads(operand, part, step)
        ]
        body = seq(loads, self._multiply(left, right, a, b, step))
        loop = For(step, const(0), const(plan.tiles_k), const(1), body, "unroll", span=gemm.span)
        return seq(self._clear(), [Allocate(part, span=gemm.span) for part in (a, b)], loop)

    @property
    def _sets(self) -> int:
        return 1

    def _multiply(self, left: Operand, right: Operand, a: Buffer, b: Buffer, step: Var) -> Statement:
        plan, accumulator = self.plan, self.block.registers(self.gemm.c.buffer)
        row, column, word = Var(INT32, "m_tile"), Var(INT32, "n_tile"), Var(UINT32, "places")
        self.block.bind(row, plan.tiles_m)
        size = plan.instruction.d_fragment.registers
        place = index_binary("mul", index_binary("add", index_binary("mul", row, plan.tiles_n), column), size)
        arguments = (
            Region(accumulator, (place,), (size,)), self._fragment(left, a, row, step), self._fragment(right, b, column, step), word,
        )  # fmt: skip
        call = Evaluate(Call(BOOL, plan.instruction.function, arguments), span=self.gemm.span)
        inner = For(column, const(0), const(plan.tiles_n), const(1), seq(call), "unroll", span=self.gemm.span)
        body = seq(Let(word, self._word(row, step), span=self.gemm.span), inner)
        return For(row, const(0), const(plan.tiles_m), const(1), body, "unroll", span=self.gemm.span)

    def _word(self, tile: Var, step: Var) -> Expr:
        """This lane's word of metadata for a tile of rows at a step of k."""
        lane = index_binary("floormod", self.block.thread, 32)
        g, q = index_binary("floordiv", lane, 4), index_binary("floormod", lane, 4)
        if self.gemm.a.dtype.bits == 8:
            lower = index_binary("add", g, index_binary("mul", index_binary("floormod", q, 2), 8))
            first = index_binary("mul", index_binary("floordiv", q, 2), 4)
            places = [(lower, index_binary("add", first, byte)) for byte in range(4)]
        else:
            first = index_binary("mul", index_binary("floormod", q, 2), 2)
            places = [
                (index_binary("add", g, 8 * half), index_binary("add", first, byte))
                for half in (0, 1)
                for byte in (0, 1)
            ]
        word: Expr | None = None
        for number, (across, deep) in enumerate(places):
            # Zeros stand where a copy met the end of the tensor; no metadata is less than two groups of places 0 and 1.
            byte = binary("max", cast(self._metadata(tile, step, across, deep), UINT32), const(FIRST_TWO, UINT32))
            shifted = byte if number == 0 else binary("shl", byte, const(8 * number, UINT32))
            word = shifted if word is None else binary("or", word, shifted)
        assert word is not None
        return word

    def _metadata(self, tile: Var, step: Var, across: Expr, deep: Expr) -> Expr:
        """The byte of metadata of a row of this warp's tile, `deep` bytes into a step."""
        plan = self.plan
        warp = index_binary("floormod", index_binary("floordiv", self.block.thread, 32), plan.warps_m)
        first = index_binary("add", index_binary("mul", warp, plan.tiles_m), tile)
        outer = index_binary("add", index_binary("mul", first, plan.instruction.m), across)
        inner = index_binary("add", index_binary("mul", step, plan.instruction.k // 8), deep)
        region = self.gemm.metadata
        offsets = [const(0)] * (region.buffer.rank - 2) + [outer, inner]
        place = self.block.shared(region, offsets)
        return Load(place.dtype, place.buffer, place.starts)
