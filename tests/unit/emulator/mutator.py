"""Mutants of a text in the emulator's words: every fence, wait, arrival, copy, index, parity, stage and guard left out or altered.

`OPERATORS` lists what is done.  Each mutant differs from the text in one place and has as many lines, so that reports name the same
ones.  Whether a mutant is killed (reported, or its values are wrong), equivalent or missed is judged by `planted_faults.judge` and
`planted_texts.judge`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A text with one alteration: the operator's name, the line (from 1), what was done, and the whole text."""

    operator: str
    line: int
    what: str
    text: str


Edit = tuple[str, str]
"""What was done to a line, and the line as it is then."""

WORDS = (
    r"(?:tw::)?(?:sync_threads|sync_warp|named_barrier_\w+|mbarrier_\w+|fence_\w+|cp_async\w*|bulk_\w+|tma_\w+|wgmma_(?:fence|commit|wait|ss|rs)\w*|"
    r"cluster_(?:sync|arrive\w*|wait)|griddepcontrol_\w+|setmaxnreg_\w+|store_release|add_release|grid_sync|ldmatrix\w*|stmatrix\w*|mma_\w+)"
)
"""Calls that order, move or multiply."""

STATEMENT = re.compile(rf"(?<![\w:=(,] )(?<![\w:(,=]){WORDS}(?:<[^;(]*>)?\(")

SIBLINGS: dict[str, tuple[str, ...]] = {
    "fence_proxy_async_shared": ("fence_proxy_async_global",),
    "fence_proxy_async_global": ("fence_proxy_async_shared",),
    "fence_proxy_async": ("fence_proxy_async_shared", "fence_proxy_async_global"),
    "fence_device": ("fence_block",),
    "mbarrier_wait_cluster": ("mbarrier_wait",),
    "mbarrier_arrive_cluster_release": ("mbarrier_arrive_cluster",),
    "cluster_arrive": ("cluster_arrive_relaxed",),
    "cluster_sync": ("sync_threads",),
    "sync_threads": ("sync_warp",),
    "bulk_wait": ("bulk_wait_read",),
    "load_acquire": ("*",),
    "CACHED": ("STREAMING",),
    "L2_ONLY": ("STREAMING",),
}
"""Words that are taken for others: a narrower space, a smaller scope, a weaker order; ``*`` is an ordinary load."""

SWAPS = {" + ": " - ", " - ": " + ", " % ": " / ", " / ": " % ", " < ": " <= ", " ^ ": " + ", " & ": " | ", " * ": " + ", " >> ": " << ", " == ": " != ", " >= ": " > "}  # fmt: skip

STAGES = {
    "STAGES - 1": "STAGES",
    "STAGES - 2": "STAGES - 1",
    "phase ^ 1": "phase",
    "% STAGES": "% (STAGES - 1)",
    "stage == STAGES": "stage == STAGES - 1",
}


