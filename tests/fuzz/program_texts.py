"""Programs that a writer gives as text, taken apart: the pipelined families were written before there were parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tile_programs import Param, TileProgram


def from_text(seed: int, text: str, arguments: Sequence[Any], machine: str) -> TileProgram:
    """A program of its text and what it is called with."""
    header, *lines = text.rstrip().splitlines()
    named = [one.strip() for one in header[header.index("(") + 1 : header.rindex(")")].split(",")]
    opens = next(at for at, line in enumerate(lines) if line.startswith("    with T.Kernel"))
    declared: dict[str, str] = {}
    sizes: list[str] = []
    outputs: list[tuple[str, str, str]] = []
    for line in lines[:opens]:
        name, colon, shape = line.strip().partition(": ")
        made = re.fullmatch(r'\s*(\w+) = T\.empty\((.*), "(\w+)"\)', line)
        if made:
            outputs.append((made[1], made[2], made[3]))
        elif colon and shape.startswith("T.Tensor"):
            declared[name] = shape
        else:
            sizes.append(line.strip())
    params = []
    for one, value in zip(named, arguments, strict=True):
        name, _, kind = one.partition(": ")
        params.append(
            Param(name, kind or declared[name], value, bool(kind), frozenset(sizes_told(declared.get(name, ""))))
        )
    body = [line.removeprefix("        ") for line in lines[opens + 1 :] if not line.startswith("    return")]
    return TileProgram(
        seed, tuple(sizes), tuple(params), tuple(outputs), lines[opens].strip(), tuple(body), (f"cuda -arch={machine}",)
    )


def sizes_told(shape: str) -> set[str]:
    """Sizes by which a tensor's shape is said."""
    return set(re.findall(r"\b[A-Z]\b", shape)) - {"T"}
