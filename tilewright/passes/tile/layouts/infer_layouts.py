"""Which thread holds which element: layouts of fragments, of loops over them and of shared tiles.

Gemms are the anchors: their instructions fix the fragments that they touch.  From there layouts flow along
reductions (a reduced dimension's threads hold copies) and along parallel loops (whoever holds an element works
on it).  Loops that nothing reaches are dealt out for coalesced access.  Shared tiles get the swizzle that their
readers need.  A loop that two fragments want differently follows one of them; what it touches of the other
goes through a shared tile.  So does everything of a loop that several threads would repeat, where its work may be
done only once: it reads memory that it writes, or uses what an atomic gives back.

The result stands in the kernel (`Kernel.layouts`, `Parallel.layout`), so it prints and later passes only read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.errors import LayoutConflict
from tilewright.interpreter.iterations import sums_in
from tilewright.ir import changed, declared, find, walk
from tilewright.ir import nodes as ir
from tilewright.language.collisions import sums_of_several
from tilewright.language.mistakes_of_scopes import IterationsDepend
from tilewright.layout import THREAD, AnyLayout, Layout, TableLayout, permuted, reduced, replicate, shared_rows, spread
from tilewright.machine import Arch
from tilewright.ops import Copy, Product, Reduce, Transpose
from tilewright.passes import CHOICES, Context, map_kernels
from tilewright.passes.tile.copies.filled_tiles import by_bytes, slot_buffers, tiles_by_hand
from tilewright.passes.tile.gemms.select_instructions import demanded
from tilewright.passes.tile.layouts import layout_flow as flow
from tilewright.passes.tile.layouts.settled_layouts import Exchange, ReduceApart, SetLayouts
from tilewright.passes.tile.layouts.single_elements import share_elements, single_fragments
from tilewright.passes.tile.layouts.through_shared import EXCHANGED, happens_once
from tilewright.passes.tile.pipelines.tile_views import tile_span, view_layouts

ONE_THREAD = (
    "annotate a layout of {0!r} by which one thread holds all that changes an element, use T.reduce_sum and its kin, "
    "or T.atomic_add on a shared tile"
)


def infer_layouts(function: ir.Function, context: Context) -> ir.Function:
    """Give every fragment, every shared tile and every parallel loop its layout.

    Raises
    ------
    LayoutConflict : a fragment is read by threads that do not hold it; both demands are named.
    """
    exchanged, notes = context.facts[EXCHANGED], context.facts[CHOICES]
    through = frozenset(exchanged)
    return map_kernels(function, lambda kernel: _infer(kernel, through, context.arch, notes), stage="laid_out")


def _infer(kernel: ir.Kernel, exchanged: frozenset[ir.Buffer], arch: Arch, notes: list[str]) -> ir.Kernel:
    """The layouts of the block's own statements, then those of each role, whose threads count from 0."""
    made = _Inference(kernel, exchanged, arch, notes).run()
    layouts = made.layouts

    def of_role(role: ir.Role) -> ir.Role:
        nonlocal layouts
        alone = replace(made, body=role.body, threads=(role.threads, 1, 1), layouts=layouts)
        found = _Inference(alone, exchanged, arch, notes).run()
        layouts = found.layouts
        return replace(role, body=found.body)

    body = changed(made.body, ir.Role, by=of_role)
    return replace(made, body=body, layouts=layouts)


def _own(body: ir.Seq) -> Iterator[Any]:
    """What is in a body, roles apart."""
    return walk(body, lambda node: not isinstance(node, ir.Role))


@dataclass(slots=True)
class _Loop:
    """A parallel loop while its layout is looked for."""

    loop: ir.Parallel
    accesses: list[flow.Access]
    layout: Layout | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(extent if isinstance(extent, int) else 0 for extent in self.loop.extents)

    def covers(self, access: flow.Access) -> bool:
        """Whether every dimension of the loop longer than 1 indexes the fragment."""
        if access.axes is None or any(shared > 1 for shared in access.sharing):
            return False
        return all(axis in access.axes or extent == 1 for axis, extent in enumerate(self.shape))


