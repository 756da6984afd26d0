"""Chooses how copies into shared memory are made: by the copy engine, by cp.async, or by loads and stores; and says why
not better.

Before::

    copy(source=A[k * 64 : +64, :], destination=tile)

After, where rows of the tile consist of pieces that the machine moves by itself::

    copy(source=A[k * 64 : +64, :], destination=tile, prefer="cp_async")

The best of the candidates that fit (`copy_candidates.py`) stands in the operator's schedule, so that it survives
every rewriting. A role's copy into the slot of a channel is the engine's (``prefer="tma"``) where rows lie in one piece
and the tensor's strides are multiples of 16 bytes; the channel counts the arrivals of one that threads start there
(``token="cp_async_slots"``). Parallel loops that only bring rows (`gathers.py`) are treated alike. What the author
prefers wins where it can be done, and a warning says so where it cannot.

The choice is made before layouts are inferred: any row-major or swizzled tile will do as destination.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import NotAsynchronous
from tilewright.ir import WARP, Function, If, Kernel, Parallel, Pipelined, Rewritten, Role, Roles, having
from tilewright.machine.instructions import GLOBAL
from tilewright.ops import BULK, CP_ASYNC, ENGINE, SLOTS, Copy
from tilewright.passes import Context, ScopedRewriter, negated
from tilewright.passes.tile.copies.copy_candidates import Candidate, candidates_of
from tilewright.passes.tile.copies.filled_tiles import Site
from tilewright.passes.tile.copies.gathers import gather_of
from tilewright.passes.tile.copies.pieces import copied_piece, gathered_piece


def select_copies(function: Function, context: Context) -> Function:
    """Write into every copy to or from shared memory by what it is made."""
    return function.with_body(_Select(function, context)(function.body))


class _Select(ScopedRewriter):
    def __init__(self, function: Function, context: Context) -> None:
        super().__init__(function)
        self.context = context
        self.in_pipeline = False

    def visit_Kernel(self, kernel: Kernel) -> Kernel:
        self.site = Site(kernel, self.context.arch, self.analyzer, range(kernel.num_threads))
        return super().visit_Kernel(kernel)

    def visit_Roles(self, roles: Roles) -> Roles:
        first = 0
        made: list[Role] = []
        for role in roles.roles:
            with having(self, site=replace(self.site, threads=range(first, first + role.threads))):
                made.append(self.visit_Role(role))
            first += role.all_warps * WARP
        return replace(roles, roles=tuple(made))

    def visit_If(self, branch: If) -> Rewritten:
        """What never runs is dropped: under a condition that cannot hold nothing can be proved of a copy."""
        if self.analyzer.prove(negated(branch.condition)):
            return None if branch.otherwise is None else self(branch.otherwise)
        return super().visit_If(branch)

    def visit_Pipelined(self, loop: Pipelined) -> Rewritten:
        with having(self, in_pipeline=True):
            return super().visit_Pipelined(loop)

    def visit_Copy(self, copy: Copy) -> Copy:
        candidates = candidates_of(copy, self.site)
        asked = copy.schedule.prefer
        if asked in ENGINE and not candidates:
            self._refused(copy, asked, "it fills no slot of a channel")
            copy = replace(copy, schedule=replace(copy.schedule, prefer=None))
            candidates = candidates_of(copy, self.site)
        reasons: list[tuple[Candidate, str]] = []
        for way in candidates:
            reason = way.unsupported(copy, self.site)
            if reason is None:
                return self._made(copy, way, reasons)
            self._refused(copy, way.prefer, reason)
            reasons.append((way, reason))
        if copy.by_hand:
            raise _not_by_engine(copy, reasons[-1][1])
        return copy

    def _made(self, copy: Copy, way: Candidate, reasons: list[tuple[Candidate, str]]) -> Copy:
        """A copy as the best way that fits makes it, with what ``explain()`` says."""
        into_slot = copy in self.site.into_slots
        # Boxes are as good as bytes in one piece: nobody asks why not the latter.
        against = "; ".join(f"not {other.name}: {reason}" for other, reason in reasons if other.prefer != BULK)
        tile = copy.source if copy.destination.buffer.scope == GLOBAL else copy.destination
        if way.prefer == CP_ASYNC and not into_slot:
            words = f"cp_async of {copied_piece(copy, self.site)} bytes"
        elif way.name is None:
            words = "by threads" if into_slot else "loads and stores"
        else:
            words = f"{way.name} {'into' if tile is copy.destination else 'from'} {tile.buffer.name}"
        self.context.chose(f"copy: {words}" + (f" ({against})" if against else ""), copy.span)
        token = SLOTS if way.prefer == CP_ASYNC and into_slot else copy.token
        if (copy.schedule.prefer, copy.token) == (way.prefer, token):
            return copy
        return replace(copy, schedule=replace(copy.schedule, prefer=way.prefer), token=token)

    def _refused(self, copy: Copy, way: str, reason: str) -> None:
        """Tell the author who asked for a way that a copy cannot be made so."""
        if copy.by_hand or copy.schedule.prefer != way:
            return
        if way == CP_ASYNC and copy.token is not None:
            raise NotAsynchronous(
                f"this copy cannot be cp.async: {reason}",
                span=copy.span,
                hint="write T.copy, which also takes instructions that are not asynchronous",
            )
        by = "made by the copy engine" if way in ENGINE else "cp_async"
        self.context.warn(f"this copy cannot be {by}: {reason}", copy.span)

    def visit_Parallel(self, loop: Parallel) -> Rewritten:
        """A loop that brings rows, where a channel, a pipeline or its author starts it ahead; elsewhere threads load
        and store."""
        gather = gather_of(loop) if loop.prefer is None else None
        into_slot = gather is not None and gather.tile in self.site.slots
        by_author = loop.prefer is None and loop.token is not None
        if not by_author and (gather is None or not (into_slot or self.in_pipeline)):
            return loop
        found: int | str = "it does more than copy rows to a shared tile"
        if gather is not None:
            found = gathered_piece(gather, self.site)
        if by_author and into_slot:
            found = "a channel counts what fills its slots"
        into = f" into {gather.tile.name}" if gather is not None and into_slot else ""
        if isinstance(found, int):
            self.context.chose(f"loop: cp_async{into or f' of {found} bytes'}", loop.span)
            return replace(loop, prefer=CP_ASYNC, token=SLOTS if into_slot else loop.token)
        way = "by threads" if into else "loads and stores"
        self.context.chose(f"loop: {way}{into} (not cp_async: {found})", loop.span)
        if by_author:
            self.context.warn(f"this loop cannot be cp.async: {found}", loop.span)
        return replace(loop, token=None) if by_author else loop


def _not_by_engine(copy: Copy, reason: str) -> NotAsynchronous:
    """The author gives a copy to the engine that it cannot make."""
    if copy.rank is not None:
        where = "to another block"
        hint = "let the other block read it: T.copy(tile, fragment, rank=...) between two T.cluster_sync()"
    else:
        loads = copy.source.buffer.scope == GLOBAL
        where = f"from {copy.source.buffer.name}" if loads else f"to {copy.destination.buffer.name}"
        own = "T.atomic_add without use_tma" if copy.adds else "T.copy"
        hint = f"write {own}, which also takes instructions of threads"
    return NotAsynchronous(f"the copy engine cannot move this tile {where}: {reason}", span=copy.span, hint=hint)
