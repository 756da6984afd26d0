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

_THERE = importlib.util.find_spec("transformers")
collect_ignore = (
    [] if _THERE else [file.name for file in Path(__file__).parent.glob("*.py") if file.name != "conftest.py"]
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.clients)
