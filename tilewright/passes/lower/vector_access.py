"""Which accesses of a thread's loop move several neighbours at once, and how wide the groups are that they move."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.ir import children, find, guard_of, has_effect, key, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.layout.digits import REGISTER
from tilewright.machine.instructions import CopyInstruction
from tilewright.passes.lower.matrix_stores import matrix_store
from tilewright.passes.lower.thread_elements import is_plain, sum_of
from tilewright.passes.rows import Neighbours, is_plain_tensor, row_unsupported, runs_of
from tilewright.passes.scoped import negated
from tilewright.passes.tile.layouts.layout_flow import SHARED_VECTOR_BYTES

if TYPE_CHECKING:
    from tilewright.passes.lower.thread_loop import ThreadLoop


@dataclass(slots=True)
class Vector:
    """An access of a group's neighbours through registers of its own, `lanes` of them at once.

    Attributes
    ----------
    indices : of the group's first element.
    part : the registers, one for each element of the group.
    matrix : the instruction by which threads store the matrix that the group is a part of.
    aligned : whether a thread's own group begins where an access of it may.
    adds : whether they are added to what is there, each element atomically.
    condition : under which the author uses what is loaded, where it is the same for the whole group.
    """

    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    part: ir.Buffer
    lanes: int
    adds: bool = False
    condition: ir.Expr | None = None
    matrix: CopyInstruction | None = None
    aligned: bool = True

    def of_lane(self, lane: ir.Expr | int) -> tuple[ir.Expr, ...]:
        """The indices of element `lane` of the group."""
        return (*self.indices[:-1], self.indices[-1] + lane)

    def starts(self) -> range:
        """The first lanes of the accesses."""
        assert isinstance(self.part.shape[0], int)
        return range(0, self.part.shape[0], self.lanes)


def choose_width(work: ThreadLoop) -> int:
    """The width of a group: neighbours in registers that some access to memory can move at once.

    Accesses of wider elements move the same group in several pieces.
    """
    dimension = work.layout.digits[-1] if work.layout.digits else ()
    if not dimension or dimension[0].place != REGISTER or dimension[0].stride != 1:
        return 1
    last = work.loop.extents[-1]
    limit = math.gcd(dimension[0].extent, last if isinstance(last, int) else 1)
    if not is_plain(work.loop.body) or limit == 1:
        return 1
    accesses = [node for node in find(work.loop.body, ir.Load, ir.Store) if in_memory(node.buffer)]
    widths = [_width_of(work, node, limit) for node in accesses]
    added = [sum_of(statement) for statement in work.loop.body.statements]
    widths += [_width_of(work, store, limit, adds=True) for store in added if store is not None]
    runs = [
        width for node, width in zip(accesses, widths) if width > 1 and not _is_run(work, node.indices, max(widths))
    ]
    return min(runs, default=max(widths, default=1))


def in_memory(buffer: ir.Buffer) -> bool:
    """Whether a buffer is one that vectors can move to and from."""
    return buffer.scope in ("global", "shared")


def find_vectors(work: ThreadLoop) -> tuple[list[Vector], list[Vector]]:
    """The loads and stores that move whole vectors: loads before all elements, stores behind them."""
    if work.width == 1:
        return [], []
    used: dict[object, list[tuple[ir.Load, ir.Expr | None, bool]]] = {}
    stored: set[ir.Buffer] = set()
    for statement in work.loop.body.statements:
        for use in _loads_in(work, statement, None):
            if use[0].buffer not in stored:
                used.setdefault(key(use[0]), []).append(use)
        if isinstance(statement, ir.Store):
            stored.add(statement.buffer)
    loads = (_loaded(work, uses) for uses in used.values())
    return [vector for vector in loads if vector is not None], _stored_vectors(work)


def _loaded(work: ThreadLoop, uses: Sequence[tuple[ir.Load, ir.Expr | None, bool]]) -> Vector | None:
    """How a group loads what is used so, if it does at once: where the author reads any of it, or where that does no
    harm."""
    node, condition, _ = uses[0]
    if any(asked is None or key(asked) != key(condition) for _, asked, _ in uses):
        condition = None
    read = any(certain and asked is None for _, asked, certain in uses)
    read = read or (condition is not None and all(certain for _, _, certain in uses))
    with work.owner.analyzer.scope():
        if condition is not None:
            work.owner.analyzer.assume(condition)
        if not read and not _may_be_read(work, node):
            return None
    vector = _vector(work, node)
    return None if vector is None else replace(vector, condition=condition)


def _may_be_read(work: ThreadLoop, load: ir.Load) -> bool:
    """Whether a group may load what the author reads in some of its iterations, or in none: a tensor's bounds are asked
    anyway, a tile's must be known, and no other iteration may be storing there."""
    stores = [one if isinstance(one, ir.Store) else sum_of(one) for one in work.loop.body.statements]
    for node in find(load, ir.Load):
        if any(one and one.buffer is node.buffer and key(one.indices) != key(node.indices) for one in stores):
            return False
        if node.buffer.scope != "global" and not _is_inside(work, node):
            return False
    return True


