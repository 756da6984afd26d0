"""The device headers of HIP texts, and one text of all of them for those who compile without our folders."""

from __future__ import annotations

import functools
from pathlib import Path

from tilewright.targets.gpu import headers as gpu
from tilewright.targets.gpu.headers import COMMON

_DEVICE = Path(__file__).parent / "device"

SHARED = (_DEVICE, COMMON)
"""What device and emulator both compile."""

FOLDERS = (_DEVICE / "machine", *SHARED)
"""Where clang looks for headers."""


def headers_of(text: str) -> dict[str, str]:
    """All headers that a text includes, directly and through others, with their texts."""
    return gpu.headers_of(text, functools.partial(gpu.header_in, FOLDERS))


@functools.cache
def headers_hash() -> str:
    """Hash of the whole device vocabulary."""
    return gpu.hash_of(FOLDERS)
