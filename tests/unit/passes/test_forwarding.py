"""Four passes read a value where it came from instead of from memory; none of them can do the work of another."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap

import pytest
from test_forward_operands import MACHINE, staged

import tilewright.language as T
from tilewright.ir.nodes import Function
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.passes.context import Context, Pass
from tilewright.passes.lower.forward_tiles import forward_tiles
from tilewright.passes.thread.forward_stores import forward_stores
from tilewright.passes.tile.gemms.select_instructions import select_instructions
from tilewright.passes.tile.processors.forward_operands import forward_operands
from tilewright.passes.tile.words.forward_locals import forward_locals


def documented(run: Pass) -> Function:
    """The program that a pass's docstring shows before it."""
    example = re.search(r"Before::\n\n((?:    .*\n|\n)+)", inspect.getdoc(sys.modules[run.__module__]) or "")
    assert example is not None
    return parse(textwrap.dedent(example[1]).strip() + "\n")


@T.prim_func
def asked_again(Mask: T.Tensor((2, 6), "int32"), C: T.Tensor((2, 6), "int32")):
    """An array of a thread that decides about every one of several turns."""
    with T.Kernel(2, threads=1) as row:
        kept = T.alloc_local((6,), "int32")
        for k in T.serial(6):
            kept[k] = Mask[row, k]
        for turn in T.serial(3):
            for k in T.serial(6):
                if kept[k] > turn:
                    C[row, k] = turn


PROGRAMS = {
    forward_locals: asked_again.function,
    forward_tiles: documented(forward_tiles),
    forward_stores: documented(forward_stores),
    forward_operands: select_instructions(staged.trace(rows=16).function, Context(MACHINE)),
}


@pytest.mark.parametrize("run", PROGRAMS)
@pytest.mark.parametrize("meant_for", PROGRAMS)
def test_each_changes_its_own_program_alone(run: Pass, meant_for: Pass) -> None:
    program = PROGRAMS[meant_for]
    changed = print_program(run(program, Context(MACHINE))) != print_program(program)
    assert changed == (run is meant_for)
