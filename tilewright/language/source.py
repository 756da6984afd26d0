"""Where the author's code is: source text of functions and what it tells of their style, spans of statements and of
expressions.

A statement's span comes from the line that the author's frame is executing, looked up in a table that is made
when the function's source is parsed; so it is the same on every Python version, inside macros and helpers too.
Errors point closer, at the expression, where the interpreter records columns (Python 3.11 and later).
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import TypeAlias

from tilewright.errors import Span
from tilewright.language.mistakes import SourceChanged, SourceUnavailable

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.join("site-packages", "torch", "")
_STANDARD = os.path.dirname(os.__file__) + os.sep
_KERNELS = os.path.join(_PACKAGE, "kernels") + os.sep

Place: TypeAlias = tuple[int, int, "int | None"]
Places: TypeAlias = dict[int, tuple[Place, ...]]
Placed: TypeAlias = "ast.expr | ast.stmt"
"""Syntax that has a place."""

_STATEMENTS: dict[str, Places] = {}
"""The places of statements that are executed, by file: `FunctionSource.statements`."""


@dataclass(frozen=True)
class FunctionSource:
    """A function's syntax tree, with lines and columns as in its file."""

    name: str
    file: str
    text: str
    first_line: int

    @functools.cached_property
    def tree(self) -> ast.FunctionDef:
        """The tree that all share.  Raises SourceUnavailable."""
        return self.parse()

    def parse(self) -> ast.FunctionDef:
        """A tree of one's own, to be changed.  Raises SourceUnavailable where the text is no function's."""
        try:
            return _parse(self.text, self.first_line)
        except (SyntaxError, AttributeError):
            raise SourceUnavailable(self.name) from None

    def statements(self) -> Places:
        """For each line the innermost statements on it, from left to right: the first line of each and its columns
        there (in bytes)."""
        table: Places = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and node.end_lineno is not None:
                place = (node.lineno, node.col_offset, _header_end(node))
                for line in range(node.lineno, node.end_lineno + 1):
                    beside = [other for other in table.get(line, ()) if other[0] == line == node.lineno]
                    table[line] = (*beside, place)
        return {line: tuple(sorted(places, key=lambda place: place[:2])) for line, places in table.items()}

    def span(self, node: Placed) -> Span:
        """The part of `node` that is on its first line."""
        line, column = node.lineno, node.col_offset
        end = node.end_col_offset if node.end_lineno == line else None
        return _span(self.file, line, column, end)


_SOURCES: dict[int, tuple[CodeType, FunctionSource]] = {}
_POSITIONS: dict[int, tuple[CodeType, Sequence[tuple[int | None, int | None, int | None, int | None]]]] = {}
"""By identity of the code: two codes compare equal though their files or their annotations differ."""


def source_of(code: CodeType) -> FunctionSource:
    """The source of the function whose code this is.

    Raises
    ------
    SourceUnavailable : the function was not read from a file (or a notebook's cell).
    """
    if id(code) not in _SOURCES:
        _SOURCES[id(code)] = (code, _read(code))
    return _SOURCES[id(code)][1]


def _read(code: CodeType) -> FunctionSource:
    linecache.checkcache(code.co_filename)
    first = code.co_firstlineno
    below = linecache.getlines(code.co_filename)[first - 1 :] or _typed(code)
    try:
        # `inspect` looks for the module first, among all that are loaded; that helps with archives only.
        lines, first = (inspect.getblock(below), first) if below else inspect.getsourcelines(code)
    except (OSError, TypeError, SyntaxError):
        raise SourceUnavailable(code.co_name) from None
    _check_unchanged(code, lines, first)
    return FunctionSource(code.co_name, code.co_filename, "".join(lines), first)


_TYPED = 2000
"""Lines of an interactive session that are looked at, from the last one back."""


