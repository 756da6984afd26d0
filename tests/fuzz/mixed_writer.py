"""Programs in which features meet: any statement may stand in any context, and every one may have been written through a view before.

Tiles hold whole numbers whose range is known, so that every way to run a program gives the same bits.  A statement is one of the functions
at the end, which draws from what there is; a context (a loop, a pipeline, a condition, warps of their own, a macro) is a block of statements
and says what holds after it: tiles that were first written in it have no value behind it unless it surely ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from expression_writer import SIGNED, UNSIGNED, wraps
from mixed_operators import MixedOperators
from mixed_tiles import TURN, Context, MixedProgram, Tile, exact_range
from tile_programs import Param

from tilewright.ir.dtypes import ALL


class MixedWriter(MixedOperators):
    """Writes the program of a seed."""

    specialized = 0.08
    """How often a pipeline's author asks for warps that only load."""

    kernels_before = 0.1
    """How often another kernel comes before the program's own."""

    machines: tuple[str, ...] = ()

    # Whole programs --------------------------------------------------------------------------------

    def write(self) -> MixedProgram:
        self.roles = self.chance(0.15)
        self.threads = self.pick((256, 256, 384)) if self.roles else self.pick((32, 64, 96, 128, 128, 128, 256, 256))
        self.blocks = self.pick((1, 2, 2, 3))
        self.grid_y = self.pick((1, 1, 1, 2))
        self.special = self.pick(
            ("", "", "", "", "", "", ", persistent=True", ", specialize=True", ", specialize=False")
        )
        self.cluster = self.blocks == 2 and self.grid_y == 1 and self.chance(0.15)
        for _ in range(self.pick((0, 1, 1, 2))):
            size, value = f"m{len(self.dynamic)}", self.pick((0, 1, 2, 5, 8, 17, 33))
            self.dynamic.append((size, value))
            self.sizes.append(f'{size} = T.dynamic("{size}")')
            told = Param(f"D{size}", f'T.Tensor(({size},), "int8")', np.zeros(value, np.int8), tells=frozenset({size}))
            self.params.append(told)
        self.scalars = []
        for _ in range(self.pick((0, 1, 2))):
            scalar, value = self.name("n"), self.pick((0, 1, 2, 3, 7, -1))
            self.params.append(Param(scalar, "T.int32", value, True))
            self.scalars.append((scalar, -1, 7))
        self.flags = self.tensor((8,), "int32", (0, 1) if self.chance(0.5) else (0, 3))
        self.context = Context(indices=(*self.grid_indices(), *self.scalars))
        self.thread_name = ""
        if self.chance(0.4):
            self.thread_name = "tx"
            self.emit("tx = T.get_thread_binding()")
        self.start()
        before = self.kernel_before() if self.chance(self.kernels_before) else ()
        for _ in range(self.between(2, 4)):
            self.new_tile()
        self.statements(self.between(4, 9))
        self.leave()
        return MixedProgram(
            self.seed,
            tuple(self.sizes),
            tuple(self.params),
            tuple(self.outputs),
            self.kernel_line(),
            tuple(self.lines),
            machines=self.machines,
            features=frozenset(self.features),
            before=before,
        )

    def start(self) -> None:
        """What stands before all statements."""

    def grid_indices(self) -> tuple[tuple[str, int, int], ...]:
        both = (("bx", 0, self.blocks - 1), ("by", 0, self.grid_y - 1))
        return both if self.grid_y > 1 else both[:1]

    def kernel_line(self) -> str:
        grid = f"{self.blocks}, {self.grid_y}" if self.grid_y > 1 else f"{self.blocks}"
        names = "(bx, by)" if self.grid_y > 1 else "bx"
        more = ", cluster_dims=2" if self.cluster else self.special
        return f"with T.Kernel({grid}, threads={self.threads}{more}) as {names}:"

    def kernel_before(self) -> tuple[str, ...]:
        """A kernel of one block that makes a tensor which this one reads."""
        shape, dtype = (self.pick((5, 16, 33)), self.pick((16, 24))), self.pick(("float32", "float16", "int32"))
        source, made = self.tensor(shape, dtype, (-4, 4)), self.name("W")
        self.tiles.append(Tile(made, "global", shape, dtype, (-8, 8)))
        self.feature("kernel before")
        return (
            f'{made} = T.alloc_global({shape}, "{dtype}")',
            "with T.Kernel(1, threads=64) as bz:",
            f"    for a, b in T.Parallel{shape}:",
            f"        {made}[a, b] = {source.name}[a, b] * 2",
        )

    def leave(self) -> None:
        """Every tile that has a value goes to an output; tiles of roles went there already."""
        left = [
            tile for tile in self.tiles if tile.scope in ("shared", "fragment") and tile.range and tile.group is None
        ]
        for tile in left:
            if tile.base is not None and self.chance(0.7):
                continue
            self.output(tile)
        if not self.outputs and not left:
            self.emit(f"{self.result((1,), 'int32').name}[bx{', by' if self.grid_y > 1 else ''}, 0] = 1")

    def result(self, shape: tuple[int, ...], dtype: str) -> Tile:
        """An output tensor with a part for each block."""
        whole = (self.blocks, *((self.grid_y,) if self.grid_y > 1 else ()), *shape)
        if self.context.depth:  # which may not run: the caller's numbers stay
            return self.tensor(whole, dtype, (0, 0))
        name = self.name("O")
        self.outputs.append((name, repr(whole), dtype))
        return Tile(name, "global", whole, dtype)

    def block_place(self) -> str:
        return "bx, by" if self.grid_y > 1 else "bx"

    def output(self, tile: Tile) -> None:
        dtype = tile.dtype
        assert tile.range is not None
        if self.chance(0.3):
            fitting = [one for one in ("float32", "int32", "float16", "int64") if self.fits(tile.range, one)]
            dtype = self.pick(fitting) if fitting else dtype
        if ALL[dtype].is_packed and tile.shape[-1] * ALL[dtype].bits % 8:
            dtype = "int32"
        out = self.result(tile.shape, dtype)
        here = f"{out.name}[{self.block_place()}, {', '.join(':' for _ in tile.shape)}]"
        indices = [f"i{axis}" for axis in range(len(tile.shape))]
        if self.chance(0.6):
            self.emit(f"T.copy({tile.name}, {here})")
        else:
            self.emit(f"for {', '.join(indices)} in T.Parallel({', '.join(map(str, tile.shape))}):")
            self.emit(
                f"    {out.name}[{self.block_place()}, {', '.join(indices)}] = "
                f'T.cast({tile.name}[{", ".join(indices)}], "{dtype}")'
            )

    # Blocks of statements ------------------------------------------------------------------------------

    @contextmanager
    def inside(self, header: str, **changes: Any) -> Iterator[None]:
        """A block below a header.  What it alone gave a value has none behind it, unless it surely ran."""
        self.emit(header)
        outer = self.context
        known = {id(tile): (tile, tile.range) for tile in self.tiles}  # who is kept gives his place to none that comes
        count = len(self.lines)
        self.context = replace(outer, depth=outer.depth + 1, **changes)
        if self.context.loops != outer.loops:
            self.enter_loop()
        sure = self.context.sure
        yield
        if len(self.lines) == count:
            self.emit("T.evaluate(0)")
        if self.context.loops != outer.loops:
            for tile in self.tiles:
                if tile.sums_in == self.context.loops:
                    tile.sums_in = ()
        self.context = outer
        for tile in list(self.tiles):
            if id(tile) not in known:
                if not (self.declared_inside(tile, count)):
                    continue
                self.tiles.remove(tile)
            elif not sure:
                _, before = known[id(tile)]
                if before is None or tile.range is None:
                    tile.range = None
                else:
                    tile.range = min(before[0], tile.range[0]), max(before[1], tile.range[1])

    def enter_loop(self) -> None:
        """From here on tiles hold what any turn may leave in them; some fragments only add up."""
        for tile in self.tiles:
            if tile.range is None or tile.scope == "global":
                continue
            alone = tile.base is None and all(other.base is not tile for other in self.tiles)
            if not tile.sums_in and alone and tile.dtype in ("float32", "int32") and self.chance(0.4):
                tile.sums_in = self.context.loops
                continue
            low, high = exact_range(tile.dtype)
            tile.range = min(tile.range[0], max(low, -TURN)), max(tile.range[1], min(high, TURN))

    def sums(self, scopes: tuple[str, ...] = ("shared", "fragment")) -> list[Tile]:
        """Tiles that may be added to here."""
        found = [one for one in self.tiles if one.sums_in and one.sums_in == self.context.loops and one.scope in scopes]
        found = [one for one in found if one.group == self.context.group and one.range is not None]
        return found + [one for one in self.usable(scopes) if one.holder.made_in == self.context.loops]

    def declared_inside(self, tile: Tile, line: int) -> bool:
        return tile.scope != "global" and any(one.strip().startswith(f"{tile.name} = ") for one in self.lines[line:])

    def statements(self, count: int) -> None:
        for _ in range(count):
            self.statement()

    def statement(self, ways: list[tuple[float, Callable[[], None]]] | None = None) -> None:
        ways = ways or self.ways()
        weights = np.array([weight for weight, _ in ways], float)
        ways[int(self.random.choice(len(ways), p=weights / weights.sum()))][1]()

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        """The statements that may stand here, and how often they do."""
        deep = self.context.depth
        ways: list[tuple[float, Callable[[], None]]] = [
            (6, self.some_compute), (4, self.some_load), (3, self.some_move), (4, self.reduction), (2, self.running),
            (3, self.product), (2, self.some_view), (2, self.slice_fill), (2, self.atomic), (2, self.scratch),
            (2, self.through_tensor), (1, self.turned), (1, self.ring), (2, self.scalar_work), (1, self.extra_tile),
            (2, self.named), (2, self.retire), (2, self.ends_met),
        ]  # fmt: skip
        if deep < 3:
            ways += [(4, self.pipeline), (3, self.serial), (3, self.branch), (1, self.macro)]
        if deep == 0 and self.roles:
            ways += [(5, self.warpgroups)]
        if self.thread_name and self.context.group is None:
            ways += [(2, self.some_threads), (2, self.each_thread)]
        if not self.roles:
            ways += [(1, self.reducer)]
        return ways

    def extra_tile(self) -> None:
        if len(self.tiles) < 14:
            self.new_tile()

    # Numbers at the ends of their types -------------------------------------------------------------------

    def ends_met(self) -> None:
        """The least and greatest numbers of a type, and those next to nought, each with each by operators of whole numbers; what goes beyond a
        type has a meaning in those that wrap around."""
        dtype = self.pick((*SIGNED, *UNSIGNED))
        least, most = int(ALL[dtype].minimum), int(ALL[dtype].maximum)
        ends = np.array(
            [least, least + 1, *((-1, 0, 1) if least else (2, most // 2, 3)), 2, most - 1, most], ALL[dtype].numpy
        )
        names = []
        for axis in range(2):
            source = self.tensor((8, 8), dtype, (0, 1))
            order = self.random.permutation(8)
            self.params[-1] = replace(self.params[-1], value=ends[order][np.indices((8, 8))[axis]])
            names.append(source.name)
            if self.chance(0.6):
                names[-1] = self.name("s")
                scope = self.pick(("shared", "fragment"))
                self.emit(f'{names[-1]} = T.alloc_{scope}((8, 8), "{dtype}")', f"T.copy({source.name}, {names[-1]})")
        a, b = (f"{name}[i, j]" for name in names)
        some, bits = f'({b} | T.cast(1, "{dtype}"))', f'({b} & T.cast({ALL[dtype].bits - 1}, "{dtype}"))'
        safe = a if wraps(dtype) else f'T.max({a}, T.cast({least + 1}, "{dtype}"))'
        ways = [
            f"({safe} // {some})", f"({a} % {some})", f"T.truncdiv({safe}, {some})", f"T.truncmod({a}, {some})", f"({a} {self.pick('&|^')} {b})",
            f"T.{self.pick(('max', 'min'))}({a}, {b})", f"({a} >> {bits})", f"T.abs({safe})", f"T.popcount({a})",
            f'T.if_then_else({a} {self.pick(("<", "<=", "==", "!="))} {b}, {a}, T.cast(5, "{dtype}"))',
        ]  # fmt: skip
        if wraps(dtype):
            ways += [f"({a} {self.pick('+-*')} {b})", f"({a} << {bits})", f"(-{a})"]
        for _ in range(self.between(1, 3)):
            out = self.result((8, 8), dtype)
            self.emit(
                "for i, j in T.Parallel(8, 8):", f"    {out.name}[{self.block_place()}, i, j] = {self.pick(ways)}"
            )
        self.feature("ends met", dtype)

    # Scalars and threads --------------------------------------------------------------------------------

    def scalar_work(self) -> None:
        """A variable that counts, in a loop that may be left."""
        name, loop = self.name("c"), self.name("k")
        self.emit(f'{name} = T.alloc_var("int32", init={self.between(-1, 2)})')
        turns = self.pick((0, 1, 3, 5))
        if self.chance(0.25):
            self.emit(
                f"while {name} < {self.between(0, 6)}:", f"    {name} = {name} + 1 + {self.flags.name}[{name} & 7]"
            )
        header = f"for {loop} in T.serial({self.count(turns)}):"
        with self.inside(header, indices=(*self.context.indices, (loop, 0, 5)), sure=False):
            self.emit(f"{name} = {name} + {self.flags.name}[{loop} % 8] + {self.pick((0, 1))}")
            if self.chance(0.5):
                self.emit(f"if {name} > {self.between(1, 5)}:", "    " + self.pick(("break", "T.loop_break()")))
        self.context = replace(self.context, indices=(*self.context.indices, (name, -1, 30)))
        self.feature("variable")

    def count(self, turns: int) -> str:
        """A number of turns, known or found out at launch."""
        sizes = [size for size, value in self.dynamic if value <= 8]
        if sizes and self.chance(0.3):
            return f"T.min({self.pick(sizes)}, {turns})"
        if self.scalars and self.chance(0.2):
            return f"T.max(0, T.min({self.pick(self.scalars)[0]}, {turns}))"
        return str(turns)

    def some_threads(self) -> None:
        tiles = self.usable(("shared",))
        if not tiles or self.roles:
            return
        limit = self.pick((1, 32, self.threads // 2, 5))
        test = self.pick(
            (f"tx < {limit}", f"tx >= {self.threads - limit}", f"tx // 32 == {self.between(0, self.threads // 32 - 1)}")
        )
        with self.inside(f"if {test}:"):
            known = self.tiles
            self.tiles = [one for one in self.tiles if one.scope in ("shared", "global")]
            ranges = {id(one): (one, one.range) for one in self.tiles}
            self.compute(self.pick(tiles))
            self.tiles = known
            for one in known:
                if ranges.get(id(one), (one, one.range))[1] is None:
                    one.range = None
        self.feature("some threads")

    def each_thread(self) -> None:
        """A number of each thread, by way of its own array and its warp."""
        if self.context.depth or self.roles:
            return
        out, own = self.result((self.threads,), "int32"), self.name("x")
        source = self.tensor((self.threads,), "int32", (-4, 4))
        self.emit(f'{own} = T.alloc_local((3,), "int32")')
        self.emit(f"{own}[0] = {source.name}[tx]", f"{own}[1] = {own}[0] * {self.flags.name}[tx % 8]")
        value = self.pick((f"{own}[0] + {own}[1]", f"T.warp_reduce_sum({own}[1])", f"T.shfl_xor({own}[0], {self.pick((1, 5, 16))})",
                           f"T.warp_reduce_max({own}[0]) + {own}[1]"))  # fmt: skip
        self.emit(f"{own}[2] = {value}")
        if self.chance(0.4):
            self.emit(f"if {own}[2] > 0:", f"    {own}[2] = {own}[2] - {self.index(0, 5)}")
        self.emit(f"{out.name}[{self.block_place()}, tx] = {own}[2]")
        self.feature("each thread")

    def reducer(self) -> None:
        if self.context.depth:
            return
        rows, columns = self.pick((8, 16, 33)), self.pick((16, 24))
        kind = self.pick(("sum", "max", "min"))
        name, out = self.name("r"), self.new_tile((rows,), self.pick(("int32", "float32")), "fragment")
        self.emit(f'{name} = T.alloc_reducer(({rows},), "{out.dtype}", op="{kind}")', f"T.reducer_init({name})")
        for _ in range(self.pick((1, 2))):
            indices = self.loop((rows, columns))
            text, *_ = self.term(indices, out, "int32", 1)
            self.emit(f'    T.reducer_update({name}[i], T.cast(T.clamp({text}, -4, 4), "{out.dtype}"))')
        self.emit(f"T.finalize_reducer({name}, {out.name})")
        self.wrote(out, (-4 * columns * 2, 4 * columns * 2))
        self.feature("reducer")

    # Contexts ----------------------------------------------------------------------------------------

    def pipeline(self) -> None:
        loop, turns = self.name("k"), self.pick((1, 2, 3, 4))
        stages = self.between(0, 3)
        count = self.count(turns)
        more = ", specialize=True" if self.chance(self.specialized) else ""
        tiles = [self.new_tile(scope="shared") for _ in range(self.pick((1, 1, 2)))]
        sure = count == str(turns)
        self.feature("pipeline", str(stages))
        indices = (*self.context.indices, (loop, 0, turns - 1))
        header = f"for {loop} in T.Pipelined({count}, num_stages={stages}{more}):"
        with self.inside(
            header,
            indices=indices,
            sure=sure,
            turns=self.context.turns * turns,
            pipelined=True,
            loops=(*self.context.loops, loop),
        ):
            for tile in tiles:
                if self.chance(0.2):
                    with self.inside(f"if {self.condition()}:", sure=False):
                        self.load(tile)
                else:
                    self.load(tile)
            self.growing(self.between(1, 3))
            if self.chance(0.25):
                self.serial(leaves=True)

    def growing(self, count: int) -> None:
        """Statements that run several times: what they may make of tiles is settled by assuming the worst before them."""
        self.statements(count)

    def serial(self, leaves: bool = False) -> None:
        """A loop whose turns follow one another, some of which may leave it or go on with the next."""
        loop, turns = self.name("k"), self.pick((0, 1, 2, 3))
        form = self.pick(("T.serial({})", "range({})", "T.unroll({})", "T.serial(0, {}, 2)"))
        count = self.count(turns) if "unroll" not in form else str(turns)
        leaves = (leaves or self.chance(0.35)) and "unroll" not in form
        sure = turns > 0 and count == str(turns) and not leaves
        indices = (*self.context.indices, (loop, 0, max(0, turns - 1)))
        with self.inside(
            f"for {loop} in {form.format(count)}:",
            indices=indices,
            sure=sure,
            turns=self.context.turns * max(1, turns),
            loops=(*self.context.loops, loop),
        ):
            self.statements(1)
            if leaves:
                with self.inside(f"if {self.condition()}:", sure=False):
                    if self.chance(0.3):
                        self.statements(1)
                    self.emit(self.pick(("break", "T.loop_break()", "continue")))
                self.feature("break")
            self.statements(self.between(0, 2))

    def branch(self) -> None:
        with self.inside(f"if {self.condition()}:", sure=False):
            self.statements(self.between(1, 2))
        if self.chance(0.4):
            with self.inside("else:", sure=False):
                self.statements(self.between(1, 2))

    def macro(self) -> None:
        """A helper whose tiles are arguments, called for one tile or two."""
        tiles = [one for one in self.usable() if one.dtype in ("float32", "int32", "float16") and one.base is None]
        tiles = [one for one in tiles if self.takes(one, (-TURN, TURN))]
        if not tiles:
            return
        tile = self.pick(tiles)
        name = self.name("g")
        body = ", ".join("ijlq"[: len(tile.shape)])
        extents = ", ".join(map(str, tile.shape))
        self.sizes += [
            "@T.macro",
            f"def {name}(a, b, u):",
            f'    t = T.alloc_fragment(({extents},), "{tile.dtype}")',
            f"    for {body} in T.Parallel({extents}):",
            f'        t[{body}] = T.cast(T.clamp(a[{body}], T.cast(-8, "{tile.dtype}"), T.cast(8, "{tile.dtype}")), "{tile.dtype}")',
            "    if u > 0:",
            f"        for {body} in T.Parallel({extents}):",
            f"            t[{body}] = t[{body}] + b[{body}] * 0 + 1",
            "    T.copy(t, b)",
        ]
        self.emit(f"{name}({tile.name}, {tile.name}, {self.pick(self.context.indices)[0]})")
        self.wrote(tile, (-8, 9))
        self.feature("macro")

    def warpgroups(self) -> None:
        """Warpgroups that each do something of their own at once, on tiles of their own and on those that were full before."""
        parts = list(range(self.threads // 128))
        for part in parts:
            with self.inside(f"with T.ws({part}):", group=part, sure=False):
                shared = [
                    one for one in self.tiles if one.group is None and one.scope == "shared" and one.range is not None
                ]
                mine = self.new_tile(scope=self.pick(("shared", "fragment")))
                if shared and mine.range is not None and self.chance(0.6):
                    other = self.pick(shared)
                    indices = self.loop(mine.shape)
                    at = self.element(other, indices, None)
                    low, high = exact_range(mine.dtype)
                    low, high = max(low, -4), min(high, 4)
                    self.emit(
                        f"    {mine.name}[{', '.join(n for n, _ in indices)}] = "
                        f'T.cast(T.clamp(T.cast({other.name}[{at}], "float32"), T.cast({low}, "float32"), T.cast({high}, "float32")), "{mine.dtype}")'
                    )
                    self.wrote(mine, (low, high))
                alone = [one for one in shared if all(other.holder is not one or other is one for other in self.tiles)]
                if alone and self.chance(0.4):  # handed on: later groups read what this one wrote
                    other = self.pick(alone)
                    indices = self.loop(other.shape)
                    place = ", ".join(name for name, _ in indices)
                    most = min(3, exact_range(other.dtype)[1])
                    self.emit(
                        f'    {other.name}[{place}] = T.cast(({indices[0][0]} + {part}) % {most + 1}, "{other.dtype}")'
                    )
                    self.wrote(other, (0, most))
                self.statements(self.between(1, 3))
                for tile in [
                    one for one in self.tiles if one.group == part and one.range is not None and one.base is None
                ]:
                    self.output(tile)
        self.feature("warpgroups")
