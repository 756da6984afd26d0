"""Every buffer gets one dimension, every access one index: row-major, or by the buffer's strides.

Before::

    @stage("threaded")
    def f(A: float32[M, N], C: float32[8, 16], *, M: int32, N: int32) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            for i in range(8):
                C[i, 3] = A[i + bx, 4]

After::

    @stage("final")
    def f(A: float32[M, N], C: float32[8, 16], *, M: int32, N: int32) -> C:
        with kernel(blocks={bx: 1}, threads={tx: 128, ty: 1, tz: 1}):
            for i in range(8):
                C[i * 16 + 3] = A[int64(i) * int64(N) + 4]

Views of the same element type become accesses of the buffer they view; others stay, as another reading of its
bytes. Indices are int32 where the buffer's size fits, else int64; what inner dimensions add is summed with 32 bits even
then, so that compilers see it as one distance from a row. Rows of elements that share bytes end with a byte.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import TilewrightError
from tilewright.ir import INT32, INT64, DType, Rewritten, changed, find, having, walk
from tilewright.ir import nodes as ir
from tilewright.passes import Context, ScopedRewriter


def flatten_buffers(function: ir.Function, context: Context) -> ir.Function:
    """Give every access in a kernel one index; tiles become one-dimensional, parameters keep their shapes."""
    return function.with_body(_Flatten(function)(function.body), "final")


class ScatteredRegion(TilewrightError):
    """A function of a whole tile was given a part that does not lie in one piece."""


def _is_contiguous(region: ir.Region) -> bool:
    """Whether the elements of a region follow each other in memory."""
    if region.buffer.strides is not None and any(extent != 1 for extent in region.extents):
        return region.buffer.strides[-1] == 1 and all(extent == 1 for extent in region.extents[:-1])
    inner = list(zip(region.extents, region.buffer.shape, strict=True))
    while inner and inner[0][0] == 1:
        inner.pop(0)
    return all(isinstance(extent, int) and extent == size for extent, size in inner[1:])


class _Flatten(ScopedRewriter):
    def __init__(self, function: ir.Function) -> None:
        super().__init__(function)
        self.flat: dict[ir.Buffer, ir.Buffer] = {}
        self.in_kernel = False

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        with having(self, in_kernel=True):
            made = super().visit_Kernel(kernel)
        return replace(made, body=_declare_views(made.body))

    # Buffers

    def map_buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        if not self.in_kernel:
            return buffer
        if buffer not in self.flat:
            self.flat[buffer] = self._flattened(buffer)
        return self.flat[buffer]

    def _flattened(self, buffer: ir.Buffer) -> ir.Buffer:
        if buffer.source is not None:
            source = self.map_buffer(buffer.source)
            if source.dtype == buffer.dtype:
                return source
            return replace(buffer, shape=(_total(stored_shape(buffer)),), strides=None, source=source)
        if buffer.placed:
            reach = (
                _total(stored_shape(buffer)) if buffer.strides is None else _product(buffer.shape[0], buffer.strides[0])
            )
            return replace(buffer, shape=(reach,), strides=None)
        if buffer.scope == "global" or (buffer.rank == 1 and buffer.strides is None):
            return buffer
        return replace(buffer, shape=(_total(stored_shape(buffer)),))

    def visit_Allocate(self, allocate: ir.Allocate) -> Rewritten:
        made = self.generic(allocate)
        if self.in_kernel and allocate.buffer.source is not None:
            return None  # views are declared afresh where something still needs them
        return made

    # Accesses

    def visit_TensorMap(self, node: ir.TensorMap) -> ir.TensorMap:
        """The host describes a tensor, or a view of one, in its own dimensions."""
        return node

    def visit_Load(self, load: ir.Load) -> ir.Expr:
        return replace(load, buffer=self.map_buffer(load.buffer), indices=self._index(load.buffer, load.indices))

    def visit_Store(self, store: ir.Store) -> Rewritten:
        return replace(
            store,
            buffer=self.map_buffer(store.buffer),
            indices=self._index(store.buffer, store.indices),
            value=self.visit(store.value),
        )

    def visit_Region(self, region: ir.Region) -> ir.Region:
        if not self.in_kernel:
            return self.generic(region)
        if not _is_contiguous(region):
            raise ScatteredRegion(
                f"this part of {region.buffer.name} does not lie in one piece",
                hint="copy it to a tile of its own first",
            )
        start = self._index(region.buffer, region.starts)
        return replace(region, buffer=self.map_buffer(region.buffer), starts=start, extents=(_total(region.extents),))

    def _index(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        """The one index of an element; of a scalar, 0."""
        visited = [self.visit(index) for index in indices]
        if not self.in_kernel:
            return tuple(visited)
        if buffer.scope == "scalar" or not visited:
            return (ir.const(0),)
        strides = strides_of(buffer)
        whole = self.analyzer.simplify(_place(visited, strides, index_dtype(buffer)))
        if whole.dtype is INT32:
            return (whole,)
        row = _rows(buffer)
        outer = [self.analyzer.simplify(index) for index in visited[:row]]
        narrow = INT32 if row < len(visited) and all(index.dtype == INT32 for index in visited[row:]) else INT64
        inner = self.analyzer.simplify(_place(visited[row:], strides[row:], narrow))
        made = ir.binary("add", _place(outer, strides[:row], INT64), ir.cast(inner, INT64))
        return (made if _divisions(made) <= _divisions(whole) else whole,)


def _place(indices: Sequence[ir.Expr], strides: Sequence[ir.Extent], dtype: DType) -> ir.Expr:
    """The sum of indices, each as far from the next as its stride says."""
    total: ir.Expr = ir.const(0, dtype)
    for index, stride in zip(indices, strides, strict=True):
        step = ir.cast(ir.expr(stride), dtype)
        total = ir.binary("add", total, ir.binary("mul", ir.cast(index, dtype), step))
    return total


def _rows(buffer: ir.Buffer) -> int:
    """The number of outer dimensions, so that what the others add up to certainly fits an int32."""
    if buffer.strides is not None:
        return buffer.rank - (buffer.strides[-1] == 1)
    outer, size = buffer.rank, 1
    for extent in reversed(stored_shape(buffer)):
        size *= extent if isinstance(extent, int) else 1 << 31
        if size >= 1 << 31 and outer < buffer.rank:
            break
        outer -= 1
    return outer


def _divisions(index: ir.Expr) -> int:
    return sum(isinstance(node, ir.Binary) and node.op in ("floordiv", "floormod") for node in walk(index))


def strides_of(buffer: ir.Buffer) -> tuple[ir.Extent, ...]:
    """Distance in elements between neighbours along each dimension."""
    if buffer.strides is not None:
        return buffer.strides
    strides: list[ir.Extent] = []
    step: ir.Extent = 1
    for extent in reversed(stored_shape(buffer)):
        strides.append(step)
        step = _product(step, extent)
    return tuple(reversed(strides))


def stored_shape(buffer: ir.Buffer) -> tuple[ir.Extent, ...]:
    """The shape with the last dimension as long as it is in memory: a row of packed elements ends with a byte."""
    per_byte = buffer.dtype.per_byte
    if per_byte == 1 or buffer.rank <= 1:
        return buffer.shape
    last = buffer.shape[-1]
    if isinstance(last, int):
        return (*buffer.shape[:-1], -(-last // per_byte) * per_byte)
    whole = (last + (per_byte - 1)) // per_byte
    return (*buffer.shape[:-1], whole * per_byte)


def index_dtype(buffer: ir.Buffer) -> DType:
    """int32 where every element's index certainly fits, else int64."""
    if buffer.strides is None and all(isinstance(extent, int) for extent in buffer.shape):
        return INT32 if math.prod(buffer.static_shape) < 1 << 31 else INT64
    return INT64


