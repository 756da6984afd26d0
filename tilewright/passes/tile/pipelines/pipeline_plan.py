"""Which statement of a pipelined loop works on which iteration: stages and orders from dependences.

In step t of the loop, a statement of stage s does the work of iteration t - s, the statements of a step in their
order.  Loads from global memory go to stage 0 and everything else to the last stage, as far as dependences allow: a
statement must come after whatever it needs, in its own iteration and, for tiles that all iterations share, in
earlier ones.  Tiles that a load fills ahead get a copy for every iteration in flight, which frees them of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard, TypeVar

from tilewright.errors import PipelinePlanError
from tilewright.ir import Touched, conjunction, has_effect, leaving, mentioned, performed, touched, walk
from tilewright.ir import nodes as ir
from tilewright.ops import TMA_STORES, Copy
from tilewright.passes.tile.copies.gathers import filled_by
from tilewright.passes.tile.pipelines.open_branches import Opened, open_branches

Name = ir.Let | ir.Allocate
"""What stands for a value: a name, or a tensor at an address that the kernel finds."""

N = TypeVar("N", ir.Let, Name)

MANUAL = (ir.ChannelStatement, ir.Channel, ir.Commit, ir.Wait, ir.Roles)
"""What says who waits for whom; what the engine stores and adds, only the statements that work on it wait for."""


def is_load(statement: ir.Statement) -> bool:
    """Whether a statement brings a tile from global into shared memory, and no pipeline inside has it already."""
    if isinstance(statement, ir.Parallel) and statement.prefer is not None:
        return statement.token is None
    return (
        isinstance(statement, Copy)
        and statement.source.buffer.scope == "global"
        and statement.destination.buffer.scope == "shared"
        and statement.token is None
    )


@dataclass(slots=True)
class PipelinePlan:
    """The plan of one loop.

    Attributes
    ----------
    statements : of the body, in the author's order; names and declarations apart.
    lets, allocations : those.
    stages, orders : one number a statement.
    refused : why loads are not made ahead: the statement and the reason.
    """

    loop: ir.Pipelined
    statements: tuple[ir.Statement, ...]
    lets: tuple[Name, ...]
    allocations: tuple[ir.Allocate, ...]
    stages: list[int] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    refused: list[tuple[ir.Statement, str]] = field(default_factory=list)
    effects: list[Touched] = field(default_factory=list)
    staged: dict[ir.Buffer, int] = field(default_factory=dict)
    """Tiles that get copies, and how many."""
    conditions: list[tuple[ir.Expr, ...]] = field(default_factory=list)
    """Of each statement, what it stands under besides."""
    beyond: frozenset[int] = frozenset()
    """Statements that may run in steps that have no iteration for them."""

    @property
    def depth(self) -> int:
        """The last stage."""
        return max(self.stages, default=0)

    def before(self, first: int, second: int, distance: int = 0) -> bool:
        """Whether `second`, `distance` iterations later, comes after `first`."""
        lead = self.stages[second] + distance - self.stages[first]
        return lead > 0 or (lead == 0 and self.orders[first] < self.orders[second])

    def in_order(self) -> list[int]:
        """The statements of a step, by their numbers."""
        return sorted(range(len(self.statements)), key=lambda one: self.orders[one])


def plan_pipeline(
    loop: ir.Pipelined,
    unstageable: dict[ir.Buffer, str],
    threads: Collection[ir.Var] | None = None,
    conditions: Sequence[tuple[ir.Expr, ...]] | None = None,
) -> PipelinePlan:
    """Stages and orders for the body of `loop`.

    Parameters
    ----------
    unstageable : tiles that cannot have several copies, with the reason.
    threads : where given, loads under conditions may be ahead too; variables in which threads differ.
    conditions : of each statement of the body, what it stands under, where branches have been opened before.

    Raises
    ------
    PipelinePlanError : the author's plan has another length, or breaks a dependence.
    """
    body = _under(loop, conditions)
    if conditions is None and threads is not None and loop.num_stages > 1 and loop.order is None and loop.stage is None:
        body = open_branches(loop, touched(loop.body).writes, threads, is_load)
    plan = _unplanned(loop, body)
    if loop.order is not None or loop.stage is not None:
        _from_author(plan, unstageable)
    else:
        _automatic(plan, unstageable)
    return plan


def _under(loop: ir.Pipelined, conditions: Sequence[tuple[ir.Expr, ...]] | None) -> Opened:
    statements = loop.body.statements
    return list(zip(statements, conditions or [()] * len(statements), strict=True))


def _unplanned(loop: ir.Pipelined, body: Opened) -> PipelinePlan:
    """A plan without stages and orders."""
    plan = PipelinePlan(
        loop,
        tuple(s for s, _ in body if not isinstance(s, (ir.Let, ir.Allocate))),
        tuple(s for s, _ in body if _is_name(s)),
        tuple(s for s, _ in body if isinstance(s, ir.Allocate) and not s.buffer.placed),
    )
    plan.conditions = [conditions for s, conditions in body if not isinstance(s, (ir.Let, ir.Allocate))]
    plan.effects = [
        _with_names(ir.If(conjunction(conditions), ir.Seq((statement,))) if conditions else statement, plan.lets)
        for statement, conditions in zip(plan.statements, plan.conditions, strict=True)
    ]
    return plan


def obstacle(loop: ir.Pipelined) -> tuple[ir.Statement, str] | None:
    """What keeps any statement of the loop from working ahead, if anything."""
    written, left = touched(loop.body).writes, set(leaving(loop.body))
    for one in loop.body.statements:
        if isinstance(one, (ir.Let, ir.Allocate)) and touched(one).reads & written:  # which `store_names` has left
            return one, "a name in its body stands for what the loop changes"
    for node in walk(loop.body):
        manual = isinstance(node, MANUAL) and getattr(node, "token", None) != TMA_STORES
        if isinstance(node, ir.Statement) and (manual or performed(node) == "sync_threads"):
            return node, "its body synchronises by itself"
        if isinstance(node, ir.Return) or node in left:
            return node, "an iteration may be the last one, which is known too late"
        if isinstance(node, ir.Let) and has_effect(node.value):
            return node, "a name in its body stands for an effect"
    return None


def _with_names(statement: ir.Statement, lets: Sequence[Name]) -> Touched:
    """What a statement touches, its names' values included."""
    found = touched(statement)
    reads = set(found.reads)
    for let in needed_names(statement, lets):
        reads |= touched(let).reads
    return Touched(frozenset(reads), found.writes)


