"""The manifest of the cpu target."""

from __future__ import annotations

from tilewright.targets.base import Target, register_target
from tilewright.targets.cpu.arch import arch, detect
from tilewright.targets.cpu.compiler import build, compiler_key
from tilewright.targets.cpu.emit import emit
from tilewright.targets.cpu.launcher import load
from tilewright.targets.cpu.lower import OVERRIDES

CPU = register_target(Target("cpu", detect, arch, OVERRIDES, emit, compiler_key, build, load, device="cpu"))
