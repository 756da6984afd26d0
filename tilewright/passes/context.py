"""What a pass may ask besides the program: the machine, the schedule, the target's overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, cast

from tilewright.arith import Analyzer
from tilewright.errors import Span
from tilewright.ir.nodes import Function, Statement
from tilewright.machine.arch import Arch

Override: TypeAlias = "Callable[[Any, Context], Statement | None]"
"""A target's way to lower one operator: a statement, or None to leave it to the generic lowering."""

T = TypeVar("T")

Pass: TypeAlias = "Callable[[Function, Context], Function]"


@dataclass(frozen=True, slots=True)
class Schedule:
    """What tuning may vary; None means that a pass decides.  Part of every cache key.

    Attributes
    ----------
    num_stages : of every pipelined loop.
    cluster : blocks that share loads (`form_clusters`); 1 for none.
    persistent : whether blocks stay for many tiles (`persist_grid`), or ``"claim"`` them.
    ping_pong : whether two consumers of a block work at different tiles in turn (`ping_pong`).
    """

    num_stages: int | None = None
    cluster: int | None = None
    persistent: bool | str | None = None
    ping_pong: bool | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Something the author should know that is not an error: a warning, or why a better way was refused."""

    kind: str
    message: str
    span: Span | None = None
    hint: str | None = None

    def __str__(self) -> str:
        place = f"\n{self.span.show()}" if self.span else ""
        return f"{self.kind}: {self.message}{place}" + (f"\n  help: {self.hint}" if self.hint else "")


@dataclass(frozen=True, slots=True, eq=False)
class Fact(Generic[T]):
    """What passes leave for later ones: its name, and what makes it before anybody has left anything (None where
    nothing can).

    >>> from tilewright.passes.context import CHOICES, Facts
    >>> Facts()[CHOICES]
    []
    """

    name: str
    first: Callable[[], T] | None = None


class Facts:
    """Values by `Fact`, each of its fact's type."""

    def __init__(self, held: Mapping[Fact[Any], Any] | None = None) -> None:
        self._held = dict(held or {})

    def __getitem__(self, fact: Fact[T]) -> T:
        if fact not in self._held and fact.first is not None:
            self._held[fact] = fact.first()
        return cast("T", self._held[fact])

    def having(self, fact: Fact[T], value: T) -> Facts:
        """The same facts and one more."""
        return Facts({**self._held, fact: value})


CHOICES: Fact[list[str]] = Fact("choices", list)
"""What ``explain()`` says of how operators are executed, in the order of the passes."""


@dataclass(slots=True)
class Context:
    """Shared by the passes of one compilation.

    Attributes
    ----------
    overrides : the target's lowerings by operator class.
    diagnostics : collected for the author; the runtime shows them once.
    facts : what passes leave for later ones and for ``explain()``, by `Fact`.
    analyzer : what holds at the operator that is being lowered, for overrides; None elsewhere.
    """

    arch: Arch
    schedule: Schedule = Schedule()
    overrides: Mapping[type[Statement], Override] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)
    analyzer: Analyzer | None = None

    def warn(self, message: str, span: Span | None = None, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic("warning", message, span, hint))

    def chose(self, words: str, span: Span | None) -> None:
        """Tell ``explain()`` what was chosen for a statement."""
        place = f"{span.file}:{span.line}: " if span else ""
        self.facts[CHOICES].append(f"{place}{words}")

    def note(self, message: str, span: Span | None = None) -> None:
        self.diagnostics.append(Diagnostic("note", message, span))
