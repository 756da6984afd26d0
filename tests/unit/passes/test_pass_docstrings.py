"""Every pass whose docstring shows a program before and after does exactly that."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap

import pytest

from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.passes.context import Context
from tilewright.passes.tile.gemms.select_instructions import select_instructions
from tilewright.targets.cpu.arch import arch

EXAMPLE = re.compile(
    r"Before[^\n]*::\n\n(?P<before>(?:    .*\n|\n)+)[\s\S]*?After[^\n]*::\n\n(?P<after>(?:    .*\n|\n)+)"
)


def documented() -> list[str]:
    """Modules of passes for one-thread blocks whose docstrings show whole programs."""
    found = []
    for room in ("lower", "thread", "tile"):
        package = importlib.import_module(f"tilewright.passes.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            path = module.name
            doc = inspect.getdoc(importlib.import_module(path)) or ""
            match = EXAMPLE.search(doc + "\n")
            if match and "def " in match["before"] and "@stage" in match["after"] and "cuda" not in doc.lower():
                found.append(path)
    return found


@pytest.mark.parametrize("path", documented())
def test_docstring(path: str) -> None:
    module = importlib.import_module(path)
    match = EXAMPLE.search((inspect.getdoc(module) or "") + "\n")
    assert match is not None
    before = parse(textwrap.dedent(match["before"]).strip() + "\n")
    verify(before)
    context = Context(arch({"arch": "avx512"}))
    made = getattr(module, path.rpartition(".")[2])(select_instructions(before, context), context)
    verify(made)
    assert print_program(made).strip() == textwrap.dedent(match["after"]).strip()
