"""`DeviceBinary`: machine code for a GPU, and what its compiler said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.errors import Span

_HINTS = {
    "local memory": "registers have no addresses: index the array by constants and by loops over constants that "
    "are written out (T.unroll), "
    "or keep it in a shared tile",
}
"""What an author can do, by the kind of a warning."""


@dataclass(frozen=True, slots=True)
class CompilerWarning:
    """A loss of speed that the compiler reported.

    Attributes
    ----------
    kind : ``"spill"``, ``"local memory"``, ``"serialized"`` (wgmma waits for each other), ``"injected"`` (the
        compiler added a wait or an arrive) or ``"setmaxnreg"`` (ignored).
    kernel : the function it concerns.
    message : one sentence.
    spans : the author's lines it concerns, as far as they are known.
    """

    kind: str
    kernel: str
    message: str
    spans: tuple[Span, ...] = ()

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> CompilerWarning:
        """One that was kept as JSON (`dataclasses.asdict`)."""
        return CompilerWarning(**{**record, "spans": tuple(Span(**span) for span in record["spans"])})

    @property
    def hint(self) -> str | None:
        """What an author can do about it."""
        return _HINTS.get(self.kind)


class DeviceBinary(Protocol):
    """What a target keeps of a compiled text, in a cache entry.

    Attributes
    ----------
    assembly : the text that the machine code was made of.
    resources : by kernel, what it takes of a multiprocessor: a dataclass with at least ``registers`` and
        ``shared_bytes``, all numbers.
    warnings : losses of speed that the compiler reported.
    """

    @property
    def assembly(self) -> str: ...

    @property
    def resources(self) -> Mapping[str, Any]: ...  # a dataclass of each family's own

    @property
    def warnings(self) -> tuple[CompilerWarning, ...]: ...

    def machine_code(self) -> str:
        """The machine code as text.  Raises CompilerNotFound without a disassembler."""
        ...
