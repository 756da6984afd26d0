"""A final program as one text of C++ for GPUs: its kernels, in the order of the host program.

`KernelText` prints one kernel; a family's own says which printer it takes, what it includes, and which parameters it
has besides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright.errors import InternalError, MissingCapability, Span
from tilewright.ir import BOOL, DType, accesses, key, own, own_names, root, size_variables, touched, written_parameters
from tilewright.ir import nodes as ir
from tilewright.ir.walking import children, find, kernels, walk
from tilewright.machine.arch import Arch
from tilewright.passes.thread.plan_shared_memory import BYTES, OFFSETS, shared_allocations
from tilewright.targets.base import Source
from tilewright.targets.c_family import Names
from tilewright.targets.gpu.printer import GpuPrinter, needed_names
from tilewright.targets.gpu.spellings import KEYWORDS, TYPES
from tilewright.texts import file_name, readable


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a family's texts have of their own.

    Attributes
    ----------
    language : suffix of a file with such a text.
    includes : headers of a program, those of every one first.
    kernel : prints a kernel.
    types : numbers that its device has words for.
    """

    language: str
    includes: Callable[[ir.Function], list[str]]
    kernel: type[KernelText]
    types: Container[str] = frozenset(TYPES)


def emit(function: ir.Function, arch: Arch, dialect: Dialect) -> Source:
    """The text of a final program; the launcher runs the host program itself.

    Raises
    ------
    MissingCapability : the program has numbers of a type that the device has no words for.
    """
    try:
        return _text(function, arch, dialect)
    except KeyError:
        for kernel in kernels(function):
            _check_types(kernel, kernel.span, arch, dialect.types)
        raise


def _text(function: ir.Function, arch: Arch, dialect: Dialect) -> Source:
    where = f" ({readable(function.span.file, '')}:{function.span.line})" if function.span else ""
    lines = [
        f"// {function.name}{where}, compiled by tilewright for {arch.name}.",
        *(f'#include "{name}"' for name in dialect.includes(function)),
        *(line for text in function.attribute("sources", ()) for line in ("", *text.strip("\n").split("\n"))),
        "",
    ]
    entries, shared, origins = [], [], []
    for position, kernel in enumerate(kernels(function)):
        # The suffix keeps the author's name apart from what C and C++ know by it: `main`, `exp`, `copy`.
        name = f"{Names(dialect.kernel.keywords).fresh(function.name)}_kernel" + (f"_{position}" if position else "")
        printed = dialect.kernel(function, kernel, arch)
        head = printed.head(name)
        origins += [(len(lines) + len(head) + place, span.file, span.line) for place, span in printed.printer.marks]
        lines += [*head, *printed.printer.lines, "}", ""]
        entries.append(name)
        shared.append(kernel.attribute(BYTES, 0))
    metadata = (("shared_bytes", tuple(shared)), ("origins", tuple(origins)))
    return Source("\n".join(lines), dialect.language, (), tuple(entries), metadata)


def _check_types(node: object, span: Span | None, arch: Arch, types: Container[str]) -> None:
    """Refuse numbers that the device has no words for, at the statement that uses them first."""
    span = getattr(node, "span", None) or span
    dtype: DType | None = node.dtype if isinstance(node, (ir.Buffer, ir.Expr)) else None
    if dtype is not None and dtype.scalar.name not in types:
        raise MissingCapability(
            f"{arch.name} has no numbers of type {dtype.scalar}",
            span=span,
            hint="convert them beforehand, or view their bytes as uint8 and take them apart",
        )
    if not isinstance(node, ir.Buffer):
        for child in children(node):
            _check_types(child, span, arch, types)


def prints_or_asserts(function: ir.Function) -> bool:
    """Whether a kernel prints or asserts."""
    found = (node for kernel in kernels(function) for node in find(kernel, ir.Assert, ir.Call))
    return any(isinstance(node, ir.Assert) or node.function == "print_line" for node in found)


def with_lines(source: Source) -> str:
    """The text with ``#line`` before every line, so that whatever compiles it speaks of the author's file."""
    origins = {place: (file, line) for place, file, line in dict(source.metadata)["origins"]}
    result: list[str] = []
    at: tuple[str, int] | None = None
    for place, text in enumerate(source.text.split("\n")):
        at = origins.get(place, at)
        if text == "}":
            at = None
        goes_on = bool(result) and result[-1].endswith("\\")
        if at is not None and not goes_on and not text.lstrip().startswith(("#", "//")):
            result.append(f"#line {at[1]} {file_name(at[0])}")
        result.append(text)
    return "\n".join(result)


