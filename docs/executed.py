"""``python -m docs.executed``: runs the Python of pages and writes what it prints, and the figures it draws, into them.

A block of Python may be followed by ``<!-- prints -->`` and a block of text: what it prints, to the letter. With
``<!-- measures -->`` instead the numbers are those of one machine: a test compares the words, and that numbers stand
where numbers stood. Files that a page writes as ``figures/NAME.svg`` become docs/figures/NAME.svg.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"
PAGES = ("start", "quantise_a_model", "write_a_kernel", "a_gemm")
"""Pages whose blocks say what they print."""

PART = re.compile(
    r"^```python\n(?P<code>.*?)^```$|^<!-- (?P<kind>prints|measures) -->\n```text\n(?P<shown>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")


def executed(text: str, folder: Path) -> str:
    """A page with what its blocks print when they are run one after the other, in a folder."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed, number = "", 0
    parts: list[str] = []
    end = 0
    for part in PART.finditer(text):
        parts.append(text[end : part.start()])
        end = part.end()
        if part["code"] is not None:
            number += 1
            file = folder / str(number) / "kernel.py"
            file.parent.mkdir()
            file.write_text(part["code"], encoding="utf-8")
            linecache.checkcache()
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(part["code"], str(file), "exec", dont_inherit=True), names)
            printed = re.sub(rf"{re.escape(str(folder))}/\d+/", "", stream.getvalue())
            parts.append(part[0])
        else:
            shown = "\n".join(line.rstrip() for line in printed.rstrip("\n").split("\n"))
            parts.append(f"<!-- {part['kind']} -->\n```text\n{shown}\n```")
    return "".join([*parts, text[end:]])


def without_numbers(text: str) -> str:
    """A page whose measured blocks have their numbers and their spaces left out."""

    def blank(part: re.Match[str]) -> str:
        if part["kind"] != "measures":
            return part[0]
        return re.sub(r"[ \t]+", " ", NUMBER.sub(" 0", part[0]))

    return PART.sub(blank, text)


def made(name: str) -> tuple[str, dict[str, str]]:
    """A page as it should be, and its figures."""
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("figures").mkdir()
        try:
            page = executed(text, Path(folder))
            figures = {one.name: one.read_text(encoding="utf-8") for one in Path("figures").glob("*.svg")}
        finally:
            os.chdir(before)
    return page, figures


def main(names: list[str]) -> None:
    """Write the pages, and their figures."""
    for name in names or PAGES:
        page, figures = made(name)
        (ROOT / "docs" / f"{name}.md").write_text(page, encoding="utf-8")
        FIGURES.mkdir(exist_ok=True)
        for file, text in figures.items():
            (FIGURES / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
