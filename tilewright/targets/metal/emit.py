"""A final program as one text of Metal Shading Language, which compiles by itself: the vocabulary that it uses stands
before its kernels."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from tilewright.ir import Buffer, Function, Kernel, TensorMap, Var, touched
from tilewright.machine.arch import Arch
from tilewright.targets.base import Source
from tilewright.targets.c_family import Names
from tilewright.targets.gpu import emit as gpu
from tilewright.targets.gpu.emit import Dialect, KernelText, exchanges_tensors
from tilewright.targets.gpu.headers import COMMON
from tilewright.targets.metal.printer import KEYWORDS, TYPES, MetalPrinter
from tilewright.texts import read_text

DIRECTORY = Path(__file__).parent / "device"

PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("numbers", ()), ("memory", ("numbers",)), ("math", ("numbers",)), ("simd", ("memory", "math")),
    ("matrix", ("memory",)), ("atomic", ("memory", "math")),
)  # fmt: skip
"""Parts of the vocabulary in the order of a text, each with those that it is written in."""

LOG = (
    "#if __METAL_VERSION__ < 320", "#error T.print and T.device_assert take Metal 3.2, which macOS 15 has", "#endif",
    "#include <metal_logging>",
)  # fmt: skip
"""What a text that speaks includes: lines go to the system's log."""

INDICES = (
    "uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]",
    "uint thread_index_in_threadgroup [[thread_index_in_threadgroup]]",
)
"""Parameters that say which thread runs; `mx.fast.metal_kernel` gives them by the same names."""


def emit(function: Function, arch: Arch) -> Source:
    """Metal text of a final program.  Raises MissingCapability where it has numbers or words that Metal lacks."""
    made = gpu.emit(function, arch, METAL)
    title, rest = in_ascii(made.text).split("\n", 1)
    vocabulary = vocabulary_of(rest)
    lines = vocabulary.count("\n") + 1
    # Whatever compiles the text tells the vocabulary's lines from the author's by the file's name.
    origins = ((1, "tilewright_metal.h", 1), *((place + lines, *at) for place, *at in dict(made.metadata)["origins"]))
    metadata = tuple((name, origins if name == "origins" else value) for name, value in made.metadata)
    return replace(made, text=f"{title}\n{vocabulary}\n{rest}", metadata=metadata)


def in_ascii(text: str) -> str:
    """A text with other letters, which a program may print, as bytes of UTF-8: torch hands texts over in ASCII."""
    return re.sub(r"[^\x00-\x7f]", lambda found: "".join(f"\\{byte:03o}" for byte in found[0].encode()), text)


def vocabulary_of(text: str, library: Sequence[str] = ("#include <metal_stdlib>",)) -> str:
    """The parts of the device vocabulary that a text calls, behind Metal's own library."""
    called = set(re.findall(r"tw::(\w+)", text))
    needed: set[str] = set()
    for name, below in reversed(PARTS):
        if name in needed or called & _defined(name):
            needed |= {name, *below}
    parts = [part_text(name) for name, _ in PARTS if name in needed]
    log = LOG if "metal::os_log_default" in text else ()
    return "\n".join([*library, *log, *ROUNDED, "using namespace metal;", "", *parts])


ROUNDED = (
    "#if __METAL_VERSION__ >= 320", "#pragma METAL fp math_mode(safe)", "#pragma METAL fp contract(off)", "#endif",
    "#pragma clang fp contract(off)",
)  # fmt: skip
"""Every operation is rounded, whatever whoever compiles a text asks for."""

_SHARED = re.compile(r'^#include "(tilewright_\w+\.cuh)"\n', re.MULTILINE)


@functools.cache
def part_text(name: str) -> str:
    """A part of the vocabulary, with what of other GPUs' it includes."""
    text = read_text(DIRECTORY / f"tilewright_{name}.h")
    return _SHARED.sub(lambda found: read_text(COMMON / found[1]).replace("#pragma once\n", ""), text)


@functools.cache
def _defined(name: str) -> frozenset[str]:
    """Names that a part defines."""
    text = part_text(name)
    found = re.findall(r"(?:TW_DEVICE|TW_COMBINED|TW_WHOLE)[^;{}\n]*?\b(\w+)\(", text)
    found += re.findall(r"TW_(?:COMBINED|WHOLE)\((?:SPACE, )?(\w+)", text)
    return frozenset([*found, *re.findall(r"struct (?:alignas\(.*\) )?(\w+)", text)])