def _is_name(statement: ir.Statement) -> TypeGuard[Name]:
    return isinstance(statement, ir.Let) or (isinstance(statement, ir.Allocate) and statement.buffer.placed)


def needed_names(node: ir.Record, lets: Sequence[N]) -> list[N]:
    """The names that a statement or an expression uses, and those that these rest on, in order."""
    wanted = mentioned(node)
    found: list[N] = []
    for let in reversed(lets):
        if (let.var if isinstance(let, ir.Let) else let.buffer) in wanted:
            found.append(let)
            wanted |= mentioned(let)
    return found[::-1]


# The compiler's plan ----------------------------------------------------------------------------


def _automatic(plan: PipelinePlan, unstageable: dict[ir.Buffer, str]) -> None:
    depth = max(plan.loop.num_stages - 1, 0)
    count = len(plan.statements)
    ahead: set[int] = set()
    for number, statement in enumerate(plan.statements):
        if is_load(statement):
            ahead.add(number)
        else:
            for node in walk(statement):
                if isinstance(node, ir.Statement) and is_load(node):
                    plan.refused.append((node, "it stands under a condition or in a loop of its own"))
    while True:
        plan.stages = [0 if number in ahead else depth for number in range(count)]
        plan.orders = [number if number in ahead else count + number for number in range(count)]
        plan.staged = _staged(plan, unstageable)
        broken = next((found for found in _broken(plan, unstageable) if ahead & set(found[:2])), None)
        if broken is None or depth == 0:
            break
        first, second, reason = broken
        late = first if first in ahead and second not in ahead else second if second in ahead else first
        ahead.discard(late)
        plan.refused.append((plan.statements[late], reason))
    if depth == 0:
        plan.orders = list(range(count))
        plan.staged = {}


def _staged(plan: PipelinePlan, unstageable: dict[ir.Buffer, str]) -> dict[ir.Buffer, int]:
    """The tiles that statements of a later stage use, and the copies that this takes."""
    result: dict[ir.Buffer, int] = {}
    for effects in plan.effects:
        for buffer in effects.writes:
            if buffer.scope != "shared" or buffer in unstageable:
                continue
            users = [n for n, other in enumerate(plan.effects) if buffer in other.all]
            lead = max(plan.stages[user] for user in users) - min(plan.stages[user] for user in users)
            if lead > 0 and _filled_first(plan, buffer):
                result[buffer] = lead + 1
    return result