def _is_inside(work: ThreadLoop, load: ir.Load) -> bool:
    """Whether the elements of all lanes lie in a tile, whatever the author asks before."""
    prove = work.owner.analyzer.prove
    lasts = [substitute(index, {work.loop.vars[-1]: work.loop.vars[-1] + (work.width - 1)}) for index in load.indices]
    return all(
        prove(ir.index_binary("ge", place, 0)) and prove(ir.index_binary("lt", place, extent))
        for first, last, extent in zip(load.indices, lasts, load.buffer.shape, strict=True)
        for place in (first, last)
    )


def _stored_vectors(work: ThreadLoop) -> list[Vector]:
    """The stores that may wait until all elements of a group are known.

    Those of a buffer wait together, in their order; none does where an element reads what another place got.
    """
    found: dict[ir.Buffer, dict[object, Vector | None]] = {}
    for statement in work.loop.body.statements:
        for load in find(statement, ir.Load):
            before = found.get(load.buffer, {})
            if any(place != key(load.indices) or (one and one.adds) for place, one in before.items()):
                before[None] = None
        added = sum_of(statement)
        store = statement if isinstance(statement, ir.Store) else added
        if store is not None:
            vectors = found.setdefault(store.buffer, {})
            place = key(store.indices)
            if place in vectors and len(vectors) > 1:
                vectors[None] = None  # the last word on a place that may be that of another store
            vectors[place] = _vector(work, store, adds=added is not None)
    kept = [list(vectors.values()) for vectors in found.values()]
    kept = [one for one in kept if None not in one and len({vector.adds for vector in one if vector}) == 1]
    return [vector for vectors in kept for vector in vectors if vector is not None]


def _loads_in(
    work: ThreadLoop, node: ir.Record, condition: ir.Expr | None, certain: bool = True
) -> Iterator[tuple[ir.Load, ir.Expr | None, bool]]:
    """Every load at or below a node, with the condition of the choices around it that a group shares, and whether all
    of a group read it then."""
    if isinstance(node, ir.Load):
        yield node, condition, certain
    if isinstance(node, ir.Select):
        shared = is_shared_by_group(work, node.condition)
        yield from _loads_in(work, node.condition, condition, certain)
        for value, way in ((node.then, node.condition), (node.otherwise, negated(node.condition))):
            inside = guard_of([condition, way]) if shared else condition
            yield from _loads_in(work, value, inside, certain and shared)
        return
    if isinstance(node, ir.Binary) and node.op in ir.LOGICAL:
        yield from _loads_in(work, node.left, condition, certain)
        yield from _loads_in(work, node.right, condition, False)
        return
    for child in children(node):
        yield from _loads_in(work, child, condition, certain)


def _vector(work: ThreadLoop, access: ir.Load | ir.Store, adds: bool = False) -> Vector | None:
    """How an access moves a group at once; None where it goes element by element."""
    buffer = access.buffer
    lanes = _width_of(work, access, work.width, adds) if in_memory(buffer) else 1
    if lanes == 1 or (lanes < work.width and not _is_run(work, access.indices, work.width)):
        return None
    part = ir.Buffer(f"{buffer.name}_part", (work.width,), buffer.dtype, "register")
    stores = isinstance(access, ir.Store) and not adds
    matrix = matrix_store(work, buffer, access.indices) if stores else None
    if matrix is not None and matrix.matrix is not None and matrix.matrix.extent(REGISTER) == work.width:
        return Vector(buffer, access.indices, part, lanes, matrix=matrix, aligned=_aligned(work, access, lanes))
    return Vector(buffer, access.indices, part, lanes, adds)


