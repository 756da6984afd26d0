"""What the site shows as its gallery: the examples, the programs of tests and the library's kernels, as they are when it is built."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from docs.language_pages import code

ROOT = Path(__file__).resolve().parents[1]
PLACE = "<!-- what docs/gallery_page.py finds -->"
"""Where on docs/gallery.md it stands."""


def sentence(file: Path) -> str:
    """The first paragraph of a file's docstring, on one line."""
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return code(" ".join(said.partition("\n\n")[0].split())).replace("|", "\\|")


def table(files: Iterable[Path]) -> str:
    rows = [
        f"| [{file.stem}](../{file.relative_to(ROOT).as_posix()}) | {sentence(file)} |"
        for file in sorted(files)
        if sentence(file)
    ]
    return "\n".join(["| file | what it is |", "| --- | --- |", *rows]) + "\n"


def contents() -> str:
    """All of it, as Markdown."""
    examples = sorted((ROOT / "examples").glob("*.py"))
    parts = ["## Examples\n"]
    for file in examples:
        text = file.read_text(encoding="utf-8").strip()
        body = text[text.index('"""', 3) + 3 :].strip() if text.startswith('"""') else text
        parts.append(f"### {file.stem.replace('_', ' ')}\n\n{sentence(file)}\n\n```python\n{body}\n```\n")
    parts.append("## Whole programs\n\n" + table((ROOT / "tests" / "programs").glob("*.py")))
    kernels = (
        file
        for file in (ROOT / "tilewright" / "kernels").glob("*.py")
        if "T.Kernel" in file.read_text(encoding="utf-8")
    )
    parts.append("## The library's kernels\n\n" + table(kernels))
    return "\n".join(parts)
