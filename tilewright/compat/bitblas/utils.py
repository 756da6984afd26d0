"""BitBLAS's helpers around targets."""

from __future__ import annotations

import os

from tilewright.compat.machines import architecture_of
from tilewright.machine.arch import Arch
from tilewright.targets.base import Target
from tilewright.targets.registry import resolve


def auto_detect_nvidia_target(gpu_id: int = 0) -> str:
    """The name of the best machine here: ``"cuda -arch=sm_90a"`` with a GPU, ``"cpu"`` without one.

    The environment may name another: ``BITBLAS_TARGET``, or ``TVM_TARGET``, which BitBLAS's messages speak of.
    """
    named = os.environ.get("BITBLAS_TARGET") or os.environ.get("TVM_TARGET")
    if named:
        return named
    target, arch = resolve("auto")
    return name_of(target, arch)


def name_of(target: Target, arch: Arch) -> str:
    """What `resolve` takes for a machine; a processor is known by what it is, not by a name."""
    return f"{target.name} -arch={arch.name}" if arch.has_threads else target.name


def target_name(target: object) -> str:
    """tilewright's name of a target that a program gives: a name, an object of `bitblas.tvm`, or None for the best
    here."""
    text = "auto" if target is None else str(target)
    if text.startswith("nvidia/"):
        # TVM's names of devices, which BitBLAS's detection gives.
        known = architecture_of(text)
        return f"cuda -arch={known}" if known else "cuda"
    return text


__all__ = ["auto_detect_nvidia_target", "target_name"]
