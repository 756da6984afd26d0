"""Which statements before a pipelined loop all warps execute together, before a kernel's roles part.

Names and what the producer's addresses and conditions depend on (block masks, index lists) are prepared by all.
Initialisation of registers and everything else goes to the role that needs it, unless what is prepared depends on it.
"""

from __future__ import annotations

from tilewright.ir import Allocate, Assume, Call, Let, Parallel, Return, Statement, Touched, Var, has_effect, touched
from tilewright.ir.walking import find, holds, variables
from tilewright.passes.tile.roles.plan_channels import ProducerPlan
from tilewright.passes.tile.roles.role_analysis import PRIVATE

_OF_THREADS = (*PRIVATE, "scalar")

_AS_OFTEN = ("sync_threads", "grid_wait", "grid_launch")
"""Functions with an effect that is the same however many threads call them."""


def divide_prelude(plan: ProducerPlan, anchor: int) -> list[Statement] | str:
    """The statements, in order, of the first `anchor` of a kernel's body; or why there is no such division."""
    before = plan.analysis.kernel.body.statements[:anchor]
    effects = {one: touched(one) for one in before}
    chosen: set[Statement] = {one for one in before if isinstance(one, Allocate) and one.buffer.scope == "shared"}
    chosen |= {one for one in before if holds(one, Return) or effects[one].writes & plan.prepared}
    while True:
        more = {one for one in before if one not in chosen and _is_needed(one, before, chosen, effects)}
        if not more:
            break
        chosen |= more
    work = [
        one for one in before if one in chosen and (has_effect(one) or not isinstance(one, (Allocate, Let, Assume)))
    ]
    reason = _obstacle(work, [one for one in plan.analysis.kernel.body.statements if one not in chosen], plan, effects)
    if reason is not None:
        return reason
    own: set[Var] = set()
    for one in before:
        if isinstance(one, (Let, Assume)):
            if _is_common(effects[one], plan) and not has_effect(one) and not variables(one) & own:
                chosen.add(one)
            elif isinstance(one, Let):
                own.add(one.var)
        if isinstance(one, Allocate) and any(one.buffer in effects[other].all for other in work):
            chosen.add(one)
    for one in before:
        if isinstance(one, Let) and one not in chosen and any(one.var in variables(other) for other in work):
            return f"loads depend on {one.var.name}, which depends on what the work computes"
    return [one for one in before if one in chosen]


def _is_common(effects: Touched, plan: ProducerPlan) -> bool:
    """Whether a name means the same before the roles part as in them."""
    settled = {buffer for buffer in effects.reads if buffer.scope == "global" and buffer not in plan.analysis.written}
    return effects.reads <= settled | plan.prepared


def _is_needed(
    statement: Statement, before: tuple[Statement, ...], chosen: set[Statement], effects: dict[Statement, Touched]
) -> bool:
    """Whether a statement chosen already, and behind this one, must not come before it."""
    own = effects[statement]
    if isinstance(statement, (Allocate, Let, Assume)):
        return False
    for other in before[before.index(statement) + 1 :]:
        if other not in chosen:
            continue
        returns = holds(other, Return)
        lasting = any(buffer.scope not in _OF_THREADS for buffer in own.writes)
        if own.writes & effects[other].all or own.reads & effects[other].writes or (returns and lasting):
            return True
    return False


def _obstacle(
    work: list[Statement], rest: list[Statement], plan: ProducerPlan, effects: dict[Statement, Touched]
) -> str | None:
    """Why work cannot be done by all warps together."""
    later = {buffer for one in rest for buffer in touched(one).all}
    for statement in work:
        line = f"line {statement.span.line}" if statement.span else "a statement"
        if any(node in plan.moved for node in find(statement, Statement)):
            return f"loads depend on {line}, which is itself to be done ahead"
        if variables(statement) & set(plan.analysis.kernel.thread_vars):
            return f"loads depend on {line}, which speaks of its threads"
        if _of_each_thread(statement):
            return f"loads depend on {line}, which every thread does once more"
        shared = {buffer for buffer in effects[statement].all if buffer.scope in _OF_THREADS} & later
        if shared:
            return f"loads depend on {line}, and the work needs {min(one.name for one in shared)} too"
    return None


def _of_each_thread(statement: Statement) -> bool:
    """Whether something has an effect as often as there are threads: with warps on top, that is more often."""
    of_loops = {call for loop in find(statement, Parallel) for call in find(loop, Call)}
    calls = (call for call in find(statement, Call) if call not in of_loops and call.function not in _AS_OFTEN)
    return any(has_effect(call) for call in calls)