def _width_of(work: ThreadLoop, access: ir.Load | ir.Store, limit: int, adds: bool = False) -> int:
    """How many neighbours along the last loop variable one access moves."""
    var, buffer = work.loop.vars[-1], access.buffer
    if not access.indices or not any(var is node for node in walk(access.indices[-1])):
        return 1
    named = {statement.var for statement in work.loop.body.statements if isinstance(statement, ir.Let)}
    if any(node in named for index in access.indices for node in walk(index)):
        return 1  # the name has no value where whole vectors move
    widest = work.owner.context.arch.vector_bytes if buffer.scope == "global" else SHARED_VECTOR_BYTES
    width = math.gcd(limit, max(1, widest // buffer.dtype.nbytes(1) * buffer.dtype.per_byte))
    while width > 1 and width % buffer.dtype.per_byte == 0:  # whole bytes
        aligned = _aligned(work, access, width)
        aligned = aligned or (
            isinstance(access, ir.Store) and not adds and matrix_store(work, buffer, access.indices) is not None
        )
        known = not adds or width in _sums_of(work, buffer)
        if known and aligned and _are_neighbours(work, access.indices, width):
            return width
        width //= 2
    return 1


def _sums_of(work: ThreadLoop, buffer: ir.Buffer) -> tuple[int, ...]:
    """How many neighbours of a tensor the machine adds to by one atomic access."""
    arch = work.owner.context.arch
    if buffer.scope != "global" or not arch.has("atomics"):
        return ()
    if arch.has("vector_atomics"):
        return {"float16": (2, 8), "bfloat16": (2, 8), "float32": (2, 4)}.get(buffer.dtype.name, ())
    pairs = ("float16", "bfloat16") if arch.has("packed_atomics") else ("float16",)
    return (2,) if buffer.dtype.name in pairs else ()


def _is_run(work: ThreadLoop, indices: Sequence[ir.Expr], width: int) -> bool:
    """Whether the last index moves by one through a group of `width`, and the others not at all."""
    return _run(work, indices, width) is not None


def _are_neighbours(work: ThreadLoop, indices: Sequence[ir.Expr], width: int) -> bool:
    """Whether a group of `width` is as many neighbours along the last dimension, the first at a multiple of `width`."""
    first = _run(work, indices, width)
    return first is not None and work.owner.analyzer.divides(first, width)


def _run(work: ThreadLoop, indices: Sequence[ir.Expr], width: int) -> ir.Expr | None:
    """Where those neighbours along the last dimension begin that a group of `width` is; None where it is none."""
    group = Neighbours(work.owner.analyzer, work.loop.vars[-1], width)
    return group.begin(indices[-1]) if all(map(group.agree, indices[:-1])) else None


def _aligned(work: ThreadLoop, access: ir.Load | ir.Store, width: int) -> bool:
    """Whether rows of a tensor start at multiples of `width` elements, or those of a tile lie in runs of as many."""
    buffer = access.buffer
    layout = work.owner.layouts.get(buffer)
    if layout is not None:
        return runs_of(layout, width)
    if buffer.scope == "shared" and isinstance(buffer.shape[-1], int):
        return buffer.shape[-1] % width == 0  # row-major, and tiles start at multiples of any vector
    if not is_plain_tensor(buffer):
        return False
    return row_unsupported(buffer, buffer.dtype.nbytes(width), work.owner.analyzer) is None


def is_shared_by_group(work: ThreadLoop, value: ir.Expr) -> bool:
    """Whether the neighbours of a group have the same value, which may be computed once for all of them."""
    names = {statement.var for statement in find(work.loop.body, ir.Let)}
    stored = {node.buffer for node in find(work.loop.body, ir.Store)}
    changing = any(node in names or (isinstance(node, ir.Load) and node.buffer in stored) for node in walk(value))
    return (
        not changing
        and not has_effect(value)
        and Neighbours(work.owner.analyzer, work.loop.vars[-1], work.width).agree(value)
    )
