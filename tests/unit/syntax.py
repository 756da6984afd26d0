"""Python as texts: the syntax of the package's files, read once for all tests, and programs that tests write."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tilewright.language as T
from tilewright.texts import keep_lines


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def program_of(text: str, name: str) -> Callable[..., Any]:
    """The function `program` of a text, whose lines messages show under this name."""
    keep_lines(text, name)
    space: dict[str, Any] = {"T": T, "__name__": name}
    exec(compile(text, name, "exec"), space)
    return space["program"]
