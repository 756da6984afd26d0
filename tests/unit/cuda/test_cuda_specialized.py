"""Roles for loops of every shape: interpreted and emulated alike under every schedule, the copies asynchronous."""

import re

import numpy as np
import pytest
from cuda_gemm import on
from specialized_programs import PROGRAMS

from tilewright.interpreter import interpret
from tilewright.targets.cuda.compiler import compile_text

SCHEDULES = (("late", 0), ("early", 0), ("random", 1))


def compiled(program):
    return on("sm_90a", program.kernel).compile(*program.inputs, **program.options)


def close(program, result):
    expected = program.expected(*program.inputs)
    (result,) = result if isinstance(result, tuple) else (result,)
    if program.tolerance:
        return np.allclose(result, expected, rtol=program.tolerance, atol=program.tolerance)
    return np.array_equal(result, expected)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program(program):
    kernel = compiled(program)
    source = kernel.get_kernel_source()
    assert "_full" in source, kernel.explain()
    for trace in kernel.program.traces:
        if trace.name == "lower_channels":
            break
        if trace.changed:
            arrays = [one.copy() if isinstance(one, np.ndarray) else one for one in program.inputs]
            assert close(program, interpret(trace.function, arrays)), trace.name
    for schedule, seed in SCHEDULES:
        assert close(program, kernel.emulate(*program.inputs, schedule=schedule, seed=seed)), schedule
    text = compile_text(source, kernel.arch).sass()
    assert all(re.search(rf"\b{name}\b", text) for name in program.instructions)
    assert not re.search(r"\b(LDL|STL)\b", text)
