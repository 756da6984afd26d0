"""Programmatic dependent launch: a kernel whose author says so starts while the last blocks of the previous one run.

Before::

    with kernel(132) as (x,):
        ...
    with kernel(40) as (y,):            # beside=True
        ...

After::

    with kernel(132) as (x,):
        grid_launch()
        ...
    with kernel(40) as (y,):
        ...
        grid_wait()

The second kernel waits at its end until the first one has completed, so that later kernels have waited for both. A
kernel that itself waits for earlier ones does not trigger: the kernel launched beside it would not wait for these.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Call, Function, Kernel, Return, Seq, Statement, perform, performed, seq
from tilewright.ir.visitor import Rewriter, with_statements
from tilewright.ir.walking import find
from tilewright.passes.context import Context
from tilewright.passes.tile.grids.drop_dependent_launch import WORDS

BESIDE = "beside"
"""Attribute of such a kernel."""


def add_dependent_launch(function: Function, context: Context) -> Function:
    """Launch kernels beside the previous ones where their authors ask for it."""
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
    """Why two kernels cannot run at once."""
    words = [call.function for kernel in (first, second) for call in find(kernel, Call) if call.function in WORDS]
    if words:
        return "one of them waits for other kernels, or lets others begin"
    return "some of its threads are done before its end" if any(True for _ in find(second, Return)) else None
