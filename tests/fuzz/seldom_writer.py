"""Statements that programs of other families do not have: places worked out in narrow types, in a tensor's own sizes, or by divisions of
negative numbers; tensors whose strides only a call tells; parts of tiles whose elements share bytes; operands of which types differ; any
float at all; products and folds of parts of tiles; vectors that lie backwards, apart, or off their alignment.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from element_writer import ElementPrograms
from expression_writer import SIGNED, UNSIGNED
from mixed_tiles import LIMIT, Tile
from tile_programs import Param, edges

from tilewright.ir.dtypes import ALL

PLACES = ("int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64", "int32")
"""Types of what an index is read from."""

SHARING = ("int4", "uint4", "int2", "uint2", "uint1", "float4_e2m1fn")
"""Types of which several elements share a byte."""

ANY_FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
              "float8_e4m3b11fnuz")  # fmt: skip


class SeldomStatements(ElementPrograms):
    """What is added to the statements of another family."""

    def seldom(self) -> list[Callable[[], None]]:
        return [
            self.placed_narrowly,
            self.put_narrowly,
            self.places_divided,
            self.strides_told,
            self.shared_bytes_moved,
            self.types_meet,
            self.any_floats,
            self.product_of_parts,
            self.folded_parts,
            self.lanes_apart,
            self.summed_in_turns,
            self.worked_in_parallel,
            self.told_by_itself,
            self.flattened,
        ]

    def readable(self) -> list[Tile]:
        """Tiles and tensors that may be read anywhere."""
        return [one for one in self.usable(("shared", "global")) if not ALL[one.dtype].is_packed and min(one.shape) > 0]

    # Places ------------------------------------------------------------------------------------------

    def narrow_place(self, extent: int, runs: int, inside: bool) -> str:
        """A place along a dimension, of numbers of some type for each `i` below `runs`, and what is worked out of them in it."""
        dtype = self.pick(PLACES)
        low, high = max(int(ALL[dtype].minimum), -(2**40)), min(int(ALL[dtype].maximum), 2**40)
        if inside or self.chance(0.5):
            values = self.random.integers(max(low, 0), min(high, max(extent, 2) * 2) + 1, runs)
        else:
            ends = [low, low + 1, -1, 0, 1, extent - 1, extent, high // 2, high // 2 + 1, high - 1, high]
            values = self.random.choice([one for one in ends if low <= one <= high], runs)
        name = self.given(values, dtype)
        text = f"{name}[i]"
        wraps = dtype not in ("int32", "int64")
        for _ in range(self.between(0, 2)):
            by = self.between(1, 9)
            ways = [f"({text} % {by})", f"({text} // {by})"]
            if wraps:
                ways += [f"({text} + {by})", f"({text} - {by})", f"({text} * {by})", f"({by} - {text})"]
            text = self.pick(ways)
        if inside:
            most = min(extent, int(ALL[dtype].maximum))
            return f"({text} % {most})"
        if self.chance(0.4):
            text = f"{text} + {self.pick(('j', 'i', self.pick(self.context.indices)[0], '8', '-1'))}"
        return text

    def placed_narrowly(self) -> None:
        """Elements are read where numbers of a narrow type say, worked out in that type."""
        tiles = self.readable()
        tile = (
            self.pick(tiles) if tiles and self.chance(0.7) else self.tensor((self.pick((8, 24)), 16), "int32", (-4, 4))
        )
        rows, columns = self.pick((8, 16, 33)), self.pick((4, 16, 24))
        out, place = self.stored((rows, columns), tile.dtype)
        at = self.between(0, len(tile.shape) - 1)
        axes = [
            self.narrow_place(extent, rows, tile.scope == "shared") if axis == at else self.pick((f"j % {extent}", self.index(0, extent - 1)))
            for axis, extent in enumerate(tile.shape)
        ]  # fmt: skip
        if tile.scope == "global" and len(tile.shape) > 1 and self.chance(0.3):  # by a copy of a row
            first = axes[at].replace("[i]", f"[{self.between(0, rows - 1)}]").replace("j", "0").replace(" i", " 0")
            run = self.between(1, tile.shape[-1])
            starts = [self.index(0, extent - 1) for extent in tile.shape]
            starts[at] = first
            into = self.name("s")
            self.emit(f'{into} = T.alloc_shared((4, {run}), "{tile.dtype}")')
            lead = ", ".join([*starts[:-2], ""]) if len(starts) > 2 else ""
            self.emit(f"T.copy({tile.name}[{lead}{starts[-2]}, {starts[-1]}], {into})")
            self.emit(f"for i, j in T.Parallel({rows}, {columns}):")
            self.emit(f"    {out}[{place}, i, j] = {into}[i % 4, j % {run}]")
        else:
            self.emit(f"for i, j in T.Parallel({rows}, {columns}):")
            self.emit(f"    {out}[{place}, i, j] = {tile.name}[{', '.join(axes)}]")
        self.feature("seldom", "placed narrowly", tile.scope)

    def put_narrowly(self) -> None:
        """Elements are written, or counted, where numbers of a narrow type say."""
        rows, dtype = (
            self.pick((8, 16, 40)),
            self.pick(("uint8", "int8", "uint16", "int16", "uint32", "int64", "uint64")),
        )
        order = self.given(self.random.permutation(rows), dtype)
        out = self.tensor((self.blocks, self.grid_y, rows, 8), "int32", (0, 0)).name
        by = "by" if self.grid_y > 1 else "0"
        value = self.pick(("i * 8 + j", "i - j"))
        text = f"{order}[i]"
        if dtype in ("uint8", "int8"):  # by way of what it wraps to
            step = self.between(1, 9)
            text = f"({text} + {256 - step if dtype == 'uint8' else -step}) + {step}"
        self.emit(f"for i, j in T.Parallel({rows}, 8):")
        if self.chance(0.5):
            self.emit(f"    {out}[bx, {by}, {text}, j] = {value}")
        else:
            self.emit(f"    T.atomic_add({out}[bx, {by}, {text}, j], {value})")
        self.feature("seldom", "put narrowly", dtype)

    def divided(self, names: list[tuple[str, int]], depth: int) -> str:
        """A whole number of indices, by divisions of what may be negative."""
        if depth == 0:
            name, _ = self.pick(names)
            return self.pick((name, f"{name} * {self.pick((2, 3, 4, 8, -1, -4))}", f"({name} - {self.between(1, 9)})"))
        a = self.divided(names, depth - 1)
        kind = self.between(0, 7)
        divisor = self.pick((2, 3, 4, 8, 16, -2, -3, -4))
        sizes = [size for size, value in self.dynamic if value > 0]
        if kind <= 1:
            return f"({a} // {divisor})"
        if kind <= 3:
            return f"({a} % {divisor})"
        if kind == 4 and sizes:
            return f"({a} {self.pick(('//', '%'))} {self.pick(sizes)})"
        if kind == 5:
            return f"T.trunc{self.pick(('div', 'mod'))}({a}, {divisor})"
        if kind == 6:
            return f"({a} + {self.divided(names, depth - 1)})"
        return f"({a} * {self.pick((2, 4, 8))} + {self.divided(names, 0)})"

    def places_divided(self) -> None:
        """Elements are read where quotients and remainders of indices say, some of them negative, some by sizes that the call tells."""
        tiles = self.readable()
        tile = (
            self.pick(tiles) if tiles and self.chance(0.6) else self.tensor((self.pick((7, 24)), 16), "int32", (-4, 4))
        )
        extents = (self.pick((8, 16, 33)), self.pick((4, 16, 24)))
        out, place = self.stored(extents, tile.dtype)
        names = [("i", extents[0]), ("j", extents[1]), *[(name, 0) for name, _, _ in self.context.indices]]
        axes = []
        for extent in tile.shape:
            text = self.divided(names, self.between(1, 3))
            axes.append(text if tile.scope == "global" and self.chance(0.6) else f"({text} % {extent})")
        line = f"{out}[{place}, i, j] = "
        read = f"{tile.name}[{', '.join(axes)}]"
        self.emit(f"for i, j in T.Parallel{extents}:")
        if self.chance(0.3):
            test = f"{self.divided(names, 2)} {self.pick(('<', '>=', '=='))} {self.divided(names, 1)}"
            self.emit(f'    {line}T.if_then_else({test}, {read}, T.cast(2, "{tile.dtype}"))')
        else:
            self.emit(f"    {line}{read}")
        self.feature("seldom", "places divided", tile.scope)

    def strides_told(self) -> None:
        """A tensor whose strides the call tells, read by copies and by elements, and written."""
        dtype = self.pick(("int32", "float16", "int8", "float32", "float64"))
        rows, columns = self.pick((8, 16, 33)), self.pick((8, 16, 24, 7))
        name, stride = self.name("A"), self.name("z")
        spare = self.pick((0, 1, 3, 8))
        given = self.numbers((rows, columns + spare), dtype, (-4, 4))[:, :columns]
        self.sizes.append(f'{stride} = T.dynamic("{stride}")')
        unit = "1"
        if self.chance(0.3):
            given = np.ascontiguousarray(given.T).T
        strides = [one // given.itemsize for one in given.strides]
        told = f"({stride}, {unit})" if strides[1] == 1 else f"(1, {stride})"
        self.params.append(Param(name, f'T.StridedTensor(({rows}, {columns}), {told}, "{dtype}")', given))
        tile = self.new_tile((rows, columns), dtype)
        if tile.holder.sums_in or not self.takes(tile, (-4, 4)):
            return
        if self.chance(0.5):
            self.emit(f"T.copy({name}[{self.index(0, 3)}, {self.pick(('0', self.index(0, 3)))}], {tile.name})")
        else:
            indices = [one for one, _ in self.loop((rows, columns))]
            self.emit(f"    {tile.name}[{', '.join(indices)}] = {name}[{indices[0]}, {columns} - 1 - {indices[1]}]")
        self.wrote(tile, (-4, 4))
        self.feature("seldom", "strides told", dtype)

    def flattened(self) -> None:
        """One loop over all elements of several dimensions, whose indices are quotients and remainders of its own."""
        tiles = [one for one in self.readable() if len(one.shape) > 1 and one.elements <= 4096]
        if not tiles:
            return
        tile = self.pick(tiles)
        count = tile.elements - self.pick((0, 0, 1, 3))
        out, place = self.stored((tile.elements,), tile.dtype)
        left, axes = "i", []
        shift = self.pick(("", "", " + 1", " + 5"))
        for extent in reversed(tile.shape):
            axes.append(f"({left}{shift}) % {extent}")
            left = f"({left}{shift}) // {extent}"
            shift = ""
        self.emit(f"T.fill({out}[{place}, :], 0)")
        self.emit(f"for i in T.Parallel({count}):")
        self.emit(f"    {out}[{place}, i] = {tile.name}[{', '.join(reversed(axes))}]")
        self.feature("seldom", "flattened", tile.scope)

    def told_by_itself(self) -> None:
        """A shared tile whose own element says what fills it, or from where it is loaded."""
        tiles = [
            one for one in self.usable(("shared",)) if not ALL[one.dtype].is_packed and ALL[one.dtype].kind != "bool"
        ]
        if not tiles or self.roles:
            return
        tile = self.pick(tiles)
        assert tile.range is not None
        element = f"{tile.name}[{', '.join(self.index(0, extent - 1) for extent in tile.shape)}]"
        if self.chance(0.4):
            runs = [self.between(1, extent) for extent in tile.shape]
            starts = [self.index(0, extent - run) for extent, run in zip(tile.shape, runs, strict=True)]
            part = ", ".join(f"{start} : {start} + {run}" for start, run in zip(starts, runs, strict=True))
            self.emit(f"T.fill({tile.name}{self.pick(('', f'[{part}]'))}, {element})")
            self.wrote(tile, tile.range, whole=False)
        else:
            values = self.start_range(tile.dtype)
            source = self.tensor((tile.shape[0] + 3, *tile.shape[1:]), tile.dtype, values)
            first = f'T.min(T.max(T.cast({element}, "int32"), 0), 3)'
            self.emit(f"T.copy({source.name}[{', '.join([first, *('0' for _ in tile.shape[1:])])}], {tile.name})")
            self.wrote(tile, (min(0, values[0]), max(0, values[1])))
        self.feature("seldom", "told by itself", tile.dtype)

    # Elements that share bytes -------------------------------------------------------------------------

    def shared_bytes_moved(self) -> None:
        """Parts of tiles and tensors whose elements share bytes, from any place and of any length."""
        dtype = self.pick(SHARING)
        per = 8 // ALL[dtype].bits
        rows, columns = self.pick((4, 8, 17)), self.pick((2, 4, 5)) * per * self.pick((1, 2, 4))
        low, high = self.start_range(dtype)
        source = self.tensor((rows, columns), dtype, (low, high))
        names = [source.name]
        for _ in range(self.between(1, 3)):
            scope = self.pick(("shared", "fragment"))
            mine = self.name("s")
            self.emit(f'{mine} = T.alloc_{scope}(({rows}, {columns}), "{dtype}")')
            if self.chance(0.5):
                self.emit(f"T.copy({self.pick(names)}, {mine})")
            else:
                self.emit(f"T.fill({mine}, {self.between(low, high)})")
            for _ in range(self.between(1, 2)):
                other = self.pick([one for one in names if one != mine])
                runs = [self.between(1, rows), self.between(1, columns)]
                here, there = (
                    ", ".join(f"{start} : {start} + {run}" for start, run in zip(starts, runs, strict=True))
                    for starts in [
                        [self.index(0, extent - run) for extent, run in zip((rows, columns), runs, strict=True)]
                        for _ in "ab"
                    ]
                )
                kind = self.between(0, 4)
                if kind <= 1:
                    self.emit(f"T.copy({other}[{there}], {mine}[{here}])")
                elif kind == 2:
                    self.emit(f"T.fill({mine}[{here}], {self.between(low, high)})")
                else:
                    indices = self.loop((rows, columns))
                    i, j = (one for one, _ in indices)
                    turn = self.pick((f"{columns} - 1 - {j}", f"({j} + {self.between(1, 3)}) % {columns}", f"{j} // 2"))
                    value = f"{other}[{self.pick((i, f'{rows} - 1 - {i}'))}, {turn}]"
                    if self.chance(0.4):
                        self.emit(
                            f"    if {self.pick((i, j))} % 3 != {self.between(0, 2)}:",
                            f"        {mine}[{i}, {j}] = {value}",
                        )
                    else:
                        self.emit(f"    {mine}[{i}, {j}] = {value}")
            names.append(mine)
        wide = self.pick(("int32", "float32", dtype, dtype))
        out, place = self.stored((rows, columns), wide)
        self.emit(f"T.copy({names[-1]}, {out}[{place}, :, :])")
        self.feature("seldom", "shared bytes", dtype)

    # Numbers -------------------------------------------------------------------------------------------

    def types_meet(self) -> None:
        """Operands of two types without a word about which of them the result has."""
        first, second = (
            self.pick((*SIGNED, *UNSIGNED, "float16", "bfloat16", "float32", "bool", "float64")) for _ in "ab"
        )
        names = []
        for dtype in (first, second):
            low, high = (0, 1) if dtype == "bool" else (0 if dtype.startswith("u") else -7, 9)
            name = self.tensor((8, 16), dtype, (low, high)).name
            if ALL[dtype].is_integer and ALL[dtype].bits < 32 and dtype != "bool" and self.chance(0.4):
                self.params[-1] = Param(name, self.params[-1].declared, edges(self.random, (8, 16), dtype))
            names.append(name)
            if self.chance(0.4):
                scope = self.pick(("shared", "fragment"))
                names[-1] = self.name("s")
                self.emit(f'{names[-1]} = T.alloc_{scope}((8, 16), "{dtype}")', f"T.copy({name}, {names[-1]})")
        a, b = (f"{one}[i, j]" for one in names)
        ways = [f"({a} {word} {b})" for word in "+-*"]
        ways += [
            f"T.max({a}, {b})",
            f"T.min({a}, {b})",
            f"T.if_then_else({a} {self.pick(('<', '>=', '==', '!='))} {b}, {a}, {b})",
        ]
        ways += [f"T.if_then_else({a} {self.pick(('<', '>=', '==', '!='))} {b}, 3, 5)"]
        ways += [f"({a} {self.pick('+-*')} {self.between(-3, 9)})", f"({self.between(-3, 9)} {self.pick('+-*')} {b})"]
        if "float" not in first + second and "bool" not in (first, second):
            ways += [f"({a} {word} {b})" for word in "&|^"]
            ways += [f"({a} {self.pick(('//', '%'))} T.max({b}, 1))", f"({a} >> ({b} & 7))"]
        if "float" in first + second:
            ways += [f"({a} / T.if_then_else({b} == 0, 1, {b}))"]
        text = self.pick(ways)
        for _ in range(self.between(0, 1)):
            text = f"({text} {self.pick('+-*')} {self.pick((a, b))})"
        kind = self.pick(("float32", "int32", "int64", "uint8", "float16", "float64"))
        out, place = self.stored((8, 16), kind)
        self.emit("for i, j in T.Parallel(8, 16):", f'    {out}[{place}, i, j] = T.cast({text}, "{kind}")')
        self.feature("seldom", "types meet", first, second)

    def any_floats(self) -> None:
        """Any floats at all are moved, rounded, compared and folded: subnormal ones, infinities, and what is no number."""
        dtype, to = self.pick(ANY_FLOATS), self.pick(ANY_FLOATS)
        rows, columns = self.pick((4, 8, 16, 33)), self.pick((8, 16, 64, 40))
        source = self.tensor((rows, columns), dtype, (0, 1)).name
        values = edges(self.random, (rows, columns), dtype)
        if self.chance(0.5):  # few that are no numbers, and rows of them
            plain = self.numbers((rows, columns), dtype, (-3, 3))
            values = np.where(self.random.random((rows, columns)) < 0.15, values, plain).astype(values.dtype)
            values[0] = values[0, 0]
        self.params[-1] = Param(source, self.params[-1].declared, values)
        names = [(source, dtype)]
        for kind in (dtype, to):
            tile = self.name("s")
            self.emit(f'{tile} = T.alloc_{self.pick(("shared", "fragment"))}(({rows}, {columns}), "{kind}")')
            if self.chance(0.6):
                self.emit(f"T.copy({names[-1][0]}, {tile})")
            else:
                element = f"{names[-1][0]}[i, j]"
                word = self.pick(("{}", "(-{})", "T.abs({})", 'T.max({}, T.cast(0, "' + names[-1][1] + '"))', "T.if_then_else({0} < {0}, {0}, {0})",
                                  "T.if_then_else(T.isnan({0}), -{0}, {0})", 'T.min({}, T.cast(-1, "' + names[-1][1] + '"))'))  # fmt: skip
                self.emit(
                    f"for i, j in T.Parallel({rows}, {columns}):",
                    f'    {tile}[i, j] = T.cast({word.format(element)}, "{kind}")',
                )
            names.append((tile, kind))
        tile, kind = names[self.pick((1, 2))]
        way = self.between(0, 3)
        if way <= 1:
            dim = self.pick((0, 1))
            kept = (columns,) if dim == 0 else (rows,)
            word = self.pick(("max", "min", "absmax", "argmax", "argmin"))
            folded = self.name("s")
            self.emit(
                f'{folded} = T.alloc_{self.pick(("shared", "fragment"))}({kept}, "{"int32" if "arg" in word else kind}")'
            )
            self.emit(f"T.reduce_{word}({tile}, {folded}, dim={dim})")
            out, place = self.stored(kept, "int32" if "arg" in word else kind)
            self.emit(f"T.copy({folded}, {out}[{place}, :])")
        elif way == 2:
            integer = self.pick((*SIGNED, *UNSIGNED))
            out, place = self.stored((rows, columns), integer)
            self.emit(
                f"for i, j in T.Parallel({rows}, {columns}):",
                f'    {out}[{place}, i, j] = T.cast({tile}[i, j], "{integer}")',
            )
        else:
            out, place = self.stored((rows, columns), "int32")
            self.emit(
                f"for i, j in T.Parallel({rows}, {columns}):",
                f"    {out}[{place}, i, j] = T.if_then_else({tile}[i, j] {self.pick(('<', '<=', '==', '!=', '>'))} {tile}[i, {columns} - 1 - j], 1, 2)",
            )
        out, place = self.stored((rows, columns), to)
        self.emit(f"T.copy({names[-1][0]}, {out}[{place}, :, :])")
        self.feature("seldom", "any floats", dtype, to)

    # Parts of tiles --------------------------------------------------------------------------------------

    def product_of_parts(self) -> None:
        """A product of parts of tiles, each turned or not, whose sums may be halves."""
        dtype = self.pick(("float16", "bfloat16", "int8", "float16", "float32"))
        total = (
            self.pick(("float32", "float32", "float16"))
            if dtype == "float16"
            else "int32"
            if dtype == "int8"
            else "float32"
        )
        m, n, k = self.pick((16, 32, 64)), self.pick((8, 16, 32)), self.pick((16, 32))
        turns = self.chance(0.4), self.chance(0.4)
        texts = []
        for shape, turned in (((m, k), turns[0]), ((k, n), turns[1])):
            part = shape[::-1] if turned else shape
            spare = [self.pick((0, 0, 16)), self.pick((0, 16))]
            whole = tuple(extent + more for extent, more in zip(part, spare, strict=True))
            slots = self.pick((0, 0, 2)) if dtype in ("float16", "bfloat16", "int8") else 0
            tile = self.name("s")
            self.shared_bytes += max(slots, 1) * whole[0] * whole[1] * ALL[dtype].bits // 8
            given = self.tensor((*((slots,) if slots else ()), *whole), dtype, (-2, 2)).name
            self.emit(
                f'{tile} = T.alloc_shared({(*((slots,) if slots else ()), *whole)}, "{dtype}")',
                f"T.copy({given}, {tile})",
            )
            starts = [f"{self.pick((0, more, self.pick((0, 8)) if more else 0))}" for more in spare]
            parts = [f"{start} : {start} + {extent}" for start, extent in zip(starts, part, strict=True)]
            texts.append(f"{tile}[{', '.join([*([self.index(0, slots - 1)] if slots else []), *parts])}]")
        out = self.name("f")
        self.emit(f'{out} = T.alloc_fragment(({m}, {n}), "{total}")', f"T.clear({out})")
        words = [f"transpose_{word}=True" for word, on in zip("AB", turns, strict=True) if on]
        self.emit(f"T.gemm({', '.join([*texts, out, *words])})")
        tile = Tile(
            out, "fragment", (m, n), total, (-4 * k, 4 * k), made_in=self.context.loops, group=self.context.group
        )
        self.output(tile)
        self.feature("seldom", "product of parts", dtype, total)

    def folded_parts(self) -> None:
        """A fold, or running sums, of a part of a tile, into a part of another."""
        tiles = [
            one
            for one in self.usable()
            if len(one.shape) == 2 and not ALL[one.dtype].is_packed and ALL[one.dtype].kind != "bool"
        ]
        if not tiles:
            return
        tile = self.pick(tiles)
        assert tile.range is not None
        runs = [self.pick((extent, self.between(1, extent))) for extent in tile.shape]
        starts = [self.index(0, extent - run) for extent, run in zip(tile.shape, runs, strict=True)]
        part = (
            f"{tile.name}[{', '.join(f'{start} : {start} + {run}' for start, run in zip(starts, runs, strict=True))}]"
        )
        dim = self.between(0, 1)
        count, kept = runs[dim], runs[1 - dim]
        kind = self.pick(("sum", "max", "min", "absmax", "cumsum"))
        low = tile.range[0]
        bound = max(map(abs, tile.range)) * (count if "sum" in kind else 1)
        if not self.fits((-bound if low < 0 else 0, bound), tile.dtype) or bound > LIMIT:
            return
        if kind == "cumsum":
            out = self.name("s")
            self.emit(f'{out} = T.alloc_{self.pick(("shared", "fragment"))}({tuple(runs)}, "{tile.dtype}")')
            self.emit(f"T.cumsum({part}, {out}, dim={dim}{self.pick(('', ', reverse=True'))})")
            shape: tuple[int, ...] = tuple(runs)
        else:
            spare = self.pick((0, 3, 8))
            shape = (2, kept + spare)
            out = self.name("s")
            self.emit(
                f'{out} = T.alloc_{self.pick(("shared", "shared", "fragment"))}({shape}, "{tile.dtype}")',
                f"T.fill({out}, 1)",
            )
            row, first = self.index(0, 1), self.index(0, spare)
            self.emit(f"T.reduce_{kind}({part}, {out}[{row}, {first} : {first} + {kept}], dim={dim})")
        to, place = self.stored(shape, tile.dtype)
        self.emit(f"T.copy({out}, {to}[{place}, :, :])")
        self.feature("seldom", "folded parts", kind, tile.scope)

    # Loops ---------------------------------------------------------------------------------------------

    def lanes_apart(self) -> None:
        """Vector loops over what lies backwards, apart, off its alignment, or is the same for all lanes; of two types."""
        lanes = self.pick((2, 4, 8, 16, 3))
        rows = self.pick((4, 8, 33))
        width = lanes * 3 + 2
        first, second = (
            self.pick(("int32", "float32", "float16", "int8", "uint8", "int64", "float64", "bfloat16")) for _ in "ab"
        )
        least = 0 if "uint8" in (first, second) else -4
        source = self.tensor((rows, width), first, (least, 4)).name
        if self.chance(0.5):
            tile = self.name("s")
            self.emit(
                f'{tile} = T.alloc_{self.pick(("shared", "fragment"))}(({rows}, {width}), "{first}")',
                f"T.copy({source}, {tile})",
            )
            if "fragment" not in self.lines[-2]:
                source = tile
        target = self.tensor((self.blocks, self.grid_y, rows, width), second, (least, 4)).name
        by = "by" if self.grid_y > 1 else "0"
        v = self.name("v")
        forms = [
            f"{lanes - 1} - {v}",
            f"{v} * 2",
            f"{v} * 3 + 1",
            f"{v} + 1",
            f"{v} + 2",
            f"{v}",
            f"{v} // 2",
            f"{v} % 2",
            f"{v} + i % 2",
            f"{lanes} + {v}",
        ]
        here, there = self.pick(forms[:7]), self.pick(forms)
        if here.endswith("// 2"):
            here = f"{v} * 2 + 1"
        value = f'T.cast({source}[i, {there}], "{second}")'
        if self.chance(0.4):
            value = f'{value} + T.cast({source}[i, {self.pick(forms)}], "{second}")'
        self.emit(f"for i in T.Parallel({rows}):", f"    for {v} in T.vectorized({lanes}):")
        store = f"{target}[bx, {by}, i, {here}] = {value}"
        if self.chance(0.3):
            test = self.pick(
                (f"{v} != 1", f"{source}[i, {v}] > 0", f"i + {v} < {rows}", f"{self.flags.name}[{v} & 7] != 0")
            )
            self.emit(f"        if {test}:", f"            {store}")
        else:
            self.emit(f"        {store}")
        self.feature("seldom", "lanes apart", first, second)
