"""Mixed programs of few kinds of statements, types and shapes each, so that what there is meets more often.

A program that may do anything seldom does the same kind of thing twice to the same tile.  Every program here draws which statements it is made
of and how often, the types and shapes of its tiles, and how much it prefers what it made last; some forget tiles once they were read, so that
others take their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mixed_tiles import NARROW, WIDE, Tile
from mixed_writer import MixedWriter

from tilewright.ir.dtypes import ALL

SHAPES = ((16,), (8,), (4,), (2,), (8, 16), (16, 8), (32,), (4, 4), (100,), (37,), (8, 40), (3, 72), (16, 36))
"""Shapes beside those of mixed programs: of few bytes, and with a rest behind whole vectors."""


REMAINING = ((100,), (37,), (55,), (75,), (133,))
"""Those of which vectors leave so much that loops over nearly all of a row take as many of them."""


class SwarmWriter(MixedWriter):
    """Writes the program of a seed."""

    rows = 0
    """Threads of a block along its second dimension, where it has two."""

    divides = True
    """Whether its author says what which warps do."""

    def start(self) -> None:
        self.weights: dict[str, float] = {}
        self.types = [
            self.pick(WIDE) if self.chance(0.75) else self.pick(NARROW) for _ in range(self.pick((1, 2, 2, 3)))
        ]
        self.shapes = [
            self.pick(SHAPES) if self.chance(0.35) else super(SwarmWriter, self).shape()
            for _ in range(self.pick((1, 2, 2, 3)))
        ]
        self.shapes += [shape[::-1] for shape in self.shapes if len(shape) == 2 and self.chance(0.3)]
        self.recent, self.forgetful = self.pick((0.0, 0.3, 0.6)), self.chance(0.5)
        self.scope = self.pick(("", "", "shared", "fragment"))
        self.specialized = self.pick((0.0, 0.1, 0.6))
        self.variables: dict[str, tuple[int, int]] = {}
        super().start()
        if self.chance(0.3):
            self.reassigned()

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        """Each kind of statement as often as this program likes it; many not at all."""
        more: list[tuple[float, Callable[[], None]]] = [
            (2, self.last_use),
            (2, self.reassigned),
            (2, self.runs_in_a_row),
        ]
        if not self.roles and self.threads >= 64 and self.thread_name:
            more += [(3, self.warps_in_turn)]
        found = []
        for weight, way in [*super().ways(), *more]:
            name = way.__name__
            if name not in self.weights:
                self.weights[name] = self.pick((0.0, 0.0, 0.5, 1.0, 1.0, 4.0))
            found.append((weight * self.weights[name] + 0.01, way))
        return found

    def shape(self) -> tuple[int, ...]:
        return self.pick(self.shapes) if self.chance(0.85) else super().shape()

    def new_tile(
        self, shape: tuple[int, ...] | None = None, dtype: str | None = None, scope: str | None = None
    ) -> Tile:
        scope = scope or (self.scope if self.chance(0.7) else "") or None
        return super().new_tile(shape, dtype or (self.pick(self.types) if self.chance(0.85) else None), scope)

    def usable(self, scopes: tuple[str, ...] = ("shared", "fragment"), value: bool | None = True) -> list[Tile]:
        found = super().usable(scopes, value)
        return found[-2:] if self.chance(self.recent) else found

    def known(self, name: str, low: int, high: int, times: int = 3) -> None:
        """A scalar that statements here may read, more likely than the others."""
        self.context = replace(self.context, indices=(*self.context.indices, *[(name, low, high)] * times))

    def leave(self) -> None:
        if self.forgetful:
            kept = [tile for tile in self.tiles if self.chance(0.6)]
            self.tiles = kept or self.tiles
        super().leave()

    def growing(self, count: int) -> None:
        before = len(self.context.indices)
        if self.chance(0.3):
            self.named()
        super().growing(count)
        if len(self.context.indices) > before and self.chance(0.6):  # what was named is spoken of last
            self.speak(self.context.indices[-1][0])

    def leading(self) -> tuple[str, int] | None:
        """What a loop's turns bring mostly differs."""
        if self.context.loops and self.chance(0.6):
            return f"{self.context.loops[-1]} % 4", 4
        return super().leading()

    def start_in(self, extent: int) -> str:
        names = [one[0] for one in self.context.indices if one[0] in self.variables]
        if extent and names and self.chance(0.2):
            return f"{self.pick(names)} * {self.pick((1, 2, 4, 8))}"
        if extent and self.chance(0.05):
            return f"{self.flags.name}[{self.index(0, 7)}] * {self.pick((1, 2, 4, 8))}"
        return super().start_in(extent)

    def run_of(self, extent: int) -> int:
        return max(1, extent - self.between(1, 3)) if self.chance(0.5) else super().run_of(extent)

    # Statements --------------------------------------------------------------------------------------

    def named(self) -> None:
        before = self.context.indices
        super().named()
        for name, low, high in self.context.indices[len(before) :]:
            if any(line.strip().startswith(f"{name} = T.alloc_var") for line in self.lines[-2:]):
                self.variables[name] = low, high
            self.known(name, low, high, 2)
            if self.chance(0.6):
                self.speak(name)

    def speak(self, name: str) -> None:
        """Every element of a tile is computed with a scalar."""
        tiles = [one for one in self.usable(value=None) if one.base is None and ALL[one.dtype].kind != "bool"]
        if not tiles:
            return
        tile = self.pick(tiles)
        indices, (floor, ceiling) = self.loop(tile.shape), self.room(tile)
        low, high = max(floor, -6), min(ceiling, 6)
        text, *_ = self.term(indices, tile, "int32", 1)
        place = ", ".join(one for one, _ in indices)
        self.emit(f'    {tile.name}[{place}] = T.cast(T.clamp({text} + {name}, {low}, {high}), "{tile.dtype}")')
        self.wrote(tile, (low, high))

    def reassigned(self) -> None:
        """A variable takes another value, or keeps its own; of warps of their own it would be another variable."""
        if self.context.group is not None:
            return
        mine = [one for one in self.context.indices if one[0] in self.variables]
        if not mine:
            name = self.name("c")
            self.emit(f'{name} = T.alloc_var("int32", init={self.index(0, 7)})')
            self.variables[name] = 0, 7
            self.known(name, 0, 7)
            return
        name = self.pick(mine)[0]
        low, high = self.variables[name]
        value = self.index(low, high)
        if self.chance(0.5):
            value = f"T.if_then_else({self.plain_condition()}, {value}, {name})"
        self.emit(f"{name} = {value}")
        self.feature("reassigned", str(self.context.pipelined))

    def plain_condition(self) -> str:
        while "_of(" in (said := self.condition()):
            pass
        return said

    def last_use(self) -> None:
        """A tile is left alone for a while, then read once more, in one way or another, and then no longer needed."""
        tiles = [
            one for one in self.usable(("shared", "fragment"))
            if one.base is None and all(other.holder is not one or other is one for other in self.tiles)
        ]  # fmt: skip
        if not tiles or self.context.depth > 2 or self.roles:
            return
        tile = self.pick(tiles)
        self.tiles.remove(tile)
        if self.chance(0.5):  # whose bytes may be those of the tile
            self.new_tile(tile.shape, tile.dtype, tile.scope)
        self.statements(self.between(0, 2))
        others = self.tiles
        self.tiles = [tile]
        if tile.scope == "shared" and self.chance(0.5):
            self.named()
            self.tiles = others
            self.speak(self.context.indices[-1][0])
        else:
            self.tiles = others
            self.read(tile)
        self.feature("last use", tile.scope)

    def read(self, tile: Tile) -> None:
        """A tile of which every element is made of one of another."""
        out = self.new_tile(dtype=tile.dtype)
        if out.holder.sums_in or not self.takes(out, tile.range):
            return
        indices = self.loop(out.shape)
        place = self.element(tile, indices, None)
        self.emit(f"    {out.name}[{', '.join(name for name, _ in indices)}] = {tile.name}[{place}]")
        self.wrote(out, tile.range)

    def runs_in_a_row(self) -> None:
        """Loops one after another, each over nearly all of a tile's rows, from one place or another, and in types of its own."""
        fitting = (
            one for one in self.usable(value=None)
            if one.shape[-1] > 32 and not ALL[one.dtype].is_packed and ALL[one.dtype].kind != "bool"
        )  # fmt: skip
        known = next(fitting, None) if self.chance(0.3) else None
        tile = known or self.new_tile(self.pick(REMAINING), self.pick(WIDE))
        if tile.holder.sums_in:
            return
        if self.chance(0.5):
            values = self.start_range(tile.dtype)
            self.emit(f"T.copy({self.tensor(tile.shape, tile.dtype, values).name}, {tile.name})")
            self.wrote(tile, (min(0, values[0]), max(0, values[1])))
        else:
            self.pick((self.fill, self.load))(tile)
        for _ in range(self.between(1, 3)):
            run = tile.shape[-1] - self.between(0, 3)
            shift = self.between(0, tile.shape[-1] - run)
            indices = self.loop((*tile.shape[:-1], run))
            kind = self.pick(("int64", "int32", "float32", "float64", "float16"))
            self.shifted = True
            text, low, high = self.term(indices, tile, kind, self.between(0, 1))
            self.shifted = False
            floor, ceiling = max(self.room(tile)[0], -6), min(self.room(tile)[1], 6)
            if low < floor or high > ceiling:
                text, low, high = (
                    f"T.clamp({text}, {self.cast(str(floor), kind)}, {self.cast(str(ceiling), kind)})",
                    floor,
                    ceiling,
                )
            place = (
                ", ".join(name for name, _ in indices[:-1])
                + (", " if indices[:-1] else "")
                + f"{indices[-1][0]} + {shift}"
            )
            self.emit(f'    {tile.name}[{place}] = T.cast({text}, "{tile.dtype}")')
            self.wrote(tile, (low, high), whole=False)
        self.feature("runs in a row")

    def warps_in_turn(self) -> None:
        """Conditions on the thread one after another, under each of which some warps read or write tiles, those of others too."""
        if self.context.group is not None or self.context.depth > 1:
            return
        warps = self.threads // 32
        for _ in range(self.between(2, 4)):
            first = self.between(0, warps - 1)
            count = self.between(1, warps - first)
            test = self.pick(
                (
                    f"tx // 32 == {first}",
                    f"tx >= {first * 32} and tx < {(first + count) * 32}",
                    f"tx < {32 * count}",
                    f"tx >= {32 * first}",
                )
            )
            header = (
                f"with T.ws({first}):"
                if self.threads % 128 == 0 and not self.rows and first < self.threads // 128 and self.chance(0.3)
                else f"if {test}:"
            )
            known = self.tiles
            self.tiles = [one for one in known if one.scope in ("shared", "global")]
            with self.inside(header):
                targets = self.usable(("shared",))
                if targets and self.chance(0.7):
                    self.compute(self.pick(targets))
                else:
                    self.through_tensor()
            made = [one for one in self.tiles if one not in known]
            self.tiles = known + [one for one in made if one.scope == "global"]
        self.feature("warps in turn")
