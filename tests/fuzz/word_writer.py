"""Programs that say whatever the language has words for, beside all that threads, tiles and their authors do elsewhere.

A word comes in by one of three ways: a function of numbers from the list of the language's own words, so that one that is new is
drawn too; a way of saying that others have as well, put in the place of theirs (another name of a word, a type that is no text, a buffer of the
older forms); or a statement of its own, here, in `word_numbers`, `word_tiles` and `meeting_writer`.
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

from mixed_tiles import MixedProgram, Tile
from mixed_writer import MixedWriter
from word_tiles import TileWords

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs import language_pages
from tilewright.ir.dtypes import ALL

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
    (r"(T\.shfl_\w+\(.*), width=(\d+)\)", (r"\1, width=\2, mask=0xFFFFFFFF)",)),
    (r"T\.(any|all)_sync\((.*)\), 'int32'\)", (r"T.\1_sync(\2, mask=0xFFFFFFFF), 'int32')",)),
    (r"T\.ballot_sync\((.*?)\), 'int32'\)\)", (r"T.ballot_sync(\1, mask=0xFFFFFFFF), 'int32'))",)),
    (r"T\.match_(any|all)_sync\((.*)\)\), 'int32'\)", (r"T.match_\1_sync(\2, mask=0xFFFFFFFF)), 'int32')",)),
    (r"T\.get_warp_group_idx\(\)", ("T.get_warp_group_idx(32, 4)",)),
    (r"T\.get_cluster_(id|extent)\(\)", (r"T.get_cluster_\1(0)",)),
    (r"T\.rng_rand_float\(\)", ('T.rng_rand_float(32, "uniform")',)),
    (
        r'T\.make_tensor(_from_addr)?\((.*), \((\d+), (\d+)\), ("\w+")\)$',
        (r"T.make_tensor\1(\2, (\3, \4), \5, strides=(\4, 1))",),
    ),
    (r'T\.round\((T\.cast\(.*, "float\d\d"\)) \* 7\.3\)', (r'T.round(\1 * 7.3, "ties-away-from-zero")',)),
    (r"T\.__ldg\((\w+)\[tx\]\)", (r"T.__ldg(\1, tx)",)),
    (r"(T\.copy_cluster\(.*)\)$", (r'\1, eviction_policy="evict_last")',)),
    (r"(T\.wgmma_gemm\(.*)\)$", (r"\1, policy=T.GemmWarpPolicy.FullRow)",)),
    (r'T\.dynamic\("(\w+)"\)', (r'T.dynamic("\1", "int32")',)),
    (r"(T\.rng_init\(.*)\)$", (r'\1, generator="curandStateXORWOW_t")',)),
)
"""What calls leave out as a rule, said: a form of text, and what may stand in its place."""


@cache
def other_names() -> dict[str, tuple[str, ...]]:
    """All names that a word has, by each of them."""
    return {
        name: (word, *others)
        for word, (value, others) in language_pages.words().items()
        if others and inspect.isroutine(value)
        for name in (word, *others)
    }


class WordWriter(TileWords):
    """Writes the program of a seed."""

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        mine: list[tuple[float, Callable[[], None]]] = [
            (4, self.function), (4, self.older), (2, self.pairs), (2, self.lanes_by_number), (2, self.converted), (2, self.taken_for_true),
        ]  # fmt: skip
        if self.context.group is None:
            mine += [(3, self.by_reference), (2, self.with_methods)]
        if not self.parted_by and self.context.group is None:
            mine += [
                (5, self.words_written),
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
                    (4, self.combined),
                    (1, self.by_atomics),
                    (2, self.in_parts_of_bytes),
                ]
        return self.weighed(super().ways(), mine, 25)

    def statement(self, ways: list[tuple[float, Callable[[], None]]] | None = None) -> None:
        """As often as not one that mixed programs have: those of several families crowd it out otherwise."""
        plain = ways is None and not self.parted_by and self.context.group is None and self.chance(0.4)
        super().statement(MixedWriter.ways(self) if plain else ways)

    def new_tile(
        self, shape: tuple[int, ...] | None = None, dtype: str | None = None, scope: str | None = None
    ) -> Tile:
        return super().new_tile(shape, dtype or (self.pick(SELDOM) if self.chance(0.04) else None), scope)

    # Memory ------------------------------------------------------------------------------------------

    def words_written(self) -> None:
        """Words of neighbouring bytes that each thread writes into a tensor of the caller's, or leaves alone."""
        size = self.pick((32, 64, 64, 128, 128, 256, 256))
        lanes = size // 32
        parts = self.blocks * self.grid_y
        source, into = (self.tensor((count * self.threads * lanes,), "int32", (0, 99)) for count in (1, parts))
        test = f", pred={self.test()}" if self.chance(0.4) else ""
        read = f", pred={self.test()}" if self.chance(0.3) else ""
        value = f"T.ldg{size}({source.name}[tx * {lanes}]{read})"
        if self.chance(0.3):
            one = f'T.cast({self.brought_back(self.number(), 99).text}, "uint32")'
            value = one if lanes == 1 else f"T.Broadcast({one}, {lanes})"
        place = self.pick(("tx", f"({self.threads - 1} - tx)", f"((tx + 3) % {self.threads})"))
        if parts > 1:  # each block has a part of its own
            place = f"(({'bx' if self.grid_y == 1 else f'(bx * {self.grid_y} + by)'}) * {self.threads} + {place})"
        self.emit(f"T.stg{size}({into.name}[{place} * {lanes}], {value}{test})")
        if self.chance(0.5):
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
