"""docs/errors.md: every class of error stands on it, and its mistakes are made anew."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

pytest.importorskip("torch")

from docs import error_pages  # noqa: E402

PAGE = error_pages.PAGE


def test_every_class_is_on_the_page() -> None:
    runs = error_pages.runs
    shown = re.findall(r"^### (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(shown) == len(set(shown)) and not set(shown) & set(runs.NO_EXAMPLE)
    ours = {
        name for name, found in error_pages.classes().items()
        if any(one.__module__.startswith("tilewright") for one in found)
    }  # fmt: skip
    assert {*shown, *runs.NO_EXAMPLE, *runs.BASES} == ours


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before, Python records no columns of expressions: no carets")
def test_the_page_shows_what_really_is_said(pytestconfig: pytest.Config) -> None:
    made = error_pages.page()
    if pytestconfig.getoption("--update"):
        PAGE.write_text(made, encoding="utf-8")
    assert made == PAGE.read_text(encoding="utf-8"), "run python -m docs.error_pages, then read the difference"