def is_narrow_float(param: ir.Var) -> bool:
    """Whether the caller's number is one of a type that only devices have."""
    return param.dtype.is_float and param.dtype.name not in ("float32", "float64")


def kernel_parameters(kernel: ir.Kernel) -> list[ir.Buffer | ir.Var | ir.TensorMap]:
    """What a kernel takes from its host program: variables, global buffers and maps of them, in order of appearance."""
    bound = own_names(kernel)
    found: dict[object, ir.Buffer | ir.Var | ir.TensorMap] = {}
    for node in walk(kernel.body, lambda node: not isinstance(node, ir.TensorMap)):
        if isinstance(node, ir.Buffer) and root(node) not in bound:
            found[root(node)] = root(node)
        elif isinstance(node, ir.Var) and node not in bound:
            found[node] = node
        elif isinstance(node, ir.TensorMap):
            found.setdefault(key(node), node)
    return list(found.values())


def unsettled_buffers(kernel: ir.Kernel) -> frozenset[ir.Buffer]:
    """Global buffers that may change under a kernel's eyes between two of its reads: others write what it has waited
    for.

    Those are what it reads and writes (other blocks may hand it something there), and all that it reads where it begins
    before the kernel ahead of it in the stream has ended. A compiler that is told nothing else writes them
    (``__restrict__``) reads early: above ``griddepcontrol.wait``, or above the wait for a flag, since neither names the
    buffer.
    """
    found = touched(kernel.body)
    dependent = any(call.function == "grid_wait" for call in find(kernel.body, ir.Call))
    return found.reads if dependent else found.reads & found.writes


def exchanges_tensors(kernel: ir.Kernel) -> bool:
    """Whether a barrier stands between two accesses of a tensor of which one writes, or threads tell other blocks what
    theirs has written: only then do barriers order global memory, too."""
    walk = _Handing()
    walk.sequence(kernel.body)
    return walk.found


_PLACED = ir.Buffer("placed", (1,), BOOL, "global")
"""Stands for all tensors that a kernel knows by their addresses, which may be the same."""


class _Handing:
    """Walks a kernel in order; loops with barriers twice, for what an iteration leaves to the next."""

    def __init__(self) -> None:
        self.found = False
        self.read: set[ir.Buffer] = set()
        self.written: set[ir.Buffer] = set()
        """Since the last barrier."""
        self.read_before: set[ir.Buffer] = set()
        self.written_before: set[ir.Buffer] = set()

    def sequence(self, body: ir.Statement) -> None:
        for node in own(body, ir.Call, ir.Load):
            if _is_barrier(node):
                self.read_before |= self.read
                self.written_before |= self.written
            else:
                self.found |= isinstance(node, ir.Call) and _publishes_for_others(node)
                self._access(*accesses(node))
        self._access(*accesses(body))
        again = isinstance(body, (ir.For, ir.While)) and any(map(_is_barrier, find(body, ir.Call)))
        for iteration in range(2 if again else 1):
            for child in children(body):
                if isinstance(child, ir.Statement) and not (iteration and self.found):
                    self.sequence(child)

    def _access(self, *touched: Collection[ir.Buffer]) -> None:
        if not any(touched):
            return
        read, written = (
            {_PLACED if one.placed else one for one in map(root, some) if one.scope == "global"} for some in touched
        )
        self.found |= bool(written & (self.read_before | self.written_before) or read & self.written_before)
        self.read |= read
        self.written |= written


def _is_barrier(node: ir.Record) -> bool:
    return isinstance(node, ir.Call) and node.function.startswith("sync_threads")


def _publishes_for_others(call: ir.Call) -> bool:
    """Whether a call may order what other threads of its block did before a barrier: a flag, the author's own text."""
    ordered = call.function.startswith("atomic_") and call.arguments[-1] in ("acquire", "release", "acq_rel", "seq_cst")
    return ordered or call.function == "call_extern"


