"""What the device's compiler said, turned into the author's terms: file, line, kernel, operator.

Emitted text carries ``#line`` directives that name the author's file, so errors of the C++ front end come with
the author's lines.  Messages of the assembler name lines of the PTX; its ``.loc`` directives lead back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.errors import Span
from tilewright.targets.binary import CompilerWarning

_ERROR = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\)\s*: (?P<kind>error|catastrophic error)[^:]*: (?P<text>.*)$", re.M
)
_ASSEMBLER = re.compile(r"^ptxas (?P<place>.*?)(?:line (?P<line>\d+); )?(?:error|fatal)\s*: (?P<text>.*)$", re.M)
_FUNCTION = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_IN_FUNCTION = re.compile(r"in (?:the )?function '([^']+)'")
_AROUND = re.compile(r"around line (\d+)")
_CODE = re.compile(r"\(C(\d+)\)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:,.*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
_ENTRY = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$]+)")
_OWN_HEADER = "tilewright_"


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes of a multiprocessor, as the assembler counted it.

    Attributes
    ----------
    registers : 32-bit registers of a thread at launch.
    stack_bytes : local memory of a thread (arrays that did not fit registers, and spills).
    spill_store_bytes, spill_load_bytes : bytes a thread stores to and loads from local memory for want of registers.
    shared_bytes : static shared memory of a block; dynamic memory is the launch's.
    barriers : named barriers in use.
    """

    registers: int
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    shared_bytes: int = 0
    barriers: int = 0


@dataclass(frozen=True, slots=True)
class FrontEndError:
    """One error of the C++ front end, at a line of the author's file or of the text."""

    file: str
    line: int
    text: str


def front_end_errors(log: str) -> list[FrontEndError]:
    """Errors in a compiler's log, in order."""
    return [FrontEndError(m["file"].strip(), int(m["line"]), m["text"].strip()) for m in _ERROR.finditer(log)]


@dataclass(frozen=True, slots=True)
class AssemblerError:
    """One error of the assembler, at a line of the PTX where it names one."""

    line: int | None
    text: str


def assembler_errors(log: str) -> list[AssemblerError]:
    """The assembler's errors in a compiler's log, in order, but for the one that it gave up."""
    found = [AssemblerError(int(m["line"]) if m["line"] else None, m["text"].strip()) for m in _ASSEMBLER.finditer(log)]
    return [error for error in found if "aborted due to errors" not in error.text]


def operator_at(text: str, file: str, line: int) -> str | None:
    """The comment that names the tile operator which emitted this line, or None.

    The emitter writes ``#line N "file"`` and a comment with the author's statement before each operator's code.
    """
    lines = text.splitlines()
    nearest: str | None = None
    here = ("", 0)
    for number, content in enumerate(lines, 1):
        directive = re.match(r'\s*#\s*line\s+(\d+)\s+"([^"]*)"', content)
        if directive:
            here = (directive[2], int(directive[1]) - 1)
            continue
        here = (here[0], here[1] + 1) if here[0] else ("", number)
        comment = re.match(r"\s*// (.+)", content)
        if comment:
            nearest = comment[1].strip()
        if here == (file, line) and not comment:
            return nearest
    return None


