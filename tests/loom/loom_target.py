"""The target of a GPU that nobody makes: its words, and how its texts get into the emulator.  There is nothing else to run them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from loom_machine import LOOM, PRODUCTS

from tilewright.errors import MissingCapability
from tilewright.interpreter.evaluate import SPECIAL_CALLS
from tilewright.ir import INTRINSICS, Function, nodes
from tilewright.machine.arch import Arch
from tilewright.ops import Gemm, Reduce
from tilewright.targets.base import TARGETS, Source, Target, arch_of, known_name
from tilewright.targets.c_family import Names, Spellings, Text
from tilewright.targets.emulation import WORDS, Vocabulary
from tilewright.targets.gpu import emit as gpu
from tilewright.targets.gpu.emit import Dialect, KernelText
from tilewright.targets.gpu.gemm import lower_gemm
from tilewright.targets.gpu.meanings import register_products
from tilewright.targets.gpu.printer import GpuPrinter
from tilewright.targets.gpu.reduce import lower_reduce
from tilewright.targets.gpu.spellings import KEYWORDS, TYPES

CALLED = {
    "sync_threads": "rendezvous", "sync_warp": "line_up", "shuffle": "pick", "shuffle_xor": "swap", "shuffle_up": "pass_on",
    "shuffle_down": "pass_back", "ballot": "show_of_hands", "warp_uniform": "first_of_all", **{one.function: "weave" for one in PRODUCTS},
}  # fmt: skip
"""Its own names for functions that every GPU has."""


class LoomPrinter(GpuPrinter):
    """Prints the body of one kernel."""

    dialect: ClassVar[Spellings] = Spellings(
        TYPES, KEYWORDS | {"weaver", "near", "far", "alone", "loom", "place", "strand"}, unroll="#pragma unroll"
    )
    restrict: ClassVar[str] = "alone"
    space: ClassVar[Mapping[str, str]] = {"global": "far", "shared": "near"}

    def expression_Call(self, call: nodes.Call) -> Text:
        if call.function not in CALLED:
            return super().expression_Call(call)
        return self.call(f"loom::{CALLED[call.function]}", *(self._argument(part) for part in call.arguments))


class LoomKernel(KernelText):
    """One kernel."""

    block_index: ClassVar[str] = "place().{axis}"
    thread_index: ClassVar[str] = "strand()"
    keywords: ClassVar[frozenset[str]] = LoomPrinter.dialect.keywords

    def make_printer(self, names: Names) -> LoomPrinter:
        return LoomPrinter(names)

    def signature(self, name: str, parameters: str) -> list[str]:
        return [f"weaver(strands = {self.kernel.num_threads}) {name}({parameters}) {{"]

    def shared_memory(self, size: int) -> str:
        return f"near uint8_t shared_memory[{size}];"


def emitting(header: str) -> Callable[[Function, Arch], Source]:
    dialect = Dialect("loom", lambda _: [header], LoomKernel, frozenset(TYPES))
    return lambda function, arch: gpu.emit(function, arch, dialect)


def named(machine: Arch) -> Callable[[Mapping[str, str]], Arch]:
    """The machine that options name: there is one."""

    def arch(options: Mapping[str, str]) -> Arch:
        def known(name: str) -> Arch:
            return replace(machine, name=known_name("loom", name, [machine.name]))

        return arch_of("loom", options, known, lambda: None, "cores", machine.name)

    return arch


def build(source: Source, arch: Arch, directory: Path) -> None:
    """There is no compiler."""


def load(directory: Path, source: Source, function: Function, arch: Arch) -> Callable[..., None]:
    raise MissingCapability(f"nobody makes {arch.name}", hint="kernel.emulate(...) runs its texts")


VOCABULARY = Vocabulary(
    "loom", Path(__file__).parent / "words", (WORDS, Path(gpu.__file__).parent / "device"),
    talks=r"\b(atomic_\w+|load_acquire|store_release|grid_sync)\b", kernels=r"\bweaver\([^()]*\)\s*(\w+)\s*\(", restrict="alone",
    rewritten=((r"\bnear uint8_t shared_memory\[\d+\];", "uint8_t* const shared_memory = ::tw_dynamic_shared();"),),
    threads=1024, shared_bytes=64 << 10,
)  # fmt: skip

OVERRIDES = {Gemm: lower_gemm, Reduce: lower_reduce}
TARGET = Target(
    "loom", lambda: None, named(LOOM), OVERRIDES, emitting("loom.h"), lambda _: "nobody's", build, load, None, VOCABULARY
)  # fmt: skip


@contextmanager
def made(machine: Arch = LOOM, words: Path | None = None) -> Iterator[Target]:
    """The machine is there as long as a test wants it: others look at all that are.

    Parameters
    ----------
    words : a folder whose header of drawn products stands before LOOM's words.
    """
    target = replace(TARGET, arch=named(machine))
    if words is not None:
        vocabulary = replace(VOCABULARY, folder=words, shared=(VOCABULARY.folder, *VOCABULARY.shared))
        target = replace(target, emit=emitting("drawn.h"), emulation=vocabulary)
    own = {one.function for one in machine.matrix_instructions}
    assert not own & set(INTRINSICS)
    register_products(machine.matrix_instructions)
    before = TARGETS.get(target.name)
    TARGETS[target.name] = target
    try:
        yield target
    finally:
        TARGETS.pop(target.name) if before is None else TARGETS.update({target.name: before})
        for name in own:
            del INTRINSICS[name], SPECIAL_CALLS[name]
