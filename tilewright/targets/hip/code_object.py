"""What a code object says of its kernels: the metadata that the driver reads, for compilers that report nothing
themselves."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from tilewright.machine.amd import AmdArch
from tilewright.targets.hip.messages import Resources

_METADATA = 32
"""NT_AMDGPU_METADATA: a note of an ELF file whose bytes are MessagePack."""


def resources_of(image: bytes, planned: dict[str, int], arch: AmdArch) -> dict[str, Resources]:
    """Resources by kernel.

    Parameters
    ----------
    planned : bytes of shared memory of each kernel that the launcher speaks of.
    """
    found = {}
    for note in _notes(image):
        for kernel in _value(note, 0)[0].get("amdhsa.kernels", ()):
            name, lds = kernel[".name"], kernel[".group_segment_fixed_size"]
            vector, accumulators = kernel[".vgpr_count"], kernel.get(".agpr_count", 0)
            threads = kernel[".max_flat_workgroup_size"]
            waves = arch.occupancy(threads, vector, lds) * -(-threads // arch.warp_size) // arch.simds
            found[name] = Resources(
                vector,
                lds - planned.get(name, 0),
                lds,
                kernel[".private_segment_fixed_size"],
                vector - accumulators,
                accumulators,
                kernel[".sgpr_count"],
                waves,
                kernel.get(".vgpr_spill_count", 0),
                kernel.get(".sgpr_spill_count", 0),
            )
    return found


def _notes(image: bytes) -> Iterator[bytes]:
    """The metadata notes of an ELF file of 64 bits."""
    start, size, count = (*struct.unpack_from("<Q", image, 0x20), *struct.unpack_from("<HH", image, 0x36))
    for number in range(count):
        kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", image, start + number * size)
        end = at + length if kind == 4 else at  # PT_NOTE
        while at < end:
            named, described, what = struct.unpack_from("<III", image, at)
            body = at + 12 + -(-named // 4) * 4
            if what == _METADATA:
                yield image[body : body + described]
            at = body + -(-described // 4) * 4


def _value(data: bytes, at: int) -> tuple[Any, int]:
    """The MessagePack value at a place, and the place behind it."""
    head = data[at]
    at += 1
    if head < 0x80 or head >= 0xE0:
        return head if head < 0x80 else head - 256, at
    if head < 0x90:
        return _map(data, at, head & 15)
    if head < 0xA0:
        return _array(data, at, head & 15)
    if head < 0xC0:
        return data[at : at + (head & 31)].decode(), at + (head & 31)
    if head in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[head], at
    if head in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[head], data, at)
        return number, at + struct.calcsize(_NUMBERS[head])
    (length,) = struct.unpack_from(_LENGTHS[head], data, at)
    at += struct.calcsize(_LENGTHS[head])
    if head in (0xD9, 0xDA, 0xDB):
        return data[at : at + length].decode(), at + length
    return _array(data, at, length) if head in (0xDC, 0xDD) else _map(data, at, length)


_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_LENGTHS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def _array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        value, at = _value(data, at)
        found.append(value)
    return found, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[object, object], int]:
    found, at = _array(data, at, 2 * count)
    return dict(zip(found[::2], found[1::2], strict=True)), at
