"""A final program as HIP text: one array of shared memory a kernel, whose size the text says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from tilewright.errors import MissingCapability
from tilewright.ir import FLOAT32, INT32, INTRINSICS, UINT32, find, kernels, root, substitute, walk
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.targets.base import Source
from tilewright.targets.c_family import Names, Spellings, Text
from tilewright.targets.gpu import emit as gpu
from tilewright.targets.gpu.emit import Dialect, KernelText, exchanges_tensors
from tilewright.targets.gpu.expressions import in_bytes
from tilewright.targets.gpu.printer import GpuPrinter
from tilewright.targets.gpu.spellings import SPELLINGS, TYPES
from tilewright.targets.hip import emulation


def emit(function: ir.Function, arch: Arch) -> Source:
    """HIP text of a final program.

    Raises
    ------
    MissingCapability : it prints, or has numbers that the device has no words for.
    """
    for kernel in kernels(function):
        if any(node.function == "print_line" for node in find(kernel, ir.Call)):
            raise MissingCapability(
                f"kernels for {arch.name} cannot print: lines have no way to the host without ROCm's device library",
                span=kernel.span,
                hint="store the numbers in a tensor, or look at them with kernel.emulate() on another target",
            )
    return gpu.emit(
        function, arch, Dialect("hip", lambda _: [f"tilewright_{arch.name}.h"], HipKernel, frozenset(TYPES))
    )


class HipPrinter(GpuPrinter):
    """Prints the body of one kernel.

    Attributes
    ----------
    first_of_wave : the block's indices of threads, as those of the first thread of the executing thread's wave.
    carried : registers that a loop's iteration leaves to the next one.
    """

    dialect: ClassVar[Spellings] = SPELLINGS

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.first_of_wave: dict[ir.Var, ir.Expr] = {}
        self.carried: set[ir.Buffer] = set()

    def source(self, buffer: ir.Buffer, index: ir.Expr, condition: ir.Expr | None) -> Text:
        """A place of a tensor whose bytes 31 bits count, else an address; with what says whether it is inside."""
        wanted = () if condition is None else (self.expression(condition),)
        if buffer in self.constant and index.dtype == INT32 and described(buffer):
            place = self.expression(index)
            if in_bytes(buffer):
                place = self.infix("floordiv", place, Text(str(buffer.dtype.per_byte)))
            return self.call("tw::place", Text(self.names.of(buffer)), place, *wanted)
        address = Text(f"&{self._place(buffer, index)}")
        return self.call("tw::within", address, *wanted) if wanted else address

    def expression_Select(self, select: ir.Select) -> Text:
        """An element or zero, without a branch."""
        load, zero = select.then, select.otherwise
        guarded = (
            isinstance(load, ir.Load)
            and load.buffer.scope == "global"
            and root(load.buffer).scope == "global"
            and load.dtype.stored_bits >= 8
            and not in_bytes(load.buffer)
            and isinstance(zero, ir.Const)
            and zero.value == 0
            and not any(isinstance(node, ir.Load) for node in walk(load.indices[0]))
        )
        if not guarded:
            return super().expression_Select(select)
        assert isinstance(load, ir.Load)
        return self.call("tw::read", self.source(load.buffer, load.indices[0], select.condition))

    def expression_Cast(self, cast: ir.Cast) -> Text:
        """A byte of a word as a float, by the machine's own conversion."""
        found = byte_of_word(cast.value) if cast.dtype == FLOAT32 else None
        if found is None:
            return super().expression_Cast(cast)
        word, byte = found
        return self.call(f"tw::float_of_byte<{byte}>", self.expression(word))

    def statement_For(self, loop: ir.For) -> None:
        """Registers that are carried from iteration to iteration move as whole words: elements that are set one by one
        are carried by themselves, and whoever takes a word apart waits for its load."""
        moved = moved_words(loop)
        if moved is None or self.carried.isdisjoint(buffer for buffer, _ in moved[:2]):
            super().statement_For(loop)
            return
        (to, at), (source, first), function = moved
        names = (self.names.of(to), self.value(at), self.names.of(source), self.value(first))
        self.line(f"tw::{function}<{len(loop.numbers or ())}>({', '.join(names)});")

    def _async_copy(self, call: ir.Call) -> Text:
        """The wave's copy of a piece: zeros where the number of its bytes that are valid says so."""
        (place, source), valid = call.regions, call.operands
        assert isinstance(place.extents[-1], int)
        size = place.dtype.nbytes(place.extents[-1])
        condition: ir.Expr | None = None
        if valid and isinstance(valid[0], ir.Select):
            condition = valid[0].condition
        elif valid:
            assert isinstance(valid[0], ir.Const)
            condition = None if valid[0].value == size else ir.const(False)
        first = substitute(place.starts[0], self.first_of_wave)
        origin = self.source(source.buffer, source.starts[0], condition)
        return self.call(f"tw::cp_async<{size}>", Text(f"&{self._place(place.buffer, first)}"), origin)

    def _settled(self, call: ir.Call) -> Text:
        return self.call("tw::settled", self._argument(call.arguments[0]))

    def _transposed_blocks(self, call: ir.Call) -> Text:
        rows, columns, *registers = (self._argument(part) for part in call.arguments)
        return self.call(f"tw::transpose_blocks<{rows}, {columns}>", *registers)

    words: ClassVar[Mapping[str, str]] = emulation.HIP.words
    calls: ClassVar[Mapping[str, str]] = {
        **GpuPrinter.calls, "cp_async": "_async_copy", "cp_async_zfill": "_async_copy", "cp_async_wait": "_template",
        "transpose_blocks": "_transposed_blocks", "settled": "_settled",
    }  # fmt: skip


