"""The manifest of the metal target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tilewright.ir.nodes import Function
from tilewright.machine.arch import Arch
from tilewright.targets.base import Source, Target, register_target
from tilewright.targets.metal import emulation
from tilewright.targets.metal.arch import arch, detect
from tilewright.targets.metal.emit import emit
from tilewright.targets.metal.lower import OVERRIDES
from tilewright.targets.metal.runtime import Launcher
from tilewright.texts import read_text, write_text


def compiler_key(arch: Arch) -> str:
    """Texts are compiled by the system when they are loaded."""
    return "metal source"


def build(source: Source, arch: Arch, directory: Path) -> None:
    """Keep a text: the system compiles it when it is loaded."""
    write_text(directory / "kernel.metal", source.text)


def load(directory: Path, source: Source, function: Function, arch: Arch) -> Callable[..., None]:
    """A callable of the entry arguments, tensors for buffers: without a Mac and torch or MLX it raises
    MissingCapability."""
    return Launcher(read_text(directory / "kernel.metal"), function, source.entries, arch)


METAL = register_target(
    Target("metal", detect, arch, OVERRIDES, emit, compiler_key, build, load, None, emulation.METAL)
)
