"""The table of contents: from a traced program to source text for a machine.

Passes and targets meet here.  Nothing in this file knows of Python functions, arrays or caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.arith import common_knowledge
from tilewright.ir.nodes import Function
from tilewright.machine.arch import Arch
from tilewright.passes.context import CHOICES, Context, Diagnostic, Schedule
from tilewright.passes.manager import Trace, run_passes
from tilewright.passes.pipeline import PIPELINE
from tilewright.targets.base import Source, Target


@dataclass(frozen=True, slots=True)
class Program:
    """A lowered program and everything that led to it.

    Attributes
    ----------
    traced, final : the program before the first pass and after the last.
    traces : one entry a pass: name, reason, program after it, seconds.
    source : the emitted text.
    diagnostics : warnings and notes for the author.
    choices : what each tile operator became and why, by pass, for ``explain()``.
    """

    traced: Function
    final: Function
    traces: Sequence[Trace]
    source: Source
    target: Target
    arch: Arch
    diagnostics: tuple[Diagnostic, ...]
    choices: tuple[str, ...] = ()


def compile_function(function: Function, target: Target, arch: Arch, schedule: Schedule | None = None) -> Program:
    """Lower `function` for a machine and emit its source text.

    Raises
    ------
    TilewrightError : the program asks for something that the machine or the language does not have.
    """
    context = Context(arch, schedule or Schedule(), target.overrides)
    with common_knowledge():
        final, traces = run_passes(function, PIPELINE, context)
        source = target.emit(final, arch)
    choices = context.facts[CHOICES]
    return Program(function, final, tuple(traces), source, target, arch, tuple(context.diagnostics), tuple(choices))
