"""A failing program made small: lines and whole blocks go as long as it fails in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence

from judge import Verdict
from tile_programs import TileProgram


def shrunk(
    program: TileProgram, verdict: Verdict, judge: Callable[[TileProgram], Verdict], seconds: float = 60.0
) -> TileProgram:
    """The smallest program found that has a verdict of the same family."""
    end = time.monotonic() + seconds
    again = True
    while again and time.monotonic() < end:
        again = False
        for body in list(_smaller(program.body)):
            if time.monotonic() > end:
                break
            candidate = program.with_body(body)
            if (
                len(body) < len(program.body)
                and _stands(body, program.body)
                and judge(candidate).family == verdict.family
            ):
                program, again = candidate, True
                break
    return program


def _stands(body: Sequence[str], before: Sequence[str]) -> bool:
    """Whether every header has something below it."""
    pairs = zip(body, [*body[1:], ""])
    return bool(body) and all(not line.endswith(":") or _depth(behind) > _depth(line) for line, behind in pairs)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _end(lines: Sequence[str], start: int, with_else: bool = True) -> int:
    """The line behind a statement, its block and its `else`."""
    end = start + 1
    while end < len(lines) and _depth(lines[end]) > _depth(lines[start]):
        end += 1
    if with_else and end < len(lines) and lines[end].strip() == "else:" and _depth(lines[end]) == _depth(lines[start]):
        return _end(lines, end, False)
    return end


def _idle(line: str, lines: Sequence[str]) -> bool:
    """Whether a line names a tile that no other line speaks of."""
    name, equals, made = line.strip().partition(" = ")
    return (
        bool(equals)
        and made.startswith("T.alloc")
        and sum(bool(re.search(rf"\b{name}\b", other)) for other in lines) == 1
    )


def _smaller(lines: Sequence[str]) -> Iterator[list[str]]:
    """Lines without a run of statements, without one, or with a block in its header's place; large steps first."""
    spoken = [line for line in lines if not _idle(line, lines)]
    if len(spoken) < len(lines):
        yield spoken
    heads = [at for at in range(len(lines)) if lines[at].strip() != "else:"]
    for count in (16, 8, 4, 2):
        for at in range(len(heads) - count, -1, -1):
            run = heads[at : at + count]
            if len({_depth(lines[one]) for one in run}) == 1:
                yield [*lines[: run[0]], *lines[_end(lines, run[-1]) :]]
    for at in reversed(heads):
        yield [*lines[:at], *lines[_end(lines, at) :]]
    for at in heads:
        end = _end(lines, at, False)
        if lines[at].lstrip().startswith(("if ", "for ")) and "T.Parallel" not in lines[at]:
            inside = [line[4:] for line in lines[at + 1 : end]]
            yield [*lines[:at], *inside, *lines[_end(lines, at) :]]


__all__ = ["shrunk"]
