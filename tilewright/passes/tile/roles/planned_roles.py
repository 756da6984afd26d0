"""A consumer's loop in the stages and order that its author planned (``order=``, ``stage=``), while others load ahead.

Before (the body of a loop in a role; the gemm has stage 0, the loop behind it stage 1)::

    receive("loads", k)
    gemm(a_ring[k % 3, :, :], b_ring[k % 3, :, :], scores, clear=True)
    release("loads", k)
    ...                          # work on scores

After::

    if 0 < steps:
        receive("loads", 0)
        gemm(a_ring[0, :, :], b_ring[0, :, :], scores, clear=True)
        release("loads", 0)
    for k in range(steps):
        ...                      # in the order of the plan: the work of iteration k, the gemm of iteration k + 1

What the producer loads needs no stage: it runs ahead as far as the ring buffer allows. A slot is received where the
plan first reads it, and released behind its last reader.  The rest is the pipeline of `inject_pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import nodes as ir
from tilewright.ir import substitute, touched
from tilewright.passes.scoped import redirected
from tilewright.passes.tile.pipelines.emission import Emission
from tilewright.passes.tile.pipelines.pipeline_plan import PipelinePlan


@dataclass(frozen=True, slots=True)
class LoopChannel:
    """A channel of the loop's body.

    Attributes
    ----------
    tiles : its tiles.
    number : the running number of an iteration.
    """

    channel: str
    tiles: frozenset[ir.Buffer]
    number: ir.Expr


def planned_loop(
    plan: PipelinePlan,
    part: Callable[[ir.Statement], Sequence[ir.Statement]],
    channels: Sequence[LoopChannel],
    slots: Mapping[ir.Buffer, tuple[ir.Buffer, ir.Expr]],
    counters: Mapping[ir.Var, ir.Buffer],
    views: list[ir.Buffer],
) -> tuple[list[ir.Statement], dict[ir.Buffer, ir.Buffer]]:
    """A role's part of a loop by its plan, and the tiles of its own that got stages.

    Parameters
    ----------
    plan : of the whole loop.
    part : what of a statement the role does.
    slots : what stands for the tiles of channels.
    counters : running numbers that no loop variable says, and the scalars that count them.
    views : of shared tiles.
    """
    loop = plan.loop
    before, after, counted = _counted(loop, channels, counters)
    kept = {number: made for number, one in enumerate(plan.statements) if (made := part(one))}
    first = min((plan.stages[number] for number in kept), default=0)
    timed: list[tuple[int, tuple[int, int], ir.Statement]] = []
    for number, made in kept.items():
        one = made[0] if len(made) == 1 else ir.Seq(tuple(made))
        timed.append((plan.stages[number] - first, (plan.orders[number], 0), redirected(one, slots)))
    for channel in channels:
        users = [number for number in kept if channel.tiles & plan.effects[number].all]
        if not users:
            continue
        when = sorted(users, key=lambda number: (plan.stages[number], plan.orders[number]))
        for user, place, kind in ((when[0], -1, ir.Receive), (when[-1], 1, ir.Release)):
            statement = kind(channel.channel, channel.number, span=plan.statements[user].span)
            timed.append((plan.stages[user] - first, (plan.orders[user], place), statement))
    timed.sort(key=lambda entry: entry[1])
    statements = tuple(substitute(statement, counted) for _, _, statement in timed)
    lets = tuple(substitute(redirected(let, slots), counted) for let in plan.lets)
    own = {buffer: copies for buffer, copies in plan.staged.items() if buffer not in slots}
    made_plan = replace(
        plan,
        statements=statements,
        lets=lets,
        stages=[stage for stage, _, _ in timed],
        orders=list(range(len(timed))),
        effects=[touched(statement) for statement in statements],
        conditions=[()] * len(statements),
        staged=own,
        refused=[],
        allocations=tuple(one for one in plan.allocations if one.buffer not in slots),
    )
    emission = Emission(made_plan, "", {}, views)
    return [*before, *emission.run(), *after], emission.staged


def _counted(
    loop: ir.Pipelined, channels: Sequence[LoopChannel], counters: Mapping[ir.Var, ir.Buffer]
) -> tuple[list[ir.Statement], list[ir.Statement], dict[ir.Var, ir.Expr]]:
    """Numbers that a scalar counts, as where the loop began and how far it is: what stands before and behind it."""
    before: list[ir.Statement] = []
    after: list[ir.Statement] = []
    values: dict[ir.Var, ir.Expr] = {}
    for number in dict.fromkeys(one.number for one in channels):
        if not isinstance(number, ir.Var) or number not in counters:
            continue
        counter, begin = counters[number], ir.Var(number.dtype, "begin")
        before.append(ir.Let(begin, ir.Load(number.dtype, counter, ()), span=loop.span))
        iterations = ir.binary("max", loop.stop - loop.start, ir.const(0))
        after.append(ir.Store(counter, (), begin + iterations, span=loop.span))
        values[number] = begin + (loop.var - loop.start)
    return before, after, values
