"""Tiles that only repeat a row of a tensor are not stored: whoever wants an element reads the tensor again.

Before::

    @stage("threaded")
    def f(A: bfloat16[1024, 4096], C: float32[1024, 4096]) -> C:
        with kernel(blocks={bx: 1024}, threads={tx: 1, ty: 1, tz: 1}):
            row = register(float32[4096])
            total = scalar(float32[1], initial=0.0)
            for i in vectorize(4096):
                row[i] = float32(A[bx, i])
            for k in range(4096):
                total[0] = total[0] + row[k]
            for j in vectorize(4096):
                C[bx, j] = row[j] * total[0]

After::

    @stage("threaded")
    def f(A: bfloat16[1024, 4096], C: float32[1024, 4096]) -> C:
        with kernel(blocks={bx: 1024}, threads={tx: 1, ty: 1, tz: 1}):
            row = register(float32[4096])
            total = scalar(float32[1], initial=0.0)
            for k in range(4096):
                total[0] = total[0] + float32(A[bx, k])
            for j in vectorize(4096):
                C[bx, j] = float32(A[bx, j]) * total[0]

A tile of a machine without registers for it lies in the caches, as the row does since it was read. Written there a
second time it takes the place of the row, of what else the block reads, and of the next row that is on its way.

Where a later loop writes over all of the tile, elements are read from the tensor up to there, and from the tile behind.
A tile that is read more than once by one statement, an operand of products for example, is made to lie well for that,
and stays.
"""

from __future__ import annotations

from tilewright.arith import Analyzer
from tilewright.ir import DType, children, find
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.passes import Context, free_of, map_kernels
from tilewright.passes.forwarding import Filled, ForwardingTiles
from tilewright.passes.thread.forward_stores import PRIVATE

MOST_OPERATIONS = 2
"""Of arithmetic that are repeated rather than their result stored; conversions of floats come on top."""


def forward_tiles(function: ir.Function, context: Context) -> ir.Function:
    """Read elements of tiles that repeat tensors from those tensors."""
    return map_kernels(function, lambda kernel: kernel.with_body(_Tiles(kernel, context.arch)(kernel.body)))


class _Tiles(ForwardingTiles):
    def __init__(self, kernel: ir.Kernel, arch: Arch) -> None:
        super().__init__(kernel)
        self.arch = arch

    def wants(self, tile: ir.Buffer) -> bool:
        return tile.scope in PRIVATE and tile.rank > 0

    def may_ask(self, statement: ir.Statement, tile: ir.Buffer) -> bool:
        return _reads_once(statement, tile)

    def repeats(self, filled: Filled) -> bool:
        """Whether the tile holds neighbouring elements of one tensor, or what little is computed from each."""
        loads = list(find(filled.value, ir.Load))
        if len(loads) != 1 or not super().repeats(filled):
            return False
        (load,), innermost = loads, filled.indices[-1]
        if load.buffer.packed or load.buffer.strides is not None or not isinstance(innermost, ir.Var):
            return False
        *outer, last = load.indices
        side_by_side = ir.is_literal(Analyzer().stride(last, innermost), 1)
        return side_by_side and all(free_of(index, innermost) for index in outer) and self.is_cheap(filled)

    def is_cheap(self, filled: Filled) -> bool:
        value, operations = filled.at(filled.indices), 0
        while not isinstance(value, ir.Load):
            if isinstance(value, ir.Cast) and self.widens(value.value.dtype, value.dtype):
                value = value.value
                continue
            operands = [one for one in _operands(value) if not isinstance(one, ir.Const)]
            operations += 1
            if len(operands) != 1 or operations > MOST_OPERATIONS:
                return False
            (value,) = operands
        return True

    def widens(self, source: DType, to: DType) -> bool:
        """Whether a conversion between floats is an instruction or two."""
        narrow = ("bfloat16", "float16") if self.arch.has("f16c") or self.arch.has("neon") else ("bfloat16",)
        return to.name == "float32" and source.name in narrow


def _operands(value: ir.Expr) -> tuple[ir.Expr, ...]:
    """What an operation that costs one instruction works on; nothing for another."""
    if isinstance(value, ir.Binary) and value.op in ("add", "sub", "mul", "min", "max"):
        return value.left, value.right
    if isinstance(value, ir.Unary):
        return (value.value,)
    return value.operands if isinstance(value, ir.Call) and value.function == "abs" else ()


def _reads_once(statement: ir.Statement, tile: ir.Buffer) -> bool:
    """Whether `tile` is read by elements, in loops that have no more iterations than it has elements."""
    waiting: list[tuple[ir.Record, int]] = [(statement, 1)]
    while waiting:
        node, times = waiting.pop()
        if isinstance(node, ir.Load) and node.buffer is tile and (node.dtype.lanes > 1 or times > tile.size):
            return False
        if isinstance(node, (ir.For, ir.While)):
            numbers = node.numbers if isinstance(node, ir.For) else None
            times = tile.size + 1 if numbers is None else times * len(numbers)
        waiting += [(below, times) for below in children(node) if not isinstance(below, ir.Buffer)]
    return True
