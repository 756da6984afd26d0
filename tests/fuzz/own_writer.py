"""Programs in which threads change variables of their own under conditions, beside work over tiles, and read them behind it.

What a thread has for itself is easily lost where threads part ways: work under a condition becomes a role, a loop, or the business of one
thread, and what stood beside it goes along or stays.  So conditions here are of every kind: of warps, of some threads of a warp, of a thread's
numbers, of the block; they nest, stand in loops and pipelines, and have branches for the others.  Whatever the variables hold is read later:
in a store of each thread, in further conditions, as what the next change begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mixed_tiles import Tile
from thread_writer import Number, ThreadWriter

from tilewright.ir.dtypes import ALL

RANGES = {
    "int32": (-2000, 2000), "int64": (-2000, 2000), "float32": (-2000, 2000), "uint32": (0, 2000), "int16": (-2000, 2000),
    "uint16": (0, 2000), "float16": (-2000, 2000), "bfloat16": (-200, 200), "int8": (-128, 127), "uint8": (0, 255), "bool": (0, 1),
}  # fmt: skip
"""What a variable of a type may hold here; that of whole numbers of 8 bits wraps around."""

TYPES = ("int32", "int32", "int32", "float32", "int64", "uint32", "int16", "uint16", "float16", "bfloat16", "int8", "uint8", "bool")  # fmt: skip

WRAPS = ("int8", "uint8")


@dataclass
class Own:
    """A variable of each thread, or an element of an array of each thread."""

    place: str
    dtype: str
    left: int
    """By how much additions may still change it."""

    @property
    def range(self) -> tuple[int, int]:
        return RANGES[self.dtype]

    @property
    def number(self) -> Number:
        return Number(self.place if self.dtype == "int32" else f'T.cast({self.place}, "int32")', *self.range)


class OwnWriter(ThreadWriter):
    """Writes the program of a seed."""

    longest_branch = 3
    """Statements that threads which part ways do at most until they come together."""

    def start(self) -> None:
        self.owns: list[Own] = []
        super().start()
        for _ in range(self.between(1, 3)):
            self.own_variable()

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        changes: list[tuple[float, Callable[[], None]]] = [(5, self.changed), (3, self.own_told)]
        if self.context.depth < 4:
            changes += [(3, self.parted), (2, self.own_turns)]
        if self.parted_by:
            return changes + (self.work_over_tiles() if self.parted_by != "numbers" else [])
        changes += [(3, self.own_variable), (8, self.parted), (2, self.own_pipeline)]
        others = super().ways()
        total = sum(weight for weight, _ in others) if self.context.group is None else 0.0
        return others if not total else [*others, *((weight * total / 25, way) for weight, way in changes)]

    def work_over_tiles(self) -> list[tuple[float, Callable[[], None]]]:
        """Statements that the threads which come there divide among them."""
        ways: list[tuple[float, Callable[[], None]]] = [
            (4, self.some_compute), (5, self.some_load), (2, self.some_move), (2, self.slice_fill), (1, self.through_tensor), (4, self.of_its_tile),
        ]  # fmt: skip
        if self.parted_by in ("warps", "block"):
            ways += [(1, self.reduction), (1, self.running), (1, self.product), (1, self.turned), (1, self.extra_tile)]
        return ways

    def new_tile(
        self, shape: tuple[int, ...] | None = None, dtype: str | None = None, scope: str | None = None
    ) -> Tile:
        return super().new_tile(shape, dtype, "shared" if self.parted_by == "threads" else scope)

    def condition(self) -> str:
        """What all threads must come to is not asked under conditions on them."""
        while "_of(" in (said := super().condition()) and self.parted_by:
            pass
        return said

    @contextmanager
    def inside(self, header: str, **changes: Any) -> Iterator[None]:
        """Variables that a block declares are not there behind it."""
        known = list(self.owns)
        with super().inside(header, **changes):
            yield
        self.owns = known

    # Variables ---------------------------------------------------------------------------------------

    def own_variable(self) -> None:
        """A variable with a first value, or an array of which each element gets one."""
        dtype = self.pick(TYPES)
        first = self.value_of(dtype, 20)
        name, left = self.name("o"), RANGES[dtype][1] - 30
        if self.chance(0.2) and dtype != "bool":
            count = self.pick((1, 2, 4))
            self.emit(f'{name} = T.alloc_local(({count},), "{dtype}")')
            for at in range(count):
                self.emit(f"{name}[{at}] = {first if not at else self.value_of(dtype, 20)}")
                self.owns.append(Own(f"{name}[{at}]", dtype, left))
        else:
            if self.chance(0.6):
                self.emit(f'{name} = T.alloc_var("{dtype}", init={first})')
            else:
                self.emit(f'{name} = T.alloc_var("{dtype}")', f"{name} = {first}")
            self.owns.append(Own(name, dtype, left))
        self.feature("own", "variable", dtype)

    def value_of(self, dtype: str, most: int) -> str:
        """A value for a variable: a constant, a number of the thread, a number of the block."""
        if dtype == "bool":
            return self.pick((self.test(), "True", "False"))
        low = max(-most, RANGES[dtype][0])
        if self.chance(0.3):
            return f'T.cast({self.between(low, most)}, "{dtype}")'
        if self.chance(0.3):
            return f'T.cast({self.index(max(low, 0), most)}, "{dtype}")'
        one = self.number(low, most)
        return f'T.cast({one.text}, "{dtype}")'

    def number(self, low: int = -(2**20), high: int = 2**20) -> Number:
        """As often as not what a variable holds now."""
        fitting = [one.number for one in self.owns if low <= one.range[0] and one.range[1] <= high]
        return self.pick(fitting) if fitting and self.chance(0.5) else super().number(low, high)

    def changed(self) -> None:
        """A variable gets another value: one of what it had, or not."""
        if not self.owns:
            return
        one = self.pick(self.owns)
        place, dtype = one.place, one.dtype
        if dtype == "bool":
            self.emit(f"{place} = {self.pick((self.test(), f'{self.test()} and {place}', f'not {place}'))}")
            return
        low, high = one.range
        step = self.between(1, 9)
        value = self.value_of(dtype, min(high, 100))
        spent = (0 if dtype in WRAPS else step) * self.context.turns
        ways = [
            f"{place} = {value}", f"{place} = T.max({place}, {value})", f"{place} = T.min({place}, {value})",
            f"{place} = T.if_then_else({self.test()}, {place}, {value})",
        ]  # fmt: skip
        if spent <= one.left:
            one.left -= spent
            added = self.pick((f'T.cast({step}, "{dtype}")', self.value_of(dtype, step), str(step)))
            ways += [f"{place} += {added}", f"{place} = {place} + {added}"] * 2
            ways += [f"{place} -= {added}"] if low < 0 or dtype in WRAPS else []
            ways += [f'{place} = {place} * T.cast({step}, "{dtype}") + {value}'] if dtype in WRAPS else []
        self.emit(self.pick(ways))
        self.feature("own", "changed", dtype, self.parted_by)

    def of_its_tile(self) -> None:
        """A variable gets an element of a shared tile, where each thread says."""
        tiles = [one for one in self.usable(("shared",)) if not ALL[one.dtype].is_packed]
        pairs = [
            (own, tile) for own in self.owns for tile in tiles
            if own.dtype != "bool" and tile.range and own.range[0] <= tile.range[0] and tile.range[1] <= min(own.range[1], 100)
        ]  # fmt: skip
        if not pairs:
            return
        own, tile = self.pick(pairs)
        place = ", ".join(self.brought_back(self.number(0, 2**20), extent).text for extent in tile.shape)
        self.emit(f'{own.place} = T.cast({tile.name}[{place}], "{own.dtype}")')
        self.feature("own", "of a tile", self.parted_by)

    # Where threads part --------------------------------------------------------------------------------

    def decided(self) -> tuple[str, str]:
        """A condition, and what decides in it."""
        warps = self.threads // 32
        first = self.between(0, max(0, warps - 2))
        end = self.between(first + 1, warps)
        ways = [
            (f"tx < {self.pick((1, 5, 17, 48, self.threads - 3)) % self.threads or 1}", "threads"), (f"tx == {self.between(0, self.threads - 1)}", "threads"),
            (f"tx % {self.pick((2, 3, 32))} == 0", "threads"), (f'T.cast(tx - {self.between(1, self.threads - 1)}, "{self.pick(("uint32", "uint8", "int64"))}") < {self.between(1, 9)}', "threads"), (self.test(), "numbers"), (self.test(), "numbers"),
            (self.plain_condition(), "block"),
        ]  # fmt: skip
        if self.rows:
            across = self.threads // self.rows
            row, by = self.between(0, self.rows - 1), "warps" if across % 32 == 0 else "threads"
            ways += [
                (f"t1 == {row}", by),
                (f"t1 > {row // 2}", by),
                (f"t0 < {self.between(1, across - 1)}", "threads"),
            ] * 2
        if warps > 1:
            ways += [
                (f"tx < {32 * self.between(1, warps - 1)}", "warps"), (f"tx >= {32 * self.between(1, warps - 1)}", "warps"),
                (f"tx // 32 == {first}", "warps"), (f"tx >= {32 * first} and tx < {32 * end}", "warps"),
                (f'T.cast(tx - {32 * first}, "uint32") < {32 * (end - first)}', "warps"), (f"T.get_warp_idx() < {self.between(1, warps - 1)}", "warps"), (f"tx // 32 != {self.pick((0, warps - 1))}", "warps"),
            ] * 2  # fmt: skip
        test, by = self.pick(ways)
        if self.chance(0.1) and by != "block":
            return f"{test} and {self.plain_condition()}", "numbers"
        return test, by

    def parted(self) -> None:
        """A condition, branches of which change variables and work on tiles; no tile is another branch's."""
        outer, known = self.parted_by, self.tiles
        heads, last = [f"if {(said := self.decided())[0]}:"], said[1]
        alone = self.threads % 128 == 0 and not outer and not self.context.pipelined and self.divides
        groups = self.threads // 128 if alone else 0
        if groups and not self.rows and self.chance(0.25):
            first = self.between(0, groups - 1)
            heads, last = [f"with T.ws({group}):" for group in range(first, self.between(first + 1, groups))], "warps"
        elif self.chance(0.3):
            other = self.decided()
            heads.append(f"elif {other[0]}:")
            last = last if other[1] == last else "numbers"
        if heads[0].startswith("if") and self.chance(0.35):
            heads.append("else:")
        by = (
            last
            if outer in ("", "block")
            else "threads"
            if {outer, last} <= {"warps", "threads", "block"}
            else "numbers"
        )
        # The branches of warps are done at once, and those of a thread's numbers work on no tiles.
        shared = [one for one in known if one.scope in ("shared", "global") and one.base is None]
        dealt = {id(one): self.between(0, len(heads) - 1) for one in shared}
        for number, head in enumerate(heads):
            self.parted_by = by
            alone = [one for one in shared if dealt[id(one)] == number and all(other.holder is not one or other is one for other in known)]  # fmt: skip
            self.tiles = known if by == "block" else alone
            with self.inside(head, sure=False):
                self.statements(self.between(1, self.longest_branch))
            made = [one for one in self.tiles if one not in known and one.scope == "global"]
            known += made
        self.parted_by, self.tiles = outer, known
        self.feature("own", "parted", by, outer)
        if self.chance(0.5):
            self.read_behind()

    def read_behind(self) -> None:
        """What the threads have now goes out, decides, or is what another number is made of."""
        if not self.owns:
            return
        self.pick((self.own_told, self.own_told, self.parted_by_it, self.worked_out))()

    def parted_by_it(self) -> None:
        """A condition on a variable, under which another one changes, or what it is goes out."""
        one, outer = self.pick(self.owns), self.parted_by
        test = one.place if one.dtype == "bool" else f"{one.number.text} {self.pick(('>', '<=', '!='))} {self.between(0, 9)}"  # fmt: skip
        self.parted_by = "numbers"
        with self.inside(f"if {test}:", sure=False):
            self.pick((self.changed, self.own_told))()
        self.parted_by = outer

    def own_turns(self) -> None:
        """A loop around changes; what is in it was not spent before."""
        loop, turns = self.name("k"), self.pick((1, 2, 3))
        with self.inside(
            f"for {loop} in {self.pick(('T.serial', 'range', 'T.unroll'))}({turns}):",
            indices=(*self.context.indices, (loop, 0, turns - 1)),
            turns=self.context.turns * turns,
            loops=(*self.context.loops, loop),
        ):
            self.changed()
            self.statements(self.between(1, 2))
        self.feature("own", "turns", self.parted_by)

    def own_pipeline(self) -> None:
        """A pipelined loop that brings a tile in every turn, of which variables change."""
        loop, turns = self.name("k"), self.between(1, 4)
        tile = super().new_tile(scope="shared")
        more = ", specialize=True" if self.chance(self.specialized) else ""
        self.meet(0.3)
        with self.inside(
            f"for {loop} in T.Pipelined({turns}, num_stages={self.between(0, 3)}{more}):",
            indices=(*self.context.indices, (loop, 0, turns - 1)),
            turns=self.context.turns * turns, pipelined=True, loops=(*self.context.loops, loop),
        ):  # fmt: skip
            self.load(tile)
            self.meet(0.4)
            self.parted()
            self.pick((self.of_its_tile, self.changed, self.parted, self.product))()
        self.meet(0.3)
        self.feature("own", "pipeline")

    def own_told(self) -> None:
        """A variable of each thread in an output."""
        if not self.owns:
            return
        one = self.pick(self.owns)
        dtype = one.dtype if self.chance(0.6) and one.dtype not in ("bool", "bfloat16") else "int32"
        out: Tile = self.result((self.threads,), dtype)
        text = one.place if dtype == one.dtype else f'T.cast({one.place}, "{dtype}")'
        self.emit(f"{out.name}[{self.block_place()}, tx] = {text}")
        self.feature("own", "told", one.dtype)

    def leave(self) -> None:
        for _ in self.owns:
            if self.chance(0.7):
                self.pick((self.own_told, self.parted_by_it))()
        super().leave()
