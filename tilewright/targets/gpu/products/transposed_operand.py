"""Left operands of bytes that are contiguous along m, where matrix instructions want them along k: lanes transpose them
in registers.

``ldmatrix.trans`` transposes 8 x 8 units of 16 bits: a lane gets units of one column from two rows, which are the bytes
of rows 2 i and 2 i + 1 of the operand at two places along k. Two such registers hold what two registers of the
instruction want, so two permutations of bytes finish the work, and the instruction's rows i and i + 8 are rows 2 i and
2 i + 1 of the tile; the accumulator's layout says so (`MatrixInstruction.transposing`). Shared memory is read as often
as by descriptor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir import BOOL, UINT32, perform
from tilewright.ir import nodes as ir
from tilewright.ir.nodes import WARP
from tilewright.layout import REGISTER
from tilewright.ops import GemmPlan, LoadAhead, Product
from tilewright.passes.lower.block_view import BlockView

WORDS = 4
"""Registers of 32 bits of a lane for one instruction."""

EVEN, ODD = (0x6420, 0x2064), (0x7531, 0x3175)
"""Bytes of two registers that belong to row 2 i, and to row 2 i + 1; for lanes of the lower and of the upper half of a
quad."""


@dataclass(slots=True)
class TransposedLeft:
    """The registers of a gemm's left operand, and what fills them.

    Attributes
    ----------
    group : which of the warpgroups that divide the rows the executing one is.
    """

    gemm: Product | LoadAhead
    plan: GemmPlan
    block: BlockView
    group: ir.Expr
    registers: ir.Buffer = field(init=False)
    chosen: list[ir.Var] = field(init=False)
    """The permutations of bytes that make even and odd rows."""

    def __post_init__(self) -> None:
        shape = (self.plan.left_registers,)
        if self.plan.transposed is None:
            self.registers = ir.Buffer(f"{self.gemm.a.buffer.name}_transposed", shape, self.gemm.a.dtype, "register")
        else:
            self.registers = self.block.registers(self.plan.transposed)
        self.chosen = [ir.Var(UINT32, name) for name in ("even_rows", "odd_rows")]

    @property
    def _size(self) -> int:
        fragment = self.plan.instruction.a_fragment
        assert fragment is not None
        return fragment.extent(REGISTER)

    def head(self) -> list[ir.Statement]:
        """What all parts need."""
        lane = self.block.thread % WARP
        upper = ir.index_binary("ge", lane % 4, 2)
        made: list[ir.Statement] = [] if self.plan.transposed else [ir.Allocate(self.registers, span=self.gemm.span)]
        for var, (low, high) in zip(self.chosen, (EVEN, ODD)):
            made.append(
                ir.Let(
                    var, ir.Select(UINT32, upper, ir.const(high, UINT32), ir.const(low, UINT32)), span=self.gemm.span
                )
            )
        return made

    def load(self, row: int, step: int) -> tuple[ir.Buffer, list[ir.Statement]]:
        """The words of one instruction's part, and what brings them."""
        words = ir.Buffer(f"{self.gemm.a.buffer.name}_words", (WORDS,), UINT32, "register")
        return words, [ir.Allocate(words, span=self.gemm.span), self.load_into(words, row, step)]

    def load_into(self, words: ir.Buffer, row: int, step: int) -> ir.Statement:
        place = _place(self.gemm, self.plan, self.block, self.group, row, step)
        load = ir.Call(BOOL, "load_matrix_trans", (ir.Region(words, (ir.const(0),), (WORDS,)), place, ir.const(WORDS)))
        return ir.Evaluate(load, span=self.gemm.span)

    def transpose(self, words: ir.Buffer, row: int, step: int) -> list[ir.Statement]:
        """Puts the bytes of one part where the instruction wants them."""
        first = (row * self.plan.tiles_k + step) * self._size
        target = ir.Region(self.registers, (ir.const(first),), (self._size,))
        made: list[ir.Statement] = []
        for word in range(WORDS):
            pair = [ir.Load(UINT32, words, (ir.const(word // 2 * 2 + i),)) for i in range(2)]
            value = ir.Call(UINT32, "prmt", (*pair, self.chosen[word % 2]))
            made.append(perform("set_word", target, ir.const(word), value, span=self.gemm.span))
        return made


def _place(
    gemm: Product | LoadAhead, plan: GemmPlan, block: BlockView, group: ir.Expr, row: int, step: int
) -> ir.Region:
    """Where the 16 bytes lie that a lane names: row ``lane % 8`` of matrix ``lane // 8``.

    A quad's lanes get rows 2 c and 2 c + 1 of each matrix and want 4 c to 4 c + 3 along k out of two of them; the upper
    two lanes get the halves in the other order, so that the eight rows of a matrix meet in no bank.
    """
    lane = block.thread % WARP
    warp = block.thread // WARP % 4
    matrix, line = lane // 8, lane % 8
    half = ir.index_binary("xor", matrix % 2, line // 4)
    deep: ir.Expr = ir.const(step * plan.instruction.k)
    for value, factor in ((matrix // 2, 16), (line // 2, 4), (half, 2), (line % 2, 1)):
        deep = deep + value * factor
    across: ir.Expr = ir.const(row * plan.instruction.m)
    across = across + group * (plan.m // plan.warps_m)
    across = across + warp * 16
    outer: list[ir.Expr] = [ir.const(0) for _ in range(gemm.a.buffer.rank - 2)]
    return block.shared(gemm.a, [*outer, deep, across])