class MetalKernel(KernelText):
    """One kernel: pointers say which memory they point to, and scalars come as pointers too."""

    block_index: ClassVar[str] = "int32_t(threadgroup_position_in_grid.{axis})"
    thread_index: ClassVar[str] = "int32_t(thread_index_in_threadgroup)"
    keywords: ClassVar[frozenset[str]] = KEYWORDS

    def make_printer(self, names: Names) -> MetalPrinter:
        printer = MetalPrinter(names)
        printer.shares_tensors = exchanges_tensors(self.kernel)
        return printer

    def signature(self, name: str, parameters: str) -> list[str]:
        placed = [f"{one} [[buffer({number})]]" for number, one in enumerate(parameters.split(", ")) if one]
        return [
            f"[[max_total_threads_per_threadgroup({self.kernel.num_threads})]]",
            f"kernel void {name}({', '.join([*placed, *INDICES])}) {{",
        ]

    def shared_memory(self, size: int) -> str:
        return f"alignas(16) threadgroup uint8_t shared_memory[{-(-size // 16) * 16}];"

    def parameter(self, param: Buffer | Var | TensorMap) -> str:
        if isinstance(param, Var):
            return f"constant {scalar_type(param)}* {self.printer.names.of(param)}_value"
        return super().parameter(param)

    def _rounded(self) -> list[str]:
        """Scalars come as the two types that every way to launch has."""
        types = self.printer.spellings.types
        used = [p for p in self.parameters if isinstance(p, Var) and p in (self.printer.needed or ())]
        scalars = [(types[p.dtype.name], self.printer.names.of(p)) for p in used]
        return [f"  const {kind} {name} = tw::convert<{kind}>({name}_value[0]);" for kind, name in scalars]


class MlxKernel(MetalKernel):
    """The same kernel as a body, whose parameters `mx.fast.metal_kernel` declares: inputs, then outputs.

    Attributes
    ----------
    inputs, outputs : what the kernel reads only, and what it writes.
    small : inputs of few elements, which MLX puts into constant memory.
    """

    def __init__(self, function: Function, kernel: Kernel, arch: Arch, small: Collection[int] = ()) -> None:
        super().__init__(function, kernel, arch)
        own = touched(kernel.body).writes
        self.outputs = [p for p in self.parameters if isinstance(p, Buffer) and p in own]
        self.inputs = [p for p in self.parameters if p not in self.outputs]
        self.small = {self.inputs[number] for number in small}
        self.written, self.workspaces = own, set()
        assert isinstance(self.printer, MetalPrinter)
        self.printer.small = {one for one in self.small if isinstance(one, Buffer)}

    @property
    def input_names(self) -> list[str]:
        return [f"given_{number}" for number in range(len(self.inputs))]

    @property
    def output_names(self) -> list[str]:
        return [f"made_{number}" for number in range(len(self.outputs))]

    def signature(self, name: str, parameters: str) -> list[str]:
        names = dict(zip([*self.inputs, *self.outputs], [*self.input_names, *self.output_names], strict=True))
        lines = []
        for param, given in names.items():
            if isinstance(param, Var):
                lines.append(f"  const constant {scalar_type(param)}* {self.printer.names.of(param)}_value = {given};")
            elif isinstance(param, Buffer):
                kind = f"{self.printer.memory(param, param not in self.written)}*"
                restrict = "" if param in self.unsettled else f"{self.printer.restrict} "
                named = f"{kind} {restrict}{self.printer.names.of(param)}"
                lines.append(f"  {named} = reinterpret_cast<{kind}>({given});")
        return lines

    def body(self) -> tuple[str, str]:
        """The header, and the body with its declarations."""
        text = "\n".join([*self.head("body"), *self.printer.lines])
        return vocabulary_of(text, library=()), in_ascii(text)  # MLX includes the library itself


def scalar_type(param: Var) -> str:
    """How a number is handed to a kernel: as torch hands over Python's."""
    return "float" if param.dtype.is_float else "int64_t"


METAL = Dialect("metal", lambda function: [], MetalKernel, frozenset(TYPES))
