"""Which cases the usual loop runs: of each test function as many as fit into its share of time, `make proof` the others.

What cases take stands in ``seconds.txt``, as ``pytest --seconds`` found it: processor seconds of a case, those of the
programs that it starts included.  Cases that alone run some line of the package are drawn besides: ``alone.txt``, as
``reach.py`` finds them.  The draw is the same each time and on every machine."""

from __future__ import annotations

import collections
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

SHARE = 0.3
"""Seconds of a test function in the usual loop.  One of its cases runs however long it takes."""

TABLE = Path(__file__).with_name("seconds.txt")
ALONE = Path(os.environ.get("TILEWRIGHT_TESTS_ALONE", Path(__file__).with_name("alone.txt")))


def draw(items: Sequence[pytest.Item]) -> list[pytest.Function]:
    """Mark as ``proof`` the cases that the usual loop leaves out, and give them."""
    cases: dict[str, list[pytest.Function]] = collections.defaultdict(list)
    for item in items:
        apart = map(item.get_closest_marker, ("gpu", "metal", "clients", "proof"))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not any(apart):
            cases[function_of(item.nodeid)].append(item)
    seconds, alone = read_table(), set(ALONE.read_text(encoding="utf-8").splitlines())
    proofs: list[pytest.Function] = []
    for name, of_one in cases.items():
        for item in of_one:
            item.user_properties.append(("cases", len(of_one)))
        if name in seconds:
            for item in left_out(of_one, max(1, round(SHARE / seconds[name]))):
                if item.nodeid not in alone:
                    item.add_marker("proof")
                    proofs.append(item)
    return proofs


def left_out(cases: Sequence[pytest.Function], count: int) -> list[pytest.Function]:
    """What is left when `count` were drawn, each time the one with most values of parameters that none drawn has: of
    formats and machines crossed with each other, every format and every machine comes before a second pair of one."""
    left = sorted(cases, key=lambda item: zlib.crc32(item.nodeid.encode()))
    values = {item: {(name, _known(of)) for name, of in item.callspec.params.items()} for item in left}
    seen: set[tuple[str, object]] = set()
    for _ in range(min(count, len(left))):
        drawn = max(left, key=lambda item: len(values[item] - seen))
        seen |= values[drawn]
        left.remove(drawn)
    return left


def _known(value: object) -> object:
    """What tells a parameter's value from others: itself, or where it may not be compared the object that it is."""
    return value if isinstance(value, (str, int, float)) else id(value)


def function_of(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def read_table() -> dict[str, float]:
    """Seconds of a case, by function."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return {name: float(seconds) for seconds, name in (line.split(" ", 1) for line in lines)}


class Clock:
    """The plugin that measures, in every process of a run; it says what the table lacks, or, asked to, writes it."""

    def __init__(self, writes: bool) -> None:
        self.writes = writes
        self.spent: dict[str, list[float]] = collections.defaultdict(list)
        self.cases: dict[str, int] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        item.user_properties.append(("started", _spent()))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        done = yield
        item.user_properties.append(("ended", _spent()))
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said = dict(report.user_properties)
        if report.when == "teardown" and report.passed and "cases" in said:
            name = function_of(report.nodeid)
            self.spent[name].append(float(said["ended"]) - float(said["started"]))
            self.cases[name] = int(said["cases"])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        table = read_table()
        found = {name: sum(each) / len(each) for name, each in self.spent.items()}
        if self.writes:
            root = TABLE.parents[1]
            table = {name: of for name, of in table.items() if (root / name.partition("::")[0]).exists()}
            table |= {name: of for name, of in found.items() if of * self.cases[name] > SHARE}
            for name in found.keys() & table.keys():
                if found[name] * self.cases[name] <= SHARE:
                    del table[name]
            TABLE.write_text("".join(f"{of:.3f} {name}\n" for name, of in sorted(table.items())), encoding="utf-8")
        for name in sorted(found.keys() - table.keys()):
            if sum(self.spent[name]) > 10 * SHARE:
                said = f"{name} took {sum(self.spent[name]):.1f} s: pytest --seconds {name} puts it into {TABLE.name}"
                terminalreporter.write_line(said)


def _spent() -> float:
    """Processor seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])
