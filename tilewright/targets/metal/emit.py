"""A final program as one text of Metal Shading Language, which compiles by itself: the vocabulary that it uses stands
before its kernels; and what it spells in other words than C++ for other GPUs."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from tilewright.arith import Analyzer
from tilewright.errors import MissingCapability
from tilewright.ir import Buffer, DType, Function, Kernel, TensorMap, Var, root, touched
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.ops.prints import in_c
from tilewright.targets.base import Source
from tilewright.targets.c_family import Names, Spellings, Text
from tilewright.targets.gpu import emit as gpu
from tilewright.targets.gpu.emit import Dialect, KernelText, exchanges_tensors
from tilewright.targets.gpu.headers import COMMON
from tilewright.targets.gpu.printer import GpuPrinter
from tilewright.targets.gpu.spellings import KEYWORDS as CXX_KEYWORDS
from tilewright.targets.gpu.spellings import TYPES as CXX_TYPES
from tilewright.texts import read_text

TYPES: Mapping[str, str] = {
    **{name: word for name, word in CXX_TYPES.items() if name != "float64"},
    "float16": "half", "bfloat16": "bfloat",
}  # fmt: skip
"""Metal's type of one element; it has halves and bfloats itself, and no doubles."""

KEYWORDS = frozenset({
    *CXX_KEYWORDS, "kernel", "device", "threadgroup", "constant", "thread", "vertex", "fragment", "bfloat", "uint",
    "ushort", "uchar", "ulong", "metal", "vec", "access", "sampler", "texture", "threadgroup_position_in_grid",
    "thread_index_in_threadgroup",
})  # fmt: skip

SPELLINGS = Spellings(TYPES, KEYWORDS, unroll="#pragma unroll")


class MetalPrinter(GpuPrinter):
    """Prints the body of one kernel."""

    dialect: ClassVar[Spellings] = SPELLINGS
    restrict: ClassVar[str] = "__restrict"
    space: ClassVar[Mapping[str, str]] = {"global": "device", "shared": "threadgroup", "register": "thread"}

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.small: set[ir.Buffer] = set()
        """Tensors that are handed over in constant memory."""

    def memory(self, buffer: ir.Buffer, constant: bool = False) -> str:
        text = super().memory(buffer, constant)
        return text.replace("device ", "constant ", 1) if root(buffer) in self.small else text

    def literal(self, value: int | float | bool, dtype: DType) -> Text:
        if dtype.is_integer and dtype.bits == 64:
            # Metal has no long long: a long has 64 bits.
            text = super().literal(value, dtype)
            return Text(text.text.replace("ll", "l"), text.precedence)
        return super().literal(value, dtype)

    def number_of_code(self, kind: str, code: Text) -> Text:
        return Text(f"{kind}({code})")

    def _atomic(self, call: ir.Call) -> Text:
        *_, order = call.arguments
        if order != "relaxed":
            raise MissingCapability(
                f"{call.function} with the order {order!r}: Metal's atomics are relaxed",
                span=self._span,
                hint='leave memory_order out, or pass "relaxed"; blocks of one launch cannot hand over memory there',
            )
        return super()._atomic(call)

    def _stored(self, call: ir.Call) -> Text:
        """A matrix to memory, by its first element and the distance between its rows."""
        first, second, part = call.regions
        apart = Analyzer().simplify(second.starts[0] - first.starts[0])
        return self.call(
            f"tw::{call.function}", self._pointer(first), self.expression(apart), Text(self.names.of(part.buffer))
        )

    calls: ClassVar[Mapping[str, str]] = {**GpuPrinter.calls, "simdgroup_store": "_stored"}

    def _printed(self, call: ir.Call) -> Text:
        """A line of the system's log; a long has 64 bits there, and the log ends lines itself."""
        text = super()._printed(call).text.removeprefix("tw::print")
        return Text("metal::os_log_default.log" + re.sub(r"%ll(?=[ud])", "%l", text).replace('\\n"', '"', 1))

    def statement_Assert(self, check: ir.Assert) -> None:
        """What does not hold is said in the system's log: a kernel cannot stop."""
        place = f"{Path(check.span.file).name}:{check.span.line}: " if check.span else ""
        said = in_c(f"{place}{check.message or 'device assertion failed'}".replace("%", "%%"))
        self.line(f"if (!({self.value(check.condition)})) metal::os_log_default.log_fault({said});")


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
