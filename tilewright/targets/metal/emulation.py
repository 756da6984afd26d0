"""Metal's words for the emulator."""

from __future__ import annotations

from tilewright.targets.emulation import HOST, Vocabulary

METAL = Vocabulary(
    name="metal",
    folder=HOST / "metal",
    talks=r"\batomic_\w+",
    kernels=r"\bkernel void (\w+)\(",
    # Arrays of threadgroup memory at the top of a kernel are the block's.
    rewritten=((r"alignas\(16\) threadgroup uint8_t (\w+)\[\d+\];", r"uint8_t* const \1 = ::tw_dynamic_shared();"),),
    restrict="",
    scalars_in_memory=True,
    memory_unit=4,  # a half is changed atomically with the other half of its word
    spaces=True,
    flushes=True,
    threads=1024,
    shared_bytes=32 << 10,
)
"""Metal's own library (`metal_stdlib`); the device vocabulary stands in each text."""
