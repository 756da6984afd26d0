"""NVIDIA's GPUs under the names that other packages have for them."""

from __future__ import annotations

import re

from tilewright.machine.arch import Arch

DEVICES = {
    "a100": "sm_80", "a800": "sm_80", "a30": "sm_80", "a40": "sm_86", "rtx-a6000": "sm_86", "geforce-rtx-30": "sm_86",
    "3090": "sm_86", "l40": "sm_89", "rtx-40": "sm_89", "4090": "sm_89", "h100": "sm_90a", "h200": "sm_90a",
    "h800": "sm_90a", "b100": "sm_100a",
}  # fmt: skip
"""Architectures by what TVM's name of a device has in it."""


def architecture_of(device: str) -> str | None:
    """The architecture of a device that TVM has a name for, such as ``"nvidia/nvidia-a100"``."""
    return next((arch for part, arch in DEVICES.items() if part in device), None)


def version_of(arch: Arch) -> tuple[int, int]:
    """Major and minor number of a compute capability, (0, 0) where a machine has none."""
    digits = re.fullmatch(r"sm_(\d+)(\d)[a-z]?", arch.name)
    return (int(digits[1]), int(digits[2])) if digits else (0, 0)
