"""Lowered programs on disk, so that a process that meets a known program only reads what the last one made of it.

A program's key is the whole traced function (the author's lines included), the machine, the schedule, and the state
of this package's own files.  What the passes went through is not kept: it is made again where somebody looks.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import overload

from tilewright.cache import cached, digest, package_state
from tilewright.collection import no_collection
from tilewright.compiler import Program, compile_function
from tilewright.ir.nodes import Function
from tilewright.ir.records import Table, Unreadable, Unwritable, read
from tilewright.machine.arch import Arch
from tilewright.options import options
from tilewright.passes.context import Schedule
from tilewright.passes.manager import Trace
from tilewright.targets.base import Target
from tilewright.texts import read_text, write_text
from tilewright.tracebacks import without_our_frames

FILE = "program.json"


@without_our_frames
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
    if not settings.cache or settings.verify or settings.dump or not _is_of_package(target):
        return compile_function(function, target, arch, schedule)
    table = Table()
    try:
        text = table.text(table.add(function))
        key = digest("program", text, _machine(arch, schedule), target.name, sys.version, package_state())
    except (Unwritable, RecursionError):  # the author put something into it that has no form on disk
        return compile_function(function, target, arch, schedule)
    # What passes made mentions the function's own nodes, by their numbers in its table.
    given, fresh = len(table.values), list[Program]()

    def build(directory: Path) -> None:
        program = compile_function(function, target, arch, schedule)
        fresh.append(program)
        with contextlib.suppress(Unwritable, RecursionError):
            made = table.add((program.final, program.source, program.diagnostics, program.choices))
            write_text(directory / FILE, table.text(made, given))

    entry = cached(key, build)
    if fresh:
        return fresh[-1]
    try:
        final, source, diagnostics, choices = read(read_text(entry / FILE), table.values)
    except (OSError, Unreadable):  # no form on disk, or gone since it was looked at
        return compile_function(function, target, arch, schedule)
    traces = _Traces(lambda: compile_function(function, target, arch, schedule).traces)
    return Program(function, final, traces, source, target, arch, diagnostics, choices)


def _is_of_package(target: Target) -> bool:
    """Whether the state of this package's files tells what a target makes: nobody knows those of others' targets."""
    package = f"{__name__.split('.')[0]}."
    return all(one.__module__.startswith(package) for one in (target.emit, *target.overrides.values()))


@functools.lru_cache(maxsize=64)
def _machine(arch: Arch, schedule: Schedule) -> str:
    """What a machine and a schedule are, as text."""
    table = Table()
    return table.text(table.add((arch, schedule)))


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
