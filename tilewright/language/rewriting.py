"""Functions of the author in the form in which they are traced: rewritten once, kept on disk as Python text with its
places (rewriting a long kernel takes longer than the rest of a warm start), compiled."""

from __future__ import annotations

import ast
import itertools
import json
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any, TypeAlias

from tilewright.cache import cached, digest, package_state
from tilewright.language.control_flow import SCOPE, Rewrite, assigned, text_of
from tilewright.language.scope import Scope
from tilewright.language.source import FunctionSource, Places, enter_statements, source_of
from tilewright.options import options
from tilewright.texts import read_text, write_text

OPEN_SCOPE = "__open_scope__"
BODY = "__body__"


_REWRITTEN: dict[int, tuple[CodeType, CodeType]] = {}


def rewritten(function: FunctionType, kind: str) -> FunctionType:
    """`function` rewritten: same closure, globals and defaults; running it records its statements.

    Parameters
    ----------
    kind : ``function`` (a kernel) or ``macro``.

    Raises
    ------
    SourceUnavailable, UnsupportedStatement
    """
    code = function.__code__
    if id(code) not in _REWRITTEN:
        source = source_of(code)
        tree, places = kept(source, code.co_freevars, lambda: (_rewritten_tree(source, code), source.statements()))
        enter_statements(source.file, places)
        _REWRITTEN[id(code)] = (code, _compile(tree, source.file).replace(co_name=code.co_name))
    new = _REWRITTEN[id(code)][1]

    def open_scope(values: dict[str, object]) -> Scope:
        return Scope(kind, values)

    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    cells[OPEN_SCOPE] = CellType(open_scope)
    closure = tuple(cells[name] for name in new.co_freevars)
    made = FunctionType(new, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _rewritten_tree(source: FunctionSource, original: CodeType) -> ast.Module:
    """The rewritten function, in one whose parameters are the free variables of the original and the scope's maker."""
    tree = source.parse()
    parameters = [argument.arg for argument in _arguments_of(tree)]
    body = Rewrite(source, frozenset(parameters)).block(tree.body)
    values = ast.Dict([text_of(name) for name in parameters], [ast.Name(name, ast.Load()) for name in parameters])
    opened = ast.Call(ast.Name(OPEN_SCOPE, ast.Load()), [values], [])
    tree.body = [assigned(SCOPE, opened, tree.body[0]), *body]
    tree.decorator_list, tree.returns = [], None
    tree.name = BODY  # its own name means in it what it means around it: a function that calls itself
    # Annotations and defaults were evaluated when the author's function was defined.
    for argument in _arguments_of(tree):
        argument.annotation = None
    tree.args.defaults, tree.args.kw_defaults = [], [None] * len(tree.args.kwonlyargs)
    enclosing = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(name) for name in (OPEN_SCOPE, *original.co_freevars)],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    factory = ast.parse("def __factory__(): pass").body[0]
    assert isinstance(factory, ast.FunctionDef)
    factory.args, factory.body = enclosing, [tree]
    return ast.fix_missing_locations(ast.Module([factory], []))


def _compile(module: ast.Module, file: str) -> CodeType:
    """Code of the function in the middle of `_rewritten_tree`."""
    return _inner(_inner(compile(module, file, "exec", dont_inherit=True)))


def _inner(code: CodeType) -> CodeType:
    """The first function that a code defines."""
    return next(constant for constant in code.co_consts if isinstance(constant, CodeType))


def _arguments_of(tree: ast.FunctionDef) -> list[ast.arg]:
    """All parameters of a function, in order."""
    given = tree.args
    rest = (argument for argument in (given.vararg, given.kwarg) if argument)
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *rest]


FILE = "rewritten.json"

Rewritten: TypeAlias = tuple[ast.Module, Places]


def kept(source: FunctionSource, freevars: tuple[str, ...], rewrite: Callable[[], Rewritten]) -> Rewritten:
    """What `rewrite` makes of a function, from disk where it was made before.

    The rewriting sees nothing but the function's text, its place and its free variables, so they are the key, beside
    the versions of Python and of this package.
    """
    settings = options()
    if not settings.cache or settings.verify:
        return rewrite()
    place = (source.file, source.first_line, freevars)
    key = digest("rewritten", source.text, repr(place), sys.version, package_state())
    fresh: list[Rewritten] = []

    def build(directory: Path) -> None:
        made = rewrite()
        fresh.append(made)
        write_text(directory / FILE, _written(*made))

    entry = cached(key, build)
    if fresh:
        return fresh[-1]
    return _read(read_text(entry / FILE)) or rewrite()


def _written(tree: ast.Module, places: Places) -> str:
    """A tree as its text, and where the author's text has each of its nodes; ``null`` for one that Python's text does
    not give back."""
    text, nodes = ast.unparse(tree), list(ast.walk(tree))
    try:
        again = ast.walk(ast.parse(text))
    except SyntaxError:
        return "null"
    if [type(node) for node in nodes] != [type(node) for node in again]:
        return "null"
    found = [number for node in nodes if "lineno" in node._attributes for number in _place(node)]
    return json.dumps([text, found, list(places.items())], separators=(",", ":"))


def _read(text: str) -> Rewritten | None:
    kept = json.loads(text)
    if kept is None:
        return None
    code, found, places = kept
    tree = ast.parse(code)
    numbers = iter(found)
    node: Any
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            node.lineno, node.col_offset, node.end_lineno, node.end_col_offset = itertools.islice(numbers, 4)
    return tree, {line: tuple((first, begin, end) for first, begin, end in there) for line, there in places}


_place = operator.attrgetter("lineno", "col_offset", "end_lineno", "end_col_offset")
