"""Final programs as C++ text for GPUs: statements of one kernel, in the device vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from tilewright.errors import InternalError, Span
from tilewright.ir import INTRINSICS, DType, conjuncts, find, has_effect, own, root, uses
from tilewright.ir import nodes as ir
from tilewright.ops.prints import in_c
from tilewright.targets.c_family import Text
from tilewright.targets.gpu.expressions import GpuExpressions, in_bytes


class GpuPrinter(GpuExpressions):
    """Prints the body of one kernel.

    Attributes
    ----------
    needed : variables and buffers that statements ask for (`needed_names`); None for all.
    shares_tensors : whether barriers wait for what threads wrote to global memory.
    """

    needed: set[ir.Var | ir.Buffer] | None = None
    shares_tensors = True

    def origin(self, span: Span) -> None:
        count = len(self.lines)
        super().origin(span)
        if len(self.lines) > count:
            self.marks.append((count, span))

    def expression_Call(self, call: ir.Call) -> Text:
        if call.function == "sync_threads" and not self.shares_tensors:
            return self.call("tw::sync_shared")
        return super().expression_Call(call)

    def statement_Let(self, let: ir.Let) -> None:
        """Names that nobody asks for are left out."""
        if self.needed is None or let.var in self.needed:
            super().statement_Let(let)

    def statement_For(self, loop: ir.For) -> None:
        if loop.kind == "serial" and not loop.runs_once and _synchronises(loop) and not _counts_registers(loop):
            # Several iterations at once cost registers, and the assembler's view of asynchronous products.
            self.line("#pragma unroll 1")
        super().statement_For(loop)

    def statement_Assume(self, assume: ir.Assume) -> None:
        """Says nothing, but that a thread of a role does not count below zero."""
        for fact in conjuncts(assume.condition):
            if isinstance(fact, ir.Binary) and fact.op == "ge" and isinstance(fact.left, ir.Var):
                self.nonnegative |= {fact.left} if self.is_nonnegative(fact.right) else set()

    restrict: ClassVar[str] = "TW_RESTRICT"
    """The word for a pointer to memory that nobody else writes."""

    space: ClassVar[Mapping[str, str]] = {}
    """Words before a type that say which memory it lies in, by scope, for families whose pointers have them."""

    def memory(self, buffer: ir.Buffer, constant: bool = False) -> str:
        """The type of what a pointer to a buffer's elements points to."""
        words = (self.space.get(root(buffer).scope), "const" if constant else None)
        return "".join(f"{word} " for word in words if word) + self.storage_type(buffer.dtype)

    def storage_type(self, dtype: DType) -> str:
        """C++ type of the memory that holds elements: bytes for packed types."""
        return "uint8_t" if dtype.is_packed else self.spellings.types[dtype.name]

    def statement_Allocate(self, allocate: ir.Allocate) -> None:
        buffer = allocate.buffer
        if self.needed is not None and buffer not in self.needed:
            return
        name = self.names.of(buffer)
        element = self.spellings.types[buffer.dtype.name]
        if buffer.source is not None and root(buffer).scope == "register":
            kind, space = f"{element}, {buffer.size}", self.space.get("register", "")
            view = f"tw::viewed_as<{kind}>({self.names.of(buffer.source)})"
            self.line(f"{space and space + ' '}tw::Fragment<{kind}>& {name} = {view};")
        elif buffer.source is not None:
            memory = self.memory(buffer, root(buffer) in self.constant)
            self.line(f"{memory}* const {name} = reinterpret_cast<{memory}*>({self.names.of(buffer.source)});")
        elif buffer.scope == "scalar":
            first = f" = {self.value(allocate.initial)}" if allocate.initial is not None else ""
            self.line(f"{element} {name}{first};")
        elif buffer.placed:
            assert allocate.initial is not None
            memory = self.memory(buffer)
            self.line(f"{memory}* const {name} = tw::global_pointer<{memory}>({self.value(allocate.initial)});")
        elif buffer.scope == "register":
            self.line(f"tw::Fragment<{element}, {buffer.size}> {name};")
        elif buffer.scope == "barrier":
            self.line(f"const uint32_t {name} = tw::shared_address(shared_memory + {self.shared_offsets[allocate]});")
        elif buffer.scope == "shared":
            memory, offset = self.memory(buffer), self.shared_offsets[allocate]
            self.line(f"{memory}* const {name} = reinterpret_cast<{memory}*>(shared_memory + {offset});")
        else:
            raise InternalError(
                f"{buffer.scope} memory {buffer.name} cannot be allocated in a kernel", span=allocate.span
            )

    def statement_Store(self, store: ir.Store) -> None:
        buffer, value = store.buffer, store.value
        name = self.names.of(buffer)
        if buffer.scope == "scalar":
            self.line(f"{name} = {self.value(value)};")
        elif value.dtype.lanes > 1:
            self._move(store)
        elif in_bytes(buffer):
            arguments = f"{name}, {self.value(store.indices[0])}, {self.value(value)}"
            self.line(f"tw::set_packed<{buffer.dtype.bits}>({arguments});")
        else:
            self.line(f"{name}[{self.value(store.indices[0])}] = {self.value(value)};")

    def _move(self, store: ir.Store) -> None:
        """A vector between memory and registers; of memory it may be zeros where a condition does not hold."""
        value = store.value
        if isinstance(value, ir.Broadcast):  # a choice that is decided
            lane = ir.Var(ir.dtypes.INT32, "lane")
            single = replace(store, indices=(store.indices[0] + lane,), value=value.value)
            count = ir.const(value.dtype.lanes)
            self.statement(ir.For(lane, ir.const(0), count, ir.const(1), ir.seq(single), "unroll", span=store.span))
            return
        load, condition = (value.then, value.condition) if isinstance(value, ir.Select) else (value, None)
        if not isinstance(load, ir.Load):
            raise InternalError("a vector that is no load cannot be stored on a GPU", span=store.span)
        kind, parameters = "fragment", str(load.dtype.lanes)
        if load.dtype.scalar.is_packed:
            kind, parameters = "packed", f"{load.dtype.bits}, {load.dtype.lanes}"
        if store.buffer.scope == "register":
            fragment, place = self.names.of(store.buffer), self.value(store.indices[0])
            source = self.source(load.buffer, load.indices[0], condition)
            self.line(f"tw::load_{kind}<{parameters}>({fragment}, {place}, {source});")
        else:
            fragment, place = self.names.of(load.buffer), self.value(load.indices[0])
            memory = f"&{self._place(store.buffer, store.indices[0])}"
            self.line(f"tw::store_{kind}<{parameters}>({memory}, {fragment}, {place});")

    def source(self, buffer: ir.Buffer, index: ir.Expr, condition: ir.Expr | None) -> Text:
        """Where a vector is read, where `condition` holds."""
        if condition is not None:
            raise InternalError(f"reads of {buffer.name} have no way to be zeros")
        return Text(f"&{self._place(buffer, index)}")

    def statement_Return(self, _: ir.Return) -> None:
        self.line("TW_RETURN;")

    def statement_Assert(self, check: ir.Assert) -> None:
        message = check.message or "device assertion failed"
        file, line = (check.span.file, check.span.line) if check.span else ("", 0)
        said = f"{in_c(message)}, {in_c(file)}, {line}, __func__"
        self.line(f"if (!({self.value(check.condition)})) tw::assertion_failed({said});")

    def buffer_parameter(self, buffer: ir.Buffer, written: bool, settled: bool) -> str:
        """A global buffer as a parameter of the kernel; `settled` where nobody else writes what the kernel reads
        there."""
        restrict = f"{self.restrict} " if settled else ""
        return f"{self.memory(buffer, not written)}* {restrict}{self.names.of(buffer)}"


