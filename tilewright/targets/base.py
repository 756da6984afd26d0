"""`Target`: the manifest that a machine family publishes, small, frozen and checked at import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError, near
from tilewright.ir.nodes import Function, Statement
from tilewright.machine.arch import Arch
from tilewright.passes.context import Override
from tilewright.targets.binary import DeviceBinary
from tilewright.targets.emulation import Vocabulary


class UnknownTarget(TilewrightError):
    """A target, or an architecture of it, that does not exist."""


@dataclass(frozen=True, slots=True)
class Source:
    """Emitted text and what its compiler needs to know.

    Attributes
    ----------
    text : one source file, device and host program together where the target has both.
    language : file name suffix (``"c"``, ``"cu"``).
    flags : compiler flags, part of the cache key.
    entries : names of the functions to call: one host entry, or one a kernel.
    metadata : what the launcher needs (grids, shared memory, ...), plain data that survives JSON.
    """

    text: str
    language: str
    flags: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    metadata: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """A machine family.

    Attributes
    ----------
    detect : the architecture present on this machine, or None.
    arch : the architecture for the options after the target's name (``{"arch": "sm_90a"}``).
    overrides : fast lowerings by operator.
    emit : final program to source text.
    compiler_key : identity of the compiler for an architecture (path, version): part of the cache key.
    build : compile a source into files of a directory that becomes a cache entry.
    load : a callable that takes the entry arguments (`ir.signature`): pointers as ints, scalars as values.
    binary : reads what `build` left of a kernel for a GPU; None where texts become programs of this machine.
    notes : what there is to say of machine code that `build` left, for `Kernel.explain`; None where that is nothing.
    emulation : the words of its texts for the emulator; None where these run on this machine as they are.
    """

    name: str
    detect: Callable[[], Arch | None]
    arch: Callable[[Mapping[str, str]], Arch]
    overrides: Mapping[type[Statement], Override]
    emit: Callable[[Function, Arch], Source]
    compiler_key: Callable[[Arch], str]
    build: Callable[[Source, Arch, Path], None]
    load: Callable[[Path, Source, Function, Arch], Callable[..., None]]
    binary: Callable[[Path], DeviceBinary] | None = None
    emulation: Vocabulary | None = None
    notes: Callable[[Path, Arch], list[str]] | None = None


TARGETS: dict[str, Target] = {}


def register_target(target: Target) -> Target:
    """Publish a target under its name."""
    TARGETS[target.name] = target
    return target


def find_target(name: str) -> Target:
    """The target called `name`.  Raises UnknownTarget."""
    if name not in TARGETS:
        raise UnknownTarget(
            f"unknown target {name!r}", hint=near(name, list(TARGETS)) or f"known: {', '.join(TARGETS)}"
        )
    return TARGETS[name]
