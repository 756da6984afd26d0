"""What the usual loop runs: a draw by measured seconds and by values of parameters."""

from __future__ import annotations

import pytest
from drawing import ALONE, SHARE, TABLE, function_of, left_out, read_table
from reach import MOST, chosen

pytest_plugins = ["pytester"]

CROSSED = """
import pytest

@pytest.mark.parametrize("machine", range(4))
@pytest.mark.parametrize("format", range(6))
def test_dear(machine, format): pass

@pytest.mark.parametrize("number", range(9))
def test_light(number): pass
"""


@pytest.fixture
def cases(pytester: pytest.Pytester) -> list[pytest.Function]:
    items, _ = pytester.inline_genitems(pytester.makepyfile(CROSSED))
    return [item for item in items if isinstance(item, pytest.Function) and item.originalname == "test_dear"]


@pytest.mark.parametrize("count", [6, 7, 12])
def test_every_value_is_drawn_before_a_second_pair(cases: list[pytest.Function], count: int) -> None:
    drawn = [item for item in cases if item not in left_out(cases, count)]
    assert len(drawn) == count
    assert {item.callspec.params["format"] for item in drawn} == set(range(6))
    assert {item.callspec.params["machine"] for item in drawn} == set(range(4))


def test_the_draw_is_the_same_in_any_order(cases: list[pytest.Function]) -> None:
    assert set(left_out(cases, 5)) == set(left_out(cases[::-1], 5))


def test_more_than_there_are_leaves_nothing_out(cases: list[pytest.Function]) -> None:
    assert left_out(cases, 25) == []


def test_the_table_is_of_functions_that_are_dear() -> None:
    table = read_table()
    assert list(table) == sorted(table) and min(table.values()) > 0
    assert all((TABLE.parents[1] / name.partition("::")[0]).suffix == ".py" for name in table)


def test_cases_that_alone_run_a_line_are_there() -> None:
    """A case that is called otherwise by now would be left out with nothing said: its function, at least, is known."""
    names = ALONE.read_text(encoding="utf-8").splitlines()
    assert names == sorted(set(names))
    for name in names:
        file, _, function = function_of(name).partition("::")
        assert f"def {function}(" in (ALONE.parents[1] / file).read_text(encoding="utf-8"), name


def test_cases_are_chosen_until_every_line_is_run() -> None:
    lines = {"drawn": {1, 2}, "cheap": {1, 3}, "dear": {3, 4}, "dearest": {5}, "nothing new": {2}}
    seconds = {"drawn": 1.0, "cheap": 0.1, "dear": 2.0, "dearest": MOST + 1, "nothing new": 0.0}
    of = {name: {("file", number) for number in numbers} for name, numbers in lines.items()}
    assert chosen(of, seconds, ["drawn"]) == ["cheap", "dear"]
    assert chosen(of, seconds, ["drawn", "dear"]) == []


def test_a_run_draws_and_writes_the_table(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of more than its share runs one of its cases, and is measured anew; one that became light leaves the table."""
    monkeypatch.setattr("drawing.TABLE", pytester.path / "tests" / "seconds.txt")
    # The tests below run in this process: what it really spends holds a collection of its garbage now and then.
    spent, step = [0.0], [SHARE]
    monkeypatch.setattr("drawing._spent", lambda: spent.append(spent[-1] + step[0]) or spent[-1])
    tests = pytester.mkdir("tests")
    (tests / "test_crossed.py").write_text(CROSSED)
    (tests / "seconds.txt").write_text(
        f"{4 * SHARE} tests/test_crossed.py::test_dear\n1.0 tests/test_gone.py::test_gone\n"
    )
    pytester.makeconftest(
        "from drawing import Clock, draw\n"
        "def pytest_addoption(parser): parser.addoption('--seconds', action='store_true')\n"
        "def pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'proof: left out')\n"
        "    config.pluginmanager.register(Clock(config.option.seconds))\n"
        "def pytest_collection_modifyitems(items): draw(items)\n"
    )
    alone = tests / "alone.txt"
    alone.write_text("")
    monkeypatch.setattr("drawing.ALONE", alone)
    (drawn,) = [
        line for line in pytester.runpytest("-m", "not proof", "-q", "--collect-only").outlines if "test_dear" in line
    ]
    alone.write_text("".join(f"tests/test_crossed.py::test_dear[{f}-{m}]\n" for f in range(2) for m in range(2)))
    more = len({*alone.read_text().splitlines(), drawn})
    pytester.runpytest("-m", "not proof").assert_outcomes(passed=more + 9, deselected=24 - more)
    alone.write_text("")
    runs = ((SHARE, (), 1 + 9), (SHARE, ("--seconds",), 1 + 9), (0.0, ("--seconds",), 1 + 1), (0.0, (), 24 + 9))
    for step[0], options, passed in runs:
        pytester.runpytest("-m", "not proof", *options).assert_outcomes(passed=passed, deselected=24 + 9 - passed)
    assert (tests / "seconds.txt").read_text() == ""
