"""Names that are used only behind a loop of products are computed behind it, while the last products run.

Before (a persistent loop over tiles; ``bx`` is where results go)::

    for iteration in range(iterations):
        across = place // height
        bx = 22 - across
        for step in range(48):
            ...
        gmma_wait(0)
        box_store(C_map, total, bx * 256)

After::

    for iteration in range(iterations):
        for step in range(48):
            ...
        across = place // height
        bx = 22 - across
        gmma_wait(0)
        box_store(C_map, total, bx * 256)

In front of the loop nothing hides their latency, about 200 cycles for each division by a variable.
"""

from __future__ import annotations

from tilewright.ir.nodes import Assume, Call, Evaluate, For, Function, Let, Load, Seq, Statement, Var, While
from tilewright.ir.visitor import Rewriter, Rewritten
from tilewright.ir.walking import find, variables
from tilewright.passes.context import Context


def sink_names(function: Function, context: Context) -> Function:
    """Move names, and assumptions about them, behind loops that do not use them."""
    return function.with_body(_Sink()(function.body))


class _Sink(Rewriter):
    def visit_Seq(self, body: Seq) -> Rewritten:
        made: Seq = self.generic(body)
        statements = list(made.statements)
        last = max((place for place, one in enumerate(statements) if _waits(one)), default=0)
        loops = [place for place, one in enumerate(statements[:last]) if isinstance(one, (For, While))]
        if not loops or not any(isinstance(one, Let) for one in statements[: loops[-1]]):
            return made
        needs = [variables(one) for one in statements]
        moved = False
        for place in range(loops[-1] - 1, -1, -1):
            names = _names(statements[place])
            first = next((other for other in range(place + 1, len(needs)) if needs[other] & names), place)
            over = [loop for loop in loops if place < loop < first]
            if over:
                statements.insert(over[-1], statements.pop(place))
                needs.insert(over[-1], needs.pop(place))
                loops = [loop - (place < loop <= over[-1]) for loop in loops]
                moved = True
        return Seq(tuple(statements), span=made.span) if moved else made


def _waits(statement: Statement) -> bool:
    """Whether a statement, which is no loop, waits for products."""
    inside = isinstance(statement, (Evaluate, Seq))
    return inside and any(call.function == "gmma_wait" for call in find(statement, Call))


def _names(statement: Statement) -> set[Var]:
    """What a statement that may move names, or speaks of."""
    if isinstance(statement, Assume):
        return set(variables(statement.condition))
    if isinstance(statement, Let) and not any(find(statement.value, Load, Call)):
        return {statement.var}
    return set()
