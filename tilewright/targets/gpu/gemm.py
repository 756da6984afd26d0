"""`T.gemm` by warps: each loads fragments of its operands, as matrices where the machine can, and multiplies its tiles.

For each step of k a warp reads its rows of a and its columns of b into registers, then issues one instruction for
every tile it holds; the accumulator stays where it is.  Operands have two sets of registers: while one step is
multiplied, the next one is on its way from shared memory. A sparse product's left operand is half as deep, with a word
of metadata a lane for each tile of rows.
"""

from __future__ import annotations

from abc import abstractmethod

from tilewright.arith import Analyzer
from tilewright.ir import INT32, UINT32, perform
from tilewright.ir import nodes as ir
from tilewright.layout import REGISTER, Layout, shared_rows, vector_width
from tilewright.ops import Gemm, SparseGemm
from tilewright.ops.base import zero
from tilewright.passes import Context
from tilewright.passes.rows import is_plain_tensor, row_unsupported
from tilewright.targets.gpu.warp_product import OPERAND_LOADS, OperandLoad, WarpProduct

SCHEDULE_FENCE = perform("schedule_fence")
"""The compiler moves nothing over it, where it would load what many later steps take."""


def lower_gemm(gemm: Gemm, context: Context) -> ir.Statement | None:
    """The thread code of a gemm that has a plan."""
    return _WarpGemm.lower(gemm, context)


