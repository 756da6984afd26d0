"""`DeviceBinary`: machine code for a GPU, and what its compiler said of it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.errors import DeviceCompilationFailed, Span
from tilewright.texts import read_text, write_text

if TYPE_CHECKING:
    from typing_extensions import Self

_HINTS = {
    "local memory": "registers have no addresses: index the array by constants and by loops over constants that "
    "are written out (T.unroll), "
    "or keep it in a shared tile"
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


@dataclass(frozen=True, slots=True)
class DeviceBinary(ABC):
    """Machine code for one architecture and what is known about it; each family's class says how it is kept.

    Attributes
    ----------
    image : the code, as the driver loads it.
    assembly : the text that it was made of; empty where the compiler keeps that to itself.
    resources : by kernel, what it takes of a multiprocessor: a dataclass with at least ``registers`` and
        ``shared_bytes``, all numbers.
    warnings : losses of speed that the compiler reported.
    endings : of the files of the image and of the assembly.
    counted : the class of resources.
    """

    image: bytes
    assembly: str
    resources: dict[str, Any]  # a dataclass of each family's own
    warnings: tuple[CompilerWarning, ...] = ()
    endings: ClassVar[tuple[str, str]]
    counted: ClassVar[type]

    @abstractmethod
    def machine_code(self) -> str:
        """The machine code as text.  Raises CompilerNotFound without a disassembler."""

    def save(self, directory: Path) -> None:
        """Write the binary into a directory, such as a cache entry."""
        image, assembly = self.endings
        (directory / f"kernel.{image}").write_bytes(self.image)
        write_text(directory / f"kernel.{assembly}", self.assembly)
        facts = {
            "resources": {name: asdict(one) for name, one in self.resources.items()},
            "warnings": [asdict(one) for one in self.warnings],
        }
        write_text(directory / "kernel.json", json.dumps(facts))

    @classmethod
    def load(cls, directory: Path) -> Self:
        """What `save` wrote."""
        image, assembly = cls.endings
        facts = json.loads(read_text(directory / "kernel.json"))
        return cls(
            (directory / f"kernel.{image}").read_bytes(),
            read_text(directory / f"kernel.{assembly}"),
            {name: cls.counted(**record) for name, record in facts["resources"].items()},
            tuple(CompilerWarning.of_record(record) for record in facts["warnings"]),
        )


def refused(what: str, errors: Sequence[str], span: Span | None, where: str = "") -> DeviceCompilationFailed:
    """The first of a compiler's errors, at the author's line, and how many follow it.

    Parameters
    ----------
    what : who refuses what, in words.
    where : the place in the text, where it is none of the author's.
    """
    more = f"; {len(errors) - 1} more errors follow it" if len(errors) > 1 else ""
    said = f"{what}{where}: {errors[0]}{more}"
    return DeviceCompilationFailed(said, span=span, hint="kernel.get_kernel_source() shows the text")
