"""What the machine code of a kernel does: its hottest loop, and the mix of instructions there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_LABEL = re.compile(r"^(\.?[A-Za-z_][\w.$]*):")
_BRANCH = re.compile(r"^\s*s_c?branch\S*\s+(\S+)")
_PRODUCT = re.compile(r"^v_(?:mfma|smfmac|wmma|swmmac)_")


@dataclass(frozen=True, slots=True)
class MachineLoop:
    """A loop of a kernel's machine code, in the order of the text.

    Attributes
    ----------
    instructions : name and operands of each.
    """

    instructions: tuple[tuple[str, str], ...]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.instructions]

    @property
    def products(self) -> int:
        """Matrix instructions."""
        return sum(bool(_PRODUCT.match(name)) for name in self.names)

    def mix(self) -> dict[str, int]:
        """How many instructions of each kind."""
        return dict(Counter(map(_kind, self.names)).most_common())


_BEGINNINGS = {
    "LDS": ("ds_",), "memory": ("global_", "buffer_", "flat_"), "scratch": ("scratch_",), "vector": ("v_",),
    "waits": ("s_wait", "s_nop", "s_barrier"),
}  # fmt: skip


def _kind(name: str) -> str:
    """What an instruction is counted as."""
    if _PRODUCT.match(name):
        return "products"
    return next((kind for kind, beginnings in _BEGINNINGS.items() if name.startswith(beginnings)), "scalar")


def code_of_kernel(assembly: str, name: str) -> str:
    """The part of an assembly that is one kernel's."""
    found = re.search(rf"^{re.escape(name)}:.*?^\.Lfunc_end\d+:", assembly, re.M | re.S)
    return found[0] if found else ""


def hottest_loop(code: str) -> MachineLoop | None:
    """The loop with the most products, or of those without any the longest innermost one; None where nothing is
    repeated."""
    lines = [line.split(";")[0].rstrip() for line in code.split("\n")]
    places = {match[1]: number for number, line in enumerate(lines) if (match := _LABEL.match(line))}
    ends: dict[int, int] = {}  # of each loop's first line, the last place that leads back to it
    for number, line in enumerate(lines):
        match = _BRANCH.match(line)
        if match and places.get(match[1], number) < number:
            ends[places[match[1]]] = number
    loops = [_loop(lines[start : end + 1]) for start, end in ends.items()]
    return max(
        loops,
        key=lambda one: (one.products, -len(one.instructions) if one.products else len(one.instructions)),
        default=None,
    )


def _loop(lines: Sequence[str]) -> MachineLoop:
    found = []
    for line in lines:
        words = line.split(None, 1)
        if words and not words[0].startswith(".") and not words[0].endswith(":"):
            found.append((words[0], words[1] if len(words) > 1 else ""))
    return MachineLoop(tuple(found))
