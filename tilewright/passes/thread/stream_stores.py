"""Results larger than the caches are written past them: their lines need not be read before they are written.

Before::

    @stage("final")
    def f(A: float32[33554432], C: float32[33554432]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            for i in range(0, 33554432, 16):
                C[i].x16 = A[i].x16

After::

    @stage("final")
    def f(A: float32[33554432], C: float32[33554432]) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            i_line: int32 = min(stream_head(C[0 : +1], True, dtype=int32), 33554432)
            for i in range(0, i_line, 16):
                store_first(C[i : +(i_line - i)], load_first(A[i : +(i_line - i)], dtype=float32x16), dtype=float32x16)
            i_end: int32 = i_line + (33554432 - i_line) // 16 * 16
            for i in range(i_line, i_end, 16):
                stream(C[i : +16], A[i].x16, True, dtype=float32x16)
            for i in range(i_end, 33554432, 16):
                store_first(C[i : +(33554432 - i)], load_first(A[i : +(33554432 - i)], dtype=float32x16), dtype=float32x16)

An ordinary store to a line that no cache holds reads the line first, and later pushes another one out.  Vectors that
fill lines one after the other need not: the machine collects them and writes each line once.  Whoever reads the result
next finds it in main memory, where it would have been in any case if it is several times the size of a core's own
cache; of a size that is known only at launch the kernel asks then.

Where results are narrower than what they are computed from, as bytes from floats, vectors that fill a line together are
stored together.

A tensor may begin anywhere in a line, and so may rows of a length that is no number of lines. A loop over such a row
begins with as many elements as there are up to the next line, and ends with those that its whole vectors leave
(`first_lanes`).
"""  # noqa: E501

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import BOOL, INT32, INT64, Rewritten, dtype, find, key, root
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.passes import Context, ScopedRewriter, fresh, with_values
from tilewright.passes.thread.first_lanes import NoFirstLanes, access_of, first_lanes

STORED_BYTES = 16
"""At a multiple of how many bytes a part of a line may begin."""
FEW = 16
"""Vectors of a row that is stored in parts of lines where it does not begin with one."""
FEW_IN_ORDER = 80
"""Vectors of a row that is stored as ever where stores past the caches wait for those of the row's ends."""
MADE_OF = (2, 4)
"""Vectors of which a line is made where results are narrower than what they are computed from."""
CACHES = 4
"""A result of so many times a core's second-level cache has left it before anybody reads it."""


def stream_stores(function: ir.Function, context: Context) -> ir.Function:
    """Write large results past the caches, on machines that can."""
    if not context.arch.has("x86_64") or not context.arch.l2_bytes:
        return function
    return function.with_body(_Stream(function, context.arch)(function.body))


