"""One pass on a program that is written out: parsed, verified before and after, and printed."""

from __future__ import annotations

from tilewright.ir.nodes import Function
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.passes.context import Context, Pass, Schedule
from tilewright.targets.cuda.arch import arch


def machine(name: str = "sm_90a", schedule: Schedule | None = None) -> Context:
    """What passes may ask where a program is compiled for one of NVIDIA's machines."""
    return Context(arch({"arch": name}), schedule or Schedule())


def result_of(run: Pass, text: str, context: Context | None = None) -> Function:
    """The program that a pass makes of one."""
    program = parse(text)
    verify(program)
    result = run(program, context or machine())
    verify(result)
    return result


def made(run: Pass, text: str, context: Context | None = None) -> str:
    """The same, printed; the text must be as it is printed, so that what comes out can be compared with it."""
    assert print_program(parse(text)) == text
    return print_program(result_of(run, text, context))


def changed_text(text: str, *changes: tuple[str, str]) -> str:
    """A program with some of its text replaced, which must be there."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text
