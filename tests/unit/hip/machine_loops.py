"""What tests and benchmarks ask of a loop of AMD's machine code: its vector instructions, loads, bytes, waits."""

from __future__ import annotations

import re

from tilewright.targets.hip.machine_code import _PRODUCT, MachineLoop

_LDS = re.compile(r"^ds_(?:read|load|write|store)_?(2?)(?:addr_)?(?:st64|stride64_)?_?b(\d+)")
_WAIT = re.compile(r"^s_waitcnt\b.*\bvmcnt\((\d+)\)|^s_wait_loadcnt\s+(0x[0-9a-f]+|\d+)")


def vector(loop: MachineLoop) -> int:
    """Other vector instructions of numbers: they share the issue slots of products."""
    return sum(name.startswith("v_") and not _PRODUCT.match(name) for name in loop.names)


def loads(loop: MachineLoop) -> int:
    """Loads from global memory."""
    return sum(name.startswith(("global_load", "buffer_load", "flat_load")) for name in loop.names)


def shared_bytes(loop: MachineLoop, *kinds: str) -> int:
    """Bytes that a lane moves from (``"read", "load"``) or to (``"write", "store"``) shared memory."""
    total = 0
    for name in loop.names:
        match = _LDS.match(name)
        if match and any(f"ds_{kind}" in name for kind in kinds):
            total += int(match[2]) // 8 * (2 if match[1] else 1)
    return total


def waits_before_products(loop: MachineLoop) -> bool:
    """Whether a product waits for all of the loads that were started in the same iteration before it."""
    order = [_mark(name, operands) for name, operands in loop.instructions]
    marks = [one for one in order * 2 if one]  # twice, since the loop goes round
    if "load" not in marks or "product" not in marks:
        return False
    first = marks.index("load")
    behind = marks[first:]
    last = (
        max(place for place, one in enumerate(behind[: behind.index("product")]) if one == "load")
        if "product" in behind
        else 0
    )
    return "wait" in behind[last : behind.index("product")]


def _mark(name: str, operands: str) -> str:
    if _PRODUCT.match(name):
        return "product"
    if name.startswith(("global_load", "buffer_load")):
        return "load"
    found = _WAIT.match(f"{name} {operands}")
    return "wait" if found and int(found[1] or found[2], 0) == 0 else ""
