"""Operators of mixed programs: reductions, scans, products, views, and what goes through memory that all threads see."""

from __future__ import annotations

import math

from mixed_statements import MixedStatements
from mixed_tiles import LIMIT, Tile, is_float

from tilewright.ir.dtypes import ALL


class MixedOperators(MixedStatements):
    """What statements of a program may be that make tiles of whole others."""

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