def _filled_first(plan: PipelinePlan, buffer: ir.Buffer) -> bool:
    """Whether every iteration writes all of a tile before it uses it."""
    filled: list[tuple[ir.Expr, ...]] = []
    for statement, effects, under in zip(plan.statements, plan.effects, plan.conditions, strict=True):
        if buffer not in effects.all or any(conditions == under[: len(conditions)] for conditions in filled):
            continue
        if buffer in effects.reads:
            return False
        if any(region.buffer is buffer and region.is_whole for region in filled_by(statement)):
            filled.append(under)
    return bool(filled)


def _broken(plan: PipelinePlan, unstageable: dict[ir.Buffer, str]) -> Iterator[tuple[int, int, str]]:
    """Pairs of statements that a plan runs in the wrong order, and the reason."""
    count = len(plan.statements)
    for first in range(count):
        for second in range(first + 1, count):
            for buffer in _between(plan.effects[first], plan.effects[second]):
                if not plan.before(first, second):
                    yield first, second, _reason(plan, buffer, unstageable)
    for first in range(count):
        for second in range(count):
            for buffer in _between(plan.effects[first], plan.effects[second]):
                if buffer not in plan.staged and not plan.before(first, second, 1):
                    yield first, second, _reason(plan, buffer, unstageable)


def _between(first: Touched, second: Touched) -> list[ir.Buffer]:
    """Memory through which two statements depend on each other."""
    found = (first.writes & second.all) | (first.reads & second.writes)
    return sorted(found, key=lambda buffer: buffer.name)


def _reason(plan: PipelinePlan, buffer: ir.Buffer, unstageable: dict[ir.Buffer, str]) -> str:
    if buffer in unstageable:
        return f"{buffer.name} cannot have a copy a stage: {unstageable[buffer]}"
    if buffer.scope == "shared" and not _filled_first(plan, buffer):
        return f"{buffer.name} carries values from one iteration to the next"
    return f"other statements of the loop write {buffer.name}"


# The author's plan ------------------------------------------------------------------------------


def breaks(
    loop: ir.Pipelined, unstageable: dict[ir.Buffer, str], conditions: Sequence[tuple[ir.Expr, ...]]
) -> tuple[ir.Statement, ir.Statement] | None:
    """Two statements that a loop's ``stage=`` and ``order=`` run in the wrong order, if any."""
    plan = _unplanned(loop, _under(loop, conditions))
    plan.stages, plan.orders = list(loop.stage or ()), list(loop.order or ())
    plan.staged = _staged(plan, unstageable)
    found = next(_broken(plan, unstageable), None)
    return None if found is None else (plan.statements[found[0]], plan.statements[found[1]])


def _from_author(plan: PipelinePlan, unstageable: dict[ir.Buffer, str]) -> None:
    loop, count = plan.loop, len(plan.statements)
    for what, numbers in (("order", loop.order), ("stage", loop.stage)):
        if numbers is not None and len(numbers) != count:
            raise PipelinePlanError(
                f"{what}= has {len(numbers)} numbers, but the loop's body has {count} statements",
                span=loop.span,
                hint="give one number a statement, names and declarations apart",
            )
    plan.stages = list(loop.stage) if loop.stage is not None else _default_stages(plan)
    plan.orders = list(loop.order) if loop.order is not None else list(range(count))
    if len(set(plan.orders)) != count:
        raise PipelinePlanError(
            "order= names two statements the same",
            span=loop.span,
            hint="every statement of a step has a place of its own",
        )
    plan.staged = _staged(plan, unstageable)
    for first, second, reason in _broken(plan, unstageable):
        lines = [_line(plan.statements[number]) for number in (first, second)]
        raise PipelinePlanError(
            f"this plan runs {lines[1]} before {lines[0]}, on which it depends: {reason}",
            span=plan.statements[second].span,
            hint="give it a later stage, or the same stage and a later order",
        )


def _default_stages(plan: PipelinePlan) -> list[int]:
    depth = max(plan.loop.num_stages - 1, 0)
    return [0 if is_load(statement) else depth for statement in plan.statements]


def _line(statement: ir.Statement) -> str:
    return f"line {statement.span.line}" if statement.span is not None else type(statement).__name__.lower()


def said(statement: ir.Statement) -> str:
    """What messages call a statement: its word, and its line."""
    name = statement.name if isinstance(statement, ir.TileOperator) else type(statement).__name__.lower()
    return f"{name} in line {statement.span.line}" if statement.span else name
