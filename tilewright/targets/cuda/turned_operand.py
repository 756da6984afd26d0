"""Left operands of bytes that are contiguous along m, where matrix instructions want them along k: lanes turn them in
registers.

``ldmatrix.trans`` turns 8 x 8 units of 16 bits: a lane gets units of one column from two rows, which are the bytes of
rows 2 i and 2 i + 1 of the operand at two places along k. Two such registers hold what two registers of the instruction
want, so two permutations of bytes finish the work, and the instruction's rows i and i + 8 are rows 2 i and 2 i + 1 of
the tile; the accumulator's layout says so (`MatrixInstruction.turning`). Shared memory is read as often as by
descriptor.
"""

from __future__ import annotations

from tilewright.ir.dtypes import BOOL, UINT32
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Evaluate,
    Expr,
    Let,
    Load,
    Region,
    Select,
    Statement,
    Var,
    const,
    index_binary,
)
from tilewright.layout.digits import REGISTER
from tilewright.ops.gemm_plan import GemmPlan
from tilewright.ops.sparse_gemm import Product
from tilewright.passes.lower.block_view import BlockView

WORDS = 4
"""Registers of 32 bits of a lane for one instruction."""

EVEN, ODD = (0x6420, 0x2064), (0x7531, 0x3175)
"""Bytes of two registers that belong to row 2 i, and to row 2 i + 1; for lanes of the lower and of the upper half of a
quad."""


def turned_left(gemm: Product, plan: GemmPlan, block: BlockView, group: Expr) -> tuple[Buffer, list[Statement]]:
    """The registers of a gemm's left operand, and what fills them.

    Parameters
    ----------
    group : which of the warpgroups that divide the rows the executing one is.
    """
    fragment = plan.instruction.a_fragment
    assert fragment is not None
    parts = [(row, step) for row in range(plan.tiles_m) for step in range(plan.tiles_k)]
    turned = Buffer(f"{gemm.a.buffer.name}_turned", (len(parts) * fragment.extent(REGISTER),), gemm.a.dtype, "register")
    lane = index_binary("floormod", block.thread, 32)
    upper = index_binary("ge", index_binary("floormod", lane, 4), 2)
    chosen = [Var(UINT32, name) for name in ("even_rows", "odd_rows")]
    made: list[Statement] = [Allocate(turned, span=gemm.span)]
    for var, (low, high) in zip(chosen, (EVEN, ODD)):
        made.append(Let(var, Select(UINT32, upper, const(high, UINT32), const(low, UINT32)), span=gemm.span))
    loaded = [Buffer(f"{gemm.a.buffer.name}_words", (WORDS,), UINT32, "register") for _ in parts]
    for words, (row, step) in zip(loaded, parts):
        place = _place(gemm, plan, block, group, row, step)
        load = Call(BOOL, "ldmatrix_trans", (Region(words, (const(0),), (WORDS,)), place, const(WORDS)))
        made += [Allocate(words, span=gemm.span), Evaluate(load, span=gemm.span)]
    for number, words in enumerate(loaded):
        target = Region(turned, (const(number * fragment.extent(REGISTER)),), (fragment.extent(REGISTER),))
        for word in range(WORDS):
            pair = [Load(UINT32, words, (const(word // 2 * 2 + i),)) for i in range(2)]
            value = Call(UINT32, "prmt", (*pair, chosen[word % 2]))
            made.append(Evaluate(Call(BOOL, "set_word", (target, const(word), value)), span=gemm.span))
    return turned, made


def _place(gemm: Product, plan: GemmPlan, block: BlockView, group: Expr, row: int, step: int) -> Region:
    """Where the 16 bytes lie that a lane names: row ``lane % 8`` of matrix ``lane // 8``.

    A quad's lanes get rows 2 c and 2 c + 1 of each matrix and want 4 c to 4 c + 3 along k out of two of them; the upper
    two lanes get the halves in the other order, so that the eight rows of a matrix meet in no bank.
    """
    lane = index_binary("floormod", block.thread, 32)
    warp = index_binary("floormod", index_binary("floordiv", block.thread, 32), 4)
    matrix, line = index_binary("floordiv", lane, 8), index_binary("floormod", lane, 8)
    half = index_binary("xor", index_binary("floormod", matrix, 2), index_binary("floordiv", line, 4))
    deep: Expr = const(step * plan.instruction.k)
    for value, factor in (
        (index_binary("floordiv", matrix, 2), 16), (index_binary("floordiv", line, 2), 4), (half, 2),
        (index_binary("floormod", line, 2), 1),
    ):  # fmt: skip
        deep = index_binary("add", deep, index_binary("mul", value, factor))
    across: Expr = const(row * plan.instruction.m)
    across = index_binary("add", across, index_binary("mul", group, plan.m // plan.warps_m))
    across = index_binary("add", across, index_binary("mul", warp, 16))
    outer: list[Expr] = [const(0) for _ in range(gemm.a.buffer.rank - 2)]
    return block.shared(gemm.a, [*outer, deep, across])
