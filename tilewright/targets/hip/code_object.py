"""What clang said of a kernel, in the author's terms: errors at their lines, and what a kernel takes of a compute unit;
and what a code object's metadata says of that, for compilers that report nothing themselves."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.errors import Span
from tilewright.machine.amd import AmdArch
from tilewright.targets.binary import CompilerWarning

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


_ERROR = re.compile(r"^(?P<file>[^\n:]+):(?P<line>\d+):\d+: (?:fatal )?error: (?P<text>.*)$", re.M)
_CRASH = re.compile(r"^(?:fatal error: error in backend|LLVM ERROR): (?P<text>.*)$", re.M)
_REMARK = re.compile(r"remark:\s+(?P<name>[A-Za-z]+(?: [A-Za-z]+)*)(?: \[[^\]]*\])?: (?P<value>\S+) \[-Rpass-analysis")

_FIELDS = {
    "TotalSGPRs": "scalar_registers", "SGPRs": "scalar_registers", "VGPRs": "vector_registers",
    "AGPRs": "accumulator_registers", "ScratchSize": "scratch_bytes",
    "Occupancy": "waves", "LDS Size": "lds_bytes", "SGPRs Spill": "scalar_spills", "VGPRs Spill": "vector_spills",
}  # fmt: skip
"""clang's names of resources."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes of a compute unit, as clang counted it.

    Attributes
    ----------
    registers : of a thread, 32 bits each: vector registers and those of accumulators.
    shared_bytes, lds_bytes : LDS of a block, besides what its program plans, and all of it.
    scratch_bytes : memory of a thread for what did not fit registers; arrays that are indexed by variables lie there
        too.
    vector_registers, accumulator_registers, scalar_registers : VGPRs, AGPRs and SGPRs.
    waves : that a SIMD unit holds at once.
    vector_spills, scalar_spills : registers that were spilled.
    """

    registers: int
    shared_bytes: int = 0
    lds_bytes: int = 0
    scratch_bytes: int = 0
    vector_registers: int = 0
    accumulator_registers: int = 0
    scalar_registers: int = 0
    waves: int = 0
    vector_spills: int = 0
    scalar_spills: int = 0


def parse_resources(log: str, planned: Mapping[str, int]) -> dict[str, Resources]:
    """Resources by kernel, from clang's remarks (``-Rpass-analysis=kernel-resource-usage``)."""
    found: dict[str, dict[str, int]] = {}
    kernel = ""
    for match in _REMARK.finditer(log):
        name, value = match["name"], match["value"]
        if name == "Function Name":
            kernel = value
            found[kernel] = {}
        elif name in _FIELDS and value.isdigit():
            found[kernel][_FIELDS[name]] = int(value)
    for name, facts in found.items():
        facts["shared_bytes"] = facts.get("lds_bytes", 0) - planned.get(name, 0)
    return {
        name: Resources(facts.get("vector_registers", 0) + facts.get("accumulator_registers", 0), **facts)
        for name, facts in found.items()
    }


def warnings_of(resources: dict[str, Resources]) -> Iterator[CompilerWarning]:
    """Losses of speed that resources show."""
    for name, one in resources.items():
        if one.vector_spills:
            yield CompilerWarning("spill", name, f"{one.vector_spills} vector registers were spilled to scratch memory")
        elif one.scratch_bytes:
            yield CompilerWarning(
                "local memory", name, f"{one.scratch_bytes} bytes of each thread lie in scratch memory"
            )


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of the compiler; `span` is None where it has no place in the author's file."""

    text: str
    span: Span | None
    line: int = 0


def refusals(log: str, name: str) -> list[Refusal]:
    """Errors in clang's log, in order; `name` is what it calls lines of the text itself."""
    found = [
        Refusal(
            match["text"].strip(),
            None if match["file"].endswith(name) else Span(match["file"], int(match["line"])),
            int(match["line"]),
        )
        for match in _ERROR.finditer(log)
    ]
    return found or [Refusal(f"its backend stopped: {match['text'].strip()}", None) for match in _CRASH.finditer(log)]