class _WarpGemm(WarpProduct[Gemm]):
    """A dense one: the next step's operands are loaded beside a product."""

    def statements(self) -> ir.Seq:
        gemm, plan = self.gemm, self.plan
        left, right = self._operands(gemm.transpose_a)
        a, b = self._part(left, "a"), self._part(right, "b")
        parts = [(operand, part) for operand, part in ((left, a), (right, b)) if not operand.in_registers]
        if self._stepwise:  # where registers are few: bytes that are gathered have one each on their way
            fences = [SCHEDULE_FENCE] if self.arch.has("steps_apart") and plan.tiles_k > 1 else []
            kind = "serial" if len(parts) == 2 and self._gathers else "unroll"
            return self._step_by_step(left, right, a, b, kind, *fences)
        first = [statement for operand, part in parts for statement in self._loads(operand, part, ir.const(0))]
        unrolled = _unrolled(plan.tiles_k) if len(parts) == 2 else plan.tiles_k
        iteration, inner = ir.Var(INT32, "k_steps"), ir.Var(INT32, "k_step")
        self.block.analyzer.bind_extent(iteration, plan.tiles_k // unrolled)
        self.block.analyzer.bind_extent(inner, unrolled)
        step = self.block.simplify(iteration * unrolled + inner)
        body: list[ir.Statement] = [self._multiply(left, right, a, b, step)]
        if parts and plan.tiles_k > 1:
            following = step + 1
            inside = ir.index_binary("lt", following, plan.tiles_k)
            with self.block.analyzer.scope():
                self.block.analyzer.assume(inside)
                ahead = [statement for operand, part in parts for statement in self._loads(operand, part, following)]
            body.insert(0, ir.If(inside, ir.seq(ahead), span=gemm.span))
        loop = ir.counted(inner, unrolled, ir.seq(body), "unroll", span=gemm.span)
        if unrolled < plan.tiles_k:
            loop = ir.counted(iteration, plan.tiles_k // unrolled, ir.seq(loop), span=gemm.span)
        allocated = [ir.Allocate(part, span=gemm.span) for _, part in parts]
        return ir.seq(self._clear(), allocated, first, loop)

    @property
    def _sets(self) -> int:
        """Sets of registers that operands from shared memory have."""
        return 2 if self.plan.tiles_k > 1 and not self._stepwise else 1

    @property
    def _stepwise(self) -> bool:
        """Whether operands of one step are there at a time."""
        return self._gathers or self.arch.has("steps_apart")

    @property
    def _gathers(self) -> bool:
        """Whether bytes of an operand come one by one: matrix loads transpose nothing but pairs of them."""
        operands = ((self.gemm.a, self.gemm.transpose_a), (self.gemm.b, not self.gemm.transpose_b))
        return any(
            region.buffer.scope != "fragment" and transposed and region.dtype.bits == 8
            for region, transposed in operands
        )


def _unrolled(steps: int) -> int:
    """How many of so many steps are written out: an even number where not all of them, for the two sets of
    registers."""
    return next((count for count in (8, 6, 4) if steps > 8 and steps % count == 0), steps)


class SparseWarpProduct(WarpProduct[SparseGemm]):
    """A warp's gemm whose left operand is half as deep."""

    @abstractmethod
    def word(self, first_row: ir.Expr, step: ir.Expr) -> ir.Expr:
        """This lane's word of metadata for the tile of rows from `first_row` on, at a step of k."""

    def statements(self) -> ir.Seq:
        left, right = self._operands(False)
        return self._step_by_step(left, right, self._part(left, "a"), self._part(right, "b"))

    def _beside(self, row: ir.Var, step: ir.Expr) -> tuple[list[ir.Statement], tuple[ir.Expr, ...]]:
        self.block.analyzer.bind_extent(row, self.plan.tiles_m)
        word = ir.Var(UINT32, "places")
        return [ir.Let(word, self._word(row, step), span=self.gemm.span)], (word,)

    def _word(self, tile: ir.Var, step: ir.Expr) -> ir.Expr:
        plan = self.plan
        warp = self.block.thread // plan.instruction.threads
        group = warp % plan.warps_m
        first = group * plan.tiles_m + tile
        return self.word(first * plan.instruction.m, step)


def load_elements(load: OperandLoad) -> list[ir.Statement]:
    """A loop over the tiles of an operand, in it one over the vectors that a lane holds of a tile."""
    product, operand, part = load.product, load.operand, load.part
    layout = load.fragment
    lanes = _vector(load, layout)
    tile, vector = ir.Var(INT32, "tile"), ir.Var(INT32, "r")
    product.block.analyzer.bind_extent(tile, operand.tiles)
    product.block.analyzer.bind_extent(vector, operand.registers // lanes)
    register = vector * lanes if lanes > 1 else vector
    row, column = layout.held_at(load.lane, register)
    across, deep = (row, column) if operand.is_left else (column, row)
    source = product.element(operand, tile, across, load.step, deep)
    within = tile * operand.registers + register
    span, place = product.gemm.span, load.register(within)
    read = _read(load, ir.Load(part.dtype.with_lanes(lanes), source.buffer, source.starts), place)
    inner = ir.counted(vector, operand.registers // lanes, ir.seq(read), "unroll", span=span)
    return [ir.counted(tile, operand.tiles, ir.seq(inner), "unroll", span=span)]


def _read(load: OperandLoad, found: ir.Load, place: ir.Expr) -> ir.Statement:
    """A lane reads some of its elements; those of a tensor where they are in bounds, else what is safe."""
    block, tensor, part, span = load.product.block, load.operand.region.buffer, load.part, load.product.gemm.span
    guard, lanes = block.guard(tensor, found.indices), found.dtype.lanes
    if guard is None:
        return ir.Store(part, (place,), found, span=span)
    safe = block.safe_value(tensor) or zero(found.dtype.scalar)
    if lanes > 1 and not load.product.arch.has("guarded_loads"):
        lane = ir.Var(INT32, "lane")
        fill = ir.Store(part, (place + lane,), safe, span=span)
        beyond = ir.counted(lane, lanes, ir.seq(fill), "unroll", span=span)
        return ir.If(guard, ir.seq(ir.Store(part, (place,), found, span=span)), ir.seq(beyond), span=span)
    value = ir.Select(found.dtype, guard, found, safe if lanes == 1 else ir.Broadcast(found.dtype, safe))
    return ir.Store(part, (place,), value, span=span)


def _vector(load: OperandLoad, layout: Layout) -> int:
    """How many consecutive registers of a lane hold elements that lie side by side in the shared tile."""
    operand, block = load.operand, load.product.block
    region, dtype = operand.region, load.part.dtype
    if dtype.is_packed:
        return 1
    # The last dimension of the tile is k, or what goes across: which of the fragment's two that is depends on the side.
    along = int(operand.is_left != operand.transposed)
    lanes = vector_width(layout, dtype.stored_bits, dimension=along, place=REGISTER)
    if region.buffer.scope == "global":
        return 1 if block.safe_value(region.buffer) is not None else _of_tensor(region, lanes, block.analyzer)
    tile = block.layouts.get(region.buffer) or shared_rows(region.buffer.static_shape, dtype.stored_bits, None)
    lanes = min(lanes, vector_width(tile, dtype.stored_bits))
    return lanes if block.analyzer.divides(region.starts[-1], lanes) else 1


def _of_tensor(region: ir.Region, lanes: int, analyzer: Analyzer) -> int:
    """The most neighbours of a tensor's row that one access may read wherever a row begins, and that are in bounds
    together."""
    tensor = region.buffer
    while lanes > 1 and not (
        is_plain_tensor(tensor)
        and row_unsupported(tensor, tensor.dtype.nbytes(lanes), analyzer) is None
        and analyzer.divides(tensor.shape[-1], lanes)
        and analyzer.divides(region.starts[-1], lanes)
    ):
        lanes //= 2
    return lanes


OPERAND_LOADS["load"] = load_elements
