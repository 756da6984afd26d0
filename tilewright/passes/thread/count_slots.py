"""The slot of a ring that an iteration uses is counted on from the last one's, where finding it would be a division.

Before::

    for step in range(0, 24):
        signal_wait(full[uint32(iteration * 24 + step) % 7], (uint32(iteration * 24 + step) // 7) & 1)
        ...
        signal_arrive(empty[uint32(iteration * 24 + step - 1) % 7])

After::

    slot = scalar(uint32) = uint32((iteration * 3) % 7)
    phase = scalar(uint32) = (uint32(iteration * 24) // 7) & 1
    slot_before = scalar(uint32) = uint32((iteration * 3 + 6) % 7)
    for step in range(0, 24):
        signal_wait(full[slot], phase)
        ...
        signal_arrive(empty[slot_before])
        slot_before = slot
        slot = slot + 1
        if slot == 7:
            slot = 0
            phase = phase ^ 1

Compilers divide by a constant in a dozen instructions, each of which waits for the one before it, in front of what the
step waits for: 37 cycles of each step of a dense product (285 timed products, H200). Rings of 2, 4 or 8 slots are left
alone, since their slots are bits of a number.

Numbers of iterations are never negative where a barrier is asked for by them, so that it makes no difference whether
they are divided as numbers with or without a sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.arith import Analyzer
from tilewright.ir import INT32, UINT32, Rewriter, find, substitute
from tilewright.ir import nodes as ir
from tilewright.passes.context import Context


def count_slots(function: ir.Function, context: Context) -> ir.Function:
    """Carry slots and phases of rings from iteration to iteration."""
    return function.with_body(_Loops()(function.body))


@dataclass
class _Number:
    """A number of an iteration as a sum: variables with their factors, and a constant."""

    factors: dict[ir.Expr, int]
    constant: int

    def at(self, size: int) -> tuple[Any, ...]:
        """What tells it apart among numbers that leave the same rest by `size`."""
        rest = sorted((id(atom), factor % size) for atom, factor in self.factors.items() if factor % size)
        return (size, tuple(rest), self.constant % size)


@dataclass
class _Counter:
    """A slot that is counted on, and the phases that are asked for with it: numbers of one slot may be whole rings
    apart."""

    number: _Number
    size: int
    slot: ir.Buffer
    phases: dict[tuple[Any, ...], tuple[_Number, ir.Buffer]] = field(default_factory=dict)


class _Loops(Rewriter):
    def visit_For(self, loop: ir.For) -> Any:
        inner = [one for one in find(loop.body, ir.For) if one.kind == "serial" and any(_divided_slots(one.body))]
        if inner or loop.kind != "serial":
            return self.generic(loop)  # what is done once for a loop below may well divide
        sizes = set(_divided_slots(loop.body))
        if not sizes or not ir.is_literal(loop.step, 1) or any(find(loop.body, ir.Continue)):
            return loop
        counting = _Counting(loop, sizes)
        body = counting(loop.body)
        made = replace(loop, body=replace(body, statements=(*body.statements, *counting.steps())))
        return [*counting.begin(), made] if counting.counters else loop


def _divided_slots(body: ir.Statement) -> Iterator[int]:
    """How many slots there are where barriers are found by dividing for them."""
    for region in find(body, ir.Region):
        if region.buffer.scope == "barrier":
            for node in find(region, ir.Binary):
                if node.op == "floormod" and isinstance(node.right, ir.Const) and _divides(int(node.right.value)):
                    yield int(node.right.value)


def _divides(size: int) -> bool:
    """Whether it takes a division to find one of so many slots."""
    return size > 2 and size & (size - 1) != 0


@dataclass
class _Counting(Rewriter):
    """Reads of slots and phases in a loop's body become reads of counters."""

    loop: ir.For
    sizes: set[int]
    counters: dict[tuple[Any, ...], _Counter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = {let.var: let.value for let in find(self.loop.body, ir.Let)}
        self.changing = {self.loop.var, *self.names, *(loop.var for loop in find(self.loop.body, ir.For))}
        self.in_ring = False
        self.analyzer = Analyzer()

    def visit_Call(self, call: ir.Call) -> object:
        before = self.in_ring
        self.in_ring = before or any(one.buffer.scope == "barrier" for one in call.regions)
        made = self.generic(call)
        self.in_ring = before
        return made

    def visit_Binary(self, node: ir.Binary) -> object:
        quotient = node.left if node.op == "and" and ir.is_literal(node.right, 1) else None
        if isinstance(quotient, ir.Binary) and quotient.op == "floordiv":
            found = self._counter(quotient)
            if found is not None and found[1].constant >= 0:
                counter, number = found
                key = number.at(2 * counter.size)
                counter.phases.setdefault(key, (number, ir.Buffer("phase", (), UINT32, "scalar")))
                return ir.cast(ir.Load(UINT32, counter.phases[key][1], ()), node.dtype)
        if node.op == "floormod":
            found = self._counter(node)
            if found is not None:
                return ir.cast(ir.Load(UINT32, found[0].slot, ()), node.dtype)
        return self.generic(node)

    def _counter(self, node: ir.Binary) -> tuple[_Counter, _Number] | None:
        """The counter of a division by slots, and what is divided: signed numbers anywhere, others where a barrier is
        asked for."""
        if not isinstance(node.right, ir.Const) or int(node.right.value) not in self.sizes:
            return None
        left, size = node.left, int(node.right.value)
        if isinstance(left, ir.Cast) and left.dtype == UINT32 and self.in_ring:
            left = left.value
        number = None if left.dtype != INT32 else self._sum(substitute(left, self.names))
        if number is None or number.factors.pop(self.loop.var, 0) != 1:
            return None
        key = number.at(size)
        if key not in self.counters:
            self.counters[key] = _Counter(number, size, ir.Buffer("slot", (), UINT32, "scalar"))
        return self.counters[key], number

    def _sum(self, expr: ir.Expr) -> _Number | None:
        """A number as a sum of what does not change while the loop runs, and the loop's own variable."""
        factors, constant = self.analyzer.linear(expr)
        lasting = all(
            isinstance(one, ir.Var) and one not in self.changing for one in factors if one is not self.loop.var
        )
        return _Number(factors, constant) if lasting else None

    # Around the loop ------------------------------------------------------------------------------

    def begin(self) -> list[ir.Statement]:
        """Counters as they are in the first iteration."""
        made: list[ir.Statement] = []
        for counter in self.counters.values():
            size = counter.size
            first = ir.cast(self._first(counter.number, size) % size, UINT32)
            made.append(ir.Allocate(counter.slot, initial=first, span=self.loop.span))
            for number, phase in counter.phases.values():
                lap = ir.cast(self._first(number), UINT32) // ir.const(size, UINT32)
                parity = ir.index_binary("and", lap, ir.const(1, UINT32))
                made.append(ir.Allocate(phase, initial=parity, span=self.loop.span))
        return made

    def _first(self, number: _Number, size: int | None = None) -> ir.Expr:
        """The number of the first iteration; one that leaves the same rest by `size`, where that is given."""
        rest = {atom: factor % size if size else factor for atom, factor in number.factors.items()}
        total = sum((atom * factor for atom, factor in rest.items()), start=self.loop.start)
        return total + (number.constant % size if size else number.constant)

    def steps(self) -> list[ir.Statement]:
        """What stands at the end of an iteration: those that follow another one take its place, others are counted."""
        made: list[ir.Statement] = []
        ahead: list[ir.Statement] = []
        for (size, rest, constant), counter in self.counters.items():
            leading = self.counters.get((size, rest, (constant + 1) % size))
            if leading is not None and leading.phases and not counter.phases:
                made.append(ir.Store(counter.slot, (), ir.Load(UINT32, leading.slot, ())))
                continue
            slot = ir.Load(UINT32, counter.slot, ())
            wrapped: list[ir.Statement] = [ir.Store(counter.slot, (), ir.const(0, UINT32))]
            for _, phase in counter.phases.values():
                flipped = ir.index_binary("xor", ir.Load(UINT32, phase, ()), ir.const(1, UINT32))
                wrapped.append(ir.Store(phase, (), flipped))
            ahead.append(ir.Store(counter.slot, (), slot + ir.const(1, UINT32)))
            ahead.append(ir.If(ir.binary("eq", slot, ir.const(size, UINT32)), ir.seq(*wrapped)))
        return [*made, *ahead]
