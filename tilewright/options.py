"""Every switch of tilewright, with the environment variable that sets it.

``options()`` is the current set; ``with override(verify=True):`` changes it for a while, in tests for
example.  An option is read when it is needed, so a changed environment variable counts from the next use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tilewright.errors import TilewrightError


class InvalidOption(TilewrightError):
    """An option with a value that it cannot have: of the environment, or of a kernel of the library."""


@dataclass(frozen=True, slots=True)
class Options:
    """The switches.

    Attributes
    ----------
    cache_dir : TILEWRIGHT_CACHE_DIR, where compiled kernels are kept (default ``~/.cache/tilewright``).
    cache : TILEWRIGHT_CACHE, 0 keeps nothing on disk beyond the process.
    target : TILEWRIGHT_TARGET, what ``target="auto"`` means, and the machine of arrays on a device of its kind; empty
        for the best device present.
    compiler : TILEWRIGHT_CC, command of the C compiler for the cpu target and the emulator.
    num_threads : TILEWRIGHT_NUM_THREADS, threads of the cpu target; 0 for all cores, but no more than torch is told to
        use where it is loaded.
    verify : TILEWRIGHT_VERIFY, 1 verifies the whole program after every pass, not only what the pass changed.
    poison : TILEWRIGHT_POISON, 1 has kernels of the cpu target begin with ones in all bits of tiles and variables, so
        that what nobody wrote is NaN, -1 or the largest number.
    dump : TILEWRIGHT_DUMP, 1 prints the program after every pass that changed it; a name, after that pass.
    """

    cache_dir: Path
    cache: bool = True
    target: str = ""
    compiler: str = ""
    num_threads: int = 0
    verify: bool = False
    poison: bool = False
    dump: str = ""


VARIABLES = {field.name: f"TILEWRIGHT_{field.name.upper()}" for field in dataclasses.fields(Options)}
VARIABLES["compiler"] = "TILEWRIGHT_CC"
"""Environment variable of each option."""

_FLAGS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off", ""), False)}
_overrides: ContextVar[tuple[dict[str, Any], ...]] = ContextVar("tilewright_overrides", default=())
"""Of each thread its own; threads that this package starts for somebody run in a copy of his context (`in_context`)."""

P = ParamSpec("P")
R = TypeVar("R")


def options() -> Options:
    """The options in force.

    Raises
    ------
    InvalidOption : an environment variable holds something that its option cannot be.
    """
    values: dict[str, Any] = {"cache_dir": _default_cache_dir()}
    for name, variable in VARIABLES.items():
        text = os.environ.get(variable)
        if text is not None:
            values[name] = _parse(name, variable, text)
    for layer in _overrides.get():
        values.update(layer)
    return Options(**values)


def target_option() -> str:
    """The option ``target`` alone, for the path of every call."""
    for layer in reversed(_overrides.get()):
        if "target" in layer:
            return str(layer["target"])
    return os.environ.get(VARIABLES["target"], "")


def target_marker() -> object:
    """Something that differs where `target_option` does, for the path of every call.

    Reading ``os.environ`` decodes what it finds, which takes longer than the rest of that path; the table behind it
    does not.
    """
    return _ENVIRONMENT.get(_TARGET_KEY) if not _overrides.get() else target_option()


_TARGET_KEY: Any = os.environ.encodekey(VARIABLES["target"])
_ENVIRONMENT: Any = os.environ._data  # type: ignore[attr-defined]


@contextlib.contextmanager
def override(**changes: object) -> Iterator[Options]:
    """Options changed inside a ``with`` block, for the thread (or the task) that runs it; stronger than the
    environment."""
    unknown = set(changes) - set(VARIABLES)
    if unknown:
        raise InvalidOption(f"unknown option {sorted(unknown)[0]!r}", hint="known: " + ", ".join(VARIABLES))
    _overrides.set((*_overrides.get(), changes))
    try:
        yield options()
    finally:
        _overrides.set(tuple(layer for layer in _overrides.get() if layer is not changes))


def in_context(work: Callable[P, R]) -> Callable[P, R]:
    """`work` for another thread, with the options that are in force here and now."""
    layers = _overrides.get()

    @functools.wraps(work)
    def run(*arguments: P.args, **named: P.kwargs) -> R:
        before = _overrides.get()
        _overrides.set(layers)
        try:
            return work(*arguments, **named)
        finally:
            _overrides.set(before)

    return run


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "tilewright" if base else Path(os.path.expanduser("~")) / ".cache" / "tilewright"


def _parse(name: str, variable: str, text: str) -> Any:
    kind = {field.name: field.type for field in dataclasses.fields(Options)}[name]
    if kind == "Path":
        return Path(text).expanduser() if text else _default_cache_dir()
    if kind == "bool":
        if text.lower() not in _FLAGS:
            raise InvalidOption(f"{variable}={text!r} is not a switch", hint="use 1 or 0")
        return _FLAGS[text.lower()]
    if kind == "int":
        if not re.fullmatch("[0-9]{1,9}", text):
            raise InvalidOption(f"{variable}={text!r} is not a count", hint="use a number, 0 for the default")
        return int(text)
    return text
