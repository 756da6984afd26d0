"""Programs for the tests of the cpu target: compiled and run, and interpreted after every pass."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

import tilewright.ops  # noqa: F401  (registers the operators)
from tilewright.interpreter import interpret
from tilewright.ir.nodes import Function
from tilewright.ir.parser import parse
from tilewright.ir.verifier import verify
from tilewright.machine.arch import Arch
from tilewright.passes.context import Context
from tilewright.passes.manager import run_passes
from tilewright.passes.pipeline import PIPELINE
from tilewright.runtime.kernel import Kernel
from tilewright.targets.cpu.arch import arch, host, runs_here
from tilewright.targets.cpu.target import CPU

AVX2 = arch({"arch": "avx2"})
"""Another machine whose code runs here too (where this is an x86)."""


def program(text: str) -> Function:
    """A program from its text."""
    function = parse(textwrap.dedent(text).strip() + "\n", file="test.tile")
    verify(function)
    return function


def compiled(function: Function | str, machine: Arch | None = None) -> Kernel:
    """A kernel for `machine` (this one by default), built: the cache has what a text was compiled to before."""
    made = program(function) if isinstance(function, str) else function
    kernel = Kernel(made, CPU, machine or host())
    _ = kernel.launcher
    return kernel


def outputs(result: Any) -> tuple[np.ndarray, ...]:
    return result if isinstance(result, tuple) else (result,)


def check(
    text: str,
    *arguments: Any,
    rtol: float = 0.0,
    atol: float = 0.0,
    machines: Sequence[Arch] = (),
    after_passes: bool = True,
) -> tuple[np.ndarray, ...]:
    """The outputs of a program, which must be the same interpreted, after every pass, and compiled.

    Parameters
    ----------
    rtol, atol : where sums are taken in another order or functions have an error of their own; else bitwise.
    machines : machines to compile for beside this one, where this one can run their code.
    """
    function = program(text)
    expected = interpret(function, _copies(arguments))
    if after_passes:
        _, traces = run_passes(function, PIPELINE, Context(host(), overrides=CPU.overrides))
        for trace in traces:
            if trace.changed:
                _compare(interpret(trace.function, _copies(arguments)), expected, rtol, atol, f"after {trace.name}")
    for machine in (host(), *machines):
        if runs_here(machine):
            found = outputs(compiled(function, machine)(*_copies(arguments)))
            _compare(found, expected, rtol, atol, machine.name)
    return expected


def _copies(arguments: Sequence[Any]) -> list[Any]:
    return [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]


def _compare(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], rtol: float, atol: float, where: str) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(_plain(a), _plain(b), rtol=rtol, atol=atol, equal_nan=True, err_msg=where)


def _plain(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "biu" else array.astype(np.float64)
