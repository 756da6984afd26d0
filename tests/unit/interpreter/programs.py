"""Programs for the interpreter's tests, written as text."""

from __future__ import annotations

import textwrap
from typing import Any

import ml_dtypes  # noqa: F401  (registers the carriers)
import numpy as np

import tilewright.ops  # noqa: F401  (registers the operators)
from tilewright.interpreter import interpret
from tilewright.ir.nodes import Function
from tilewright.ir.parser import parse
from tilewright.ir.verifier import verify


def program(text: str) -> Function:
    """A program from its text; its statements carry spans in the file ``test.tile``."""
    function = parse(textwrap.dedent(text).strip() + "\n", file="test.tile")
    verify(function)
    return function


def run(text: str, *arguments: Any, **options: Any) -> tuple[np.ndarray, ...]:
    """What a program gives back."""
    return interpret(program(text), arguments, **options)


def run_block(
    body: str, *arguments: Any, params: str, threads: int = 32, stage: str = "traced", **options: Any
) -> tuple[np.ndarray, ...]:
    """What a kernel of one block gives back; `params` is the text of the parameters."""
    head = f'@stage("{stage}")\ndef f{params}:\n    with kernel(blocks={{bx: 1}}, threads={{tx: {threads}, ty: 1, tz: 1}}):\n'
    return run(head + textwrap.indent(textwrap.dedent(body).strip(), " " * 8), *arguments, **options)
