"""Which defects of the compiler a program could meet at all: those whose lines its compilation goes through.

Most programs pass by most of a compiler's remedies.  A defect that takes some lines away, or adds some, changes nothing where none of these
lines runs and none beside them; so one compilation of a program with the remedies says which defects are worth another one.  The statements
that a defect touches are compiled with a call before each, which notes the defect: all other code is as it was, and as fast.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

Lines = dict[str, dict[int, set[str]]]
"""By file and line, the defects that change the statement that begins there."""

NOTE = "__tilewright_reached__"
"""What the calls before touched statements call."""


def touched(defects: Mapping[str, str], tree: Path) -> tuple[Lines, set[str]]:
    """The statements that each defect touches, and those defects of which they do not tell: of headers, and of what modules hold."""
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
                if not outside.isdisjoint(changed):
                    unknown.add(defect)
                for line in {known[line] for line in changed if line in known}:
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
    """Of lines in functions, the line at which the statement that they are of begins; and lines that run when the module is loaded, heads
    of definitions and imports apart."""
    known: dict[int, int] = {}
    outside: set[int] = set()

    def visit(node: ast.AST, inside: bool) -> None:
        within = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt) and not is_text(child):
                for line in range(child.lineno, (child.end_lineno or child.lineno) + 1):
                    if within:
                        known[line] = child.lineno
                    elif not isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
                        outside.add(line)
            visit(child, within)

    visit(ast.parse(text), False)
    return known, outside - set(known)


def is_text(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class Marked(ast.NodeTransformer):
    """A module with a call before each statement of a function that begins at one of some lines."""

    def __init__(self, lines: Mapping[int, Iterable[str]]) -> None:
        self.lines, self.inside = lines, False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before, self.inside = self.inside, True
        self.generic_visit(node)
        self.inside = before
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody") if self.inside else ():
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, [made for one in statements for made in (*self._notes(one), one)])
        return node

    def _notes(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        if statement.lineno in self.lines and not is_text(statement):
            for defect in sorted(self.lines[statement.lineno]):
                call = ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(defect)], [])
                yield ast.fix_missing_locations(ast.copy_location(ast.Expr(call), statement))


def note_in(found: set[str]) -> None:
    """From here on calls before touched statements add to this set."""
    setattr(builtins, NOTE, found.add)
