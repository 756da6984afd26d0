"""``tilewright bench``: times of products by quantised weights, as a table, JSON and a chart, beside those before."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tilewright
from tilewright.cli import demo_gpu
from tilewright.cli.chart import chart
from tilewright.cli.demo import describe
from tilewright.cli.terminal import BadCommand, Terminal
from tilewright.cli.timed_products import BenchRequest, Sample, timed
from tilewright.errors import TilewrightError, near
from tilewright.libraries import torch
from tilewright.options import options
from tilewright.progress import Progress
from tilewright.targets.registry import resolve, resolve_device
from tilewright.texts import read_text, write_text

FORM = "tilewright bench 1"
ROUNDS = 3
"""How often two commits take turns: a machine's mood changes within a run."""


class NotComparable(TilewrightError):
    """What new times are to be compared with is no file of such times, no commit, or of other products."""


@dataclass(frozen=True, slots=True)
class Time:
    """What a product takes.

    Attributes
    ----------
    format, rows : of the weight, and of the activations.
    bytes : size of the packed weight.
    median, low, high : milliseconds; the outer ones are the quartiles.
    """

    format: str
    rows: int
    bytes: int
    median: float
    low: float
    high: float


Times = dict[tuple[str, int], Time]


def run_bench(given: argparse.Namespace, terminal: Terminal) -> int:
    """Measure, print the table, write what was asked for."""
    wanted = demo_gpu.measured_on(given.target)
    on_gpu = resolve(wanted)[0].name == "cuda"
    for file in (given.json, given.plot):
        must_be_writable(file)
    if given.plot and not given.plot.endswith(".svg"):
        raise BadCommand(f"--plot {given.plot} is no name of an SVG", hint="write FILE.svg")
    request: BenchRequest = {
        "formats": given.formats.split(","), "rows": list(given.rows), "n": given.n, "k": given.k, "group": given.group,
        "activations": given.activations, "gpu": on_gpu, "milliseconds": given.milliseconds,
    }  # fmt: skip
    machine = _machine(on_gpu)
    before: Times | None = None
    noise: float | None = None
    if given.against and Path(given.against).is_file():
        before = read_times(Path(given.against), request, machine)
        times = summary(_shown(request))
    elif given.against:
        times, before, noise = side_by_side(request, given.against)
    else:
        times = summary(_shown(request))
    terminal.write(terminal.paint(_title(request, machine), "bold") + "\n")
    terminal.table(*table(times, before, request), best="", within="M" if len(request["formats"]) > 1 else "")
    if before is not None:
        ratios = [before[key].median / one.median for key, one in times.items()]
        beside = "" if noise is None else f"; two halves of the old samples: {noise:.3f}"
        terminal.write(f"\nmedian of old over new: {statistics.median(ratios):.3f}, least {min(ratios):.3f}{beside}")
    if given.json:
        write_text(Path(given.json), as_json(times, request, machine))
    if given.plot:
        draw(Path(given.plot), times, before, request, machine)
    return 0


def _machine(on_gpu: bool) -> str:
    if not on_gpu:
        arch = resolve_device("cpu")[1]
        threads = options().num_threads or arch.cores
        return f"{describe(arch)}, {threads} {'thread' if threads == 1 else 'threads'}"
    return str(torch.cuda.get_device_name())


def _title(request: BenchRequest, machine: str) -> str:
    return f"C[M, {request['n']}] = A[M, {request['k']}] W[{request['n']}, {request['k']}]^T on {machine}"


def _shown(request: BenchRequest) -> Iterator[Sample]:
    with Progress(len(request["formats"]) * len(request["rows"])) as progress:
        for done, sample in enumerate(timed(request), 1):
            progress.at(done, f"{sample['format']}, {sample['rows']} rows")
            yield sample


def summary(samples: Iterator[Sample] | Sequence[Sample]) -> Times:
    """Medians and quartiles; samples of one product that come in several parts are joined."""
    joined: dict[tuple[str, int], list[float]] = {}
    sizes: dict[str, int] = {}
    for one in samples:
        joined.setdefault((one["format"], one["rows"]), []).extend(one["milliseconds"])
        sizes[one["format"]] = one["bytes"]
    made = {}
    for (name, rows), found in joined.items():
        low, median, high = statistics.quantiles(found, n=4)
        made[name, rows] = Time(name, rows, sizes[name], median, low, high)
    return made


def table(times: Times, before: Times | None, request: BenchRequest) -> tuple[tuple[str, ...], list[list[str]]]:
    """Head and rows for the terminal."""
    head: tuple[str, ...] = ("M", "format", "weight MiB", "ms", "quartiles", "GOP/s", "GB/s")
    if before is not None:
        head += ("before ms", "before/now")
    rows = []
    for one in sorted(times.values(), key=lambda one: one.rows):
        work = 2 * one.rows * request["n"] * request["k"]
        row = [
            str(one.rows), one.format, f"{one.bytes / (1 << 20):.1f}", f"{one.median:.4g}",
            f"{one.low:.4g} to {one.high:.4g}", f"{work / one.median / 1e6:.1f}", f"{one.bytes / one.median / 1e6:.1f}",
        ]  # fmt: skip
        if before is not None:
            old = before[one.format, one.rows]
            row += [f"{old.median:.4g}", f"{old.median / one.median:.2f}"]
        rows.append(row)
    return head, rows