def _typed(code: CodeType) -> list[str]:
    """What follows the first line of a function in what was typed or pasted into an interactive Python; nothing
    elsewhere.

    Python keeps no text of it before 3.13. A console that is itself written in Python (`code.InteractiveConsole`, IDLE)
    has the text of the statement that it executes right now, and the line editor has what was typed. A function there
    is the one that is meant where it compiles to the same code.
    """
    if code.co_filename not in ("<stdin>", "<console>"):
        return []
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        text = frame.f_locals.get("source") if frame.f_globals.get("__name__") == "code" else None
        if isinstance(text, str):
            lines = f"{text}\n".splitlines(keepends=True)[code.co_firstlineno - 1 :]
            if _compiles_to(code, lines):
                return lines
    editor = sys.modules.get("readline")
    if editor is None:
        return []
    count = editor.get_current_history_length()
    lines = [f"{editor.get_history_item(place) or ''}\n" for place in range(max(1, count - _TYPED), count + 1)]
    for place in reversed(range(len(lines))):
        found = _DEFINITION.match(lines[place])
        if found is None or found[1] != code.co_name:
            continue
        first = place
        while first and lines[first - 1].lstrip().startswith("@"):
            first -= 1
        if _compiles_to(code, lines[first:]):
            return lines[first:]
    return []


def _compiles_to(code: CodeType, lines: list[str]) -> bool:
    """Whether the first statement of some lines makes a function of the same code."""
    try:
        text = textwrap.dedent("".join(inspect.getblock(lines)))
        made = [compile(text, code.co_filename, "exec")]
    except (SyntaxError, IndentationError):
        return False
    while made:
        one = made.pop()
        if one.co_name == code.co_name and (one.co_code, one.co_names) == (code.co_code, code.co_names):
            return True
        made += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
    return False


def _check_unchanged(code: CodeType, lines: Sequence[str], first: int) -> None:
    """Text is read when a function is traced, which may be long after its file was imported, and changed.

    Raises
    ------
    SourceChanged : what stands there now is another function.
    """
    defined = next((found[1] for line in lines if (found := _DEFINITION.match(line))), code.co_name)
    last = max((line for *_, line in code.co_lines() if line is not None), default=first)
    if defined != code.co_name or last >= first + len(lines):
        raise SourceChanged(code.co_filename, code.co_name)


_DEFINITION = re.compile(r"\s*def\s+(\w+)")


def _parse(text: str, first_line: int) -> ast.FunctionDef:
    # A nested function keeps its indentation, and so its columns, under an artificial `if`.
    indented = text[:1].isspace()
    tree = ast.parse(("if 1:\n" if indented else "") + text)
    ast.increment_lineno(tree, first_line - 1 - indented)
    found = tree.body[0]
    if indented and isinstance(found, ast.If):
        found = found.body[0]
    if not isinstance(found, ast.FunctionDef):
        raise SyntaxError("not a def statement")
    return found


def enter_statements(file: str, places: Places) -> None:
    """Make known where statements stand that are about to be executed, so that they get their spans."""
    _STATEMENTS.setdefault(file, {}).update(places)


def _header_end(node: ast.stmt) -> int | None:
    """Last column of a statement's first line; of a compound statement, of its header."""
    header: Placed = node
    if isinstance(node, (ast.If, ast.While)):
        header = node.test
    elif isinstance(node, ast.For):
        header = node.iter
    elif isinstance(node, ast.With):
        header = node.items[-1].optional_vars or node.items[-1].context_expr
    return header.end_col_offset if header.end_lineno == node.lineno else None


def parameters_span(function: FunctionType) -> Span | None:
    """The ``def`` line of a function, None where its source is not to be had."""
    try:
        source = source_of(function.__code__)
        tree = source.tree
    except SourceUnavailable:
        return None
    return _span(source.file, tree.lineno, tree.col_offset, None)


def is_ours(code: CodeType) -> bool:
    """Whether code belongs to the language itself, and what it calls, rather than to an author (of the library's
    kernels too)."""
    file = code.co_filename
    if file.startswith(_STANDARD) and "-packages" not in file:
        return True
    return file == "<string>" or _TORCH in file or (file.startswith(_PACKAGE) and not file.startswith(_KERNELS))