def _closing(code: str, at: int, pair: str = "()") -> int:
    """Where the bracket that is open at `at` is closed; -1 where that is on another line."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] == pair[0]) - (code[i] == pair[1])
        if depth == 0:
            return i
    return -1


def _arguments(code: str, first: int, last: int) -> list[tuple[int, int]]:
    """Where the arguments between two brackets lie."""
    cuts, depth = [first + 1], 0
    for i in range(first + 1, last):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if code[i] == "," and depth == 0:
            cuts += [i, i + 1]
    cuts.append(last)
    return list(zip(cuts[::2], cuts[1::2]))


def _calls(code: str) -> Iterator[tuple[int, int]]:
    """Calls that are statements of their own: from their name to behind the semicolon."""
    for found in STATEMENT.finditer(code):
        end = _closing(code, found.end() - 1)
        if end >= 0 and code[end + 1 : end + 2] == ";":
            yield found.start(), end + 2


def removed(code: str) -> Iterator[Edit]:
    """A call that orders, moves or multiplies is left out."""
    for start, end in _calls(code):
        yield f"{code[start:end]} removed", code[:start] + "{}" + code[end:]


def repeated(code: str) -> Iterator[Edit]:
    """An arrival, an expectation or a release is made twice."""
    for start, end in _calls(code):
        if re.match(
            r"(?:tw::)?(mbarrier_(?!wait|test|try)|named_barrier_arrive|cluster_arrive|add_release)", code[start:]
        ):
            call = code[start:end]
            yield f"{call} twice", f"{code[:start]}{{ {call} {call} }}{code[end:]}"


def weakened(code: str) -> Iterator[Edit]:
    """A word becomes one of a narrower space, a smaller scope or a weaker order."""
    for found in re.finditer(r"\b[A-Za-z]\w*\b", code):
        for other in SIBLINGS.get(found.group(), ()):
            start = found.start()
            if other == "*" and code[:start].endswith("tw::"):
                start -= 4
            yield f"{found.group()} becomes {other}", code[:start] + other + code[found.end() :]


def counted(code: str) -> Iterator[Edit]:
    """A wait leaves one more, or one fewer, pending; a budget or a count of threads is another."""
    for found in re.finditer(r"\b(cp_async_wait|bulk_wait|bulk_wait_read|wgmma_wait)<(\d+)>", code):
        for change in (1, -1):
            if (number := int(found.group(2)) + change) >= 0:
                yield (
                    f"{found.group()} becomes <{number}>",
                    code[: found.start(2)] + str(number) + code[found.end(2) :],
                )


def parity(code: str) -> Iterator[Edit]:
    """A wait is for the other parity."""
    for found in re.finditer(r"\bmbarrier_(?:wait|test_wait|try_wait)\w*\(", code):
        end = _closing(code, found.end() - 1)
        places = _arguments(code, found.end() - 1, end) if end >= 0 else []
        if len(places) >= 2:
            first, last = places[1]
            yield "the other parity", f"{code[:first]} ({code[first:last].strip()}) ^ 1{code[last:]}"


def indexed(code: str) -> Iterator[Edit]:
    """An index is one further."""
    for found in re.finditer(r"(?<=[\w\])])\[", code):
        end = _closing(code, found.start(), "[]")
        inner = code[found.end() : end].strip() if end >= 0 else ""
        if (
            inner
            and not code[: found.start()].rstrip().endswith("operator")
            and "]" not in code[end : end + 1].strip("]")
        ):
            yield f"[{inner}] one further", f"{code[: found.end()]}({inner}) + 1{code[end:]}"


def literal(code: str) -> Iterator[Edit]:
    """A number is one more, or twice as much."""
    for found in re.finditer(r"(?<![\w.<])\d+(?![\w.]|>\()", code):
        value = int(found.group())
        for other in sorted({value + 1, value * 2} - {value}):
            yield f"{value} becomes {other}", code[: found.start()] + str(other) + code[found.end() :]


def operator(code: str) -> Iterator[Edit]:
    """An operator is another."""
    for old, new in SWAPS.items():
        for found in re.finditer(re.escape(old), code):
            yield f"'{old.strip()}' becomes '{new.strip()}'", code[: found.start()] + new + code[found.end() :]


def unguarded(code: str) -> Iterator[Edit]:
    """A guard holds always."""
    for found in re.finditer(r"\bif \(", code):
        end = _closing(code, found.end() - 1)
        if end >= 0:
            yield "a guard is dropped", code[: found.end()] + "true" + code[end:]


def stage(code: str) -> Iterator[Edit]:
    """A stage of a ring is another."""
    for old, new in STAGES.items():
        if old in code:
            yield f"{old} becomes {new}", code.replace(old, new, 1)


def unset(code: str) -> Iterator[Edit]:
    """A variable has no first value."""
    found = re.match(r"^(\s*(?:u?int(?:8|16|32|64)_t|int|float|double|bool)\s+\w+) = [^,;]*;$", code)
    if found:
        yield "no first value", f"{found.group(1)};"


STORE = re.compile(
    r"^(\s*)(?:[\w.]+\[[^;=]*\] = [^;]*;|tw::(?:store_fragment|store_cluster\w*|atomic_\w+|set_word)(?:<[^;(]*>)?\(.*\);)$"
)


def unstored(code: str) -> Iterator[Edit]:
    """A store is left out."""
    found = STORE.match(code)
    if found:
        yield f"{code.strip()[:60]} removed", f"{found.group(1)}{{}}"


def one_part(code: str) -> Iterator[Edit]:
    """All warps, lanes or blocks take the part of the first, or of their neighbour."""
    for found in re.finditer(r"\b(?:(?:tx|thread) (?:/|%) \d+|blockIdx\.[xyz]|tw::cluster_rank\(\))", code):
        for other in ("0", f"({found.group()} ^ 1)"):
            yield f"{found.group()} becomes {other}", code[: found.start()] + other + code[found.end() :]


def by_some(code: str) -> Iterator[Edit]:
    """A call that every thread makes is made by the first warp of each four alone."""
    for start, end in _calls(code):
        if not re.match(r"(?:tw::)?(?:wgmma|mma_|ldmatrix|stmatrix|sync_threads|named_barrier)", code[start:]):
            yield (
                "by every fourth warp",
                f"{code[:start]}if (threadIdx.x % 128 < 32) {{ {code[start:end]} }}{code[end:]}",
            )


OPERATORS: tuple[Callable[[str], Iterator[Edit]], ...] = (
    removed,
    repeated,
    weakened,
    counted,
    parity,
    indexed,
    literal,
    operator,
    unguarded,
    stage,
    unset,
    unstored,
    one_part,
    by_some,
)
"""What is done to a line of code; `moved` is done to two neighbours, `in_one_turn` and `ahead` to calls in their place,
and `restricted` to a kernel's parameters."""

