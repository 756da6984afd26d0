"""The target of a GPU that nobody makes: its words, and how its texts get into the emulator.  There is nothing else to run them on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from loom_machine import LOOM, PRODUCTS

from tilewright.errors import MissingCapability
from tilewright.interpreter.evaluate import SPECIAL_CALLS
from tilewright.ir import INTRINSICS, NAMED_BARRIERS, Function, key, nodes
from tilewright.machine.arch import Arch
from tilewright.targets.base import TARGETS, Source, Target, arch_of, known_name
from tilewright.targets.c_family import Names, Spellings, Text
from tilewright.targets.emulation import WORDS, Vocabulary
from tilewright.targets.gpu import emit as gpu
from tilewright.targets.gpu.emit import Dialect, KernelText
from tilewright.targets.gpu.lower import OVERRIDES
from tilewright.targets.gpu.meanings import register_products
from tilewright.targets.gpu.printer import GpuPrinter
from tilewright.targets.gpu.spellings import KEYWORDS, TYPES

CALLED = {
    "sync_threads": "rendezvous", "sync_warp": "line_up", "shuffle": "pick", "shuffle_xor": "swap", "shuffle_up": "pass_on",
    "shuffle_down": "pass_back", "ballot": "show_of_hands", "warp_uniform": "first_of_all", **{one.function: "weave" for one in PRODUCTS},
    "async_copy": "fetch", "async_copy_zfill": "fetch", "async_copy_commit": "fetched", "async_copy_wait": "await_fetched", "async_copy_signal_arrive_noinc": "raise_when_fetched",
    "box_load": "shuttle_in", "box_store": "shuttle_out", "box_reduce_add": "shuttle_onto", "bulk_load": "bolt_in",
    "bulk_store": "bolt_out", "bulk_commit": "sent", "bulk_wait": "await_sent", "bulk_wait_read": "await_taken",
    "signal_init": "plant", "fence_signal_init": "planted", "signal_arrive": "raise", "signal_wait": "await",
    "signal_expect_tx": "announce", "signal_arrive_expect_tx": "raise_announcing", "fence_proxy_async": "show",
    "fence_proxy_async_shared": "show_near", "named_barrier_sync": "gather_some", "named_barrier_arrive": "pass_by",
}  # fmt: skip
"""Its own names for functions that every GPU has."""


class LoomPrinter(GpuPrinter):
    """Prints the body of one kernel."""

    dialect: ClassVar[Spellings] = Spellings(
        TYPES, KEYWORDS | {"weaver", "near", "far", "alone", "loom", "place", "strand"}, unroll="#pragma unroll"
    )
    restrict: ClassVar[str] = "alone"
    space: ClassVar[Mapping[str, str]] = {"global": "far", "shared": "near"}

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.patterns: dict[object, str] = {}
        """Parameters that describe tensors to the copy engine."""

    def expression_Call(self, call: nodes.Call) -> Text:
        function = re.sub("_hint$|_prefetch$", "", call.function)  # no cache of its is told anything
        arguments = [one for one in call.arguments if not isinstance(one, str)] if function in CALLED else []
        if function.startswith("async_copy") and function != call.function:
            arguments = arguments[: 2 + ("zfill" in function)]
        if function not in CALLED:
            return super().expression_Call(call)
        name = CALLED[function]
        if name == "fetch":
            place = call.regions[0]
            name = f"fetch<{place.dtype.nbytes(int(str(place.extents[-1])))}>"
        return self.call(f"loom::{name}", *(self._argument(part) for part in arguments))

    def expression_TensorMap(self, node: nodes.TensorMap) -> Text:
        return Text(self.patterns[key(node)])


class LoomKernel(KernelText):
    """One kernel."""

    block_index: ClassVar[str] = "place().{axis}"
    thread_index: ClassVar[str] = "strand()"
    keywords: ClassVar[frozenset[str]] = LoomPrinter.dialect.keywords

    def make_printer(self, names: Names) -> LoomPrinter:
        return LoomPrinter(names)

    def parameter(self, param: nodes.Buffer | nodes.Var | nodes.TensorMap) -> str:
        if not isinstance(param, nodes.TensorMap):
            return super().parameter(param)
        assert isinstance(self.printer, LoomPrinter)
        name = self.printer.patterns.setdefault(key(param), self.printer.names.fresh(f"{param.tensor.name}_pattern"))
        return f"const loom::Pattern {name}"

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
)  # fmt: skip

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
    vocabulary = replace(
        VOCABULARY, threads=machine.max_threads, shared_bytes=machine.shared_bytes, copy_engine=machine.copy_engine,
        named_barriers=NAMED_BARRIERS, signal_most=0 if machine.signals is None else 1 << 16,
    )  # fmt: skip
    target = replace(TARGET, arch=named(machine), emulation=vocabulary)
    if words is not None:
        vocabulary = replace(vocabulary, folder=words, shared=(VOCABULARY.folder, *VOCABULARY.shared))
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