def statement_here() -> Span | None:
    """The author's statement that is being executed."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code):
        frame = frame.f_back
    if frame is None:
        return None
    file = frame.f_code.co_filename
    place = _statement(frame.f_code, frame.f_lasti, frame.f_lineno)
    if place is None:
        return _expression(frame.f_code, frame.f_lasti, frame.f_lineno)
    return _span(file, *place)


def _statement(code: CodeType, instruction: int, line: int) -> Place | None:
    """The statement that an instruction belongs to; where columns are not recorded, the last one of those on its
    line."""
    places = _STATEMENTS.get(code.co_filename, {}).get(line)
    if not places:
        return None
    if len(places) > 1 and (positions := _positions(code)):
        column = positions[instruction // 2][2]
        begun = [place for place in places if column is not None and place[1] <= column]
        return (begun or places)[-1]
    return places[-1]


def expression_here() -> Span | None:
    """The author's expression that is being evaluated (its statement where columns are not recorded)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code):
        frame = frame.f_back
    return None if frame is None else _expression(frame.f_code, frame.f_lasti, frame.f_lineno)


def expression_of(traceback: TracebackType | None) -> Span | None:
    """The author's expression in which an exception was raised."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_ours(code):
            found = (code, traceback.tb_lasti, traceback.tb_lineno)
        elif found is not None and code.co_name == "<module>":
            break
        traceback = traceback.tb_next
    return None if found is None else _expression(*found)


def _expression(code: CodeType, instruction: int, line: int) -> Span:
    positions = _positions(code)
    if positions:
        start, end, column, end_column = positions[instruction // 2]
        if start is not None and column is not None:
            return _span(code.co_filename, start, column, end_column if end == start else None)
    place = _statement(code, instruction, line)
    return _span(code.co_filename, *place) if place else _whole_line(code.co_filename, line)


def _positions(code: CodeType) -> Sequence[tuple[int | None, int | None, int | None, int | None]]:
    if id(code) not in _POSITIONS:
        _POSITIONS[id(code)] = (code, list(code.co_positions()) if hasattr(code, "co_positions") else ())
    return _POSITIONS[id(code)][1]


def _whole_line(file: str, line: int) -> Span:
    text = linecache.getline(file, line)
    return Span(file, line, len(text) - len(text.lstrip()))


@functools.lru_cache(maxsize=4096)
def _span(file: str, line: int, column: int, end: int | None) -> Span:
    """A span from columns in bytes, which is what Python counts."""
    text = linecache.getline(file, line)
    if not text.isascii():
        encoded = text.encode()
        column = len(encoded[:column].decode(errors="ignore"))
        end = None if end is None else len(encoded[:end].decode(errors="ignore"))
    return Span(file, line, column, end)


DIRECT_WORDS = ("Kernel", "ClusterKernel", "empty", "const", "launch_thread", "thread_binding")


@functools.lru_cache(maxsize=1024)
def body_facts(function: Callable[..., object]) -> tuple[frozenset[str], bool, bool]:
    """Parameters annotated in the body; whether it holds a T.prim_func; whether it is of the direct style: has words of
    that style, or no result, as where a macro opens the kernel."""
    tree = source_of(function.__code__).tree
    arguments = {argument.arg for argument in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)}
    annotated: set[str] = set()
    has_prim_func, is_direct, has_result = False, False, False
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            has_prim_func = has_prim_func or any(
                "prim_func" in ast.unparse(d) for d in getattr(node, "decorator_list", ())
            )
            continue
        has_result = has_result or (isinstance(node, ast.Return) and node.value is not None)
        if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Name):
            annotated.add(node.target.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_direct = is_direct or node.func.attr in DIRECT_WORDS
        pending.extend(ast.iter_child_nodes(node))
    return frozenset(annotated & arguments), has_prim_func, is_direct or not has_result


def annotated_in_body(function: Callable[..., object]) -> frozenset[str]:
    """Parameters that the function's body annotates: its tensors."""
    return body_facts(function)[0]
