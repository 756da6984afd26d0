"""Which defects of the compiler a program could meet at all: those whose lines its compilation goes through.

Most programs pass by most of a compiler's remedies.  A defect that takes some lines away, or adds some, changes nothing where none of these
lines runs and none beside them; so one compilation of a program with the remedies says which defects are worth another one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Lines = dict[str, dict[int, set[str]]]
"""By file and line, the defects that change something there."""


def touched(defects: Mapping[str, str], tree: Path) -> tuple[Lines, set[str]]:
    """The lines that each defect touches, and those defects of which lines do not tell: of headers, and of what modules hold."""
    lines: Lines = {}
    unknown: set[str] = set()
    for defect, patch in defects.items():
        for part in patch.split("diff --git ")[1:]:
            name = re.findall(r"^\+\+\+ b/(.*)$", part, re.MULTILINE)[0]
            if not name.endswith(".py"):
                unknown.add(defect)
                continue
            text = (tree / name).read_text()
            known, outside = _statements(text)
            for changed in _changed(part, text):
                around = [line for line in changed if line in known]
                if not outside.isdisjoint(changed):
                    unknown.add(defect)
                for line in (*around, *(known[line] for line in around)):
                    lines.setdefault(str(tree / name), {}).setdefault(line, set()).add(defect)
    return lines, unknown


def _changed(part: str, text: str) -> Iterator[list[int]]:
    """The lines of a file that a patch takes away, each alone, and those around what it only adds."""
    for hunk in re.split(r"^@@.*@@.*\n", part, flags=re.MULTILINE)[1:]:
        lines = [line for line in hunk.splitlines(keepends=True) if line[0] in " -+"]
        old = [line for line in lines if line[0] != "+"]
        at = text[: text.index("".join(line[1:] for line in old))].count("\n") + 1
        before = " "
        for number, line in enumerate(lines):
            behind = next((one[0] for one in lines[number:] if one[0] != "+"), " ")
            if line[0] == "-":
                yield [at]
            elif line[0] == "+" and before != "-" != behind:
                yield [at - 1, at]
            at += line[0] != "+"
            before = before if line[0] == "+" else line[0]


def _statements(text: str) -> tuple[dict[int, int], set[int]]:
    """Of lines in functions, the line at which what they are of begins; and lines that run when the module is loaded, heads of
    definitions and imports apart."""
    known: dict[int, int] = {}
    outside: set[int] = set()

    def visit(node: ast.AST, inside: bool) -> None:
        within = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt) and not (
                isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            ):
                for line in range(child.lineno, (child.end_lineno or child.lineno) + 1):
                    if within:
                        known[line] = child.lineno
                    elif not isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
                        outside.add(line)
            visit(child, within)

    visit(ast.parse(text), False)
    return known, outside - set(known)


@contextmanager
def watched(lines: Lines) -> Iterator[set[str]]:
    """A set into which come the defects whose lines run."""
    found: set[str] = set()
    of: dict[CodeType, Callable[..., Any] | None] = {}

    def tracer(code: CodeType) -> Callable[..., Any] | None:
        mine = lines.get(code.co_filename, {})
        own = {line for _, _, line in code.co_lines() if line}
        mine = {line: defects for line, defects in mine.items() if line in own}
        if not mine:
            return None

        def local(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "line" and frame.f_lineno in mine:
                found.update(mine[frame.f_lineno])
            return local

        return local

    def called(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in of:
            of[code] = tracer(code)
        return of[code]

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield found
    finally:
        sys.settrace(before)
