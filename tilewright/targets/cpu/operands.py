"""The operands of a gemm brought into the form that micro-kernels read.

An operand that does not lie as the instruction needs it is copied once into scratch memory of the block; a
tile whose layout `plan_operand_layouts` chose, and a packed weight, are read where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilewright.ir import FLOAT32, INT32, DType, same
from tilewright.ir import nodes as ir
from tilewright.layout.panels import PanelLayout
from tilewright.machine.dot import OperandPlan
from tilewright.ops import Gemm, element, full_index, kept_axes, zero
from tilewright.passes.context import Context
from tilewright.passes.rows import unproven_beginning
from tilewright.passes.tile.processors.forward_operands import SOURCES, shift_ends_with
from tilewright.passes.tile.processors.plan_operand_layouts import FEW_ROWS, PhysicalOperand, physical_operand
from tilewright.targets.cpu.microkernels import multiply
from tilewright.targets.cpu.multiplicands import Left, PanelRight, Right, RowsRight
from tilewright.targets.cpu.prefetch import prefetch_of
from tilewright.targets.cpu.vectors import is_multiple, load_vector, loop, reinterpret, splat_const

SCALES_AHEAD = 4
"""How many groups ahead scales are asked for, at least: the time from the last cache or from memory. Those of a
product's groups are asked for together, two products before theirs."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors of one operand: the value for a row of a, or a vector of columns of b, in a block of k."""

    value: Callable[[ir.Expr, ir.Expr], ir.Expr]
    chunks: int


