"""`Vocabulary`: what the emulator must know of the words that a family's kernels are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.machine import CopyEngine

HOST = Path(__file__).parents[1] / "emulator" / "host"
"""Where vocabularies' headers lie."""

WORDS = HOST / "words"
"""Words that are plain C++ above the emulator's core, for any number of lanes: among the `shared` folders of those who
have them."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of a machine family, as headers for the emulator's core and as facts about its texts.

    The headers implement the words by calls of ``emulator/host/core/interface.h``; one of them says by
    ``#define TW_WARP_SIZE`` how many lanes run together.

    Attributes
    ----------
    name : of the family.
    folder : where the headers lie.
    shared : further folders of headers, which device and emulator share because they are plain C++.
    generated : names of headers (an expression) that only the device's compiler needs: here they are empty.
    talks : words (an expression) of texts whose blocks may talk to each other: those run on one core, so that a seed
        reproduces them, and what a block knows of others is followed.
    kernels : an expression whose group is the name of a kernel, where its head is found in a text up to the parameters.
    restrict : the word for a pointer to memory that nobody else writes; none where texts promise no such thing.
    rewritten : expressions and what stands for what they match, for words that no header can give their meaning.
    scalars_in_memory : numbers come to kernels as pointers to one of them, as int64 or float32.
    memory_unit : bytes in which memory is handed out: what lies in the last one beside an array is no other's.
    spaces : barriers say which memory they order.
    flushes : the device takes subnormal floats for zeros.
    threads, shared_bytes : of a multiprocessor.
    launch_registers : that a thread has when its block of so many starts, so many of which run on one multiprocessor;
        None where the budget is not checked.
    registers_least, registers_most, registers_step : that a thread may ask for when it runs; counts are multiples of
        the last.
    block_threads, reserved_bytes : the most threads of a block; shared memory that the system keeps of each.
    shared_base : where a block's own shared memory begins among the addresses of shared memory.
    named_barriers : of a block, that of all its threads among them.
    group_warps : that issue an asynchronous product, and change their registers, together; 0 where there is no such.
    copy_engine : whose limits hold for maps of tensors that are arguments; None where no kernel takes such a map.
    signal_most : arrivals, and bytes, that a phase of a barrier in shared memory counts; 0 where there is none.
    words : the maker's, in names of what the core does and has (`reports.called`).

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
    kernels: str = r"\bTW_KERNEL\([^()]*\)\s*(\w+)\s*\("
    restrict: str = "TW_RESTRICT"
    rewritten: tuple[tuple[str, str], ...] = ()
    scalars_in_memory: bool = False
    memory_unit: int = 1
    spaces: bool = False
    flushes: bool = False
    threads: int = 2048
    shared_bytes: int = 228 << 10
    launch_registers: Callable[[int, int], int] | None = None
    registers_least: int = 1
    registers_most: int = 0
    registers_step: int = 1
    block_threads: int = 1024
    reserved_bytes: int = 0
    shared_base: int = 1024
    named_barriers: int = 1
    group_warps: int = 0
    copy_engine: CopyEngine | None = None
    signal_most: int = 0
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where headers are looked for, in this order."""
        return (self.folder, *self.shared)
