"""Divides a kernel into its two roles: each a slice of the program, under the loops and conditions around its
statements.

`specialize_warps` shows a kernel before and after, and decides where this is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from tilewright.arith import Analyzer
from tilewright.errors import Span
from tilewright.ir import INT32, bodies, declared, find, has_effect, leaving, performed, put, walk
from tilewright.ir import nodes as ir
from tilewright.layout.algebra import expand
from tilewright.machine.arch import Arch
from tilewright.ops import Copy, GemmPlan
from tilewright.passes import Context, fresh, plain_loop, redirected
from tilewright.passes.tile.copies.engine_checks import load_unsupported
from tilewright.passes.tile.copies.filled_tiles import Site
from tilewright.passes.tile.copies.pieces import copied_piece
from tilewright.passes.tile.gemms.select_instructions import plan_gemms
from tilewright.passes.tile.pipelines.inject_pipeline import unstageable
from tilewright.passes.tile.pipelines.pipeline_plan import plan_pipeline
from tilewright.passes.tile.pipelines.tile_views import views_of, with_views
from tilewright.passes.tile.pipelines.tiles_after_rings import tiles_after_rings
from tilewright.passes.tile.roles.divide_prelude import divide_prelude
from tilewright.passes.tile.roles.plan_channels import Link, LiveRange, ProducerPlan
from tilewright.passes.tile.roles.planned_roles import LoopChannel, planned_loop

MIN_BLOCKS = "min_blocks_per_sm"
"""Attribute of kernels that say how many of their blocks shall run on one multiprocessor."""

SPECIALIZED = "specialized"
"""Attribute of kernels whose roles the compiler made, so that it may also schedule their tiles."""


@dataclass(frozen=True, slots=True)
class RoleRefusal:
    """Why a kernel is not divided, and the statement that prevents it, if any."""

    reason: str
    statement: ir.Statement | None = None

    def __str__(self) -> str:
        line = self.statement.span.line if self.statement is not None and self.statement.span else None
        return self.reason if line is None else f"line {line}: {self.reason}"


@dataclass(slots=True)
class Division:
    """One kernel while it is divided."""

    source: ir.Kernel
    plan: ProducerPlan
    wanted: dict[ir.Pipelined, int]
    anchor: int
    rings: dict[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    channels: dict[Link, str] = field(default_factory=dict)
    numbers: dict[tuple[Link, ir.Seq], ir.Expr] = field(default_factory=dict)
    """The running number of each channel in each of its sequences."""
    views: dict[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    """Views of tiles, and those of their rings."""
    staged: dict[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    """Tiles of the consumer that got stages of their own by an author's plan."""
    counters: dict[ir.Var, ir.Buffer] = field(default_factory=dict)
    """Counters of running numbers that no loop variable gives."""

    def __post_init__(self) -> None:
        links = self.plan.links
        counted: dict[ir.Seq, ir.Var] = {}
        for link in links:
            self.channels[link] = self._channel_name(link)
            for tile in link.tiles:
                self.rings[tile] = replace(tile, name=f"{tile.name}_ring", shape=(link.stages, *tile.shape))
            several = len(link.ranges) > 1
            counter = self._counter() if several else None
            for live in link.ranges:
                home = live.home
                number: ir.Expr | None = None if several else counted.get(home) or self._loop_number(home)
                if number is None:
                    number, counter = self._number(counter)
                    if not several:
                        counted[home] = number
                self.numbers[link, home] = number

    def _channel_name(self, link: Link) -> str:
        """A unique name, though several tiles may have the same one."""
        if len(self.plan.links) == 1:
            return "loads"
        name = f"{link.tiles[0].name}_loads"
        taken = set(self.channels.values())
        return next(one for one in (name, *(f"{name}_{i}" for i in range(1, len(taken) + 1))) if one not in taken)

    def _counter(self) -> ir.Buffer:
        used = len(set(self.counters.values()))
        return ir.Buffer(f"iterations{used or ''}", (), INT32, "scalar")

    def _number(self, counter: ir.Buffer | None) -> tuple[ir.Var, ir.Buffer]:
        """A name for the value of a counter, and the counter, a new one where none is given."""
        counter = counter or self._counter()
        number = ir.Var(INT32, counter.name.replace("iterations", "iteration"))
        self.counters[number] = counter
        return number, counter

    def _loop_number(self, home: ir.Seq) -> ir.Expr | None:
        """How often a sequence was executed before; None under more than one loop, or under a condition."""
        site = next(site for site in self.plan.analysis.sites if site.position_in(home) is not None)
        around: list[ir.Statement] = []
        for body, position in site.steps:
            if body is home:
                break
            if not isinstance(body.statements[position], ir.Seq):
                around.append(body.statements[position])
        if not around:
            return ir.const(0)
        loop = around[0]
        if len(around) > 1 or not isinstance(loop, (ir.For, ir.Pipelined)):
            return None
        if isinstance(loop, ir.For) and not ir.is_literal(loop.step, 1):
            return None
        return loop.var - ir.cast(loop.start, loop.var.dtype)

    # The kernel -----------------------------------------------------------------------------------

    def kernel(self, arch: Arch) -> ir.Kernel | str:
        """The divided kernel for a machine, or why it cannot be."""
        body = self.source.body
        prelude = divide_prelude(self.plan, self.anchor)
        if isinstance(prelude, str):
            return prelude
        after = [one for one in body.statements if one not in prelude]
        if any(isinstance(node, ir.Return) for one in after for node in walk(one)):
            return "a thread may return before the loop is done"
        consumer, producer = (self._role(after, prelude, moves) for moves in (False, True))
        threads = self.source.num_threads
        by_author = self.source.attribute("registers")
        is_light = all(isinstance(one, Copy) for one in self.plan.moved)
        producing, consuming = share_registers(self.source, threads, is_light, arch)
        if by_author is not None:
            asked = dict(by_author)
            producing = asked.get("producer", producing) if asked else None
            consuming = asked.get("consumer", consuming) if asked else None
        span = next(iter(self.wanted)).span
        rings = [
            ir.Allocate(self.rings[tile], span=self._span(tile)) for link in self.plan.links for tile in link.tiles
        ]
        filled = [(name, tuple(self.rings[tile] for tile in link.tiles), link) for link, name in self.channels.items()]
        channels = [
            ir.Channel(name, rings, link.stages, ("producer",), ("consumer",), span=span)
            for name, rings, link in filled
        ]
        multiplies = ir.Role("consumer", threads // ir.WARP, consumer, consuming, span=span)
        loads = ir.Role("producer", ir.WARPGROUP // ir.WARP, fresh(producer), producing, span=span)
        roles = ir.Roles((multiplies, loads), span=span)
        kept = [one for one in prelude if not (isinstance(one, ir.Allocate) and one.buffer in self.rings)]
        layouts = [
            (self.rings[one], expand(layout, self.rings[one].static_shape[0])) if one in self.rings else (one, layout)
            for one, layout in self.source.layouts
        ]
        layouts += [
            (self.staged[one], expand(layout, self.staged[one].static_shape[0]))
            for one, layout in self.source.layouts
            if one in self.staged
        ]
        made = ir.seq(kept, rings, channels, roles)
        return replace(
            self.source,
            body=replace(body, statements=made.statements),
            layouts=tuple(layouts),
            threads=(threads + ir.WARPGROUP, 1, 1),
            attributes=(*self.source.attributes, (SPECIALIZED, True)),
        )

    def _span(self, tile: ir.Buffer) -> Span | None:
        return next((one.span for one in find(self.source.body, ir.Allocate) if one.buffer is tile), None)

    def unsupported(self, made: ir.Kernel, context: Context, analyzer: Analyzer, asked: bool) -> RoleRefusal | None:
        """Why the divided kernel would not be faster, or does not fit the machine."""
        shared, behind = declared(made.body, "shared"), tiles_after_rings(made)
        before, after = (
            sum(one.dtype.nbytes(one.size) for one in shared if (one in behind) == last) for last in (False, True)
        )
        rings = sum(one.dtype.nbytes(one.size) for one in self.rings.values())
        needed = before + max(0, after - rings) + 16 * sum(one.stages for one in self.plan.links)
        if needed > context.arch.shared_bytes:
            return RoleRefusal(f"its tiles take {needed} bytes of {context.arch.shared_bytes} of shared memory")
        if asked:
            return None
        producer = next(node for node in find(made, ir.Role) if node.name == "producer")
        site = Site(made, context.arch, analyzer, range(made.num_threads))
        for copy in walk(producer):
            if isinstance(copy, Copy) and copy.destination.buffer in self.rings.values():
                reason = load_unsupported(copy, site)
                if reason is not None and isinstance(copied_piece(copy, site), str):
                    return RoleRefusal(reason, copy)
        reasons = []
        for plan, refused in plan_gemms(made, context.arch).values():
            if isinstance(plan, GemmPlan) and plan.instruction.asynchronous:
                return None
            reasons.append(f"no warpgroup instruction executes its gemm{refused}")
        return RoleRefusal(reasons[0] if reasons else "it loads no tiles for gemms")

    # One role -------------------------------------------------------------------------------------

    def _role(self, statements: Sequence[ir.Statement], prelude: Iterable[ir.Statement], moves: bool) -> ir.Seq:
        """A role's part of some statements of the kernel's body."""
        slicing = _Slice(self, moves)
        whole = self.source.body
        body = slicing.sequence(whole, [one for one in whole.statements if one in statements])
        counters = [ir.Allocate(counter, ir.const(0)) for counter in dict.fromkeys(self.counters.values())]
        return _pruned(ir.seq(counters, body.statements))

    def slots(self, home: ir.Seq) -> dict[ir.Buffer, tuple[ir.Buffer, ir.Expr]]:
        """The slots that replace tiles in a sequence."""
        slots: dict[ir.Buffer, tuple[ir.Buffer, ir.Expr]] = {
            tile: (self.rings[tile], self.numbers[link, home] % link.stages)
            for link in self.plan.links
            if link.at(home) is not None
            for tile in link.tiles
        }
        return with_views(slots, self.views, views_of(self.source))


@dataclass(slots=True)
class _Slice:
    """The statements of one role, under the loops and conditions around them."""

    division: Division
    moves: bool

    def sequence(self, body: ir.Seq, statements: Sequence[ir.Statement] | None = None) -> ir.Seq:
        """A role's part of a sequence (of some of its statements, where these are given)."""
        division, made = self.division, list[ir.Statement]()
        found = [(link, live) for link in division.plan.links if (live := link.at(body)) is not None]
        ends = {link: live.filled if self.moves else live.read for link, live in found}
        enter, leave = (ir.Acquire, ir.Publish) if self.moves else (ir.Receive, ir.Release)
        counted: set[ir.Expr] = set()
        order = list(enumerate(body.statements))
        for link, live in found if self.moves else ():
            if link.late:
                order = self._behind(order, link, live)
        for position, statement in order:
            for link, (begin, _) in ends.items():
                if begin == position:
                    number = division.numbers[link, body]
                    if number in division.counters and number not in counted:
                        counted.add(number)
                        made += _next_iteration(number, division.counters[number])
                    made.append(enter(division.channels[link], number, span=statement.span))
            if statements is None or statement in statements:
                made += self.part(statement)
            for link, (_, end) in ends.items():
                if end == position:
                    made.append(leave(division.channels[link], division.numbers[link, body], span=statement.span))
        slots = division.slots(body)
        result = replace(body, statements=tuple(made))
        return redirected(result, slots) if slots else result

    def _behind(
        self, order: list[tuple[int, ir.Statement]], link: Link, live: LiveRange
    ) -> list[tuple[int, ir.Statement]]:
        """Statements with the copies that are read only behind the loops moved behind them, so that no ring waits for
        their slot."""
        effects, tiles = self.division.plan.analysis.effects, {*link.tiles}
        late = [one for one in order if one[0] <= live.filled[1] and effects[one[1]].writes & tiles]
        rest = [one for one in order if one not in late]
        place = next(place for place, one in enumerate(rest) if one[0] == live.read[0])
        return [*rest[:place], *late, *rest[place:]]

    def part(self, statement: ir.Statement) -> list[ir.Statement]:
        """A role's part of one statement."""
        if bodies(statement):
            return self._control(statement)
        if isinstance(statement, ir.Allocate):
            return [] if statement.buffer in self.division.rings else [statement]
        if isinstance(statement, ir.Let) and has_effect(statement.value):
            return [] if self.moves else [statement]
        # Every role waits for the previous kernel before it touches what that kernel wrote.
        if isinstance(statement, (ir.Let, ir.Break, ir.Continue)) or performed(statement) == "grid_wait":
            return [statement]
        plan = self.division.plan
        counts = isinstance(statement, ir.Store) and statement.buffer in plan.scalars
        return [statement] if counts or (statement in plan.moved) == self.moves else []

    def _control(self, statement: ir.Statement) -> list[ir.Statement]:
        if self.moves and not self._works(statement):
            return []
        if isinstance(statement, ir.Seq):
            return [self.sequence(statement)]
        if isinstance(statement, ir.If):
            otherwise = None if statement.otherwise is None else self.sequence(statement.otherwise)
            return [replace(statement, then=self.sequence(statement.then), otherwise=otherwise)]
        if self._is_planned(statement):
            return self._planned(statement)
        made = replace(statement, body=self.sequence(statement.body))  # type: ignore[attr-defined, call-arg]
        if isinstance(made, ir.Pipelined) and (self.moves or statement in self.division.wanted):
            return [plain_loop(made)]
        return [made]

    def _is_planned(self, statement: ir.Statement) -> TypeGuard[ir.Pipelined]:
        """Whether a role uses the stages and the order that the author gave a loop."""
        planned = isinstance(statement, ir.Pipelined) and (statement.order is not None or statement.stage is not None)
        return planned and not self.moves and statement in self.division.wanted

    def _planned(self, loop: ir.Pipelined) -> list[ir.Statement]:
        division = self.division
        plan = plan_pipeline(loop, unstageable(division.source, loop))
        channels = [
            LoopChannel(division.channels[link], frozenset(link.tiles), division.numbers[link, loop.body])
            for link in division.plan.links
            if link.at(loop.body) is not None
        ]
        views = views_of(division.source)
        made, staged = planned_loop(plan, self.part, channels, division.slots(loop.body), division.counters, views)
        division.staged.update(staged)
        return made

    def _works(self, statement: ir.Statement) -> bool:
        """Whether the producer has any work in a statement; leaving a loop without work is none."""
        plan = self.division.plan
        return next(leaving(statement), None) is not None or any(
            node in plan.moved or (isinstance(node, ir.Store) and node.buffer in plan.scalars)
            for node in find(statement, ir.Statement)
        )


def _next_iteration(number: ir.Var, counter: ir.Buffer) -> list[ir.Statement]:
    """Name the value of a counter, and increment it."""
    not_negative = ir.Assume(ir.index_binary("ge", number, 0))
    return [ir.Let(number, ir.Load(INT32, counter, ())), not_negative, ir.Store(counter, (), number + 1)]


def _pruned(body: ir.Seq) -> ir.Seq:
    """A body without unused names and buffers."""
    while True:
        mentioned = Counter(node for node in find(body, ir.Var, ir.Buffer))
        for node in list(mentioned):
            if isinstance(node, ir.Buffer) and node.source is not None:
                mentioned[node.source] += 1
        unused: set[ir.Statement] = {
            node
            for node in walk(body)
            if (isinstance(node, ir.Let) and mentioned[node.var] == 1 and not has_effect(node.value))
            or (isinstance(node, ir.Allocate) and mentioned[node.buffer] == 1)
        }
        if not unused:
            return body
        body = put(body, dict.fromkeys(unused))


def block_registers(kernel: ir.Kernel, threads: int, arch: Arch) -> int:
    """The registers of a block of so many threads at launch."""
    return arch.block_registers(threads, kernel.attribute(MIN_BLOCKS, 1))


def share_registers(kernel: ir.Kernel, threads: int, is_light: bool, arch: Arch) -> tuple[int | None, int | None]:
    """Registers of a producer's and a consumer's thread, where an equal number for all would be too small.

    Parameters
    ----------
    threads : of the consumers.
    is_light : whether the producer only starts copies.
    """
    kept = arch.role_registers
    loads = None if kept is None else kept.loads[min(-(-threads // ir.WARPGROUP), len(kept.loads)) - 1]
    if kept is None or loads is None:
        return None, None
    producing = loads if is_light else kept.computes
    left = block_registers(kernel, threads + ir.WARPGROUP, arch) - producing * ir.WARPGROUP
    return producing, min(kept.most, left // threads // kept.step * kept.step)
