"""Joins neighbouring blocks into clusters that load what they share once, each a part of it for all.

Before (every block along ``by`` reads the same tile of B)::

    with kernel(blocks={bx: 16, by: 32}, ...):
        channel("loads", a_ring, b_ring, stages=4, ...)
        with roles():
            with role("consumer", ...):
                ...
                copy(total, C[by * 128, bx * 256])
            with role("producer", ...):
                for k in range(steps):
                    acquire("loads", k)
                    copy(A[by * 128, k * 64], a_ring[k % 4, :, :])
                    copy(B[bx * 256, k * 64], b_ring[k % 4, :, :])
                    publish("loads", k)

After::

    with kernel(blocks={bx: 16, by: 32}, cluster=(1, 2, 1), ...):
        channel("loads", a_ring, b_ring, stages=4, scope="cluster", ...)
        ...
                    copy(B[bx * 256, k * 64], b_ring[k % 4, :, :], multicast=True)

The blocks of a cluster go through the loop in step, so the axis is one on which its bounds do not depend. Where the
author asks for clusters along several axes, the blocks of a row or a column of the cluster share what does not depend
on its axis. Where an axis does not divide by the cluster, blocks beyond the grid load zeros and store nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilewright.ir import LEAVING, Rewriter, find, holds, touched, variables, walk
from tilewright.ir import nodes as ir
from tilewright.layout import PATTERN_ROWS
from tilewright.ops import Copy, GemmPlan
from tilewright.passes import Context, map_kernels
from tilewright.passes.tile.copies.filled_tiles import channel_copies
from tilewright.passes.tile.gemms.gemm_candidates import Candidate
from tilewright.passes.tile.gemms.select_instructions import plan_gemms
from tilewright.passes.tile.grids.tile_loops import CLAIM, PERSISTENT
from tilewright.passes.tile.pipelines.tile_views import reads_tiles
from tilewright.passes.tile.roles.divide_roles import SPECIALIZED

CLUSTER = "cluster"
BLOCKS = 2
"""Blocks of a cluster: of four, too few fit a Hopper GPU at once."""

WASTE = 16
"""Blocks beyond the grid are at most one in so many."""


def form_clusters(function: ir.Function, context: Context) -> ir.Function:
    """Give kernels that the compiler divided into roles clusters, where that saves loads."""
    if not context.arch.clusters:
        return function
    engine = context.arch.copy_engine
    if engine is None or not engine.multicast:
        return map_kernels(function, _without_clusters)
    return map_kernels(function, lambda kernel: _form(kernel, context))


def depending(kernel: ir.Kernel, var: ir.Var) -> set[ir.Var]:
    """`var` and all names in a kernel whose values depend on it, or on memory that each block fills for itself."""
    lets = list(find(kernel.body, ir.Let))
    found = {var} | {let.var for let in lets if reads_own_memory(let.value)}
    before = 0
    while before != len(found):
        before = len(found)
        found.update(let.var for let in lets if variables(let.value) & found)
    return found


def differs(value: ir.Expr | ir.Region, names: set[ir.Var]) -> bool:
    """Whether blocks for which `names` differ may have different values."""
    return bool(variables(value) & names) or reads_own_memory(value)


def reads_own_memory(value: ir.Expr | ir.Region) -> bool:
    """Whether a value depends on memory that each block fills for itself."""
    return any(node.buffer.scope != "global" for node in find(value, ir.Load))


@dataclass(frozen=True, slots=True)
class _Axis:
    """A grid dimension along which blocks may be joined, and the loads that they then share."""

    number: int
    shared: tuple[Copy, ...]

    @property
    def saved(self) -> int:
        return sum(copy.landing_bytes for copy in self.shared)


def _form(kernel: ir.Kernel, context: Context) -> ir.Kernel:
    given, wanted = kernel.attribute(CLUSTER), context.schedule.cluster
    say = partial(context.chose, span=kernel.span)
    if not kernel.attribute(SPECIALIZED):
        if given not in (None, (1, 1, 1)) and not _uses_clusters(kernel):
            say("cluster: each block loads for itself (no warps of their own make the loads)")
        return _without_clusters(kernel)
    if wanted == 1 or given == (1, 1, 1):
        return _without_clusters(kernel)
    if given is None and wanted is None and kernel.attribute(PERSISTENT, context.schedule.persistent) == CLAIM:
        say("cluster: none (each block claims tiles of its own)")
        return _without_clusters(kernel)
    dims = given or (wanted or BLOCKS,) * 3
    plans = plan_gemms(kernel, context.arch)
    channels = list(find(kernel.body, ir.Channel))
    refused = {channel: _channel_unsupported(kernel, channel, plans) for channel in channels}
    engine = context.arch.copy_engine
    longest = 0 if engine is None else engine.box
    candidates = (_axis(kernel, number, dims[number], refused, longest) for number in range(len(kernel.grid)))
    axes = [axis for axis in candidates if axis.shared]
    if given is not None:
        axes = [axis for axis in axes if given[axis.number] > 1]
    else:
        axes = [axis for axis in axes if _divides(kernel.grid[axis.number], dims[axis.number], wanted is not None)]
    if not axes:
        reason = next(filter(None, refused.values()), None) or "no load is shared along an axis that divides"
        say(f"cluster: {'none' if given is None else 'each block loads for itself'} ({reason})")
        return _without_clusters(kernel)
    if given is None:
        axes = [max(axes, key=lambda axis: (axis.saved, axis.number))]
        dims = tuple(dims[number] if number == axes[0].number else 1 for number in range(3))
    for axis in axes:
        names = ", ".join(dict.fromkeys(copy.source.buffer.name for copy in axis.shared))
        var = kernel.block_vars[axis.number]
        say(f"cluster: {dims[axis.number]} blocks along {var.name} share loads of {names}")
    return _joined(kernel, axes, dims)


def _uses_clusters(kernel: ir.Kernel) -> bool:
    """Whether blocks of a cluster have to do with one another in what the author wrote."""
    for node in walk(kernel.body):
        if isinstance(node, Copy) and (node.schedule.multicast or node.rank is not None):
            return True
        if isinstance(node, ir.Channel) and node.scope == CLUSTER:
            return True
        if isinstance(node, ir.Call) and any(
            CLUSTER in str(word) for word in (node.function, *node.arguments) if isinstance(word, (str, ir.Const))
        ):
            return True
    return False


def _without_clusters(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel without clusters, so that its grid need not divide by them, unless the author's own words need
    them."""
    if _uses_clusters(kernel):
        return kernel
    return replace(kernel, attributes=tuple(one for one in kernel.attributes if one[0] != CLUSTER))


