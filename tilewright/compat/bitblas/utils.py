"""BitBLAS's helpers around targets."""

from __future__ import annotations

from typing import Any

from tilewright.machine.arch import Arch
from tilewright.targets.base import Target
from tilewright.targets.registry import resolve


def auto_detect_nvidia_target(gpu_id: int = 0) -> str:
    """The name of the best machine here: ``"cuda -arch=sm_90a"`` with a GPU, ``"cpu"`` without one."""
    target, arch = resolve("auto")
    return name_of(target, arch)


def name_of(target: Target, arch: Arch) -> str:
    """What `resolve` takes for a machine; a processor is known by what it is, not by a name."""
    return f"{target.name} -arch={arch.name}" if arch.has_threads else target.name


def target_name(target: Any) -> str:
    """tilewright's name of a target that a program gives: a name, an object of `bitblas.tvm`, or None for the best here."""
    text = "auto" if target is None else str(target)
    # TVM's names of devices that BitBLAS's detection gives, as in "nvidia/nvidia-a100".
    return "cuda" if text.startswith("nvidia/") else text


__all__ = ["auto_detect_nvidia_target", "target_name"]
