"""Programs in which threads speak for themselves, as kernels that were CUDA are written, beside statements over tiles.

A program has numbers of each thread: what it loads, by elements or by vectors, what it works out, what other lanes, warps and threads tell
it by shuffles, votes, reductions, shared tiles and barriers, and what loops and conditions of its own make of that.  All numbers are whole and
their ranges are known, as in mixed programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mixed_tiles import Tile
from swarm_writer import SwarmWriter

from tilewright.ir.dtypes import ALL

LARGEST = 2**20
"""What a thread's number may reach before it is brought back."""

LOADED = ("int32", "int32", "int16", "uint8", "int8", "uint16", "float32", "float16", "int64", "uint32")


@dataclass(frozen=True)
class Number:
    """A number of each thread: how it is written, and its range."""

    text: str
    low: int
    high: int


class ThreadWriter(SwarmWriter):
    """Writes the program of a seed."""

    lines_of_block = (0, 0, 0, 2, 4)
    """How many rows of threads a block may have; 0 where it has one dimension."""

    parted_by = ""
    """What decides in the conditions that statements stand under: warps, threads, numbers, the block; several of them are ``threads``."""

    def start(self) -> None:
        self.roles = False
        self.thread_name = "tx"
        self.lines = [line for line in self.lines if not line.startswith("tx =")]
        self.rows = self.pick(self.lines_of_block) if self.threads % 64 == 0 and self.divides else 0
        if self.rows:  # a block of two dimensions
            across = self.threads // self.rows
            self.emit("t0, t1 = T.get_thread_binding(0), T.get_thread_binding(1)", f"tx = t1 * {across} + t0")
        else:
            self.emit(self.pick(("tx = T.get_thread_binding()", "tx, _, _ = T.get_thread_bindings()")))
        self.numbers_of_threads = [Number("tx", 0, self.threads - 1)]
        if self.rows:
            self.numbers_of_threads += [Number("t0", 0, across - 1), Number("t1", 0, self.rows - 1)]
        super().start()
        if self.chance(0.3):
            name = self.name("g")
            self.emit(f"{name} = {self.pick(('T.get_block_binding(0)', 'T.get_block_bindings()[0]'))}")
            self.known(name, 0, self.blocks - 1)
        if self.chance(0.2):
            name = self.name("g")
            self.emit(f"{name} = T.get_block_extent(0)")
            self.known(name, self.blocks, self.blocks)
        if self.chance(0.2):
            self.emit(f'T.use_swizzle({self.pick((1, 2, 4))}, order="{self.pick(("row", "column"))}")')

    def kernel_line(self) -> str:
        line = super().kernel_line()
        shape = f"({self.threads // self.rows}, {self.rows})" if self.rows else f"{self.threads}"
        return line.replace(f"threads={self.threads}", f"threads={shape}")

    @contextmanager
    def inside(self, header: str, **changes: Any) -> Iterator[None]:
        """Numbers of threads that a block gives names to are not known behind it."""
        known = list(self.numbers_of_threads)
        with super().inside(header, **changes):
            yield
        self.numbers_of_threads = known

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        mine: list[tuple[float, Callable[[], None]]] = [
            (8, self.loaded), (8, self.worked_out), (4, self.of_lanes), (3, self.vote), (5, self.handed_over), (3, self.counted),
            (4, self.turns_of_its_own), (4, self.choices_of_its_own), (3, self.vectors), (3, self.words), (4, self.of_tiles), (5, self.told),
            (2, self.drawn), (6, self.pipeline),
        ]  # fmt: skip
        ways = super().ways() if self.context.group is None else []
        for weight, way in mine if self.context.group is None else []:
            name = way.__name__
            if name not in self.weights:
                self.weights[name] = self.pick((0.0, 0.5, 1.0, 1.0, 3.0))
            ways.append((weight * self.weights[name] + 0.01, way))
        if self.context.depth < 2:
            ways.append((1, self.tiles_of_the_grid))
        return ways or super().ways()

    # Around loops that load ---------------------------------------------------------------------------

    def meets(self) -> list[Callable[[], None]]:
        """Words for which a block's threads come together, or which each of them says once."""
        return [self.vote, self.vote_of_block, self.counted, self.handed_over]

    def meet(self, part: float) -> None:
        """One of them, where all threads come."""
        if not self.parted_by and self.context.group is None and self.chance(part):
            self.pick(self.meets())()
            self.feature("thread", "meets around loads")

    def pipeline(self) -> None:
        """Loops stand between words for which the threads meet."""
        self.meet(0.25)
        super().pipeline()
        self.meet(0.25)

    def growing(self, count: int) -> None:
        self.meet(0.3 if self.context.pipelined else 0.0)
        super().growing(count)

    def leave(self) -> None:
        self.told()
        super().leave()

    # Numbers -----------------------------------------------------------------------------------------

    def give(self, text: str, low: int, high: int, variable: float = 0.3) -> None:
        """A name for a number, or a variable, or an element of an array of each thread."""
        assert -LARGEST <= low <= high <= LARGEST, text
        if high - low < 2 and text.startswith("("):
            text = f'T.cast({text}, "int32")'
        name = self.name("y")
        if self.chance(variable):
            self.emit(f'{name} = T.alloc_var("int32", init={text})')
        elif self.chance(0.3):
            count, place = self.pick((1, 2, 3)), 0
            self.emit(f'{name} = T.alloc_local(({count},), "{self.pick(("int32", "int64", "float32"))}")')
            self.emit(f"{name}[{place}] = {text}")
            name = f'T.cast({name}[{place}], "int32")'
        else:
            self.emit(f"{name} = {text}")
        self.numbers_of_threads.append(Number(name, low, high))

    def number(self, low: int = -LARGEST, high: int = LARGEST) -> Number:
        """One of the numbers, rather a late one, within bounds."""
        found = [one for one in self.numbers_of_threads if low <= one.low and one.high <= high]
        if not found or self.chance(0.1):
            value = self.between(max(low, -3), min(high, 9)) if max(low, -3) <= min(high, 9) else low
            return Number(f"T.int32({value})", value, value)
        return self.pick(found[-4:]) if self.chance(0.7) else self.pick(found)

    def brought_back(self, one: Number, count: int) -> Number:
        """A number below `count`, from 0 on."""
        if one.low >= 0 and one.high < count:
            return one
        way = self.pick(("({} % {})", "T.floormod({}, {})"))
        if count & (count - 1) == 0 and self.chance(0.4):
            return Number(f"T.bitwise_and({one.text}, {count - 1})", 0, count - 1)
        return Number(way.format(one.text, count), 0, count - 1)

    def test(self) -> str:
        """A condition of each thread."""
        one, other = self.number(), self.number()
        return self.pick(
            (f"{one.text} > {self.between(one.low, one.high)}", f"{one.text} % 2 == {self.between(0, 1)}", f"{one.text} <= {other.text}",
             f"({one.text} != {self.between(0, 5)} and {other.text} > 1)", f"T.bitwise_and({one.text}, 4) == 0",
             f"T.get_lane_idx() {self.pick(('<', '>='))} {self.between(1, 31)}", f"T.get_warp_idx() == {self.between(0, self.threads // 32 - 1)}")
        )  # fmt: skip

    def worked_out(self) -> None:
        """Whole numbers by the words for them."""
        a, b = self.number(-(2**12), 2**12), self.number(-(2**7), 2**7)
        ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        bits = 2 ** max(abs(a.low), abs(a.high), abs(b.low), abs(b.high), 1).bit_length()
        below, most = (-bits if min(a.low, b.low) < 0 else 0), max(abs(a.low), abs(a.high))
        divisor = self.pick((2, 3, 5, 7, 16, -3))
        small, known = self.brought_back(b, 8), self.pick((1, 2, 3))
        ways = [
            (f"({a.text} + {b.text})", a.low + b.low, a.high + b.high),
            (f"({a.text} * {b.text} - {known})", min(ends) - known, max(ends) - known),
            (f"T.max({a.text}, {b.text})", max(a.low, b.low), max(a.high, b.high)),
            (f"T.min({a.text}, {b.text}, {known})", min(a.low, b.low, known), min(a.high, b.high, known)),
            (f"T.bitwise_{self.pick(('and', 'or', 'xor'))}({a.text}, {b.text})", below, bits - 1),
            (f"T.bitwise_not({a.text})", -a.high - 1, -a.low - 1),
            (f"T.shift_left({a.text}, {small.text})", min(a.low * 128, a.low), max(a.high * 128, a.high)),
            (f"T.shift_right({a.text}, {small.text})", min(a.low, 0), max(a.high, 0)),
            (f"T.cast(T.popcount({a.text}), 'int32')", 0, 32),
            (f"T.cast(T.clz({a.text}), 'int32')", 0, 32),
            (f"T.truncdiv({a.text}, {divisor})", -most, most),
            (f"T.truncmod({a.text}, {divisor})", 1 - abs(divisor), abs(divisor) - 1),
            (f"T.floordiv({a.text}, {divisor})", -most - 1, most + 1),
            (f"T.floormod({a.text}, {divisor})", min(0, divisor + 1), max(0, divisor - 1)),
            (f"T.Select({self.test()}, {a.text}, {b.text})", min(a.low, b.low), max(a.high, b.high)),
            (f"T.if_then_else({self.test()}, {a.text}, {b.text})", min(a.low, b.low), max(a.high, b.high)),
            (f"T.clamp({a.text}, -3, {known + 5})", -3, known + 5),
            (f"T.abs({a.text})", 0, most),
        ]
        if a.low >= 0:
            ways += [
                (f"T.ceildiv({a.text}, {abs(divisor)})", 0, most),
                (f"T.align_up({a.text}, {abs(divisor)})", 0, most + 16),
                (f"T.index_to_coordinates({self.brought_back(a, 24).text}, (4, 6))[{known % 2}]", 0, 5),
            ]
        narrow = self.pick(("int8", "uint8", "int16", "uint16", "int64", "uint32"))
        if ALL[narrow].minimum <= a.low and a.high <= ALL[narrow].maximum:
            ways += [(f'T.cast(T.cast({a.text}, "{narrow}") {self.pick("+*")} 1, "int32")', *self.wrapped(a, narrow))]
        text, low, high = self.pick(ways)
        self.feature("thread", "works out", text.split("(")[0] or "operator")
        self.give(text, low, high)

    def wrapped(self, one: Number, dtype: str) -> tuple[int, int]:
        """What adding one in a type may give: where it wraps, any number of the type."""
        return (one.low, one.high + 1) if one.high < ALL[dtype].maximum else (int(ALL[dtype].minimum), one.high)

    # Where numbers come from ----------------------------------------------------------------------------

    def loaded(self) -> None:
        """An element for each thread: its own, a neighbour's, or where a number says."""
        dtype = self.pick(LOADED)
        values = (0 if dtype.startswith("u") else -4, 9)
        count = self.pick((self.threads, self.threads, 40, 7))
        source = self.tensor((2, count), dtype, values)
        own = self.brought_back(self.pick((Number("tx", 0, self.threads - 1), self.number(0, LARGEST))), count).text
        row = self.pick(("0", "1", self.index(0, 1)))
        text = f'T.cast({source.name}[{row}, {own}], "int32")'
        self.feature("thread", "loads", dtype)
        self.give(text, *values)

    def vectors(self) -> None:
        """Neighbours by one access: a loop of lanes into an array of the thread, or words."""
        lanes, dtype = self.pick((2, 4, 8)), self.pick(("int32", "float32", "float16", "int8"))
        source, own = self.tensor((self.threads, lanes), dtype, (-4, 4)), self.name("w")
        self.emit(f'{own} = T.alloc_local(({lanes},), "{dtype}")')
        v = self.name("v")
        self.emit(
            f"for {v} in T.{self.pick(('vectorized', 'Vectorized', 'unroll', 'serial'))}({lanes}):",
            f"    {own}[{v}] = {source.name}[tx, {v}]",
        )
        if self.chance(0.5):
            self.emit(
                f"for {v} in T.vectorized({lanes}):",
                f"    {own}[{v}] = {own}[{v}] {self.pick('+*')} T.cast(2, '{dtype}')",
            )
        total = self.name("y")
        self.emit(
            f'{total} = T.alloc_var("int32", init=0)',
            f"for {v} in T.serial({lanes}):",
            f'    {total} = {total} + T.cast({own}[{v}], "int32")',
        )
        self.numbers_of_threads.append(Number(total, -64, 64))
        self.feature("thread", "vectors", dtype, str(lanes))

    def words(self) -> None:
        """Words of neighbouring bytes, by way of a shared tile or not."""
        size, lanes = self.pick(((32, 1), (64, 2), (128, 4)))
        source = self.tensor((self.threads * lanes,), "int32", (0, 100))
        name = self.name("w")
        self.emit(f"{name} = T.ldg{size}({source.name}[tx * {lanes}])")
        if self.chance(0.5) and self.context.depth == 0:
            tile = self.name("s")
            self.emit(f'{tile} = T.alloc_shared(({self.threads * lanes},), "int32")', "T.sync_threads()")
            self.emit(f"T.sts{size}({tile}[tx * {lanes}], {name})", "T.sync_threads()")
            name = self.name("w")
            self.emit(f"{name} = T.lds{size}({tile}[(tx + 1) % {self.threads} * {lanes}])", "T.sync_threads()")
        lane = f"T.extract_lane({name}, {self.between(0, lanes - 1)})" if lanes > 1 else name
        self.feature("thread", "words", str(size))
        self.give(f'T.cast({lane}, "int32")', 0, 100)

    def of_tiles(self) -> None:
        """An element of a shared tile, where each thread says."""
        tiles = [one for one in self.usable(("shared",)) if one.range and not ALL[one.dtype].is_packed]
        if not tiles or ALL[(tile := self.pick(tiles)).dtype].kind == "bool" or max(map(abs, tile.range)) > 2**12:  # type: ignore[arg-type]
            return
        place = ", ".join(self.brought_back(self.number(0, LARGEST), extent).text for extent in tile.shape)
        assert tile.range is not None
        self.feature("thread", "reads a tile", tile.dtype)
        self.give(f'T.cast({tile.name}[{place}], "int32")', *tile.range, variable=1.0)
        self.emit("T.sync_threads()")

    def of_lanes(self) -> None:
        """What other lanes of the warp have."""
        one, width = self.number(-(2**14), 2**14), self.pick((32, 32, 16, 8, 4))
        text = self.pick(
            (f"T.shfl_xor({one.text}, {self.between(1, width - 1)}, width={width})", f"T.shfl_up({one.text}, {self.between(1, width - 1)}, width={width})",
             f"T.shfl_down({one.text}, {self.between(1, width - 1)}, width={width})", f"T.shfl_sync({one.text}, {self.between(0, width - 1)}, width={width})",
             f"T.shfl_sync({one.text}, {self.brought_back(self.number(), 32).text}, mask=0xFFFFFFFF)",
             f"T.tvm_warp_shuffle(T.tvm_warp_activemask(), {one.text}, {self.between(0, 31)}, 32, 32)")
        )  # fmt: skip
        low, high = one.low, one.high
        if self.chance(0.35):
            kind = self.pick(("sum", "max", "min", "bitand", "bitor", "bitxor"))
            text = f"T.warp_reduce_{kind}({one.text})"
            if kind == "sum":
                low, high = 32 * low, 32 * high
            elif kind.startswith("bit"):
                bound = 2 ** max(abs(low), abs(high), 1).bit_length()
                low, high = (-bound if low < 0 else 0), bound - 1
        self.feature("thread", "lanes", text.split("(")[0])
        self.give(text, low, high)

    def vote(self) -> None:
        """What the warp or the block says of a condition."""
        one, test = self.number(), self.test()
        if self.chance(0.3):
            return self.vote_of_block()
        text, most = self.pick(
            ((f"T.cast(T.popcount(T.ballot({test})), 'int32')", 32), (f"T.cast(T.any_sync({test}), 'int32')", 1),
             (f"T.cast(T.all_sync({test}), 'int32')", 1), (f"T.cast(T.popcount(T.match_any_sync({one.text})), 'int32')", 32),
             (f"T.cast(T.clz(T.cast(T.ballot_sync({test}), 'int32')), 'int32')", 32), (f"T.cast(T.popcount(T.match_all_sync({one.text})), 'int32')", 32))
        )  # fmt: skip
        self.feature("thread", "votes", text.split("T.")[-1 if "sync" in text else 1].split("(")[0])
        self.give(text, 0, most, variable=1.0)

    def vote_of_block(self) -> None:
        """What all threads of the block say of a condition."""
        word, most = self.pick((("count", self.threads), ("or", 1), ("and", 1)))
        self.feature("thread", "votes", word)
        self.give(f"T.cast(T.syncthreads_{word}({self.test()}), 'int32')", 0, most, variable=1.0)

    def handed_over(self) -> None:
        """Each thread leaves a number in a shared tile, and reads what another one left."""
        one, tile = self.number(), self.name("s")
        self.emit(f'{tile} = T.alloc_shared(({self.threads},), "{self.pick(("int32", "int32", "int64", "float32"))}")')
        self.emit(f"{tile}[tx] = {one.text}", "T.sync_threads()")
        step = self.between(1, self.threads - 1)
        other = self.pick(
            (f"(tx + {step}) % {self.threads}", f"{self.threads - 1} - tx", self.brought_back(self.number(0, LARGEST), self.threads).text)
        )  # fmt: skip
        self.give(f'T.cast({tile}[{other}], "int32")', one.low, one.high, variable=1.0)
        self.emit("T.sync_threads()")
        self.feature("thread", "hands over")

    def counted(self) -> None:
        """A count of threads in bins that atomics keep."""
        bins, tile, one = self.pick((2, 8, 32)), self.name("s"), self.number()
        word, values = self.pick((("add", (0, self.threads * 3)), ("max", (0, 3)), ("or", (0, 3))))
        self.emit(f'{tile} = T.alloc_shared(({bins},), "int32")', f"T.clear({tile})", "T.sync_threads()")
        statement = (
            f"T.atomic_{word}({tile}[{self.brought_back(one, bins).text}], {self.brought_back(self.number(), 4).text})"
        )
        if self.chance(0.4):
            self.emit(f"if {self.test()}:", f"    {statement}")
        else:
            self.emit(statement)
        self.emit("T.sync_threads()")
        self.give(f"{tile}[{self.brought_back(self.number(), bins).text}]", *values, variable=1.0)
        self.emit("T.sync_threads()")
        self.feature("thread", "counts", word)

    def drawn(self) -> None:
        """Numbers drawn by each thread."""
        self.emit(f"T.rng_init({self.between(0, 99)}, seq={self.pick(('tx', f'bx * {self.threads} + tx'))})")
        self.give('T.cast(T.rng_rand() % 10, "int32")', 0, 9)

    # Loops and conditions of threads ------------------------------------------------------------------------

    def turns_of_its_own(self) -> None:
        """A loop that each thread runs as often as a number says, and may leave."""
        turns, total, k = self.brought_back(self.number(), self.pick((3, 8))), self.name("y"), self.name("k")
        self.emit(f'{total} = T.alloc_var("int32", init={self.between(0, 3)})')
        most = turns.high
        if self.chance(0.3):
            self.emit(f"while {total} < {turns.text}:", f"    {total} = {total} + 1 + {total} % 2")
            self.numbers_of_threads.append(Number(total, 0, most + 5))
            self.feature("thread", "while")
            return
        self.emit(f"for {k} in {self.pick(('T.serial', 'T.Serial', 'range'))}({turns.text}):")
        one = self.number(-(2**7), 2**7)
        self.emit(f"    {total} = {total} + {self.pick((k, one.text, f'{k} * 2'))}")
        if self.chance(0.4):
            self.emit(
                f"    if {total} > {self.between(2, 9)}:",
                f"        {self.pick(('break', 'continue', 'T.loop_break()'))}",
            )
        bound = most * max(abs(one.low), abs(one.high), 2 * most, 1) + 3
        self.numbers_of_threads.append(Number(total, -bound, bound))
        self.feature("thread", "turns")

    def choices_of_its_own(self) -> None:
        """A variable that branches of each thread set."""
        one, other, name = self.number(), self.number(), self.name("y")
        self.emit(f'{name} = T.alloc_var("int32", init={one.text})')
        forms = [
            [f"if {self.test()}:", f"    {name} = {other.text}"],
            [f"if {self.test()}:", f"    {name} = {other.text}", "else:", f"    {name} = {self.between(0, 3)}"],
            [f"if {self.test()}:", f"    if {self.test()}:", f"        {name} = {other.text}"],
            [f"if {self.test()}:", f"    {name} = {other.text}", f"elif {self.test()}:", f"    {name} = 3"],
            [f"with T.If({self.test()}):", "    with T.Then():", f"        {name} = {other.text}", "    with T.Else():", f"        {name} = 1"],
        ]  # fmt: skip
        self.emit(*self.pick(forms))
        self.numbers_of_threads.append(Number(name, min(one.low, other.low, 0), max(one.high, other.high, 3)))
        self.feature("thread", "chooses")

    def tiles_of_the_grid(self) -> None:
        """Blocks that stay for many tiles of a domain."""
        y, x = self.name("k"), self.name("k")
        domain = [self.pick((1, 2, 3)), self.pick((2, 3))]
        wave, index = (self.blocks, "bx") if self.grid_y == 1 else (1, "0")
        with self.inside(
            f"for {y}, {x} in T.Persistent({domain}, {wave}, {index}):",
            indices=(*self.context.indices, (y, 0, domain[0] - 1), (x, 0, domain[1] - 1)),
            sure=False, turns=self.context.turns * domain[0] * domain[1], loops=(*self.context.loops, y),
        ):  # fmt: skip
            self.growing(self.between(1, 2))
        self.feature("thread", "persistent tiles")

    # Results ------------------------------------------------------------------------------------------

    def told(self) -> None:
        """A number of each thread in an output, or in a tensor of the caller's where this may not run."""
        fitting = [one for one in self.numbers_of_threads[1:] if one.low >= -(2**11) and one.high <= 2**11]
        wide = self.numbers_of_threads[-1]
        one, dtype = (wide, "int32") if wide not in fitting or self.chance(0.5) else (self.pick(fitting), self.pick(("int32", "float32", "int64", "int16", "float16")))  # fmt: skip
        out: Tile = self.result((self.threads,), dtype)
        place = self.pick(("tx", "tx", f"{self.threads - 1} - tx", f"(tx + {self.between(1, 31)}) % {self.threads}"))
        text = one.text if dtype == "int32" else f'T.cast({one.text}, "{dtype}")'
        self.emit(f"{out.name}[{self.block_place()}, {place}] = {text}")
        self.feature("thread", "tells", dtype)
