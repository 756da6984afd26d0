"""The two operands of a micro-kernel as it reads them.

The left one is broadcast. The right one says how one load becomes the vectors of the next few steps of k; codes are
unpacked in registers and never written to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import FLOAT32, INT32, UINT8, DType, dtype
from tilewright.layout.panels import PanelLayout
from tilewright.machine.dot import DotInstruction, OperandPlan
from tilewright.targets.cpu.prefetch import FIRST_LEVEL, Prefetch
from tilewright.targets.cpu.vectors import loop, reinterpret, splat, splat_const

TILE_AHEAD = 64
"""How many lines ahead a stream from memory is prefetched where a matrix unit takes sixteen of them at a time."""


@dataclass(frozen=True, slots=True)
class SharedPrefetch:
    """Row tiles that reuse a panel split the prefetch of the next panel among them.

    Attributes
    ----------
    loads : of one row tile.
    distance : elements from a place in the panel's tile to the same place in the one that is read next.
    share : elements of the next tile that each load prefetches.
    rows, first : of a row tile, and the row that the first one begins with.
    before : row tiles of other bands that use the same panel before.
    """

    loads: int
    distance: ir.Extent
    share: ir.Extent
    rows: int = 1
    first: ir.Extent = 0
    before: ir.Extent = 0

    def number(self, row: ir.Expr) -> ir.Expr:
        """The number of the row tile that begins with a row."""
        here = (row - self.first) // self.rows
        return here + self.before


@dataclass(frozen=True, slots=True)
class Left:
    """The broadcast operand: rows of consecutive k.

    Attributes
    ----------
    buffer : holds elements of the instruction's broadcast type.
    index : buffer indices of the element at (row, k).
    """

    buffer: ir.Buffer
    index: Callable[[ir.Expr, ir.Expr], tuple[ir.Expr, ...]]

    def broadcast(self, instruction: DotInstruction, row: ir.Expr, k: ir.Expr) -> ir.Expr:
        """Elements ``k .. k + depth`` of a row in every lane."""
        depth, lanes = instruction.depth, instruction.lanes
        if depth == 1:
            return splat(ir.Load(self.buffer.dtype, self.buffer, self.index(row, k)), lanes)
        word = ir.Load(self.buffer.dtype.with_lanes(depth), self.buffer, self.index(row, k))
        vector = self.buffer.dtype.with_lanes(lanes * depth)
        return ir.Reinterpret(vector, splat(ir.Reinterpret(INT32, word), lanes))


class Right(Protocol):
    """The vector operand of an instruction, a vector of columns at a time.

    Attributes
    ----------
    step : elements of k in one load.
    unpack : slots of the vector units that a load costs for each step of the instruction.
    loaded : vector type of one load.
    """

    @property
    def step(self) -> int: ...

    @property
    def unpack(self) -> float: ...

    @property
    def loaded(self) -> DType: ...

    def load(self, vector: ir.Expr, position: ir.Expr) -> ir.Expr:
        """One load; `position` counts loads along k."""
        ...

    def ahead(self, vector: ir.Expr, position: ir.Expr, row: ir.Expr | None = None) -> list[ir.Statement]:
        """What asks for later loads while those at `position` are multiplied with the rows from `row` on."""
        ...

    def parts(self) -> Iterator[tuple[int, Callable[[ir.Expr], ir.Expr]]]:
        """For each step of the instruction: its first k within the load, and its operand from the load."""
        ...

    def number(self, value: ir.Expr, k: ir.Expr) -> ir.Expr | None:
        """The operand for the k-th element of the load where all are found alike, else None."""
        ...


@dataclass(frozen=True, slots=True)
class RowsRight:
    """Rows of a (k, n) tile whose n is contiguous: the operand of a multiply-add as it lies in memory."""

    buffer: ir.Buffer
    index: Callable[[ir.Expr, ir.Expr], tuple[ir.Expr, ...]]
    instruction: DotInstruction
    step: int = 1

    @property
    def unpack(self) -> float:
        return 0.0 if self.buffer.dtype == self.instruction.vector else 2.0

    @property
    def loaded(self) -> DType:
        return self.instruction.vector.with_lanes(self.instruction.lanes)

    def load(self, vector: ir.Expr, position: ir.Expr) -> ir.Expr:
        lanes = self.instruction.lanes
        value = ir.Load(self.buffer.dtype.with_lanes(lanes), self.buffer, self.index(position, vector * lanes))
        return ir.cast(value, self.loaded)

    def ahead(self, vector: ir.Expr, position: ir.Expr, row: ir.Expr | None = None) -> list[ir.Statement]:
        return []

    def parts(self) -> Iterator[tuple[int, Callable[[ir.Expr], ir.Expr]]]:
        yield 0, lambda value: value

    def number(self, value: ir.Expr, k: ir.Expr) -> ir.Expr | None:
        return None


@dataclass(frozen=True, slots=True)
class PanelRight:
    """A panel-packed operand (`PanelLayout`): every load is whole and follows the one before it.

    Attributes
    ----------
    memory : one-dimensional; bytes for codes of fewer than eight bits, else elements.
    element : the logical element type.
    first_panel, first_load : where the tile begins, in panels and in loads.
    prefetch : where it comes from main memory.
    shared : where several row tiles reuse a panel.
    beyond : how many panels on the one lies that is read next after the end of another.
    """

    memory: ir.Buffer
    layout: PanelLayout
    element: DType
    plan: OperandPlan
    first_panel: ir.Expr
    first_load: ir.Expr
    prefetch: Prefetch | None = None
    shared: SharedPrefetch | None = None
    beyond: int = 1

    @property
    def step(self) -> int:
        return self.layout.step

    @property
    def unpack(self) -> float:
        if self.plan.instruction.depth == 1 and self.element.bits <= 8:
            return 3.0
        if self.element.bits < 8:
            return 2.0 - 1.0 / self.layout.share
        return 1.0 if self.plan.offset or self.element != self.plan.instruction.vector else 0.0

    @property
    def loaded(self) -> DType:
        return self.memory.dtype.with_lanes(self._memory_elements)

    @property
    def _memory_elements(self) -> int:
        return self.layout.load_size // self.element.per_byte

    @property
    def _reach(self) -> int:
        """Elements from what is read to what a single row prefetches: panels side by side are one fast stream."""
        assert self.prefetch is not None
        return (self.layout.beside + 1) // 2 * self.prefetch.distance // self.memory.dtype.storage_bytes

    def shared_prefetch(self, loads: int, rows: ir.Extent, passes: ir.Extent) -> SharedPrefetch | None:
        """How so many row tiles (`passes`) over tiles of `loads` share the prefetch; None where a tile is read soon.

        They prefetch the tile that is read next; a single row, which reads at the memory's rate, does not.
        """
        size, whole, beside = self._memory_elements, self.layout.loads, self.layout.beside
        bytes_ = loads * size * self.memory.dtype.storage_bytes
        if self.prefetch is None or bytes_ < 2 * self.prefetch.distance:
            return None
        groups = -(-self.beyond // beside)
        to_next_panel = (groups * whole - self.first_load) * (beside * size)
        distance: ir.Extent = to_next_panel
        if loads < whole:
            is_last = ir.binary("ge", self.first_load + loads, ir.const(whole))
            distance = ir.Select(INT32, is_last, to_next_panel, ir.const(loads * beside * size))
        distance = ir.Select(
            INT32, ir.binary("gt", ir.cast(ir.expr(rows), INT32), ir.const(1)), ir.expr(distance), ir.const(self._reach)
        )
        share = ir.index_binary("max", size // ir.index_binary("max", passes, 1), 1)
        return SharedPrefetch(loads, distance, share)

    def load(self, vector: ir.Expr, position: ir.Expr) -> ir.Expr:
        value: ir.Expr = ir.Load(self.loaded, self.memory, (self.place(vector, position),))
        if self.element.bits <= 8 and self.element.is_integer:
            value = reinterpret(value, UINT8.with_lanes(value.dtype.lanes))
            value = self._flipped(value)
            value = reinterpret(value, self.loaded)
        return value

    def place(self, vector: ir.Expr, position: ir.Expr) -> ir.Expr:
        """Where a load begins in the memory."""
        first = self.layout.first(self.first_panel + vector, self.first_load + position)
        return first * self._memory_elements

    def ahead(self, vector: ir.Expr, position: ir.Expr, row: ir.Expr | None = None) -> list[ir.Statement]:
        if self.prefetch is None:
            return []
        if self.shared is None or row is None:
            place = self.place(vector, position) + self._reach
        else:
            step = self.shared.number(row) * self.shared.loads + position
            ahead = step * self.shared.share * self.layout.beside
            place = self.place(vector, ir.const(0)) + self.shared.distance + ahead
        return [self.prefetch.line(self.memory, place)]

    def tile_ahead(
        self, loads: int, words: int, passes: int, number: ir.Expr
    ) -> Callable[[ir.Expr, ir.Expr], list[ir.Statement]]:
        """What prefetches later loads while a tile of `words` of them is multiplied, in one of several row tiles.

        A single row tile prefetches what follows in the panel; several share the prefetch of the next tile of so many
        `loads`.
        """
        size = self._memory_elements

        def request(vector: ir.Expr, position: ir.Expr) -> list[ir.Statement]:
            if self.prefetch is None:
                return []
            if passes == 1:
                first = self.place(vector, position) + TILE_AHEAD * size
                count = words
            else:
                distance = loads * size if loads < self.layout.loads else self.layout.size
                count = -(-words // passes)
                done = number * (loads // words) + position // words
                first = self.place(vector, ir.const(0)) + distance + done * (count * size)

            def line(number: ir.Expr) -> list[ir.Statement]:
                return [FIRST_LEVEL.line(self.memory, first + number * size)]

            return loop("line", 0, count, line, "unroll")

        return request

    def _flipped(self, value: ir.Expr) -> ir.Expr:
        """Codes with their sign bit inverted, where the plan adds half their range."""
        if not self.plan.offset:
            return value
        bits = self.element.bits
        signs = sum(1 << (bits * (i + 1) - 1) for i in range(8 // bits))
        return ir.binary("xor", value, splat_const(signs, value.dtype))

    def parts(self) -> Iterator[tuple[int, Callable[[ir.Expr], ir.Expr]]]:
        depth, layout = self.plan.instruction.depth, self.layout
        if self.element.name == "bfloat16" and layout.run > depth:
            for k in range(layout.step):
                yield k, partial(self._widened, k=k)
        elif self.element.is_float or self.element.bits > 8 or layout.step == 1:
            for k in range(0, layout.step, depth):
                yield k, self._element
        elif depth == layout.run:
            for share in range(layout.share):
                yield share * depth, partial(self.codes, share=share)

    def _element(self, value: ir.Expr) -> ir.Expr:
        return ir.cast(value, self.plan.instruction.vector.with_lanes(value.dtype.lanes))

    def _widened(self, value: ir.Expr, k: int) -> ir.Expr:
        """The first or the second of every pair of bfloat16 as float32: the upper half of a word."""
        words = dtype("uint32").with_lanes(self.layout.lanes)
        value = reinterpret(value, words)
        value = (
            ir.binary("and", value, splat_const(0xFFFF0000, words))
            if k
            else ir.binary("shl", value, splat_const(16, words))
        )
        return ir.cast(
            reinterpret(value, FLOAT32.with_lanes(words.lanes)), self.plan.instruction.vector.with_lanes(words.lanes)
        )

    def codes(self, value: ir.Expr, share: int) -> ir.Expr:
        """The bytes of one step: the codes `share` places up in every byte."""
        bits, target = self.element.bits, self.plan.instruction.vector.with_lanes(value.dtype.lanes)
        if bits < 8:
            bytes_ = value.dtype
            if share:
                wide = dtype("uint16").with_lanes(bytes_.lanes // 2)
                value = reinterpret(ir.binary("shr", reinterpret(value, wide), splat_const(share * bits, wide)), bytes_)
            value = ir.binary("and", value, splat_const((1 << bits) - 1, bytes_))
            if self.element.is_signed and not self.plan.offset:
                sign = splat_const(1 << (bits - 1), bytes_)
                value = ir.binary("sub", ir.binary("xor", value, sign), sign)
        return reinterpret(value, target)

    def number(self, value: ir.Expr, k: ir.Expr) -> ir.Expr | None:
        """The codes of one k in every lane's word, as numbers of the instruction's type."""
        layout, bits, target = self.layout, self.element.bits, self.plan.instruction.vector
        if self.plan.instruction.depth > 1 or bits > 8 or self.element.is_float or layout.step == 1:
            return None
        at = k % layout.run * 8
        at = at + k // layout.run * bits
        signed = self.element.is_signed and not self.plan.offset
        words = (INT32 if signed else dtype("uint32")).with_lanes(layout.lanes)

        def everywhere(amount: ir.Expr) -> ir.Expr:
            return splat(ir.cast(amount, words.scalar), layout.lanes)

        value = reinterpret(value, words)
        if signed:
            value = ir.binary("shl", value, everywhere(32 - bits - at))
            value = ir.binary("shr", value, splat_const(32 - bits, words))
        else:
            value = ir.binary("and", ir.binary("shr", value, everywhere(at)), splat_const((1 << bits) - 1, words))
        return ir.cast(reinterpret(value, INT32.with_lanes(layout.lanes)), target.with_lanes(layout.lanes))
