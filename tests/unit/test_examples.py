"""examples/: each program runs, and checks its own results."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


def test_there_are_ten() -> None:
    assert len(EXAMPLES) == 10


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_example_runs(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    assert "assert" in file.read_text(encoding="utf-8"), "an example checks what it computes"
    runpy.run_path(str(file), run_name="__main__")
    assert capsys.readouterr().out.strip()
