"""`T.reduce_*` of fragments: within a thread, then among the lanes of a warp, then through shared memory.

The result's layout gives every thread along the reduced dimension a copy, so all of them end with the total.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.ir import BOOL, INT32, DType, guard_of
from tilewright.ir import nodes as ir
from tilewright.layout import REGISTER, THREAD, Digit, Layout, extent_of
from tilewright.ops import COMBINE, Reduce, zero
from tilewright.passes.context import Context
from tilewright.passes.lower.block_view import BLOCK, BlockView

CHAINS = (4, 2, 1)
"""Ways to fold a thread's elements of a line: so many at once, since each step waits for the one before it."""

MOST_FOLDED = 64
"""Totals that a thread folds of all warps by itself; of more, each folds some lines for the others, who wait once
more."""


def lower_reduce(reduction: Reduce, context: Context) -> ir.Statement | None:
    """The thread code of a reduction between fragments."""
    arch = context.arch
    return _Reduction(reduction, context.facts[BLOCK], arch.exchanging_lanes, arch.has("redux")).statements()


@dataclass(slots=True)
class _Reduction:
    operator: Reduce
    block: BlockView
    warp: int
    """Lanes that exchange what they hold without shared memory."""
    redux: bool
    """Whether warps combine integers by one instruction."""
    total: ir.Buffer = field(init=False)

    def __post_init__(self) -> None:
        result = self.block.registers(self.operator.destination.buffer)
        self.total = ir.Buffer(f"{self.operator.destination.buffer.name}_total", result.shape, self.dtype, "register")

    @property
    def dtype(self) -> DType:
        """What elements are combined in."""
        return BOOL if self.operator.kind in ("any", "all") else self.operator.value_dtype

    @property
    def source(self) -> Layout:
        return self.block.layouts[self.operator.source.buffer]

    @property
    def digits(self) -> tuple[Digit, ...]:
        """Digits of the reduced dimension."""
        return self.source.digits[self.operator.axis]

    def statements(self) -> ir.Seq:
        threads = [part for one in self.digits if one.place == THREAD for part in _split_at_warp(one, self.warp)]
        lanes = [one for one in threads if one.stride < self.warp and _is_power(one.stride) and _is_power(one.extent)]
        warps = [one for one in threads if one not in lanes]
        made: list[ir.Statement] = [ir.Allocate(self.total, span=self.operator.span), *self._within_thread()]
        if self._is_one_instruction(lanes):
            made.append(self._lines(self._whole_warp))
        else:
            made += [self._among_lanes(one) for one in lanes]
        if warps:
            made += self._among_warps(warps)
        made.append(self._finish())
        return ir.seq(made)

    # One thread ----------------------------------------------------------------------------------

    def _within_thread(self) -> list[ir.Statement]:
        """Fold the thread's own elements of each line into the line's register, several chains side by side."""
        kept = [
            one
            for axis, dimension in enumerate(self.source.digits)
            if axis != self.operator.axis
            for one in dimension
            if one.place == REGISTER
        ]
        reduced = [one for one in self.digits if one.place == REGISTER]
        line, lines, parts = ir.Var(INT32, "line"), extent_of(kept), extent_of(reduced)
        assert lines == self.total.size, (lines, self.total.shape)

        def element(part: ir.Expr) -> ir.Expr:
            place = _number(line, sorted(kept, key=lambda d: d.stride)) + _number(part, reduced)
            source = ir.Load(self.operator.source.dtype, self.block.registers(self.operator.source.buffer), (place,))
            return self._masked(self._element(source), part, reduced)

        def each(var: ir.Var, start: int, stop: int, *body: ir.Statement) -> ir.Statement:
            return ir.For(
                var, ir.const(start), ir.const(stop), ir.const(1), ir.seq(*body), "unroll", span=self.operator.span
            )

        if parts == 1:
            return [each(line, 0, lines, self._put(line, element(ir.const(0))))]
        chains = next(count for count in CHAINS if parts % count == 0 and parts > count)
        partial = ir.Buffer(f"{self.total.name}_parts", (chains,), self.dtype, "register")
        first, step, chain = ir.Var(INT32, "chain"), ir.Var(INT32, "step"), ir.Var(INT32, "chain")
        begun = ir.Store(partial, (first,), element(first), span=self.operator.span)
        next_one = element(step * chains + chain)
        grown = self._combine(ir.load(partial, chain), next_one)
        folded = ir.Store(partial, (chain,), grown, span=self.operator.span)
        return [each(
            line, 0, lines, ir.Allocate(partial, span=self.operator.span), each(first, 0, chains, begun),
            each(step, 1, parts // chains, each(chain, 0, chains, folded)),
            self._put(line, self._folded([ir.load(partial, one) for one in range(chains)])),
        )]  # fmt: skip

    def _folded(self, values: list[ir.Expr]) -> ir.Expr:
        """Pairs, then pairs of these."""
        while len(values) > 1:
            values = [self._combine(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    def _masked(self, element: ir.Expr, part: ir.Expr, reduced: Sequence[Digit]) -> ir.Expr:
        """Padding of the reduced dimension counts for nothing."""
        extent = self.operator.source.extents[self.operator.axis]
        if self.source.shape[self.operator.axis] == extent:
            return element
        coordinate: ir.Expr = ir.const(0)
        weight, below = 1, 1
        for one in self.digits:
            if one.place == REGISTER:
                value = part // below % one.extent
                below *= one.extent
            else:
                value = self.block.thread // one.stride % one.extent
            coordinate = coordinate + value * weight
            weight *= one.extent
        return ir.Select(element.dtype, ir.index_binary("lt", coordinate, extent), element, self._identity())

    def _element(self, value: ir.Expr) -> ir.Expr:
        kind = self.operator.kind
        if kind in ("any", "all"):
            return value if value.dtype.kind == "bool" else ir.binary("ne", value, zero(value.dtype))
        wide = ir.cast(value, self.dtype)
        return ir.Call(wide.dtype, "abs", (wide,)) if kind.startswith("abs") else wide

    def _identity(self) -> ir.Expr:
        kind, dtype = self.operator.kind, self.dtype
        if kind in ("any", "all"):
            return ir.const(kind == "all", BOOL)
        if kind == "max":
            return ir.const(float("-inf") if dtype.infinities else dtype.minimum, dtype)
        if kind == "min":
            return ir.const(float("inf") if dtype.infinities else dtype.maximum, dtype)
        if kind == "bitand":
            return ir.const(-1 if dtype.is_signed else int(dtype.maximum), dtype)
        return zero(dtype)

    def _combine(self, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        return ir.binary(COMBINE[self.operator.kind], a, b)

    def _get(self, line: ir.Expr) -> ir.Expr:
        return ir.load(self.total, line)

    def _put(self, line: ir.Expr, value: ir.Expr) -> ir.Statement:
        return ir.Store(self.total, (line,), value, span=self.operator.span)

    # Several threads -----------------------------------------------------------------------------

    def _is_one_instruction(self, lanes: Sequence[Digit]) -> bool:
        """Whether the whole warp adds up 32-bit integers: there is an instruction for that."""
        whole = extent_of(lanes) == self.warp and self.redux
        return whole and self.dtype.is_integer and self.dtype.bits == 32

    def _whole_warp(self, line: ir.Var) -> ir.Seq:
        function = f"warp_{COMBINE[self.operator.kind]}"
        return ir.seq(self._put(line, ir.Call(self.dtype, function, (self._get(line),))))

    def _among_lanes(self, digit: Digit) -> ir.Statement:
        """A butterfly over the lanes of one digit; all of them get the result."""
        line = ir.Var(INT32, "line")
        steps: list[ir.Statement] = []
        distance = digit.stride * digit.extent // 2
        while distance >= digit.stride:
            other = ir.Call(self.dtype, "shuffle_xor", (self._get(line), ir.const(distance)))
            # Of a truth and another the second is asked only where it matters, and all lanes must come to the exchange.
            both = (other, self._get(line)) if self.dtype == BOOL else (self._get(line), other)
            steps.append(self._put(line, self._combine(*both)))
            distance //= 2
        return ir.counted(line, self.total.size, ir.seq(steps), "unroll", span=self.operator.span)

    def _among_warps(self, digits: Sequence[Digit]) -> list[ir.Statement]:
        """Through shared memory, where lanes cannot exchange them: all leave their totals, and fold those of the
        others.

        Of threads that hold the same totals by now, the first one leaves them.
        """
        warps, kept = extent_of(digits), self._kept_threads()
        groups = extent_of(kept)
        scratch = ir.Buffer(f"{self.total.name}_shared", (warps * self.total.size * groups,), self.dtype, "shared")
        rank, column = _rank(self.block.thread, digits), _rank(self.block.thread, kept)
        first = self._is_first([*kept, *digits])

        def place(warp: ir.Expr, line: ir.Expr) -> ir.Expr:
            row = warp * self.total.size + line
            return row * groups + column

        def by_first(work: ir.Statement) -> ir.Statement:
            return ir.If(first, ir.seq(work), span=self.operator.span) if first is not None else work

        def leave(line: ir.Var) -> ir.Seq:
            return ir.seq(ir.Store(scratch, (place(rank, line),), self._get(line), span=self.operator.span))

        def fold(line: ir.Expr, into: ir.Expr) -> ir.Seq:
            other = ir.Var(INT32, "other")
            fetch = self._put(into, self._combine(self._get(into), ir.load(scratch, place(other, line))))
            others = ir.counted(other, warps, ir.seq(fetch), "unroll", span=self.operator.span)
            return ir.seq(self._put(into, self._identity()), others)

        def take(line: ir.Var) -> ir.Seq:
            return ir.seq(self._put(line, ir.load(scratch, place(ir.const(0), line))))

        def share(iteration: ir.Var) -> ir.Seq:
            """Every one of the threads folds some lines for all of them."""
            line = iteration * warps + rank
            total = ir.Store(scratch, (place(ir.const(0), line),), self._get(ir.const(0)), span=self.operator.span)
            own = ir.seq(fold(line, ir.const(0)), total)
            return ir.seq(ir.If(ir.index_binary("lt", line, self.total.size), own, span=self.operator.span))

        def barrier() -> ir.Statement:
            return ir.Evaluate(self.block.barrier())

        left = [ir.Allocate(scratch), barrier(), by_first(self._lines(leave)), barrier()]
        if warps * self.total.size <= MOST_FOLDED:
            return [*left, self._lines(lambda line: fold(line, line))]
        iterations = -(-self.total.size // warps)
        return [*left, by_first(self._repeat("iteration", iterations, share)), barrier(), self._lines(take)]

    def _kept_threads(self) -> list[Digit]:
        """Digits of threads that hold different lines."""
        kept = (
            one for axis, dimension in enumerate(self.source.digits) if axis != self.operator.axis for one in dimension
        )
        return [one for one in kept if one.place == THREAD]

    def _is_first(self, digits: Sequence[Digit]) -> ir.Expr | None:
        """Whether a thread is the first of those that are alike in some digits of its number; None where each is
        alone."""
        conditions: list[ir.Expr] = []
        below = 1
        for one in sorted(digits, key=lambda digit: digit.stride):
            if one.stride % below:
                own = _number(_rank(self.block.thread, digits), digits)
                return ir.index_binary("eq", self.block.thread, own)
            if one.stride > below:
                between = self.block.thread // below % (one.stride // below)
                conditions.append(ir.index_binary("eq", between, 0))
            below = one.stride * one.extent
        if below < self.block.threads:
            conditions.append(ir.index_binary("lt", self.block.thread, below))
        return guard_of(conditions)

    def _lines(self, body: Callable[[ir.Var], ir.Seq]) -> ir.Statement:
        """A loop over the lines whose totals this thread has."""
        return self._repeat("line", self.total.size, body)

    def _repeat(self, name: str, count: int, body: Callable[[ir.Var], ir.Seq]) -> ir.Statement:
        var = ir.Var(INT32, name)
        return ir.counted(var, count, body(var), "unroll", span=self.operator.span)

    def _finish(self) -> ir.Statement:
        """The totals in the destination, combined with what was there where it is kept."""
        destination = self.operator.destination
        registers = self.block.registers(destination.buffer)

        def store(line: ir.Var) -> ir.Seq:
            value = ir.cast(self._get(line), destination.dtype)
            if not self.operator.clear:
                value = self.operator.with_old(ir.load(registers, line), self._get(line))
            return ir.seq(ir.Store(registers, (line,), value, span=self.operator.span))

        return self._lines(store)


def _split_at_warp(digit: Digit, warp: int) -> list[Digit]:
    """A digit of threads as one of lanes and one of warps; as it is where it does not count whole bits of a lane's
    number."""
    if not _is_power(digit.stride) or not _is_power(digit.extent):
        return [digit]
    lanes = warp // digit.stride if digit.stride < warp else digit.extent
    if digit.extent <= lanes:
        return [digit]
    return [Digit(lanes, THREAD, digit.stride), Digit(digit.extent // lanes, THREAD, warp)]


def _is_power(number: int) -> bool:
    """Whether it is a power of two."""
    return number & (number - 1) == 0


def _rank(thread: ir.Expr, digits: Sequence[Digit]) -> ir.Expr:
    """The running number over `digits`, least significant first, of a thread."""
    rank: ir.Expr = ir.const(0)
    below = 1
    for one in digits:
        rank += thread // one.stride % one.extent * below
        below *= one.extent
    return rank


def _number(value: ir.Expr, digits: Sequence[Digit]) -> ir.Expr:
    """The register that a running number over `digits`, least significant first, stands for."""
    total: ir.Expr = ir.const(0)
    below = 1
    for position, one in enumerate(digits):
        part = value // below
        if position + 1 < len(digits):
            part = part % one.extent
        total = total + part * one.stride
        below *= one.extent
    return total
