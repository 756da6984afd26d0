"""What goes to the terminal: colours where it has them, highlighted programs, tables."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from tilewright.errors import TilewrightError
from tilewright.ir import dtypes, nodes

STYLES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36",
}  # fmt: skip

_KEYWORDS = (
    "def|with|for|while|in|if|else|break|continue|return|pass|assert|and|or|not|True|False|None|inf|nan|kernel|"
    "range|unroll|vectorize|parallel|pipelined|scope|view|tensor|shared|fragment|local|scalar|register|barrier"
)
_C_KEYWORDS = (
    "static|inline|const|void|int|long|unsigned|char|float|double|bool|struct|typedef|for|while|if|else|return|"
    "break|continue|switch|case|sizeof|restrict|volatile|extern|__global__|__shared__|__device__|__restrict__|"
    "u?int(?:8|16|32|64)_t|size_t|true|false"
)


def _rules(comment: str, keywords: str, types: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<dim>{comment})"
        r'|(?P<green>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
        rf"|\b(?P<blue>{keywords})\b"
        rf"|\b(?P<cyan>{types})\b"
        r"|(?P<magenta>\b(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)[fFuUlL]*\b)"
        r"|(?P<yellow>(?:^|(?<=\n))\s*(?:@\w+|\#\s*\w+))"
    )


_PROGRAM = _rules(r"#[^\n]*", _KEYWORDS, rf"(?:{'|'.join(dtypes.ALL)})(?:x\d+)?")
_C = _rules(r"//[^\n]*|/\*(?:.|\n)*?\*/", _C_KEYWORDS, r"v\w+_t|__m\d+\w*")


class BadCommand(TilewrightError):
    """A command line that names something that is not there."""


class Terminal:
    """A stream with or without colours.

    Parameters
    ----------
    stream : where to write; standard output by default.
    color : True or False to insist; None for colours where the stream is a terminal that wants them
        (the environment's ``NO_COLOR`` and ``TERM=dumb`` say no).
    """

    def __init__(self, stream: TextIO | None = None, color: bool | None = None) -> None:
        self.stream = stream or sys.stdout
        self.is_terminal = self.stream.isatty()
        wanted = self.is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self.color = wanted if color is None else color

    def write(self, text: str = "") -> None:
        """A line; letters that the stream's encoding lacks are question marks."""
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), file=self.stream)

    def paint(self, text: str, *styles: str) -> str:
        """`text` in the styles named in `STYLES`."""
        if not self.color or not text:
            return text
        return f"\033[{';'.join(STYLES[style] for style in styles)}m{text}\033[0m"

    def program(self, text: str) -> str:
        """A printed program, highlighted; tile operators stand out."""
        if not self.color:
            return text
        text = _PROGRAM.sub(self._paint_match, text)
        operators = re.compile(rf"^(\s*)({'|'.join(nodes.TILE_OPERATORS) or '(?!)'})(?=\()", re.MULTILINE)
        return operators.sub(lambda match: match[1] + self.paint(match[2], "bold", "yellow"), text)

    def c_source(self, text: str) -> str:
        """C-like text, highlighted."""
        return _C.sub(self._paint_match, text) if self.color else text

    def difference(self, lines: Sequence[str]) -> str:
        """Lines of a unified difference, added ones green, removed ones red."""
        styles = {"+": ("green",), "-": ("red",), "@": ("cyan",)}
        return "\n".join(self.paint(line, *styles.get(line[:1], ())) if line[:1] in styles else line for line in lines)

    def _paint_match(self, match: re.Match[str]) -> str:
        return self.paint(match[0], match.lastgroup or "dim")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], best: str = "", within: str = "") -> None:
        """Columns wide enough for their texts, numbers to the right. `best` and `within` name columns: among
        neighbouring rows with the same value of `within` the one with the least number in `best` stands out, and an
        empty line follows."""
        widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
        right = [all(_NUMBER.match(row[column]) for row in rows) for column in range(len(header))]

        def line(cells: Sequence[str]) -> str:
            padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
            return "  ".join(padded).rstrip()

        self.write(self.paint(line(header), "bold"))
        for number, group in enumerate(_groups(header, rows, within)):
            if number:
                self.write()
            least = min((float(row[header.index(best)]) for row in group), default=0.0) if best else None
            for row in group:
                stands_out = best and float(row[header.index(best)]) == least
                self.write(self.paint(line(row), "green") if stands_out else line(row))


_NUMBER = re.compile(r"[-+]?[\d.]|-?$")


def _groups(header: Sequence[str], rows: Sequence[Sequence[str]], within: str) -> list[list[Sequence[str]]]:
    """Rows in their order, cut where the column `within` changes; one group without such a column."""
    if not within:
        return [list(rows)]
    column = header.index(within)
    return [list(group) for _, group in itertools.groupby(rows, key=lambda row: row[column])]
