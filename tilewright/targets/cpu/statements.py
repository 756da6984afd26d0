"""Statements of final programs as C for the cpu target: the body of one kernel's block function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.errors import Span
from tilewright.ir import find, of_views
from tilewright.ir import nodes as ir
from tilewright.ops.prints import c_format, line, words_of
from tilewright.options import options
from tilewright.targets.c_family import Names
from tilewright.targets.cpu.expressions import CpuExpressions, _constant
from tilewright.targets.cpu.spellings import TILE_UNIT, carrier, code, lanes_suffix

STACK_BYTES = 16384
"""Tiles up to this size live on the stack of the block function, larger ones in the thread's scratch memory."""

SMALL_BYTES = 4096
"""Register buffers up to this size are always on the stack: the C compiler keeps those of micro-kernels in
registers."""

PROMOTED_VECTORS = 64
"""Register buffers of at most this many vectors become C variables."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed `Assert` by its number: the entry returns it and the launcher shows it."""

    message: str
    span: Span | None


def promotable(body: ir.Statement) -> dict[ir.Buffer, int]:
    """Register buffers that are only accessed as whole vectors at constant places, with their lanes.

    A C compiler keeps variables in registers; of arrays it does so only now and then.
    """
    lanes: dict[ir.Buffer, int] = {}
    refused = of_views(body)
    for node in find(body, ir.Load, ir.Store, ir.Region):
        if isinstance(node, ir.Load):
            _note(node.buffer, node.indices, node.dtype.lanes, lanes, refused)
        elif isinstance(node, ir.Store):
            _note(node.buffer, node.indices, node.value.dtype.lanes, lanes, refused)
        elif isinstance(node, ir.Region):
            refused.add(node.buffer)
    return {
        buffer: width
        for buffer, width in lanes.items()
        if buffer not in refused and buffer.size <= PROMOTED_VECTORS * width
    }


def _note(
    buffer: ir.Buffer, indices: Iterable[ir.Expr], width: int, lanes: dict[ir.Buffer, int], refused: set[ir.Buffer]
) -> None:
    if buffer.scope != "register":
        return
    places = [_constant(index) for index in indices]
    # Places beyond the end stand in loops that never run.
    whole = len(places) == 1 and places[0] is not None and places[0] % width == 0 and 0 <= places[0] < buffer.size
    if not whole or lanes.setdefault(buffer, width) != width or buffer.dtype.is_packed or buffer.size % width:
        refused.add(buffer)