@dataclass(slots=True)
class _Inference:
    """The layouts of one kernel.

    Attributes
    ----------
    exchanged : fragments that pass through shared memory: where not all of their elements have a value by then, they
        begin with zeros.
    """

    kernel: ir.Kernel
    exchanged: frozenset[ir.Buffer]
    arch: Arch
    notes: list[str]
    known: dict[ir.Buffer, Layout] = field(default_factory=dict)
    reason: dict[ir.Buffer, ir.Statement] = field(default_factory=dict)
    loops: list[_Loop] = field(default_factory=list)
    reductions: list[Reduce] = field(default_factory=list)

    def run(self) -> ir.Kernel:
        """The kernel with its layouts, once nothing is left that has to change hands.

        Every repeat has less to do.  A reduction set apart leaves its result in a fragment that nothing else gives a
        layout, so it is not set apart again.  A loop or a thread that exchanges a fragment touches it no more, and the
        loops that copy it touch nothing else: they follow its layout, or it follows theirs.
        """
        self._collect()
        self._anchor()
        while True:
            while self._flow():
                pass
            if not self._seed():
                break
        apart = [one for one in self.reductions if not self._is_left_by(one)]
        if apart:
            body = ReduceApart(apart)(self.kernel.body)
            return _Inference(replace(self.kernel, body=body), self.exchanged, self.arch, self.notes).run()
        strangers, singles = self._strangers(), self._singles()
        if strangers or singles:
            names = ", ".join(sorted(buffer.name for buffer in singles))
            self.notes += [f"{names} through shared memory (threads touch single elements)"] if singles else []
            body = Exchange(strangers, self.notes)(share_elements(self.kernel.body, singles))
            exchanged = self.exchanged.union(singles, *strangers.values())
            return _Inference(replace(self.kernel, body=body), exchanged, self.arch, self.notes).run()
        self._check()
        self._shared()
        layouts = {**dict(self.kernel.layouts), **self.known}
        by_loop = {found.loop: found.layout for found in self.loops}
        incomplete = [one for one in self._fragments() if one in self.exchanged]
        cleared = {one: self.known[one] for one in incomplete if not flow.filled_first(self.kernel.body, one)}
        body = SetLayouts(by_loop, cleared)(self.kernel.body)
        return replace(self.kernel, body=body, layouts=tuple(layouts.items()))

    # What there is ---------------------------------------------------------------------------

    def _collect(self) -> None:
        for node in _own(self.kernel.body):
            if isinstance(node, ir.Parallel):
                given = None if node.layout is None else self._of_author(node.layout, node)
                self.loops.append(_Loop(node, list(flow.accesses_of(node)), given))
            elif isinstance(node, Reduce):
                self.reductions.append(node)

    def _fragments(self) -> Iterator[ir.Buffer]:
        for node in _own(self.kernel.body):
            if isinstance(node, ir.Allocate) and node.buffer.scope == "fragment":
                yield node.buffer

    def _of_author(self, layout: AnyLayout, where: ir.Statement) -> Layout:
        """A layout that the author gives, with copies in the threads that it leaves out."""
        if isinstance(layout, TableLayout):
            raise LayoutConflict(
                "no arithmetic says which thread holds which elements of this layout: "
                "they are not sums of digits of the indices",
                span=where.span,
                hint="describe it with //, % and one exclusive-or",
            )
        threads, used = self.kernel.num_threads, layout.extent(THREAD)
        if used > threads or threads % used:
            raise LayoutConflict(
                f"this layout is one of {used} threads, but {threads} work here",
                span=where.span,
                hint="give every thread a part: T.Fragment(..., replicate=) makes copies",
            )
        return layout if used == threads else replicate(layout, threads // used)

    def _anchor(self) -> None:
        by_author = {buffer: layout for buffer, layout in self.kernel.layouts if buffer.scope == "fragment"}
        for node in _own(self.kernel.body):
            if isinstance(node, ir.Allocate) and node.buffer in by_author:
                self._set(node.buffer, self._of_author(by_author[node.buffer], node), node)
        for node in _own(self.kernel.body):
            if isinstance(node, (Copy, Transpose)) and node.schedule.staging is not None:
                self._set(node.source.buffer, node.schedule.staging.plan.accumulator(), node)
        for node in _own(self.kernel.body):
            if isinstance(node, Product) and node.plan is not None:
                for buffer, layout in demanded(node, node.plan).items():
                    self._set(buffer, layout, node)

    def _set(self, buffer: ir.Buffer, layout: Layout, because: ir.Statement) -> None:
        extra = buffer.rank - layout.rank
        layout = permuted(layout, (*[None] * extra, *range(layout.rank)))
        before = self.known.get(buffer)
        if before is not None and before != layout:
            raise conflict(buffer, self.reason.get(buffer), because)
        self.known[buffer] = layout
        self.reason.setdefault(buffer, because)

    # How layouts flow --------------------------------------------------------------------------

    def _flow(self) -> bool:
        """One round; whether anything was found."""
        found = False
        for reduction in self.reductions:
            found = self._flow_reduction(reduction) or found
        for loop in self.loops:
            found = self._flow_into_loop(loop) or self._flow_out_of_loop(loop) or found
        return found

    def _seen(self, access: flow.Access) -> Layout | None:
        """The layout of a fragment, as far as it is known, as an access sees it."""
        layout = self.known.get(access.buffer)
        return None if layout is None else access.apart(layout)

    def _flow_reduction(self, reduction: Reduce) -> bool:
        source, destination = reduction.source.buffer, reduction.destination.buffer
        if source not in self.known or destination in self.known or destination.scope != "fragment":
            return False
        self._set(destination, flow.reduced_layout(reduction, self.known[source]), reduction)
        return True

    def _flow_into_loop(self, found: _Loop) -> bool:
        if found.layout is not None or 0 in found.shape:
            return False
        for access in found.accesses:
            layout = self._seen(access)
            if layout is None or access.axes is None or not found.covers(access):
                continue
            order = [access.axes.index(axis) if axis in access.axes else None for axis in range(len(found.shape))]
            candidate = permuted(layout, order)
            if all(have >= want for have, want in zip(candidate.shape, found.shape, strict=True)):
                found.layout = candidate
                return True
        return False

    def _flow_out_of_loop(self, found: _Loop) -> bool:
        if found.layout is None:
            return False
        awaited = self._awaited()
        changed = False
        for access in found.accesses:
            if access.buffer in self.known or access.axes is None or access.buffer in awaited:
                continue
            layout, extents = access.counted(found.layout), access.extents
            if layout is None:
                continue
            # A dimension of one element divides nothing: every thread holds it, as loops that leave it out have it.
            kept = [axis for axis, extent in zip(access.axes, extents) if axis is not None and extent != 1]
            for axis in reversed(range(layout.rank)):
                if axis not in kept:
                    layout = reduced(layout, axis)
            kept.sort()
            order = [kept.index(axis) if axis in kept else None for axis in access.axes]
            candidate = access.together(permuted(layout, order))
            if candidate is not None:
                self._set(access.buffer, candidate, access.statement)
                changed = True
        return changed

    def _seed(self) -> bool:
        """Give a layout to the largest loop that has none and touches fragments, or to a fragment that no loop gives
        one; whether there was any.

        A loop over nothing but what reductions leave comes after the fragments that these reduce: as it would be dealt
        out, they do not leave it, and what it exchanges would have to be exchanged again.
        """
        threads, awaited = self.kernel.num_threads, self._awaited() - self.known.keys()
        waiting = [found for found in self.loops if found.layout is None and 0 not in found.shape]
        unknown = {found.loop: {one.buffer for one in found.accesses} - self.known.keys() for found in waiting}
        ready = [found for found in waiting if not unknown[found.loop] or unknown[found.loop] - awaited]
        left = [] if ready else [buffer for buffer in self._fragments() if buffer not in self.known]
        ready = ready if ready or left else waiting
        if ready:
            touching = [found for found in ready if any(access.axes is not None for access in found.accesses)]
            found = max(touching or ready, key=lambda one: math.prod(one.shape))
            found.layout = self._extended(found) or flow.coalesced_layout(found.loop, found.shape, threads, self.arch)
            return True
        # Where reductions go round in a circle, one of those that they read: what none reads follows from these.
        read = {one.source.buffer for one in self.reductions}
        for buffer in sorted(left, key=lambda one: (one in awaited, one not in read))[:1]:
            self.known[buffer] = spread(buffer.static_shape, threads, flow.access_width([buffer], self.arch))
        return bool(left)

    def _awaited(self) -> set[ir.Buffer]:
        """Fragments that lie as a reduction leaves them."""
        return {one.destination.buffer for one in self.reductions}

    def _extended(self, found: _Loop) -> Layout | None:
        """A loop layout that agrees with a fragment of fewer dimensions, using its copies for the others."""
        for access in found.accesses:
            layout = self._seen(access)
            if layout is None or access.axes is None or not layout.replicas or any(one > 1 for one in access.sharing):
                continue
            free = [axis for axis, extent in enumerate(found.shape) if axis not in access.axes and extent > 1]
            if len(free) != 1:
                continue
            candidate = flow.spread_over_copies(layout, access.axes, free[0], found.shape)
            if candidate is not None:
                return candidate
        return None

    # What has to change hands -------------------------------------------------------------------

    def _strangers(self) -> dict[ir.Parallel, set[ir.Buffer]]:
        """Fragments that loops index plainly, held by other threads than run the loop, or by several where one has
        to."""
        found: dict[ir.Parallel, set[ir.Buffer]] = {}
        for one in self.loops:
            once = one.layout is not None and flow.has_copies(one.layout) and happens_once(one.loop)
            for access in one.accesses:
                if access.axes is None or one.layout is None:
                    continue
                if once or not access.is_held(self.known[access.buffer], one.layout):
                    found.setdefault(one.loop, set()).add(access.buffer)
        return found

    def _singles(self) -> set[ir.Buffer]:
        """Fragments of which threads outside of loops want elements that not all of them hold in their one register."""
        known = [one for one in single_fragments(self.kernel.body) if one in self.known]
        return {one for one in known if not flow.is_in_all(self.known[one])}

    # Checks and shared tiles ---------------------------------------------------------------------

    def _is_left_by(self, reduction: Reduce) -> bool:
        """Whether a destination lies as the reduction leaves it."""
        return self.known[reduction.destination.buffer] == flow.reduced_layout(
            reduction, self.known[reduction.source.buffer]
        )

    def _check(self) -> None:
        for found in self.loops:
            for access in found.accesses:
                if access.buffer.scope != "fragment":
                    continue
                owner = self.known[access.buffer]
                if found.layout is None or not access.is_held(owner, found.layout):
                    raise conflict(access.buffer, self.reason.get(access.buffer), access.statement)
            if found.layout is not None and sums_in(found.loop, "shared"):
                alone = not flow.has_copies(found.layout)
                threads = found.layout.table(THREAD) if alone else None
                for store in sums_of_several(found.loop, threads):
                    for name in self._passing_through(store.buffer):
                        raise IterationsDepend(name, span=store.span, hint=ONE_THREAD.format(name))

    def _passing_through(self, tile: ir.Buffer) -> list[str]:
        """The name of the author's fragment that passes through a shared tile; none where the tile is the author's."""
        copied = [one.value for one in find(self.kernel.body, ir.Store) if one.buffer is tile]
        return [one.buffer.name for one in copied if isinstance(one, ir.Load) and one.buffer in self.exchanged]

    def _shared(self) -> None:
        matrix: set[ir.Buffer] = set()
        for gemm in find(self.kernel.body, Product):
            if gemm.plan is not None:
                matrix.update(region.buffer for region in (gemm.a, gemm.b) if region.buffer.scope == "shared")
        matrix |= (slot_buffers(self.kernel) | tiles_by_hand(self.kernel)) - by_bytes(self.kernel)
        by_author = {buffer for buffer, _ in self.kernel.layouts}
        for node in _own(self.kernel.body):
            for buffer in declared(node, "shared") if isinstance(node, ir.Allocate) else ():
                if buffer not in by_author:
                    span = tile_span(buffer, self.kernel, self.arch.spans) if buffer in matrix else None
                    self.known[buffer] = shared_rows(buffer.static_shape, buffer.dtype.stored_bits, span)
        view_layouts(self.kernel, {**dict(self.kernel.layouts), **self.known})


def conflict(buffer: ir.Buffer, first: ir.Statement | None, second: ir.Statement) -> LayoutConflict:
    """The error for a fragment of which two statements want different layouts."""
    before = f" (laid out for line {first.span.line})" if first is not None and first.span is not None else ""
    return LayoutConflict(
        f"the fragment {buffer.name!r}{before} is used here by threads that do not hold its elements",
        span=second.span,
        hint="copy it into a shared tile and read that, or index it with the loop's own variables",
    )
