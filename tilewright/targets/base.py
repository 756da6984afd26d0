"""`Target`: the manifest that a machine family publishes, small, frozen and checked at import."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tilewright.errors import TilewrightError, near
from tilewright.ir import DType, Function, Statement
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


@dataclass(slots=True)
class Promised:
    """An output that a launch makes itself, as MLX's do: what it will be, then (`value`) the array."""

    shape: tuple[int, ...]
    dtype: DType
    value: Any = None


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
    device : where torch holds arrays that it runs on (``"cuda:0"``); None where torch has no such place.
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
    device: str | None = None


A = TypeVar("A", bound=Arch)


def arch_of(
    target: str,
    options: Mapping[str, str],
    named: Callable[[str], A],
    present: Callable[[], A | None],
    cores: str,
    example: str = "",
) -> A:
    """The GPU that a target's options say: ``arch`` names it, else the one present; ``cores`` says how many it has.

    Parameters
    ----------
    cores : what the maker calls them, in messages.
    example : an architecture that a message may name.

    Raises
    ------
    UnknownTarget : an option or an architecture that does not exist, or none is named and none is present.
    """
    unknown = set(options) - {"arch", "cores"}
    if unknown:
        raise UnknownTarget(f"the {target} target has no option {sorted(unknown)[0]!r}", hint="known: arch, cores")
    found = named(options["arch"]) if "arch" in options else present()
    if found is None:
        raise UnknownTarget(
            f"target {target!r} names no architecture, and there is no such GPU here to take it from",
            hint=f'write for example target="{target} -arch={example}": a kernel for it compiles without the GPU, and '
            "kernel.emulate(...) runs it here",
        )
    if "cores" not in options:
        return found
    count = str(options["cores"])
    if not count.isdecimal() or int(count) < 1:
        raise UnknownTarget(
            f"cores={count} is no number of {cores}: a GPU has one at least",
            hint=f"leave it out for those of {found.name}, {found.cores}" if found.cores else None,
        )
    return replace(found, cores=int(count))


def known_name(target: str, name: str, known: Iterable[str], full: str | None = None) -> str:
    """The name of an architecture as a table has it.  Raises UnknownTarget, which says what was meant.

    Parameters
    ----------
    full : where the author may write a shorter one.
    """
    names, wanted = list(known), full or name
    if wanted not in names:
        close = near(wanted, names)
        raise UnknownTarget(
            f"the {target} target has no architecture {name!r}",
            hint=f"{close + ' ' if close else ''}known: {', '.join(names)}",
        )
    return wanted


TARGETS: dict[str, Target] = {}


def register_target(target: Target) -> Target:
    """Publish a target under its name."""
    TARGETS[target.name] = target
    return target


def find_target(name: str) -> Target:
    """The target called `name`.  Raises UnknownTarget."""
    if name not in TARGETS:
        raise UnknownTarget(f"unknown target {name!r}", hint=_meant(name))
    return TARGETS[name]


def _meant(name: str) -> str:
    """What to write in place of a target that does not exist: an architecture's name wants its target's before it."""
    for target in TARGETS.values():
        with contextlib.suppress(TilewrightError):
            return f'write "{target.name} -arch={target.arch({"arch": name}).name}"'
    return f"known: {', '.join(TARGETS)}"
