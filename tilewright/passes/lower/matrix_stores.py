"""Stores of whole matrices out of registers: where a loop's elements lie as the machine's matrices do, the threads that
hold one store it together, by the places of its first row and of its second.

A matrix that is not in bounds as a whole is stored by each thread for itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilewright.ir import INT32, find, perform, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.layout import REGISTER, THREAD, Layout
from tilewright.machine.instructions import GLOBAL, SHARED, CopyInstruction

if TYPE_CHECKING:
    from tilewright.passes.lower.thread_loop import ThreadLoop
    from tilewright.passes.lower.vector_access import Vector

_MEMORIES = {"global": GLOBAL, "shared": SHARED}


def matrix_store(work: ThreadLoop, buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> CopyInstruction | None:
    """The machine's instruction that stores matrices of a loop's elements at these places; None where it has none."""
    if not work.together or len(work.loop.vars) < 2 or work.layout.replicas:
        return None
    memory = _MEMORIES.get(buffer.scope)
    for one in work.owner.context.arch.copy_instructions:
        if one.strided and one.destination == memory and buffer.dtype in one.elements:
            assert one.matrix is not None
            if _is_of_matrices(work.layout, one.matrix) and _has_row_stride(work, buffer, indices, one.matrix):
                return one
    return None


@functools.lru_cache(maxsize=512)
def _is_of_matrices(layout: Layout, matrix: Layout) -> bool:
    """Whether threads hold, in neighbouring registers, elements of whole matrices of a layout's last two dimensions."""
    threads, registers = matrix.extent(THREAD), matrix.extent(REGISTER)
    if layout.extent(THREAD) % threads or layout.extent(REGISTER) % registers or not layout.is_bijective:
        return False
    size = (layout.extent(THREAD), layout.extent(REGISTER))
    own, parts = _coordinates(layout, *size), _coordinates(matrix, threads, registers)
    repeated = [np.tile(one, (size[0] // threads, size[1] // registers)) for one in parts]
    for one, part, extent in zip(own[-2:], repeated, matrix.shape, strict=True):
        if (one % extent != part).any():
            return False
    blocks = [*own[:-2], *(one // extent for one, extent in zip(own[-2:], matrix.shape, strict=True))]
    grouped = [one.reshape(size[0] // threads, threads, size[1] // registers, registers) for one in blocks]
    return all((one == one[:, :1, :, :1]).all() for one in grouped)


def _coordinates(layout: Layout, threads: int, registers: int) -> tuple[np.ndarray, ...]:
    """What each thread holds in each register."""
    found = dict(zip((THREAD, REGISTER), np.indices((threads, registers)), strict=True))
    return layout.coordinates(**{place: found[place] for place in layout.places})


def _has_row_stride(work: ThreadLoop, buffer: ir.Buffer, indices: Sequence[ir.Expr], matrix: Layout) -> bool:
    """Whether elements of a row are neighbours in memory, and rows lie a distance apart that is the same for all."""
    named = {statement.var for statement in find(work.loop.body, ir.Let)}
    if any(isinstance(node, ir.Load) or node in named for index in indices for node in walk(index)):
        return False
    moves = [_moves(work, index, matrix) for index in indices]
    rows = [place for place, move in enumerate(moves) if move == "row"]
    if moves[-1:] != ["column"] or len(rows) != 1 or any(move not in ("row", "") for move in moves[:-1]):
        return False
    layout = work.owner.layouts.get(buffer)
    if layout is not None:
        held = [layout.digits[rows[0]], layout.digits[-1]]
        return layout.swizzle is None and all(len(one) == 1 for one in held) and held[1][0].stride == 1
    return buffer.strides is None or buffer.strides[-1] == 1


def _moves(work: ThreadLoop, index: ir.Expr, matrix: Layout) -> str | None:
    """How an index moves within a matrix: by one a row, by one a column, not at all, or otherwise (None)."""
    analyzer, variables = work.owner.analyzer, work.loop.vars[-2:]
    if not any(node in variables for node in walk(index)):
        return ""
    starts, within = [ir.Var(INT32, "block") for _ in variables], [ir.Var(INT32, "within") for _ in variables]
    first = [one * extent for one, extent in zip(starts, matrix.shape, strict=True)]
    place = [one + other for one, other in zip(first, within, strict=True)]
    with analyzer.scope():
        for one, extent in zip(within, matrix.shape, strict=True):
            analyzer.bind_extent(one, extent)
        at, base = (substitute(index, dict(zip(variables, to, strict=True))) for to in (place, first))
        moved = analyzer.simplify(at - base)
    return {within[0]: "row", within[1]: "column"}.get(moved) if isinstance(moved, ir.Var) else None


def store_together(work: ThreadLoop, vector: Vector, alone: Sequence[ir.Statement]) -> list[ir.Statement]:
    """The store of a matrix by those who hold it, and, where it is not in bounds as a whole, what each of them does."""
    instruction = vector.matrix
    assert instruction is not None and instruction.matrix is not None
    variables, shape = work.loop.vars[-2:], instruction.matrix.shape
    firsts = {var: var // extent * extent for var, extent in zip(variables, shape, strict=True)}

    def at(row: int, column: int) -> tuple[ir.Expr, ...]:
        places = dict(zip(variables, (row, column), strict=True))
        moved = {var: first + places[var] for var, first in firsts.items()}
        return tuple(work.owner.analyzer.simplify(substitute(index, moved)) for index in vector.indices)

    regions = []
    for row in (0, 1):
        buffer, places = work.owner.physical(vector.buffer, at(row, 0))
        regions.append(ir.Region(buffer, places, (*(1,) * (len(places) - 1), shape[1])))
    part = ir.Region(vector.part, (ir.const(0),), (instruction.matrix.extent(REGISTER),))
    stored = perform(instruction.function, *regions, part, span=work.loop.span)
    inside = work.owner.guard(vector.buffer, at(0, 0), at(shape[0] - 1, shape[1] - 1))
    return [stored] if inside is None else [ir.If(inside, ir.seq(stored), ir.seq(list(alone)), span=work.loop.span)]