def _divides(extent: ir.Extent, size: int, asked: bool) -> bool:
    """Whether few blocks of an axis are wasted; an extent known only at launch may be 1."""
    if not isinstance(extent, int):
        return asked
    return (-extent % size) * WASTE <= extent


def _channel_unsupported(kernel: ir.Kernel, channel: ir.Channel, plans: Mapping[Any, Candidate]) -> str | None:
    """Why the slots of a channel cannot be filled by several blocks."""
    if channel.scope != "block":
        return f"{channel.name} joins a {channel.scope}"
    for role in find(kernel.body, ir.Role):
        if role.name not in channel.readers:
            continue
        for reader in [node for node in find(role, ir.Statement) if reads_tiles(node, channel.buffers)]:
            plan = plans[reader][0] if reader in plans else None
            if not (isinstance(plan, GemmPlan) and plan.instruction.asynchronous):
                return "its slots are read by more than asynchronous gemms"
        if any(
            holds(statement, ir.ChannelStatement) and writes_global(statement) for statement in role.body.statements
        ):
            return "it writes to global memory between its loads"
    return None


def _axis(kernel: ir.Kernel, number: int, size: int, refused: Mapping[ir.Channel, str | None], longest: int) -> _Axis:
    """What blocks along a grid dimension would share, `longest` rows each at most; nothing where they may not go in
    step."""
    depends = depending(kernel, kernel.block_vars[number])
    bounds = list(_bounds(kernel.body))
    if any(differs(bound, depends) for bound in bounds):
        return _Axis(number, ())
    fitting = {buffer for channel, reason in refused.items() if reason is None for buffer in channel.buffers}
    shared = tuple(
        copy
        for copy in channel_copies(kernel)
        if copy.destination.buffer in fitting and not differs(copy.source, depends) and _shareable(copy, size, longest)
    )
    return _Axis(number, shared)


