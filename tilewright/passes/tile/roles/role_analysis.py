"""What the statements of a kernel touch and need, for those who divide them between roles.

A *leaf* is a statement that does work: a tile operator, a parallel loop, a store.  A *site* is a leaf with the
sequences around it.  The analysis answers three questions: where every buffer is written and read, which leaves only
bring data from global memory into shared tiles (so that other warps may execute them), and whether a value can be
computed by warps that do not take part in the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tilewright.ir import INTRINSICS, Touched, bodies, fields_of, find, header, root, touched, walk
from tilewright.ir import nodes as ir
from tilewright.ops import Copy, Fill

PRIVATE = ("fragment", "local")
"""Scopes whose memory is registers of the threads that work on it."""

_LOADS = (Copy, Fill, ir.Parallel)
"""Statements that warps of their own may execute when they only bring data."""


@dataclass(frozen=True, slots=True)
class RoleSite:
    """A leaf, or a statement that controls others, and where it stands.

    Attributes
    ----------
    steps : every sequence around it, outermost first, with the position in it.
    """

    statement: ir.Statement
    steps: tuple[tuple[ir.Seq, int], ...]

    def around(self) -> Iterator[ir.Statement]:
        """The statements that control it, outermost first."""
        for body, position in self.steps[:-1]:
            yield body.statements[position]

    def position_in(self, home: ir.Seq) -> int | None:
        """Where it stands in a sequence, itself or what holds it; None where it does not."""
        return next((position for body, position in self.steps if body is home), None)


def sites(body: ir.Seq, above: tuple[tuple[ir.Seq, int], ...] = ()) -> Iterator[RoleSite]:
    """Every statement of a body but plain sequences, in order, those that control others before what they control."""
    for position, statement in enumerate(body.statements):
        steps = (*above, (body, position))
        if not isinstance(statement, ir.Seq):
            yield RoleSite(statement, steps)
        for below in bodies(statement):
            yield from sites(below, steps)


@dataclass(slots=True)
class RoleAnalysis:
    """The sites of one kernel and what they touch."""

    kernel: ir.Kernel
    anchor: int
    """Position in the kernel's body before which everything may be done by all warps together."""
    sites: list[RoleSite] = field(default_factory=list)
    effects: dict[ir.Statement, Touched] = field(default_factory=dict)
    lets: dict[ir.Var, ir.Let] = field(default_factory=dict)
    written: set[ir.Buffer] = field(default_factory=set)
    """Buffers that the kernel writes anywhere."""

    def __post_init__(self) -> None:
        self.sites = list(sites(self.kernel.body))
        for site in self.sites:
            statement = site.statement
            controls = header(statement)
            effects = _read_by(controls) if bodies(statement) else touched(statement)
            self.effects[statement] = effects
            self.written |= effects.writes
            if isinstance(statement, ir.Let):
                self.lets[statement.var] = statement

    def leaves(self) -> Iterator[RoleSite]:
        """Sites that do work, names and declarations apart."""
        for site in self.sites:
            if not bodies(site.statement) and not isinstance(site.statement, (ir.Let, ir.Allocate, ir.Assume)):
                yield site

    def writers(self, buffer: ir.Buffer) -> list[RoleSite]:
        return [site for site in self.sites if buffer in self.effects[site.statement].writes]

    def readers(self, buffer: ir.Buffer) -> list[RoleSite]:
        return [site for site in self.sites if buffer in self.effects[site.statement].reads]

    def is_early(self, buffer: ir.Buffer) -> bool:
        """Whether a shared tile is complete before the roles part."""
        return buffer.scope == "shared" and all(site.steps[0][1] < self.anchor for site in self.writers(buffer))

    def places(self, leaf: ir.Statement) -> list[ir.Expr]:
        """Addresses and extents of the tensors of a leaf that the kernel itself finds (`Buffer.placed`)."""
        placed = {one for one in self.effects[leaf].all if one.placed}
        declared = (site.statement for site in self.sites)
        addresses = [one.initial for one in declared if isinstance(one, ir.Allocate) and one.buffer in placed]
        extents = (extent for one in placed for extent in (*one.shape, *(one.strides or ())))
        return [one for one in (*addresses, *extents) if isinstance(one, ir.Expr)]

    # Who may bring data ---------------------------------------------------------------------------

    def loads_into(self, tiles: Iterable[ir.Buffer]) -> set[ir.Statement]:
        """The leaves that fill `tiles` from global memory, through registers of their own where they need any.

        A tile counts only where every statement that writes it is one of them.
        """
        wanted = set(tiles)
        found = {site.statement for site in self.leaves() if self._loads(site.statement, wanted)}
        while True:
            others: set[ir.Buffer] = set()
            for site in self.sites:
                if site.statement not in found:
                    effects = self.effects[site.statement]
                    others |= {buffer for buffer in effects.all if buffer.scope in PRIVATE}
                    others |= {buffer for buffer in effects.writes if buffer.scope == "shared"}
            kept = {leaf for leaf in found if not self._involved(leaf) & others}
            if kept == found:
                return self._useful(found)
            found = kept

    def _involved(self, leaf: ir.Statement) -> set[ir.Buffer]:
        """Registers that a leaf uses and tiles that it writes."""
        effects = self.effects[leaf]
        return {one for one in effects.all if one.scope in PRIVATE} | {
            one for one in effects.writes if one.scope == "shared"
        }

    def _loads(self, leaf: ir.Statement, tiles: set[ir.Buffer]) -> bool:
        if not isinstance(leaf, _LOADS) or getattr(leaf, "token", None) is not None:
            return False
        effects = self.effects[leaf]
        reads = all(
            buffer.scope in (*PRIVATE, "scalar")
            or (buffer.scope == "global" and buffer not in self.written)
            or self.is_early(buffer)
            for buffer in effects.reads
        )
        writes = all(buffer.scope in PRIVATE or buffer in tiles for buffer in effects.writes)
        mentions = set(find(leaf, ir.Var))
        return reads and writes and not mentions & set(self.kernel.thread_vars)

    def _useful(self, found: set[ir.Statement]) -> set[ir.Statement]:
        """Of leaves that bring data, those whose results reach a shared tile."""
        kept = {leaf for leaf in found if any(one.scope == "shared" for one in self.effects[leaf].writes)}
        while True:
            needed = {one for leaf in kept for one in self.effects[leaf].reads if one.scope in PRIVATE}
            more = {leaf for leaf in found - kept if self.effects[leaf].writes & needed}
            if not more:
                return kept
            kept |= more

    # Values ---------------------------------------------------------------------------------------

    def obstacle(
        self, values: Iterable[object], prepared: set[ir.Buffer], seen: set[object] | None = None
    ) -> str | None:
        """Why warps of their own cannot compute some values; None where they can.

        Parameters
        ----------
        prepared : filled with the shared tiles that the values read.
        """
        seen = set() if seen is None else seen
        for value in values:
            for node in walk(value):
                reason = self._node_obstacle(node, prepared, seen)
                if reason is not None:
                    return reason
        return None

    def _node_obstacle(self, node: object, prepared: set[ir.Buffer], seen: set[object]) -> str | None:
        if isinstance(node, ir.Call) and not INTRINSICS[node.function].pure:
            return f"{node.function} has an effect"
        if isinstance(node, ir.Var):
            if node in self.kernel.thread_vars:
                return "it depends on the thread"
            if node in self.lets and node not in seen:
                seen.add(node)
                return self.obstacle([self.lets[node].value], prepared, seen)
        if not isinstance(node, ir.Load):
            return None
        buffer = root(node.buffer)
        if buffer.scope == "scalar" and buffer not in seen:
            seen.add(buffer)
            return self._scalar_obstacle(buffer, prepared, seen)
        if buffer.scope == "shared":
            prepared.add(buffer)
            return None if self.is_early(buffer) else f"it depends on {buffer.name}, which is filled on the way"
        if buffer.scope in PRIVATE:
            return f"it depends on {buffer.name}, which lies in registers"
        if buffer.scope == "global" and buffer in self.written:
            return f"it depends on {buffer.name}, which the kernel writes"
        return None

    def _scalar_obstacle(self, buffer: ir.Buffer, prepared: set[ir.Buffer], seen: set[object]) -> str | None:
        """The same for all that a mutable scalar is set to, and the conditions under which it is."""
        for site in self.sites:
            statement = site.statement
            if isinstance(statement, ir.Allocate) and statement.buffer is buffer and statement.initial is not None:
                reason = self.obstacle([statement.initial], prepared, seen)
            elif buffer in self.effects[statement].writes:
                if not isinstance(statement, ir.Store):
                    return f"{buffer.name} is set by more than assignments"
                controls = [value for one in site.around() for value in header(one)]
                reason = self.obstacle([statement.value, *controls], prepared, seen)
            else:
                continue
            if reason is not None:
                return reason
        return None


def _read_by(values: Iterable[ir.Expr]) -> Touched:
    reads = {root(node.buffer) for value in values for node in find(value, ir.Load)}
    return Touched(frozenset(reads), frozenset())


def operands(leaf: ir.Statement) -> list[ir.Expr]:
    """The scalar values that a leaf needs: where its regions begin, and what else its operands name.

    What a parallel loop loads for its elements is data, not one of these; where it loads it from is.
    """
    if isinstance(leaf, ir.Parallel):
        bound = set(leaf.vars) | {node.var for node in find(leaf.body, ir.Let)}
        return [node for node in find(leaf, ir.Var) if node not in bound]
    return [value for value in (getattr(leaf, name) for name in fields_of(type(leaf))) for value in _values(value)]


def _values(value: object) -> list[ir.Expr]:
    if isinstance(value, ir.Expr):
        return [value]
    return list(value.starts) if isinstance(value, ir.Region) else []
