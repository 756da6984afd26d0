"""`Vocabulary`: what the emulator must know of the words that a family's kernels are written in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of a machine family, as headers for the emulator's core and as facts about its texts.

    The headers implement the words by calls of ``emulator/host/core/interface.h``; one of them says by ``#define TW_WARP_SIZE``
    how many lanes run together.

    Attributes
    ----------
    name : of the family.
    folder : where the headers lie.
    shared : further folders of headers, which device and emulator share because they are plain C++.
    generated : names of headers (an expression) that only the device's compiler needs: here they are empty.
    talks : words (an expression) of texts whose blocks may talk to each other: those run on one core, so that a seed
        reproduces them, and what a block knows of others is followed.
    threads, shared_bytes, registers : of a multiprocessor; `registers` 0 where the budget is not checked.

    Examples
    --------
    >>> from tilewright.targets.cuda.emulation import CUDA
    >>> CUDA.name, CUDA.threads
    ('cuda', 2048)
    """

    name: str
    folder: Path
    shared: tuple[Path, ...] = ()
    generated: str = ""
    talks: str = ""
    threads: int = 2048
    shared_bytes: int = 228 << 10
    registers: int = 0

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where headers are looked for, in this order."""
        return (self.folder, *self.shared)
