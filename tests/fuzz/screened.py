"""Whether a defect of the compiler changes what is emitted of a program, without emitting it again.

A change of the compiler that leaves the text of a program as it was changes nothing that the program does.  The compilation with all remedies
is recorded: what each pass got and gave, and which defects' statements it went through (`reached`).  A defect changes the text only where one
of these passes, given the same again with the defect in place (`swapped`), gives something else.  Tracing comes before the passes, and
emitting behind them; both are tried again in the same way.  Only where something differs is the whole text made.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import judge
import tile_fuzz
from reached import note_in, touched
from swapped import Swap, functions_of, mark
from tile_programs import TileProgram

from tilewright import compiler
from tilewright.arith import common_knowledge
from tilewright.collection import no_collection
from tilewright.errors import TilewrightError
from tilewright.ir.nodes import Function
from tilewright.ir.records import Table, Unwritable
from tilewright.machine.arch import Arch
from tilewright.passes.context import CHOICES, Context, Facts, Schedule
from tilewright.passes.manager import Step, Trace, run_passes
from tilewright.runtime import facts
from tilewright.runtime.kernel import Kernel
from tilewright.targets.base import Target

ROOT = Path(__file__).resolve().parents[2]

TELLING = ("cpu", "cuda")
"""Most passes are every machine's, and the processor and NVIDIA's tell of them."""


def targets(seed: int) -> tuple[str, ...]:
    return tile_fuzz.targets_of(seed, tile_fuzz.program_of(seed))


def screens(seed: int) -> tuple[str, ...]:
    """The first machine of each kind among a seed's targets."""
    chosen = targets(seed)
    kinds = dict.fromkeys(one.split()[0] for one in chosen)
    return tuple(next(one for one in chosen if one.startswith(kind)) for kind in kinds)


# A compilation -----------------------------------------------------------------------------------


@dataclass
class Ran:
    """A pass of a compilation: what it got and gave, and the defects that it went through."""

    step: Step | None
    function: Function
    facts: Facts
    given: Given
    reached: set[str]

    def again(self, lowering: Lowering) -> Given:
        """What it gives now."""
        if self.step is None:
            return Given.of(lambda: repr(lowering.target.emit(self.function, lowering.arch)))
        context = Context(lowering.arch, lowering.schedule, lowering.target.overrides, facts=_copied(self.facts))
        if (self.step.name, self.step.why) not in {(one.name, one.why) for one in compiler.PIPELINE}:
            return Given((self.function, context.facts))
        step = self.step
        with common_knowledge():
            return Given.of(lambda: (run_passes(self.function, [step], context)[0], context.facts))


@dataclass
class Given:
    """A result, or the name of the error that there was instead."""

    value: Any
    _text: str | None = None

    @classmethod
    def of(cls, make: Any) -> Given:
        try:
            return cls(make())
        except Exception as error:
            return cls(said_of(error))

    @property
    def text(self) -> str | None:
        """The same for what is the same but for the objects that it consists of; None where that cannot be said."""
        if isinstance(self.value, str):
            return self.value
        if self._text is None:
            table = Table()
            try:
                self._text = table.text(table.add(_plain(self.value)))
            except (Unwritable, RecursionError):
                return None
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and self.text is not None and self.text == other.text


@dataclass
class Lowering:
    """What `compile_function` was given, and what it did."""

    function: Function
    target: Target
    arch: Arch
    schedule: Schedule
    passes: list[Ran] = field(default_factory=list)
    program: compiler.Program | None = None
    error: Exception | None = None


_class = facts._class


def _class_of_any_memory(tensor: Any, address: int, *others: Any) -> Any:
    """A tensor's class in memory that begins at a multiple of many bytes, as it does or does not from call to call."""
    return _class(tensor, address % 16, *others)


def said_of(error: Exception) -> str:
    known = isinstance(error, (TilewrightError, *judge.BROKEN))
    return type(error).__name__ if known else f"traceback {type(error).__name__}"


