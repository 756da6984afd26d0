"""Lowered programs on disk, so that a process that meets a known program only reads what the last one made of it.

A program's key is the whole traced function (the author's lines included), the machine, the schedule, and the state
of this package's own files.  What the passes went through is not kept: it is made again where somebody looks.
"""

from __future__ import annotations

import functools
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

from tilewright.cache import cached, digest, package_state
from tilewright.collection import no_collection
from tilewright.compiler import Program, compile_function
from tilewright.errors import TilewrightWarning
from tilewright.ir.nodes import Function
from tilewright.machine.arch import Arch
from tilewright.options import options
from tilewright.passes.context import Schedule
from tilewright.passes.manager import Trace
from tilewright.targets.base import Target

FILE = "program.pickle"


def lowered(function: Function, target: Target, arch: Arch, schedule: Schedule) -> Program:
    """What `compile_function` makes of a function, from disk where it was made before.

    Raises
    ------
    TilewrightError : the program asks for something that the machine or the language does not have.
    """
    with no_collection():
        return _lowered(function, target, arch, schedule)


def _lowered(function: Function, target: Target, arch: Arch, schedule: Schedule) -> Program:
    settings = options()
    if not settings.cache or settings.verify or settings.dump:
        return compile_function(function, target, arch, schedule)
    key = _key(function, target, arch, schedule)
    if key is None:
        return compile_function(function, target, arch, schedule)
    fresh: list[Program] = []

    def build(directory: Path) -> None:
        program = compile_function(function, target, arch, schedule)
        fresh.append(program)
        kept = (program.traced, program.final, program.source, program.diagnostics, program.choices)
        (directory / FILE).write_bytes(pickle.dumps(kept, pickle.HIGHEST_PROTOCOL))

    entry = cached(key, build)
    if fresh:
        return fresh[0]
    traced, final, source, diagnostics, choices = pickle.loads((entry / FILE).read_bytes())
    if not _signature(function) == _signature(traced) == _signature(final):
        warnings.warn(
            f"{entry / FILE} holds another program than {function.name}, for which it was asked: compiled anew. "
            "Please report this, with that file",
            TilewrightWarning,
            stacklevel=2,
        )
        return compile_function(function, target, arch, schedule)
    traces = _Traces(lambda: compile_function(function, target, arch, schedule).traces)
    return Program(traced, final, traces, source, target, arch, diagnostics, choices)


def _signature(function: Function) -> list[tuple[str, str]]:
    """Names and types of the parameters, which no pass changes."""
    return [(param.name, param.dtype.name) for param in function.params]


class _Traces(Sequence[Trace]):
    """The traces of a program that came from disk, made when they are asked for."""

    def __init__(self, make: Callable[[], Sequence[Trace]]) -> None:
        self._make = make

    @functools.cached_property
    def _made(self) -> Sequence[Trace]:
        return self._make()

    @overload
    def __getitem__(self, index: int) -> Trace: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Trace]: ...
    def __getitem__(self, index: int | slice) -> Trace | Sequence[Trace]:
        return self._made[index]

    def __len__(self) -> int:
        return len(self._made)

    def __iter__(self) -> Iterator[Trace]:
        return iter(self._made)


def _key(function: Function, target: Target, arch: Arch, schedule: Schedule) -> str | None:
    """The key of a program; None where the author put something into it that cannot be written down."""
    try:
        # A set's order differs from process to process.
        machine = (sorted(arch.features), replace(arch, features=frozenset()))
        written = pickle.dumps((function, machine, schedule), pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return None
    return digest("program", written, target.name, sys.version, package_state())
