"""Functions written for the arguments at hand: the one place where a text of ours becomes a function of Python's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any


def made_function(
    name: str, parameters: Sequence[str], lines: Sequence[str], names: dict[str, object]
) -> Callable[..., Any]:  # as its text says
    """A function with a body of these lines, which mention `names`.

    Examples
    --------
    >>> made_function("scaled", ["x"], ["return factor * x"], {"factor": 3})(5)
    15
    """
    body = "\n".join(f"    {line}" for line in lines)
    exec(_compiled(f"def {name}({', '.join(parameters)}):\n{body}\n", name), names)
    made: Any = names.pop(name)
    return made  # in its own globals it would be held by itself, with all that it mentions, until cycles are looked for


@functools.lru_cache(maxsize=4096)
def _compiled(text: str, name: str) -> CodeType:
    return compile(text, f"<{name}>", "exec")