def _copied(held: Facts) -> Facts:
    return Facts({fact: copy.copy(value) for fact, value in held._held.items()})


def _plain(value: Any) -> Any:
    """Facts and sets in forms that a table has; what passes say of their choices is no part of the text."""
    if isinstance(value, Facts):
        return tuple((fact.name, _plain(one)) for fact, one in value._held.items() if fact is not CHOICES)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(_plain, value))
    return frozenset(value) if isinstance(value, set) else value


# A program ---------------------------------------------------------------------------------------


class Recording:
    """The compilation of a program for a target: its text, and which defects it goes through where."""

    def __init__(self, program: TileProgram, target: str) -> None:
        self.program, self.target = program, target
        self.lowerings: list[Lowering] = []
        self.outside: set[str] = set()
        self.kernel: Kernel | None = None
        with self._lowered_by(self._recorded):
            note_in(self.outside)
            self.said = self._said()
            note_in(set())

    @property
    def reached(self) -> set[str]:
        return self.outside.union(*(one.reached for lowering in self.lowerings for one in lowering.passes))

    def interpreted(self) -> tuple[set[str], str]:
        """The defects that a run of the interpreter goes through, and what it gives."""
        found: set[str] = set()
        said = ""
        if self.kernel is not None:
            note_in(found)
            try:
                said = repr([array.tobytes() for array in judge.run(self.kernel.interpret, self.program.arguments)])
            except Exception as error:
                said = said_of(error)
            note_in(set())
        return found, said

    def _said(self) -> str:
        """What the compiler of the machine is given; or what the error is called."""
        try:
            self.kernel = self.program.compile(self.target)
            return repr(self.kernel.variant(*self.program.arguments).program.source)
        except Exception as error:
            return said_of(error)

    @contextmanager
    def _lowered_by(self, lowered: Any) -> Iterator[None]:
        with (
            mock.patch("tilewright.runtime.kernel.lowered", lowered),
            mock.patch("tilewright.runtime.facts._class", _class_of_any_memory),
            no_collection(),
        ):
            yield

    def _recorded(self, function: Function, target: Target, arch: Arch, schedule: Schedule) -> compiler.Program:
        lowering = Lowering(function, target, arch, schedule)
        self.lowerings.append(lowering)

        def run(function: Function, steps: Sequence[Step], context: Context) -> tuple[Function, list[Trace]]:
            traces: list[Trace] = []
            for step in steps:
                if step.when is None or step.when(context):
                    ran = Ran(step, function, _copied(context.facts), Given(""), set())
                    lowering.passes.append(ran)
                    note_in(ran.reached)
                    try:
                        function, made = run_passes(function, [step], context)
                    except Exception as error:
                        ran.given = Given(said_of(error))
                        raise
                    ran.given = Given((function, _copied(context.facts)))
                    traces += made
            last = Ran(None, function, Facts(), Given(""), set())
            lowering.passes.append(last)
            note_in(last.reached)
            return function, traces

        try:
            with mock.patch.object(compiler, "run_passes", run):
                lowering.program = compiler.compile_function(function, target, arch, schedule)
            lowering.passes[-1].given = Given(repr(lowering.program.source))
        except Exception as error:
            lowering.passes[-1].given = Given(said_of(error))
            lowering.error = error
            raise
        finally:
            note_in(self.outside)
        return lowering.program

    def differs(self, swap: Swap, defect: str) -> bool:
        """Whether the text is another one with a defect that the compilation goes through."""
        with swap.in_place():
            same = (defect not in self.outside or self._same_outside()) and all(
                one.again(lowering) == one.given
                for lowering in self.lowerings
                for one in lowering.passes
                if defect in one.reached or (one.step is not None and one.step not in compiler.PIPELINE)
            )
            return not same and self.text_now() != self.said

    def text_now(self) -> str:
        """The text, made from the beginning."""
        with self._lowered_by(compiler.compile_function):
            return self._said()

    def _same_outside(self) -> bool:
        """Whether tracing gives the passes the same functions, and the same variant is chosen."""
        calls = iter(self.lowerings)
        same = True

        def lowered(function: Function, *machine: Any) -> compiler.Program:
            nonlocal same
            known = next(calls, None)
            if known is None or Given(function) != Given(known.function):
                same = False
                raise TilewrightError("another program")
            if known.program is None:
                raise known.error or TilewrightError("no program")
            return known.program

        with self._lowered_by(lowered):
            said = self._said()
        return same and said == self.said and next(calls, None) is None


