"""HIP's words for the emulator: the built-ins of clang, under our own device headers."""

from __future__ import annotations

from tilewright.targets.emulation import HOST, Vocabulary
from tilewright.targets.hip.headers import SHARED

HIP = Vocabulary(
    name="hip",
    folder=HOST / "hip",
    shared=SHARED,
    talks=r"\b(atomic_\w+|load_acquire|store_release|grid_sync)\b",
    memory_unit=4,  # a half is changed atomically with the other half of its word
    threads=2048,
    shared_bytes=160 << 10,
    words={"async_copy": "cp_async"},
)
"""The words of the device headers on a compute unit; the header that a text includes says how many lanes run
together."""
