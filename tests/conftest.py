"""What the whole suite shares: ``--update``, file tests as pytest items, one profile for hypothesis."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tilewright.errors import TilewrightError
from tilewright.testing.filetests import Case, read_cases, run_case, update_file

hypothesis.settings.register_profile("tilewright", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tilewright")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite what .tile files expect")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return TileFile.from_parent(parent, path=file_path) if file_path.suffix == ".tile" else None


class TileFile(pytest.File):
    """A ``.tile`` file: one item a case."""

    outcomes: dict[int, str]

    def collect(self) -> Iterator[pytest.Item]:
        self.outcomes = {}
        for case in read_cases(self.path):
            yield TileCase.from_parent(self, name=case.name, case=case)

    def teardown(self) -> None:
        if self.config.getoption("--update") and self.outcomes:
            update_file(self.path, self.outcomes)


class TileCase(pytest.Item):
    """One case of a ``.tile`` file."""

    def __init__(self, *, case: Case, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]
        self.case = case

    def runtest(self) -> None:
        outcome = run_case(self.case)
        if outcome == self.case.expected:
            return
        if self.config.getoption("--update"):
            assert isinstance(self.parent, TileFile)
            self.parent.outcomes[self.case.line] = outcome
            return
        raise Mismatch(self.case, outcome)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, (Mismatch, TilewrightError)):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.line - 1, self.name


class Mismatch(AssertionError):
    """The outcome of a file test is not what the file expects."""

    def __init__(self, case: Case, outcome: str) -> None:
        lines = difflib.unified_diff(
            case.expected.splitlines(), outcome.splitlines(), "expected", "outcome", lineterm=""
        )  # fmt: skip
        super().__init__(f"{case.file}:{case.line}: {case.header}\n" + "\n".join(lines))
