"""Rewritten code on disk: reading and rewriting a long kernel takes longer than everything else of a start with a warm cache."""

from __future__ import annotations

import marshal
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import TypeAlias

from tilewright.cache import CacheUnavailable, cached, digest, package_state
from tilewright.language.source import FunctionSource, Places
from tilewright.options import options

FILE = "code.marshal"

Rewritten: TypeAlias = tuple[CodeType, Places]


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

    def build(directory: Path) -> None:
        (directory / FILE).write_bytes(marshal.dumps(rewrite()))

    try:
        # Read back at once too: which strings are one object shows in the keys of what is traced.
        return marshal.loads((cached(key, build) / FILE).read_bytes())
    except CacheUnavailable:  # tracing needs no disk; compiling will say so
        return rewrite()