def _product(a: ir.Extent, b: ir.Extent) -> ir.Extent:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return ir.cast(ir.expr(a), INT64) * ir.cast(ir.expr(b), INT64)


def _total(extents: tuple[ir.Extent, ...]) -> ir.Extent:
    one: ir.Extent = 1
    return functools.reduce(_product, extents, one)


def _declare_views(body: ir.Seq) -> ir.Seq:
    """Views that are still used, each declared behind its source, or first where the source is a parameter."""
    views: dict[ir.Buffer, None] = {}
    if all(buffer.source is None for buffer in find(body, ir.Buffer)):
        return body
    for node in walk(body, lambda node: not isinstance(node, ir.TensorMap)):  # which is the host's business
        while isinstance(node, ir.Buffer) and node.source is not None:
            views.setdefault(node)
            node = node.source
    if not views:
        return body

    def declared(view: ir.Buffer) -> list[ir.Statement]:
        return [ir.Allocate(view), *behind(view)]

    def behind(source: ir.Buffer) -> list[ir.Statement]:
        return [one for view in reversed(views) if view.source is source for one in declared(view)]

    owned = {node.buffer for node in find(body, ir.Allocate)} | views.keys()
    first = [one for view in reversed(views) if view.source not in owned for one in declared(view)]
    made = changed(body, ir.Allocate, by=lambda one: [one, *behind(one.buffer)])
    return replace(made, statements=(*first, *made.statements))
