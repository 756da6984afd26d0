"""Kernels whose author says so begin beside the end of the kernel before them: its last blocks leave multiprocessors
idle.

Before::

    with kernel(132) as (x,):
        ...
    with kernel(40) as (y,):            # beside=True
        ...

After::

    with kernel(132) as (x,):
        griddepcontrol_launch_dependents()
        ...
    with kernel(40) as (y,):
        ...
        griddepcontrol_wait()

What the second kernel waits for at its end is that the first one is done, so that whoever is launched behind the second
has waited for both. A kernel that waits for others itself is not left early: what is launched beside it would not wait
for these.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Call, Function, Kernel, Return, Seq, Statement, perform, performed, seq
from tilewright.ir.visitor import Rewriter, find, with_statements
from tilewright.passes.context import Context
from tilewright.passes.tile.grids.drop_dependent_launch import WORDS

BESIDE = "beside"
"""Attribute of such a kernel."""


def launch_beside(function: Function, context: Context) -> Function:
    """Let kernels begin beside those before them."""
    return function.with_body(_Launch(context)(function.body))


class _Launch(Rewriter):
    def __init__(self, context: Context) -> None:
        self.context = context

    def visit_Kernel(self, kernel: Kernel) -> Kernel:
        return kernel

    def visit_Seq(self, body: Seq) -> Seq:
        made = list(self.generic(body).statements)
        before: int | None = None
        for place, one in enumerate(made):
            if isinstance(one, Kernel):
                if one.attribute(BESIDE) and before is not None:
                    made[before], made[place] = self._pair(made[before], one)
                before = place
            elif any(True for _ in find(one, Kernel)):
                before = None
        return with_statements(body, made)

    def _pair(self, first: Statement, second: Kernel) -> tuple[Statement, Statement]:
        assert isinstance(first, Kernel)
        reason = _reason(first, second)
        if reason is not None:
            self.context.note(f"the kernel begins when the one before it has ended: {reason}", second.span)
            return first, second
        trigger, wait = (perform(name, span=second.span) for name in reversed(WORDS))
        return (
            replace(first, body=seq([trigger], first.body.statements)),
            replace(second, body=seq(second.body.statements, [wait])),
        )


def waits_at_its_end(kernel: Kernel) -> bool:
    """Whether a kernel was launched beside the one before it."""
    last = kernel.body.statements[-1] if kernel.body.statements else None
    return bool(kernel.attribute(BESIDE)) and performed(last) == WORDS[0]


def _reason(first: Kernel, second: Kernel) -> str | None:
    """Why two kernels cannot be beside one another."""
    words = [call.function for kernel in (first, second) for call in find(kernel, Call) if call.function in WORDS]
    if words:
        return "one of them waits for other kernels, or lets others begin"
    return "some of its threads are done before its end" if any(True for _ in find(second, Return)) else None
