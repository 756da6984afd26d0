"""CUDA's words for the emulator."""

from __future__ import annotations

from tilewright.targets.cuda.arch import RESERVED_SHARED
from tilewright.targets.cuda.headers import DIRECTORIES
from tilewright.targets.emulation import HOST, WORDS, Vocabulary

CUDA = Vocabulary(
    name="cuda",
    folder=HOST / "cuda",
    shared=(WORDS, *DIRECTORIES),
    generated=r"tilewright_wgmma_\w+\.cuh",
    talks=r"\b(tma_reduce_add|bulk_reduce_add|atomic_\w+|load_acquire|store_release|add_release|grid_sync|volatile)\b",
    threads=2048,
    shared_bytes=228 << 10,
    registers=65536,
    reserved_bytes=RESERVED_SHARED,
)
"""The words of `docs/cuda_vocabulary.md`, on a multiprocessor of Hopper."""
