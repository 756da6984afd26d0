"""The tables and charts of docs/performance.md that show the public entry, from one log of benchmarks/front_door.py.

    python -m docs.front_door_page

writes them anew.  The log to show is `LOG`; a test compares the page with it.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tilewright.cli.chart import chart
from tilewright.machine.nvidia import device_of

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "benchmarks" / "results" / "2026-11-28-h200-front-door-a47b92f.jsonl"
PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"
BEGIN, END = "<!-- made by docs/front_door_page.py -->\n", "<!-- to here -->\n"

RANGES = ((1, 16), (17, 64), (65, 256), (257, 1024), (1025, 4096), (4097, 8192))
"""Numbers of rows that share a line, those of benchmarks/front_door.py."""

BITS = {"bfloat16": 16, "int4": 4.125, "int2": 2, "e4m3": 8}
"""Bits of a weight with its scales; four bits have a float16 scale for each 128."""

PEERS = {
    "cublas": "cuBLAS",
    "triton": "Triton",
    "torch": "torch float16",
    "scaled_mm fast": "`_scaled_mm`, fast sums",
    "humming": "Humming",
}

BEST = "best of cuBLAS and Triton"

GOALS: dict[tuple[str, str], tuple[float | None, float]] = {
    ("bfloat16", BEST): (1.0, 1.0),
    ("e4m3 by e4m3", "`_scaled_mm`, fast sums"): (1.0, 1.0),
    ("int4 by float16", "torch float16"): (None, 0.97),
    ("int4 by float16", "Humming"): (1.05, 1.0),
    ("int4 by int8", "Humming"): (1.1, 1.1),
    ("int4 by e4m3", "Humming"): (1.1, 1.0),
    ("int2 by int8", "Humming"): (1.1, 1.0),
}
"""What the mean of a product's ratios to a peer should be: with few rows and with many.  Lines without one only compare."""

MANY = {"torch float16": 257}
"""Rows from which there are many beside a peer; 1,025 beside the others."""

Line = Mapping[str, float | str]


def lines(log: Path = LOG) -> list[Line]:
    """The cases whose times are known on both sides."""
    return [one for one in map(json.loads, log.read_text().splitlines()) if isinstance(one.get("ours"), float)]


def peers_of(line: Line) -> dict[str, float]:
    """The peers' times of a case by name; where Triton was asked too, the better of it and cuBLAS."""
    found = {name: float(line[peer]) for peer, name in PEERS.items() if isinstance(line.get(peer), float)}
    if "triton" in line and (both := [found.pop(name) for name in ("cuBLAS", "Triton") if name in found]):
        found[BEST] = min(both)
    return found


def ratios(of: list[Line]) -> Iterator[tuple[str, str, int, float, str]]:
    """Product, peer, rows, the peer's time over ours, and the case by name."""
    for one in of:
        for peer, time in peers_of(one).items():
            place = f"{one['M']} x {one['N']} x {one['K']}"
            yield str(one["kind"]), peer, int(one["M"]), time / float(one["ours"]), place


def table(of: list[Line]) -> str:
    """A line a product, peer and range of rows: the mean, the goal for it, the worst; means below their goal are bold."""
    found: dict[tuple[str, str, int], list[tuple[float, str]]] = defaultdict(list)
    for kind, peer, rows, ratio, place in ratios(of):
        span = next(number for number, (low, high) in enumerate(RANGES) if low <= rows <= high)
        found[kind, peer, span].append((ratio, place))
    said = ["| product | peer | rows | cases | mean | goal | worst | at |", "| --- " * 8 + "|"]
    for (kind, peer, span), cases in sorted(found.items()):
        mean = math.exp(sum(math.log(ratio) for ratio, _ in cases) / len(cases))
        (low, high), (worst, place) = RANGES[span], min(cases)
        goal = GOALS.get((kind, peer), (None, None))[low >= MANY.get(peer, 1025)]
        shown = f"{mean:.3f}" if goal is None or round(mean, 3) >= goal else f"**{mean:.3f}**"
        line = f"| {kind} | {peer} | {low} to {high} | {len(cases)} | {shown} | {goal or ''} | {worst:.3f} | {place} |"
        said.append(line)
    return "\n".join(said) + "\n"


LEAST = 0.93
"""The ratio below which a product counts as one that falls short of its peer."""


def shortfalls(of: list[Line]) -> str:
    """A line a product that is below `LEAST` of a peer that has a goal there, the slowest first."""
    found = [
        (ratio, kind, peer, place)
        for kind, peer, rows, ratio, place in ratios(of)
        if ratio < LEAST and GOALS.get((kind, peer), (None, None))[rows >= MANY.get(peer, 1025)] is not None
    ]
    said = ["| product | peer | size | ratio |", "| --- " * 4 + "|"]
    said += [f"| {kind} | {peer} | {place} | {ratio:.3f} |" for ratio, kind, peer, place in sorted(found)]
    counted = len([one for one in ratios(of) if GOALS.get((one[0], one[1]))])
    return f"Products below {LEAST} of a peer: {len(found)} of {counted} comparisons.\n\n" + "\n".join(said) + "\n"


def charts(of: list[Line]) -> None:
    """Speed beside the peers over the number of rows, and the roofline."""
    beside: dict[str, list[tuple[float, float]]] = defaultdict(list)
    reached: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kind, peer, rows, ratio, _ in ratios(of):
        if peer != PEERS["humming"]:
            beside[kind].append((rows, ratio))
    for one in of:
        M, N, K = (int(one[name]) for name in "MNK")
        weight, _, activations = str(one["kind"]).partition(" by ")
        moved = N * K * BITS[weight] / 8 + M * K * (1 if activations in ("int8", "e4m3") else 2) + 2 * M * N
        operations = 2.0 * M * N * K
        reached[str(one["kind"])].append((operations / moved, operations / float(one["ours"]) / 1e6))
    chart(
        FIGURES / "front_door.svg", "Speed beside the peer's", "rows", "peer's time over ours",
        dict(sorted(beside.items())), lines=False, log_x=True, log_y=True,
    )  # fmt: skip
    device = device_of("sm_90a", name="H200")
    assert device is not None
    memory = device.rates.bytes / 1e12
    least = min(x for of_kind in reached.values() for x, _ in of_kind)
    roofs = {f"memory, {memory:.1f} TB/s": [(least, memory * least), (1979 / memory, 1979.0)]}
    most = max(x for of_kind in reached.values() for x, _ in of_kind)
    for name, top in (("16 bits, 989 TFLOP/s", 989.0), ("8 bits, 1979", 1979.0)):
        roofs[name] = [(top / memory, top), (most, top)]
    chart(
        FIGURES / "roofline.svg", "What is reached of the H200's data sheet", "operations a byte", "TFLOP/s",
        dict(sorted(reached.items())) | roofs, lines=set(roofs), log_x=True, log_y=True,
    )  # fmt: skip


def page(of: list[Line]) -> str:
    """The page with its made part anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + "\n" + table(of) + "\n" + shortfalls(of) + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(lines()), encoding="utf-8")
    charts(lines())