class Operands:
    """One gemm's operands; what they need done beforehand collects in `before`.

    Parameters
    ----------
    plan : how the instruction multiplies them.
    """

    def __init__(self, op: Gemm, context: Context, plan: OperandPlan) -> None:
        self.op, self.context, self.plan, self.chunk = op, context, plan, plan.chunk
        self.lanes = plan.instruction.lanes
        self.before: list[ir.Statement] = []
        self.sums: ir.Buffer | None = None
        self.column_sums: ir.Buffer | None = None
        self.scale_a: Scale | None = None
        self.scale_b: Scale | None = None
        self.shift: Callable[[ir.Expr, ir.Expr], ir.Expr] | None = None
        """What the author adds to the products of a row, by row and chunk."""
        self.shift_b: Scale | None = None
        """What each column multiplies that by."""
        self.loads: ir.Extent | None = None
        """Loads of the whole tile along k that exist, where they are not as many as its k needs."""

    # Extents ------------------------------------------------------------------------------------

    def rows(self) -> ir.Extent:
        """Rows of a that exist: fewer than the tile's where it hangs over the end of a global matrix."""
        return self.named("rows", inside(self._source(self.op.a), 1 if self.op.transpose_a else 0))

    def _source(self, region: ir.Region) -> ir.Region:
        """Where the elements of a staged operand came from, or the operand itself."""
        return self.context.facts[SOURCES].get(region, region)

    def named(self, name: str, value: ir.Extent) -> ir.Extent:
        """`value` computed once, under a name."""
        if isinstance(value, (int, ir.Var, ir.Const)):
            return value
        var = ir.Var(value.dtype, name)
        self.before.append(ir.Let(var, value))
        return var

    # Operands -----------------------------------------------------------------------------------

    def left(self) -> Left:
        """a as rows of consecutive k of the instruction's type."""
        op, wanted = self.op, self.plan.instruction.broadcast
        at = lambda i, k: full_index(op.a, (k, i) if op.transpose_a else (i, k))  # noqa: E731
        in_order = self.plan.instruction.depth == 1 or not op.transpose_a
        flip = ir.const(self.plan.left_offset, wanted) if self.plan.left_offset else None
        as_is = flip is None and op.a.dtype == wanted and in_order and not op.a.buffer.packed
        if as_is and self._k_inside() and self._begins_inside(op.a):
            return Left(self._own_view(op.a.buffer), at)

        def value(i: ir.Expr, k: ir.Expr) -> ir.Expr:
            loaded = ir.Load(op.a.dtype, op.a.buffer, at(i, k))
            return loaded if flip is None else ir.binary("xor", reinterpret(loaded, wanted), flip)

        return Left(self._scratch("left", (op.m, op.k), wanted, value), lambda i, k: (i, k))

    def _k_inside(self) -> bool:
        """Whether runs of k of a lie in memory one beside the other, and none reaches beyond the buffer."""
        op, buffer = self.op, self.op.a.buffer
        beside = self.plan.instruction.depth == 1 or buffer.strides is None or buffer.strides[-1] == 1
        return beside and inside(op.a, 0 if op.transpose_a else 1) == op.k

    def _begins_inside(self, region: ir.Region) -> bool:
        """Whether a region may be read where it lies, up to the end of its buffer."""
        return not unproven_beginning(region, self.context.analyzer)

    def _own_view(self, buffer: ir.Buffer) -> ir.Buffer:
        """`buffer`, or where it is global a view of it: the loops below keep inside, so nobody need guard it."""
        if buffer.scope != "global":
            return buffer
        view = ir.Buffer(f"{buffer.name}_rows", buffer.shape, buffer.dtype, "local", buffer.strides, buffer)
        self.before.append(ir.Allocate(view))
        return view

    def right(self) -> Right:
        """b as vectors of columns."""
        op, instruction = self.op, self.plan.instruction
        physical = physical_operand(op.b, self.context)
        begins_inside = self._begins_inside(op.b)
        if physical is not None and begins_inside:
            found = self._panels_in_place(physical)
            if found is not None:
                return found
        at = lambda k, n: full_index(op.b, (n, k) if op.transpose_b else (k, n))  # noqa: E731
        as_is = op.b.dtype == instruction.vector or op.m <= FEW_ROWS
        in_rows = not op.transpose_b and op.n % self.lanes == 0 and _rows_of_memory(op.b) and begins_inside
        if physical is None and instruction.depth == 1 and as_is and in_rows:
            return RowsRight(op.b.buffer, at, instruction)
        return self._panels_in_scratch(at)

    def _panels_in_place(self, physical: PhysicalOperand) -> PanelRight | None:
        op, layout, plan = self.op, physical.layout, self.plan
        if layout.transposed != op.transpose_b or layout.lanes != self.lanes or layout.run % plan.instruction.depth:
            return None
        n_axis, k_axis = (0, 1) if op.transpose_b else (1, 0)
        starts = op.b.starts[-2:]
        if not (is_multiple(starts[n_axis], layout.lanes) and is_multiple(starts[k_axis], layout.step)):
            return None
        if self.chunk % layout.step:
            return None
        panel = starts[n_axis] // layout.lanes
        if physical.leading:
            panel = physical.tile(op.b.starts) * layout.panels + panel
        first = starts[k_axis] // layout.step
        self.before += physical.declare
        stored = physical.memory.dtype if op.b.dtype.is_float else op.b.dtype
        tile_loads = op.k // layout.step
        if layout.loads % tile_loads == 0 and is_multiple(starts[k_axis], op.k):
            exist = inside(self._source(op.b), k_axis)
            steps = exist if isinstance(exist, int) else (exist + (layout.step - 1)) // layout.step
            self.loads = tile_loads if isinstance(steps, int) else self.named("loads", steps)
        else:  # the last tile hangs over the end of k, where the memory ends too
            left = ir.index_binary("max", layout.loads - first, 0)
            self.loads = self.named("loads", ir.index_binary("min", left, tile_loads))
        prefetch = prefetch_of(self.context.arch) if op.b.buffer.scope == "global" else None
        beyond = -(-op.n // self.lanes)
        return PanelRight(physical.memory, layout, stored, plan, panel, first, prefetch, beyond=beyond)

    def _panels_in_scratch(self, at: Callable[[ir.Expr, ir.Expr], tuple[ir.Expr, ...]]) -> PanelRight:
        """A copy of b in panels; columns beyond the last are never stored, so they may hold anything."""
        op, instruction = self.op, self.plan.instruction
        layout = PanelLayout(op.n, op.k, True, self.lanes, instruction.depth)
        stored = op.b.dtype if instruction.accumulator.is_integer else instruction.vector
        if stored.is_packed:
            stored = instruction.vector  # spread out to bytes; an offset is added below
        memory = ir.Buffer("right", (layout.size,), stored, "local")
        n, k = ir.Var(INT32, "n"), ir.Var(INT32, "k")
        value = ir.cast(ir.Load(op.b.dtype, op.b.buffer, at(k, n)), stored)
        offset = self.plan.offset if stored == instruction.vector and op.b.dtype.is_packed else 0
        if offset:
            value = ir.binary("add", ir.cast(value, stored), ir.const(offset % 256, stored))
        store = ir.Store(memory, (layout.position(n, k),), value)
        fill = ir.Parallel((n, k), (op.n, op.k), ir.seq(store), span=op.span)
        self.before.append(ir.Allocate(memory))
        if op.n % self.lanes:  # padding is never read uninitialised
            place = ir.Var(INT32, "at")
            self.before.append(ir.Parallel((place,), (layout.size,), ir.seq(ir.Store(memory, (place,), zero(stored)))))
        self.before.append(fill)
        plan = OperandPlan(instruction, 0) if offset else self.plan
        return PanelRight(memory, layout, stored, plan, ir.const(0), ir.const(0))

    def _scratch(self, name: str, shape: tuple[int, ...], dtype: DType, value: Callable[..., ir.Expr]) -> ir.Buffer:
        """A tile of the block's own, filled element by element."""
        buffer = ir.Buffer(name, shape, dtype, "local")
        vars = tuple(ir.Var(INT32, letter) for letter in "ijkl"[: len(shape)])
        body = ir.seq(ir.Store(buffer, vars, ir.cast(value(*vars), dtype)))
        self.before += [ir.Allocate(buffer), ir.Parallel(vars, shape, body, span=self.op.span)]
        return buffer

    def scale(self, scale: ir.Region | None, region: ir.Region, is_a: bool) -> Scale | None:
        """Access to a scale's factors, by row or first column and by chunk."""
        if scale is None:
            return None
        op = self.op
        other, along_k = op.scale_blocks(is_a)
        size = (op.m if is_a else op.n) // other
        one_dimension, whole = op.is_line(scale, is_a), scale

        def factor(at: ir.Expr, block: ir.Expr) -> ir.Expr:
            return element(whole, op.scale_index(whole, is_a, at // size, block))

        per_chunk = op.k // along_k // self.chunk
        if is_a:
            return Scale(lambda row, chunk: factor(row, chunk // per_chunk), along_k)
        by_lines = one_dimension or op.axis_of_k(is_a) == 0 or op.groups is not None
        contiguous = size == 1 and by_lines and op.n % self.lanes == 0
        contiguous = contiguous and (_rows_of_memory(scale) or self._same_columns(scale))
        contiguous = contiguous and not unproven_beginning(scale, self.context.analyzer, (-1,))
        if not contiguous:
            columns = -(-op.n // self.lanes) * self.lanes  # whole vectors: those beyond the last are never stored
            copy = self._scratch(
                "factors",
                (along_k, columns),
                FLOAT32,
                lambda block, n: factor(ir.index_binary("min", n, op.n - 1) if columns > op.n else n, block),
            )
            scale = ir.Region(copy, (ir.const(0), ir.const(0)), (along_k, columns))
            one_dimension = False
        found = scale

        def vector(column: ir.Expr, chunk: ir.Expr) -> ir.Expr:
            block = chunk // per_chunk
            index = full_index(found, (column,) if one_dimension else (block, column))
            return ir.cast(load_vector(view, self.lanes, *index), FLOAT32.with_lanes(self.lanes))

        view = self._own_view(found.buffer)
        if found.buffer.scope == "global" and found.buffer.rank >= 2 and found.extents[-1] == op.n:
            self.before += self._ask_for_scales(found, along_k)
        return Scale(vector, along_k)

    def _ask_for_scales(self, scale: ir.Region, along_k: int) -> list[ir.Statement]:
        """Requests for the factors of products to come, which lie lines of a page of their own apart."""
        arch = self.context.arch
        per_line, prefetch = arch.line_bytes // scale.dtype.storage_bytes, prefetch_of(arch)
        ahead = max(SCALES_AHEAD, 2 * along_k)

        def request(block: ir.Expr, line: ir.Expr) -> list[ir.Statement]:
            *outer, row, column = scale.starts
            return [prefetch.line(scale.buffer, *outer, row + block + ahead, column + line * per_line)]

        lines = -(-self.op.n // per_line)
        return loop("block", 0, along_k, lambda block: loop("line", 0, lines, lambda line: request(block, line)))

    def _same_columns(self, scale: ir.Region) -> bool:
        """Whether a global scale's columns are those of a global b, so that whole vectors that exist in b exist in
        it."""
        op, buffer = self.op, scale.buffer
        if buffer.scope != "global" or op.b.buffer.scope != "global" or buffer.strides is not None or buffer.packed:
            return False
        axis = -2 if op.transpose_b else -1
        size = buffer.shape[-1]
        return (
            isinstance(size, int)
            and size == op.b.buffer.shape[axis]
            and size % self.lanes == 0
            and same(scale.starts[-1], op.b.starts[axis])
            and is_multiple(scale.starts[-1], self.lanes)
        )

    def shift_of_rows(self) -> Callable[[ir.Expr, ir.Expr], ir.Expr] | None:
        """The operator's shift in the accumulator's type, or in float32 where columns have factors of it; the first
        chunk of k gets it."""
        op, shift, total = self.op, self.op.shift, self.plan.instruction.accumulator
        if shift is None:
            return None
        if op.shift_b is not None:
            total = FLOAT32
        axes = kept_axes(shift, 1 if op.groups is None else 2)
        assert axes is not None
        view = self._own_view(shift.buffer) if self._same_rows(shift, axes[-1]) else shift.buffer
        per_group = op.k // (op.groups or 1) // self.chunk

        def value(row: ir.Expr, chunk: ir.Expr) -> ir.Expr:
            group = chunk // per_group
            at = full_index(shift, (row,) if op.groups is None else (group, row))
            added = ir.cast(ir.Load(shift.dtype, view, at), total)
            if per_group == 1:
                return added
            first = ir.binary("eq", chunk, ir.cast(group * per_group, chunk.dtype))
            return ir.Select(total, first, added, zero(total))

        return value

    def _same_rows(self, shift: ir.Region, axis: int) -> bool:
        """Whether a global shift has a number for each row that a's matrix has: rows that exist in a exist in it."""
        alongside = shift_ends_with(self.op, "a", self._source(self.op.a))
        return alongside and not unproven_beginning(shift, self.context.analyzer, (axis,))

    def sum_rows(self, left: Left, rows: ir.Extent) -> ir.Buffer:
        """``-offset * sum over k of a`` for every row and chunk, in the accumulator's type."""
        instruction = self.plan.instruction
        chunks = self.op.k // self.chunk
        sums = ir.Buffer("row_sums", (self.op.m, chunks), instruction.accumulator, "local")
        vector = instruction.vector.with_lanes(instruction.lanes * instruction.depth)
        whole = self.chunk // vector.lanes * vector.lanes
        wide = instruction.accumulator.with_lanes(instruction.lanes)

        def chunk_sum(row: ir.Expr, chunk: ir.Expr) -> list[ir.Statement]:
            part = ir.Buffer("partial", (instruction.lanes,), instruction.accumulator, "register")
            total = ir.Buffer("total", (1,), instruction.accumulator, "scalar")
            first, here = chunk * self.chunk, (ir.const(0),)
            in_lanes, in_all = ir.Load(wide, part, here), ir.Load(total.dtype, total, here)

            def run(k: ir.Expr) -> list[ir.Statement]:
                elements = ir.Load(left.buffer.dtype.with_lanes(vector.lanes), left.buffer, left.index(row, first + k))
                return [ir.Store(part, here, multiply(instruction, in_lanes, splat_const(1, vector), elements))]

            def single(k: ir.Expr) -> list[ir.Statement]:
                element = ir.cast(ir.Load(left.buffer.dtype, left.buffer, left.index(row, first + k)), total.dtype)
                return [ir.Store(total, here, ir.binary("add", in_all, element))]

            made = [
                ir.Allocate(part),
                ir.Store(part, here, splat_const(0, wide)),
                *loop("k", 0, whole, run, step=vector.lanes),
                ir.Allocate(total, ir.Call(total.dtype, "cpu.total", (in_lanes,))),
                *loop("k", whole, self.chunk, single),
                ir.Store(sums, (row, chunk), ir.binary("mul", in_all, ir.const(-self.plan.offset, total.dtype))),
            ]
            return [ir.Seq(tuple(made))]

        self.before.append(ir.Allocate(sums))
        self.before += loop("row", 0, rows, lambda row: loop("chunk", 0, chunks, partial(chunk_sum, row)))
        return sums

    def sum_columns(self, right: Right) -> ir.Buffer:
        """``-left_offset * sum over k of b`` for every chunk and column, in the accumulator's type."""
        instruction, chunks = self.plan.instruction, self.op.k // self.chunk
        vectors = -(-self.op.n // self.lanes)
        sums = ir.Buffer("column_sums", (chunks, vectors * self.lanes), instruction.accumulator, "local")
        wide = instruction.accumulator.with_lanes(self.lanes)
        shared = splat_const(self.plan.left_offset, instruction.broadcast.with_lanes(self.lanes * instruction.depth))
        loads = self.chunk // right.step

        def one(chunk: ir.Expr, vector: ir.Expr) -> list[ir.Statement]:
            part, here = ir.Buffer("partial", (self.lanes,), instruction.accumulator, "register"), (ir.const(0),)
            so_far = ir.Load(wide, part, here)

            def step(position: ir.Expr) -> list[ir.Statement]:
                at = chunk * loads + position
                value = right.load(vector, at)
                total: ir.Expr = so_far
                for _, operand in right.parts():
                    total = multiply(instruction, total, operand(value), shared)
                return [*right.ahead(vector, at), ir.Store(part, here, total)]

            made = [
                ir.Allocate(part),
                ir.Store(part, here, splat_const(0, wide)),
                *loop("position", 0, loads, step),
                ir.Store(sums, (chunk, vector * self.lanes), ir.binary("sub", splat_const(0, wide), so_far)),
            ]
            return [ir.Seq(tuple(made))]

        self.before.append(ir.Allocate(sums))
        self.before += loop("chunk", 0, chunks, lambda chunk: loop("vector", 0, vectors, partial(one, chunk)))
        return sums

    def panels(self, columns: int) -> ir.Extent:
        """Whole vectors of columns that exist."""
        found = inside(self._source(self.op.b), 0 if self.op.transpose_b else 1)
        if isinstance(found, int):
            return found // self.lanes
        whole = (found + (self.lanes - 1)) // self.lanes
        return self.named("vectors", ir.index_binary("min", whole, columns))

    def left_over(self, across: int) -> int | None:
        """Vectors of columns that tiles of `across` leave, wherever they leave any; None where that differs or nobody
        knows."""
        region, axis = self._source(self.op.b), -2 if self.op.transpose_b else -1
        extent, size = region.extents[axis], region.buffer.shape[axis]
        if not (isinstance(size, int) and isinstance(extent, int) and is_multiple(region.starts[axis], extent)):
            return None
        rests = {-(-count // self.lanes) % across for count in (extent, size % extent)} - {0}
        return None if len(rests) > 1 else max(rests, default=0)


def inside(region: ir.Region, axis: int) -> ir.Extent:
    """Elements of a region along an axis of its matrix that lie inside its buffer."""
    axis -= 2
    extent, start, size = region.extents[axis], region.starts[axis], region.buffer.shape[axis]
    assert isinstance(extent, int)
    if region.buffer.scope != "global":
        return extent
    if isinstance(size, int) and size % extent == 0 and is_multiple(start, extent):
        return extent
    left = ir.index_binary("max", size - start, 0)
    return ir.cast(ir.index_binary("min", left, extent), INT32)


def _rows_of_memory(region: ir.Region) -> bool:
    """Whether the region's last dimension is contiguous, whole and inside its buffer."""
    buffer = region.buffer
    unit = buffer.strides is None or buffer.strides[-1] == 1
    size, extent, start = buffer.shape[-1], region.extents[-1], region.starts[-1]
    whole = isinstance(size, int) and isinstance(extent, int) and size % extent == 0 and is_multiple(start, extent)
    return unit and (whole or buffer.scope != "global") and not buffer.packed and not buffer.dtype.is_packed
