"""What clang said of a kernel, in the author's terms: errors at their lines, and what a kernel takes of a compute
unit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.errors import Span
from tilewright.targets.binary import CompilerWarning

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