class KernelText:
    """Prints one kernel.

    Attributes
    ----------
    printer : has the lines of its body, once `head` was called.
    keywords : words that are no names.
    block_index, thread_index : what the family calls a block's number along an axis, and a thread's in its block.
    """

    block_index: ClassVar[str] = "blockIdx.{axis}"
    thread_index: ClassVar[str] = "threadIdx.x"
    keywords: ClassVar[frozenset[str]] = KEYWORDS

    def __init__(self, function: ir.Function, kernel: ir.Kernel, arch: Arch) -> None:
        self.kernel, self.arch = kernel, arch
        self.sizes = size_variables(function)
        self.blocks: int = kernel.attribute("min_blocks_per_sm", 1)
        self.function = function
        self.printer = self.make_printer(Names(self.keywords))
        self.written = written_parameters(function)
        self.parameters = kernel_parameters(kernel)
        self.workspaces = {p for p in self.parameters if isinstance(p, ir.Buffer) and p not in function.params}
        self.unsettled = unsettled_buffers(kernel)

    def make_printer(self, names: Names) -> GpuPrinter:
        """What prints the body."""
        return GpuPrinter(names)

    def head(self, name: str) -> list[str]:
        """Prints the body into the printer's lines; returns what stands before it."""
        printer, kernel = self.printer, self.kernel
        buffers = {p for p in self.parameters if isinstance(p, ir.Buffer)}
        printer.constant = buffers - self.written - self.workspaces
        signature = ", ".join(self.parameter(p) for p in self.parameters)
        indices = self._indices()
        printer.nonnegative.update((*kernel.block_vars, *kernel.thread_vars, *self.sizes))
        printer.shared_offsets.update(zip(shared_allocations(kernel), kernel.attribute(OFFSETS, ()), strict=True))
        printer.needed = needed_names(kernel.body)
        printer.statement(kernel.body)
        has_shared = any("shared_memory" in line for line in printer.lines)
        shared = [f"  {self.shared_memory(kernel.attribute(BYTES, 0))}"] if has_shared else []
        return [*self.signature(name, signature), *self._rounded(), *shared, *indices, *self.beginning()]

    def signature(self, name: str, parameters: str) -> list[str]:
        """The lines that begin a kernel."""
        return [f"TW_KERNEL({self.kernel.num_threads}, {self.blocks})", f"{name}({parameters}) {{"]

    def shared_memory(self, size: int) -> str:
        """The declaration of a block's shared memory, so many bytes that the launch gives it."""
        return "TW_DYNAMIC_SHARED(shared_memory);"

    def beginning(self) -> list[str]:
        """Lines before the body."""
        return []

    def parameter(self, param: ir.Buffer | ir.Var | ir.TensorMap) -> str:
        """A parameter as the kernel's signature declares it."""
        if isinstance(param, ir.TensorMap):
            raise InternalError(f"{self.arch.name} has no maps of tensors", span=self.kernel.span)
        if isinstance(param, ir.Var):
            name = self.printer.names.of(param)
            return (
                f"float {name}_wide"
                if is_narrow_float(param)
                else f"{self.printer.spellings.types[param.dtype.name]} {name}"
            )
        written = param in self.written or param in self.workspaces
        return self.printer.buffer_parameter(param, written, settled=param not in self.unsettled)

    def _rounded(self) -> list[str]:
        """Numbers of types that no host language has come as floats."""
        narrow = [param for param in self.parameters if isinstance(param, ir.Var) and is_narrow_float(param)]
        named = [(self.printer.spellings.types[param.dtype.name], self.printer.names.of(param)) for param in narrow]
        return [f"  const {kind} {name} = tw::convert<{kind}>({name}_wide);" for kind, name in named]

    def _indices(self) -> list[str]:
        """Declarations of the block and thread indices that are used."""
        used = needed_names(self.kernel.body)
        lines = []
        for var, axis in zip(self.kernel.block_vars, "xyz"):
            if var in used:
                lines.append(
                    f"  const {self.printer.spellings.types[var.dtype.name]} {self.printer.names.of(var)} = "
                    f"{self.block_index.format(axis=axis)};"
                )
        lines += self._thread_indices(used)
        return lines

    def _thread_indices(self, used: set[Any]) -> list[str]:
        """Blocks are launched along x alone; the author's dimensions are taken out of it."""
        lines, rest = [], self.thread_index
        extents = self.kernel.threads
        for position, var in enumerate(self.kernel.thread_vars):
            value = rest if all(e == 1 for e in extents[position + 1 :]) else f"{rest} % {extents[position]}"
            if var in used:
                lines.append(f"  const int32_t {self.printer.names.of(var)} = {value};")
            rest = f"({rest} / {extents[position]})"
        return lines
