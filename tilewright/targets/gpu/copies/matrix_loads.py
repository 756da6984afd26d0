"""Operands of matrix instructions by ``ldmatrix``: each register of a fragment is an 8 x 8 matrix of 16-bit units."""

from __future__ import annotations

from tilewright.ir import BOOL, INT32, Call, Evaluate, Expr, Region, Statement, Var, const, counted, seq
from tilewright.layout import shared_rows, vector_width
from tilewright.targets.gpu.warp_product import OPERAND_LOADS, OperandLoad

ROW = 16
"""Bytes of a matrix's row."""


def load_matrices(load: OperandLoad) -> list[Statement] | None:
    """Up to four matrices at once; None of bytes and words that lie across k: it cannot transpose them."""
    product, operand, part = load.product, load.operand, load.part
    if part.dtype.bits != 16 and (operand.transposed or part.dtype.bits >= 64):
        return None
    if not _is_contiguous(load):
        return None
    words = operand.registers * part.dtype.bits // 32
    at_once = 4 // words if operand.tiles % (4 // words) == 0 else 1
    tile = Var(INT32, "tile")
    count = operand.tiles // at_once
    product.block.analyzer.bind_extent(tile, count)
    address = _row_address(load, tile, at_once, words)
    first = load.register(tile * (at_once * operand.registers))
    registers = Region(part, (first,), (operand.registers * at_once,))
    call = Call(BOOL, f"load_matrix{'_trans' * operand.transposed}", (registers, address, const(words * at_once)))
    body = seq(Evaluate(call, span=product.gemm.span))
    return [counted(tile, count, body, "unroll", span=product.gemm.span)]


def _is_contiguous(load: OperandLoad) -> bool:
    """Whether the 16 bytes that a lane names lie side by side, and begin at a multiple of 16."""
    region, block = load.operand.region, load.product.block
    bits = region.buffer.dtype.stored_bits
    layout, count = (
        block.layouts.get(region.buffer) or shared_rows(region.buffer.static_shape, bits, None),
        ROW * 8 // bits,
    )
    return vector_width(layout, bits, ROW) >= count and block.analyzer.divides(region.starts[-1], count)


def _row_address(load: OperandLoad, tile: Var, at_once: int, words: int) -> Region:
    """Where the row lies that this lane names: of matrix ``lane // 8``, row ``lane % 8``."""
    operand, bits, lane = load.operand, load.part.dtype.bits, load.lane
    matrix, row = lane // 8, lane % 8
    if words * at_once < 4:
        matrix = matrix % (words * at_once)
    which = matrix // words  # tile within this load
    word = matrix % words
    unit = 16 // bits * 8 if bits <= 16 else 4  # elements of k in a row of 16 bytes
    number = tile * at_once + which
    across: Expr
    if operand.is_left:
        # Words 0 and 1 are the upper and lower eight rows, 2 and 3 the same of the second half of k.
        across = word % 2 * 8
        depth = word // 2
    else:
        across, depth = const(0), word
    if not operand.transposed:
        across = across + row
        deep = depth * unit
    else:
        # A transposed matrix is read along its rows, which here run along m or n.
        deep = depth * 8 + row
    return load.product.element(operand, number, across, load.step, deep)


OPERAND_LOADS["load_matrix"] = load_matrices
