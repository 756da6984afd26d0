"""Tests with the libraries that people use models in: `make clients`.  Without them there is nothing here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path[:0] = [
    str(Path(__file__).parent),
    *(str(Path(__file__).parents[1] / "unit" / room) for room in ("quant", "checkpoints", "conversion")),
]

NEEDED = {"test_gguf.py": "gguf", "test_peft.py": "peft", "test_diffusers.py": "diffusers"}
"""Packages without which a file has no tests; all of them need transformers."""


def _there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


collect_ignore = [
    file.name
    for file in Path(__file__).parent.glob("*.py")
    if file.name != "conftest.py" and not (_there("transformers") and _there(NEEDED.get(file.name, "transformers")))
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.clients)
