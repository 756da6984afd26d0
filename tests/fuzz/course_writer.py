"""Programs whose course is the author's: loops that end when something holds, run backwards, begin anywhere or are left; blocks that return
before the end; tiles of the grid in one loop; several kernels, each of which reads what those before it made.

Whatever stands anywhere stands in these as well, and products that other families only have by themselves: sparse ones, ones with scales,
ones of codes that were taken apart; and what none else says (`seldom_writer.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from mixed_tiles import LIMIT, Tile
from own_writer import OwnWriter
from seldom_writer import SeldomStatements
from swarm_writer import SwarmWriter

from tilewright.formats.sparse import compress, prune
from tilewright.ir.dtypes import ALL

TURNS = 4
"""Turns that a loop without a count may take."""


class Courses(SeldomStatements):
    """What is added to the statements of another family."""

    kernels_before = 0.35
    parted_by = ""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.gone = False
        self.results: list[Tile] = []

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        ways = super().ways()
        if self.parted_by or self.context.group is not None:
            return ways
        part = sum(weight for weight, _ in ways) / 14
        more = [self.sparse_product, self.scaled_product, self.taken_apart, self.scattered]
        if self.context.depth < 3:
            more += [
                self.until,
                self.until,
                self.stepped,
                self.pipelined_from,
                self.over_the_grid,
                self.sparse_pipeline,
                self.passed_by,
                self.passed_by,
            ]
        if self.thread_name and self.threads >= 64 and not self.roles:
            more += [self.handed_on] * 2
        if not self.context.depth and not self.gone and self.lines:
            more += [self.returns]
        seldom = self.seldom()
        return [*ways, *((part, way) for way in more), *((12 * part / len(seldom), way) for way in seldom)]

    # Several kernels -----------------------------------------------------------------------------------

    def kernel_before(self) -> tuple[str, ...]:
        """One kernel or two, of which every output may be read by those behind it."""
        lines: list[str] = []
        for _ in range(self.pick((1, 1, 2))):
            other = type(self)(int(self.random.integers(1 << 31)))
            other.kernels_before = 0.0
            other.names, other.params, other.sizes, other.dynamic = self.names, self.params, self.sizes, self.dynamic
            other.tiles = list(self.tiles)
            program = other.write()
            lines += [f'{name} = T.alloc_global({shape}, "{dtype}")' for name, shape, dtype in program.outputs]
            lines += [program.kernel, *(f"    {line}" for line in program.body)]
            made = {name for name, _, _ in program.outputs}
            self.tiles += [one for one in other.results if one.name in made and one.range is not None]
            self.features |= other.features
        self.feature("course", "kernels")
        return tuple(lines)

    def output(self, tile: Tile) -> None:
        before = len(self.results)
        super().output(tile)
        for made in self.results[before:]:
            made.range = tile.range

    def result(self, shape: tuple[int, ...], dtype: str) -> Tile:
        """Of blocks that may have returned the caller's numbers stay."""
        depth = self.context.depth
        self.context = replace(self.context, depth=max(depth, int(self.gone)))
        made = super().result(shape, dtype)
        self.context = replace(self.context, depth=depth)
        self.results.append(made)
        return made

    def returns(self) -> None:
        """A block goes before the end."""
        self.emit(f"if {self.plain()}:", "    T.thread_return()")
        self.gone = True
        self.feature("course", "returns")

    # Loops -----------------------------------------------------------------------------------------------

    def until(self) -> None:
        """A loop without a count, whose end its own turns bring about."""
        name, first = self.name("c"), self.between(0, 2)
        self.emit(f'{name} = T.alloc_var("int32", init={first})')
        test = self.pick(
            (f"{name} < {self.index(0, TURNS)}", f"{name} < {self.index(0, TURNS)} and {self.bounded(name)}")
        )
        step = self.pick(("1", "1", "2", f"1 + {self.flags.name}[{name} & 7] % 2"))
        early = self.chance(0.4)
        with self.inside(
            f"while {test}:",
            indices=(*self.context.indices, (name, 0, TURNS + 1)),
            sure=False,
            turns=self.context.turns * TURNS,
            loops=(*self.context.loops, name),
        ):
            if early:
                self.emit(f"{name} = {name} + {step}")
            self.growing(self.between(1, 2))
            if self.chance(0.3):
                with self.inside(f"if {self.condition()}:", sure=False):
                    self.emit(self.pick(("break", "T.loop_break()", *(["continue"] if early else []))))
            self.statements(self.between(0, 1))
            if not early:
                self.emit(f"{name} = {name} + {step}")
        self.context = replace(self.context, indices=(*self.context.indices, (name, 0, TURNS + 1)))
        self.feature("course", "until", str(self.context.pipelined))

    def bounded(self, name: str) -> str:
        return self.pick((f"{self.flags.name}[{name} & 7] < {self.between(1, 3)}", f"{name} != {self.between(0, 3)}"))

    def stepped(self) -> None:
        """A loop from anywhere, by any step, down as well as up."""
        loop, turns = self.name("k"), self.pick((1, 2, 3))
        count = self.count(turns)
        first = self.between(1, 3)
        form, low, high = self.pick(
            (
                (f"{first}, {count} + {first}", first, first + turns - 1),
                (f"{count} - 1, -1, -1", 0, turns - 1),
                (f"{first}, {count} * 3 + {first}, 3", first, first + 3 * (turns - 1)),
                (f"{count} * 2, 0, -2", 2, 2 * turns),
                (f"{first + turns}, {first}, -1", first + 1, first + turns),
            )
        )
        if self.chance(0.2):  # a step that only the program knows: up, down, or none
            flag = f"{self.flags.name}[{self.between(0, 7)}]"
            step = self.pick((f"1 - 2 * {flag}", f"2 * {flag}", f"3 - {flag}", f"{flag} - 1"))
            form, low, high = f"{self.pick((f'0, {turns}', f'{turns - 1}, -1'))}, {step}", 0, turns - 1
            count = form  # as any loop of which nobody knows the turns
        word = self.pick(("T.serial", "range", "T.Serial", *(["T.unroll"] if count == str(turns) else [])))
        with self.inside(
            f"for {loop} in {word}({form}):",
            indices=(*self.context.indices, (loop, low, high)),
            sure=False,
            turns=self.context.turns * turns,
            loops=(*self.context.loops, loop),
        ):
            self.growing(self.between(1, 3))
        self.feature("course", "stepped", word)

    def pipelined_from(self) -> None:
        """A pipelined loop that does not begin at nought, whose bounds may be known only at launch and may cross."""
        loop, turns, first = self.name("k"), self.between(1, 4), self.between(1, 3)
        begin = self.pick((str(first), self.index(0, first)))
        bounds = f"{begin}, {self.pick((str(first + turns), f'{self.count(turns)} + {first}', self.index(0, first + turns)))}"
        tiles = [self.new_tile(scope="shared") for _ in range(self.pick((1, 2)))]
        with self.inside(
            f"for {loop} in T.Pipelined({bounds}, num_stages={self.between(0, 3)}):",
            indices=(*self.context.indices, (loop, 0, first + turns - 1)),
            sure=False,
            turns=self.context.turns * (first + turns),
            pipelined=True,
            loops=(*self.context.loops, loop),
        ):
            for tile in tiles:
                self.load(tile)
            self.growing(self.between(1, 3))
        self.feature("course", "pipelined from")

    def over_the_grid(self) -> None:
        """Blocks that stay for many tiles of a domain, with pipelines and everything else in the loop over them."""
        y, x = self.name("k"), self.name("k")
        domain = [self.pick((1, 2, 3)), self.pick((1, 2, 3))]
        wave, index = (self.blocks, "bx") if self.grid_y == 1 else (1, "0")
        with self.inside(
            f"for {y}, {x} in T.Persistent({domain}, {wave}, {index}):",
            indices=(*self.context.indices, (y, 0, domain[0] - 1), (x, 0, domain[1] - 1)),
            sure=False,
            turns=self.context.turns * domain[0] * domain[1],
            loops=(*self.context.loops, y),
        ):
            self.pick((self.pipeline, self.product, self.reduction, lambda: self.growing(2)))()
            self.growing(1)
        self.feature("course", "over the grid")

    def handed_on(self) -> None:
        """Some warps leave numbers in a tensor or a tile, and others read them in the next condition: element by element, in loops over
        all of it, or by copies, once or in every turn of a loop."""
        dtype, size, warps = self.pick(("int32", "float32", "float16")), self.pick((32, 64, 100)), self.threads // 32
        cut = self.between(1, warps - 1)
        tests = [f"tx < {32 * cut}", f"tx >= {32 * cut}"]
        if self.chance(0.3) and warps > 2:
            tests = [f"tx // 32 == {one}" for one in self.random.permutation(warps)[:2]]
        elif self.chance(0.5):
            tests.reverse()
        if self.chance(0.7):
            name = self.tensor((self.blocks, self.grid_y, size), dtype, (-4, 4)).name
            place, by = name + "[bx, {}, {}]", "by" if self.grid_y > 1 else "0"
        else:
            name, place, by = self.name("s"), "", ""
            self.emit(f'{name} = T.alloc_shared(({size},), "{dtype}")', f"T.fill({name}, 2)")
        at = place.format(by, "{}") if place else name + "[{}]"
        whole = at.format(f"0 : {size}")
        loop, turns = self.name("k"), self.pick((1, 1, 2, 3))
        header = f"for {loop} in T.serial({turns}):" if turns > 1 else f"if {self.plain()} or True:"
        changes = (
            {"indices": (*self.context.indices, (loop, 0, turns - 1)), "loops": (*self.context.loops, loop)}
            if turns > 1
            else {}
        )
        with self.inside(header, **changes):
            number = f"i + {loop}" if turns > 1 else "i * 2"
            into = self.result((size,), dtype).name
            there = f"{into}[{self.block_place()}, {{}}]"
            brought = self.given(self.random.integers(-9, 9, (turns, size)), dtype)
            source = f"{brought}[{loop if turns > 1 else 0}, {{}}]"
            writes = [
                (f"for i in T.Parallel({size}):", f'    {at.format("i")} = T.cast({number}, "{dtype}")'),
                (f"T.copy({source.format(f'0 : {size}')}, {whole})",),
                (f"T.fill({whole}, {self.between(-3, 3)})",),
            ]
            element = f'{at.format(f"tx % {size}")} = T.cast({number.replace("i", f"tx % {size}", 1)}, "{dtype}")'
            writes += [(element,)] * 2 if ("//" in tests[0] and size >= 32) or size >= self.threads else []
            reads = [
                (f"for i in T.Parallel({size}):", f"    {there.format('i')} = {at.format(f'{size - 1} - i')}"),
                (f"T.copy({whole}, {there.format(':')})",),
            ]
            for test, lines in zip(tests, (self.pick(writes), self.pick(reads)), strict=True):
                more = self.counted() if self.chance(0.3) else ()
                self.emit(f"if {test}:", *(f"    {line}" for line in (*lines, *more)))
        self.feature("course", "handed on", "tensor" if place else "tile", str(turns > 1))

    def counted(self) -> tuple[str, ...]:
        """A loop that may be left, with atomics that nobody waits for."""
        counts = self.tensor((self.blocks, self.grid_y, 8), "int32", (0, 2)).name
        loop, place = self.name("k"), f"{counts}[bx, {'by' if self.grid_y > 1 else '0'}, i]"
        return (
            f"for {loop} in T.serial({self.between(2, 5)}):",
            "    for i in T.Parallel(8):",
            f"        T.atomic_{self.pick(('add', 'max', 'min'))}({place}, {loop} + 1)",
            f"    if {loop} >= {self.flags.name}[{self.between(0, 7)}]:",
            f"        {self.pick(('break', 'T.loop_break()'))}",
        )

    def plain(self) -> str:
        while "_of(" in (said := self.condition()):
            pass
        return said

    def scattered(self) -> None:
        """Every row of a tile goes to a row that a tensor names, of a tensor or of another tile."""
        tiles = [one for one in self.usable() if len(one.shape) == 2 and not ALL[one.dtype].is_packed]
        if not tiles:
            return
        tile = self.pick(tiles)
        assert tile.range is not None
        if tile.dtype in ("int32", "float32") and max(map(abs, tile.range)) < 1000 and self.chance(0.3):
            self.summed_by_number(tile)
            return
        rows = self.given(self.random.permutation(tile.shape[0]), "int32")
        into, lead = (self.new_tile(tile.shape, tile.dtype, "shared"), "") if self.chance(0.4) else (None, "")
        if into is None:
            into, lead = self.result(tile.shape, tile.dtype), f"{self.block_place()}, "
        elif into.holder.sums_in or into.scope != "shared" or not self.takes(into, tile.range):
            return
        row = f"{rows}[i]"
        self.emit(f"for i, j in T.Parallel({tile.shape[0]}, {tile.shape[1]}):")
        if self.chance(0.4):
            row = self.name("y")
            self.emit(f"    {row} = {rows}[i]")
        self.emit(f"    {into.name}[{lead}{row}, j] = {tile.name}[i, j]")
        if into.scope == "shared":
            self.wrote(into, tile.range)
        self.feature("course", "scattered", tile.scope, into.scope)

    def summed_by_number(self, tile: Tile) -> None:
        """Every row of a tile is added to one that a tensor names: to some rows several."""
        into = self.tensor((self.blocks, *((self.grid_y,) if self.grid_y > 1 else ()), *tile.shape), tile.dtype, (0, 2))
        rows = self.given(self.random.integers(0, tile.shape[0], tile.shape[0]), "int32")
        sign = self.pick(("+", "-"))
        self.emit(
            f"for i, j in T.Parallel({tile.shape[0]}, {tile.shape[1]}):",
            f"    {into.name}[{self.block_place()}, {rows}[i], j] {sign}= {tile.name}[i, j]",
        )
        self.feature("course", "summed by number", tile.scope, sign)

    def passed_by(self) -> None:
        """Threads hand values on before a jump and behind it: who jumps passes by what stands behind."""
        size, turns, loop = self.pick((32, 64, 100)), self.between(2, 5), self.name("k")
        tiles = [self.name("s") for _ in range(2)]
        sums = Tile(self.name("f"), "fragment", (size,), "int32", (0, 13 * turns), made_in=self.context.loops)
        for tile in tiles:
            self.emit(f'{tile} = T.alloc_shared(({size},), "int32")')
        self.shared_bytes += 8 * size
        self.emit(f'{sums.name} = T.alloc_fragment(({size},), "int32")', f"T.clear({sums.name})")
        exchanged = [
            f"for i in T.Parallel({size}):",
            f"    {sums.name}[i] = {sums.name}[i] + {tiles[0]}[{size - 1} - i] % 9",
        ]
        before = self.chance(0.5)
        with self.inside(
            f"for {loop} in T.serial({turns}):",
            indices=(*self.context.indices, (loop, 0, turns - 1)),
            turns=self.context.turns * turns,
            loops=(*self.context.loops, loop),
        ):
            self.emit(
                f"for i in T.Parallel({size}):", f"    {tiles[0]}[i] = i + {loop}", *(exchanged if before else [])
            )
            self.emit(f"if {self.plain()}:", *(f"    {line}" for line in ([] if before else exchanged)))
            self.emit(f"    {self.pick(('continue', 'continue', 'break'))}", f"T.copy({sums.name}, {tiles[1]})")
            self.emit(*(line.replace(tiles[0], tiles[1]).replace("% 9", "% 5") for line in exchanged))
        self.tiles.append(sums)
        self.feature("course", "passed by", str(before))

    # Products ----------------------------------------------------------------------------------------------

    def sums_for(self, shape: tuple[int, int], dtype: str, bound: int) -> Tile | None:
        """A fragment that a product of a bound may be added to."""
        found = [one for one in self.sums(("fragment",)) if one.shape == shape and one.dtype == dtype]
        out = self.pick(found) if found and self.chance(0.6) else self.new_tile(shape, dtype, "fragment")
        if out.range is None:
            self.emit(f"T.clear({out.name})")
            self.wrote(out, (0, 0))
        assert out.range is not None
        new = max(map(abs, out.range)) + bound * (self.context.turns if out.sums_in else 1)
        if new > LIMIT or (not out.sums_in and not self.takes(out, (-new, new))):
            return None
        self.wrote(out, (-new, new))
        return out

    def brought(self, values: np.ndarray, dtype: str) -> str:
        """A shared tile with one of some matrices."""
        tile = self.name("s")
        self.emit(f'{tile} = T.alloc_shared({values.shape[1:]}, "{dtype}")')
        self.emit(f"T.copy({self.given(values, dtype)}[{self.index(0, len(values) - 1)}, 0, 0], {tile})")
        return tile

    def sparse_product(self) -> None:
        """Two of every four neighbours along k are nought, and left out."""
        dtype = self.pick(("float16", "float16", "bfloat16", "int8"))
        m, n, k = (
            self.pick((16, 32, 64, 64)),
            self.pick((8, 16, 32)),
            64 if dtype == "int8" else self.pick((32, 64, 64)),
        )
        right = dtype == "int8" or self.chance(0.5)
        b = self.operand(dtype, (n, k) if right else (k, n))
        if b.range is None or b.scope != "shared":
            return
        out = self.sums_for((m, n), "int32" if dtype == "int8" else "float32", k * max(map(abs, b.range)))
        if out is None:
            return
        count = self.pick((1, 2))
        dense = prune(self.random.integers(-2, 3, (count * m, k))).astype(ALL[dtype].numpy)
        kept, places = compress(dense)
        a, e = (
            self.brought(kept.reshape(count, m, k // 2), dtype),
            self.brought(places.reshape(count, m, k // 8), "uint8"),
        )
        self.emit(f"T.gemm_sp({a}, {e}, {b.name}, {out.name}, transpose_B={right})")
        self.feature("course", "sparse product", dtype)

    def sparse_pipeline(self) -> None:
        """A loop that brings both operands of a sparse product in every turn, an odd number of times as well as an even one."""
        dtype, loop, turns = self.pick(("float16", "bfloat16")), self.name("k"), self.between(1, 5)
        m, n, k = 64, self.pick((16, 32)), 64
        out = self.sums_for((m, n), "float32", 2 * 2 * k * turns)
        if out is None:
            return
        dense = prune(self.random.integers(-2, 3, (turns * m, k))).astype(ALL[dtype].numpy)
        kept, places = compress(dense)
        tensors = [
            (kept.reshape(turns, m, k // 2), dtype), (places.reshape(turns, m, k // 8), "uint8"),
            (self.random.integers(-2, 3, (turns, k, n)), dtype),
        ]  # fmt: skip
        tiles = []
        for values, kind in tensors:
            tiles.append(self.name("s"))
            self.emit(f'{tiles[-1]} = T.alloc_shared({values.shape[1:]}, "{kind}")')
        with self.inside(
            f"for {loop} in T.Pipelined({turns}, num_stages={self.between(1, 4)}):",
            indices=(*self.context.indices, (loop, 0, turns - 1)),
            turns=self.context.turns * turns,
            pipelined=True,
            loops=(*self.context.loops, loop),
        ):
            for tile, (values, kind) in zip(tiles, tensors, strict=True):
                self.emit(f"T.copy({self.given(values, kind)}[{loop}, 0, 0], {tile})")
            self.emit(f"T.gemm_sp({', '.join(tiles)}, {out.name})")
            if self.chance(0.3):
                self.statements(1)
        self.feature("course", "sparse pipeline", str(turns % 2))

    def scaled_product(self) -> None:
        """8-bit floats with a scale for all, for each line, or for each of some columns of k."""
        dtype = self.pick(("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2"))
        m, n, k = self.pick((16, 64)), self.pick((16, 32)), self.pick((32, 64))
        right = self.chance(0.6)
        a, b = self.operand(dtype, (m, k)), self.operand(dtype, (n, k) if right else (k, n))
        if a.range is None or b.range is None or a.holder is b.holder:
            return
        out = self.sums_for((m, n), "float32", 16 * k * max(map(abs, a.range)) * max(map(abs, b.range)))
        if out is None or out.holder in (a.holder, b.holder):
            return
        scales = []
        for lines in (m, n):
            kind = self.pick(("one", "lines", "groups"))
            shape = {"one": (1,), "lines": (lines,), "groups": (lines, 2)}[kind]
            name = self.given(np.exp2(self.random.integers(0, 3, shape)), self.pick(("float32", "float16")))
            scales.append(name if kind == "one" else f"{name}[0:{lines}{', 0:2' if kind == 'groups' else ''}]")
        more = ", transpose_B=True" if right else ""
        self.emit(f"T.fp8_scaled_matmul({a.name}, {scales[0]}, {b.name}, {scales[1]}, {out.name}{more})")
        self.feature("course", "scaled product", dtype)

    def taken_apart(self) -> None:
        """Codes of a few bits become numbers of a wider type, with which a product or any other statement may go on."""
        codes = self.pick(("int4", "uint4", "int2", "uint2", "uint1", "int8", "uint8"))
        source = self.new_tile((self.pick((16, 32)), self.pick((32, 64))), codes, "shared")
        if source.range is None or source.scope != "shared" or source.dtype != codes:
            return
        to = self.new_tile(source.shape, self.pick(("float16", "bfloat16", "float32", "int32")))
        if to.holder.sums_in or not self.takes(to, source.range):
            return
        self.emit(f"T.decode({source.name}, {to.name})")
        self.wrote(to, source.range)
        self.feature("course", "taken apart", codes)
        if to.dtype in ("float16", "bfloat16") and self.chance(0.6):
            self.product()


class CourseWriter(Courses, SwarmWriter):
    """Writes the program of a seed: statements over tiles."""


class OwnCourseWriter(Courses, OwnWriter):
    """Writes the program of a seed: threads have something of their own, too."""


def writer_of(seed: int) -> Courses:
    return (CourseWriter, CourseWriter, OwnCourseWriter)[seed % 3](seed)
