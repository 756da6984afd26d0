"""Turns in which the warpgroups that take them would meet are left out: who waits for a turn cannot come to a meeting.

Before::

    for k in range(steps):
        take_turn(k == 0)
        gemm(token="wgmma_1", q, keys, next_scores)
        commit("wgmma_1")
        sync_threads()                            # all have written their weights
        gemm(token="wgmma", weights, values, result)
        commit("wgmma")
        pass_turn()
        ...
    if steps > 0:
        end_turns()

After, the same without turns.  `take_turns` orders groups of gemms before it is known where threads hand memory to one
another.  Nothing is lost: warpgroups that meet in every iteration start their products together anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.ir.nodes import Call, For, Function, If, Kernel, Role, Seq, Statement
from tilewright.ir.visitor import Rewriter, find, holds
from tilewright.ops.reduce import Reduce
from tilewright.ops.scan import Scan
from tilewright.passes.context import Context
from tilewright.passes.tile.grids.ping_pong import is_turn
from tilewright.passes.tile.layouts.plan_synchronization import MEETINGS
from tilewright.passes.tile.roles.divide_roles import SPECIALIZED


def drop_turns(function: Function, context: Context) -> Function:
    """Leave out the turns of loops in which a turn holds a meeting of those who take turns."""
    body = _Drop()(function.body)
    return function if body is function.body else function.with_body(body)


class _Drop(Rewriter):
    def visit_Kernel(self, kernel: Kernel) -> Kernel:
        """The author's own turns stay, as do the author's roles."""
        made: Kernel = self.generic(kernel) if kernel.attribute(SPECIALIZED) else kernel
        return made

    def visit_Role(self, role: Role) -> Role:
        """Instances of a role meet by themselves, one without the other."""
        made: Role = role if role.instances > 1 else self.generic(role)
        return made

    def visit_Seq(self, body: Seq) -> Any:
        made: Seq = self.generic(body)
        statements: list[Statement] = []
        dropping = False
        for one in made.statements:
            if isinstance(one, For) and _meets_in_turn(one.body.statements):
                statements.append(replace(one, body=_without_turns(one.body)))
                dropping = True
            elif dropping and _ends_turns(one):
                dropping = False
            else:
                statements.append(one)
        same = len(statements) == len(made.statements) and all(map(lambda a, b: a is b, statements, made.statements))
        return made if same else replace(made, statements=tuple(statements))


def _meets_in_turn(statements: Sequence[Statement]) -> bool:
    held = False
    for one in statements:
        if is_turn(one, "take_turn"):
            held = True
        elif is_turn(one, "pass_turn"):
            held = False
        elif held and _may_meet(one):
            return True
    return False


def _may_meet(statement: Statement) -> bool:
    """Whether all threads of the role may wait for one another in a statement: folds through shared memory are made later."""
    return holds(statement, Reduce, Scan) or any(call.function in MEETINGS for call in find(statement, Call))


def _without_turns(body: Seq) -> Seq:
    kept = [one for one in body.statements if not is_turn(one, "take_turn") and not is_turn(one, "pass_turn")]
    return replace(body, statements=tuple(kept))


def _ends_turns(statement: Statement) -> bool:
    inner = statement.then.statements if isinstance(statement, If) and statement.otherwise is None else (statement,)
    return len(inner) == 1 and is_turn(inner[0], "end_turns")
