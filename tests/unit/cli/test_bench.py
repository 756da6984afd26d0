"""``tilewright bench``: its table, its files, and what it compares with."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tilewright.cli import bench, demo_gpu, main
from tilewright.cli.chart import chart
from tilewright.cli.timed_products import Sample

ROOT = Path(__file__).resolve().parents[3]
SMALL = ["bench", "--n", "48", "--k", "128", "--group", "32", "--milliseconds", "1", "--target", "cpu"]


def lines(shown: str) -> list[list[str]]:
    return [line.split() for line in shown.splitlines() if re.match(r"\s*\d+  \w", line)]


def test_table_file_and_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, drawn = tmp_path / "times.json", tmp_path / "times.svg"
    words = [*SMALL, "--formats", "int4,int8", "--rows", "1,5"]
    assert main([*words, "--json", str(kept), "--plot", str(drawn)]) == 0
    rows = lines(capsys.readouterr().out)
    assert [row[:2] for row in rows] == [["1", "int4"], ["1", "int8"], ["5", "int4"], ["5", "int8"]]
    times = json.loads(kept.read_text())["times"]
    assert all(0 < one["low"] <= one["median"] <= one["high"] for one in times)
    sizes = {one["format"]: one["bytes"] for one in times}
    assert sizes["int4"] == 48 * 128 // 2 + 48 * 4 * 4 and sizes["int8"] == 48 * 128 + 48 * 4 * 4
    texts = [element.text for element in ElementTree.fromstring(drawn.read_text()).iter() if element.text]
    assert {"int4", "int8", "GOP/s", "rows of A"} <= set(texts)

    assert main([*words, "--against", str(kept)]) == 0
    shown = capsys.readouterr().out
    for row, one in zip(lines(shown), sorted(times, key=lambda one: one["rows"])):
        assert float(row[-2]) == pytest.approx(one["median"], rel=1e-3)
    assert "median of old over new" in shown


@pytest.mark.parametrize(
    "change, message",
    [
        (["--n", "64"], "is of other products: n=48"),
        (["--rows", "1,7"], "lacks int4 at 7 rows"),
        (["--formats", "nf4"], "lacks nf4 at 1 rows"),
    ],
)
def test_times_of_other_products_are_refused(
    change: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "times.json"
    words = [*SMALL, "--formats", "int4", "--rows", "1"]
    assert main([*words, "--json", str(kept)]) == 0
    capsys.readouterr()
    assert main([*words, *change, "--against", str(kept)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"form": "another", "times": [], "request": {}, "machine": ""}'])
def test_files_without_times_are_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "times.json"
    kept.write_text(text)
    assert main([*SMALL, "--against", str(kept)]) == 1
    assert "has no times" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json", "{}/absent/x"], "{}/absent/x cannot be written\n  help: name a file in a folder that is there"),
        (["--json", "{}"], "{} cannot be written"),
        (["--plot", "{}/absent/x.svg"], "{}/absent/x.svg cannot be written"),
        (["--plot", "{}/x.png"], "--plot {}/x.png is no name of an SVG\n  help: write FILE.svg"),
        (["--target", "cuda"], "target 'cuda' names no architecture, and there is no such GPU here"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_measured(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It measured, and then ended in a traceback; products for a GPU that is not here were measured on the processor."""
    monkeypatch.setattr(bench, "timed", lambda request: pytest.fail("it measures"))
    monkeypatch.setattr(demo_gpu, "is_usable", lambda: False)
    assert main([*SMALL, *(word.format(tmp_path) for word in words)]) == 1
    assert capsys.readouterr().err.startswith("error: " + message.format(tmp_path))


def test_what_is_neither_file_nor_commit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--against", "no-such-thing"]) == 1
    assert capsys.readouterr().err.startswith("error: 'no-such-thing' is no file and no commit")


def test_two_commits_take_turns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each in its own process, with its own files: the samples that are told here name the tree that they came from."""
    order: list[str] = []

    def told(tree: Path, request: bench.BenchRequest) -> list[Sample]:
        assert (tree / "tilewright" / "cli" / "timed_products.py").is_file()
        order.append("here" if tree == ROOT else "there")
        taken = 1.0 if tree == ROOT else 2.0
        return [{"format": "int4", "rows": 1, "bytes": 10, "milliseconds": [taken] * 5}]

    monkeypatch.setattr(bench, "in_tree", told)
    if subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, check=False).returncode:
        pytest.skip("no checkout of git")
    monkeypatch.setattr(bench, "checked_out", lambda tree, revision: nothing_to_check_out(tree))
    assert main([*SMALL, "--formats", "int4", "--rows", "1", "--against", "HEAD"]) == 0
    assert order == ["there", "here"] * bench.ROUNDS
    assert "median of old over new: 2.000, least 2.000; two halves of the old samples: 1.000" in capsys.readouterr().out


class nothing_to_check_out:
    """A checkout that is there already: another name of this one."""

    def __init__(self, tree: Path) -> None:
        self.place = tree / "tests" / ".."

    def __enter__(self) -> Path:
        return self.place

    def __exit__(self, *error: object) -> None:
        pass


def test_a_tree_is_measured_with_its_own_tilewright() -> None:
    request: bench.BenchRequest = {
        "formats": ["int4"], "rows": [3], "n": 16, "k": 64, "group": 32, "activations": "", "gpu": False, "milliseconds": 1.0,
    }  # fmt: skip
    (sample,) = bench.in_tree(ROOT, request)
    assert (sample["format"], sample["rows"]) == ("int4", 3) and len(sample["milliseconds"]) >= 5


def test_charts_place_points_by_their_numbers(tmp_path: Path) -> None:
    drawn = tmp_path / "chart.svg"
    chart(drawn, "a <title>", "x", "y", {"one": [(1, 10), (10, 100), (100, 1000)]}, log_x=True, log_y=True)
    page = ElementTree.fromstring(drawn.read_text())
    assert "a <title>" in [element.text for element in page.iter()]
    places = [(float(one.get("cx", 0)), float(one.get("cy", 0))) for one in page.iter() if one.tag.endswith("circle")][
        :3
    ]
    (x1, y1), (x2, y2), (x3, y3) = places
    assert x1 < x2 < x3 and y1 > y2 > y3
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.11) and y2 - y1 == pytest.approx(y3 - y2, abs=0.11)


@pytest.mark.parametrize(
    "values", [[(0.0, 0.0)], [(5.0, 5.0)], [(-3.0, 2.0), (4.0, -1e-9)], [(1e9, 1e-9), (1e9, 2e-9)]]
)
def test_charts_of_odd_ranges_are_drawn(values: list[tuple[float, float]], tmp_path: Path) -> None:
    chart(tmp_path / "chart.svg", "t", "x", "y", {"one": values})
    assert "nan" not in (tmp_path / "chart.svg").read_text()


def test_series_that_are_lines_have_no_dots(tmp_path: Path) -> None:
    series = {"roof": [(1.0, 1.0), (2.0, 2.0)], "measured": [(1.0, 0.5), (2.0, 1.5)]}
    for lines, joined, dots in ((True, 2, 4), (False, 0, 4), ({"roof"}, 1, 2)):
        chart(tmp_path / "chart.svg", "t", "x", "y", series, lines=lines)
        drawn = (tmp_path / "chart.svg").read_text()
        assert drawn.count("<polyline") == joined and drawn.count('r="4"') == dots
