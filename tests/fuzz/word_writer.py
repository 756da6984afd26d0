"""Programs that say whatever the language has words for, beside all that threads, tiles and their authors do elsewhere.

A word comes in by one of three ways: a function of numbers from the list of the language's own words, so that one that is new is
drawn too; a way of saying that others have as well, put in the place of theirs (another name of a word, a type that is no text, a buffer of the
older forms); or a statement of its own, here and in `meeting_writer`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from meeting_writer import MeetingWriter
from mixed_tiles import MixedProgram, Tile
from mixed_writer import MixedWriter
from tile_programs import Param

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs import language_pages
from tilewright.formats.sparse import compress
from tilewright.ir.dtypes import ALL

OF_NUMBERS = {"x", "y", "z", "x1", "x2", "rounding_mode"}
OF_OTHERS = {"popcount", "clz", "abs2", "add2", "sub2", "mul2", "max2", "min2", "fma2", "align_up"}
"""Words whose parameters are called as those of functions of floats, but are whole numbers or pairs."""

SELDOM = ("float8_e4m3b11fnuz", "float8_e5m2fnuz", "int1", "uint4", "tfloat32", "float6_e3m2fn")
"""Types that tiles elsewhere do not have."""

SAID_MORE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"T\.get_(lane|warp)_idx\(\)", (r"T.get_\1_idx(32)",)),
    (r"T\.unroll\((\d+)\)", (r"T.unroll(0, \1)", r"T.unroll(0, \1, 1)")),
    (r"T\.vectorized\((\d+)\)", (r"T.vectorized(0, \1)",)),
    (r"(T\.reduce_(?!arg)\w+\(\w+, \w+, dim=-?\d+[^)]*)\)", (r"\1, nan_propagate=True)",)),
    (r'alloc_var\("(\w+)", init=(.*)\)$', (r'alloc_var("\1", \2)',)),
    (r"(T\.use_swizzle\(.*)\)$", (r"\1, enable=False)", r"\1, enable=True)")),
    (r"(T\.async_copy\(.*)\)$", (r'\1, eviction_policy="evict_first")', r"\1, coalesced_width=4)")),
    (r"(T\.tma_copy\(.*barrier=.*)\)$", (r'\1, eviction_policy="evict_last")',)),
    (
        r"^(T\.copy\(A\d+\[.*\], s\d+)\)$",
        (r"\1, l2_prefetch=128)", r'\1, eviction_policy="evict_last")', r'\1, prefer_instruction="cp_async")'),
    ),
    (r"(T\.shfl_\w+\(.*), width=32\)", (r"\1, width=32, mask=0xFFFFFFFF)",)),
    (r'T\.round\((T\.cast\(.*, "float\d\d"\)) \* 7\.3\)', (r'T.round(\1 * 7.3, "ties-away-from-zero")',)),
)
"""What calls leave out as a rule, said: a form of text, and what may stand in its place."""

MODES = ("rn", "rz", "ru", "rd")


@cache
def functions() -> tuple[tuple[str, int, bool], ...]:
    """Every word that is a function of floats: its name, how many it takes, and whether it is told how to round."""
    found = []
    for name, (value, _) in sorted(language_pages.words().items()):
        if not inspect.isroutine(value) or name in OF_OTHERS or name.startswith(("bitwise_", "shift_")):
            continue
        if (value.__module__ or "").rpartition(".")[2] not in (
            "math",
            "operators",
            "older_words",
            "other_names",
            "directed_rounding",
        ):
            continue
        names = list(inspect.signature(value).parameters)
        if names and set(names) <= OF_NUMBERS:
            found.append(
                (
                    name,
                    len([one for one in names if one != "rounding_mode"]),
                    value.__module__.endswith("directed_rounding"),
                )
            )
    return tuple(found)


@cache
def other_names() -> dict[str, tuple[str, ...]]:
    """All names that a word has, by each of them."""
    return {
        name: (word, *others)
        for word, (value, others) in language_pages.words().items()
        if others and inspect.isroutine(value)
        for name in (word, *others)
    }


class WordWriter(MeetingWriter):
    """Writes the program of a seed."""

    def start(self) -> None:
        self.helpers: list[str] = []
        super().start()

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        mine: list[tuple[float, Callable[[], None]]] = [
            (4, self.function), (4, self.older), (2, self.pairs), (2, self.lanes_by_number), (2, self.converted), (2, self.taken_for_true),
        ]  # fmt: skip
        if self.context.group is None:
            mine += [(3, self.by_reference), (2, self.with_methods)]
        if not self.parted_by and self.context.group is None:
            mine += [
                (3, self.words_written),
                (2, self.looped_otherwise),
                (2, self.seen_flat),
                (3, self.scaled_blocks),
                (2, self.reduced_by_name),
            ]
            if self.context.depth == 0:
                mine += [(1, self.named_part), (1, self.drawn_parts), (2, self.laid_in_parts)]
                mine += [(4, self.matrix_by_hand), (3, self.half_of_it)] if self.hopper else []
                mine += [
                    (2, self.suited_to),
                    (2, self.dealt_out),
                    (2, self.windows),
                    (2, self.combined),
                    (1, self.by_atomics),
                    (2, self.in_parts_of_bytes),
                ]
        return self.weighed(super().ways(), mine, 35)

    def statement(self, ways: list[tuple[float, Callable[[], None]]] | None = None) -> None:
        """As often as not one that mixed programs have: those of several families crowd it out otherwise."""
        plain = ways is None and not self.parted_by and self.context.group is None and self.chance(0.4)
        super().statement(MixedWriter.ways(self) if plain else ways)

    def new_tile(
        self, shape: tuple[int, ...] | None = None, dtype: str | None = None, scope: str | None = None
    ) -> Tile:
        return super().new_tile(shape, dtype or (self.pick(SELDOM) if self.chance(0.04) else None), scope)

    # Numbers -----------------------------------------------------------------------------------------

    def function(self) -> None:
        """Functions of the language at small numbers, in tenths; or the very bits of those whose rounding the author says."""
        for _ in range(self.between(1, 3)):
            self.one_function(*self.pick(functions()))

    def one_function(self, name: str, count: int, rounded: bool) -> None:
        dtype = self.pick(("float32", "float32", "float32", "float32", "float64")) if not rounded else "float32"
        if rounded:
            given = [f'T.cast({self.number(-(2**14), 2**14).text}, "float32")' for _ in range(count)]
            if name in ("ieee_fdiv", "ieee_frcp"):
                given[-1] = f"({given[-1]} * 2.0 + 1.0)"
            if name == "ieee_fsqrt":
                given[-1] = f"T.abs({given[-1]})"
            if name in ("ieee_add", "ieee_sub", "ieee_fmaf"):
                given[0] = f"{given[0]} * T.float32(0.1)"
            text = f'T.{name}({", ".join(given)}, "{self.pick(MODES)}")'
            self.give(f'T.cast(T.reinterpret({text}, "int32") % 1000, "int32")', -999, 999)
        else:
            eighth = self.brought_back(self.number(-(2**14), 2**14), 7)
            given = f'((T.cast({eighth.text}, "{dtype}") + 1) * 0.125{" + 1" if name == "acosh" else ""})'
            values = [given] + [
                self.pick((given, f'T.cast({self.pick((0.5, 0.75, 2.5))}, "{dtype}")')) for _ in range(count - 1)
            ]
            text = f'T.cast(T.{name}({", ".join(values)}), "{dtype}")'
            self.give(f'T.cast(T.round({text} * 7.3), "int32")', -400, 400)
        self.feature("word", "function", name, dtype)

    def older(self) -> None:
        """A number by a word that older programs have, or one that says where the thread is."""
        a, b = self.number(-(2**10), 2**10), self.number(-(2**10), 2**10)
        bits = self.brought_back(a, 2**10)
        small, exponent = self.brought_back(b, 5), self.brought_back(a, 9)
        base, offset = self.pick(((0, 1), (0, 2), (9, -1), (3, 3), (12, -2), (2, 0)))
        dtype = self.pick(("int8", "uint8", "int16"))
        least, most = int(ALL[dtype].minimum), int(ALL[dtype].maximum)
        wide = f'T.cast({a.text}, "float32")'
        ways = [
            (f"T.__ffs({a.text})", 0, 32),
            (f'T.cast(T.__fns(T.cast({bits.text}, "uint32"), {base}, {offset}) % 64, "int32")', 0, 63),
            (f'T.cast(T.fmul({wide}, T.cast({small.text}, "float32")), "int32")', min(0, 4 * a.low), max(0, 4 * a.high)),
            (f'T.Cast("int32", T.fast_rcp(T.exp2(T.cast(-{small.text}, "float32"))) + 0.25)', 1, 16),
            (f'T.cast(T.e8m0_to_float(T.cast(122 + {exponent.text}, "uint8")) * 32, "int32")', 1, 256),
            (f'T.cast(T.min({a.text}, T.cast(T.max_value("{dtype}"), "int32")), "int32")', min(a.low, most), min(a.high, most)),
            (f'T.max({a.text}, T.cast(T.min_value("{dtype}"), "int32"))', max(a.low, least), max(a.high, least)),
            (f'T.if_then_else({wide} < T.infinity("float32"), {b.text}, 0)', min(b.low, 0), max(b.high, 0)),
            (f"T.if_then_else(T.likely({self.test()}), {a.text}, {b.text})", min(a.low, b.low), max(a.high, b.high)),
            ("T.get_warp_group_idx()", 0, 7),
            (f"T.if_then_else(T.shuffle_elect({self.pick((0, 32, 64))}), {a.text}, {b.text})", min(a.low, b.low), max(a.high, b.high)),
            (f"T.get_thread_extent(0) + T.get_thread_extents()[1] + {small.text}", 0, 2**10),
            (f"T.get_block_extents()[0] + T.get_cluster_dims()[0] + {small.text}", 0, 40),
            (f"T.get_cluster_id() + T.get_cluster_ids()[0] + {small.text}", 0, 40),
            (f"T.get_cluster_extent() * 2 + T.get_cluster_extents()[0] + T.get_cluster_size() + {small.text}", 0, 60),
            (f"T.block_rank_in_cluster() + {small.text}", 0, 20),
        ]  # fmt: skip
        if not self.parted_by and self.context.group is None:
            ways += [
                (f"T.tvm_warp_shuffle_{self.pick(('up', 'down'))}(T.tvm_warp_activemask(), {a.text}, {self.between(1, 31)}, 32, 32)", a.low, a.high),
                ("T.cast(T.popcount(T.activemask()), 'int32')", 0, 32),
            ]  # fmt: skip
            ways += [(f"T.simdgroup_reduce_sum({a.text}) % 8", 0, 7)] if self.threads % 64 == 0 else []
        text, low, high = self.pick(ways)
        self.feature("word", "older", text.split("T.")[1].split("(")[0])
        self.give(text, low, high)

    def pairs(self) -> None:
        """Two floats at once: what pairs of a thread's array become."""
        dtype, own = self.pick(("float32", "float16", "bfloat16")), self.name("w")
        self.emit(f'{own} = T.alloc_local((8,), "{dtype}")')
        for at in range(6):
            self.emit(
                f'{own}[{at}] = T.cast({self.brought_back(self.number(), 6).text} - {self.between(0, 3)}, "{dtype}")'
            )
        word = self.pick(("add2", "sub2", "mul2", "max2", "min2", "fma2", "abs2"))
        given = [f"{own}[{at}:{at + 2}]" for at in range(0, 6, 2)][: {"fma2": 3, "abs2": 1}.get(word, 2)]
        if self.chance(0.3):
            given[0] = f"T.{dtype}x2({own}[1], {own}[4])"
        self.emit(f"{own}[6:8] = T.{word}({', '.join(given)})")
        self.give(f'T.cast({own}[{self.pick((6, 7))}], "int32")', -40, 40, variable=1.0)
        self.feature("word", "pairs", word, dtype)

    def lanes_by_number(self) -> None:
        """Lanes of a vector in another order, or the same number in all of them, by way of a thread's array."""
        dtype, own = self.pick(("int32", "float32", "float16", "int16")), self.name("w")
        self.emit(f'{own} = T.alloc_local((8,), "{dtype}")')
        for at in range(4):
            self.emit(f'{own}[{at}] = T.cast({self.brought_back(self.number(), 90).text}, "{dtype}")')
        order = [self.between(0, 3) for _ in range(4)]
        base, step = self.pick(((4, 1), (7, -1)))
        value = self.pick((
            f"T.Shuffle([{own}[0:4]], {order})", f'T.Broadcast(T.cast({self.brought_back(self.number(), 90).text}, "{dtype}"), 4)',
            f"T.Shuffle([{own}[0:2], {own}[2], {own}[3]], {order})", f"{own}[T.Ramp(3, -1, 4)]", f'{own}[T.Ramp(0, 1, 4)] + T.Broadcast(T.cast(1, "{dtype}"), 4)',
        ))  # fmt: skip
        self.emit(f"{own}[T.Ramp({base}, {step}, 4)] = {value}")
        self.give(f'T.cast({own}[{self.between(4, 7)}], "int32")', 0, 180, variable=1.0)
        self.feature("word", "lanes", dtype)

    def converted(self) -> None:
        """To a float of few bits, beyond its greatest too, and back."""
        dtype = self.pick(
            ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float6_e2m3fn", "float6_e3m2fn")
        )
        one, how = (
            self.number(-(2**12), 2**12),
            self.pick(("", ', "rn"', ", saturate=True", ", saturate=False", ", sat=False")[: 5 if "8" in dtype else 2]),
        )
        wide = self.pick(("float32", "float16", "bfloat16"))
        text = f'T.cast(T.cast(T.cast({one.text}, "{wide}"), "{dtype}"{how}), "float32")'
        held = self.name("h")
        self.emit(f"{held} = {text}")
        self.give(f'T.cast(T.if_then_else(T.isfinite({held}), {held}, T.float32(7)) % 512, "int32")', -512, 512)
        self.feature("word", "converted", dtype, wide)

    def taken_for_true(self) -> None:
        """What is so anyway is said, and may be relied on."""
        name, low, high = self.pick(self.context.indices)
        own = self.number()
        self.emit(self.pick((
            f"T.assume({name} >= {low})", f"T.assume({name} <= {high})", f"T.assume({own.text} <= {own.high})",
            f'T.device_assert({name} <= {high}, "as large as can be")',
        )))  # fmt: skip
        self.feature("word", "assumed")

    # Helpers -----------------------------------------------------------------------------------------

    def by_reference(self) -> None:
        """A macro that changes what it is given: a variable, an element of a thread's array, of a shared tile."""
        name, one, place = self.name("g"), self.number(-(2**10), 2**10), self.name("o")
        condition = self.pick(("x > 2", "x % 2 == 0", "y < x"))
        self.sizes += [
            "@T.macro", f"def {name}(x, y: T.{self.pick(('Ref', 'Var'))}):", f"    if {condition}:", "        y = T.min(x, 9)",
            *self.pick(([], ["    else:", "        y = y + 1"])), "    y = T.clamp(y + x, -9, 9)",
        ]  # fmt: skip
        first = self.brought_back(self.number(), 9).text
        kind = (
            self.pick(("variable", "array", "shared")) if not self.parted_by and self.context.depth == 0 else "variable"
        )
        if kind == "variable":
            self.emit(f'{place} = T.alloc_var("int32", init={first})')
        elif kind == "array":
            self.emit(f'{place} = T.alloc_local((2,), "int32")', f"{place}[1] = {first}")
            place = f"{place}[1]"
        else:
            self.emit(f'{place} = T.alloc_shared(({self.threads},), "int32")')
            place = f"{place}[tx]"
            self.emit(f"{place} = {first}")
        turns = self.between(1, 3)
        if self.chance(0.4):
            k = self.name("k")
            self.emit(f"for {k} in T.serial({turns}):", f"    {name}({self.pick((k, one.text))}, {place})")
        else:
            self.emit(f"{name}({one.text}, {place})")
        self.give(place, -9, 9, variable=1.0)
        self.feature("word", "by reference", kind)

    def with_methods(self) -> None:
        """An object whose methods speak of the program."""
        kind, made = self.name("M"), self.name("q")
        self.helpers += [
            "@T.meta_class", f"class {kind}:", "    def __init__(self):", '        self.total = T.alloc_var("int32", init=0)',
            "    def add(self, x):", "        if x % 2 == 1:", "            self.total[0] = T.min(self.total[0] + x, 50)",
        ]  # fmt: skip
        self.emit(f"{made} = {kind}()")
        for _ in range(self.between(1, 2)):
            self.emit(f"{made}.add({self.brought_back(self.number(), 20).text})")
        self.give(f'T.cast({made}.total, "int32")', 0, 50, variable=1.0)
        self.feature("word", "methods")

    # Memory ------------------------------------------------------------------------------------------

    def words_written(self) -> None:
        """Words of neighbouring bytes that each thread writes into a tensor of the caller's, or leaves alone."""
        size = self.pick((32, 64, 64, 128, 128, 256, 256))
        lanes = size // 32
        source, into = (self.tensor((self.threads * lanes,), "int32", (0, 99)) for _ in range(2))
        test = f", pred={self.test()}" if self.chance(0.4) else ""
        read = f", pred={self.test()}" if self.chance(0.3) else ""
        value = f"T.ldg{size}({source.name}[tx * {lanes}]{read})"
        if self.chance(0.3):
            one = f'T.cast({self.brought_back(self.number(), 99).text}, "uint32")'
            value = one if lanes == 1 else f"T.Broadcast({one}, {lanes})"
        place = self.pick(("tx", f"({self.threads - 1} - tx)", f"((tx + 3) % {self.threads})"))
        self.emit(
            f"T.stg{size}({into.name}[{place} * {lanes}], {value}{test})"
        ) if self.blocks * self.grid_y == 1 else None
        if self.blocks * self.grid_y > 1:
            self.give(f"T.cast(T.__ldg({source.name}[tx]), 'int32')", 0, 99)
        self.feature("word", "written", str(size))

    def by_atomics(self) -> None:
        """A number of each thread's stored and read at once, at a place of its own."""
        dtype = self.pick(("int32", "float32", "uint32", "int64"))
        into = self.result_of_others(dtype)
        one = self.brought_back(self.number(), 100)
        place = f"{into.name}[{self.block_place()}, tx]"
        write, read = self.pick(("", ', "relaxed"', ', "release"')), self.pick(("", ', "relaxed"', ', "acquire"'))
        self.emit(f'T.atomic_store({place}, T.cast({one.text}, "{dtype}"){write})')
        self.give(f'T.cast(T.atomic_load({place}{read}), "int32")', 0, 100, variable=1.0)
        self.feature("word", "atomics", dtype)

    def looped_otherwise(self) -> None:
        """Elements in turn by loops that older programs have."""
        tiles = [
            one
            for one in self.usable(("shared",), None)
            if len(one.shape) == 2 and not ALL[one.dtype].is_packed and not one.holder.sums_in
        ]
        tile = self.pick(tiles) if tiles and self.chance(0.7) else self.new_tile((self.pick((3, 8)), 8), None, "shared")
        if tile.holder.sums_in or ALL[tile.dtype].is_packed:
            return
        rows, columns = tile.shape
        low, high = max(self.room(tile)[0], 0), min(self.room(tile)[1], 5)
        way = self.pick(("grid", "bound", "lanes"))
        value = f'T.cast({{}} % {high + 1}, "{tile.dtype}")'
        if way == "grid" and rows * columns <= 256:
            y, x = self.name("k"), self.name("k")
            self.emit(
                f"for {y}, {x} in T.grid({rows}, {columns}):",
                f"    {tile.name}[{y}, {x}] = {value.format(f'({y} * 3 + {x})')}",
            )
        elif way == "bound" and self.depth_of_threads() and rows <= self.threads // max(1, self.rows):
            i, x = self.name("k"), self.name("k")
            self.emit(f'for {i} in T.thread_binding(0, {rows}, "threadIdx.x"):', f"    for {x} in T.serial({columns}):")
            self.emit(f"        {tile.name}[{i}, {x}] = {value.format(f'({i} + {x})')}")
            self.emit("T.tvm_storage_sync('shared')") if self.chance(0.3) else None
        else:
            y, x = self.name("k"), self.name("k")
            self.emit(f"for {y} in T.Parallel({rows}):", f"    for {x} in T.vectorized({columns}):")
            self.emit(f"        {tile.name}[{y}, {x}] = {value.format(f'({y} + {x} * 2)')}")
        self.wrote(tile, (low, max(high, 0)))
        self.feature("word", "loop", way)

    def depth_of_threads(self) -> bool:
        """Whether all threads come here and have one dimension."""
        return not self.rows and self.context.depth == 0

    def seen_flat(self) -> None:
        """A tensor in another shape, or the numbers behind an address."""
        rows, columns, dtype = (
            self.pick((4, 8)),
            self.pick((8, 16, 24)),
            self.pick(("float32", "float16", "int32", "int8")),
        )
        source, name = self.tensor((rows, columns), dtype, (-4, 4)), self.name("V")
        shape = self.pick(((rows * columns,), (columns, rows), (2, rows // 2, columns)))
        self.emit(f'{name} = T.Tensor({shape}, "{dtype}", {source.name}.data)')
        self.tiles.append(Tile(name, "global", shape, dtype, (-4, 4)))
        tile = self.new_tile(shape, dtype)
        if not tile.holder.sums_in and self.takes(tile, (-4, 4)):
            self.emit(f"T.copy({name}, {tile.name})")
            self.wrote(tile, (-4, 4))
        self.tiles.remove(self.tiles[[one.name for one in self.tiles].index(name)])
        self.feature("word", "seen flat", dtype)

    def in_parts_of_bytes(self) -> None:
        """Four products of bytes at a time, of a thread's own or of a shared tile."""
        a_type, b_type = self.pick((("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8"), ("uint8", "int8")))
        total_type = "uint32" if (a_type, b_type) == ("uint8", "uint8") else "int32"
        runs = self.pick((1, 2, 4))
        names = []
        for dtype in (a_type, b_type):
            source = self.tensor((self.threads, 4 * runs), dtype, (0, 9) if dtype == "uint8" else (-9, 9))
            own, v = self.name("w"), self.name("v")
            self.emit(
                f'{own} = T.alloc_local(({4 * runs},), "{dtype}")',
                f"for {v} in T.vectorized({4 * runs}):",
                f"    {own}[{v}] = {source.name}[tx, {v}]",
            )
            names.append(own)
        total, k = self.name("w"), self.name("k")
        self.emit(
            f'{total} = T.alloc_local((1,), "{total_type}")',
            f"{total}[0] = {self.between(0, 5)}",
            f"for {k} in T.serial({runs}):",
        )
        self.emit(f"    T.dp4a({names[0]}[{k} * 4], {names[1]}[{k} * 4], {total}[0])")
        self.give(f'T.cast({total}[0], "int32")', -324 * runs, 324 * runs + 5, variable=1.0)
        self.feature("word", "dp4a", a_type, b_type)

    def named_part(self) -> None:
        """Statements under a name that says nothing."""
        with self.inside(f'with T.{self.pick(("sblock", "ws_op"))}("{self.name("n")}"):'):
            self.statements(self.between(1, 2))
        self.feature("word", "named part")

    def drawn_parts(self) -> None:
        """Numbers between 0 and 1 that each thread draws."""
        self.emit(f"T.rng_init({self.between(0, 99)}, seq=tx{self.pick(('', ', off=4'))})")
        self.give('T.cast(T.rng_rand_float() * 100, "int32")', 0, 100)

    # Tiles -------------------------------------------------------------------------------------------

    def matrix_by_hand(self) -> None:
        """A matrix instruction of each warp, whose operands its threads load by matrices of 8 rows, or one by one."""
        a, b, own_a, own_b, own_c = (self.name(letter) for letter in "sswww")
        left, right = self.tensor((16, 16), "float16", (-3, 3)), self.tensor((8, 16), "float16", (-3, 3))
        out, first = self.result((self.threads // 32, 16, 8), "float32"), self.between(0, 3)
        self.emit(
            f'{a}, {b} = T.alloc_shared((16, 16), "float16"), T.alloc_shared((8, 16), "float16")', f"T.copy({left.name}, {a})", f"T.copy({right.name}, {b})",
            f'{own_a}, {own_b}, {own_c} = T.alloc_local((8,), "float16"), T.alloc_local((4,), "float16"), T.alloc_local((4,), "float32")',
            "for i in T.serial(4):", f"    {own_c}[i] = {first} + i", "T.sync_threads()",
        )  # fmt: skip
        if self.chance(0.6):
            self.emit(
                f'T.ptx_ldmatrix(False, 4, T.access_ptr({a}[tx % 16, 8 * (tx % 32 // 16)], "r"), {own_a})',
                f'T.ptx_ldmatrix(False, 2, T.access_ptr({b}[tx % 8, 8 * (tx // 8 % 2)], "r"), {own_b})',
            )
        else:
            self.emit(
                "for r in T.serial(4):", "    for e in T.serial(2):",
                f"        {own_a}[r * 2 + e] = {a}[tx % 32 // 4 + 8 * (r % 2), 2 * (tx % 4) + e + 8 * (r // 2)]",
                "for r in T.serial(2):", "    for e in T.serial(2):", f"        {own_b}[r * 2 + e] = {b}[tx % 32 // 4, 2 * (tx % 4) + e + 8 * r]",
            )  # fmt: skip
        self.emit(
            f'T.ptx_mma("float32", "m16n8k16", "row", "col", "fp16", "fp16", "fp32", {own_a}, 0, {own_b}, 0, {own_c}, 0)', "for i in T.serial(4):",
            f"    {out.name}[{self.block_place()}, tx // 32, tx % 32 // 4 + 8 * (i // 2), 2 * (tx % 4) + i % 2] = {own_c}[i]",
        )  # fmt: skip
        self.emit("T.sync_threads()")
        self.feature("word", "matrix by hand")

    def half_of_it(self) -> None:
        """A product of which one operand has two of every four numbers, and says which; it may be turned."""
        m, n, k, dtype = 64, self.pick((16, 32, 64)), self.pick((64, 128)), self.pick(("float16", "bfloat16"))
        dense = self.random.integers(-2, 3, (m, k // 4, 4))
        dense[np.arange(m)[:, None], np.arange(k // 4)[None], self.random.integers(0, 4, (m, k // 4))] = 0
        first = self.random.integers(0, 4, (m, k // 4))
        np.put_along_axis(dense, first[..., None], 0, 2)
        np.put_along_axis(dense, (first[..., None] + 1 + self.random.integers(0, 3, (m, k // 4, 1))) % 4, 0, 2)
        kept, places = compress(dense.reshape(m, k).astype(ALL[dtype].numpy))
        turned_a, turned_e = self.chance(0.25), self.chance(0.25)
        tiles = []
        for values, kind, turned in ((kept, dtype, turned_a), (places, "uint8", turned_e)):
            given = np.ascontiguousarray(values.T) if turned else values
            tensor, tile = self.name("A"), self.name("s")
            self.params.append(Param(tensor, f'T.Tensor({given.shape}, "{kind}")', given))
            self.emit(f'{tile} = T.alloc_shared({given.shape}, "{kind}")', f"T.copy({tensor}, {tile})")
            tiles.append(tile)
        turned = self.chance(0.5)
        other = self.operand(dtype, (n, k) if turned else (k, n))
        out = self.new_tile((m, n), "float32", "fragment")
        if other.scope != "shared" or other.range is None or max(map(abs, other.range)) > 8 or out.holder.sums_in:
            return
        words = [", transpose_A=True"] * turned_a + [", transpose_E=True"] * turned_e + [", transpose_B=True"] * turned
        word = self.pick(("gemm_sp", "wgmma_gemm_sp")) if self.threads % 128 == 0 else "gemm_sp"
        more = self.pick(("", f", policy=T.GemmWarpPolicy.{self.pick(('FullRow', 'FullCol'))}"))
        self.emit(f"T.{word}({tiles[0]}, {tiles[1]}, {other.name}, {out.name}{''.join(words)}{more}, clear_accum=True)")
        self.emit("T.wait_wgmma(0)") if word != "gemm_sp" else None
        bound = k * 2 * max(map(abs, (*other.range, 1)))
        self.wrote(out, (-bound, bound))
        self.feature("word", "half of it", dtype)

    def laid_in_parts(self) -> None:
        """Sums of parts that threads hold, whose places the author says."""
        rows, columns, name = self.pick((8, 16, 32)), self.pick((16, 24)), self.name("r")
        out = self.new_tile((rows,), self.pick(("int32", "float32")), "fragment")
        if out.holder.sums_in:
            return
        start = self.pick(("", "", ", 3"))
        self.emit(f'{name} = T.alloc_reducer(({rows},), "{out.dtype}", op="sum")')
        self.emit(
            f"T.annotate_layout({{{name}: T.PartialFragment(({rows},), forward_fn=lambda i, copy: (copy, i), replicate={self.threads})}})"
        )
        self.emit(f"T.reducer_init({name}{start})")
        indices = self.loop((rows, columns))
        text, *_ = self.term(indices, out, "int32", 1)
        self.emit(
            f'    T.reducer_update({name}[i], T.cast(T.clamp({text}, -4, 4), "{out.dtype}"))',
            f"T.finalize_reducer({name}, {out.name})",
        )
        self.wrote(out, (-4 * columns - 3, 4 * columns + 3))
        self.feature("word", "laid in parts")

    def suited_to(self) -> None:
        """A width that suits a size of the call, or the machine, and changes no result."""
        tile = self.new_tile((self.pick((16, 32)),), None, "shared")
        if tile.holder.sums_in or ALL[tile.dtype].is_packed:
            return
        width, k = self.name("u"), self.name("k")
        said = 'T.machine() is not None and T.machine().has("wgmma")'
        size = next((size for size, _ in self.dynamic), None)
        if size is not None and self.chance(0.7):
            said = f"T.suited(lambda m: m > {self.between(0, 9)}, {size})"
        self.emit(f"{width} = {self.pick((4, 8))} if {said} else {self.pick((2, 16))}")
        top = min(self.room(tile)[1], 5)
        self.emit(f"for {k} in T.serial({tile.shape[0]} // {width}):", f"    for i in T.Parallel({width}):")
        self.emit(f'        {tile.name}[{k} * {width} + i] = T.cast(({k} * {width} + i) % {top + 1}, "{tile.dtype}")')
        self.wrote(tile, (0, top))
        self.feature("word", "suited")

    def dealt_out(self) -> None:
        """Tiles of a matrix that blocks are dealt, by the language's order or one of the author's."""
        rows, columns, name = self.pick((1, 3, 4, 7)), self.pick((2, 5)), self.name("T")
        out = self.tensor((rows, columns), "int32", (0, 2))
        if self.cluster or self.grid_y > 1:
            return
        if self.chance(0.6):
            self.emit(
                f'{name} = T.PersistentTileScheduler({rows}, {columns}, swizzle_size={self.pick((1, 2, 4))}, '
                f'column_major={self.chance(0.5)}, name="{name}")', f"{name}.init(bx)",
            )  # fmt: skip
            step = ""
        else:
            kind, step = self.name("M"), f"{self.blocks}"
            self.helpers += [
                f"class {kind}(T.BaseTileScheduler):", "    def __init__(self, name):", "        super().__init__(name=name)",
                f"        self._total_tiles = {rows * columns}", "    def update_current_idx(self, linear_idx):",
                f"        self._m_idx[0] = linear_idx % {rows}", f"        self._n_idx[0] = linear_idx // {rows}",
            ]  # fmt: skip
            self.emit(f'{name} = {kind}("{name}")', f"{name}.init(bx)")
        self.emit(
            f"while {name}.valid():",
            "    if tx == 0:",
            f"        T.atomic_add({out.name}[{name}.m_idx, {name}.n_idx], {name}.current_iter + 1)",
        )
        self.emit(f"    {name}.next_tile({step})")
        self.feature("word", "dealt out")

    def windows(self) -> None:
        """Windows of an image as rows of a tile."""
        images, height, width, channels = self.pick((1, 2)), self.pick((5, 8)), self.pick((4, 7)), self.pick((4, 8, 16))
        kernel, stride, dilation, pad = (
            self.pick((1, 2, 3)),
            self.pick((1, 1, 2)),
            self.pick((1, 1, 2)),
            self.pick((0, 1, 2)),
        )
        dtype = self.pick(("float32", "float16", "int32", "int8", "bfloat16"))
        image = self.tensor((images, height, width, channels), dtype, (-4, 4))
        tile = self.new_tile((self.pick((8, 16, 32)), self.pick((8, 16, 24))), dtype)
        if tile.holder.sums_in or not self.takes(tile, (-4, 4)):
            return
        word = f"T.im2col({image.name}, {tile.name}, {self.index(0, 2)}, {self.index(0, 1)}, {kernel}, {stride}, {dilation}, {pad})"
        self.emit(word)
        self.wrote(tile, (-4, 4))
        self.feature("word", "windows", dtype)

    def combined(self) -> None:
        """Numbers of all threads, or of a row of them, combined by the author's function."""
        total, one = self.name("w"), self.number(-(2**7), 2**7)
        function, identity, low, high = self.pick((
            ("x + y", "T.int32(0)", self.threads * min(one.low, 0), self.threads * max(one.high, 0)),
            ("T.max(x, y)", f"T.int32({one.low})", one.low, one.high),
            ("T.min(x, y)", f"T.int32({one.high})", one.low, one.high),
        ))  # fmt: skip
        threads = "tx" if not self.rows else self.pick(("t0", "t1"))
        brings = "True" if self.chance(0.7) or self.rows else self.test()
        self.emit(f'{total} = T.alloc_local((1,), "int32")')
        self.emit(
            f'with T.attr(T.comm_reducer(lambda x, y: {function}, [{identity}]), "reduce_scope", T.reinterpret(T.uint64(0), "handle")):'
        )
        self.emit(f'    T.tvm_thread_allreduce(1, {one.text}, {brings}, {total}[0], {threads}, dtype="handle")')
        self.give(f"{total}[0]", low, high, variable=1.0)
        self.feature("word", "combined", function)

    def reduced_by_name(self) -> None:
        """A reduction whose kind is a text."""
        tiles = [
            one
            for one in self.usable()
            if one.dtype in ("int32", "float32") and max(map(abs, one.range)) < 2**10 and len(one.shape) > 1
        ]
        if not tiles:
            return
        tile, dim = self.pick(tiles), self.pick((0, -1))
        kept = tile.shape[1:] if dim == 0 else tile.shape[:-1]
        kind = (
            self.pick(("max", "min", "absmax", "any", "all"))
            if tile.dtype == "float32"
            else self.pick(("max", "min", "any", "all", "bitor"))
        )
        out = self.new_tile(kept, tile.dtype)
        bound = 2 ** max(map(abs, (*tile.range, 1))).bit_length()
        if out.holder.sums_in or out.holder is tile.holder or not self.takes(out, (-bound, bound)):
            return
        self.emit(f'T.reduce({tile.name}, {out.name}, "{kind}", dim={dim})')
        self.wrote(out, (-bound, bound))
        self.feature("word", "reduced", kind)

    def scaled_blocks(self) -> None:
        """A product whose operands have scales: of rows and columns, of blocks along k, of groups with a shift and its factors."""
        dtype = self.pick(("float16", "bfloat16", "int8", "float8_e4m3fn", "float32"))
        m, n, k = self.pick((16, 32, 64)), self.pick((16, 32, 64)), self.pick((32, 64))
        turned = self.chance(0.7)
        a, b = self.operand(dtype, (m, k)), self.operand(dtype, (n, k) if turned else (k, n))
        if a.range is None or b.range is None or max(map(abs, (*a.range, *b.range))) > 8 or a.holder is b.holder:
            return
        out = self.new_tile((m, n), "float32", "fragment")
        if out.holder.sums_in or self.context.pipelined:
            return
        self.emit(f"T.clear({out.name})")
        words, bound = (
            ["transpose_B=True"] if turned else [],
            k * max(map(abs, (*a.range, 1))) * max(map(abs, (*b.range, 1))),
        )
        way = self.pick(("lines", "blocks", "groups", "groups"))
        if way == "lines":
            words += [f"scale_A={self.vector(m, 'float32', 2)}"] + [
                f"scale_B={self.vector(n, self.pick(('float32', 'float16')), 2)}"
            ] * self.chance(0.6)
        elif way == "blocks":
            parts = self.pick((1, 2, 4))
            words += [f"scale_A={self.matrix((m // self.pick((1, 8, 16)), parts), 'float32', 2)}"] * self.chance(0.7)
            columns = n // self.pick((1, 8, 16))
            words += [f"scale_B={self.matrix((columns, parts) if turned else (parts, columns), 'float32', 2)}"]
        else:
            groups = self.pick((1, 2, 4))
            words += [f"groups={groups}", f"scale_B={self.matrix((groups, n), 'float32', 2)}"]
            if self.chance(0.5):
                words.append(f"scale_A={self.matrix((groups, m), 'float32', 2)}")
            if self.chance(0.6):
                words.append(f"shift={self.matrix((groups, m), 'float32', 3)}")
                words += [f"shift_B={self.matrix((groups, n), self.pick(('float32', 'float16')), 3)}"] * self.chance(
                    0.5
                )
                bound += 9 * groups
        bound *= 4
        if bound > 2**22:
            return
        self.emit(f"T.gemm({', '.join([a.name, b.name, out.name, *words])})")
        self.feature("word", "scaled blocks", way, dtype)
        self.wrote(out, (-bound, bound))

    def matrix(self, shape: tuple[int, int], dtype: str, most: int) -> str:
        """A shared tile of small numbers, loaded."""
        source, tile = self.tensor(shape, dtype, (0, most)), self.new_tile(shape, dtype, "shared")
        self.emit(f"T.copy({source.name}, {tile.name})")
        self.wrote(tile, (0, most))
        return tile.name

    # Other ways to say the same -------------------------------------------------------------------------

    def write(self) -> MixedProgram:
        """The program, some of whose words are said otherwise; as often as not it is not given by its arguments, but traced at once."""
        program = super().write()
        often, given = self.pick((0.0, 0.2, 0.6)), self.as_it_is_given(program)

        def say(lines: Iterable[str]) -> tuple[str, ...]:
            return tuple(self.otherwise(line, often, bool(given)) for line in lines)

        params = tuple(replace(one, declared=say([one.declared])[0]) for one in program.params)
        return replace(
            program, sizes=say(program.sizes), params=params, body=say(program.body), before=say(program.before), helpers=say(self.helpers), **given
        )  # fmt: skip

    def as_it_is_given(self, program: MixedProgram) -> dict[str, Any]:
        """Whether it is a function of `T.prim_func`, and of which tensors the kernel says what they are."""
        direct = any("T.suited(" in line for line in program.body) or any(
            "T.ptr" in one.declared for one in program.params
        )
        if direct or self.chance(0.7):
            return {}
        plain = [one.name for one in program.params if not one.is_scalar and one.declared.startswith("T.Tensor(")]
        return {"traced": True, "handles": tuple(name for name in plain if self.chance(0.2))}

    def otherwise(self, line: str, often: float, traced: bool) -> str:
        """A line whose words have other names, whose types are no texts, whose tiles are declared in older forms, whose sizes are found at the call."""
        scopes = {"shared": ("shared", "shared.dyn"), "fragment": ("local.fragment",), "local": ("local",)}
        if (
            made := re.fullmatch(r'(\s*\w+ = )T\.alloc_(shared|fragment|local)\((\(.*\)), ("\w+")\)', line)
        ) and self.chance(often):
            word, scope = self.pick(("alloc_buffer", "allocate", "decl_buffer")), self.pick(scopes[made[2]])
            line = f'{made[1]}T.{word}({made[3]}, {made[4]}, scope="{scope}")'
        if self.chance(often) and not traced:
            some = {size for size, value in self.dynamic if value}  # of none Python knows that there is nothing to read
            line = re.sub(
                r'T\.dynamic\("(m\d)"\)', lambda size: f'T.const("{size[1]}")' if size[1] in some else size[0], line
            )
            line = line.replace("T.make_tensor(", "T.make_tensor_from_addr(")
        if self.chance(often):
            form = self.pick(("T.{}", "T.{}", 'T.dtype("{}")'))
            line = re.sub(
                r', "(\w+)"(?=[,)])', lambda found: f", {form.format(found[1])}" if found[1] in ALL else found[0], line
            )
        for form, others in SAID_MORE:
            if self.chance(often) and re.search(form, line):
                line = re.sub(form, self.pick(others), line)

        def named(found: re.Match[str]) -> str:
            return (
                f"T.{self.pick(other_names()[found[1]])}"
                if found[1] in other_names() and self.chance(often)
                else found[0]
            )

        return re.sub(r"\bT\.(\w+)", named, line)
