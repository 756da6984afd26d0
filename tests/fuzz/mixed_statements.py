"""Statements of mixed programs: each draws from the tiles that there are, and keeps account of what they hold behind it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from mixed_tiles import LIMIT, MixedState, Tile, is_float
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
            if self.chance(0.12) and not self.context.depth and values[0] < values[1]:
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
            return f"{self.pick(self.context.indices)[0]} - {self.between(1, 9)}"
        return self.index(0, min(8, extent - 1))

    def run_of(self, extent: int) -> int:
        """How much of a dimension a part of a tile takes."""
        return self.between(1, extent - 1)

    def safe_value(self, tensor: Tile, values: tuple[int, int]) -> tuple[int, int]:
        """Say what is read beyond a tensor's ends; the range of what its copies bring."""
        value = self.between(*values)
        self.emit(f"T.annotate_safe_value({{{tensor.name}: {value}}})")
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
        text, low, high, kind = self.expression(indices, tile)
        floor, ceiling = self.room(tile)
        if low < floor or high > ceiling:
            floor, ceiling = max(floor, -6), min(ceiling, 6)
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

    # Reductions and products -----------------------------------------------------------------------

    def reduction(self) -> None:
        tiles = [
            one
            for one in self.usable()
            if len(one.shape) >= 1 and self.reads(one, "float32") and not ALL[one.dtype].is_packed
        ]
        if not tiles:
            return
        tile = self.pick(tiles)
        low, high = tile.range
        dim = self.between(-len(tile.shape), len(tile.shape) - 1)
        count = tile.shape[dim]
        kept = list(tile.shape)
        if len(kept) > 1 and self.chance(0.8):
            del kept[dim % len(kept)]
        else:
            kept[dim % len(kept)] = 1
        kinds = ("sum", "sum", "max", "min", "absmax", "abssum", "argmax", "argmin")
        kind = self.pick(kinds if is_float(tile.dtype) else (*kinds, "bitand", "bitor", "bitxor"))
        if ALL[tile.dtype].kind == "bool":
            return
        if kind.startswith("arg"):
            out = self.new_tile(tuple(kept), "int32")
            self.emit(f"T.reduce_{kind}({tile.name}, {out.name}, dim={dim})")
            self.wrote(out, (0, count - 1))
            return
        bound = max(abs(low), abs(high))
        bits = (-(2 ** bound.bit_length()) if low < 0 else 0), 2 ** bound.bit_length() - 1
        values = {
            "bitand": bits, "bitor": bits, "bitxor": bits,
            "sum": (low * count, high * count), "max": (low, high), "min": (low, high),
            "absmax": (0, bound), "abssum": (0, bound * count),
        }[kind]  # fmt: skip
        fitting = [one for one in (tile.dtype, "float32", "int32") if self.fits(values, one)]
        fitting = [one for one in fitting if one == tile.dtype or (one == "float32") == is_float(tile.dtype)]
        if not fitting or not self.fits(values, fitting[0]):
            return
        clear = self.chance(0.7)
        known = [
            one
            for one in self.usable(value=None if clear else True)
            if list(one.shape) == kept
            and one.dtype in fitting
            and one.holder is not tile.holder
            and self.takes(one, values)
        ]
        if not clear:
            known = [
                one
                for one in self.sums()
                if list(one.shape) == kept and one.dtype in fitting and one.holder is not tile.holder
            ]
        out = self.pick(known) if known and self.chance(0.5) else self.new_tile(tuple(kept), self.pick(fitting))
        if out.holder is tile.holder or (out.range is None and not clear):
            return
        if not clear:
            assert out.range is not None
            turns = self.context.turns if out.sums_in else 1
            if "bit" in kind:
                return
            if "sum" in kind:
                values = out.range[0] + min(0, values[0] * turns), out.range[1] + max(0, values[1] * turns)
            else:
                values = min(values[0], out.range[0]), max(values[1], out.range[1])
            if kind in ("absmax", "abssum"):
                values = min(values[0], 0), max(values[1], *map(abs, out.range))
            if not self.fits(values, out.dtype):
                return
        self.emit(f"T.reduce_{kind}({tile.name}, {out.name}, dim={dim}{'' if clear else ', clear=False'})")
        self.feature("reduce", kind, str(self.context.pipelined))
        self.wrote(out, values)

    def running(self) -> None:
        tiles = [one for one in self.usable() if not ALL[one.dtype].is_packed and ALL[one.dtype].kind != "bool"]
        if not tiles:
            return
        tile = self.pick(tiles)
        dim = self.between(-len(tile.shape), len(tile.shape) - 1)
        low, high = tile.range
        kind = self.pick(("cumsum", "cummax"))
        count = tile.shape[dim]
        values = (min(low, low * count), max(high, high * count)) if kind == "cumsum" else (low, high)
        if not self.fits(values, tile.dtype):
            return
        reverse = self.pick(("", ", reverse=True"))
        if self.chance(0.5) and self.takes(tile, values):
            self.emit(f"T.{kind}({tile.name}, dim={dim}{reverse})")
            self.wrote(tile, values)
        else:
            out = self.new_tile(tile.shape, tile.dtype)
            if out.holder is not tile.holder and tile.range is not None:
                self.emit(f"T.{kind}({tile.name}, {out.name}, dim={dim}{reverse})")
                self.wrote(out, values)

    def product(self) -> None:
        dtype = self.pick(("float16", "float16", "bfloat16", "int8", "float32", "float8_e4m3fn", "float16"))
        total = "int32" if dtype == "int8" else "float32"
        operands = [
            one
            for one in self.usable()
            if len(one.shape) == 2 and one.dtype == dtype and min(one.shape) >= 16 and max(map(abs, one.range)) <= 16
        ]
        a = self.pick(operands) if operands and self.chance(0.7) else self.operand(dtype)
        if a.range is None or len(a.shape) != 2:
            return
        turn_a, turn_b = self.chance(0.25), self.chance(0.35)
        rows, inner = (a.shape[1], a.shape[0]) if turn_a else a.shape
        fitting = [one for one in operands if (one.shape[1] if turn_b else one.shape[0]) == inner and one is not a]
        columns = self.pick((16, 32, 64))
        b = (
            self.pick(fitting)
            if fitting and self.chance(0.6)
            else self.operand(dtype, (columns, inner) if turn_b else (inner, columns))
        )
        if b.range is None or a.range is None:
            return
        columns = b.shape[0] if turn_b else b.shape[1]
        bound = inner * max(map(abs, a.range)) * max(map(abs, b.range))
        taken = (a.holder, b.holder)
        sums = [
            one
            for one in self.sums(("fragment",))
            if one.holder not in taken and one.shape == (rows, columns) and one.dtype == total
        ]
        out = self.pick(sums) if sums and self.chance(0.6) else None
        if out is None:
            out = self.new_tile((rows, columns), total, "fragment")
            if out.range is None or self.chance(0.5):
                self.emit(f"T.clear({out.name})")
                self.wrote(out, (0, 0))
        assert out.range is not None
        clears = self.chance(0.15) and not out.sums_in
        old = 0 if clears else max(map(abs, out.range))
        new = old + bound * (self.context.turns if out.sums_in else 1)
        if new > LIMIT:
            return
        words = [f"transpose_{word}=True" for word, on in (("A", turn_a), ("B", turn_b)) if on]
        words += ["clear_accum=True"] if clears else []
        words += [f"policy=T.GemmWarpPolicy.{self.pick(('FullRow', 'FullCol'))}"] if self.chance(0.2) else []
        self.emit(f"T.gemm({', '.join([a.name, b.name, out.name, *words])})")
        self.feature("gemm", dtype, a.scope, b.scope, str(self.context.pipelined))
        self.wrote(out, (-new, new))

    def operand(self, dtype: str, shape: tuple[int, int] | None = None) -> Tile:
        shape = shape or (self.pick((16, 32, 64)), self.pick((16, 32, 64)))
        tile = self.new_tile(shape, dtype, "shared" if self.chance(0.8) else "fragment")
        if tile.range is None or max(map(abs, tile.range)) > 16:
            self.pick((self.load, self.load, self.fill))(tile)
        return tile

    # Memory seen otherwise --------------------------------------------------------------------------

    def some_view(self) -> None:
        tiles = [
            one
            for one in self.usable(("shared", "fragment"), None)
            if one.base is None and one not in self.annotated and not ALL[one.dtype].is_packed
        ]
        if not tiles:
            return
        tile = self.pick(tiles)
        if tile.scope == "shared" and self.chance(0.15):
            self.again(tile)
            return
        count = tile.elements
        rows = self.pick([one for one in range(1, count + 1) if count % one == 0 and one <= 128])
        shape = self.pick(((count,), (rows, count // rows), tile.shape[::-1]))
        if math.prod(shape) != count:
            return
        dtype, word = tile.dtype, f"T.reshape({tile.name}, {shape})"
        if tile.scope == "shared" and self.chance(0.3):
            same = {
                8: ("int8", "uint8"),
                16: ("int16", "float16", "uint16"),
                32: ("int32", "float32"),
                64: ("int64", "float64"),
            }
            dtype = self.pick(same[max(8, ALL[tile.dtype].bits)])
            word = f'T.view({tile.name}, {shape}, "{dtype}")'
        elif self.chance(0.5):
            word = f"T.view({tile.name}, {shape})"
        view = Tile(
            self.name("v"), tile.scope, shape, dtype, tile.range if dtype == tile.dtype else None, tile, tile.group
        )
        self.emit(f"{view.name} = {word}")
        self.tiles.append(view)
        self.feature("view", tile.scope, str(dtype == tile.dtype))
        if self.chance(0.6):
            self.pick((self.compute, self.load, self.fill))(view)

    # Tensors that kernels change ----------------------------------------------------------------------

    def again(self, tile: Tile) -> None:
        """The first bytes of a shared tile as another one, once it has served."""
        dtype, count = self.pick(("int32", "float16", "int8", "float32")), tile.elements * ALL[tile.dtype].bits // 8
        count //= ALL[dtype].bits // 8
        if count < 2 or tile.holder.made_in != self.context.loops:
            return
        shape = self.pick(((count,), (count // 2, 2)))
        other = Tile(self.name("v"), "shared", shape, dtype, None, tile, tile.group, tile.made_in)
        self.emit(f'{other.name} = T.alias({tile.name}, {shape}, "{dtype}")')
        self.pick((self.load, self.fill, self.compute))(other)
        tile.range = None
        for one in self.tiles:
            one.range = None if one.holder is tile.holder else one.range
        other.range = other.range or self.start_range(dtype)
        self.output(other)
        self.feature("alias")

    def ring(self) -> None:
        """A shared tile of slots: one is filled and read, by numbers that are known when the kernel runs."""
        slots, rows, columns = 2, self.pick((8, 16, 5)), self.pick((16, 8, 32))
        ring = self.new_tile((slots, rows, columns), self.pick(("float32", "int32", "float16")), "shared")
        if ring.range is None or ring.scope != "shared" or ring.dtype not in ("float32", "int32", "float16"):
            return
        slot = self.index(0, slots - 1)
        source = self.tensor((rows, columns), ring.dtype, (-4, 4))
        self.emit(f"T.copy({source.name}, {ring.name}[{slot}, :, :])")
        self.wrote(ring, (-4, 4), whole=False)
        if not self.fits((ring.range[0] * columns, ring.range[1] * columns), ring.dtype):
            return
        other, dim = self.pick((slot, self.index(0, slots - 1))), self.pick((1, 2, -1))
        kept = (columns,) if dim == 1 else (rows,)
        out = self.new_tile(kept, ring.dtype)
        bound = max(map(abs, ring.range)) * max(rows, columns)
        if out.holder is not ring and self.takes(out, (-bound, bound)) and out.range is not None:
            self.emit(f"T.reduce_sum({ring.name}[{other}, :, :], {out.name}, dim={dim})")
            self.wrote(out, (-bound, bound))
        self.feature("ring")

    def atomic(self) -> None:
        """Whole numbers added to, or compared with, a tensor that the caller gave."""
        dtype = self.pick(("int32", "float32", "int32", "uint32", "float16", "bfloat16"))
        word, values = self.pick((("add", (0, 3)), ("max", (-4, 4)), ("min", (-4, 4)), ("add", (0, 3))))
        if word in ("max", "min") and is_float(dtype):
            dtype = "int32"
        narrow = dtype in (
            "float16",
            "bfloat16",
        )  # their sums stay small enough to be exact: of ones, an element of the loop each
        values = (0, 0) if dtype == "bfloat16" else values
        values = (max(0, values[0]), values[1]) if dtype == "uint32" else values
        rows = self.pick((1, 8, 16))
        into = self.tensor((40 if narrow else rows, 16), dtype, values)
        most = {"float16": 16, "bfloat16": 1}.get(dtype, 2**12)
        sources = [
            one
            for one in self.usable()
            if one.dtype == dtype and len(one.shape) == 2 and max(map(abs, one.range)) < most
        ]
        if sources and self.chance(0.4):
            tile = self.pick(sources)
            target = self.tensor(tile.shape, dtype, values)
            self.emit(f"T.atomic_{word}({target.name}[0, 0], {tile.name})")
            self.feature("atomic", word, "tile")
            return
        extents = (self.pick((1, 7, 16, 40)), self.pick((3, 16)))
        indices = self.loop(extents)
        text, *_ = self.term(indices, None, "int32", 1)
        most = 1 if narrow else 4
        value = f'T.cast(T.clamp({text}, {0 if dtype == "uint32" else -most}, {most}), "{dtype}")'
        place = f"i % {into.shape[0]}, j"
        statement = f"T.atomic_{word}({into.name}[{place}], {value})"
        if self.chance(0.4):
            test = self.condition() if self.chance(0.5) else f"i % 3 != {self.between(0, 2)}"
            if "_of(" in test:
                test = "j > 1"
            self.emit(f"    if {test}:", f"        {statement}")
        else:
            self.emit(f"    {statement}")
        self.feature("atomic", word, "element")

    def scratch(self) -> None:
        """What a block writes to memory of its own, it reads back, otherwise."""
        tiles = [one for one in self.usable() if not ALL[one.dtype].is_packed and len(one.shape) <= 3]
        if not tiles:
            return
        tile = self.pick(tiles)
        name = self.name("W")
        whole = (self.blocks, *((self.grid_y,) if self.grid_y > 1 else ()), *tile.shape)
        dtype = tile.dtype
        if self.context.depth or self.roles:
            return
        self.emit(f'{name} = T.alloc_global({whole}, "{dtype}")')
        here = f"{name}[{self.block_place()}, {', '.join(':' for _ in tile.shape)}]"
        self.emit(f"T.copy({tile.name}, {here})")
        back = self.new_tile(tile.shape, dtype)
        indices = self.loop(tile.shape)
        turned = ", ".join(self.pick((n, f"{extent - 1} - {n}", f"({n} + 1) % {extent}")) for n, extent in indices)
        self.emit(f"    {back.name}[{', '.join(n for n, _ in indices)}] = {name}[{self.block_place()}, {turned}]")
        self.feature("scratch")
        assert tile.range is not None
        self.wrote(back, tile.range)

    def through_tensor(self) -> None:
        """A tile stored into a tensor of the caller's, beyond its end too."""
        tiles = [one for one in self.usable() if not ALL[one.dtype].is_packed and len(one.shape) == 2]
        if not tiles:
            return
        tile = self.pick(tiles)
        rows, columns = tile.shape
        shape = [self.blocks * self.grid_y * rows, max(1, columns + self.pick((0, 0, -1, 5)))]
        into = self.tensor((shape[0], shape[1]), tile.dtype, self.start_range(tile.dtype))
        row = f"(bx * {self.grid_y} + by) * {rows}" if self.grid_y > 1 else f"bx * {rows}"
        column = self.pick(("0", "0", self.index(0, 3), f"{self.pick(self.context.indices)[0]} - 2"))
        self.emit(f"T.copy({tile.name}, {into.name}[{row}, {column}])")
        self.feature("stored beyond")