def _bounds(body: ir.Seq) -> Iterator[ir.Expr]:
    """Everything that decides how often a role passes through a channel, or whether a block stays for it."""
    for node in walk(body):
        if isinstance(node, ir.For) and holds(node, ir.ChannelStatement):
            yield from (node.start, node.stop)
        elif isinstance(node, (ir.If, ir.While)):
            leaves = LEAVING if isinstance(node, ir.If) else ()
            if holds(node, ir.ChannelStatement, *leaves):
                yield node.condition


def _shareable(copy: Copy, size: int, longest: int) -> bool:
    rows = copy.destination.extents[-2]
    return isinstance(rows, int) and rows % (size * PATTERN_ROWS) == 0 and rows // size <= longest


# The kernel in clusters ---------------------------------------------------------------------------


def _joined(kernel: ir.Kernel, axes: Sequence[_Axis], dims: tuple[int, ...]) -> ir.Kernel:
    """The kernel with clusters of `dims` blocks, which share loads along some of these axes."""
    inside: ir.Expr | None = None
    grid = list(kernel.grid)
    for number, (extent, size) in enumerate(zip(kernel.grid, dims)):
        if isinstance(extent, int) and extent % size == 0:
            continue
        padded = (extent + (size - 1)) // size * size
        grid[number] = int(padded.value) if isinstance(padded, ir.Const) else padded
        below = ir.index_binary("lt", kernel.block_vars[number], extent)
        inside = below if inside is None else ir.binary("all", inside, below)
    shared: dict[Copy, tuple[int, int] | None] = {}
    for axis in axes:
        size = dims[axis.number]
        peers = None if size == math.prod(dims) else (math.prod(dims[: axis.number]), size)
        shared = {**dict.fromkeys(axis.shared, peers), **shared}
    attributes = {**dict(kernel.attributes), CLUSTER: tuple(dims)}
    body = _Join(shared, inside)(kernel.body)
    return replace(kernel, grid=tuple(grid), body=body, attributes=tuple(sorted(attributes.items())))


class _Join(Rewriter):
    """Marks the shared loads; what writes to global memory happens in blocks of the grid alone."""

    def __init__(self, shared: Mapping[Copy, tuple[int, int] | None], inside: ir.Expr | None) -> None:
        self.shared, self.inside = shared, inside

    def visit_Channel(self, channel: ir.Channel) -> ir.Channel:
        joined = any(copy.destination.buffer in channel.buffers for copy in self.shared)
        return replace(channel, scope="cluster") if joined else channel

    def visit_Copy(self, copy: Copy) -> Copy:
        if copy not in self.shared:
            return copy
        return replace(copy, schedule=replace(copy.schedule, multicast=True, peers=self.shared[copy]))

    def visit_Role(self, role: ir.Role) -> ir.Role:
        made: ir.Role = self.generic(role)
        if self.inside is None or holds(role.body, ir.Publish):
            return made
        return replace(made, body=replace(made.body, statements=tuple(self._guarded(made.body.statements))))

    def _guarded(self, statements: Sequence[ir.Statement]) -> Iterator[ir.Statement]:
        for statement in statements:
            if writes_global(statement):
                assert self.inside is not None
                yield ir.If(self.inside, ir.seq(statement), span=statement.span)
            else:
                yield statement


def writes_global(statement: ir.Statement) -> bool:
    """Whether a statement changes memory that other blocks see."""
    return any(one.scope == "global" for one in touched(statement).writes)
