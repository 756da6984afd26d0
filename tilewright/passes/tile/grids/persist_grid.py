"""Makes kernels persistent: as many blocks as fit loop over all tiles, and the next tile's loads overlap with stores.

Before (1024 tiles; 132 multiprocessors)::

    with kernel(blocks={bx: 32, by: 32}, ...):
        channel("loads", a_ring, b_ring, stages=4, ...)
        with roles():
            with role("consumer", ...):
                for k in range(steps):
                    receive("loads", k)
                    ...
                copy(total, C[by * 128, bx * 256])
            with role("producer", ...):
                for k in range(steps):
                    acquire("loads", k)
                    ...

After (``groups`` of one block each, or of a cluster's)::

    with kernel(blocks={block: 128}, ...):
        channel("loads", a_ring, b_ring, stages=4, ...)
        with roles():
            with role("consumer", ...):
                for iteration in range(8):
                    tile = iteration * 128 + block
                    bx, by = ...                     # panels of rows, as `T.use_swizzle` walks them
                    for k in range(steps):
                        receive("loads", iteration * steps + k)
                        ...
                    copy(total, C[by * 128, bx * 256])
            with role("producer", ...):
                ...                                  # the same loop: it runs ahead into the next tile

The blocks are the fewest that need no more iterations than all multiprocessors would.  A channel's running number
counts the iterations of all tiles; where tiles differ in them, a scalar of each role does. Such grids are not made
persistent unless the author asks: a static schedule does not balance as well. With ``persistent="claim"`` the schedule
is dynamic (`tile_loops`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.arith import Analyzer
from tilewright.errors import an
from tilewright.ir import INT32, find, holds, new_names, performed, size_variables, substitute, variables, walk
from tilewright.ir import nodes as ir
from tilewright.ir.nodes import known_extent
from tilewright.machine.arch import Arch
from tilewright.ops import Copy
from tilewright.passes import Context, map_kernels
from tilewright.passes.tile.copies.filled_tiles import channel_copies
from tilewright.passes.tile.copies.stage_epilogue import shared_bytes, shared_room
from tilewright.passes.tile.grids.double_buffering import double_buffered
from tilewright.passes.tile.grids.drop_dependent_launch import WORDS
from tilewright.passes.tile.grids.form_clusters import CLUSTER, depending, differs, reads_own_memory
from tilewright.passes.tile.grids.ping_pong import PING_PONG, last_turn, own_turn, paired
from tilewright.passes.tile.grids.rasterize_grid import RASTER, panel_place, within
from tilewright.passes.tile.grids.tile_loops import CLAIM, PERSISTENT, DynamicTiles, Renumber, ceildiv, static_tile_loop
from tilewright.passes.tile.roles.divide_roles import MIN_BLOCKS, SPECIALIZED
from tilewright.passes.tile.roles.specialize_warps import OF_CLUSTERS


def persist_grid(function: ir.Function, context: Context) -> ir.Function:
    """Make kernels with roles persistent where they have more tiles than fit, or where the author asks."""
    analyzer = Analyzer()
    for var in size_variables(function):
        analyzer.bind(var, 0, None)
    return map_kernels(function, lambda kernel: _persist(kernel, context, analyzer))


def _persist(kernel: ir.Kernel, context: Context, analyzer: Analyzer) -> ir.Kernel | list[ir.Statement]:
    asked = kernel.attribute(PERSISTENT, context.schedule.persistent)
    if kernel.attribute(PING_PONG, context.schedule.ping_pong):
        both = _alternating(kernel, asked, context, analyzer)
        if isinstance(both, str):
            message = f"one consumer computes all tiles of a block, without a ping-pong schedule: {both}"
            (context.warn if kernel.attribute(PING_PONG) else context.note)(message, kernel.span)
        else:
            kernel, asked = both, asked or True
    if not kernel.attribute(SPECIALIZED) or asked is False:
        return kernel
    grid = _Grid(kernel, context.arch)
    if asked is None and not grid.pays:
        return kernel
    claims = DynamicTiles() if asked == CLAIM else None
    found = _Persist(kernel, grid, analyzer, claims)
    reason = found.unsupported()
    if reason is None and asked is None and found.is_uneven():
        reason = "tiles differ in their steps, and are balanced best when blocks take them as they become free"
    if reason is not None:
        context.chose(f"grid: one tile a block (not persistent: {reason})", kernel.span)
        return kernel
    found.source, deeper = double_buffered(kernel, found.once, context.arch)
    for name in deeper:
        context.chose(f"{name}: a second slot, for the next tile", kernel.span)
    dealt = "tiles are claimed" if found.claims is not None else f"panels of {grid.panel} rows of tiles"
    dealt += ", ping-pong schedule of two consumers" if any(role.instances > 1 for role in found.roles) else ""
    context.chose(f"grid: persistent, {grid.resident} at once, {dealt}", kernel.span)
    made = found.kernel()
    return made if found.claims is None else [found.claims.counter(kernel.span), made]


def _alternating(kernel: ir.Kernel, asked: object, context: Context, analyzer: Analyzer) -> ir.Kernel | str:
    """The kernel with the ping-pong schedule of two consumers, or why it cannot have it."""
    if not kernel.attribute(SPECIALIZED):
        return "the kernel is not divided into roles"
    if asked is False:
        return "its blocks have one tile each, as the author asks"
    grid = _Grid(kernel, context.arch)
    if not grid.has_second_tiles:
        return "no block has a second tile"
    unsupported = _Persist(kernel, grid, analyzer, DynamicTiles() if asked == CLAIM else None).unsupported()
    return unsupported or paired(kernel, context.arch)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The tiles of a grid in groups, one for each cluster."""

    source: ir.Kernel
    arch: Arch

    @property
    def dims(self) -> tuple[int, ...]:
        dims: tuple[int, ...] = self.source.attribute(CLUSTER, (1, 1, 1))
        return dims

    @property
    def blocks(self) -> int:
        """Blocks of a group."""
        return math.prod(self.dims)

    @property
    def counts(self) -> list[ir.Extent]:
        """Groups along each grid dimension."""
        return [known_extent(extent // size) for extent, size in zip(self.source.grid, self.dims)]

    @property
    def total(self) -> ir.Expr:
        """All groups."""
        return ir.expr(ir.product(self.counts))

    @property
    def resident(self) -> int:
        """Groups that run at once, where a multiprocessor holds one block, or as many as the author asks for."""
        return self.arch.cores * self.beside // self.blocks

    @property
    def beside(self) -> int:
        """Blocks that share a multiprocessor."""
        count: int = self.source.attribute(MIN_BLOCKS, 1)
        return count

    @property
    def pays(self) -> bool:
        """Whether there are more blocks than run at once, and a multiprocessor has one at a time."""
        if self.beside > 1:
            return False
        shares = any(node.registers is not None for node in find(self.source.body, ir.Role))
        alone = 2 * shared_bytes(self.source, self.arch) > self.arch.shared_bytes
        return (shares or alone) and self.has_second_tiles  # roles have all registers

    @property
    def has_second_tiles(self) -> bool:
        """Whether there may be more groups than run at once."""
        return not (isinstance(self.total, ir.Const) and self.total.value <= self.resident)

    @property
    def panel(self) -> int:
        """Rows of groups in a panel, so that the groups that run at once load the fewest bytes."""
        raster = self.source.attribute(RASTER)
        if raster is not None:
            size: int = raster[1]
            return size
        if len(self.source.grid) < 2:
            return 1
        late = {copy for role in find(self.source.body, ir.Role) for copy in _behind_loops(role)}
        along = [
            size
            * sum(
                copy.landing_bytes
                for copy in channel_copies(self.source)
                if copy not in late and differs(copy.source, depending(self.source, var))
            )
            for var, size in zip(self.source.block_vars[:2], self.dims)
        ]
        return max(1, round(math.sqrt(self.resident * along[0] / along[1]))) if all(along) else 1

    @property
    def order(self) -> str:
        return str(self.source.attribute(RASTER, ("row", 0))[0])


def _behind_loops(role: ir.Role) -> Iterator[Copy]:
    """Copies of a role once a tile, behind its loops: few bytes compared with those of the loops."""
    for one in reversed(role.body.statements):
        if isinstance(one, ir.For):
            return
        yield from find(one, Copy)


@dataclass(slots=True)
class _Persist:
    source: ir.Kernel
    grid: _Grid
    analyzer: Analyzer
    claims: DynamicTiles | None = None

    # Refusals ------------------------------------------------------------------------------------

    def unsupported(self) -> str | None:
        allowed = (ir.Allocate, ir.Channel, ir.Let, ir.Assume, ir.Roles)
        stray = next((one for one in self.source.body.statements if not isinstance(one, allowed)), None)
        if stray is not None:
            return f"{an(type(stray).__name__)} stands beside its roles"
        if not any(isinstance(one, ir.Roles) for one in self.source.body.statements):
            return "it has no roles"
        if shared_bytes(self.source, self.grid.arch) > shared_room(self.source, self.grid.arch):
            return "what follows its loop needs the ring's bytes"
        if any(node.function in OF_CLUSTERS for node in find(self.source.body, ir.Call)):
            return "the blocks of a cluster synchronise, and its producers would already load the next tile"
        if self.claims is not None and self.grid.blocks > 1:
            return "blocks of a cluster would have to claim the same tiles"
        for channel in self.channels:
            for role in self.roles:
                if role.name in (*channel.writers, *channel.readers) and self.passes(role, channel) is None:
                    return f"how often {role.name} passes through {channel.name} is not said by one loop"
        return None

    @property
    def channels(self) -> list[ir.Channel]:
        return [one for one in self.source.body.statements if isinstance(one, ir.Channel)]

    @property
    def roles(self) -> list[ir.Role]:
        return list(find(self.source.body, ir.Role))

    def passes(self, role: ir.Role, channel: ir.Channel) -> ir.Expr | None:
        """Uses of a channel by a role in one tile: iterations of its only loop, or one without a loop; else None."""
        found = [node for node in find(role.body, ir.Acquire, ir.Receive) if node.channel == channel.name]
        if len(found) != 1:
            return None
        if ir.is_literal(found[0].iteration, 0) and any(one is found[0] for one in role.body.statements):
            return ir.const(1)
        loops = [
            one for one in role.body.statements if isinstance(one, ir.For) and any(node in found for node in walk(one))
        ]
        if len(loops) != 1 or not any(one is found[0] for one in loops[0].body.statements):
            return None
        loop = loops[0]
        count = loop.stop - loop.start
        own = {node.var for node in find(role.body, ir.Let)}
        counted = self.analyzer.equal(found[0].iteration, loop.var - loop.start)
        return count if counted and not variables(count) & own and not reads_own_memory(count) else None

    @property
    def once(self) -> list[ir.Channel]:
        """Channels of one slot that every role uses once a tile."""
        alone = [one for one in self.channels if one.stages == 1]
        return [
            channel
            for channel in alone
            if all(
                ir.is_literal(self.passes(role, channel), 1)
                for role in self.roles
                if role.name in (*channel.writers, *channel.readers)
            )
        ]

    def is_uneven(self) -> bool:
        """Whether some tiles take more steps than others."""
        counts = [self.passes(role, channel) for role in self.roles for channel in self.channels]
        return any(self.varies(count) for count in counts if count is not None)

    def varies(self, count: ir.Expr) -> bool:
        """Whether tiles differ in a number of iterations."""
        return differs(count, set().union(*(depending(self.source, var) for var in self.source.block_vars)))

    # The kernel ----------------------------------------------------------------------------------

    def kernel(self) -> ir.Kernel:
        source, blocks = self.source, self.grid.blocks
        total = self.grid.total
        iterations = ceildiv(total, ir.const(self.grid.resident))
        count = self.analyzer.simplify(ceildiv(total, ir.index_binary("max", iterations, 1)))
        if self.claims is not None:
            count = self.analyzer.simplify(ir.index_binary("min", total, ir.const(self.grid.resident)))
        block = ir.Var(INT32, "block")
        varying = set().union(*(depending(source, var) for var in source.block_vars))
        names = [
            one for one in source.body.statements if isinstance(one, (ir.Let, ir.Assume)) and variables(one) & varying
        ]
        body: list[ir.Statement] = []
        groups: ir.Expr = count
        if not isinstance(count, ir.Const):
            groups = ir.Var(INT32, "groups")
            body.append(ir.Let(groups, ir.cast(count, INT32), span=source.span))
        for one in source.body.statements:
            if isinstance(one, ir.Roles):
                roles = tuple(self._role(role, block, groups, names) for role in one.roles)
                body += self.claims.channel(roles, one.span) if self.claims is not None else []
                one = replace(one, roles=roles)
            if not any(one is name for name in names):
                body.append(one)
        attributes = {name: value for name, value in source.attributes if name not in (RASTER, PERSISTENT, PING_PONG)}
        if CLUSTER in attributes:
            attributes[CLUSTER] = (blocks, 1, 1)
        launched = known_extent(self.analyzer.simplify(count * blocks))
        return replace(
            self.source,
            block_vars=(block,),
            grid=(launched,),
            body=ir.Seq(tuple(body), span=source.body.span),
            attributes=tuple(attributes.items()),
        )

    def _role(self, role: ir.Role, block: ir.Var, groups: ir.Expr, names: Sequence[ir.Statement]) -> ir.Role:
        """A role that goes through the tiles of its block's group."""
        iteration, tile = ir.Var(INT32, "iteration"), ir.Var(INT32, "tile")
        total, group = self.grid.total, block // self.grid.blocks
        counters: list[ir.Statement] = []
        numbers: list[ir.Statement] = []
        bases: dict[str, ir.Expr] = {}
        for channel in self.channels:
            count = self.passes(role, channel)
            if count is None:
                continue
            bases[channel.name] = iteration * count
            if self.varies(count):
                counter, base = ir.Buffer(f"{channel.name}_passes", (), INT32, "scalar"), ir.Var(INT32, "passes")
                after = base + ir.cast(ir.index_binary("max", count, 0), INT32)
                counters.append(ir.Allocate(counter, initial=ir.const(0), span=role.span))
                numbers += [
                    ir.Let(base, ir.Load(INT32, counter, ()), span=role.span),
                    ir.Store(counter, (), after, span=role.span),
                ]
                bases[channel.name] = base
        rings = {buffer: channel.name for channel in self.channels for buffer in channel.buffers}
        body = Renumber(bases, rings, {one.name: one.stages for one in self.channels})(role.body)
        own = [one for one in body.statements if isinstance(one, ir.Allocate) and one.buffer.scope == "shared"]
        body = replace(body, statements=tuple(one for one in body.statements if one not in own))
        # The wait for the previous kernel is not repeated in each tile: it takes a microsecond.
        once = list(itertools.takewhile(lambda one: performed(one) in WORDS, body.statements))
        body = replace(body, statements=body.statements[len(once) :])
        before = [*own, *once, *counters]
        work = ir.seq(self._place(tile, block), names, numbers, body.statements)
        alternates = role.instances > 1
        if alternates:  # every consumer counts the iterations of all tiles
            named = [*self._place(tile, block), *names]
            outside, inside = ([*named, *numbers], []) if numbers else ([], named)
            work = ir.seq(outside, own_turn(role, iteration, ir.seq(inside, body.statements), role.span))
        if self.claims is not None:
            writes = holds(role.body, ir.Acquire)
            ending = last_turn(role, iteration, role.span) if alternates else None
            loop = self.claims.loop(iteration, tile, total, groups, work, writes, role.span, ending)
            return replace(role, body=ir.seq(before, self._renamed(loop)))
        loop = static_tile_loop(iteration, tile, total, group, groups, work, bool(numbers), role.span)
        if alternates:
            count = ir.Var(INT32, "iterations")
            counted = ir.Let(count, loop.stop, span=role.span)
            loop = replace(loop, stop=count)
            return replace(role, body=ir.seq(before, counted, self._renamed(loop), last_turn(role, count, role.span)))
        return replace(role, body=ir.seq(before, self._renamed(loop)))

    def _renamed(self, loop: ir.Statement) -> ir.Statement:
        """A copy of a loop with new names; the kernel's layouts hold for the new names too."""
        vars, buffers = new_names(loop)
        layouts = tuple((buffers.get(one, one), layout) for one, layout in self.source.layouts)
        values = tuple((buffers.get(one, one), value) for one, value in self.source.safe_values)
        self.source = replace(self.source, layouts=layouts, safe_values=values)
        return substitute(loop, vars, buffers)

    def _place(self, tile: ir.Var, block: ir.Var) -> list[ir.Statement]:
        """Names of the block's indices in the grid of tiles."""
        source, dims = self.source, self.grid.dims
        counts, vars = self.grid.counts, source.block_vars
        places, names = panel_place(tile, counts, (self.grid.order, self.grid.panel), source.span)
        rank: ir.Expr = block % self.grid.blocks
        for var, place, size, extent in zip(vars, places, dims, source.grid):
            index = place * size
            if size > 1:
                index = index + rank % size
                rank = rank // size
            names.append(ir.Let(var, ir.cast(index, INT32), span=source.span))
            names.append(within(var, extent))
        return names
