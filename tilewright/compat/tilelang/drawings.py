"""``tilelang.tools.plot_layout``: which thread and register has an element, or where it lies in memory."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.layout.digits import MEMORY, REGISTER, THREAD
from tilewright.specialization import InvalidUse
from tilewright.texts import write_text

CELL = 44
"""Points of a side of an element."""


def _cells(layout: Any) -> tuple[np.ndarray, np.ndarray]:
    """For each element, row by row, what is written in it, and the number that its colour stands for."""
    inner = getattr(layout, "layout", layout)
    shape = inner.shape if inner.rank > 1 else (1, *inner.shape)
    if MEMORY in inner.places or THREAD not in inner.places:
        places = inner.table(MEMORY).reshape(-1)
        texts, shown = np.array([str(one) for one in places], object), places
    else:
        shown, registers = inner.table(THREAD).reshape(-1), inner.table(REGISTER).reshape(-1)
        copies = "+" if inner.replicas else ""
        texts = np.array([f"T{one}{copies}\nL{local}" for one, local in zip(shown, registers, strict=True)], object)
    rows = int(np.prod(shape[:-1]))
    return texts.reshape(rows, shape[-1]), shown.reshape(rows, shape[-1])


def _colour(number: int, of: int) -> str:
    red, green, blue = colorsys.hls_to_rgb(number / max(1, of), 0.82, 0.6)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _svg(texts: np.ndarray, shown: np.ndarray, name: str) -> str:
    rows, columns = texts.shape
    of = int(shown.max()) + 1
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{columns * CELL}" height="{rows * CELL + 20}"'
        ' font-family="sans-serif" font-size="11" text-anchor="middle">',
        f'<text x="{columns * CELL / 2}" y="14">{escape(name)}</text>',
    ]
    for (row, column), text in np.ndenumerate(texts):
        x, y = column * CELL, row * CELL + 20
        fill = _colour(int(shown[row, column]), of)
        lines.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="#444"/>')
        for line, part in enumerate(text.split("\n")):
            lines.append(f'<text x="{x + CELL / 2}" y="{y + 18 + 14 * line}">{part}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _drawn(texts: np.ndarray, shown: np.ndarray, path: Path) -> None:
    """The same by matplotlib, which writes other formats."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidUse(
            f"a drawing in {path.suffix[1:]} needs matplotlib, which is not here", hint="pass formats='svg'"
        ) from None
    rows, columns = texts.shape
    figure = Figure(figsize=(columns * 0.6, rows * 0.6))
    axes = figure.add_subplot()
    axes.imshow(shown % 20, cmap="tab20", aspect="auto")
    for (row, column), text in np.ndenumerate(texts):
        axes.text(column, row, text, ha="center", va="center", fontsize=7)
    axes.set_axis_off()
    figure.savefig(path)


def plot_layout(
    layout: object,
    save_directory: Any = "./tmp",
    name: str = "layout",
    colormap: object = None,
    verbose: bool = False,
    formats: str | Sequence[str] = "pdf",
    view: str = "input",
    grid_shape: object = None,
) -> None:
    """Draw a `T.Layout` or `T.Fragment`, one square an element.

    Parameters
    ----------
    save_directory, name : of the file.
    colormap, grid_shape : accepted for TileLang's sake.
    verbose : whether to print which thread has what.
    formats : ``"svg"``, or with matplotlib ``"pdf"``, ``"png"``, or several of them; ``"all"`` for those three.  Where
        matplotlib is not installed and nothing was asked for, an SVG is written.
    view : ``"input"``: squares are elements.
    """
    if view != "input":
        raise InvalidUse(f"view={view!r} of plot_layout", hint="write view='input': squares are elements")
    asked = formats.replace(",", " ").split() if isinstance(formats, str) else list(formats)
    wanted = ["svg", "pdf", "png"] if asked == ["all"] else asked
    if unknown := set(wanted) - {"svg", "pdf", "png", "txt"}:
        raise InvalidUse(f"plot_layout writes no {sorted(unknown)[0]!r}", hint="'svg', 'pdf', 'png' or 'txt'")
    texts, shown = _cells(layout)
    table = "\n".join(" ".join(f"{one.replace(chr(10), ':'):>8}" for one in row) for row in texts)
    if verbose:
        print(table)
    folder = Path(save_directory)
    folder.mkdir(parents=True, exist_ok=True)
    for one in wanted:
        path = folder / f"{name}.{one}"
        if one == "svg":
            write_text(path, _svg(texts, shown, name))
        elif one == "txt":
            write_text(path, table + "\n")
        else:
            _drawn_or_svg(texts, shown, path, name, must=formats != "pdf")


def _drawn_or_svg(texts: np.ndarray, shown: np.ndarray, path: Path, name: str, must: bool) -> None:
    try:
        _drawn(texts, shown, path)
    except InvalidUse:
        if must:
            raise
        write_text(path.with_suffix(".svg"), _svg(texts, shown, name))
