"""The syntax of the package's files, read once for all tests that look at it."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
