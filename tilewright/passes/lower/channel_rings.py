"""The barriers of channels, and how many arrivals complete each of them."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.errors import ChannelMisuse
from tilewright.ir import UINT64, accesses, find
from tilewright.ir import nodes as ir
from tilewright.machine.instructions import MatrixInstruction
from tilewright.ops import CP_ASYNC, SYNC, Copy, GemmPlan, LoadAhead, Product
from tilewright.passes.tile.pipelines.tile_views import reads_tiles, shown_tile

BY_ENGINE = "engine"
"""The mechanism of tiles that the copy engine fills, in boxes or as contiguous bytes."""


@dataclass(frozen=True, slots=True)
class Ring:
    """A channel and its two rows of barriers, with the arrivals that complete them."""

    channel: ir.Channel
    full: ir.Buffer
    empty: ir.Buffer
    full_arrivals: int
    empty_arrivals: int
    by_group: frozenset[str]
    """Readers in which one thread arrives for its warpgroup: they read by descriptor only, and the wait for products
    covers the warpgroup."""
    lines: tuple[tuple[int, int], ...]
    """Blocks of the cluster that fill one another's slots: strides of their ranks, and counts."""
    fenced: frozenset[str]
    """Mechanisms of writers that need a fence, since matrix instructions read the slots by descriptor."""
    loading: frozenset[str]
    """Readers whose threads load from slots that the copy engine refills: an arrival may overtake outstanding loads,
    unless a fence stands between."""

    @property
    def blocks(self) -> int:
        """How many blocks fill one another's slots."""
        return 1 + sum(count - 1 for _, count in self.lines)


def ring_of(channel: ir.Channel, kernel: ir.Kernel) -> Ring:
    """The barriers of a channel.

    Raises
    ------
    ChannelMisuse : it connects threads that no barrier can, has readers that may not read it, or connects different
        roles at two places of the kernel.
    """
    joined = [
        roles
        for roles in find(kernel, ir.Roles)
        if any(one.channel == channel.name for one in find(roles, ir.ChannelStatement))
    ]
    rings = [_ring(channel, {role.name: role for role in roles.roles}, kernel) for roles in joined]
    loading = frozenset(name for ring in rings for name in ring.loading)
    rings = [replace(ring, full=rings[0].full, empty=rings[0].empty, loading=loading) for ring in rings]
    if any(ring != rings[0] for ring in rings):
        raise ChannelMisuse(
            f"the channel {channel.name!r} joins other roles in one T.roles than in another",
            span=channel.span,
            hint="make a channel for each",
        )
    none: frozenset[str] = frozenset()
    return rings[0] if rings else Ring(channel, *_barriers(channel, channel.stages), 1, 1, none, (), none, none)


def _ring(channel: ir.Channel, roles: Mapping[str, ir.Role], kernel: ir.Kernel) -> Ring:
    """The barriers of a channel between some roles."""
    _check_scope(channel, roles)
    read = [node for name in channel.readers for node in _readers(channel, roles[name])]
    described = {
        region.buffer
        for node in read
        if (instruction := _by_descriptor(node)) is not None and isinstance(node, Product)
        for region in ((node.b,) if instruction.transposes else (node.a, node.b))
    }
    fenced = frozenset(way for name in channel.writers for way in mechanisms_of(channel, roles[name], described))
    by_group = frozenset(name for name in channel.readers if _reads_only(channel, roles[name], described))
    by_engine = any(BY_ENGINE in mechanisms_of(channel, roles[name]) for name in channel.writers)
    loaded = channel.readers if by_engine else ()
    loading = frozenset(name for name in loaded if not _by_descriptors(channel, roles[name], described))
    lines = _lines(channel, roles, kernel)
    blocks = 1 + sum(count - 1 for _, count in lines)
    if blocks > 1 and not all(_by_descriptor(node) is not None for node in read):
        raise ChannelMisuse(
            f"the slots of {channel.name!r} are read by more than asynchronous gemms",
            span=channel.span,
            hint='only these may read the slots of a channel of scope "cluster"',
        )
    slots = channel.stages * (roles[channel.readers[0]].instances if channel.is_private else 1)
    of_full, of_empty = _arrivals_of_writers(channel, roles), _arrivals_of_readers(channel, roles, by_group)
    return Ring(channel, *_barriers(channel, slots), of_full, of_empty * blocks, by_group, lines, fenced, loading)


def _barriers(channel: ir.Channel, slots: int) -> tuple[ir.Buffer, ir.Buffer]:
    """The barriers of full slots, and of empty ones."""
    full, empty = (ir.Buffer(f"{channel.name}_{word}", (slots,), UINT64, "barrier") for word in ("full", "empty"))
    return full, empty


