"""Every step of the pipeline is run by itself in a test of passes."""

from __future__ import annotations

import ast
from pathlib import Path

from tilewright.passes.pipeline import PIPELINE

TESTS = Path(__file__).resolve().parents[2]


def called() -> set[str]:
    """Functions that tests import from modules of passes, names of steps that file tests run, and passes whose docstrings are executed."""
    found: set[str] = set()
    for path in (TESTS / "unit").rglob("test_*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "tilewright.passes." in text else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilewright.passes."):
                found |= {name.name for name in node.names}
    for path in TESTS.rglob("*.tile"):
        for line in path.read_text().splitlines():
            if line.startswith("# pass "):
                found |= set(line.split()[2:])
    from test_pass_docstrings import documented
    from test_thread_block_docstrings import AROUND

    return found | {path.rpartition(".")[2] for path in (*documented(), *AROUND)}


def test_every_pass_is_called_by_a_test() -> None:
    assert not {step.name for step in PIPELINE} - called()
