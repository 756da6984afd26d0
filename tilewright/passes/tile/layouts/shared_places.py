"""What of shared memory a statement touches, and whether two touches can meet: the bookkeeping of barriers.

A place is a tile, or one slot of a tile whose first dimension counts stages.  Slots of one tile are apart where their
numbers certainly differ, as ``k % 3`` and ``(k + 2) % 3`` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.arith import Analyzer
from tilewright.ir import INTRINSICS, UPDATES, bound_variables, children, find, holds, key, root, substitute
from tilewright.ir import nodes as ir
from tilewright.ops.atomic import Atomic

Access = ir.Load | ir.Store | ir.Call


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """A tile, or one slot of it.  Places of slots that are written alike are equal.

    `own` are elements of tensors of which each thread has others: those meet none of their like.
    """

    buffer: ir.Buffer
    slot: ir.Expr | None = field(default=None, compare=False)
    name: object = None
    own: bool = False

    @staticmethod
    def of(buffer: ir.Buffer, slot: ir.Expr | None, bound: set[ir.Var], own: bool) -> SharedPlace:
        """The place at index `slot` of the first dimension; the whole tile where a loop inside moves the index."""
        owner = root(buffer)
        if owner is not buffer or slot is None or buffer.rank < 2 or any(node in bound for node in find(slot, ir.Var)):
            return SharedPlace(owner, own=own)
        return SharedPlace(owner, slot, key(slot), own)

    def may_alias(self, other: SharedPlace) -> bool:
        """Whether the two may have a byte in common, of which the compiler is to see to it who comes first."""
        if self.buffer is not other.buffer or (self.own and other.own):
            return False
        return self.slot is None or other.slot is None or not _are_disjoint(self.slot, other.slot)

    def at(self, change: Callable[[ir.Expr], ir.Expr | None]) -> SharedPlace:
        """The place with its slot's number changed; the whole tile where the change has no answer."""
        slot = None if self.slot is None else change(self.slot)
        return replace(self, slot=slot, name=None if slot is None else key(slot))


def _are_disjoint(first: ir.Expr, second: ir.Expr) -> bool:
    """Whether two slot numbers certainly differ."""
    modulus = _modulus(first)
    if modulus is not None and modulus == _modulus(second):
        assert isinstance(first, ir.Binary) and isinstance(second, ir.Binary)
        first, second = first.left, second.left
    difference = Analyzer().simplify(first - second)
    return isinstance(difference, ir.Const) and difference.value % (modulus or (1 << 30)) != 0


def _modulus(slot: ir.Expr) -> int | None:
    if isinstance(slot, ir.Binary) and slot.op == "floormod" and isinstance(slot.right, ir.Const):
        return int(slot.right.value)
    return None