def carried_registers(body: ir.Statement) -> set[ir.Buffer]:
    """Registers that an iteration of a loop reads before it sets them."""
    found: set[ir.Buffer] = set()
    for loop in find(body, ir.For, ir.While):
        if isinstance(loop, ir.For) and loop.kind == "unroll":
            continue
        read_first: dict[ir.Buffer, bool] = {}
        for node in walk(loop.body):
            if isinstance(node, ir.Store):
                for load in find(node.value, ir.Load):
                    read_first.setdefault(root(load.buffer), True)
                read_first.setdefault(root(node.buffer), False)
            elif isinstance(node, ir.Call):
                for number, part in enumerate(node.arguments):
                    if isinstance(part, ir.Region):
                        written = INTRINSICS[node.function].may_write(number)
                        read_first.setdefault(root(part.buffer), not written)
        found |= {buffer for buffer, first in read_first.items() if first and buffer.scope == "register"}
    return found


def moved_words(loop: ir.For) -> tuple[tuple[ir.Buffer, ir.Expr], tuple[ir.Buffer, ir.Expr], str] | None:
    """Where a loop puts elements of registers, whole words of them as they are, and where it takes them from: of each
    the buffer and its first element; and the function that does it. None for a loop that does something else."""
    function = "move_fragment"
    match [one for one in loop.body.statements if not isinstance(one, ir.Let)]:
        case [ir.Store(value=ir.Load() as load) as store]:
            pass
        case [ir.Store(value=ir.Call(function="settled", arguments=(ir.Load() as load,))) as store]:
            function = "settle_fragment"
        case _:
            return None
    sides = ((store.buffer, store.indices[0]), (load.buffer, load.indices[0]))
    dtype, count = store.buffer.dtype, len(loop.numbers or ())
    fits = (
        loop.kind == "unroll"
        and dtype == load.buffer.dtype
        and dtype.stored_bits in (8, 16)
        and count > 0
        and count * dtype.stored_bits % 32 == 0
        and all(buffer.scope == "register" and buffer.source is None for buffer, _ in sides)
    )
    inside = {one.var for one in loop.body.statements if isinstance(one, ir.Let)}
    if inside & {node for _, index in sides for node in walk(index)}:
        return None
    firsts = [_first(index, loop.var) for _, index in sides] if fits else []
    at, first = firsts or (None, None)
    return None if at is None or first is None else ((store.buffer, at), (load.buffer, first), function)


def _first(index: ir.Expr, var: ir.Var) -> ir.Expr | None:
    """What an index is where a loop begins at zero, if each of its iterations adds one."""
    if index == var:
        return ir.const(0)
    if isinstance(index, ir.Binary) and index.op == "add":
        for counted, other in ((index.left, index.right), (index.right, index.left)):
            if counted == var and var not in walk(other):
                return other
    return None


def byte_of_word(value: ir.Expr) -> tuple[ir.Expr, int] | None:
    """The word and the number of its byte that an expression is; None for another one."""
    match value:
        case ir.Binary(op="and", left=word, right=ir.Const(value=255)) if word.dtype == UINT32:
            pass
        case _:
            return None
    match word:
        case ir.Binary(op="shr", left=inner, right=ir.Const(value=int(places))) if places in (8, 16, 24):
            return inner, places // 8
    return word, 0


def described(buffer: ir.Buffer) -> bool:
    """Whether a tensor is known to have less than 2 GiB."""
    sizes = [extent for extent in buffer.shape if isinstance(extent, int)]
    return len(sizes) == len(buffer.shape) and buffer.dtype.nbytes(math.prod(sizes)) < 1 << 31


class HipKernel(KernelText):
    """One kernel."""

    def make_printer(self, names: Names) -> HipPrinter:
        printer = HipPrinter(names)
        printer.shares_tensors = exchanges_tensors(self.kernel)
        printer.carried = carried_registers(self.kernel.body)
        rest: ir.Expr = ir.Call(INT32, "first_of_wave", ())
        extents = self.kernel.threads
        for position, (var, extent) in enumerate(zip(self.kernel.thread_vars, extents, strict=True)):
            last = all(one == 1 for one in extents[position + 1 :])
            printer.first_of_wave[var] = rest if last else rest % extent
            rest = ir.const(0) if last else rest // extent
        return printer

    def shared_memory(self, size: int) -> str:
        return f"TW_SHARED(shared_memory, {size});"
