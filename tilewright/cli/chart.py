"""Charts of a few lines or points, written as SVG without any other library."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from tilewright.texts import write_text

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 74, 170, 44, 54
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#57606a", "#0b7285", "#24292f")

Points = Sequence[tuple[float, float]]


class _Axis:
    """Numbers to places along one side of the picture, evenly or by their logarithms."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool) -> None:
        self.start, self.end, self.log = start, end, log
        low, high = min(values), max(values)
        if log:
            self.low, self.high = math.log10(low), math.log10(high)
        else:
            self.low, self.high = min(low, 0.0) if low < 0.5 * high else low - 0.1 * (high - low), high
        margin = 0.04 * (self.high - self.low) or 0.5
        self.low, self.high = self.low - margin * bool(self.low), self.high + margin

    def place(self, value: float) -> float:
        number = math.log10(value) if self.log else value
        return self.start + (self.end - self.start) * (number - self.low) / (self.high - self.low)

    def ticks(self) -> Iterator[float]:
        """Round numbers in the range, about five."""
        if self.log:
            decades = self.high - self.low
            steps = (1, 2, 5) if decades < 2.5 else (1,)
            for exponent in range(math.floor(self.low), math.ceil(self.high) + 1):
                yield from (
                    step * 10.0**exponent for step in steps if self.low <= math.log10(step) + exponent <= self.high
                )
            return
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * one for one in (1, 2, 5, 10) if unit * one >= rough)
        number = math.ceil(self.low / step) * step
        while number <= self.high:
            yield number
            number += step


def chart(
    path: str | Path,
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Points],
    *,
    log_x: bool = False,
    log_y: bool = False,
    lines: bool | Collection[str] = True,
) -> None:
    """Write a chart as SVG.

    Parameters
    ----------
    path : the file.
    title, x_label, y_label : what is shown, and the units.
    series : points by name; each gets a colour and a line in the legend.
    log_x, log_y : logarithmic axes, of positive numbers.
    lines : join the points of all series, or of those named, which then have no dots; else each stands alone.

    Examples
    --------
    >>> chart("speed.svg", "Speed", "rows", "ms", {"int4": [(1, 0.2), (16, 0.9)]}, log_x=True)   # doctest: +SKIP
    """
    points = [point for of in series.values() for point in of]
    across = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT, log_x)
    up = _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP, log_y)
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 22, title, "start", "font-size='15' font-weight='bold'"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label, "middle"),
        _text(16, middle, y_label, "middle", f"transform='rotate(-90 16 {middle:.0f})'"),
    ]  # fmt: skip
    for tick in across.ticks():
        x = across.place(tick)
        parts += [_line(x, TOP, x, HEIGHT - BOTTOM), _text(x, HEIGHT - BOTTOM + 18, f"{tick:g}", "middle")]
    for tick in up.ticks():
        y = up.place(tick)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 8, y + 4, f"{tick:g}", "end")]
    for number, (name, of) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [(across.place(x), up.place(y)) for x, y in of]
        line_alone = not isinstance(lines, bool) and name in lines
        if (lines is True or line_alone) and len(places) > 1:
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if not line_alone:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places]
        below = TOP + 10 + 20 * number
        parts.append(f'<circle cx="{WIDTH - RIGHT + 20}" cy="{below}" r="5" fill="{colour}"/>')
        parts.append(_text(WIDTH - RIGHT + 32, below + 4, name, "start"))
    write_text(Path(path), "\n".join([*parts, "</svg>\n"]))


def _text(x: float, y: float, said: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#24292f" {more}>{escape(said)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#d0d7de"/>'
