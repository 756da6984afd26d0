"""Headers that GNU's compiler has read once: most of a small kernel's compilation is the header that all texts begin
with.

The compiler takes ``NAME.gch`` for ``NAME`` where it was made with the same flags, and makes the same object of it;
other compilers do not look for such files. One is made with the second text of a process, as most processes that
compile two will compile more, and is kept in the cache: whoever compiles a single kernel on a new machine does not wait
for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewright import processes
from tilewright.cache import cached, digest, kept

_asked: set[str] = set()
_found: dict[str, Path] = {}


def precompiled(command: Sequence[str], version: str, header: Path, language: str, state: str) -> list[str]:
    """Flags by which a compiler finds a header precompiled, where that is worth it; they go before all other folders of
    headers.

    Parameters
    ----------
    command : the compiler with all flags that its result depends on, folders of headers among them.
    version : what the compiler says of itself.
    language : ``"c"`` or ``"c++"``.
    state : whatever tells the contents of the header, and of those that it includes, from others.
    """
    if "clang" in version:
        return []
    key = digest("precompiled header", *command, version, str(header), state)
    if key not in _found or not _found[key].is_dir():
        place = kept(key)
        if place is None and key in _asked:
            place = cached(key, lambda directory: _make(command, header, language, directory))
        _asked.add(key)
        if place is None:
            return []
        _found[key] = place
    return [f"-I{_found[key]}"]


def _make(command: Sequence[str], header: Path, language: str, directory: Path) -> None:
    """Where the compiler refuses, the entry stays empty: the text that includes the header gets to know why."""
    made = directory / f"{header.name}.gch"
    processes.run([*command, "-x", f"{language}-header", str(header), "-o", str(made)], "compiling headers, once")