@dataclass(frozen=True, slots=True)
class Pending:
    """Places touched since the last barrier, and those that asynchronous operators may still touch.

    Attributes
    ----------
    flying_reads, flying_writes : by token; they count as touched once a wait for the token has let this thread know.
    combined : by the kind of atomics that change a tensor: those of one kind may come in any order.
    """

    read: frozenset[SharedPlace] = frozenset()
    written: frozenset[SharedPlace] = frozenset()
    flying_reads: frozenset[tuple[ir.Token, SharedPlace]] = frozenset()
    flying_writes: frozenset[tuple[ir.Token, SharedPlace]] = frozenset()
    combined: frozenset[tuple[str, SharedPlace]] = frozenset()

    def then(self, other: Pending) -> Pending:
        return Pending(
            self.read | other.read,
            self.written | other.written,
            self.flying_reads | other.flying_reads,
            self.flying_writes | other.flying_writes,
            self.combined | other.combined,
        )

    def conflicts(self, next: Pending) -> bool:
        """Whether what comes next must see, or must not disturb, what is pending."""
        reads = next.read | _places(next.flying_reads)
        writes = next.written | _places(next.flying_writes)
        mixed = any(
            kind != other and place.may_alias(former)
            for kind, place in next.combined
            for other, former in self.combined
        )
        return (
            mixed
            or _overlap(reads, self.written)
            or _overlap(writes | _places(next.combined), self.read | self.written)
            or _overlap(reads | writes, _places(self.combined))
        )

    def after_barrier(self) -> Pending:
        """What is left: asynchronous operators do not heed barriers."""
        return Pending(flying_reads=self.flying_reads, flying_writes=self.flying_writes)

    def after_wait(self, token: ir.Token, all_done: bool) -> Pending:
        """What has landed is this thread's knowledge; a barrier makes it everyone's."""
        read = self.read | {place for name, place in self.flying_reads if name == token}
        written = self.written | {place for name, place in self.flying_writes if name == token}
        if not all_done:
            return replace(self, read=read, written=written)
        return Pending(
            read,
            written,
            frozenset(one for one in self.flying_reads if one[0] != token),
            frozenset(one for one in self.flying_writes if one[0] != token),
            self.combined,
        )

    def buffers(self) -> set[ir.Buffer]:
        """Those whose places it says."""
        places = (_places(named) for named in (self.flying_reads, self.flying_writes, self.combined))
        return {place.buffer for place in self.read.union(self.written, *places)}

    def landed(self) -> Pending:
        """The same once all asynchronous operators are done."""
        read, written = self.read | _places(self.flying_reads), self.written | _places(self.flying_writes)
        return Pending(read, written, combined=self.combined)

    def at(self, change: Callable[[ir.Expr], ir.Expr | None]) -> Pending:
        """The same places with the numbers of their slots changed."""
        return Pending(
            frozenset(place.at(change) for place in self.read),
            frozenset(place.at(change) for place in self.written),
            frozenset((token, place.at(change)) for token, place in self.flying_reads),
            frozenset((token, place.at(change)) for token, place in self.flying_writes),
            frozenset((kind, place.at(change)) for kind, place in self.combined),
        )

    def next_iteration(self, loop: ir.For) -> Pending:
        """What an iteration leaves, said with the loop variable of the one that follows."""
        bound = bound_variables(loop.body)
        previous = loop.var - loop.step

        def change(slot: ir.Expr) -> ir.Expr | None:
            return None if any(node in bound for node in find(slot, ir.Var)) else substitute(slot, {loop.var: previous})

        return self.at(change)

    def outside(self, statement: ir.Statement) -> Pending:
        """The same where names bound in `statement` mean nothing."""
        bound = bound_variables(statement)
        return self.at(lambda slot: None if any(node in bound for node in find(slot, ir.Var)) else slot)

    def anywhere(self) -> Pending:
        """The same of whole tiles."""
        return self.at(lambda slot: None)


def _places(named: Iterable[tuple[object, SharedPlace]]) -> frozenset[SharedPlace]:
    return frozenset(place for _, place in named)


def _overlap(places: Iterable[SharedPlace], others: Iterable[SharedPlace]) -> bool:
    return any(one.may_alias(other) for one in places for other in others)


def touches(
    statement: ir.Statement, exchanged: frozenset[ir.Buffer], slots: frozenset[ir.Buffer], own: frozenset[Access]
) -> Pending:
    """The places that a statement touches in shared memory, but for the slots of channels, and in the tensors through
    which a block's threads exchange values, some by accesses of their own."""
    bound = bound_variables(statement)
    kinds = ("read", "written", "flying_reads", "flying_writes", "combined")
    found: dict[str, set[Any]] = {kind: set() for kind in kinds}

    def add(kind: str, buffer: ir.Buffer, slot: ir.Expr | None, token: ir.Token | str | None = None) -> None:
        owner = root(buffer)
        if (owner.scope == "shared" and owner not in slots) or owner in exchanged:
            place = SharedPlace.of(buffer, slot, bound, owner in exchanged and node in own)
            found[kind].add(place if token is None else (token, place))

    flying = {
        store: loop.token
        for loop in find(statement, ir.Parallel)
        if loop.token is not None
        for store in find(loop.body, ir.Store)
    }
    for node in find(statement, ir.Load, ir.Store, ir.TileOperator, ir.Call):
        if isinstance(node, ir.Load):
            add("read", node.buffer, node.indices[0] if node.indices else None)
        elif isinstance(node, ir.Store):
            token = flying.get(node)
            kind = "written" if token is None else "flying_writes"
            add(kind, node.buffer, node.indices[0] if node.indices else None, token)
        elif isinstance(node, ir.TileOperator):
            effects = node.effects()
            changed = {root(region.buffer) for region in effects.writes} if isinstance(node, Atomic) else set()
            counted = {buffer for buffer in changed if buffer.scope == "global"}
            for kind, regions in (("read", effects.reads), ("written", effects.writes)):
                name = kind if node.token is None else f"flying_{'reads' if kind == 'read' else 'writes'}"
                for region in regions:
                    counts = root(region.buffer) in counted
                    token = f"atomic_{node.kind}" if counts and isinstance(node, Atomic) else node.token
                    add("combined" if counts else name, region.buffer, _slot_of(region), token)
        elif isinstance(node, ir.Call):
            for number, part in enumerate(node.arguments):
                if isinstance(part, ir.Region) and node.function in UPDATES:
                    add("combined", part.buffer, _slot_of(part), node.function)
                elif isinstance(part, ir.Region) and part.buffer.scope != "global":
                    add("read", part.buffer, _slot_of(part))
                    if INTRINSICS[node.function].may_write(number):
                        add("written", part.buffer, _slot_of(part))
    return Pending(**{kind: frozenset(places) for kind, places in found.items()})