LOOP = re.compile(r"^(\s*)for \(\w+ (\w+) = ")


def _in_one_turn(lines: Sequence[str], i: int) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """A call is left out in the first turn of the loop around it, or in the second."""
    code = lines[i].split("//")[0]
    calls = list(_calls(code))
    depth = len(code) - len(code.lstrip())
    loop = next((found for line in reversed(lines[:i]) if (found := LOOP.match(line)) and len(found[1]) < depth), None)
    if calls and loop:
        start, end = calls[0]
        for turn in (0, 1):
            changed = f"{code[:start]}if ({loop[2]} != {turn}) {{ {code[start:end]} }}{code[end:]}"
            yield f"left out where {loop[2]} is {turn}", i, (changed,)


SIGNALS = re.compile(
    r"\s*(?:tw::)?(?:\w*arrive\w*|\w*_release|\w*commit\w*|sync_\w+|named_barrier_\w+|fence_\w+)(?:<[^;(]*>)?\("
)
"""Calls that tell others of what was done before them."""


def _ahead(lines: Sequence[str], i: int) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """A call that tells of what was done is made before it was: several statements, or a whole block of them, earlier."""
    code = lines[i].split("//")[0]
    if not SIGNALS.match(code) or next(_calls(code), None) is None:
        return
    depth, passed = 0, 0
    for j in range(i - 1, max(-1, i - 40), -1):
        depth += lines[j].count("}") - lines[j].count("{")
        if depth < 0 or TW_BEGIN.match(lines[j]):
            return
        passed += depth == 0 and lines[j].split("//")[0].strip() not in ("", "{", "}")
        if depth == 0 and passed in (2, 4) and not lines[j].lstrip().startswith(("#", "//", "}", "else")):
            kept = ("{" + code.strip() + "} " + lines[j].lstrip(), *lines[j + 1 : i], "")
            yield f"ahead of line {j + 1}", j, kept


TW_BEGIN = re.compile(r"\s*TW_KERNEL")


def _moved(lines: Sequence[str], i: int) -> Iterator[tuple[str, str, str]]:
    """A call changes places with the statement behind it."""
    code, behind = lines[i].split("//")[0], lines[i + 1] if i + 1 < len(lines) else ""
    plain = behind.strip().endswith(";") and not behind.strip().startswith(("}", "else", "case"))
    if code.strip() and next(_calls(code), (1, 0))[0] == len(code) - len(code.lstrip()) and plain:
        yield "a call moves behind the next line", behind, lines[i]
    before = lines[i + 1].split("//")[0] if i + 1 < len(lines) else ""
    first = next(_calls(before), (1, 0))[0] == len(before) - len(before.lstrip())
    if first and code.strip().endswith(";") and not re.search(r"\b(?:for|if|else|return)\b", code):
        yield "a call moves before the previous line", lines[i + 1], lines[i]


def mutants(text: str) -> list[Mutant]:
    """Every mutant of a text, line by line."""
    lines = text.split("\n")
    found: list[Mutant] = []

    def add(name: str, i: int, what: str, *changed: str) -> None:
        copy = lines.copy()
        copy[i : i + len(changed)] = changed
        found.append(Mutant(name, i + 1, what, "\n".join(copy)))

    for i, line in enumerate(lines):
        code = line.split("//")[0].rstrip()
        if re.match(r"\s*TW_KERNEL", code):
            for pointer in re.finditer(r"\bconst [\w:]+\s*\*(?! *TW_RESTRICT| const)", code):
                add(
                    "restricted",
                    i,
                    "a pointer is restricted",
                    f"{code[: pointer.end()]} TW_RESTRICT{code[pointer.end() :]}",
                )
            continue
        if not code.strip() or code.startswith(
            ("#", "using", "constexpr", "template", "  TW_DYNAMIC", "extern", "struct", "//")
        ):
            continue
        for change in OPERATORS:
            for what, other in change(code):
                add(change.__name__, i, what, other)
        for what, *two in _moved(lines, i):
            add("moved", i, what, *two)
        for name, change_there in (("in_one_turn", _in_one_turn), ("ahead", _ahead)):
            for what, j, changed in change_there(lines, i):
                add(name, j, what, *changed)
    return found