# Files


def must_be_writable(file: str | None) -> None:
    """A file that is written in the end can be, which is asked before anything is measured.  Raises BadCommand."""
    if file and (Path(file).is_dir() or not os.access(Path(file).parent, os.W_OK)):
        raise BadCommand(f"{file} cannot be written", hint="name a file in a folder that is there")


def as_json(times: Times, request: BenchRequest, machine: str) -> str:
    """What `--json` writes and `--against` reads."""
    facts = {"form": FORM, "version": tilewright.__version__, "machine": machine, "request": request}
    return json.dumps({**facts, "times": [asdict(one) for one in times.values()]}, indent=1) + "\n"


def read_times(path: Path, request: BenchRequest, machine: str) -> Times:
    """The times of a file. Raises NotComparable: it is no such file, its products are others, or it is of another
    machine."""
    try:
        found = json.loads(read_text(path))
        times = [Time(**one) for one in found["times"]] if found["form"] == FORM else None
        there, other = found["request"], found["machine"]
    except (OSError, ValueError, KeyError, TypeError):
        times = None
    if times is None:
        raise NotComparable(f"{path} has no times", hint="write some with tilewright bench --json FILE")
    if other != machine:
        raise NotComparable(f"{path} is of {other}, but this machine is {machine}", hint="measure both on one machine")
    different = [key for key in ("n", "k", "group", "activations", "gpu") if there.get(key) != request[key]]  # type: ignore[literal-required]
    if different:
        said = ", ".join(f"{key}={there.get(key)}" for key in different)
        raise NotComparable(
            f"{path} is of other products: {said}", hint="say the same --n, --k, --group, --activations"
        )
    made = {(one.format, one.rows): one for one in times}
    missing = [
        f"{name} at {rows} rows" for name in request["formats"] for rows in request["rows"] if (name, rows) not in made
    ]
    if missing:
        raise NotComparable(f"{path} lacks {', '.join(missing)}", hint="say the same --formats and --rows")
    return made


# Commits


def side_by_side(request: BenchRequest, revision: str) -> tuple[Times, Times, float]:
    """Times of this tree and of a commit, which take turns; and how far two halves of the old samples are apart."""
    here = Path(tilewright.__file__).resolve().parents[1]
    part: BenchRequest = {**request, "milliseconds": request["milliseconds"] / ROUNDS}
    new: list[Sample] = []
    old: list[list[Sample]] = []
    with checked_out(here, revision) as there, Progress(2 * ROUNDS) as progress:
        for number in range(1, ROUNDS + 1):
            progress.step(f"{revision}, round {number} of {ROUNDS}")
            old.append(in_tree(there, part))
            progress.step(f"this tree, round {number} of {ROUNDS}")
            new += in_tree(here, part)
    before = summary([one for run in old for one in run])
    first, last = summary(old[0]), summary(old[-1])
    apart = statistics.median(first[key].median / last[key].median for key in first)
    return summary(new), before, apart


@contextlib.contextmanager
def checked_out(tree: Path, revision: str) -> Iterator[Path]:
    """A folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tree"
        _git(tree, "worktree", "add", "--detach", "--quiet", str(place), revision)
        try:
            yield place
        finally:
            _git(tree, "worktree", "remove", "--force", str(place))


def _git(tree: Path, *words: str) -> None:
    try:
        done = subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotComparable(f"git cannot be run: {error}", hint="name a file that --json wrote") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["git refuses"]
        files = [str(one) for one in Path.cwd().glob("*.json")]
        hint = near(words[-1], files) or "name a file that --json wrote, or a commit of the checkout that runs"
        raise NotComparable(f"{words[-1]!r} is no file and no commit: {said[0]}", hint=hint)


def in_tree(tree: Path, request: BenchRequest) -> list[Sample]:
    """Samples that a tree's own tilewright gives, in a process of its own."""
    from tilewright.cli import timed_products

    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(tree)}
    # As a text: as a file its folder would stand before the standard library, where `inspect` is a module, too.
    script = [sys.executable, "-c", read_text(Path(timed_products.__file__))]
    done = subprocess.run(
        script, input=json.dumps(request), capture_output=True, text=True, env=environment, cwd=tree, check=False
    )
    if done.returncode:
        raise NotComparable(f"the products do not run there: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return list(json.loads(done.stdout))


# The chart


def draw(path: Path, times: Times, before: Times | None, request: BenchRequest, machine: str) -> None:
    """Speed over rows, a line a format; what was before has lines of its own."""
    work = 2 * request["n"] * request["k"]

    def line(of: Times, name: str) -> list[tuple[float, float]]:
        return sorted((one.rows, one.rows * work / one.median / 1e6) for one in of.values() if one.format == name)

    series = {name: line(times, name) for name in request["formats"]}
    if before is not None:
        series |= {f"{name}, before": line(before, name) for name in request["formats"]}
    chart(path, _title(request, machine), "rows of A", "GOP/s", series, log_x=True, log_y=True)
