"""Checks of names and their uses: each is bound once, used in scope, and in memory that exists at the stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import DType
from tilewright.ir.expression_rules import expression_problems, extent_problems
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.stages import STAGES, as_strict, between_passes
from tilewright.ir.walking import children, find

mark_sound = vars(ir.Record)["sound"].__set__
"""Marks a node that was checked without a finding: a slot that is written although the node is frozen."""


class ScopeRules:
    """What is wrong with declarations and expressions, given where a verifier stands."""

    def __init__(self, function: ir.Function, afresh: bool, by_author: bool) -> None:
        self.program, self.afresh = function, afresh
        self.used: set[ir.Var | ir.Buffer] = set()
        self.binds: set[ir.Var | ir.Buffer] = set()
        self.reports = 0
        self.stage = STAGES.get(function.stage, STAGES["traced"])
        if not by_author:
            self.stage = between_passes(self.stage)
        self.as_strict = as_strict(self.stage)
        self.found: list[tuple[ir.Statement | ir.Function, str]] = []
        self.visible: set[ir.Var | ir.Buffer] = set()
        self.entered: list[ir.Var | ir.Buffer] = []
        self.allocated = {found.buffer for found in find(function, ir.Allocate)}
        self.bound: set[ir.Var | ir.Buffer] = set()
        self.kernel: ir.Kernel | None = None
        self.role: ir.Role | None = None
        self.channels: dict[str, ir.Channel] = {}
        self.in_parallel = False
        self.in_loop = False

    def report(self, where: ir.Statement | ir.Function, problem: str) -> None:
        self.reports += 1
        if (where, problem) not in self.found:
            self.found.append((where, problem))

    @contextmanager
    def naming(self) -> Iterator[tuple[set[ir.Var | ir.Buffer], set[ir.Var | ir.Buffer]]]:
        """Record the names that are used inside, and those that are bound inside."""
        used, binds = self.used, self.binds
        self.used, self.binds = set(), set()
        yield self.used, self.binds
        used |= self.used
        binds |= self.binds
        self.used, self.binds = used, binds

    def bind(self, where: ir.Statement | ir.Function, owner: ir.Var | ir.Buffer) -> None:
        if owner in self.bound:
            kind = "variable" if isinstance(owner, ir.Var) else "buffer"
            self.report(where, f"the {kind} {owner.name} is bound a second time")
        self.bound.add(owner)
        self.enter(owner)
        self.binds.add(owner)

    def enter(self, owner: ir.Var | ir.Buffer) -> None:
        """`owner` is in scope until the end of the enclosing scope."""
        if owner not in self.visible:
            self.visible.add(owner)
            self.entered.append(owner)

    def buffer(self, where: ir.Statement | ir.Function, buffer: ir.Buffer) -> None:
        """Check the declaration of a buffer."""
        if buffer.scope not in ir.SCOPES:
            self.report(where, f"{buffer.name} has the unknown scope {buffer.scope!r}")
        for extent in (*buffer.shape, *(buffer.strides or ())):
            for problem in extent_problems(extent, f"an extent of {buffer.name}"):
                self.report(where, problem)
            if isinstance(extent, ir.Expr):
                if buffer.scope != "global" and (buffer.source is None or buffer.source.scope != "global"):
                    self.report(where, f"the {buffer.scope} buffer {buffer.name} has a symbolic shape")
                self.expression(where, extent)
        seen = buffer.source if buffer.scope in ("local", "register") and buffer.source is not None else buffer
        if buffer.strides is not None and (seen.scope != "global" or len(buffer.strides) != buffer.rank):
            self.report(
                where, f"{buffer.name}: strides belong to a global buffer or a local view of one, one a dimension"
            )
        by_host = buffer.source is not None and buffer not in self.allocated  # the host describes it to the copy engine
        if self.kernel is not None and self.stage.flat and buffer.rank > 1 and not by_host:
            self.report(where, f"{buffer.name} has {buffer.rank} dimensions; at stage {self.stage.name} it has one")
        if buffer.source is not None:
            self.view(where, buffer, buffer.source)

    def view(self, where: ir.Statement | ir.Function, buffer: ir.Buffer, source: ir.Buffer) -> None:
        self.use(where, source)
        promised = source.scope == "global" and buffer.scope in ("local", "register")
        if buffer.scope != source.scope and not promised:
            self.report(where, f"{buffer.name} is {buffer.scope}, but the buffer it views is {source.scope}")
        sizes = [b.dtype.nbytes(b.size) if all(isinstance(e, int) for e in b.shape) else None for b in (buffer, source)]
        # A packed buffer is as large as its layout, which may pad it.
        if not source.packed and sizes[0] is not None and sizes[1] is not None and sizes[0] > sizes[1]:
            self.report(where, f"{buffer.name} has {sizes[0]} bytes, the buffer it views {sizes[1]}")

    def is_plain_view(self, owner: ir.Var | ir.Buffer) -> TypeGuard[ir.Buffer]:
        """Whether a name is a view's that is not declared anywhere: it is in scope where its source is."""
        return isinstance(owner, ir.Buffer) and owner.source is not None and owner not in self.allocated

    def use(self, where: ir.Statement | ir.Function, owner: ir.Var | ir.Buffer) -> None:
        """`owner` is mentioned: it must be in scope (a view, through what it is a view of)."""
        self.used.add(owner)
        if owner in self.visible:
            return
        if self.is_plain_view(owner):
            assert owner.source is not None
            if owner in self.bound:
                self.use(where, owner.source)
            else:
                self.bound.add(owner)
                self.buffer(where, owner)
            return
        kind = "variable" if isinstance(owner, ir.Var) else "buffer"
        self.report(where, f"the {kind} {owner.name} is not in scope")

    def expression(self, where: ir.Statement | ir.Function, root: object, *, effect: bool = False) -> None:
        """Check an expression or region and all below it; `effect` allows a call for its effect at the root."""
        waiting: list[Any] = [root]
        visible, used, stage = self.visible, self.used, self.stage
        strict: frozenset[object] = frozenset() if self.afresh else self.as_strict
        while waiting:  # as `walk` does: it is asked of every expression of every program
            node = waiting.pop()
            kind = type(node)
            if kind is ir.Var or kind is ir.Buffer:
                if node not in visible:
                    self.use(where, node)
                used.add(node)
                if kind is ir.Buffer:
                    self.placed(where, node)
                continue
            if getattr(node, "sound", None) not in strict:
                problems = expression_problems(node, stage)
                for problem in problems:
                    self.report(where, problem)
                if not problems:
                    mark_sound(node, stage)
            if kind is ir.Call:
                self.call(where, node, effect and node is root)
            below = children(node)
            if below:
                waiting += below[::-1]

    def placed(self, where: ir.Statement | ir.Function, buffer: ir.Buffer) -> None:
        """A buffer's scope must exist at this stage, and be reachable from here."""
        if self.kernel is None:
            if buffer.scope != "global":
                self.report(where, f"the host program uses the {buffer.scope} buffer {buffer.name}")
        elif buffer.scope not in self.stage.scopes:
            self.report(where, f"{buffer.name} is {buffer.scope}, which stage {self.stage.name} does not have")

    def call(self, where: ir.Statement | ir.Function, call: ir.Call, at_root: bool) -> None:
        record = INTRINSICS.get(call.function)
        if record is None:
            return
        if not record.pure and not at_root:
            self.report(where, f"{call.function} has an effect, so it stands alone, in a binding or in a store")
        if record.collective and self.in_parallel:
            self.report(where, f"{call.function} synchronises threads and cannot stand in a parallel loop")

    def typed(self, where: ir.Statement, value: ir.Expr, of: DType, what: str, *, effect: bool = False) -> None:
        self.expression(where, value, effect=effect)
        if value.dtype != of:
            self.report(where, f"{what} is {value.dtype}, not {of}")

    def condition(self, where: ir.Statement, value: ir.Expr) -> None:
        self.expression(where, value)
        if value.dtype.kind != "bool" or value.dtype.lanes != 1:
            self.report(where, f"the condition is {value.dtype}, not bool")
