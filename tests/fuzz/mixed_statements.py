"""Statements of mixed programs: each draws from the tiles that there are, and keeps account of what they hold behind it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from mixed_tiles import MixedState, Tile
from tile_programs import Param

from tilewright.ir.dtypes import ALL


class MixedStatements(MixedState):
    """What single statements of a program may be."""

    # Simple statements ------------------------------------------------------------------------------

    def fill(self, tile: Tile) -> None:
        low, high = self.start_range(tile.dtype)
        if tile.holder.sums_in:
            return
        if self.chance(0.5):
            self.emit(f"T.clear({tile.name})")
            self.wrote(tile, (0, 0))
        else:
            value = self.between(low, high)
            self.emit(f"T.fill({tile.name}, {value})")
            self.wrote(tile, (value, value))

    def source(self, tile: Tile) -> tuple[str, tuple[int, int]]:
        """A region of a tensor as large as a tile, with its range: whole, strided, dynamic, beyond either end, by pointer."""
        dtype = (
            tile.dtype
            if self.chance(0.7) or ALL[tile.dtype].is_packed
            else self.pick(("float32", "int32", "int8", "float16"))
        )
        low, high = self.start_range(tile.dtype)
        other = self.start_range(dtype)
        values = max(low, other[0]), min(high, other[1])
        shape = [extent + self.pick((0, 0, 0, 3, 8, -1 if extent > 1 else 0)) for extent in tile.shape]
        if ALL[dtype].is_packed:
            shape[-1] = -(-shape[-1] * ALL[dtype].bits // 8) * 8 // ALL[dtype].bits
        extents = [str(one) for one in shape]
        if self.dynamic and self.chance(0.4) and not ALL[dtype].is_packed:
            axis = self.between(0, len(shape) - 1)
            extents[axis], shape[axis] = self.pick(self.dynamic)
            self.feature("dynamic", str(shape[axis]))
        lead = ""
        if found := self.leading():
            lead, count = f"{found[0]}, ", found[1]
            shape, extents = [count, *shape], [str(count), *extents]
        if self.chance(0.15) and not ALL[dtype].is_packed and len(shape) >= 2 and all(one.isdigit() for one in extents):
            named = self.strided(tuple(shape), dtype, values)
        elif self.chance(0.1) and not ALL[dtype].is_packed and all(one.isdigit() for one in extents):
            named = self.pointed(tuple(shape), dtype, values)
        else:
            named = self.tensor(tuple(shape), dtype, values, tuple(extents))
            if self.chance(0.12) and values[0] < values[1]:
                values = self.safe_value(named, values)
            if self.chance(0.4):
                self.tiles.append(named)
        starts = []
        for extent in shape[-len(tile.shape) :]:
            starts.append(self.start_in(extent))
        if self.chance(0.5):
            place = ", ".join(starts)
        else:
            place = ", ".join(f"{start} : {start} + {extent}" for start, extent in zip(starts, tile.shape, strict=True))
        return f"{named.name}[{lead}{place}]", (min(0, values[0]), max(0, values[1]))

    def leading(self) -> tuple[str, int] | None:
        """An index before those of a region, and how many there are; None for a tensor of the region's own rank."""
        return (self.index(0, 1), 2) if self.chance(0.25) else None

    def start_in(self, extent: int) -> str:
        """Where a region begins along a dimension of a tensor."""
        kind = self.between(0, 9)
        if kind < 5 or extent == 0:
            return "0"
        if kind < 7:
            return f"{self.pick(self.context.indices)[0]} * {self.pick((1, 2, 8))}"
        if kind == 7:
            (name, low, high), before = self.pick(self.context.indices), self.between(1, 9)
            if high <= max(low, 0):
                return "0"
            # What is below nought in any case counts from the end; this may be below it, and then there is nothing.
            return f"{name} - {before if before <= high else 1 + before % high}"
        return self.index(0, min(8, extent - 1))

    def run_of(self, extent: int) -> int:
        """How much of a dimension a part of a tile takes."""
        return self.between(1, extent - 1)

    def safe_value(self, tensor: Tile, values: tuple[int, int]) -> tuple[int, int]:
        """Say what is read beyond a tensor's ends, before all else; the range of what its copies bring."""
        value = self.between(*values)
        self.lines.insert(0, f"T.annotate_safe_value({{{tensor.name}: {value}}})")
        self.feature("safe value")
        return values

    def strided(self, shape: tuple[int, ...], dtype: str, values: tuple[int, int]) -> Tile:
        name = self.name("A")
        spare = self.pick((0, 1, 3, 8))
        whole = self.numbers((*shape[:-1], shape[-1] + spare), dtype, values)
        numbers = whole[..., : shape[-1]]
        if self.chance(0.3):
            numbers = np.ascontiguousarray(np.swapaxes(numbers, -1, -2)).swapaxes(-1, -2)
        strides = tuple(stride // numbers.itemsize for stride in numbers.strides)
        self.params.append(Param(name, f'T.StridedTensor({shape}, {strides}, "{dtype}")', numbers))
        self.feature("strided")
        return Tile(name, "global", shape, dtype, (min(0, values[0]), max(0, values[1])))

    def pointed(self, shape: tuple[int, ...], dtype: str, values: tuple[int, int]) -> Tile:
        """What an entry of a table of pointers points to."""
        table, name, count = self.name("P"), self.name("A"), self.pick((1, 2, 3))
        arrays = [self.numbers(shape, dtype, values) for _ in range(count)]
        self.params.append(Param(table, f"T.Tensor(({count},), T.ptr)", arrays))
        self.emit(f'{name} = T.make_tensor({table}[{self.index(0, count - 1)}], {shape}, "{dtype}")')
        self.feature("pointers")
        return Tile(name, "global", shape, dtype, (min(0, values[0]), max(0, values[1])))

    def load(self, tile: Tile) -> None:
        text, values = self.source(tile)
        more = self.pick(("", "", "", "", ", disable_tma=True", ', prefer_instruction="sync"', ", coalesced_width=2"))
        if "coalesced" in more and tile.shape[-1] % 2:
            more = ""
        self.emit(f"T.copy({text}, {tile.name}{more})")
        self.wrote(tile, values)

    def in_parts(self, tile: Tile) -> None:
        """Two parts of a tile one after the other, in any order, each from somewhere else: together they are all of it."""
        axes = [axis for axis, extent in enumerate(tile.shape) if extent > 1]
        if ALL[tile.dtype].is_packed or not axes or tile.holder.sums_in:
            self.fill(tile)
            return
        axis = self.pick(axes)
        extent = tile.shape[axis]
        cut = self.pick((extent // 2, self.between(1, extent - 1)))
        parts = [(0, cut), (cut, extent - cut)]
        low, high = 0, 0
        for start, run in parts if self.chance(0.5) else parts[::-1]:
            here = [":" if one != axis else f"{start} : {start} + {run}" for one in range(len(tile.shape))]
            sources = [
                one for one in self.usable() if one.shape == tile.shape and one.holder is not tile.holder
                and not ALL[one.dtype].is_packed and self.takes(tile, one.range)
            ]  # fmt: skip
            if sources and self.chance(0.6):
                other = self.pick(sources)
                first = self.pick((extent - run, start, self.between(0, extent - run)))
                there = [":" if one != axis else f"{first} : {first} + {run}" for one in range(len(tile.shape))]
                self.emit(f"T.copy({other.name}[{', '.join(there)}], {tile.name}[{', '.join(here)}])")
                values = other.range
            elif self.chance(0.5):
                values = (value := self.between(*self.start_range(tile.dtype)), value)
                self.emit(f"T.fill({tile.name}[{', '.join(here)}], {value})")
            else:
                indices = self.loop(tuple(run if one == axis else other for one, other in enumerate(tile.shape)))
                place = ", ".join(f"{name} + {start}" if one == axis else name for one, (name, _) in enumerate(indices))
                values = (0, self.start_range(tile.dtype)[1])
                self.emit(f'    {tile.name}[{place}] = T.cast({indices[axis][0]} % {values[1] + 1}, "{tile.dtype}")')
            low, high = min(low, values[0]), max(high, values[1])
        self.feature("in parts", tile.scope)
        self.wrote(tile, (low, high))

    def named(self) -> None:
        """An element of a shared tile under a name, or as the first value of a variable, for whatever comes later."""
        tiles = [
            one for one in self.usable(("shared",)) if not ALL[one.dtype].is_packed and ALL[one.dtype].kind != "bool"
        ]
        if not tiles or self.roles:
            return
        tile, name = self.pick(tiles), self.name("x")
        element = self.cast(f"{tile.name}[{', '.join(self.index(0, extent - 1) for extent in tile.shape)}]", "int32")
        if self.chance(0.5):
            element = f'T.alloc_var("int32", init={element})'
        self.emit(f"{name} = {element}")
        low, high = tile.range
        self.context = replace(self.context, indices=(*self.context.indices, (name, low, high)))
        self.feature("named", str(self.context.pipelined))

    def retire(self) -> None:
        """A tile has served: what comes later may take its bytes."""
        if self.context.depth or self.roles:
            return
        tiles = [
            one
            for one in self.usable(("shared",))
            if all(other.holder is not one or other is one for other in self.tiles)
        ]
        tiles = [one for one in tiles if one.base is None]
        if len(tiles) < 2:
            return
        tile = self.pick(tiles)
        if self.chance(0.5):
            self.output(tile)
        self.tiles.remove(tile)
        self.feature("retired")

    def some_load(self) -> None:
        tiles = self.usable(value=None)
        self.load(self.pick(tiles)) if tiles else self.new_tile()

    def loop(self, extents: tuple[int, ...]) -> list[tuple[str, int]]:
        names = "ijlq"[: len(extents)]
        self.emit(f"for {', '.join(names)} in T.Parallel({', '.join(map(str, extents))}):")
        return list(zip(names, extents, strict=True))

    def compute(self, tile: Tile) -> None:
        """Every element of a tile, or those of some slice of it, or those for which something holds."""
        extents, shifts = list(tile.shape), ["" for _ in tile.shape]
        whole = tile.range is None or self.chance(0.6)
        if not whole:
            axis = self.between(0, len(extents) - 1)
            if extents[axis] > 1 and not (ALL[tile.dtype].is_packed and axis == len(extents) - 1):
                run = self.run_of(extents[axis])
                shifts[axis] = f" + {self.index(0, extents[axis] - run)}"
                extents[axis] = run
        indices = self.loop(tuple(extents))
        self.shifted = any(shifts)
        any_type = self.chance(0.2)
        text, low, high, kind = self.of_any_type(indices, tile) if any_type else self.expression(indices, tile)
        floor, ceiling = self.room(tile)
        if low < floor or high > ceiling:
            floor, ceiling = max(floor, 0 if kind.startswith("u") else -6), min(ceiling, 6)
            text = f"T.clamp({text}, {self.cast(str(floor), kind)}, {self.cast(str(ceiling), kind)})"
            low, high = floor, ceiling
        place = ", ".join(f"{name}{shift}" for (name, _), shift in zip(indices, shifts, strict=True))
        store = f'{tile.name}[{place}] = T.cast({text}, "{tile.dtype}")'
        if not whole and self.chance(0.5):
            test, *_ = self.term(indices, tile, "int32", 1)
            self.emit(f"    if {test} > 0:", f"        {store}")
        else:
            self.emit(f"    {store}")
        self.shifted = False
        self.wrote(tile, (low, high), whole)

    def some_compute(self) -> None:
        tiles = self.usable(value=None)
        self.compute(self.pick(tiles)) if tiles else self.new_tile()

    def some_move(self) -> None:
        """A region of one tile to a region of another."""
        pairs = [
            (a, b)
            for a in self.usable()
            for b in self.usable(value=None)
            if a.holder is not b.holder
            and len(a.shape) == len(b.shape)
            and a.range is not None
            and self.takes(b, a.range)
            and not ALL[a.dtype].is_packed
            and not ALL[b.dtype].is_packed
        ]
        if not pairs:
            return
        a, b = self.pick(pairs)
        if a.shape == b.shape and (b.range is None or self.chance(0.5)):
            self.emit(f"T.copy({a.name}, {b.name})")
            self.wrote(b, a.range)
            return
        if b.range is None:
            return
        runs = [self.pick((min(x, y), self.between(1, min(x, y)))) for x, y in zip(a.shape, b.shape, strict=True)]
        texts = []
        for tile in (a, b):
            parts = []
            for extent, run in zip(tile.shape, runs, strict=True):
                start = self.index(0, extent - run)
                parts.append(f"{start} : {start} + {run}")
            texts.append(f"{tile.name}[{', '.join(parts)}]")
        self.emit(f"T.copy({', '.join(texts)})")
        self.feature("move", a.scope, b.scope)
        self.wrote(b, a.range, whole=False)

    def slice_fill(self) -> None:
        tiles = [one for one in self.usable() if not ALL[one.dtype].is_packed]
        if not tiles:
            return
        tile = self.pick(tiles)
        parts = []
        for extent in tile.shape:
            run = self.between(1, extent)
            start = self.index(0, extent - run)
            parts.append(":" if self.chance(0.3) else f"{start} : {start} + {run}")
        value = self.between(*self.start_range(tile.dtype))
        self.emit(f"T.fill({tile.name}[{', '.join(parts)}], {value})")
        self.wrote(tile, (value, value), whole=False)

    def turned(self) -> None:
        tiles = [one for one in self.usable() if len(one.shape) >= 2 and not ALL[one.dtype].is_packed]
        if not tiles:
            return
        tile = self.pick(tiles)
        shape = (*tile.shape[:-2], tile.shape[-1], tile.shape[-2])
        other = self.new_tile(shape, tile.dtype)
        if other.holder is not tile.holder and tile.range is not None:
            self.emit(f"T.transpose({tile.name}, {other.name})")
            self.wrote(other, tile.range)
