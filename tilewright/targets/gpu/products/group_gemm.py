"""`T.gemm` on ``wgmma``: whole warpgroups multiply tiles that they name by descriptor, while they do other things.

For each step of k and each 64 rows of its part a warpgroup issues one instruction as wide as its part of n; the
descriptor of a step is that of the tile plus a constant, and one statement issues all steps. An operator with a token
ends there; one without waits.

A left operand of bytes that lies along m is transposed by lanes (`transposed_operand.py`), and multiplied out of
registers: the part of one step of k while the products of the step before are made.

The lanes of a sparse gemm first read their words of metadata (`sparse_metadata.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.errors import InternalError
from tilewright.ir import BOOL, INT32, UINT64, perform
from tilewright.ir import nodes as ir
from tilewright.layout import REGISTER, Layout
from tilewright.ops import GemmPlan, LoadAhead, Product, SparseGemm
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.targets.gpu.copies.engine_copy import mapped_span
from tilewright.targets.gpu.products.descriptors import STEP_BYTES, WgmmaOperand, wgmma_operand
from tilewright.targets.gpu.products.sparse_metadata import PlacesOfLane, hold
from tilewright.targets.gpu.products.transposed_operand import TransposedLeft


def lower_warpgroup_gemm(gemm: Product, context: Context) -> ir.Statement | None:
    """The thread code of a gemm on warpgroups; None where its plan is another."""
    if not (isinstance(gemm.plan, GemmPlan) and gemm.plan.instruction.asynchronous):
        return None
    return _GroupGemm(gemm, gemm.plan, context.facts[BLOCK]).statements()


def lower_load_ahead(ahead: LoadAhead, context: Context) -> ir.Statement:
    """The loads of the first words of an operand that lanes transpose."""
    assert ahead.plan is not None and ahead.plan.words is not None
    block = context.facts[BLOCK]
    left = TransposedLeft(ahead, ahead.plan, block, _row_group(ahead.plan, block))
    return left.load_into(block.registers(ahead.plan.words), 0, 0)


def lower_group(commit: ir.Commit, context: Context) -> ir.Statement | None:
    """Closes a group of gemms; None where the token is not theirs."""
    if not _gemms(commit.token, context):
        return None
    return perform("gmma_commit", span=commit.span)


def lower_group_wait(wait: ir.Wait, context: Context) -> ir.Statement | None:
    """Waits for groups of gemms; behind the last wait the accumulators may be touched."""
    gemms = _gemms(wait.token, context)
    if not gemms:
        return None
    made: list[ir.Statement] = [perform("gmma_wait", ir.const(wait.pending + wait.others), span=wait.span)]
    made += _held(gemms, context)
    if wait.pending == 0:
        block = context.facts[BLOCK]
        accumulators = dict.fromkeys(gemm.c.buffer for gemm in gemms)
        made += [_settled(block, buffer) for buffer in accumulators if block.lives(buffer)]
    return ir.seq(*made)


def _gemms(token: str, context: Context) -> list[Product]:
    block = context.facts[BLOCK]
    return [operator for operator in block.of_token(token) if isinstance(operator, Product)]


def _held(gemms: list[Product], context: Context) -> list[ir.Statement]:
    """Uses of the registers with metadata, so that they are not given to others before the products have run."""
    block = context.facts[BLOCK]
    plans = (gemm.plan for gemm in gemms if isinstance(gemm, SparseGemm))
    words = dict.fromkeys(plan.words for plan in plans if isinstance(plan, GemmPlan))
    registers = [block.registers(buffer) for buffer in words if buffer is not None]
    return [hold(one) for one in registers]


def _settled(block: BlockView, accumulator: ir.Buffer) -> ir.Statement:
    return perform("hold_registers", ir.whole(block.registers(accumulator)))


def _row_group(plan: GemmPlan, block: BlockView) -> ir.Expr:
    """Which of the warpgroups that divide the rows the executing one is."""
    if plan.warps_m * plan.warps_n == 1:
        return ir.const(0)
    return block.warpgroup % plan.warps_m if plan.warps_n > 1 else block.warpgroup


@dataclass(frozen=True, slots=True)
class _Tile:
    """A shared operand: how descriptors name it, and bytes between the parts of it that instructions read."""

    region: ir.Region
    operand: WgmmaOperand
    step: int
    """Bytes from one instruction's part along m or n to the next one's."""


@dataclass(slots=True)
class _GroupGemm:
    gemm: Product
    plan: GemmPlan
    block: BlockView
    places: PlacesOfLane | None = None
    transposed: TransposedLeft | None = None
    """A left operand that lanes transpose."""

    def statements(self) -> ir.Seq:
        gemm, plan = self.gemm, self.plan
        columns = plan.warps_n
        group = self.block.warpgroup if plan.warps_m * plan.warps_n > 1 else ir.const(0)
        row_group = _row_group(plan, self.block)
        column_group = group // plan.warps_m if columns > 1 else ir.const(0)
        head: list[ir.Statement] = []
        keep = self._keep(head)
        b = self._descriptor(gemm.b, False, plan.instruction.n, column_group, plan.tiles_n, head)
        a = None
        if plan.instruction.a_memory != "registers":
            a = self._descriptor(gemm.a, True, plan.instruction.m, row_group, plan.tiles_m, head)
        if plan.instruction.transposes:
            self.transposed = TransposedLeft(gemm, plan, self.block, row_group)
            head += self.transposed.head()
        if isinstance(gemm, SparseGemm):
            self.places = PlacesOfLane(gemm, plan, self.block, row_group)
            head += self.places.statements()
        if self.transposed is not None:
            body = self._transposing(self.transposed, b, keep)
        else:
            head.append(self._fence())
            body = [
                statement
                for row in range(plan.tiles_m)
                for column in range(plan.tiles_n)
                for statement in self._steps(a, b, row, column, keep)
            ]
        tail: list[ir.Statement] = []
        if gemm.token is None:
            tail = [perform("gmma_commit"), perform("gmma_wait", ir.const(0))]
            tail.append(_settled(self.block, gemm.c.buffer))
            if self.places is not None:
                tail.append(self.places.held())
        return ir.seq(head, body, tail)

    def _fence(self) -> ir.Statement:
        """Orders what wrote an instruction's registers before it."""
        return perform("gmma_fence", span=self.gemm.span)

    def _transposing(self, left: TransposedLeft, b: tuple[ir.Var, _Tile], keep: ir.Expr) -> list[ir.Statement]:
        """Each step of k as soon as lanes have transposed its part of the left operand, the next one on its way."""
        plan = self.plan
        parts = [(row, step) for row in range(plan.tiles_m) for step in range(plan.tiles_k)]
        words, body = left.load(*parts[0]) if plan.words is None else (self.block.registers(plan.words), [])
        for (row, step), following in zip(parts, [*parts[1:], None]):
            transposed = left.transpose(words, row, step)
            if following is not None:
                words, loads = left.load(*following)
                body += loads
            body += [*transposed, self._fence()]
            for column in range(plan.tiles_n):
                body += self._steps(None, b, row, column, keep if step == 0 else ir.const(True), range(step, step + 1))
        return body

    def _keep(self, head: list[ir.Statement]) -> ir.Expr:
        """Whether the old sum counts; a condition gets a name."""
        if not isinstance(self.gemm.clear, ir.Expr):
            return ir.const(not self.gemm.clear)
        var = ir.Var(BOOL, "keep")
        kept = ir.Unary(BOOL, "not", self.block.visited([self.gemm.clear])[0])
        head.append(ir.Let(var, kept, span=self.gemm.span))
        return var

    # Operands ------------------------------------------------------------------------------------

    def _descriptor(
        self, region: ir.Region, is_left: bool, size: int, group: ir.Expr, tiles: int, head: list[ir.Statement]
    ) -> tuple[ir.Var, _Tile]:
        """A name for the descriptor of this warpgroup's part of an operand."""
        tile = self._tile(region, is_left, size)
        place = self.block.shared(region, [ir.const(0)] * region.buffer.rank)
        span = ir.const(mapped_span(tile.operand.swizzle))
        offset = group * (tiles * tile.step)
        if len(place.starts) == 1:  # the first slot's descriptor is made once, each step adds where its slot begins
            begin = place.starts[0] * (region.dtype.bits // 8)
            place, offset = ir.Region(place.buffer, (ir.const(0),), (1,)), begin + offset
        value: ir.Expr = ir.Call(
            UINT64, "gmma_descriptor", (place, span, ir.const(tile.operand.leading), ir.const(tile.operand.stride))
        )
        if not ir.is_literal(offset, 0):
            value = ir.Call(UINT64, "gmma_advance", (value, ir.cast(offset, INT32)))
        var = ir.Var(UINT64, f"{region.buffer.name}_tile")
        head.append(ir.Let(var, value, span=self.gemm.span))
        return var, tile

    def _tile(self, region: ir.Region, is_left: bool, size: int) -> _Tile:
        layout, dtype = self.block.layouts[region.buffer], region.dtype
        transposed = self.gemm.transpose_a if is_left else not self.gemm.transpose_b
        mn, k, step_bytes = (self.gemm.m if is_left else self.gemm.n), self.gemm.k, STEP_BYTES
        if self.plan.instruction.sparse:
            k, step_bytes = (k // 2, step_bytes) if is_left else (k, 2 * step_bytes)

        def offset(across: object, deep: object) -> Any:
            pair = (deep, across) if transposed else (across, deep)
            return layout.offset("memory", *(0 for _ in range(layout.rank - 2)), *pair) * (dtype.bits // 8)

        operand = wgmma_operand(offset, mn, k, dtype, step_bytes)
        starts = [offset(first, 0) for first in range(0, mn, size)]
        step = starts[1] if len(starts) > 1 else 0
        if (
            operand is None
            or any(start != step * i for i, start in enumerate(starts))
            or _unaligned(layout, operand, dtype.bits)
        ):
            raise InternalError(f"no descriptor names {region.buffer.name}", span=self.gemm.span)
        return _Tile(region, operand, int(step))

    # Instructions --------------------------------------------------------------------------------

    def _steps(
        self,
        a: tuple[ir.Var, _Tile] | None,
        b: tuple[ir.Var, _Tile],
        row: int,
        column: int,
        keep: ir.Expr,
        steps: range | None = None,
    ) -> list[ir.Statement]:
        """Steps of k of one part, all where none are named: one statement, or one each where lanes give metadata."""
        steps = steps or range(self.plan.tiles_k)
        first = steps[0]
        if self.places is not None:
            return [self._sparse(a, b, row, column, step, keep if step == 0 else ir.const(True)) for step in steps]
        offsets = [ir.const(b[1].operand.steps[step] - b[1].operand.steps[first]) for step in steps]
        majors = b[1].operand.major
        if a is not None:
            offsets = [ir.const(a[1].operand.steps[step] - a[1].operand.steps[first]) for step in steps] + offsets
            majors = f"{a[1].operand.major} {majors}"
        left, right = self._left(a, row, first, len(steps)), self._part(b, column, first)
        arguments = (
            *self._shape(),
            majors,
            ir.const(len(steps)),
            *offsets,
            self._target(row, column),
            left,
            right,
            keep,
        )
        return [perform(self.plan.instruction.function, *arguments, span=self.gemm.span)]

    def _sparse(
        self, a: tuple[ir.Var, _Tile] | None, b: tuple[ir.Var, _Tile], row: int, column: int, step: int, keep: ir.Expr
    ) -> ir.Statement:
        assert self.places is not None
        word, selector = self.places.word(row, step)
        majors = b[1].operand.major
        operands = (self._target(row, column), self._left(a, row, step, 1), self._part(b, column, step), word, keep)
        call = ir.Call(BOOL, self.plan.instruction.function, (*self._shape(), ir.const(selector), majors, *operands))
        return ir.Evaluate(call, span=self.gemm.span)

    def _shape(self) -> tuple[ir.Expr, str]:
        instruction = self.plan.instruction
        types = (instruction.accumulator, instruction.a, instruction.b)
        return ir.const(instruction.n), " ".join(one.name for one in types)

    def _target(self, row: int, column: int) -> ir.Region:
        size = self.plan.instruction.d_fragment.extent(REGISTER)
        first = ir.const(row * self.plan.row_registers + column * size)
        return ir.Region(self.block.registers(self.gemm.c.buffer), (first,), (size,))

    def _left(self, a: tuple[ir.Var, _Tile] | None, row: int, step: int, count: int) -> ir.Region | ir.Expr:
        """The left operand from `step` on: a descriptor, or the registers of `count` steps."""
        if a is not None:
            return self._part(a, row, step)
        fragment = self.plan.instruction.a_fragment
        assert fragment is not None
        first = (row * self.plan.tiles_k + step) * fragment.extent(REGISTER)
        registers = self.block.registers(self.gemm.a.buffer) if self.transposed is None else self.transposed.registers
        return ir.Region(registers, (ir.const(first),), (count * fragment.extent(REGISTER),))

    def _part(self, operand: tuple[ir.Var, _Tile], number: int, step: int) -> ir.Expr:
        """The descriptor of one instruction's part."""
        var, tile = operand
        distance = number * tile.step + tile.operand.steps[step]
        return var if distance == 0 else ir.Call(UINT64, "gmma_advance", (var, ir.const(distance)))


def _unaligned(layout: Layout, operand: WgmmaOperand, bits: int) -> bool:
    """Whether slots start elsewhere than where the swizzle's pattern does."""
    outer = [one.stride * bits // 8 for dimension in layout.digits[:-2] for one in dimension]
    return any(stride % operand.swizzle.period for stride in outer)
