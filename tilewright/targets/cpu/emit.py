"""A final program as one C file: a function for each kernel's blocks, and the host program as the entry.

The entry takes the arguments of `ir.signature` and returns 0, the number of a failed assertion, or -1 where
memory ran out.  Blocks run on the thread pool, whose address the launcher writes into the loaded library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir import counted_workspaces, entry_parameters, find, own_names, touched, written_parameters
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.targets.base import Source
from tilewright.targets.c_family import Names
from tilewright.targets.cpu.arch import compiler_flags
from tilewright.targets.cpu.spellings import KEYWORDS
from tilewright.targets.cpu.statements import CpuStatements, Failure, promotable
from tilewright.targets.cpu.tile_registers import HEADER as TILE_HEADER
from tilewright.texts import readable

OUT_OF_MEMORY = -1


@dataclass(slots=True)
class _Module:
    """The parts of the file as they are found."""

    kernels: list[str]
    lanes: set[int]
    headers: set[str]
    failures: list[Failure]
    names: set[str]


def emit(function: ir.Function, arch: Arch) -> Source:
    """C source of a final program."""
    module = _Module([], set(), set(), [], set())
    entry = _Host(function, module).text()
    body = [*module.kernels, entry]
    text = "\n".join([*_preamble(function, module), *body])
    return Source(
        text,
        "c",
        compiler_flags(arch),
        (entry_name(function),),
        (("failures", tuple((f.message, _span_data(f)) for f in module.failures)),),
    )


def entry_name(function: ir.Function) -> str:
    return Names().fresh(function.name) + "_entry"


def words_name(function: ir.Function) -> str:
    """The entry once more, of arguments in memory, a word each (`again.py`)."""
    return f"{entry_name(function)}_of_words"


def takes_words(parameters: Sequence[ir.Buffer | ir.Var]) -> bool:
    """Whether all arguments are words: addresses and integers."""
    return bool(parameters) and all(isinstance(p, ir.Buffer) or p.dtype.is_integer for p in parameters)


def _span_data(failure: Failure) -> tuple[str, int, int, int | None] | None:
    span = failure.span
    return None if span is None else (span.file, span.line, span.column, span.end_column)


def _preamble(function: ir.Function, module: _Module) -> list[str]:
    where = f" ({readable(function.span.file, '')}:{function.span.line})" if function.span else ""
    lines = [f"// {function.name}{where}, compiled by tilewright for the CPU.", '#include "tilewright_cpu.h"']
    for lanes in sorted(module.lanes):
        lines += [f"#define LANES {lanes}", '#include "tilewright_lanes.h"', "#undef LANES"]
    system = sorted(h for h in module.headers if h.startswith("<"))
    own = sorted(module.headers - set(system))
    lines += [f"#include {header}" for header in system] + [f'#include "{header}"' for header in own]
    lines += ["", "// The thread pool and its memory for workspaces, set by the launcher.",
              '__attribute__((visibility("default"))) tw_parallel_for_function tw_parallel_for;',
              '__attribute__((visibility("default"))) void *(*tw_take)(int64_t bytes);',
              '__attribute__((visibility("default"))) void (*tw_give)(void *memory);', ""]  # fmt: skip
    return lines


class _Host(CpuStatements):
    """Prints the host program; kernels become functions of their own on the way."""

    def __init__(self, function: ir.Function, module: _Module) -> None:
        super().__init__(Names(KEYWORDS), module.failures)
        self.function, self.module = function, module
        self.exit = "{{ status = {status}; goto done; }}"
        self.written, self.counted = written_parameters(function), counted_workspaces(function)
        self.workspaces: list[ir.Buffer] = []
        self.parameters = entry_parameters(function)
        self.nonnegative |= {p for p in self.parameters if isinstance(p, ir.Var) and p not in function.params}

    def text(self) -> str:
        signature = ", ".join(self._parameter(p) for p in self.parameters) or "void"
        for node in find(self.function.body, ir.Allocate):
            if node.buffer.scope == "global" and not node.buffer.placed:
                self.names.of(node.buffer)  # before any branch: they are freed at the end of the function
        self.statement(self.function.body)
        workspaces = [f"  {self.type_name(b.dtype)} *{self.names.of(b)} = NULL;" for b in self.workspaces]
        freed = [f"  tw_give({self.names.of(b)});" for b in self.workspaces]
        self.module.lanes |= self.lanes_used
        self.module.headers |= self.headers
        head = f'__attribute__((visibility("default"))) int32_t {entry_name(self.function)}({signature}) {{'
        body = ["  int32_t status = 0;", *workspaces, *self.lines, "  goto done;", "done:", *freed, "  return status;"]
        return "\n".join([head, *body, "}", *self._of_words(), ""])

    def _of_words(self) -> list[str]:
        if not takes_words(self.parameters):
            return []
        types = [self._parameter(p).removesuffix(self.names.of(p)) for p in self.parameters]
        given = ", ".join(f"({of.strip()})words[{place}]" for place, of in enumerate(types))
        head = f'__attribute__((visibility("default"))) int32_t {words_name(self.function)}(const uint64_t *words) {{'
        return ["", head, f"  return {entry_name(self.function)}({given});", "}"]

    def _parameter(self, param: ir.Buffer | ir.Var) -> str:
        name = self.names.of(param)
        if isinstance(param, ir.Var):
            return f"{self.type_name(param.dtype)} {name}"
        constant = "" if param in self.written else "const "
        return f"{constant}{self.type_name(param.dtype)} *{name}"

    def statement_Allocate(self, allocate: ir.Allocate) -> None:
        buffer = allocate.buffer
        if buffer.scope == "scalar" or buffer.source is not None or buffer.placed:
            super().statement_Allocate(allocate)
            return
        self.workspaces.append(buffer)
        name, element = self.names.of(buffer), self.type_name(buffer.dtype)
        elements: ir.Expr = ir.const(1, ir.dtypes.INT64)
        for extent in buffer.shape:
            elements = elements * extent
        count = self.operand(self.expression(elements), 13, "div")
        size = f"{count} / {buffer.dtype.per_byte} + 1" if buffer.dtype.is_packed else f"{count} * sizeof({element})"
        self.line(f"tw_give({name});")
        self.line(f"{name} = ({element} *)tw_take({size});")
        self.line(f"if ({name} == NULL) {{ status = {OUT_OF_MEMORY}; goto done; }}")
        if buffer in self.counted:
            self.line(f"memset({name}, 0, {size});")

    def statement_Kernel(self, kernel: ir.Kernel) -> None:
        position = len(self.module.kernels)
        name = self.names.fresh(f"{self.function.name}_block" + (f"_{position}" if position else ""))
        captured = _captured(kernel)
        printer = _Block(self, kernel, captured)
        self.module.kernels.append(printer.text(name))
        self.module.lanes |= printer.lanes_used
        self.module.headers |= printer.headers
        fields = [self._argument_field(thing) for thing in captured]
        grid = [self.value(ir.expr(extent)) for extent in kernel.grid]
        blocks = " * ".join(f"(int64_t)({extent})" for extent in grid)
        self.line("{")
        self.line(f"  const struct {name}_arguments arguments = {{{', '.join([*fields, *grid[:-1]])}}};")
        self.line(f"  status = tw_parallel_for({blocks}, {printer.scratch_bytes}, {name}, &arguments);")
        self.line("  if (status != 0) goto done;")
        self.line("}")

    def _argument_field(self, thing: ir.Buffer | ir.Var) -> str:
        name = self.names.of(thing)
        return f"&{name}" if isinstance(thing, ir.Buffer) and thing.scope == "scalar" else name


class _Block(CpuStatements):
    """Prints one kernel: the record of its arguments and the function that runs one block."""

    def __init__(self, host: _Host, kernel: ir.Kernel, captured: list[ir.Buffer | ir.Var]) -> None:
        super().__init__(Names(KEYWORDS), host.failures)
        self.host, self.kernel, self.captured = host, kernel, captured
        self.promoted = promotable(kernel.body)
        self.nonnegative |= host.nonnegative | set(kernel.block_vars)
        self.written = touched(kernel.body).writes
        for thing in (*captured, *kernel.block_vars):
            self.names.of(thing)

    def text(self, name: str) -> str:
        grid = [self.names.fresh(f"grid_{axis}") for axis in "xyz"[: len(self.kernel.grid) - 1]]
        record = [f"struct {name}_arguments {{", *(f"  {self._field(t)};" for t in self.captured)]
        record += [f"  int64_t {extent};" for extent in grid] or ([] if self.captured else ["  int32_t nothing;"])
        head = [f"static int32_t {name}(const void *arguments, int64_t block, uint8_t *scratch) {{",
                f"  const struct {name}_arguments *const given = arguments;"]  # fmt: skip
        self.statement(self.kernel.body)
        if TILE_HEADER in self.headers:
            head.append("  TW_TILE_KERNEL")
        head += [f"  {self._field(t)} = given->{self.names.of(t)};" for t in self.captured]
        head += self._block_indices(grid)
        return "\n".join([*record, "};", "", *head, *self.lines, "  return 0;", "}", ""])

    def _field(self, thing: ir.Buffer | ir.Var) -> str:
        name, element = self.names.of(thing), self.type_name(thing.dtype)
        if isinstance(thing, ir.Var):
            return f"{element} {name}"
        return f"{element if thing in self.written else 'const ' + element} *restrict {name}"

    def _block_indices(self, grid: list[str]) -> list[str]:
        """The block's place in the grid from its number; the first dimension varies fastest."""
        lines, rest = [], "block"
        for position, var in enumerate(self.kernel.block_vars):
            declared = f"  const {self.type_name(var.dtype)} {self.names.of(var)}"
            if position == len(grid):
                lines.append(f"{declared} = {rest};")
            else:
                lines.append(f"{declared} = {rest} % given->{grid[position]};")
                rest = f"{rest} / given->{grid[position]}"
        return lines


def _captured(kernel: ir.Kernel) -> list[ir.Buffer | ir.Var]:
    """Variables and buffers that a kernel uses and its host program defines, in order of appearance."""
    bound = own_names(kernel)
    found: dict[ir.Buffer | ir.Var, None] = {}
    for node in find(kernel.body, ir.Buffer, ir.Var):
        if isinstance(node, ir.Buffer):
            root = node
            while root in bound and root.source is not None:  # a view of this kernel's own reads what it views
                node = root = root.source
            while root not in bound and root.source is not None:
                root = root.source
            if root not in bound:
                found[node] = None
        elif isinstance(node, ir.Var) and node not in bound:
            found[node] = None
    return list(found)
