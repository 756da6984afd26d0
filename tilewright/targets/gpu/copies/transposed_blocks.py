"""Tiles of small elements that each thread transposes among its own registers: words of rows become words of columns.

Moved one by one, the bytes of a word take five instructions, and two halves two; permutations of bytes of two words
take two and one.
"""

from __future__ import annotations

import numpy as np

from tilewright.interpreter.collectives import read_each, write_each
from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.ir import BOOL, Call, Const, Evaluate, Intrinsic, Statement, const, register, seq, whole
from tilewright.layout import REGISTER, THREAD, Layout
from tilewright.ops import OWN, Transpose
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK

register(Intrinsic("transpose_blocks", 4, None, pure=False, reads_only=(0, 1, 3)))


def lower_transpose(transpose: Transpose, context: Context) -> Statement | None:
    """The thread code of blocks of whole words, which registers hold by rows before and by columns behind."""
    if transpose.schedule.prefer != OWN:
        return None
    source, target, block = transpose.source, transpose.destination, context.facts[BLOCK]
    sizes = _blocks(block.layouts[source.buffer], block.layouts[target.buffer], 32 // source.dtype.stored_bits)
    assert sizes is not None, transpose
    places = [whole(block.registers(region.buffer)) for region in (target, source)]
    made = Call(BOOL, "transpose_blocks", (const(sizes[0]), const(sizes[1]), *places))
    return seq(Evaluate(made, span=transpose.span))


def _blocks(loaded: Layout, stored: Layout, word: int) -> tuple[int, int] | None:
    """Rows and columns of the blocks that lie one behind the other in each thread's registers, in words of so many
    elements."""
    if loaded.replicas or stored.replicas:
        return None
    column, row = np.indices(stored.shape)
    if not np.array_equal(stored.offset(THREAD, column, row), loaded.offset(THREAD, row, column)):
        return None
    count = stored.extent(REGISTER)
    origin = np.zeros(count, np.int64)
    to, come = stored.offset(REGISTER, column, row), loaded.offset(REGISTER, row, column)
    origin[to] = come
    if not np.array_equal(origin[to], come):
        return None
    for rows in range(count // word, word - 1, -word):
        for columns in range(word, count + 1, word):
            if count % (rows * columns) == 0:
                transposed = np.arange(count).reshape(-1, rows, columns).swapaxes(1, 2)
                if np.array_equal(transposed.ravel(), origin):
                    return rows, columns
    return None


def _transpose_blocks(state: Evaluator, node: Call) -> int:
    (rows, columns), (to, come) = node.operands, node.regions
    assert isinstance(rows, Const) and isinstance(columns, Const)
    held = read_each(state, come)
    blocks = held.reshape(*held.shape[:-1], -1, int(rows.value), int(columns.value))
    write_each(state, to, np.swapaxes(blocks, -1, -2).reshape(held.shape))
    return 0


SPECIAL_CALLS["transpose_blocks"] = _transpose_blocks