class _Stream(ScopedRewriter):
    def __init__(self, function: ir.Function, arch: Arch) -> None:
        super().__init__(function)
        self.least, self.vector_bytes, self.line = CACHES * arch.l2_bytes, arch.vector_bytes, arch.line_bytes
        self.in_order = arch.has("ordered_streams")
        self.results = _only_written(function)
        self.loops: list[ir.For] = []
        self.large: dict[ir.Buffer, ir.Expr] = {}
        """For each result that a kernel streams, whether it is large."""

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        self.large = {}
        made = super().visit_Kernel(kernel)
        if made is kernel:
            return kernel
        asked = [
            ir.Let(large, self.is_large(result)) for result, large in self.large.items() if isinstance(large, ir.Var)
        ]
        return replace(made, body=ir.Seq((*asked, *made.body.statements)))

    def visit_For(self, loop: ir.For) -> Rewritten:
        self.loops.append(loop)
        made = super().visit_For(loop)
        self.loops.pop()
        return self.from_line_to_line(loop, made) if isinstance(made, ir.For) and made is not loop else made

    def from_line_to_line(self, loop: ir.For, made: ir.For) -> Rewritten:
        """`made`, the streaming form of `loop`, on whole lines, with what is in front of them and behind by `loop`."""
        store = self.result_of(loop)
        if store is None:
            return loop if self.in_parts(loop) else made
        lanes, var, index = store.value.dtype.lanes, loop.var, loop.var.dtype
        together = self.together(store)
        first, behind = ir.Var(index, f"{var.name}_line"), ir.Var(index, f"{var.name}_end")

        def count(stop: ir.Expr) -> ir.Expr:
            """Of a vector: beginnings and ends are shorter than a line, which may be several vectors."""
            left = ir.cast(stop - var, INT32)
            return left if store.value.dtype.nbytes(1) >= self.line else ir.index_binary("min", left, lanes)

        try:
            head = replace(loop, stop=first, body=first_lanes(loop.body, var, lanes, count(first)))
            rest = replace(loop, start=behind, body=first_lanes(loop.body, var, lanes, count(loop.stop)))
        except NoFirstLanes:
            return loop if together > 1 else made
        place = ir.Region(store.buffer, tuple(with_values(part, {var: loop.start}) for part in store.indices), (1,))
        line = ir.cast(ir.Call(INT32, "stream_head", (place, self.large[store.buffer])), index)
        left, step = loop.stop - first, lanes * together
        whole = left // step * step
        return [
            ir.Let(first, ir.index_binary("min", loop.start + line, loop.stop)),
            fresh(head),
            ir.Let(behind, first + whole),
            replace(_in_lines(made, together), start=first, stop=behind),
            fresh(rest),
        ]

    def in_parts(self, loop: ir.For) -> bool:
        """Whether a loop would stream parts of registers, which only whole lines of them make worth it."""
        return any(self.together(store) > 1 for store in find(loop.body, ir.Store) if store.buffer in self.large)

    def result_of(self, loop: ir.For) -> ir.Store | None:
        """The one store of `loop` that is streamed, where vectors may begin anywhere: none reads what another one
        writes."""
        accesses, stores = list(find(loop.body, ir.Load, ir.Store)), list(find(loop.body, ir.Store))
        streamed = [node for node in stores if node.buffer in self.large]
        if len(streamed) != 1 or not ir.is_literal(loop.step, streamed[0].value.dtype.lanes):
            return None
        for store in stores:
            places = {key(node.indices) for node in accesses if node.buffer is store.buffer}
            if len(places) > 1:
                return None
        return None if self.begins_lines(streamed[0], loop) else streamed[0]

    def begins_lines(self, store: ir.Store, loop: ir.For) -> bool:
        """Whether rows may be stored from their beginning on: with a line, or where they are short, wherever parts of
        lines begin."""
        start = with_values(store.indices[0], {loop.var: loop.start}) * store.buffer.dtype.storage_bytes
        if self.together(store) > 1:
            return False
        if self.is_short(loop):
            return self.analyzer.divides(start, STORED_BYTES)
        return root(store.buffer).alignment % self.line == 0 and self.analyzer.divides(start, self.line)

    def is_short(self, loop: ir.For, few: int = FEW) -> bool:
        """Whether a loop has too few vectors for a beginning and an end of their own to pay."""
        count = self.analyzer.simplify(loop.stop - loop.start)
        return isinstance(count, ir.Const) and isinstance(loop.step, ir.Const) and count.value < few * loop.step.value

    def visit_Store(self, store: ir.Store) -> ir.Statement:
        result, value = store.buffer, store.value
        if result not in self.results or not self.fills_lines(store):
            return store
        large = self.large.get(result)
        if large is None:
            large = self.is_large(result)
            if not isinstance(large, ir.Const):
                large = ir.Var(BOOL, f"{result.name}_is_large")
            elif not large.value:
                return store
            self.large[result] = large
        if value.dtype.is_float and value.dtype.bits < 32:
            value = ir.Reinterpret(dtype(f"uint{value.dtype.bits}").with_lanes(value.dtype.lanes), value)
        place = ir.Region(result, store.indices, (value.dtype.lanes,))
        return ir.Evaluate(ir.Call(value.dtype, "stream", (place, value, large)), span=store.span)

    def fills_lines(self, store: ir.Store) -> bool:
        """Whether whole registers are stored, one after the other in the innermost loop, or parts of which lines can be
        made."""
        kind = store.value.dtype
        if kind.lanes == 1 or kind.kind == "bool" or kind.is_packed or not self.loops:
            return False
        loop = self.loops[-1]
        if len(store.indices) != 1 or not isinstance(loop.step, ir.Const) or int(loop.step.value) % kind.lanes:
            return False
        if self.in_order and self.is_short(loop, FEW_IN_ORDER):
            return False
        if self.together(store) > 1 and not self.makes_lines(store, loop):
            return False
        stride = self.analyzer.stride(store.indices[0], loop.var)
        return ir.is_literal(stride, 1)

    def together(self, store: ir.Store) -> int:
        """Vectors that fill a register together."""
        return max(1, self.vector_bytes // store.value.dtype.nbytes(1))

    def makes_lines(self, store: ir.Store, loop: ir.For) -> bool:
        """Whether iterations of `loop` can be put together such that each stores a line.

        Parts of lines that are waited for while others are read leave one by one: bytes from 32-bit numbers took
        longer.
        """
        count = self.together(store)
        step = int(loop.step.value) if isinstance(loop.step, ir.Const) else 0
        extent = self.analyzer.bounds(loop.stop - loop.start)[0]
        long = extent is not None and extent >= FEW * step * count
        alone = any(part is store for part in loop.body.statements)
        return (
            long and alone and step == store.value.dtype.lanes and self.vector_bytes == self.line and count in MADE_OF
        )

    def is_large(self, result: ir.Buffer) -> ir.Expr:
        elements: ir.Expr = ir.const(1, INT64)
        for extent in result.shape:
            elements = elements * ir.cast(ir.expr(extent), INT64)
        elements = self.analyzer.simplify(elements)
        least = self.least // result.dtype.storage_bytes
        if isinstance(elements, ir.Const):
            return ir.const(bool(elements.value >= least), BOOL)
        return ir.binary("ge", elements, ir.const(least, INT64))


def _in_lines(loop: ir.For, together: int) -> ir.For:
    """A loop that streams a part of a line in each iteration as one that streams lines."""
    if together == 1 or not isinstance(loop.step, ir.Const):
        return loop
    step = int(loop.step.value)
    statements: list[ir.Statement] = []
    streams: list[tuple[ir.Evaluate, ir.Region, ir.Expr]] = []
    vectors: list[ir.Var] = []
    for copy in range(together):
        place = loop.var + copy * step
        for part in with_values(fresh(loop.body) if copy else loop.body, {loop.var: place}).statements:
            match part:
                case ir.Evaluate(
                    value=ir.Call(
                        function="stream", arguments=(ir.Region() as region, ir.Expr() as value, ir.Expr() as large)
                    )
                ):
                    streams.append((part, region, large))
                    vectors.append(ir.Var(value.dtype, region.buffer.name))
                    statements.append(ir.Let(vectors[-1], value))
                case _:
                    statements.append(part)
    first, region, large = streams[0]
    line = replace(region, extents=(step * together,))
    whole = replace(first, value=ir.Call(first.value.dtype, "stream", (line, *vectors, large)))
    return replace(
        loop, step=ir.const(step * together, loop.var.dtype), body=ir.Seq((*statements, whole)), kind="serial"
    )


def _only_written(function: ir.Function) -> set[ir.Buffer]:
    """Parameters that are whole tensors, and that the function stores to and never reads."""
    written: set[ir.Buffer] = set()
    read: set[ir.Buffer] = set()
    ends: set[ir.Region] = set()
    for node in find(function.body, ir.Store, ir.Call, ir.Load, ir.Allocate, ir.Region):
        if isinstance(node, ir.Store):
            written.add(node.buffer)
        elif isinstance(node, ir.Call) and (access := access_of(node)) is not None:
            ends.add(access[0])
            (written if access[1] else read).add(root(access[0].buffer))
        elif isinstance(node, (ir.Load, ir.Allocate)) or (isinstance(node, ir.Region) and node not in ends):
            read.add(root(node.buffer))
    plain = {param for param in function.params if isinstance(param, ir.Buffer) and param.strides is None}
    return (written & plain) - read