# Defects -----------------------------------------------------------------------------------------


class Defects:
    """Some defects in this process, and what each changes.

    Parameters
    ----------
    patches : by name.
    texts : by name, what each makes of the files that it changes; nothing for one of headers.
    """

    def __init__(self, patches: dict[str, str], texts: dict[str, dict[Path, str]]) -> None:
        lines, _ = touched({name: patch for name, patch in patches.items() if name in texts}, ROOT)
        live = functions_of({file for made in texts.values() for file in made}, ROOT)
        note_in(set())
        self.unmarked = mark(lines, live)
        self.swaps = {name: Swap(made, live) for name, made in texts.items()}
        self.of_interpreter = {
            name for name, made in texts.items() if any("interpreter" in file.parts for file in made)
        }
        self.words = {name: _words(patch) for name, patch in patches.items() if name not in texts}

    def changed(self, seed: int, sought: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The targets on which a program may show a defect: of most those whose text it changes, of one of headers those
        whose text mentions it, of one by which the
        interpreter gives something else all."""
        program = tile_fuzz.program_of(seed)
        recordings = {target: Recording(program, target) for target in screens(seed)}
        found: dict[str, tuple[str, ...]] = {}
        telling = tuple(one for one in recordings if one.startswith(TELLING))
        interpreted, numbers = set[str](), ""
        taken = next((made for made in recordings.values() if made.kernel is not None), None)
        if taken is not None and self.of_interpreter & {*sought}:
            interpreted, numbers = taken.interpreted()
        for defect in sought:
            if taken is not None and defect in interpreted:
                with self.swaps[defect].in_place():
                    if taken.interpreted()[1] != numbers:
                        found[defect] = telling
                        continue
            if defect in self.words:
                pattern = re.compile("|".join(map(re.escape, self.words[defect])))
                found[defect] = tuple(
                    one for one, made in recordings.items() if one.startswith(TELLING) and pattern.search(made.said)
                )
                continue
            mine = [one for one, made in recordings.items() if defect in made.reached or self.is_step(defect, made)]
            told = [one for one in mine if one.startswith(TELLING)] or mine
            found[defect] = tuple(one for one in told if recordings[one].differs(self.swaps[defect], defect))
        return {defect: chosen for defect, chosen in found.items() if chosen}

    def leave(self) -> None:
        """Functions no longer say what they go through."""
        for function, code in self.unmarked:
            function.__code__ = code

    def is_step(self, defect: str, made: Recording) -> bool:
        """Whether a defect leaves a pass out that a compilation went through."""
        with self.swaps[defect].in_place():
            steps = compiler.PIPELINE
        return any(
            one.step is not None and one.step not in steps for lowering in made.lowerings for one in lowering.passes
        )


def _words(patch: str) -> set[str]:
    """The functions of headers that a patch changes: the text of a program that uses none of them is no other program's."""
    words = set()
    for hunk in re.split(r"^@@.*@@.*\n", patch, flags=re.MULTILINE)[1:]:
        heads = [re.search(r"(\w+)(?:##\w+)?\([^()]*\)(?: const)? \{", line) for line in hunk.splitlines()]
        changed = [line[:1] in "-+" and not line.startswith(("---", "+++")) for line in hunk.splitlines()]
        head = None
        for match, change in zip(heads, changed, strict=True):
            head = match[1] if match and match[1] not in ("if", "for", "while", "switch") else head
            if change:
                if head is None:
                    raise ValueError(f"no function above the change\n{hunk}")
                words.add(head)
    return words
