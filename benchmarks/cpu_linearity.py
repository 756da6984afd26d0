"""Draws how the time of the quantised product on one CPU thread grows with M, N and K, on sizes off every grid.

    python benchmarks/cpu_linearity.py [docs/cpu_linearity.svg]

Processor time, best of several calls, divided by the time per row, column or element of the largest size, so that
linear growth is the diagonal.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import tilewright
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.targets.cpu.launcher import set_threads

ROWS = (1, 2, 3, 5, 8, 13, 16, 17, 24, 32, 33, 47, 64, 65, 96, 128, 129, 161, 200, 231, 256, 257, 300)
COLUMNS = (333, 777, 1111, 1999, 3001)
DEPTHS = (256, 640, 1152, 2176, 3968)
SIZE, MARGIN = 260, 46
ROUNDS = 4


def product(n: int, k: int) -> Callable[[int], float]:
    """A function of M: best seconds of int4 ``[n, k]`` in groups of 128, float32 activations."""
    rng = np.random.default_rng(0)
    kernel = quant_matmul(n, k, "uint4", 128, 8)
    packed = kernel.pack(W=tilewright.pack(rng.integers(0, 16, (n, k), np.uint8), tilewright.dtype("uint4")))
    scales = rng.random((k // 128, n), np.float32)

    def seconds(m: int) -> float:
        a, c = rng.standard_normal((m, k), np.float32), np.empty((m, n), np.float32)
        kernel(a, packed, scales, c)
        best = float("inf")
        for _ in range(6):
            started = time.thread_time()
            kernel(a, packed, scales, c)
            best = min(best, time.thread_time() - started)
        return best

    return seconds


def least(measures: Sequence[Callable[[], float]]) -> list[float]:
    """The least of several rounds of each: whoever shares the caches for a moment does not slow all rounds of one size."""
    rounds = [[measure() for measure in measures] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def panel(left: int, title: str, sizes: Sequence[int], seconds: Sequence[float]) -> str:
    """One diagram: measured points joined, over the diagonal of linear growth."""
    largest, slowest = max(sizes), max(seconds)
    bottom = MARGIN + SIZE

    def at(size: float, second: float) -> str:
        return f"{left + size / largest * SIZE:.1f},{bottom - second / slowest * SIZE:.1f}"

    points = [at(size, second) for size, second in zip(sizes, seconds, strict=True)]
    dots = "".join(f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="2.5" fill="#1f5fa8"/>' for p in points)
    start, end = at(0, 0), at(largest, slowest)
    return (
        f'<rect x="{left}" y="{MARGIN}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#999"/>'
        f'<line x1="{start.split(",")[0]}" y1="{start.split(",")[1]}" x2="{end.split(",")[0]}" y2="{end.split(",")[1]}" '
        'stroke="#bbb" stroke-dasharray="4"/>'
        f'<polyline points="{" ".join(points)}" fill="none" stroke="#1f5fa8"/>{dots}'
        f'<text x="{left}" y="{MARGIN - 10}">{title}</text>'
        f'<text x="{left}" y="{bottom + 18}">0</text>'
        f'<text x="{left + SIZE}" y="{bottom + 18}" text-anchor="end">{largest}</text>'
        f'<text x="{left + 6}" y="{MARGIN + 16}">{slowest * 1e3:.2f} ms</text>'
    )


def main() -> None:
    set_threads(1)
    by_rows = product(1111, 2176)
    by_columns, by_depths = [product(n, 2176) for n in COLUMNS], [product(1111, k) for k in DEPTHS]
    sweeps = [
        ("M, for 1111 x 2176", ROWS, least([functools.partial(by_rows, m) for m in ROWS])),
        ("N, for M = 37, K = 2176", COLUMNS, least([functools.partial(one, 37) for one in by_columns])),
        ("K, for M = 37, N = 1111", DEPTHS, least([functools.partial(one, 37) for one in by_depths])),
    ]
    drawn = [panel(MARGIN + i * (SIZE + MARGIN), *sweep) for i, sweep in enumerate(sweeps)]
    width, height = MARGIN + len(sweeps) * (SIZE + MARGIN), SIZE + 2 * MARGIN
    text = "\n".join(drawn)
    style = 'font-family="sans-serif" font-size="13"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {style}>\n{text}\n</svg>\n'
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/cpu_linearity.svg").write_text(svg)
    for title, sizes, seconds in sweeps:
        print(title, *(f"{size}:{second * 1e3:.3f}" for size, second in zip(sizes, seconds, strict=True)))


if __name__ == "__main__":
    main()
