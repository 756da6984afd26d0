"""Examples in the docstrings of the language, as programs: each stands in one kernel, whose names it uses."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import numpy as np

import tilewright.language as T
from tilewright.ir.nodes import Buffer
from tilewright.language.trace import PrimFunc
from tilewright.texts import keep_lines

TENSORS = {
    "A": '(64, 64), "float32"', "B": '(64, 64), "float32"', "C": '(64, 64), "float32"', "N": '(64,), "int32"',
}  # fmt: skip
TILES = {
    "tile": 'T.alloc_fragment((64, 64), "float32")', "row": 'T.alloc_fragment((64,), "float32")',
    "shared": 'T.alloc_shared((64, 64), "float32")', "other": 'T.alloc_shared((64, 64), "float32")',
    "strip": 'T.alloc_shared((64, 32), "float32")', "tx": "T.get_thread_binding()",
}  # fmt: skip
MACHINES = {
    "CPU": "cpu -arch=avx2", "NVIDIA sm_80": "cuda -arch=sm_80", "NVIDIA sm_90a": "cuda -arch=sm_90a",
    "AMD": "hip -arch=gfx942", "Apple": "metal -arch=apple7",
}  # fmt: skip
"""Machines that the pages speak of, and their targets."""


def lines_of(word: Any) -> list[str]:
    """The lines of a word's example; none where it has none, or one that is a program of its own."""
    text = inspect.getdoc(word) or ""
    _, found, example = text.partition("Examples\n--------\n")
    lines = re.findall(r"^(?:>>>|\.\.\.) (.*)$", example, re.MULTILINE) if found else []
    return [] if "+SKIP" in example else [line.rstrip() for line in lines]


def source(lines: list[str], blocks: int = 2) -> str:
    """The text of the program; an example that is one stands for itself."""
    if any(line.startswith("def example(") for line in lines):
        return "\n".join([*lines, ""])
    used = set(re.findall(r"\b\w+\b", "\n".join(lines)))
    indented = [f"        {line}" for line in lines]
    if "i" in used and not any(re.search(r"\bfor i\b|lambda i", line) for line in lines):
        indented = ["        for i in T.Parallel(64):", *(f"    {line}" for line in indented)]
    made = [f"        {name} = {value}" for name, value in TILES.items() if name in used]
    parameters = ", ".join(f"{name}: T.Tensor({text})" for name, text in TENSORS.items())
    head = f"@T.prim_func\ndef example({parameters}, n: T.int32):\n    with T.Kernel({blocks}, threads=128) as bx:"
    return "\n".join([head, *made, *indented, ""])


@functools.cache
def program(name: str) -> PrimFunc:
    """The traced example of a word."""
    return traced(name, lines_of(getattr(T, name)))


def traced(name: str, lines: list[str], blocks: int = 2) -> PrimFunc:
    text, file = source(lines, blocks), f"<example of T.{name}>"
    keep_lines(text, file)
    names: dict[str, Any] = {"T": T}
    exec(compile(text, file, "exec"), names)
    made: PrimFunc = names["example"]
    return made


def arguments(made: PrimFunc) -> list[Any]:
    """Random arguments for the program."""
    random = np.random.default_rng(0)
    values: list[Any] = []
    for param in made.params:
        if isinstance(param, Buffer):
            shape = [size if isinstance(size, int) else 40 for size in param.shape]
            values.append((random.random(shape) * 16).astype(param.dtype.numpy))
        else:
            values.append(5)
    return values
