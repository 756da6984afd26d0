"""File tests: programs in ``.tile`` files beside the text that something must make of them.

A file holds one or more cases, divided by lines of ``====``::

    # pass simplify
    def f(A: int32[8]):
        ...
    ----
    the program that the pass must give

The first line says what is done to the program: a kind of `kinds.KINDS` and its arguments.  What follows
``----`` is compared with the outcome, character by character; ``pytest --update`` writes the outcome there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tile_files import execution  # noqa: F401  (registers its kinds)
from tile_files.kinds import KINDS
from tilewright.errors import TilewrightError, near
from tilewright.ir.nodes import Function
from tilewright.ir.parser import parse
from tilewright.texts import keep_lines, read_text, write_text

DIVIDER, ARROW = "====", "----"


class BadFileTest(TilewrightError):
    """A ``.tile`` file that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Case:
    """One program and what is expected of it.

    Attributes
    ----------
    file, line : where the case begins; lines count from 1.
    header : the whole first line, without its ``#``.
    kind, arguments, options : its words: ``pass simplify warp_size=32`` has one argument and one option.
    program : the text between header and ``----``.
    expected : the text behind it.
    """

    file: Path
    line: int
    header: str
    program: str
    expected: str
    kind: str = ""
    arguments: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.file.stem}:{self.line} {self.header}"

    def parse(self) -> Function:
        """The case's program; its places count lines from the program's first."""
        name = self.file.name
        keep_lines(self.program, name)
        return parse(self.program, file=name)


def read_cases(file: Path) -> list[Case]:
    """All cases of a file.

    Raises
    ------
    BadFileTest : a case without a header, without ``----``, or of an unknown kind.
    """
    cases = []
    line = 1
    for chunk in _split(read_text(file), DIVIDER):
        cases.append(_read_case(file, line, chunk))
        line += chunk.count("\n") + 1
    return cases


def run_case(case: Case) -> str:
    """What becomes of the case's program, in the form that ``.tile`` files hold."""
    return KINDS[case.kind](case.parse, case.arguments, case.options).strip("\n")


def update_file(file: Path, outcomes: dict[int, str]) -> None:
    """Rewrite a file with the outcomes given by the line where their cases begin."""
    cases = [replace(case, expected=outcomes.get(case.line, case.expected)) for case in read_cases(file)]
    chunks = [f"# {case.header}\n{case.program.strip(chr(10))}\n{ARROW}\n{case.expected}\n" for case in cases]
    write_text(file, f"{DIVIDER}\n".join(chunks))


def _split(text: str, mark: str) -> list[str]:
    """The parts of `text` between lines that are just `mark`."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == mark:
            parts.append([])
        else:
            parts[-1].append(line)
    return ["\n".join(part) + "\n" for part in parts]


def _read_case(file: Path, line: int, chunk: str) -> Case:
    header, _, rest = chunk.partition("\n")
    parts = _split(rest, ARROW)
    where = f"{file}:{line}"
    if not header.startswith("#"):
        raise BadFileTest(f"{where}: a case begins with `# kind arguments`", hint=f"kinds: {', '.join(KINDS)}")
    words = header.lstrip("# ").split()
    if not words or words[0] not in KINDS:
        known = near(words[0] if words else "", list(KINDS)) or f"kinds: {', '.join(KINDS)}"
        raise BadFileTest(f"{where}: unknown kind {words[0] if words else ''!r}", hint=known)
    if len(parts) != 2:
        raise BadFileTest(f"{where}: a case has one line {ARROW!r} between its program and what is expected")
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    arguments = tuple(word for word in words[1:] if "=" not in word)
    title = header.lstrip("# ").rstrip()
    return Case(file, line, title, parts[0], parts[1].strip("\n"), words[0], arguments, options)