def _check_scope(channel: ir.Channel, roles: Mapping[str, ir.Role]) -> None:
    if channel.scope not in ("warp", "block", "cluster"):
        raise ChannelMisuse(
            f"the channel {channel.name!r} joins the roles of a {channel.scope}",
            span=channel.span,
            hint='only channels of scope "warp", "block" and "cluster" are lowered',
        )
    if channel.is_private and roles[channel.readers[0]].warps != 1:
        raise ChannelMisuse(
            f"each slot of {channel.name!r} is one warp's, but the role {channel.readers[0]!r} has several",
            span=channel.span,
            hint="write T.role(..., warps=1, instances=n)",
        )


def _lines(channel: ir.Channel, roles: Mapping[str, ir.Role], kernel: ir.Kernel) -> tuple[tuple[int, int], ...]:
    everyone = 1, math.prod(kernel.attribute("cluster", (1,))) if channel.scope == "cluster" else 1
    sent = [copy for name in channel.writers for copy in _copies_into(channel, roles[name]) if copy.schedule.multicast]
    return tuple(dict.fromkeys(copy.schedule.peers or everyone for copy in sent)) or (everyone,)


def _arrivals_of_writers(channel: ir.Channel, roles: Mapping[str, ir.Role]) -> int:
    full = 0
    for name in channel.writers:
        mechanisms = mechanisms_of(channel, roles[name])
        full += roles[name].instances if BY_ENGINE in mechanisms else 0
        full += roles[name].all_warps * ((SYNC in mechanisms) + ir.WARP * (CP_ASYNC in mechanisms))
    return 1 if channel.is_private else max(full, 1)


def _arrivals_of_readers(channel: ir.Channel, roles: Mapping[str, ir.Role], by_group: Container[str]) -> int:
    """Arrivals of the readers of one block."""
    empty = 0
    for name in channel.readers:
        warps = roles[name].warps if channel.alternate else roles[name].all_warps
        empty += warps * ir.WARP // (ir.WARPGROUP if name in by_group else ir.WARP)
    return empty


def mechanisms_of(channel: ir.Channel, role: ir.Role, tiles: Container[ir.Buffer] | None = None) -> set[str]:
    """How a role fills the slots of a channel, or those among `tiles`: by the copy engine, by cp.async, by stores of
    its threads."""
    buffers = [one for one in channel.buffers if tiles is None or one in tiles]
    mechanisms = set()
    flying = {store for loop in find(role, ir.Parallel) if loop.token is not None for store in find(loop, ir.Store)}
    for node in find(role, ir.Statement):
        if isinstance(node, Copy) and node.destination.buffer in buffers:
            by_threads = CP_ASYNC if node.token is not None else SYNC
            mechanisms.add(BY_ENGINE if node.schedule.by_engine else by_threads)
        elif any(shown_tile(one) in buffers for one in accesses(node)[1]):
            mechanisms.add(CP_ASYNC if node in flying else SYNC)
    return mechanisms


def _copies_into(channel: ir.Channel, role: ir.Role) -> list[Copy]:
    return [node for node in find(role, Copy) if node.destination.buffer in channel.buffers]


def _readers(channel: ir.Channel, role: ir.Role) -> list[ir.Statement]:
    return [node for node in find(role, ir.Statement) if reads_tiles(node, channel.buffers)]


def _reads_only(channel: ir.Channel, role: ir.Role, described: set[ir.Buffer]) -> bool:
    """Whether a role reads the slots only by descriptors of asynchronous gemms, whose wait covers the warpgroup.

    A received slot must be read under every condition: warps without a product may lag by a whole round of the ring,
    and a parity cannot tell the current phase from the one before the last.
    """
    if role.warps % 4 or not _by_descriptors(channel, role, described):
        return False
    readers = _readers(channel, role)
    received = [body for body in find(role.body, ir.Seq) if any(_is_receive(one, channel) for one in body.statements)]
    return all(any(one in readers for one in _always(body)) for body in received)


def _by_descriptors(channel: ir.Channel, role: ir.Role, described: set[ir.Buffer]) -> bool:
    """Whether only asynchronous gemms read the slots in a role, none through registers."""
    readers = _readers(channel, role)
    read = {one for node in readers for one in find(node, ir.Buffer) if shown_tile(one) in channel.buffers}
    return read <= described and all(_by_descriptor(node) is not None for node in readers)


def _is_receive(statement: ir.Statement, channel: ir.Channel) -> bool:
    return isinstance(statement, ir.Receive) and statement.channel == channel.name


def _always(body: ir.Seq) -> Iterator[ir.Statement]:
    """The statements of a sequence that run unconditionally."""
    for one in body.statements:
        if isinstance(one, ir.Seq):
            yield from _always(one)
        elif isinstance(one, ir.For) and one.numbers:
            yield from _always(one.body)
        else:
            yield one


def _by_descriptor(statement: ir.Statement) -> MatrixInstruction | None:
    """The instruction of a gemm, or of a load ahead for one, that reads shared tiles by descriptor; None for other
    statements."""
    plan = statement.plan if isinstance(statement, (Product, LoadAhead)) else None
    return plan.instruction if isinstance(plan, GemmPlan) and plan.instruction.asynchronous else None