@dataclass(slots=True)
class SourceMap:
    """Where each line of a PTX text came from in the author's files.

    Attributes
    ----------
    files : file names by their number in the PTX.
    """

    files: dict[int, str]
    _places: list[tuple[int, Span]] = field(default_factory=list)
    _kernels: list[tuple[int, str]] = field(default_factory=list)
    _lines: list[str] = field(default_factory=list)

    @staticmethod
    def of(ptx: str) -> SourceMap:
        """Read the map out of the ``.file`` and ``.loc`` directives."""
        result = SourceMap({int(number): _shorten(name) for number, name in _FILE.findall(ptx)})
        callers: dict[tuple[int, ...], tuple[int, ...]] = {}
        result._lines = ptx.splitlines()
        for number, line in enumerate(result._lines, 1):
            loc = _LOC.match(line)
            entry = _ENTRY.match(line)
            if loc:
                place = tuple(int(part) for part in loc.groups()[:3])
                if loc[4]:
                    callers[place] = tuple(int(part) for part in loc.groups()[3:])
                result._places.append((number, result._author(place, callers)))
            elif entry:
                result._kernels.append((number, entry[1]))
        return result

    def at(self, line: int) -> Span | None:
        """The author's line for a line of the PTX."""
        span = None
        for number, place in self._places:
            if number > line:
                break
            span = place if place.line else span
        return span

    def lines_with(self, kernel: str, mnemonic: str) -> tuple[Span, ...]:
        """The author's lines whose code has an instruction of this name in a kernel."""
        spans = [self.at(number) for number in self._numbers(kernel) if mnemonic in self._lines[number - 1]]
        return tuple(dict.fromkeys(span for span in spans if span is not None))

    def _numbers(self, kernel: str) -> Iterator[int]:
        starts = [number for number, _ in self._kernels] + [len(self._lines) + 1]
        for index, (number, name) in enumerate(self._kernels):
            if name == kernel:
                yield from range(number, starts[index + 1])

    def _author(self, place: tuple[int, ...], callers: dict[tuple[int, ...], tuple[int, ...]]) -> Span:
        """Follow a place in the vocabulary's headers to the place that called it."""
        while place in callers and os.path.basename(self.files.get(place[0], "")).startswith(_OWN_HEADER):
            place = callers[place]
        return Span(self.files.get(place[0], "?"), place[1], max(0, place[2] - 1))


def _shorten(path: str) -> str:
    """A name as the text gave it: the compiler puts the current directory before relative ones."""
    here = os.getcwd() + os.sep
    return path[len(here) :] if path.startswith(here) else path


def parse_resources(log: str) -> dict[str, Resources]:
    """Resources by kernel, from the assembler's verbose log."""
    found: dict[str, Resources] = {}
    for name, section in _sections(log):
        stack = _STACK.search(section)
        used, barriers, shared = _USED.search(section), _BARRIERS.search(section), _SHARED.search(section)
        found[name] = Resources(
            registers=int(used[1]) if used else 0,
            stack_bytes=int(stack[1]) if stack else 0,
            spill_store_bytes=int(stack[2]) if stack else 0,
            spill_load_bytes=int(stack[3]) if stack else 0,
            shared_bytes=int(shared[1]) if shared else 0,
            barriers=int(barriers[1]) if barriers else 0,
        )
    return found


def _sections(log: str) -> Iterator[tuple[str, str]]:
    starts = list(_FUNCTION.finditer(log))
    ends = [start.start() for start in starts[1:]] + [len(log)]
    for start, end in zip(starts, ends):
        yield start["name"], log[start.end() : end]


def parse_warnings(log: str, ptx: str) -> tuple[CompilerWarning, ...]:
    """Losses of speed that a log reports, with the author's lines from the PTX of the same compilation."""
    source = SourceMap.of(ptx)
    warnings = []
    for line in log.splitlines():
        kind, function = _kind(line), _IN_FUNCTION.search(line)
        if kind and function:
            around = _AROUND.search(line)
            place = source.at(int(around[1])) if around else None
            spans = (place,) if place else source.lines_with(function[1], "wgmma.mma_async")
            warnings.append(CompilerWarning(kind, function[1], _sentence(line), spans))
    for name, resources in parse_resources(log).items():
        if "vprintf" not in ptx:  # what it is given lies in local memory
            warnings.extend(_memory_warnings(name, resources))
    return tuple(dict.fromkeys(warnings))


def _kind(line: str) -> str | None:
    if "instructions are serialized" in line:
        return "serialized"
    if "'setmaxnreg' ignored" in line:
        return "setmaxnreg"
    if "is injected" in line and _CODE.search(line):
        return "injected"
    return None


def _sentence(line: str) -> str:
    """The message without the tool's prefix and codes."""
    text = re.sub(r"^.*?\(C\d+\)\s*", "", line)
    text = text.replace("Potential Performance Loss: ", "")
    return re.sub(r"\s+in around line \d+", "", text).strip()


def _memory_warnings(name: str, resources: Resources) -> Iterator[CompilerWarning]:
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    if spilled:
        yield CompilerWarning(
            "spill",
            name,
            f"registers do not suffice ({resources.registers} a thread): {resources.spill_store_bytes} bytes are "
            "stored to "
            f"and {resources.spill_load_bytes} loaded from local memory",
        )
    elif resources.stack_bytes:
        yield CompilerWarning(
            "local memory",
            name,
            f"{resources.stack_bytes} bytes a thread lie in local memory: an array is "
            "indexed by a value known only at run time",
        )