def exchanged_tensors(kernel: ir.Kernel) -> frozenset[ir.Buffer]:
    """Tensors in global memory of which one statement may read, or overwrite, what another one wrote.

    Atomics of one kind order themselves: they count where something else changes or reads the tensor.
    """
    read: set[ir.Buffer] = set()
    written: list[ir.Buffer] = []
    combined: dict[ir.Buffer, set[str]] = {}
    for node in find(kernel.body, ir.Load, ir.Store, ir.TileOperator, ir.Call):
        if isinstance(node, (ir.Load, ir.Store)):
            (read.add if isinstance(node, ir.Load) else written.append)(root(node.buffer))
        elif isinstance(node, ir.TileOperator):
            effects = node.effects()
            changed = {root(region.buffer) for region in effects.writes}
            if isinstance(node, Atomic):
                read.update({root(region.buffer) for region in effects.reads} - changed)
                for buffer in changed:
                    combined.setdefault(buffer, set()).add(f"atomic_{node.kind}")
            elif not effects.atomic:  # what the copy engine adds has waits of its own
                read.update(root(region.buffer) for region in effects.reads)
                written.extend(root(region.buffer) for region in effects.writes)
        elif node.function in UPDATES:
            for part in node.arguments:
                if isinstance(part, ir.Region):
                    combined.setdefault(root(part.buffer), set()).add(node.function)
    again = _written_again(kernel.body, ())
    several = {b for b in written if b in read or written.count(b) > 1 or b in again}
    several |= {b for b, kinds in combined.items() if len(kinds) > 1 or b in read or b in written}
    return frozenset(buffer for buffer in several if buffer.scope == "global")


def _written_again(node: ir.Record, around: tuple[ir.For, ...]) -> set[ir.Buffer]:
    """Tensors of which an iteration of a loop writes, by other threads, what an earlier one wrote: shifted by less than
    the whole."""
    if isinstance(node, ir.For):
        around = (*around, node)
    if isinstance(node, ir.Parallel):
        stores = [store for store in find(node, ir.Store) if root(store.buffer).scope == "global"]
        return {root(store.buffer) for store in stores if any(_shifts(store, node, loop) for loop in around)}
    found: set[ir.Buffer] = set()
    for child in children(node):
        if holds(child, ir.Parallel):
            found |= _written_again(child, around)
    return found


def _shifts(store: ir.Store, work: ir.Parallel, loop: ir.For) -> bool:
    """Whether the elements that one iteration stores lie across the last one's; False where that is not known."""
    if not isinstance(loop.step, ir.Const):
        return False
    analyzer, shifted = Analyzer(), False
    for var, extent in zip(work.vars, work.extents, strict=True):
        analyzer.bind_extent(var, extent)
    for index in store.indices:
        moved = analyzer.stride(index, loop.var)
        if not isinstance(moved, ir.Const) or moved.value == 0:
            continue
        span = 1
        for var, extent in zip(work.vars, work.extents, strict=True):
            step = analyzer.stride(index, var)
            if not isinstance(step, ir.Const) or not isinstance(extent, int):
                return False
            span += abs(int(step.value)) * (extent - 1)
        if abs(int(moved.value) * int(loop.step.value)) >= span:
            return False  # iterations lie apart
        shifted = True
    return shifted


def _slot_of(region: ir.Region) -> ir.Expr | None:
    """The one index of a region's first dimension."""
    first = region.extents[0] if region.extents else None
    return region.starts[0] if isinstance(first, int) and first == 1 else None
