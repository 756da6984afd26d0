"""Faults planted before channels and copies are lowered, so that the passes behind do their honest work on a wrong program.

A wait, barrier, commit, acquire, publish, receive or release is left out, moved or off by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fault_sites import Site, called, in_words

from tilewright import compiler
from tilewright.ir import Function, Let, Rewriter, Seq, Statement, const, nodes
from tilewright.passes.context import Context
from tilewright.passes.manager import Step, run_passes
from tilewright.passes.pipeline import PIPELINE
from tilewright.runtime.kernel import Kernel

CHANNELS = (nodes.Acquire, nodes.Publish, nodes.Receive, nodes.Release)


class _Stage(Rewriter):
    """Plants fault number `wanted` among statements of the tile program; lists them all where it is 0."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.sites = wanted, list[Site]()

    def _is(self, kind: str, statement: Statement) -> bool:
        number = len(self.sites) + 1
        line = statement.span.line if statement.span is not None else 0
        self.sites.append(Site(0, kind, in_words(statement), line, number))
        return number == self.wanted

    def visit_Seq(self, body: Seq) -> Seq:
        statements = list(body.statements)
        made: list[Any] = []
        for position, statement in enumerate(statements):
            ordering = (
                isinstance(statement, (nodes.Wait, nodes.Commit, *CHANNELS)) or called(statement) == "sync_threads"
            )
            if not ordering:
                made.append(self.visit(statement))
                continue
            changed: Statement | None = statement
            if self._is("stage: left out", statement):
                changed = None
            if isinstance(statement, CHANNELS):
                for change in (1, -1):
                    if self._is(f"stage: iteration by {change}", statement):
                        changed = replace(
                            statement, iteration=nodes.index_binary("add", statement.iteration, const(change))
                        )
            if isinstance(statement, nodes.Wait) and self._is("stage: pending by 1", statement):
                changed = replace(statement, pending=statement.pending + 1)
            if (
                position
                and not isinstance(statements[position - 1], (Let, nodes.Allocate))
                and self._is("stage: moved earlier", statement)
            ):
                made.insert(len(made) - 1, statement)
                continue
            if (
                position + 1 < len(statements)
                and not isinstance(statements[position + 1], (Let, nodes.Allocate))
                and self._is("stage: moved later", statement)
            ):
                statements[position + 1 : position + 2] = [statements[position + 1]]
                made += [self.visit(statements[position + 1]), statement]
                made += [self.visit(rest) for rest in statements[position + 2 :]]
                return replace(body, statements=tuple(made))
            made.append(changed)
        return replace(body, statements=tuple(one for one in made if one is not None))


def stage_sites(kernel: Kernel) -> list[Site]:
    """Faults that can be planted behind `plan_synchronization`."""
    lister = _Stage(0)
    lister(next(trace.function for trace in kernel.program.traces if trace.name == "plan_synchronization"))
    return lister.sites


def with_stage_fault(kernel: Kernel, number: int) -> compiler.Program:
    """The program that the compiler makes of a tile program with a fault.

    Raises
    ------
    TilewrightError : a pass behind it refuses.
    """

    def plant(function: Function, context: Context) -> Function:
        return _Stage(number)(function)

    at = next(i for i, step in enumerate(PIPELINE) if step.name == "plan_synchronization") + 1
    steps = (*PIPELINE[:at], Step(plant, "a fault"), *PIPELINE[at:])
    program = kernel.program
    final, traces = run_passes(program.traced, steps, Context(kernel.arch, kernel.schedule, kernel.target.overrides))
    return replace(program, final=final, traces=tuple(traces), source=kernel.target.emit(final, kernel.arch))
