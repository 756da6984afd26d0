"""Programs around products in loops, of which every part is drawn: where operands come from and lie, what decides whether a turn multiplies,
what a turn names, what the sums meet behind the loop.

Mixed programs seldom have a product in a loop of which more than one thing is unusual, and most of what compilers do for products
(warps that only load, operands that need not lie in shared memory, boxes of the copy engine) asks about all of these at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mixed_tiles import Tile
from swarm_writer import SwarmWriter
from tile_programs import Param

OPERANDS = ("float16", "float16", "float16", "bfloat16", "int8", "float32")
ROUNDED = ("float16", "bfloat16")
"""Types whose sums here are no numbers of the type."""


@dataclass(frozen=True)
class Looped:
    """A product in a loop: rows and columns of its sums, elements of k of a turn, turns."""

    rows: int
    columns: int
    inner: int
    turns: int
    dtype: str
    loop: str


class ProductWriter(SwarmWriter):
    """Writes the program of a seed."""

    def start(self) -> None:
        self.left = self.pick((1, 1, 2))
        """Products that the program still gets."""

        self.turned_b, self.masked = self.chance(0.6), self.chance(0.4)
        self.by_pointer, self.safe, self.short = self.chance(0.3), self.chance(0.35), self.chance(0.5)
        self.by_hand, self.laid = self.chance(0.2) and self.divides, self.chance(0.3)
        if self.by_hand:  # for the machine that has products which are started and waited for
            self.left = self.pick((1, 2, 2))
            self.machines, self.threads = ("cuda -arch=sm_90a",), self.pick((128, 128, 256))
        if not self.cluster and self.chance(0.3):
            self.special = self.pick((", persistent=True", ", persistent=True", ', persistent="claim"'))
        super().start()

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        others = super().ways()
        if self.context.depth or self.roles:
            return others
        total = sum(weight for weight, _ in others)
        mine = [(total * 2 if self.left else 0.0, self.looped_product), (total * 0.06, self.rounded_sums)]
        return [*others, *mine]

    # The loop ----------------------------------------------------------------------------------------

    def looped_product(self) -> None:
        self.left -= 1
        by_hand = self.by_hand and self.chance(0.8)
        looped = self.drawn_loop(by_hand)
        a, b = self.staged((looped.rows, looped.inner), looped.dtype), self.turned_operand(looped)
        total, words = self.name("f"), [] if by_hand else self.said_of(looped)
        if by_hand:
            words = ["transpose_B=True"] * self.turned_b
        kind = "int32" if looped.dtype == "int8" and not any("=A" in word for word in words) else "float32"
        first = self.pick((f"bx * {looped.rows}", "0", f"bx * {looped.rows // 2}"))
        named = self.name("c") if self.chance(0.3) else ""
        before = [f"{named} = {self.flags.name}[{looped.loop} % 8]"] * bool(named)
        before += [
            self.brought(a, looped, 1, first, named),
            self.brought(b, looped, 1 if self.turned_b else 0, "0", named),
        ]
        self.emit(f'{total} = T.alloc_fragment(({looped.rows}, {looped.columns}), "{kind}")', f"T.clear({total})")
        self.before_turns(looped, a)
        header = self.header(looped)
        outer = self.context
        indices = (*outer.indices, (looped.loop, 0, looped.turns - 1))
        with self.inside(header, indices=indices, **self.of_turns(looped)):
            self.emit(*before)
            element = self.named_element(a, b) if self.chance(0.3) else ""
            left = self.within(looped, a)
            product = [f"T.{'wgmma_gemm' if by_hand else 'gemm'}({', '.join([left.name, b.name, total, *words])})"]
            product += ["T.wait_wgmma(0)"] * by_hand
            mask = self.mask(looped) if self.masked else ""
            self.emit(*([f"if {mask}:", *(f"    {line}" for line in product)] if mask else product))
            if element:
                self.all_of(total, looped, f'{{}} + T.cast({element}, "{kind}")')
            self.behind(looped)
        self.context = outer
        bound = looped.turns * (looped.inner * 9 * 3 + 4 * 3 + 9)
        made = Tile(total, "fragment", (looped.rows, looped.columns), kind, (-bound, bound))
        self.met_by(made, looped)
        self.tiles.append(made)
        for tile in (a, b):
            if self.chance(0.4):
                self.tiles.append(tile)
        self.feature("looped product", looped.dtype, a.scope, b.scope, header.partition("(")[0].split()[-1])

    def drawn_loop(self, by_hand: bool) -> Looped:
        return Looped(
            self.threads // 2 if by_hand else self.pick((16, 16, 32, 64)), self.pick((16, 32, 64)), self.pick((16, 32, 64)),
            self.pick((1, 2, 3, 5)), self.pick(ROUNDED) if by_hand else self.pick(OPERANDS), self.name("k"),
        )  # fmt: skip

    def before_turns(self, looped: Looped, a: Tile) -> None:
        """What stands in front of the loop."""

    def of_turns(self, looped: Looped) -> dict[str, Any]:
        """What holds in the loop beside its index, where other statements stand in it."""
        return {}

    def within(self, looped: Looped, a: Tile) -> Tile:
        """What a turn does before its product; the left operand of that."""
        return a

    def behind(self, looped: Looped) -> None:
        """What a turn does behind its product."""

    def header(self, looped: Looped) -> str:
        form = self.between(0, 5)
        if form == 0:
            return f"for {looped.loop} in T.serial({looped.turns}):"
        more = ", specialize=True" if form < 4 else ""
        return f"for {looped.loop} in T.Pipelined({looped.turns}, num_stages={self.pick((1, 2, 2, 3))}{more}):"

    def staged(self, shape: tuple[int, int], dtype: str, scope: str = "shared") -> Tile:
        tile = Tile(self.name("s" if scope == "shared" else "f"), scope, shape, dtype, (-3, 3))
        self.emit(f'{tile.name} = T.alloc_{scope}({shape}, "{dtype}")')
        if self.laid and scope == "shared" and not self.by_hand and self.chance(0.4):
            self.annotate(tile)
        return tile

    def turned_operand(self, looped: Looped) -> Tile:
        """The right operand, the longer way or the other."""
        shape = (looped.columns, looped.inner) if self.turned_b else (looped.inner, looped.columns)
        return self.staged(shape, looped.dtype, "fragment" if not self.by_hand and self.chance(0.3) else "shared")

    def brought(self, tile: Tile, looped: Looped, along: int, first: str, named: str = "") -> str:
        """A copy of a tensor into an operand, turn by turn along one dimension; the other may come to its end before the tile does.
        What a name of the turn says may decide which of several matrices it is."""
        across = 1 - along
        shape = [tile.shape[0], tile.shape[1]]
        shape[across] *= self.blocks if first != "0" else 1
        shape[along] *= looped.turns
        extents = None
        if self.short and self.chance(0.6):
            shape[across] = max(1, shape[across] - self.pick((0, 3, 5, 8, shape[across] // 2)))
        if self.dynamic and self.chance(0.3):
            extents = [str(one) for one in shape]
            extents[across], shape[across] = self.pick(self.dynamic)
        ends = self.signs.random() < (0.25 if tile.scope == "fragment" else 0.08) and extents is None
        if ends:  # in the middle of the tile, and what is behind it is the author's number
            shape[across] = max(1, shape[across] - self.signs.randint(1, tile.shape[across] - 1))
        starts = [first, first]
        starts[along] = f"{looped.loop} * {looped.inner}"
        if named and extents is None and self.chance(0.5):
            stacked = self.tensor((4, *shape), tile.dtype, (-3, 3))
            return f"T.copy({stacked.name}[{named}, {starts[0]}, {starts[1]}], {tile.name})"
        source = self.source_of((shape[0], shape[1]), tile.dtype, extents, ends)
        return f"T.copy({source}[{starts[0]}, {starts[1]}], {tile.name})"

    def source_of(self, shape: tuple[int, int], dtype: str, extents: list[str] | None, ends: bool) -> str:
        """A tensor: a parameter, or what an entry of a table points to that a variable may choose."""
        if self.by_pointer and extents is None and self.chance(0.6):
            table, name, count = self.name("P"), self.name("A"), self.pick((1, 2, 3))
            self.params.append(
                Param(
                    table, f"T.Tensor(({count},), T.ptr)", [self.numbers(shape, dtype, (-3, 3)) for _ in range(count)]
                )
            )
            which = self.index(0, count - 1)
            if self.chance(0.5):
                variable, turn = self.name("c"), self.name("k")
                self.emit(f'{variable} = T.alloc_var("int32", init=0)', f"for {turn} in T.serial({count}):")
                test = self.pick((f"bx >= {turn}", f"{self.flags.name}[{turn}] > 0"))
                self.emit(f"    {variable} = T.if_then_else({test}, {turn}, {variable})")
                which = variable
            self.emit(f'{name} = T.make_tensor({table}[{which}], {shape}, "{dtype}")')
            return name
        made = self.tensor(shape, dtype, (-3, 3), tuple(extents or ()))
        if self.safe and self.chance(0.7):
            self.safe_value(made, (-3, 3))
        elif ends:
            self.lines.insert(0, f"T.annotate_safe_value({{{made.name}: {self.signs.choice((-3, -1, 1, 2))}}})")
            self.feature("safe value")
        return made.name

    def said_of(self, looped: Looped) -> list[str]:
        """What the product is told beside its operands."""
        words = ["transpose_B=True"] if self.turned_b else []
        if looped.dtype != "float32" and self.turned_b and self.chance(0.4):
            if self.chance(0.6):
                words.append(f"scale_B={self.row_of(looped.columns, '0')}")
            if self.chance(0.7):
                words.append(f"shift={self.row_of(looped.rows, f'bx * {looped.rows}')}")
        return words

    def row_of(self, length: int, start: str) -> str:
        """A part of a row of small numbers, which may end within it."""
        whole = length if start == "0" or self.blocks == 1 else length * self.blocks - self.pick((0, 0, 3, 7))
        tensor = self.tensor((whole,), "float32", (0, 3))
        return f"{tensor.name}[{start} : {start} + {length}]"

    def mask(self, looped: Looped) -> str:
        """What decides whether a turn multiplies."""
        return str(
            self.pick(
                (
                    f"{self.flags.name}[{looped.loop} % 8] != 0",
                    f"{looped.loop} % 2 == 0",
                    "bx == 0",
                    self.plain_condition(),
                )
            )
        )

    def named_element(self, *tiles: Tile) -> str:
        """A variable that begins with an element of a shared tile; nothing where both are fragments."""
        shared = [one for one in tiles if one.scope == "shared" and one.dtype != "int8"]
        if not shared:
            return ""
        tile, name = self.pick(shared), self.name("c")
        at = ", ".join(str(self.between(0, extent - 1)) for extent in tile.shape)
        self.emit(f'{name} = T.alloc_var("{tile.dtype}", init={tile.name}[{at}])')
        return str(name)

    def all_of(self, total: str, looped: Looped, value: str) -> None:
        self.emit(f"for i, j in T.Parallel({looped.rows}, {looped.columns}):")
        self.emit(f"    {total}[i, j] = {value.format(f'{total}[i, j]')}")

    # Behind the loop ---------------------------------------------------------------------------------

    def met_by(self, total: Tile, looped: Looped) -> None:
        """What the sums meet: loops that may be left, and loops over parts of them."""
        if self.chance(0.35):
            self.counted_into(total, looped)
        if self.chance(0.35):
            axis = self.between(0, 1)
            part = self.pick([one for one in (4, 8, 16) if one <= total.shape[axis]])
            extents = list(total.shape)
            extents[axis] = part
            for first in range(0, total.shape[axis], part):
                place = [f"{first} + i", "j"] if axis == 0 else ["i", f"{first} + j"]
                element = f"{total.name}[{', '.join(place)}]"
                self.emit(
                    f"for i, j in T.Parallel({extents[0]}, {extents[1]}):", f"    {element} = {element} - {first % 3}"
                )
            low, high = total.range or (0, 0)
            total.range = low - 2, high
        if self.chance(0.2):
            self.output(total)

    def counted_into(self, total: Tile, looped: Looped) -> None:
        """A variable counts in a loop that it may leave, and is added to the sums; all that once or in turns."""
        name, turn = self.name("c"), self.name("k")
        turns = self.pick((1, 1, 2))
        depth = ""
        if turns > 1:
            self.emit(f"for {self.name('k')} in T.serial({turns}):")
            depth = "    "
        self.emit(f'{depth}{name} = T.alloc_var("int32")', f"{depth}{name} = {self.index(0, 3)}")
        self.emit(
            f"{depth}for {turn} in T.serial({self.pick((2, 3, 5))}):", f"{depth}    {name} = {name} + {self.flags.name}[{turn}]",
            f"{depth}    if {name} > {self.between(0, 4)}:", f"{depth}        {self.pick(('break', 'T.loop_break()'))}",
        )  # fmt: skip
        self.emit(f"{depth}for i, j in T.Parallel({looped.rows}, {looped.columns}):")
        self.emit(f'{depth}    {total.name}[i, j] = {total.name}[i, j] + T.cast({name}, "{total.dtype}")')
        low, high = total.range or (0, 0)
        total.range = low, high + turns * 20

    # Sums that are rounded ---------------------------------------------------------------------------

    def rounded_sums(self) -> None:
        """Sums of halves that no half is, added to what is there, rounded once."""
        dtype, rows, columns = self.pick(ROUNDED), self.pick((4, 8, 33)), self.pick((16, 64, 100))
        most = 63 if dtype == "float16" else 31
        source, first = self.tensor((rows, columns), dtype, (1, most)), self.tensor((rows,), dtype, (0, most))
        scope = self.pick(("fragment", "shared"))
        tile, out = self.staged((rows, columns), dtype, scope), self.name("f")
        self.emit(f'{out} = T.alloc_fragment(({rows},), "{dtype}")', f"T.copy({source.name}, {tile.name})")
        kept = self.chance(0.7)
        self.emit(*([f"T.copy({first.name}, {out})"] if kept else []))
        self.emit(f"T.reduce_sum({tile.name}, {out}, dim=1{', clear=False' if kept else ''})")
        self.emit(f"T.copy({out}, {self.result((rows,), dtype).name}[{self.block_place()}, :])")
        self.feature("rounded sums", dtype)
