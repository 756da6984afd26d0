"""Programs in which authors do by hand what the compiler does for others, beside all that threads and tiles do elsewhere.

Atomics that give back what was there, copies begun ahead and waited for by their groups, warps that hand tiles on through channels, blocks
that meet in the middle of a kernel, fragments and loops whose places the author says, products with scales and shifts of their columns and rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mixed_tiles import LIMIT, Tile, exact_range
from own_writer import OwnWriter

from tilewright.ir.dtypes import ALL

GIVEN_BACK = {"int32": ("add", "max", "min", "and", "or", "xor"), "uint32": ("add", "max", "min"), "float32": ("add", "max", "min"), "int64": ("add",)}  # fmt: skip
"""Types of which an atomic gives an old value back, and what it does."""

RINGS = ("float16", "float32", "int32", "int8", "bfloat16")


class HandWriter(OwnWriter):
    """Writes the program of a seed."""

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        mine: list[tuple[float, Callable[[], None]]] = [(4, self.given_back)]
        if not self.parted_by and self.context.group is None:
            mine += [(2, self.added_together), (3, self.scaled_product), (1, self.turned_product)]
            if self.context.depth == 0:
                mine += [(3, self.begun_ahead), (1, self.met), (2, self.grouped_tiles)]
                mine += [(4, self.handed_on)] if self.threads >= 64 and not self.rows else []
        for _, way in mine:
            if way.__name__ not in self.weights:
                self.weights[way.__name__] = self.pick((0.0, 0.5, 1.0, 3.0))
        others = super().ways()
        total = sum(weight for weight, _ in others)
        return [*others, *((weight * self.weights[way.__name__] * total / 40, way) for weight, way in mine)]

    def meets(self) -> list[Callable[[], None]]:
        return [*super().meets(), self.given_back]

    # Layouts -----------------------------------------------------------------------------------------

    def new_tile(
        self, shape: tuple[int, ...] | None = None, dtype: str | None = None, scope: str | None = None
    ) -> Tile:
        """Some fragments lie where the author says."""
        before = len(self.lines)
        tile = super().new_tile(shape, dtype, scope)
        if tile.scope == "fragment" and len(tile.shape) == 2 and not self.context.depth and self.chance(0.2):
            at = next(n for n in range(before, len(self.lines)) if self.lines[n].strip().startswith(f"{tile.name} = "))
            if said := self.places(tile.shape):
                self.lines.insert(at + 1, f"T.annotate_layout({{{tile.name}: {said}}})")
                self.feature("hand", "fragment")
        return tile

    def places(self, shape: tuple[int, ...]) -> str:
        """Which thread holds which elements of two dimensions: runs of a row or of a column in turn, some of them more than once.
        Nothing where there are fewer runs than threads."""
        rows, columns = shape
        if (rows & (rows - 1) or columns & (columns - 1)) and self.chance(0.9):  # most of which no arithmetic says
            return ""
        runs = [one for one in (1, 2, 4, 8) if math.prod(shape) % one == 0 and math.prod(shape) // one >= self.threads]
        if not runs:
            return ""
        run = self.pick(runs)
        number = self.pick((f"(i * {columns} + j)", f"(j * {rows} + i)"))
        copies = self.pick((1, 1, 2)) if self.threads % 2 == 0 else 1
        holders = self.threads // copies
        if copies > 1:
            return (
                f"T.Fragment({shape}, forward_thread_fn=lambda i, j, c: {number} // {run} % {holders} + c * {holders}, "
                f"forward_index_fn=lambda i, j: {number} // {run * holders} * {run} + {number} % {run}, replicate={copies})"
            )
        return f"T.Fragment({shape}, lambda i, j: ({number} // {run} % {holders}, {number} // {run * holders} * {run} + {number} % {run}))"

    def loop(self, extents: tuple[int, ...]) -> list[tuple[str, int]]:
        """Some loops say how many elements a thread moves at once, or which thread runs which turn."""
        made = super().loop(extents)
        more = ""
        if extents[-1] % 2 == 0 and self.chance(0.1):
            more = f", coalesced_width={self.pick([one for one in (1, 2, 4, 8) if extents[-1] % one == 0])}"
        elif len(extents) == 2 and not self.context.depth and self.chance(0.05) and (said := self.places(extents)):
            more = f", loop_layout={said}" if "replicate" not in said else ""
        if more:
            self.lines[-1] = self.lines[-1].replace("):", f"{more}):")
            self.feature("hand", "loop", more.split("=")[0].strip(", "))
        return made

    # Atomics -----------------------------------------------------------------------------------------

    def given_back(self) -> None:
        """An atomic of each thread on an element of its own gives back what was there, here or in another's memory."""
        dtype = self.pick(tuple(GIVEN_BACK))
        word, one = self.pick(GIVEN_BACK[dtype]), self.brought_back(self.number(), 5)
        place = self.pick(("tx", "tx", f"{self.threads - 1} - tx", f"(tx + {self.between(1, 31)}) % {self.threads}"))
        into = self.result_of_others(dtype)
        most = 7 + 4 * self.context.turns if word == "add" else 7
        value = one.text if dtype == "int32" else f'T.cast({one.text}, "{dtype}")'
        order = self.pick(("", "", ', memory_order="acq_rel"', ', memory_order="relaxed"'))
        text = f"T.atomic_{word}({into.name}[{self.block_place()}, {place}], {value}, return_prev=True{order})"
        self.feature("hand", "given back", word, dtype, self.parted_by)
        if self.chance(0.2) and self.context.depth:
            self.emit(text)
            return
        self.give(text if dtype == "int32" else f'T.cast({text}, "int32")', 0, most, variable=1.0)

    def result_of_others(self, dtype: str) -> Tile:
        """A tensor with a number for each thread of each block."""
        whole = (self.blocks, *((self.grid_y,) if self.grid_y > 1 else ()), self.threads)
        return self.tensor(whole, dtype, (0, 7))

    def added_together(self) -> None:
        """Neighbours added to a tensor two or four at a time."""
        lanes, dtype = self.pick((2, 4)), self.pick(("float32", "float16", "bfloat16"))
        lanes = lanes if dtype == "float32" else 2
        groups, rows = self.pick((3, 8, 16)), self.pick((1, 4))
        source = self.tensor((rows, groups * lanes), dtype, (0, 2))
        into = self.tensor((rows, groups * lanes), dtype, (0, 2))
        start = self.pick((0, 0, 0, 1)) if groups > 1 else 0
        indices = self.loop((rows, groups - start))
        (i, _), (j, _) = indices
        at = f"[{i}, {j} * {lanes}{' + 1' if start else ''}]"
        self.emit(f"    T.atomic_addx{lanes}({into.name}{at}, {source.name}{at})")
        self.feature("hand", "added together", dtype, str(lanes))

    # Copies ahead ------------------------------------------------------------------------------------

    def begun_ahead(self) -> None:
        """A ring of slots, each filled by a copy that is begun some turns before it is read."""
        slots, turns = self.pick((2, 3, 4)), self.pick((1, 3, 4, 5))
        rows, columns, dtype = self.pick((8, 16, 32)), self.pick((16, 32, 64)), self.pick(RINGS)
        source = self.tensor((turns * rows, columns), dtype, (-3, 3))
        ring, total, k = self.name("s"), self.new_tile((rows, columns), "int32", "fragment"), self.name("k")
        self.emit(f'{ring} = T.alloc_shared(({slots}, {rows}, {columns}), "{dtype}")', f"T.clear({total.name})")
        for turn in range(slots - 1):
            self.begin(source, f"{min(turn, turns - 1)} * {rows}", f"{ring}[{turn}, :, :]")
        self.emit(f"for {k} in T.serial({turns}):", f"    T.ptx_wait_group({slots - 2})", "    T.sync_threads()")
        self.emit(f"    for i, j in T.Parallel({rows}, {columns}):")
        self.emit(f'        {total.name}[i, j] = {total.name}[i, j] + T.cast({ring}[{k} % {slots}, i, j], "int32")')
        self.emit("    T.sync_threads()")
        ahead = f"T.min({k} + {slots - 1}, {turns - 1})"
        self.begin(source, f"{ahead} * {rows}", f"{ring}[({k} + {slots - 1}) % {slots}, :, :]", "    ")
        self.emit("T.ptx_wait_group(0)", "T.sync_threads()")
        self.wrote(total, (-3 * turns, 3 * turns))
        self.feature("hand", "begun ahead", dtype, str(slots))

    def begin(self, source: Tile, row: str, slot: str, depth: str = "") -> None:
        self.emit(f"{depth}T.async_copy({source.name}[{row}, 0], {slot})")

    # Warps that hand on ------------------------------------------------------------------------------

    def handed_on(self) -> None:
        """Some warps fill slots of a ring, others add up what is in them; a third kind of warps may stand between."""
        warps = self.threads // 32
        middle = warps >= 3 and self.chance(0.4)
        loads = self.between(1, warps - 1 - middle)
        others = self.between(1, warps - loads - 1) if middle else 0
        slots, turns = self.pick((1, 2, 2, 3)), self.pick((1, 2, 5))
        rows, columns, dtype = (
            self.pick((8, 16, 33)),
            self.pick((8, 16, 32)),
            self.pick(("float32", "float16", "int32")),
        )
        source = self.tensor((turns * rows, columns), dtype, (-3, 3))
        out = self.result((rows, columns), "int32")
        ring, second, first, then = (self.name(letter) for letter in "ssee")
        self.emit(f'{ring} = T.alloc_shared(({slots}, {rows}, {columns}), "{dtype}")')
        self.emit(f'{first} = T.channel({ring}, writers="loads", readers="{"between" if middle else "adds"}")')
        if middle:
            self.emit(f'{second} = T.alloc_shared(({slots}, {rows}, {columns}), "{dtype}")')
            self.emit(f'{then} = T.channel({second}, writers="between", readers="adds")')
        self.emit("with T.roles():")
        parts = [self.adds(warps - loads - others, turns, second if middle else ring, then if middle else first, out)]
        parts += [self.loads(loads, turns, rows, ring, first, source)]
        parts += (
            [self.between_them(others, turns, (ring, first), (second, then), (rows, columns, dtype))] if middle else []
        )
        self.random.shuffle(parts)
        for part in parts:
            self.emit(*(f"    {line}" for line in part))
        self.feature("hand", "handed on", dtype, str(slots), str(middle))

    def guarded(self, lines: list[str], k: str) -> list[str]:
        """Work of a turn, as often as not only in some turns."""
        if self.chance(0.6):
            return lines
        test = self.pick((f"{k} % 2 == 0", f"{self.flags.name}[{k} % 8] != 0", "bx == 0", f"{k} > 0"))
        return [f"if {test}:", *(f"    {line}" for line in lines)]

    def loads(self, warps: int, turns: int, rows: int, ring: str, channel: str, source: Tile) -> list[str]:
        slot, k = self.name("u"), self.name("k")
        at = f"{source.name}[{k} * {rows}, 0]"
        brings = [f"T.copy({at}, {ring}[{slot}, :, :])"]
        if self.chance(0.3):
            brings = [
                f"for i, j in T.Parallel({rows}, {source.shape[1]}):",
                f"    {ring}[{slot}, i, j] = {source.name}[{k} * {rows} + i, j]",
            ]
        body = [f"{slot} = {channel}.acquire({k})", *brings, f"{channel}.publish({k})"]
        return [
            f'with T.role("loads", warps={warps}):',
            f"    for {k} in T.serial({turns}):",
            *(f"        {line}" for line in body),
        ]

    def adds(self, warps: int, turns: int, ring: str, channel: str, out: Tile) -> list[str]:
        rows, columns = out.shape[-2:]
        slot, k, total = self.name("u"), self.name("k"), self.name("f")
        sums = [
            f"for i, j in T.Parallel({rows}, {columns}):",
            f'    {total}[i, j] = {total}[i, j] + T.cast({ring}[{slot}, i, j], "int32")',
        ]
        body = [f"{slot} = {channel}.receive({k})", *self.guarded(sums, k), f"{channel}.release({k})"]
        return [
            f'with T.role("adds", warps={warps}):', f'    {total} = T.alloc_fragment(({rows}, {columns}), "int32")', f"    T.clear({total})",
            f"    for {k} in T.serial({turns}):", *(f"        {line}" for line in body),
            f"    T.copy({total}, {out.name}[{self.block_place()}, :, :])",
        ]  # fmt: skip

    def between_them(
        self, warps: int, turns: int, one: tuple[str, str], other: tuple[str, str], tile: tuple[int, int, str]
    ) -> list[str]:
        rows, columns, dtype = tile
        slot, free, k = self.name("u"), self.name("u"), self.name("k")
        value = self.pick(
            (
                f"-{one[0]}[{slot}, i, j]",
                f"{one[0]}[{slot}, {rows - 1} - i, j]",
                f'{one[0]}[{slot}, i, j] * T.cast(2, "{dtype}")',
            )
        )
        work = [f"for i, j in T.Parallel({rows}, {columns}):", f"    {other[0]}[{free}, i, j] = {value}"]
        body = [
            f"{slot} = {one[1]}.receive({k})", f"{free} = {other[1]}.acquire({k})", *work, f"{one[1]}.release({k})", f"{other[1]}.publish({k})",
        ]  # fmt: skip
        return [
            f'with T.role("between", warps={warps}):',
            f"    for {k} in T.serial({turns}):",
            *(f"        {line}" for line in body),
        ]

    # Grids -------------------------------------------------------------------------------------------

    def met(self) -> None:
        """All blocks leave a tile in global memory, meet, and read what another one left."""
        tiles = [one for one in self.usable() if not ALL[one.dtype].is_packed and len(one.shape) <= 2]
        if not tiles or self.grid_y > 1 or self.special:
            return
        tile, left = self.pick(tiles), self.name("W")
        whole = (self.blocks, *tile.shape)
        here, there = (
            f"{left}[{block}, {', '.join(':' for _ in tile.shape)}]" for block in ("bx", f"(bx + 1) % {self.blocks}")
        )
        self.emit(f'{left} = T.alloc_global({whole}, "{tile.dtype}")', f"T.copy({tile.name}, {here})", "T.sync_grid()")
        back = self.new_tile(tile.shape, tile.dtype)
        self.emit(f"T.copy({there}, {back.name})")
        self.wrote(back, tile.range)
        self.feature("hand", "met")

    def grouped_tiles(self) -> None:
        """Blocks that stay for many tiles of a domain, some rows of it together."""
        y, x, domain = self.name("k"), self.name("k"), [self.pick((1, 3, 5)), self.pick((2, 3))]
        out = self.tensor((*domain, 8), "int32", (0, 1))
        wave, index = (self.blocks, "bx") if self.grid_y == 1 else (1, "0")
        self.emit(f"for {y}, {x} in T.Persistent({domain}, {wave}, {index}, group_size={self.pick((1, 2, 4))}):")
        self.emit("    for i in T.Parallel(8):", f"        {out.name}[{y}, {x}, i] = {y} * 8 + {x} + i")
        self.feature("hand", "grouped tiles")

    # Products ----------------------------------------------------------------------------------------

    def scaled_product(self) -> None:
        """A product whose columns have scales, and whose rows a shift before them; or with sums that leave the matrix unit early."""
        dtype = self.pick(("float16", "bfloat16", "int8"))
        m, n, k = self.pick((16, 32, 64)), self.pick((16, 32, 64)), self.pick((32, 64))
        a, b = self.operand(dtype, (m, k)), self.operand(dtype, (n, k))
        if a.range is None or b.range is None or max(map(abs, (*a.range, *b.range))) > 16 or a.holder is b.holder:
            return
        out = self.new_tile((m, n), "float32", "fragment")
        if out.holder.sums_in:
            return
        self.emit(f"T.clear({out.name})")
        words, bound = ["transpose_B=True"], k * max(map(abs, a.range)) * max(map(abs, b.range))
        scale = self.vector(n, "float32", 3)
        words.append(f"scale_B={scale}")
        if self.chance(0.5):
            words.append(f"shift={self.vector(m, self.pick(('float32', 'float16')), 4)}")
            bound += 4
        bound *= 3
        if bound > min(LIMIT, exact_range("float32")[1]):
            return
        self.emit(f"T.gemm({', '.join([a.name, b.name, out.name, *words])})")
        self.feature("hand", "scaled product", dtype, str(len(words)))
        self.wrote(out, (-bound, bound))

    def turned_product(self) -> None:
        """A product whose sums are added to the fragment every few elements of k."""
        self.product()
        if self.lines[-1].strip().startswith("T.gemm(") and "clear" not in self.lines[-1]:
            self.lines[-1] = self.lines[-1][:-1] + ", promote_every=16)"
            self.feature("hand", "promoted")

    def vector(self, length: int, dtype: str, most: int) -> str:
        """A shared row of small numbers, loaded."""
        source = self.tensor((length,), dtype, (0, most))
        tile = self.new_tile((length,), dtype, "shared")
        self.emit(f"T.copy({source.name}, {tile.name})")
        self.wrote(tile, (0, most))
        return tile.name
