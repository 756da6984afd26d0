"""One parallel loop as one thread runs it: which elements it has, under which conditions, in which order.

`vector_access` says which of them one access moves, `vector_moves` how, and `thread_elements` what is done with each.
`assign_threads` shows a loop before and after.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tilewright.ir import INT32, find, guard_of, key, root, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.layout import REGISTER, THREAD, Layout
from tilewright.ops.base import zero
from tilewright.passes.lower.thread_elements import ElementChoices, Registers, rounds
from tilewright.passes.lower.vector_access import Vector, choose_width, find_vectors, is_shared_by_group
from tilewright.passes.lower.vector_moves import is_zero_elsewhere, load, store

if TYPE_CHECKING:
    from tilewright.passes.lower.assign_threads import Assign


MOST_GUARDS = 32
"""Guarded accesses of a loop that may be written out: what they load is in registers of its own, all at once."""


@dataclass(slots=True)
class ThreadLoop:
    """One parallel loop while its thread code is made."""

    owner: Assign
    loop: ir.Parallel
    width: int = 1
    group: ir.Var = field(default_factory=lambda: ir.Var(INT32, "g"))
    lane: ir.Var = field(default_factory=lambda: ir.Var(INT32, "v"))
    first: ir.Expr | None = None
    """Whether this thread is the first of those that hold the same elements; None where that is said already."""
    together: bool = False
    """Whether the threads of a warp come to each element's stores together."""
    coordinates: dict[ir.Var, ir.Expr] = field(default_factory=dict)
    """The loop's variables by the thread and the group."""

    @property
    def layout(self) -> Layout:
        return self.loop.layout

    def run(self) -> ir.Statement:
        owner, loop = self.owner, self.loop
        registers = self.layout.extent(REGISTER)
        with owner.analyzer.scope():
            lifted = self._lift_guards()
            covers = self.layout.shape == tuple(loop.extents)  # no elements beyond the loop's
            self.together = covers and all(isinstance(one, ir.Let) for one in lifted)
            self.width = choose_width(self)
            groups = registers // self.width
            owner.analyzer.bind_extent(self.group, groups)
            owner.analyzer.bind_extent(self.lane, self.width)
            self.coordinates = dict(zip(loop.vars, self._coordinates(), strict=True))
            for var, coordinate in self.coordinates.items():
                owner.analyzer.bind(var, coordinate, coordinate)
            inside = self._padding()
            if inside is not None:
                owner.analyzer.assume(inside)
            lifted = [self._of_first(one) for one in lifted]
            self.first = self._first_holder()
            if self.first is not None and not self._fills_registers():
                inside = guard_of([inside, self.first])
                self.first = None
            body = self._body()
        for one in reversed(lifted):
            body = ir.seq(one, body) if isinstance(one, ir.Let) else ir.seq(ir.If(one, body, span=loop.span))
        if inside is not None:
            body = ir.seq(ir.If(inside, body, span=loop.span))
        if groups == 1:
            body = substitute(body, {self.group: ir.const(0)})
            return replace(body, span=loop.span)
        return self._iterations(groups, body)

    def _iterations(self, groups: int, body: ir.Seq) -> ir.Statement:
        """The groups one after the other, written out; of accesses that each have a guard only a few, for all would be
        in flight."""
        span = self.loop.span
        guards = sum(isinstance(node, ir.If) for node in walk(body))
        few = groups
        if guards * groups > MOST_GUARDS and not self._counts_registers():
            fitting = [
                count for count in range(1, groups) if groups % count == 0 and count * guards <= MOST_GUARDS // 2
            ]
            few = max(fitting, default=1)
        written = ir.Var(INT32, "g") if few < groups else self.group
        if few < groups:
            iteration = ir.Var(INT32, "iteration")
            group = iteration * few + written
            body = substitute(body, {self.group: group})
        loop = ir.counted(written, few, body, "unroll", span=span)
        return loop if few == groups else ir.counted(iteration, groups // few, ir.seq(loop), span=span)

    # Where this thread works -----------------------------------------------------------------------

    def _coordinates(self) -> tuple[ir.Expr, ...]:
        """The loop's variables for the first element of group `group`."""
        register = self.group * self.width
        found = self.layout.held_at(self.owner.thread, register)
        return tuple(self.owner.analyzer.simplify(value) for value in found)

    def _lift_guards(self) -> list[ir.Let | ir.Expr]:
        """Takes names at the head of a body, and the author's conditions around all of it, off what neighbours share
        them for.

        What is left can move several elements at once.
        """
        lifted: list[ir.Let | ir.Expr] = []
        while len(self.loop.vars) >= 2 and self.loop.body.statements:
            first, *others = self.loop.body.statements
            if isinstance(first, ir.Let) and others and self._is_of_row(first.value):
                lifted.append(first)
                self.loop = replace(self.loop, body=replace(self.loop.body, statements=tuple(others)))
            elif (
                isinstance(first, ir.If) and not others and first.otherwise is None and self._is_of_row(first.condition)
            ):
                lifted.append(first.condition)
                self.loop = replace(self.loop, body=first.then)
            else:
                break
        return lifted

    def _is_of_row(self, value: ir.Expr) -> bool:
        """Whether a value is the same along the last dimension; how wide a group is, is not known yet."""
        return self.loop.vars[-1] not in walk(value) and is_shared_by_group(self, value)

    def _of_first(self, lifted: ir.Let | ir.Expr) -> ir.Let | ir.Expr:
        """What was lifted, for the first element of a group; the analyzer learns it."""
        if isinstance(lifted, ir.Let):
            return replace(lifted, value=substitute(self.in_registers(lifted.value), self.coordinates))
        condition = substitute(self.in_registers(lifted), self.coordinates)
        self.owner.analyzer.assume(condition)
        return condition

    def mixed(self, value: ir.Expr) -> int:
        """Quotients and remainders of what depends on the group and on more."""
        return sum(
            any(one is self.group for one in walk(node)) and sum(isinstance(one, ir.Var) for one in walk(node)) > 1
            for node in walk(value)
            if rounds(node)
        )

    def _padding(self) -> ir.Expr | None:
        """Whether the element exists, where the layout covers more than the loop."""
        pairs = zip(self.coordinates.values(), self.loop.extents, strict=True)
        tests = [ir.index_binary("lt", coordinate, extent) for coordinate, extent in pairs]
        return guard_of(test for test in tests if not self.owner.analyzer.prove(test))

    def _first_holder(self) -> ir.Expr | None:
        """Whether this thread is the first of those that hold the same elements; None where each holds its own."""
        replicas = [one for one in self.layout.replicas if one.place == THREAD and one.extent > 1]
        copies = [self.owner.thread // one.stride % one.extent for one in replicas]
        return guard_of(self.owner.analyzer.simplify(ir.index_binary("eq", copy, 0)) for copy in copies)

    def _fills_registers(self) -> bool:
        """Whether the loop's work is needed in every thread: it leaves something in registers that outlive it."""
        own = {node.buffer for node in find(self.loop.body, ir.Allocate)}
        stores = [node.buffer for node in find(self.loop.body, ir.Store)]
        return any(buffer.scope not in ("global", "shared") and buffer not in own for buffer in stores)

    def _counts_registers(self) -> bool:
        """Whether which registers that outlive it the loop touches depends on the group."""
        own = {node.buffer for node in find(self.loop.body, ir.Allocate)}
        touched = {node.buffer for node in find(self.loop.body, ir.Load, ir.Store, ir.Region)} - own
        return any(root(buffer).scope in ("fragment", "local", "register") for buffer in touched)

    def by_first(self, statement: ir.Statement) -> ir.Statement:
        """What has an effect on memory, done once although several threads hold the values."""
        return statement if self.first is None else ir.If(self.first, ir.seq(statement), span=statement.span)

    # What this thread does -----------------------------------------------------------------------

    def _body(self) -> ir.Seq:
        """Names for the coordinates, vector loads, the elements, vector stores."""
        names = [ir.Let(var, value) for var, value in self.coordinates.items()]
        names += self._named_choices()
        body: ir.Seq = self.loop.body
        loads, stores = find_vectors(self)
        before: list[ir.Statement] = []
        for vector in loads:
            before += load(self, vector)
        elements = self.elements(body, loads, stores)
        if self.width > 1:
            elements = ir.seq(ir.counted(self.lane, self.width, elements, "unroll", span=self.loop.span))
        after: list[ir.Statement] = []
        for vector in stores:
            before.append(ir.Allocate(vector.part, span=self.loop.span))
            after += [one if isinstance(one, ir.Let) else self.by_first(one) for one in store(self, vector)]
        return ir.seq(names, before, elements.statements, after)

    def _named_choices(self) -> list[ir.Let]:
        """Names for what memory says of a whole group, so that it is asked once and not for each element."""
        if self.width == 1:
            return []
        chosen = ElementChoices(lambda value: is_shared_by_group(self, value))
        self.loop = replace(self.loop, body=chosen(self.loop.body))
        return [ir.Let(var, self.in_registers(value), span=self.loop.span) for var, value in chosen.named.values()]

    def in_registers(self, value: ir.Expr) -> ir.Expr:
        """A value that the whole group shares, with its accesses in place."""
        made: ir.Expr = Registers(self, {}, {}, {}, of_group=True).visit(value)
        return made

    def safe(self, buffer: ir.Buffer) -> ir.Expr:
        from_author = self.owner.safe.get(buffer)
        if from_author is not None:
            return ir.cast(from_author, buffer.dtype)
        return zero(buffer.dtype)

    def elements(self, body: ir.Seq, loads: list[Vector], stores: list[Vector]) -> ir.Seq:
        """The author's statements for one element, on registers."""
        moved = {key(ir.Load(v.buffer.dtype, v.buffer, v.indices)): v.part for v in loads}
        parts = {(v.buffer, key(v.indices)): v.part for v in stores}
        zeros = {
            key(ir.Load(v.buffer.dtype, v.buffer, v.indices)): key(v.condition)
            for v in loads
            if v.condition is not None and is_zero_elsewhere(self, v)
        }
        registers = Registers(self, moved, parts, zeros)
        made = registers(body)
        return made if isinstance(made, ir.Seq) else ir.seq(made)
