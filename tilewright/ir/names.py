"""Names for printed programs: the author's where possible, never the same for two things in scope at once."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.ir import dtypes
from tilewright.ir.nodes import Buffer, Var

RESERVED = frozenset({*keyword.kwlist, "inf", "nan", *dtypes.ALL})
"""Words that mean something where a variable could stand."""

_VECTOR_DTYPE = re.compile(rf"({'|'.join(dtypes.ALL)})x\d+")


class Names:
    """Names of variables and buffers, scope by scope.

    A name is free again where the scope of its owner ends.  What is mentioned without being declared (in an
    invalid program) gets a name of its own for good.
    """

    def __init__(self) -> None:
        self._of: dict[Var | Buffer, str] = {}
        self._taken: set[str] = set()
        self._declared: list[list[Var | Buffer]] = [[]]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names declared inside are forgotten at the end."""
        self._declared.append([])
        yield
        for owner in self._declared.pop():
            self._taken.discard(self._of.pop(owner, ""))

    def declare(self, owner: Var | Buffer) -> str:
        """A fresh name for `owner` in the current scope; the one it has where it is in scope already."""
        if owner not in self._of:
            self._assign(owner)
            self._declared[-1].append(owner)
        return self._of[owner]

    def __call__(self, owner: Var | Buffer) -> str:
        """The name of `owner`."""
        if owner not in self._of:
            self._assign(owner)
        return self._of[owner]

    def _assign(self, owner: Var | Buffer) -> None:
        wanted = re.sub(r"\W", "_", owner.name) or "_"
        if not wanted.isidentifier():
            wanted = f"_{wanted}"
        name, count = wanted, 0
        while name in self._taken or name in RESERVED or _VECTOR_DTYPE.fullmatch(name):
            count += 1
            name = f"{wanted}_{count}"
        self._of[owner] = name
        self._taken.add(name)
