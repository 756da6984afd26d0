"""Runs a list of passes: times, verifies and prints after each, so that no pass does it itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.errors import InternalError, InvalidProgram
from tilewright.ir.nodes import Function
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.options import options
from tilewright.passes.context import Context, Pass


@dataclass(frozen=True, slots=True)
class Step:
    """A pass with its place in the pipeline.

    Attributes
    ----------
    run : the pass.
    why : the reason for its place, shown by ``tilewright inspect``.
    when : capability of the machine that the pass needs; None for every machine.
    """

    run: Pass
    why: str
    when: Callable[[Context], bool] | None = None

    @property
    def name(self) -> str:
        return self.run.__name__


@dataclass(frozen=True, slots=True)
class Trace:
    """What one step did: the program after it (the same object where nothing changed) and its seconds."""

    name: str
    why: str
    function: Function
    seconds: float
    changed: bool


def run_passes(function: Function, steps: Sequence[Step], context: Context) -> tuple[Function, list[Trace]]:
    """Run `steps` in order on `function`; steps for other machines are left out.

    Raises
    ------
    InternalError : a pass gave a program that its stage does not allow.
    """
    settings = options()
    traces: list[Trace] = []
    for step in steps:
        if step.when is not None and not step.when(context):
            continue
        started = time.perf_counter()
        result = step.run(function, context)
        seconds = time.perf_counter() - started
        changed = result is not function
        traces.append(Trace(step.name, step.why, result, seconds, changed))
        if changed:
            try:
                verify(result, afresh=settings.verify, by_author=False)
            except InvalidProgram as error:
                raise InternalError(
                    f"after the pass {step.name}, {error.message}",
                    span=error.span,
                    hint="this is a mistake of tilewright's, not yours: please report it with the program",
                ) from None
        if settings.dump in (step.name, "1"):
            print(f"# after {step.name}\n{print_program(result) if changed else '(unchanged)'}")
        function = result
    return function, traces
