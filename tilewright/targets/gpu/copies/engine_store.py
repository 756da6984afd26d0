"""Accumulators leave in boxes: a warpgroup packs one, one of its threads has the copy engine store it.

Halves are packed by instructions that store matrices, and turn them where they leave transposed, words in the pairs
that each thread has.

A warpgroup has boxes in turn, so that it packs the next while the engine reads the last.  The last ones are waited
for at the end of the role, so that in a persistent kernel they leave beside the next tile's products.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import INT32, UINT32, UINT64, perform
from tilewright.ir import nodes as ir
from tilewright.layout.digits import REGISTER
from tilewright.ops import GemmPlan, Staging, Transpose
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.passes.tile.copies.stage_epilogue import Leaving, box_columns, box_shape
from tilewright.targets.gpu.copies.engine_copy import mapped_span, swizzle_of

COLUMNS = 16
"""Of what one store of four matrices writes: 16 rows by 16 columns."""

PACK = {"float16": "pack_f16x2", "bfloat16": "pack_bf16x2"}


def lower_engine_store(copy: Leaving, context: Context) -> ir.Statement:
    """The stores of an accumulator."""
    block, staging = context.facts[BLOCK], copy.schedule.staging
    assert staging is not None
    moved = (one.schedule.staging for one in block.of_token(None) if isinstance(one, Leaving))
    alike = all(_iterations(one) % one.count == 0 for one in moved if one is not None and one.boxes is staging.boxes)
    return _Store(copy, staging.plan, staging, block, context.arch.warp_size, alike).statement()


def _iterations(staging: Staging) -> int:
    """Boxes that a warpgroup fills for one store."""
    return staging.plan.tiles_m * len(box_columns(staging.plan, staging.width))


@dataclass(slots=True)
class _Store:
    """The statements of one store.

    Attributes
    ----------
    lanes : of a warp of the machine.
    alike : whether every store through these boxes ends with the last of them, so that the next one begins with the
        box that left longest ago.
    """

    copy: Leaving
    plan: GemmPlan
    staging: Staging
    block: BlockView
    lanes: int
    alike: bool

    @property
    def transposed(self) -> bool:
        return isinstance(self.copy, Transpose)

    @property
    def count(self) -> int:
        return self.staging.count

    def statement(self) -> ir.Statement:
        plan = self.plan
        made: list[ir.Statement] = []
        number = 0
        for row in range(plan.tiles_m):
            for column, width in box_columns(plan, self.staging.width):
                if number >= self.count or not self.staging.is_first:
                    # until the engine has read what left through it before
                    behind = self.count - 1 if number or self.alike else 0
                    made += [self._first(perform("bulk_wait_read", ir.const(behind))), self._barrier()]
                made += self._box(row, column, width, number % self.count)
                number += 1
        self.block.endings.setdefault(self.staging.boxes, self._first(perform("bulk_wait_read", ir.const(0))))
        return ir.seq(*made)

    @property
    def _threads(self) -> int:
        """Threads of a group."""
        return self.plan.instruction.threads

    @property
    def _lane(self) -> ir.Expr:
        return self.block.thread % self.lanes

    @property
    def _own(self) -> ir.Expr:
        """The first of the executing warp's 16 rows."""
        return self.block.thread // self.lanes % (self._threads // self.lanes) * 16

    def _first(self, *statements: ir.Statement) -> ir.Statement:
        """What one thread of the warpgroup does."""
        leads = ir.binary("eq", self.block.thread % self._threads, ir.const(0))
        return ir.If(leads, ir.seq(*statements), span=self.copy.span)

    def _barrier(self) -> ir.Statement:
        """A barrier of the warpgroup."""
        return perform("named_barrier_sync", self.block.group_barrier, ir.const(self._threads))

    def _box(self, row: int, column: int, width: int, slot: int) -> list[ir.Statement]:
        """One box, or as many columns of one: packed by all, stored by one."""
        parts, rest = divmod(width, COLUMNS)
        pack: list[ir.Statement] = []
        if parts:
            part = ir.Var(INT32, "part")
            self.block.analyzer.bind_extent(part, parts)
            body = self._pack(row, column, slot, part, COLUMNS)
            pack.append(ir.counted(part, parts, body, "unroll", span=self.copy.span))
        if rest:
            pack.append(self._pack(row, column, slot, ir.const(parts), rest))
        store = perform(
            "box_store", self._map(width), self._place(slot, ir.const(0), ir.const(0)), *self._coordinates(row, column)
        )
        return [*pack, perform("fence_proxy_async_shared"), self._barrier(), self._first(store, perform("bulk_commit"))]

    def _pack(self, row: int, column: int, slot: int, part: ir.Expr, columns: int) -> ir.Seq:
        """Sixteen columns of a box, or its last eight."""
        instruction = self.plan.instruction
        number, inside = divmod(column, instruction.n)
        first = (row * self.plan.tiles_n + number) * instruction.d_fragment.extent(REGISTER) + inside // 2
        if self.staging.boxes.dtype.bits == 32:
            return self._pairs(slot, part, first)
        if self.transposed and instruction.transposes:
            return self._neighbours(slot, part, first, columns)
        words, made = self._words(part * 8 + first, columns // 2)
        own, lane, next_to = self._own, self._lane, part * COLUMNS
        right = lane // 16 * 8
        if self.transposed:
            four = columns == COLUMNS
            row_of_eight = lane % 8
            at = next_to + (right + row_of_eight if four else row_of_eight)
            down = lane // 8 % 2 * 8
            store = "store_matrix_x4_trans" if four else "store_matrix_x2_trans"
            return ir.seq(made, perform(store, self._place(slot, at, own + down), words))
        at = own + lane % 16
        if instruction.transposes:
            at = own + self._row(lane % 8, lane // 8 % 2)
        return ir.seq(made, perform("store_matrix_x4", self._place(slot, at, next_to + right), words))

    def _pairs(self, slot: int, part: ir.Expr, first: int) -> ir.Seq:
        """Sixteen columns of a box of words: four pairs of neighbours of each thread."""
        registers, lane = self.block.registers(self.copy.source.buffer), self._lane
        column = part * COLUMNS + lane % 4 * 2
        made: list[ir.Statement] = []
        for number in range(4):
            right, down = divmod(number, 2)
            row = self._own + self._row(lane // 4, ir.const(down))
            place = self._place(slot, row, column + 8 * right)
            register = part * 8 + (first + 2 * number)
            pair = ir.Load(registers.dtype.with_lanes(2), registers, (register,))
            made.append(ir.Store(place.buffer, place.starts, pair, span=self.copy.span))
        return ir.seq(made)

    def _row(self, number: ir.Expr, half: ir.Expr) -> ir.Expr:
        """The row of 16 that is row `number` of a half of the instruction's."""
        if self.plan.instruction.transposes:
            return number * 2 + half
        return number + half * 8

    def _neighbours(self, slot: int, part: ir.Expr, first: int, columns: int) -> ir.Seq:
        """Columns as rows of a box, where a thread has neighbours along them: rows 2 i and 2 i + 1 of two or four
        columns."""
        registers, lane = self.block.registers(self.copy.source.buffer), self._lane
        dtype = self.copy.destination.dtype
        column = self._own + lane // 4 * 2
        row = part * COLUMNS + lane % 4 * 2
        made: list[ir.Statement] = []
        for number in range(columns // 4):
            right, next_to = divmod(number, 2)
            pair = ir.Buffer(f"{self.copy.source.buffer.name}_pair", (2,), dtype, "register")
            made.append(ir.Allocate(pair, span=self.copy.span))
            for half in range(2):
                register = part * 8 + (first + 4 * right + 2 * half + next_to)
                value = ir.cast(ir.Load(registers.dtype, registers, (register,)), dtype)
                made.append(ir.Store(pair, (ir.const(half),), value, span=self.copy.span))
            place = self._place(slot, row + (8 * right + next_to), column)
            both = ir.Load(dtype.with_lanes(2), pair, (ir.const(0),))
            made.append(ir.Store(place.buffer, place.starts, both, span=self.copy.span))
        return ir.seq(made)

    def _words(self, first: ir.Expr, count: int) -> tuple[ir.Region, list[ir.Statement]]:
        """So many registers of the source as elements of the tensor, two a word, and what packs them."""
        registers = self.block.registers(self.copy.source.buffer)
        dtype = self.copy.destination.dtype
        if registers.dtype == dtype:
            return ir.Region(registers, (first,), (count,)), []
        packed = ir.Buffer(f"{self.copy.source.buffer.name}_packed", (count,), dtype, "register")
        made: list[ir.Statement] = [ir.Allocate(packed, span=self.copy.span)]
        if registers.dtype.is_integer:
            for element in range(count):
                value = ir.cast(ir.Load(registers.dtype, registers, (first + element,)), dtype)
                made.append(ir.Store(packed, (ir.const(element),), value, span=self.copy.span))
            return ir.whole(packed), made
        for word in range(count // 2):
            place = first + 2 * word
            pair = [ir.Load(registers.dtype, registers, (place + i,)) for i in range(2)]
            value = ir.Call(UINT32, PACK[dtype.name], tuple(pair))
            made.append(perform("set_word", ir.whole(packed), ir.const(word), value))
        return ir.whole(packed), made

    def _place(self, slot: int, row: ir.Expr, column: ir.Expr) -> ir.Region:
        """An element of one of the warpgroup's boxes."""
        box = self.block.warpgroup * self.count + slot
        whole = ir.whole(self.staging.boxes)
        return self.block.shared(whole, [box, row, column])

    def _map(self, width: int) -> ir.TensorMap:
        """The map of what a box stores; rows of part of a box lie in shared memory as far apart as those of a whole
        one."""
        tensor = self.copy.destination.buffer
        boxes = self.staging.boxes
        box = (*(1 for _ in range(tensor.rank - 2)), *box_shape(self.plan, width, self.transposed))
        return ir.TensorMap(UINT64, tensor, box, mapped_span(swizzle_of(self.block.layouts[boxes], boxes.dtype)))

    def _coordinates(self, row: int, column: int) -> list[ir.Expr]:
        """Where the warpgroup's box begins in the tensor, innermost dimension first."""
        plan, group = self.plan, self.block.warpgroup
        row_group = group % plan.warps_m if plan.warps_n > 1 else group
        column_group = group // plan.warps_m if plan.warps_n > 1 else ir.const(0)
        down = row_group * (plan.m // plan.warps_m) + row * plan.instruction.m
        across = column_group * (plan.n // plan.warps_n) + column
        if self.transposed:
            down, across = across, down
        starts = list(self.block.visited(self.copy.destination.starts))
        starts[-2] = starts[-2] + down
        starts[-1] = starts[-1] + across
        return [ir.cast(self.block.simplify(start), INT32) for start in reversed(starts)]
