"""Rewritten functions on disk, as Python text with its places: rewriting a long kernel takes longer than the rest of a
warm start."""

from __future__ import annotations

import ast
import itertools
import json
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from tilewright.cache import cached, digest, package_state
from tilewright.language.source import FunctionSource, Places
from tilewright.options import options
from tilewright.texts import read_text, write_text

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
