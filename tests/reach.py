"""Which lines of the package each test runs, and the cases that the usual loop must not leave out, because they alone run some.

The loop draws cases by what they take (`drawing`), and a function of a hundred cases may have one that a compiler is slow in: each of the
others may still be a sentence of its own.  These stand in ``alone.txt``, as this program finds them:

    PYTHONPATH=.:tests REACHED=/tmp/reached python -m pytest tests -p reach -m "" -n 8    # Python 3.12; any part of the tests, any number of times
    python tests/reach.py /tmp/reached                                                     # writes the table
"""

from __future__ import annotations

import array
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT / 'tilewright'}{os.sep}"
TABLE = Path(__file__).with_name("alone.txt")
BETWEEN = "<between tests>"
MOST = 3.0
"""Seconds of a case that stands in the table; what only slower ones run is left to `make proof`."""

Line = tuple[str, int]
"""A file of the package, and a line of it."""


class Recorder:
    """What runs in this process, written test by test; a line is asked for once a test, so that loops cost nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.known, self.started = folder, set[Line](), dict[Line, int](), 0.0
        monitoring = sys.monitoring
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "reach")
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self.line)
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)

    def line(self, code: Any, number: int) -> object:
        if code.co_filename.startswith(PACKAGE):
            self.now.add((code.co_filename[len(PACKAGE) :], number))
        return sys.monitoring.DISABLE

    def pytest_runtest_logstart(self) -> None:
        self._write(BETWEEN, 0.0)
        sys.monitoring.restart_events()
        self.started = sum(os.times()[:4])

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(nodeid, sum(os.times()[:4]) - self.started)

    def _write(self, name: str, seconds: float) -> None:
        new = [(self.known.setdefault(one, len(self.known)), *one) for one in self.now if one not in self.known]
        numbers = array.array("I", sorted(self.known[one] for one in self.now))
        self.now.clear()
        with (self.folder / f"{os.getpid()}.jsonl").open("a") as out:
            out.write(json.dumps([name, round(seconds, 3), new, zlib.compress(numbers.tobytes()).hex()]) + "\n")


def pytest_configure(config: Any) -> None:
    """Every process that runs tests has a recorder: the only one, or those of pytest-xdist."""
    if not getattr(config.option, "numprocesses", None):
        folder = Path(os.environ["REACHED"])
        folder.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(Recorder(folder))


def recorded(folder: Path) -> Iterator[tuple[str, float, set[Line]]]:
    """Names, seconds and lines of the tests in a folder."""
    for file in sorted(folder.glob("*.jsonl")):
        table: dict[int, Line] = {}
        for text in file.read_text().splitlines():
            name, seconds, new, packed = json.loads(text)
            table.update({number: (path, line) for number, path, line in new})
            numbers = array.array("I")
            numbers.frombytes(zlib.decompress(bytes.fromhex(packed)))
            yield name, seconds, {table[number] for number in numbers}


def chosen(lines: Mapping[str, set[Line]], seconds: Mapping[str, float], drawn: Iterable[str]) -> list[str]:
    """Cases besides those drawn that run what none of these does: the one with most such lines for its time first, until nothing is left."""
    reached = set().union(*(lines.get(name, set()) for name in drawn))
    left = {name: rest for name, of in lines.items() if seconds[name] <= MOST and (rest := of - reached)}
    found = []
    while left:
        best = max(left, key=lambda name: (len(left[name]) / (0.05 + seconds[name]), name))
        found.append(best)
        reached = left.pop(best)
        left = {name: rest for name, of in left.items() if (rest := of - reached)}
    return sorted(found)


def drawn_by_time() -> set[str]:
    """What the usual loop runs where the table is empty."""
    command = [sys.executable, "-m", "pytest", "tests", "--collect-only", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TILEWRIGHT_TESTS_ALONE": os.devnull}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return {line for line in said.stdout.splitlines() if "::" in line}


def main() -> None:
    lines: dict[str, set[Line]] = {}
    seconds: dict[str, float] = {}
    for name, took, of in recorded(Path(sys.argv[1])):
        lines[name] = lines.get(name, set()) | of
        seconds[name] = took
    drawn = drawn_by_time()
    found = chosen(lines, seconds, {*drawn, BETWEEN})
    TABLE.write_text("".join(f"{name}\n" for name in found), encoding="utf-8")
    missing = len(drawn - lines.keys())
    print(
        f"{len(found)} cases of {sum(map(seconds.__getitem__, found)):.0f} s; {missing} of {len(drawn)} drawn tests were not recorded"
    )


if __name__ == "__main__":
    main()
