"""One parallel loop as one thread runs it: which elements it has, which of them one access moves, and its registers.

`assign_threads` shows a loop before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tilewright.ir import nodes
from tilewright.ir.dtypes import BOOL, INT32
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Evaluate,
    Expr,
    For,
    If,
    Let,
    Load,
    Parallel,
    Region,
    Seq,
    Statement,
    Store,
    Var,
    binary,
    const,
    index_binary,
    seq,
)
from tilewright.ir.signature import root
from tilewright.ir.visitor import Rewriter, children, find, holds, key, substitute, walk
from tilewright.layout.digits import REGISTER, THREAD
from tilewright.layout.layout import Layout
from tilewright.layout.threads import register_of
from tilewright.passes.rows import is_plain_tensor, row_misfit, runs_of
from tilewright.passes.scoped import negated, reads_nothing
from tilewright.passes.tile.infer_layouts import SHARED_VECTOR_BYTES, accesses_of

if TYPE_CHECKING:
    from tilewright.passes.lower.assign_threads import Assign


MOST_GUARDS = 32
"""Guarded accesses of a loop that may be written out: what they load is in registers of its own, all at once."""


@dataclass(slots=True)
class _Vector:
    """An access of a group's neighbours through registers of its own, `lanes` of them at once.

    Attributes
    ----------
    indices : of the group's first element.
    part : the registers, one for each element of the group.
    adds : whether they are added to what is there, each element atomically.
    condition : under which the author uses what is loaded, where it is the same for the whole group.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    part: Buffer
    lanes: int
    adds: bool = False
    condition: Expr | None = None

    def of_lane(self, lane: Expr | int) -> tuple[Expr, ...]:
        """The indices of element `lane` of the group."""
        return (*self.indices[:-1], index_binary("add", self.indices[-1], lane))

    def starts(self, step: int | None = None) -> range:
        """The first lanes of the accesses."""
        assert isinstance(self.part.shape[0], int)
        return range(0, self.part.shape[0], step or self.lanes)