class CpuStatements(CpuExpressions):
    """Prints the body of a block function and counts its scratch memory."""

    def __init__(self, names: Names, failures: list[Failure]) -> None:
        super().__init__(names)
        self.failures = failures
        self.stack_bytes = 0
        self.scratch_bytes = 0
        self.exit = "return {status};"

    def statement_Let(self, let: ir.Let) -> None:
        if let.var.dtype.lanes > 1 and let.var.dtype.kind == "bool":
            self.line(f"const {self.type_name(let.var.dtype)} {self.names.of(let.var)} = {self.mask(let.value, 32)};")
            return
        super().statement_Let(let)

    def statement_Allocate(self, allocate: ir.Allocate) -> None:
        buffer = allocate.buffer
        name = self.names.of(buffer)
        element = self.type_name(buffer.dtype)
        if buffer.scope == "scalar":
            first = f" = {self.value(allocate.initial)}" if allocate.initial is not None else ""
            self.line(f"{element} {name}{first};")
            if allocate.initial is None:
                self._poison(f"&{name}", f"sizeof {name}")
        elif buffer.placed:
            assert allocate.initial is not None
            self.line(
                f"{element} *const {name} = ({element} "
                f"*)(uintptr_t){self.operand(self.expression(allocate.initial), 13, 'mul')};"
            )
        elif buffer.source is not None:
            self.line(f"{element} *const {name} = ({element} *){self.names.of(buffer.source)};")
        elif buffer in self.promoted:
            lanes = self.promoted[buffer]
            vector = self.type_name(buffer.dtype.with_lanes(lanes))
            count = buffer.size // lanes
            variables = [name] if count == 1 else [self.names.fresh(f"{name}_{i}") for i in range(count)]
            self.line(f"{vector} {', '.join(variables)};")
            for variable in variables:
                self._poison(f"&{variable}", f"sizeof {variable}")
        else:
            self._allocate_memory(buffer, name, element)

    def _allocate_memory(self, buffer: ir.Buffer, name: str, element: str) -> None:
        least = buffer.dtype.nbytes(buffer.size)
        size = -(-least // TILE_UNIT) * TILE_UNIT
        small = buffer.scope == "register" and size <= SMALL_BYTES
        if small or size + self.stack_bytes <= STACK_BYTES:
            self.stack_bytes += 0 if small else size
            count = (size if least > TILE_UNIT else least) // (
                1 if buffer.dtype.is_packed else buffer.dtype.storage_bytes
            )
            self.line(f"{element} {name}[{count}] __attribute__((aligned(64)));")
            self._poison(name, f"sizeof {name}")
            return
        self.line(f"{element} *restrict const {name} = ({element} *)(scratch + {self.scratch_bytes});")
        self.scratch_bytes += size
        self._poison(name, str(size))

    def _poison(self, place: str, size: str) -> None:
        """Give memory that nobody has written numbers that show (`TILEWRIGHT_POISON`)."""
        if options().poison:
            self.line(f"__builtin_memset({place}, 0xFF, {size});")

    def statement_Store(self, store: ir.Store) -> None:
        buffer, value = store.buffer, store.value
        name = self.names.of(buffer)
        if buffer.scope == "scalar":
            self.line(f"{name} = {self.value(value)};")
        elif buffer in self.promoted:
            text = self.mask(value, 32) if value.dtype.kind == "bool" and value.dtype.lanes > 1 else self.value(value)
            self.line(f"{self.register_name(buffer, store.indices[0])} = {text};")
        elif buffer.dtype.is_packed:
            arguments = (name, self.value(store.indices[0]), self.value(value))
            self.line(f"tw_store_{code(buffer.dtype)}{self._suffix(value.dtype)}({', '.join(arguments)});")
        elif value.dtype.lanes == 1:
            self.line(f"{name}[{self.value(store.indices[0])}] = {self.value(value)};")
        else:
            self._store_vector(store)

    def _store_vector(self, store: ir.Store) -> None:
        dtype = store.value.dtype
        self.lanes_used.add(dtype.lanes)
        text = self.value(store.value)
        if dtype.kind == "bool":
            text = f"(u8x{dtype.lanes})-({self.mask(store.value, 8)})"
        address = self.address(store.buffer, store.indices[0])
        self.line(f"tw_store_{carrier(dtype)}{lanes_suffix(dtype)}({address}, {text});")

    def statement_Assert(self, check: ir.Assert) -> None:
        self.failures.append(Failure(check.message, check.span))
        self.line(f"if (!({self.value(check.condition)})) {self.exit.format(status=len(self.failures))}")

    def statement_Return(self, _: ir.Return) -> None:
        self.line(self.exit.format(status=0))

    def statement_Evaluate(self, evaluate: ir.Evaluate) -> None:
        if evaluate.value.function == "print_line":
            text, *numbers = evaluate.value.arguments
            self._print_line(str(text), [number for number in numbers if isinstance(number, ir.Expr)])
        else:
            super().statement_Evaluate(evaluate)

    def statement_Print(self, node: ir.Print) -> None:
        """A line of the host program."""
        words, numbers = words_of(node.values)
        self._print_line(line(words), numbers)

    def _print_line(self, text: str, numbers: list[ir.Expr]) -> None:
        """One ``printf``, so that lines of several threads do not mix."""
        self.headers.add("<stdio.h>")
        arguments = [f'"{c_format(text, [number.dtype for number in numbers])}"', *map(self._printed, numbers)]
        self.line(f"printf({', '.join(arguments)});")
        self.line("fflush(stdout);")

    def _printed(self, value: ir.Expr) -> str:
        text = self.expression(value)
        if value.dtype.is_float:
            return f"(double){self.operand(self._widened(text, value.dtype), 14)}"
        if value.dtype.bits == 64:
            return f"({'unsigned ' if value.dtype.kind == 'uint' else ''}long long){self.operand(text, 14)}"
        return text.text