def needed_names(body: ir.Statement) -> set[ir.Var | ir.Buffer]:
    """Variables and buffers that statements ask for: what a name's value asks for counts where the name does, or where
    it does something."""
    named: dict[ir.Var | ir.Buffer, ir.Expr | ir.Buffer | None] = {}
    needed: set[ir.Var | ir.Buffer] = set()
    for node in find(body, ir.Statement):
        if isinstance(node, (ir.Let, ir.Allocate)):
            name = node.var if isinstance(node, ir.Let) else node.buffer
            first = node.value if isinstance(node, ir.Let) else node.initial
            named[name] = first if isinstance(name, ir.Var) or name.source is None else name.source
            if first is not None and has_effect(first):
                needed.add(name)
        else:
            needed.update(one for one in own(node, ir.Var, ir.Buffer) if isinstance(one, (ir.Var, ir.Buffer)))
    waiting = list(needed)
    while waiting:
        value = named.get(waiting.pop())
        used = uses(value) if value is not None else ()
        found = {part for part in used if isinstance(part, (ir.Var, ir.Buffer))} - needed
        needed |= found
        waiting += found
    return needed


def _synchronises(loop: ir.For) -> bool:
    """Whether threads synchronise in a loop: in barriers, products, exchanges."""
    return any(INTRINSICS[node.function].collective for node in find(loop.body, ir.Call))


def _counts_registers(loop: ir.For) -> bool:
    """Whether which register a loop's body touches depends on its variable: only unrolled they stay registers."""
    moving = {loop.var}

    def moves(expr: ir.Expr) -> bool:
        return any(node in moving for node in find(expr, ir.Var))

    for node in find(loop.body, ir.Let, ir.For, ir.Load, ir.Store, ir.Region):
        if (isinstance(node, ir.Let) and moves(node.value)) or (
            isinstance(node, ir.For) and (moves(node.start) or moves(node.stop))
        ):
            moving.add(node.var)
        elif isinstance(node, (ir.Load, ir.Store, ir.Region)) and node.buffer.scope == "register":
            places = node.starts if isinstance(node, ir.Region) else node.indices
            if any(map(moves, places)):
                return True
    return False
