"""Tuning: the fastest candidate wins, failures say why, and what was found is read back whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import TilewrightError
from tilewright.tuning import Database, search, time_call
from tilewright.tuning.search import NothingToChoose

COSTS = {1: 3.0, 2: 1.0, 3: 2.0}


def build(options: dict[str, int]) -> int:
    if options["size"] not in COSTS:
        raise TilewrightError("too large", hint="take a smaller one")
    return options["size"]


@pytest.mark.parametrize("parallel", [True, False])
def test_the_fastest_comes_first(parallel: bool) -> None:
    candidates = [{"size": size} for size in (1, 4, 2, 3)]
    found = search(candidates, build, COSTS.__getitem__, parallel=parallel)
    assert [outcome.options["size"] for outcome in found] == [2, 3, 1, 4]
    assert found[-1].reason == "too large" and found[-1].milliseconds is None
    assert [o.options["size"] for o in search(candidates, build, COSTS.__getitem__, topk=2)] == [1, 4]


def test_nothing_to_choose_is_an_error() -> None:
    with pytest.raises(NothingToChoose) as told:
        search([{"size": 9}, {"size": 8}], build, COSTS.__getitem__)
    assert str(told.value) == "no candidate can be built: too large\n  help: take a smaller one"
    with pytest.raises(NothingToChoose, match="no candidate can be built: there is none"):
        search([], build, COSTS.__getitem__)
    with pytest.raises(NothingToChoose, match="topk is 0: no candidate would be measured"):
        search([{"size": 1}], build, COSTS.__getitem__, topk=0)


def test_the_database_gives_back_what_was_put(tmp_path: Path) -> None:
    database = Database(tmp_path)
    assert database.get("a product") is None
    database.put("a product", {"block_N": 64})
    database.put("a product", {"block_N": 128})
    assert database.get("a product") == {"block_N": 128} and database.get("another") is None
    assert len(list(tmp_path.iterdir())) == 1
    next(tmp_path.iterdir()).write_text("{", encoding="utf-8")
    assert database.get("a product") is None


def test_a_directory_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Database(tmp_path / "file").put("a product", {})


def test_calls_are_timed() -> None:
    calls: list[int] = []
    assert time_call(lambda: calls.append(1)) >= 0.0 and len(calls) > 3