@dataclass(slots=True)
class ThreadLoop:
    """One parallel loop while its thread code is made."""

    owner: Assign
    loop: Parallel
    width: int = 1
    group: Var = field(default_factory=lambda: Var(INT32, "g"))
    lane: Var = field(default_factory=lambda: Var(INT32, "v"))
    first: Expr | None = None
    """Whether this thread is the first of those that hold the same elements; None where that is said already."""
    axes: dict[Buffer, tuple[int | None, ...] | None] = field(init=False)
    """The loop's axes that index each fragment; what is lifted off the body keeps them."""

    def __post_init__(self) -> None:
        self.axes = {access.buffer: access.axes for access in accesses_of(self.loop)}

    @property
    def layout(self) -> Layout:
        return self.loop.layout

    def run(self) -> Statement:
        owner, loop = self.owner, self.loop
        registers = self.layout.extent(REGISTER)
        with owner.analyzer.scope():
            lifted = self._lift_guards()
            self._choose_width()
            groups = registers // self.width
            owner.analyzer.bind_extent(self.group, groups)
            owner.analyzer.bind_extent(self.lane, self.width)
            coordinates = self._coordinates()
            for var, coordinate in zip(loop.vars, coordinates, strict=True):
                owner.analyzer.bind(var, coordinate, coordinate)
            inside = self._padding(coordinates)
            if inside is not None:
                owner.analyzer.assume(inside)
            lifted = [self._of_first(one, dict(zip(loop.vars, coordinates, strict=True))) for one in lifted]
            self.first = self._first_holder()
            if self.first is not None and not self._fills_registers():
                inside = self.first if inside is None else binary("all", inside, self.first)
                self.first = None
            body = self._body(coordinates)
        for one in reversed(lifted):
            body = seq(one, body) if isinstance(one, Let) else seq(If(one, body, span=loop.span))
        if inside is not None:
            body = seq(If(inside, body, span=loop.span))
        if groups == 1:
            body = substitute(body, {self.group: const(0)})
            return replace(body, span=loop.span)
        return self._turns(groups, body)

    def _turns(self, groups: int, body: Seq) -> Statement:
        """The groups one after the other, written out; of accesses that each have a guard only a few, for all would be in flight."""
        span = self.loop.span
        guards = sum(isinstance(node, If) for node in walk(body))
        few = groups
        if guards * groups > MOST_GUARDS and not self._counts_registers():
            fitting = [
                count for count in range(1, groups) if groups % count == 0 and count * guards <= MOST_GUARDS // 2
            ]
            few = max(fitting, default=1)
        written = Var(INT32, "g") if few < groups else self.group
        if few < groups:
            turn = Var(INT32, "turn")
            group = index_binary("add", index_binary("mul", turn, few), written)
            body = substitute(body, {self.group: group})
        loop = For(written, const(0), const(few), const(1), body, "unroll", span=span)
        return loop if few == groups else For(turn, const(0), const(groups // few), const(1), seq(loop), span=span)

    # Where this thread works -----------------------------------------------------------------------

    def _coordinates(self) -> tuple[Expr, ...]:
        """The loop's variables for the first element of group `group`."""
        register = index_binary("mul", self.group, self.width)
        locations: dict[str, Expr] = {THREAD: self.owner.thread, REGISTER: register}
        places = self.layout.places
        found = self.layout.coordinate_expressions(**{place: locations[place] for place in places})
        return tuple(self.owner.analyzer.simplify(value) for value in found)

    def _lift_guards(self) -> list[Let | Expr]:
        """Takes names at the head of a body, and the author's conditions around all of it, off what neighbours share them for.

        What is left can move several elements at once.
        """
        lifted: list[Let | Expr] = []
        while len(self.loop.vars) >= 2 and self.loop.body.statements:
            first, *others = self.loop.body.statements
            if isinstance(first, Let) and others and self._is_of_row(first.value):
                lifted.append(first)
                self.loop = replace(self.loop, body=replace(self.loop.body, statements=tuple(others)))
            elif isinstance(first, If) and not others and first.otherwise is None and self._is_of_row(first.condition):
                lifted.append(first.condition)
                self.loop = replace(self.loop, body=first.then)
            else:
                break
        return lifted

    def _is_of_row(self, value: Expr) -> bool:
        """Whether a value is the same along the last dimension; how wide a group is, is not known yet."""
        return self.loop.vars[-1] not in walk(value) and self._is_shared_by_group(value)

    def _of_first(self, lifted: Let | Expr, coordinates: dict[Var, Expr]) -> Let | Expr:
        """What was lifted, for the first element of a group; the analyzer learns it."""
        if isinstance(lifted, Let):
            return replace(lifted, value=substitute(self._in_registers(lifted.value), coordinates))
        condition = substitute(self._in_registers(lifted), coordinates)
        self.owner.analyzer.assume(condition)
        return condition

    def _is_shared_by_group(self, value: Expr) -> bool:
        """Whether the neighbours of a group have the same value, which may be computed once for all of them."""
        names = {statement.var for statement in walk(self.loop.body) if isinstance(statement, Let)}
        stored = {node.buffer for node in walk(self.loop.body) if isinstance(node, Store)}
        changing = any(node in names or (isinstance(node, Load) and node.buffer in stored) for node in walk(value))
        return not changing and not _has_effect(value) and self._of_lane(value, self.width)[1] is None

    def _of_lane(self, value: Expr, width: int) -> tuple[Expr, Var | None]:
        """A value for an element of a group of `width`, and the lane that it depends on, if it does.

        A thread with one vector has one value of the loop's variable: what an index does with it shows on a variable without bounds.
        """
        var = self.loop.vars[-1]
        if var not in walk(value):
            return value, None
        start, lane = Var(var.dtype, var.name), Var(var.dtype, "lane")
        place = index_binary("add", index_binary("mul", start, width), lane)
        with self.owner.analyzer.scope():
            self.owner.analyzer.bind_extent(lane, width)
            made = self.owner.analyzer.simplify(substitute(value, {var: place}))
        return made, lane if lane in walk(made) else None

    def _padding(self, coordinates: Sequence[Expr]) -> Expr | None:
        """Whether the element exists, where the layout covers more than the loop."""
        condition: Expr | None = None
        for coordinate, extent in zip(coordinates, self.loop.extents, strict=True):
            inside = index_binary("lt", coordinate, extent)
            if not self.owner.analyzer.prove(inside):
                condition = inside if condition is None else binary("all", condition, inside)
        return condition

    def _first_holder(self) -> Expr | None:
        """Whether this thread is the first of those that hold the same elements; None where each holds its own."""
        condition: Expr | None = None
        for one in self.layout.replicas:
            if one.place != THREAD or one.extent == 1:
                continue
            copy = index_binary("floormod", index_binary("floordiv", self.owner.thread, one.stride), one.extent)
            test = self.owner.analyzer.simplify(index_binary("eq", copy, 0))
            condition = test if condition is None else binary("all", condition, test)
        return condition

    def _fills_registers(self) -> bool:
        """Whether the loop's work is needed in every thread: it leaves something in registers that outlive it."""
        nodes = list(walk(self.loop.body))
        own = {node.buffer for node in nodes if isinstance(node, Allocate)}
        stores = [node.buffer for node in nodes if isinstance(node, Store)]
        return any(buffer.scope not in ("global", "shared") and buffer not in own for buffer in stores)

    def _counts_registers(self) -> bool:
        """Whether which registers that outlive it the loop touches depends on the group."""
        nodes = list(walk(self.loop.body))
        own = {node.buffer for node in nodes if isinstance(node, Allocate)}
        touched = {node.buffer for node in nodes if isinstance(node, (Load, Store, Region))} - own
        return any(root(buffer).scope in ("fragment", "local", "register") for buffer in touched)

    def by_first(self, statement: Statement) -> Statement:
        """What has an effect on memory, done once although several threads hold the values."""
        return statement if self.first is None else If(self.first, seq(statement), span=statement.span)

    def _choose_width(self) -> None:
        """The width of a group: neighbours in registers that some access to memory can move at once.

        Accesses of wider elements move the same group in several pieces.
        """
        dimension = self.layout.digits[-1] if self.layout.digits else ()
        if not dimension or dimension[0].place != REGISTER or dimension[0].stride != 1:
            return
        last = self.loop.extents[-1]
        limit = math.gcd(dimension[0].extent, last if isinstance(last, int) else 1)
        if not _is_plain(self.loop.body) or limit == 1:
            return
        accesses = [node for node in find(self.loop.body, Load, Store) if self._in_memory(node.buffer)]
        widths = [self._width_of(node, limit) for node in accesses]
        added = [_sum(statement) for statement in self.loop.body.statements]
        widths += [self._width_of(store, limit, adds=True) for store in added if store is not None]
        runs = [
            width for node, width in zip(accesses, widths) if width > 1 and not self._is_run(node.indices, max(widths))
        ]
        self.width = min(runs, default=max(widths, default=1))

    @staticmethod
    def _in_memory(buffer: Buffer) -> bool:
        return buffer.scope in ("global", "shared")

    def _sums_of(self, buffer: Buffer) -> tuple[int, ...]:
        """How many neighbours of a tensor the machine adds to by one atomic access."""
        arch = self.owner.context.arch
        if buffer.scope != "global" or not arch.has("atomics"):
            return ()
        if arch.has("vector_atomics"):
            return {"float16": (2, 8), "bfloat16": (2, 8), "float32": (2, 4)}.get(buffer.dtype.name, ())
        return (2,) if buffer.dtype.name == "float16" else ()

    def _width_of(self, access: Load | Store, limit: int, adds: bool = False) -> int:
        """How many neighbours along the last loop variable one access moves."""
        var, buffer = self.loop.vars[-1], access.buffer
        if not access.indices or not any(var is node for node in walk(access.indices[-1])):
            return 1
        named = {statement.var for statement in self.loop.body.statements if isinstance(statement, Let)}
        if any(node in named for index in access.indices for node in walk(index)):
            return 1  # the name has no value where whole vectors move
        widest = self.owner.context.arch.vector_bytes if buffer.scope == "global" else SHARED_VECTOR_BYTES
        width = math.gcd(limit, max(1, widest // buffer.dtype.nbytes(1) * buffer.dtype.per_byte))
        layout = self.owner.layouts.get(buffer)
        while width > 1 and width % buffer.dtype.per_byte == 0:  # whole bytes
            aligned = self._aligned(access, width) if layout is None else runs_of(layout, width)
            known = not adds or width in self._sums_of(buffer)
            if known and aligned and self._are_neighbours(access.indices, width):
                return width
            width //= 2
        return 1

    def _is_run(self, indices: Sequence[Expr], width: int) -> bool:
        """Whether the last index moves by one through a group of `width`, and the others not at all."""
        if any(self._of_lane(index, width)[1] is not None for index in indices[:-1]):
            return False
        place, lane = self._of_lane(indices[-1], width)
        if lane is None:
            return False
        with self.owner.analyzer.scope():
            self.owner.analyzer.bind_extent(lane, width)
            return lane not in walk(self.owner.analyzer.simplify(index_binary("sub", place, lane)))

    def _are_neighbours(self, indices: Sequence[Expr], width: int) -> bool:
        """Whether a group of `width` is as many neighbours along the last dimension, the first at a multiple of `width`."""
        if not self._is_run(indices, width):
            return False
        place, lane = self._of_lane(indices[-1], width)
        assert lane is not None
        with self.owner.analyzer.scope():
            self.owner.analyzer.bind_extent(lane, width)
            return self.owner.analyzer.divides(index_binary("sub", place, lane), width)

    def _aligned(self, access: Load | Store, width: int) -> bool:
        """Whether rows of a tensor start at multiples of `width` elements."""
        buffer = access.buffer
        if buffer.scope == "shared" and isinstance(buffer.shape[-1], int):
            return buffer.shape[-1] % width == 0  # row-major, and tiles start at multiples of any vector
        if not is_plain_tensor(buffer):
            return False
        return row_misfit(buffer, buffer.dtype.nbytes(width), self.owner.analyzer) is None

    # What this thread does -----------------------------------------------------------------------

    def _body(self, coordinates: Sequence[Expr]) -> Seq:
        """Names for the coordinates, vector loads, the elements, vector stores."""
        names = [Let(var, value) for var, value in zip(self.loop.vars, coordinates, strict=True)]
        names += self._named_choices()
        body: Seq = self.loop.body
        loads, stores = self._vectors()
        before: list[Statement] = []
        for vector in loads:
            before += self._load(vector)
        elements = self.elements(body, loads, stores)
        if self.width > 1:
            elements = seq(
                For(self.lane, const(0), const(self.width), const(1), elements, "unroll", span=self.loop.span)
            )
        after: list[Statement] = []
        for vector in stores:
            before.append(Allocate(vector.part, span=self.loop.span))
            after += [one if isinstance(one, Let) else self.by_first(one) for one in self._store(vector)]
        return seq(names, before, elements.statements, after)

    def _named_choices(self) -> list[Let]:
        """Names for what memory says of a whole group, so that it is asked once and not for each element."""
        if self.width == 1:
            return []
        chosen = _Choices(self._is_shared_by_group)
        self.loop = replace(self.loop, body=chosen(self.loop.body))
        return [Let(var, self._in_registers(value), span=self.loop.span) for var, value in chosen.named.values()]

    def _vectors(self) -> tuple[list[_Vector], list[_Vector]]:
        """The loads and stores that move whole vectors: loads before all elements, stores behind them."""
        if self.width == 1:
            return [], []
        loads: dict[Any, _Vector] = {}
        stored: set[Buffer] = set()
        for statement in self.loop.body.statements:
            for node, condition in self._loads_in(statement, None):
                if node.buffer not in stored and (vector := self._vector(node)) is not None:
                    known = loads.setdefault(key(node), replace(vector, condition=condition))
                    if known.condition is not None and (condition is None or key(condition) != key(known.condition)):
                        known.condition = None
            if isinstance(statement, Store):
                stored.add(statement.buffer)
        return list(loads.values()), self._stored_vectors()

    def _stored_vectors(self) -> list[_Vector]:
        """The stores that may wait until all elements of a group are known.

        Those of a buffer wait together, in their order; none does where an element reads what another place got.
        """
        found: dict[Buffer, dict[Any, _Vector | None]] = {}
        for statement in self.loop.body.statements:
            for load in find(statement, Load):
                before = found.get(load.buffer, {})
                if any(place != key(load.indices) or (one and one.adds) for place, one in before.items()):
                    before[None] = None
            added = _sum(statement)
            store = statement if isinstance(statement, Store) else added
            if store is not None:
                vectors = found.setdefault(store.buffer, {})
                place = key(store.indices)
                if place in vectors and len(vectors) > 1:
                    vectors[None] = None  # the last word on a place that may be that of another store
                vectors[place] = self._vector(store, adds=added is not None)
        kept = [list(vectors.values()) for vectors in found.values()]
        kept = [one for one in kept if None not in one and len({vector.adds for vector in one if vector}) == 1]
        return [vector for vectors in kept for vector in vectors if vector is not None]

    def _loads_in(self, node: Any, condition: Expr | None) -> Iterator[tuple[Load, Expr | None]]:
        """Every load at or below a node, with the condition of the choices around it that a group shares."""
        if isinstance(node, Load):
            yield node, condition
        if isinstance(node, nodes.Select) and self._is_shared_by_group(node.condition):
            yield from self._loads_in(node.condition, condition)
            for value, way in ((node.then, node.condition), (node.otherwise, negated(node.condition))):
                yield from self._loads_in(value, way if condition is None else binary("all", condition, way))
            return
        for child in children(node):
            yield from self._loads_in(child, condition)

    def _vector(self, access: Load | Store, adds: bool = False) -> _Vector | None:
        """How an access moves a group at once; None where it goes element by element."""
        buffer = access.buffer
        lanes = self._width_of(access, self.width, adds) if self._in_memory(buffer) else 1
        if lanes == 1 or (lanes < self.width and not self._is_run(access.indices, self.width)):
            return None
        part = Buffer(f"{buffer.name}_part", (self.width,), buffer.dtype, "register")
        return _Vector(buffer, access.indices, part, lanes, adds)

    def _load(self, vector: _Vector) -> list[Statement]:
        named, vector = self._named(vector)
        pieces = [*named, *(self._load_piece(vector, first) for first in vector.starts())]
        if vector.condition is not None:
            pieces = [If(self._in_registers(vector.condition), seq(*pieces), span=self.loop.span)]
        return [Allocate(vector.part, span=self.loop.span), *pieces]

    def _named(self, vector: _Vector) -> tuple[list[Statement], _Vector]:
        """Names for indices that are more than sums, so that a bound once checked is known to hold."""
        named: list[Statement] = []
        indices = list(vector.indices)
        for place, index in enumerate(indices[:-1]):
            if any(isinstance(node, Load) or _rounds(node) for node in walk(index)):
                var = Var(index.dtype, "place")
                named.append(Let(var, self._in_registers(index), span=self.loop.span))
                if reads_nothing(index):
                    self.owner.analyzer.bind(var, index, index)
                indices[place] = var
        return named, replace(vector, indices=tuple(indices))

    def _in_registers(self, value: Expr) -> Expr:
        """A value that the whole group shares, with its accesses in place."""
        made: Expr = _Registers(self, {}, {}, of_group=True).visit(value)
        return made

    def _load_piece(self, vector: _Vector, first: int) -> Statement:
        """Elements `first` and following of a group, where they are in bounds."""
        indices, lanes = vector.of_lane(first), vector.lanes
        buffer, places = self.owner.physical(vector.buffer, indices)
        dtype = vector.buffer.dtype.with_lanes(lanes)
        moved = Store(vector.part, (const(first),), Load(dtype, buffer, places), span=self.loop.span)
        guard = self._whole_guard(vector.buffer, indices, lanes)
        if guard is None:
            return moved
        lane = Var(INT32, "lane")
        outside = self.owner.is_outside(vector.buffer, indices)
        value = self.safe(vector.buffer) if outside else self._at_the_edge(vector, first, lane)
        single = Store(vector.part, (index_binary("add", lane, first),), value, span=self.loop.span)
        rest = For(lane, const(0), const(lanes), const(1), seq(single), "unroll", span=self.loop.span)
        if outside or self._never_whole(vector.buffer, indices, lanes):
            return rest
        return If(guard, seq(moved), seq(rest), span=self.loop.span)

    def _at_the_edge(self, vector: _Vector, first: int, lane: Var) -> Expr:
        """Element `lane` of an access that is not in bounds as a whole."""
        buffer = vector.buffer
        if self._ends_with_vectors(vector):
            return self.safe(buffer)
        indices = vector.of_lane(index_binary("add", lane, first))
        made, places = self.owner.physical(buffer, indices)
        guard = self._lane_guard(buffer, indices, lane, vector.lanes)
        return nodes.Select(buffer.dtype, guard, Load(buffer.dtype, made, places), self.safe(buffer))

    def _store(self, vector: _Vector) -> list[Statement]:
        named, vector = self._named(vector)
        return [*named, *(piece for first in vector.starts() for piece in self._store_piece(vector, first))]

    def _store_piece(self, vector: _Vector, first: int) -> list[Statement]:
        indices, lanes = vector.of_lane(first), vector.lanes
        buffer, places = self.owner.physical(vector.buffer, indices)

        def moved(count: int, at: Expr, to: Buffer, places: tuple[Expr, ...]) -> Statement:
            if vector.adds:
                return self._added(vector, count, at, to, places)
            value = Load(vector.buffer.dtype.with_lanes(count), vector.part, (at,))
            return Store(to, places, value, span=self.loop.span)

        whole = moved(lanes, const(first), buffer, places)
        guard = self._whole_guard(vector.buffer, indices, lanes)
        if guard is None:
            return [whole]
        if self.owner.is_outside(vector.buffer, indices):
            return []
        if self._ends_with_vectors(vector):
            return [If(guard, seq(whole), span=self.loop.span)]
        # A row ends with a byte: what follows the last of its elements in there is nobody's.
        step = vector.buffer.dtype.per_byte
        lane = Var(INT32, "lane")
        at = index_binary("add", index_binary("mul", lane, step), first)
        made, places = self.owner.physical(vector.buffer, vector.of_lane(at))
        inside = self._lane_guard(vector.buffer, vector.of_lane(at), lane, lanes // step)
        body = seq(If(inside, seq(moved(step, at, made, places)), span=self.loop.span))
        rest = For(lane, const(0), const(lanes // step), const(1), body, "unroll", span=self.loop.span)
        if self._never_whole(vector.buffer, indices, lanes):
            return [rest]
        return [If(guard, seq(whole), seq(rest), span=self.loop.span)]

    def _added(self, vector: _Vector, count: int, at: Expr, to: Buffer, places: tuple[Expr, ...]) -> Statement:
        """One atomic access, or one of a single element."""
        if count > 1:
            target = Region(to, places, (*(1,) * (len(places) - 1), count))
            part = Region(vector.part, (at,), (count,))
            return Evaluate(Call(BOOL, "atomic_add_fragment", (target, part)), span=self.loop.span)
        value = Load(vector.buffer.dtype, vector.part, (at,))
        single = Region(to, places, (1,) * len(places))
        return Evaluate(Call(value.dtype, "atomic_add", (single, value, "relaxed")), span=self.loop.span)

    def _never_whole(self, buffer: Buffer, indices: tuple[Expr, ...], lanes: int) -> bool:
        """Whether an access that begins in bounds certainly ends out of them."""
        with self.owner.analyzer.scope():
            self.owner.analyzer.assume(self.owner.guard(buffer, indices) or const(True))
            return self.owner.is_outside(buffer, (*indices[:-1], index_binary("add", indices[-1], lanes - 1)))

    def _whole_guard(self, buffer: Buffer, indices: tuple[Expr, ...], lanes: int) -> Expr | None:
        """The condition under which all elements of an access are in bounds; None where they always are."""
        guard = self.owner.guard(buffer, indices)
        last = index_binary("add", indices[-1], lanes - 1)
        with self.owner.analyzer.scope():
            if guard is not None:
                self.owner.analyzer.assume(guard)
            ends = self.owner.guard(buffer, (*indices[:-1], last))
        return guard if ends is None else ends if guard is None else binary("all", guard, ends)

    def _lane_guard(self, buffer: Buffer, indices: Sequence[Expr], lane: Var, count: int) -> Expr:
        with self.owner.analyzer.scope():
            self.owner.analyzer.bind_extent(lane, count)
            return self.owner.guard(buffer, indices) or const(True)

    def _ends_with_vectors(self, vector: _Vector) -> bool:
        """Whether an access whose first element is in bounds is so as a whole."""
        buffer = vector.buffer
        return buffer.scope != "global" or self.owner.analyzer.divides(buffer.shape[-1], vector.lanes)

    def safe(self, buffer: Buffer) -> Expr:
        from_author = self.owner.safe.get(buffer)
        if from_author is not None:
            return nodes.cast(from_author, buffer.dtype)
        return const(False if buffer.dtype.kind == "bool" else 0.0 if buffer.dtype.is_float else 0, buffer.dtype)

    def elements(self, body: Seq, loads: list[_Vector], stores: list[_Vector]) -> Seq:
        """The author's statements for one element, on registers."""
        moved = {key(Load(v.buffer.dtype, v.buffer, v.indices)): v.part for v in loads}
        parts = {(v.buffer, key(v.indices)): v.part for v in stores}
        registers = _Registers(self, moved, parts)
        made = registers(body)
        return made if isinstance(made, Seq) else seq(made)


class _Choices(Rewriter):
    """Gives names to conditions of choices that read memory; those within other choices stay: they may not be meant to be asked."""

    def __init__(self, is_shared: Callable[[Expr], bool]) -> None:
        self.is_shared = is_shared
        self.named: dict[Any, tuple[Var, Expr]] = {}

    def visit_Select(self, select: nodes.Select) -> Expr:
        condition = select.condition
        if not self.is_shared(condition) or not holds(condition, Load):
            return select
        var, _ = self.named.setdefault(key(condition), (Var(BOOL, "chosen"), condition))
        return replace(select, condition=var)


class _Registers(Rewriter):
    """Accesses of one element: fragments by register, vectors by their parts, the rest guarded and in place."""

    def __init__(
        self, work: ThreadLoop, loads: dict[Any, Buffer], stores: dict[Any, Buffer], of_group: bool = False
    ) -> None:
        self.work, self.loads, self.stores = work, loads, stores
        self.of_group = of_group
        self.changed: set[Buffer] = set()
        """What the statements so far have stored to."""

    def map_buffer(self, buffer: Buffer) -> Buffer:
        return self.work.owner.map_buffer(buffer)

    def map_var(self, var: Var) -> Expr:
        """The last loop variable counts the vector's first element; what is left here is about one of them."""
        if self.work.width > 1 and var is self.work.loop.vars[-1] and not self.of_group:
            return index_binary("add", var, self.work.lane)
        return var

    def _register(self, buffer: Buffer) -> Expr:
        """The register of a fragment that holds the element at hand."""
        axes = self.work.axes[buffer]
        assert axes is not None
        work, width = self.work, self.work.width
        total: Expr = const(0)
        for divisor, modulus, stride in register_of(work.owner.layouts[buffer], work.layout, axes):
            total = index_binary("add", total, index_binary("mul", _digit(work, divisor, modulus, width), stride))
        return work.owner.analyzer.simplify(total)

    def visit_Load(self, load: Load) -> Expr:
        buffer = load.buffer
        part = self.loads.get(key(load)) if buffer not in self.changed else None
        if part is not None:
            return Load(load.dtype, part, (self.work.lane,))
        if buffer.scope == "fragment":
            return Load(load.dtype, self.map_buffer(buffer), (self._register(buffer),))
        indices = tuple(self.visit(index) for index in load.indices)
        part = self.stores.get((buffer, key(load.indices))) if buffer in self.changed else None
        if part is not None:
            value = Load(load.dtype, part, (self.work.lane,))
        else:
            made, places = self.work.owner.physical(buffer, indices)
            value = Load(load.dtype, made, places)
        guard = self.work.owner.guard(buffer, indices)
        if guard is None:
            return value
        return nodes.Select(load.dtype, guard, value, self.work.safe(buffer))

    def visit_Store(self, store: Store) -> Statement:
        value = self.visit(store.value)
        self.changed.add(store.buffer)
        part = self.stores.get((store.buffer, key(store.indices)))
        if part is not None:
            return replace(store, buffer=part, indices=(self.work.lane,), value=value)
        buffer = store.buffer
        if buffer.scope == "fragment":
            return replace(store, buffer=self.map_buffer(buffer), indices=(self._register(buffer),), value=value)
        indices = tuple(self.visit(index) for index in store.indices)
        made, places = self.work.owner.physical(buffer, indices)
        result = replace(store, buffer=made, indices=places, value=value)
        if buffer.scope not in ("global", "shared"):
            return result
        guard = self.work.owner.guard(buffer, indices)
        return self.work.by_first(result if guard is None else If(guard, seq(result), span=store.span))

    def visit_Evaluate(self, evaluate: Evaluate) -> Statement:
        added = _sum(evaluate)
        part = None if added is None else self.stores.get((added.buffer, key(added.indices)))
        if added is not None and part is not None:
            return Store(part, (self.work.lane,), self.visit(added.value), span=evaluate.span)
        made: Statement = self.generic(evaluate)
        return self.work.by_first(made) if _has_effect(evaluate.value) else made

    def visit_Region(self, region: Region) -> Region:
        if region.buffer.scope == "fragment":
            return Region(self.map_buffer(region.buffer), (self._register(region.buffer),), (1,))
        starts = tuple(self.visit(start) for start in region.starts)
        buffer, places = self.work.owner.physical(region.buffer, starts)
        return Region(buffer, places, (1,) * len(places))


def _digit(work: ThreadLoop, divisor: int, modulus: int, width: int) -> Expr:
    """``register // divisor % modulus`` of register ``group * width + lane``, without mixing the two."""
    registers = work.layout.extent(REGISTER)
    if divisor >= width:
        value = index_binary("floordiv", work.group, divisor // width)
        return value if divisor * modulus >= registers else index_binary("floormod", value, modulus)
    if divisor * modulus <= width:
        value = index_binary("floordiv", work.lane, divisor)
        return value if divisor * modulus == width else index_binary("floormod", value, modulus)
    whole = index_binary("add", index_binary("mul", work.group, width), work.lane)
    value = index_binary("floordiv", whole, divisor)
    return value if divisor * modulus >= registers else index_binary("floormod", value, modulus)


def _is_plain(body: Seq) -> bool:
    """Whether a loop's body is stores and names alone, so that memory accesses may move before and behind them."""
    return all(
        isinstance(statement, Store)
        or _sum(statement) is not None
        or (isinstance(statement, Let) and not _has_effect(statement.value))
        for statement in body.statements
    )


def _sum(statement: Statement) -> Store | None:
    """An atomic addition in no particular order, as if it stored what it adds; None for anything else."""
    value = statement.value if isinstance(statement, Evaluate) else None
    if not isinstance(value, Call) or value.function != "atomic_add" or value.arguments[2] != "relaxed":
        return None
    place, added, _ = value.arguments
    assert isinstance(place, Region) and isinstance(added, Expr)
    return Store(place.buffer, place.starts, added, span=statement.span)


def _rounds(node: Any) -> bool:
    return isinstance(node, nodes.Binary) and node.op in ("floordiv", "floormod")


def _has_effect(value: Expr) -> bool:
    return any(not INTRINSICS[node.function].pure for node in find(value, nodes.Call))
