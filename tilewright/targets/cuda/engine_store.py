"""Accumulators leave in boxes: a warpgroup packs one, one of its threads has the copy engine store it.

Halves are packed by stmatrix, which turns them where they leave transposed, words in the pairs that each thread has.

A warpgroup has boxes in turn, so that it packs the next while the engine reads the last.  The last ones are waited
for at the end of the role, so that in a persistent kernel they leave beside the next tile's products.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import nodes
from tilewright.ir.dtypes import BOOL, INT32, UINT32, UINT64
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Call,
    Evaluate,
    Expr,
    For,
    If,
    Load,
    Region,
    Statement,
    Store,
    TensorMap,
    Var,
    binary,
    cast,
    const,
    index_binary,
    seq,
)
from tilewright.layout.digits import REGISTER
from tilewright.ops.gemm_plan import GemmPlan
from tilewright.ops.transpose import Transpose
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView
from tilewright.passes.tile.copies.stage_epilogue import STAGING, Leaving, Staging, box_columns, box_shape

GROUP = 128
COLUMNS = 16
"""Of what one stmatrix of four matrices stores: 16 rows by 16 columns."""

PACK = {"float16": "pack_f16x2", "bfloat16": "pack_bf16x2"}


def lower_engine_store(copy: Leaving, context: Context) -> Statement:
    """The stores of an accumulator."""
    all_of_them = context.facts[STAGING]
    staging = all_of_them[copy]
    alike = all(_turns(one) % one.count == 0 for one in all_of_them.values() if one.boxes is staging.boxes)
    return _Store(copy, staging.plan, staging, context.facts[BLOCK], alike).statement()


def _turns(staging: Staging) -> int:
    """Boxes that a warpgroup fills for one store."""
    return staging.plan.tiles_m * len(box_columns(staging.plan, staging.width))


def call(function: str, *arguments: Expr | Region) -> Evaluate:
    return Evaluate(Call(BOOL, function, arguments))


@dataclass(slots=True)
class _Store:
    """The statements of one store.

    Attributes
    ----------
    alike : whether every store through these boxes ends with the last of them, so that the next one begins with the
        box that left longest ago.
    """

    copy: Leaving
    plan: GemmPlan
    staging: Staging
    block: BlockView
    alike: bool

    @property
    def transposed(self) -> bool:
        return isinstance(self.copy, Transpose)

    @property
    def count(self) -> int:
        return self.staging.count

    def statement(self) -> Statement:
        plan = self.plan
        made: list[Statement] = []
        number = 0
        for row in range(plan.tiles_m):
            for column, width in box_columns(plan, self.staging.width):
                if (
                    number >= self.count or not self.staging.is_first
                ):  # until the engine has read what left through it before
                    behind = self.count - 1 if number or self.alike else 0
                    made += [self._first(call("bulk_wait_read", const(behind))), self._meet()]
                made += self._box(row, column, width, number % self.count)
                number += 1
        self.block.at_end(self.staging.boxes, self._first(call("bulk_wait_read", const(0))))
        return seq(*made)

    def _first(self, *statements: Statement) -> Statement:
        """What one thread of the warpgroup does."""
        own = index_binary("floormod", self.block.thread, GROUP)
        return If(binary("eq", own, const(0)), seq(*statements), span=self.copy.span)

    def _meet(self) -> Statement:
        """A barrier of the warpgroup."""
        return call("named_barrier_sync", self.block.group_barrier, const(GROUP))

    def _box(self, row: int, column: int, width: int, slot: int) -> list[Statement]:
        """One box, or as many columns of one: packed by all, stored by one."""
        parts, rest = divmod(width, COLUMNS)
        pack: list[Statement] = []
        if parts:
            part = Var(INT32, "part")
            self.block.bind(part, parts)
            body = self._pack(row, column, slot, part, COLUMNS)
            pack.append(For(part, const(0), const(parts), const(1), body, "unroll", span=self.copy.span))
        if rest:
            pack.append(self._pack(row, column, slot, const(parts), rest))
        store = call(
            "tma_store", self._map(width), self._place(slot, const(0), const(0)), *self._coordinates(row, column)
        )
        return [*pack, call("fence_proxy_async_shared"), self._meet(), self._first(store, call("bulk_commit"))]

    def _pack(self, row: int, column: int, slot: int, part: Expr, columns: int) -> nodes.Seq:
        """Sixteen columns of a box, or its last eight."""
        instruction = self.plan.instruction
        number, inside = divmod(column, instruction.n)
        first = (row * self.plan.tiles_n + number) * instruction.d_fragment.extent(REGISTER) + inside // 2
        if self.staging.boxes.dtype.bits == 32:
            return self._pairs(slot, part, first)
        thread = self.block.thread
        lane, warp = (
            index_binary("floormod", thread, 32),
            index_binary("floormod", index_binary("floordiv", thread, 32), 4),
        )
        if self.transposed and instruction.transposes:
            return self._neighbours(slot, part, first, columns)
        words, made = self._words(index_binary("add", index_binary("mul", part, 8), first), columns // 2)
        own, next_to = index_binary("mul", warp, 16), index_binary("mul", part, COLUMNS)
        right = index_binary("mul", index_binary("floordiv", lane, 16), 8)
        if self.transposed:
            four = columns == COLUMNS
            row_of_eight = index_binary("floormod", lane, 8)
            at = index_binary("add", next_to, index_binary("add", right, row_of_eight) if four else row_of_eight)
            down = index_binary("mul", index_binary("floormod", index_binary("floordiv", lane, 8), 2), 8)
            store = "stmatrix_x4_trans" if four else "stmatrix_x2_trans"
            return seq(made, call(store, self._place(slot, at, index_binary("add", own, down)), words))
        at = index_binary("add", own, index_binary("floormod", lane, 16))
        if instruction.transposes:
            at = index_binary(
                "add",
                own,
                self._row(
                    index_binary("floormod", lane, 8), index_binary("floormod", index_binary("floordiv", lane, 8), 2)
                ),
            )
        return seq(made, call("stmatrix_x4", self._place(slot, at, index_binary("add", next_to, right)), words))

    def _pairs(self, slot: int, part: Expr, first: int) -> nodes.Seq:
        """Sixteen columns of a box of words: four pairs of neighbours of each thread."""
        registers, thread = self.block.registers(self.copy.source.buffer), self.block.thread
        lane = index_binary("floormod", thread, 32)
        warp = index_binary("floormod", index_binary("floordiv", thread, 32), 4)
        own = index_binary("mul", warp, 16)
        column = index_binary(
            "add", index_binary("mul", part, COLUMNS), index_binary("mul", index_binary("floormod", lane, 4), 2)
        )
        made: list[Statement] = []
        for number in range(4):
            right, down = divmod(number, 2)
            row = index_binary("add", own, self._row(index_binary("floordiv", lane, 4), const(down)))
            place = self._place(slot, row, index_binary("add", column, 8 * right))
            register = index_binary("add", index_binary("mul", part, 8), first + 2 * number)
            pair = Load(registers.dtype.with_lanes(2), registers, (register,))
            made.append(Store(place.buffer, place.starts, pair, span=self.copy.span))
        return seq(made)

    def _row(self, number: Expr, half: Expr) -> Expr:
        """The row of 16 that is row `number` of a half of the instruction's."""
        if self.plan.instruction.transposes:
            return index_binary("add", index_binary("mul", number, 2), half)
        return index_binary("add", number, index_binary("mul", half, 8))

    def _neighbours(self, slot: int, part: Expr, first: int, columns: int) -> nodes.Seq:
        """Columns as rows of a box, where a thread has neighbours along them: rows 2 i and 2 i + 1 of two or four
        columns."""
        registers, thread, dtype = (
            self.block.registers(self.copy.source.buffer),
            self.block.thread,
            self.copy.destination.dtype,
        )
        lane = index_binary("floormod", thread, 32)
        warp = index_binary("floormod", index_binary("floordiv", thread, 32), 4)
        column = index_binary(
            "add", index_binary("mul", warp, 16), index_binary("mul", index_binary("floordiv", lane, 4), 2)
        )
        row = index_binary(
            "add", index_binary("mul", part, COLUMNS), index_binary("mul", index_binary("floormod", lane, 4), 2)
        )
        made: list[Statement] = []
        for number in range(columns // 4):
            right, next_to = divmod(number, 2)
            pair = Buffer(f"{self.copy.source.buffer.name}_pair", (2,), dtype, "register")
            made.append(Allocate(pair, span=self.copy.span))
            for half in range(2):
                register = index_binary("add", index_binary("mul", part, 8), first + 4 * right + 2 * half + next_to)
                value = cast(Load(registers.dtype, registers, (register,)), dtype)
                made.append(Store(pair, (const(half),), value, span=self.copy.span))
            place = self._place(slot, index_binary("add", row, 8 * right + next_to), column)
            both = Load(dtype.with_lanes(2), pair, (const(0),))
            made.append(Store(place.buffer, place.starts, both, span=self.copy.span))
        return seq(made)

    def _words(self, first: Expr, count: int) -> tuple[Region, list[Statement]]:
        """So many registers of the source as elements of the tensor, two a word, and what packs them."""
        registers = self.block.registers(self.copy.source.buffer)
        dtype = self.copy.destination.dtype
        if registers.dtype == dtype:
            return Region(registers, (first,), (count,)), []
        packed = Buffer(f"{self.copy.source.buffer.name}_packed", (count,), dtype, "register")
        made: list[Statement] = [Allocate(packed, span=self.copy.span)]
        if registers.dtype.is_integer:
            for element in range(count):
                value = cast(Load(registers.dtype, registers, (index_binary("add", first, element),)), dtype)
                made.append(Store(packed, (const(element),), value, span=self.copy.span))
            return Region(packed, (const(0),), (count,)), made
        for word in range(count // 2):
            place = index_binary("add", first, 2 * word)
            pair = [Load(registers.dtype, registers, (index_binary("add", place, i),)) for i in range(2)]
            value = Call(UINT32, PACK[dtype.name], tuple(pair))
            made.append(call("set_word", Region(packed, (const(0),), (count,)), const(word), value))
        return Region(packed, (const(0),), (count,)), made

    def _place(self, slot: int, row: Expr, column: Expr) -> Region:
        """An element of one of the warpgroup's boxes."""
        box = index_binary("add", index_binary("mul", self.block.warpgroup, self.count), slot)
        whole = nodes.whole(self.staging.boxes)
        return self.block.shared(whole, [box, row, column])

    def _map(self, width: int) -> TensorMap:
        """The map of what a box stores; rows of part of a box lie in shared memory as far apart as those of a whole
        one."""
        tensor = self.copy.destination.buffer
        boxes = self.staging.boxes
        box = (*(1 for _ in range(tensor.rank - 2)), *box_shape(self.plan, width, self.transposed))
        row = boxes.static_shape[-1] * boxes.dtype.stored_bits // 8
        return TensorMap(UINT64, tensor, box, row if row in (128, 64, 32) else 0)

    def _coordinates(self, row: int, column: int) -> list[Expr]:
        """Where the warpgroup's box begins in the tensor, innermost dimension first."""
        plan, group = self.plan, self.block.warpgroup
        row_group = index_binary("floormod", group, plan.warps_m) if plan.warps_n > 1 else group
        column_group = index_binary("floordiv", group, plan.warps_m) if plan.warps_n > 1 else const(0)
        down = index_binary("add", index_binary("mul", row_group, plan.m // plan.warps_m), row * plan.instruction.m)
        across = index_binary("add", index_binary("mul", column_group, plan.n // plan.warps_n), column)
        if self.transposed:
            down, across = across, down
        starts = list(self.block.visited(self.copy.destination.starts))
        starts[-2] = index_binary("add", starts[-2], down)
        starts[-1] = index_binary("add", starts[-1], across)
        return [cast(self.block.simplify(start), INT32) for start in reversed(starts)]
