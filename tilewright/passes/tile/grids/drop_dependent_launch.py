"""Machines that run kernels one after the other need no words about kernels that begin before others have ended.

Before::

    with kernel(4) as (x,):
        griddepcontrol_wait()
        B[x] = A[x]

After::

    with kernel(4) as (x,):
        B[x] = A[x]
"""

from __future__ import annotations

from tilewright.ir.nodes import Call, Evaluate, Function
from tilewright.ir.visitor import Rewriter
from tilewright.passes.context import Context

WORDS = ("griddepcontrol_wait", "griddepcontrol_launch_dependents")


def drop_dependent_launch(function: Function, context: Context) -> Function:
    """Remove waits for earlier kernels, and leave for later ones to begin."""
    body = _Drop()(function.body)
    return function if body is function.body else function.with_body(body)


class _Drop(Rewriter):
    def visit_Evaluate(self, evaluate: Evaluate) -> Evaluate | None:
        call = evaluate.value
        return None if isinstance(call, Call) and call.function in WORDS else evaluate
