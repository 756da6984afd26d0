"""Statements around operators: loops over elements, pipelines, conditions, scalars, views, layouts, roles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from expression_writer import Value, exact, wraps
from operator_writer import OPERANDS, write_operator
from tile_writer import INDICES, Tile, TileWriter, bounded, shape_text

from tilewright.ir.dtypes import ALL


def statement(writer: TileWriter) -> None:
    """One more statement, of any kind that can stand here."""
    kinds: list[tuple[Callable[[TileWriter], object], int]] = [
        (write_operator, 10), (elements, 4), (scalar, 2), (condition, 2), (annotated, 1), (viewed, 1), (rounded, 0 if writer.depth else 1),
    ]  # fmt: skip
    if writer.level == 0:
        kinds += [(pipeline, 5), (serial, 1)]
        if not writer.warps_part:
            kinds += [(some_threads, 2)]
    else:
        kinds += [(tallied, 2), (history, 1)]
        if writer.level == 1 and writer.chance(0.3):
            kinds += [(pipeline, 1), (serial, 1)]
    chosen, weights = zip(*kinds)
    writer.random.choices(chosen, weights)[0](writer)


def block(writer: TileWriter, most: int) -> None:
    for _ in range(writer.random.randint(1, most)):
        statement(writer)


# Elements ----------------------------------------------------------------------------------------


def elements(writer: TileWriter) -> None:
    """A parallel loop that computes a tile from others; under a condition, where the tile held something before."""
    sources = [writer.filled_tile() for _ in range(writer.random.choice((1, 1, 2)))]
    carried = [t for t in writer.tiles if t.carried and t.level < writer.level and t.shape == sources[0].shape]
    if carried and writer.chance(0.7):
        added(writer, writer.random.choice(carried), sources[0])
        return
    there = writer.writable(lambda t: t.shape == sources[0].shape and t not in sources[1:])
    old = bool(there) and writer.chance(0.4)
    dtype = writer.random.choice((*writer.types, "int32", "bool" if writer.chance(0.1) else "int8"))
    to = writer.random.choice(there) if old else writer.new_tile(sources[0].shape, dtype)
    # Elements of the tile itself are read at their own place alone.
    readable = [t for t in sources if t is not to]
    variables = INDICES[: len(to.shape)]
    expressions = writer.expressions(variables, to.shape, readable)
    if old:
        place = f"{to.name}[{', '.join(variables)}]"
        expressions.leaves = [*expressions.leaves, lambda: Value(place, to.dtype, to.range)]  # type: ignore[list-item]
    value = expressions.value(to.dtype, writer.random.choice((1, 2, 2, 3, 4)))
    writer.note("parallel", to.scope, to.dtype, f"stages {writer.stages}")
    writer.line(f"for {', '.join(variables)} in T.Parallel({', '.join(map(str, to.shape))}):")
    target = f"{to.name}[{', '.join(variables)}]"
    if old and writer.chance(0.3):
        writer.line(f"    if {expressions.condition(1).text}:")
        writer.line(f"        {target} = {value.text}")
        bound = None if None in (value.bound, to.bound) else max(value.bound or 0, to.bound or 0)
    else:
        writer.line(f"    {target} = {value.text}")
        bound = bounded(to.dtype, value)
    writer.keep(to, bound)


def added(writer: TileWriter, to: Tile, source: Tile) -> None:
    """An element of this turn is added to what earlier turns left."""
    if source.bound is None:
        return
    growth = 1
    for trips in writer.trip_stack[to.level :]:
        growth *= trips
    if not wraps(to.dtype) and (
        (to.bound or 0) + source.bound * growth > exact(to.dtype) or to.bound is None or source.bound > exact(to.dtype)
    ):
        return
    variables = ", ".join(INDICES[: len(to.shape)])
    writer.note("carried", to.scope, to.dtype, f"stages {writer.stages}")
    writer.line(f"for {variables} in T.Parallel({', '.join(map(str, to.shape))}):")
    writer.line(
        f'    {to.name}[{variables}] = {to.name}[{variables}] + T.cast({source.name}[{variables}], "{to.dtype}")'
    )
    to.bound = None if to.bound is None else to.bound + source.bound * growth


def rounded(writer: TileWriter) -> None:
    """Functions that machines have to a place or two, straight to an output."""
    dtype = writer.random.choice(("float32", "float32", "float16", "bfloat16", "float64"))
    source = writer.filled_tile()
    to = writer.new_tile(source.shape, dtype)
    variables = INDICES[: len(to.shape)]
    value = writer.expressions(variables, to.shape, [source]).near(dtype, 1)
    writer.line(f"for {', '.join(variables)} in T.Parallel({', '.join(map(str, to.shape))}):")
    writer.line(f"    {to.name}[{', '.join(variables)}] = {value.text}")
    before = set(writer.outputs)
    writer.store(to)
    writer.near |= set(writer.outputs) - before


# Scalars -----------------------------------------------------------------------------------------


def scalar(writer: TileWriter) -> None:
    """A number of the block: named, or a variable with a first value, of an element of a shared tile as often as not."""
    pick = writer.random.choice
    shared = writer.readable(
        lambda t: t.scope == "shared" and t.bound is not None and t.dtype != "bool" and not ALL[t.dtype].is_packed
    )
    if shared and writer.chance(0.7):
        tile = pick(shared)
        index = ", ".join(str(writer.random.randrange(extent)) for extent in tile.shape)
        value = Value(f"{tile.name}[{index}]", tile.dtype, tile.range)
    else:
        value = pick(writer.scalars)
    name = writer.name("v")
    way = pick(("named", "first", "first", "later", "chosen"))
    writer.note("scalar", way, value.dtype, f"stages {writer.stages}")
    if way == "named":
        writer.line(f"{name} = {value.text}")
    elif way == "first":
        writer.line(f'{name} = T.alloc_var("{value.dtype}", init={value.text})')
    elif way == "later":
        writer.line(f'{name} = T.alloc_var("{value.dtype}")')
        writer.line(f"{name} = {value.text}")
    else:
        writer.line(f'{name} = T.alloc_var("int32", init=0)')
        order = writer.tensor("order", "(4,)", [4], "int32", writer.numbers.integers(0, 4, [4]).astype(np.int32))
        writer.line("for z in T.serial(4):")
        writer.line(f"    {name} = T.if_then_else(bx + by >= {order}[z], z, {name})")
        value = Value("", "int32", (0, 3))
    if value.range is not None:
        writer.scalars.append(Value(name, value.dtype, value.range))
        if writer.level and writer.chance(0.7):
            writer.tally_scalar(writer.scalars[-1])


# Conditions --------------------------------------------------------------------------------------


def _asked(writer: TileWriter) -> str:
    """Something that all threads of a block answer alike."""
    pick = writer.random.choice
    ways = ["bx == 0", "by == 0", "count > 1", "count > 9", "count >= 0", "by + bx > 0"]
    if writer.step is not None:
        ways += [f"{writer.step} % 2 == 0", f"{writer.step} > 0", f"{writer.step} + by < 2"] + ["mask"] * 8
    ways += [
        f"{one.text} > {writer.random.choice((0, 1))}"
        for one in writer.scalars
        if ALL[one.dtype].is_integer and one.text.startswith("v")
    ]
    asked = pick(ways)
    if asked == "mask":
        return f"{writer.mask()}[{writer.step}] != 0"
    return asked


def condition(writer: TileWriter) -> None:
    """Statements under a condition of the block, sometimes with others for when it does not hold."""
    with writer.inside(f"if {_asked(writer)}:", branch=True):
        block(writer, 2)
    if writer.chance(0.25):
        with writer.inside("else:", branch=True):
            block(writer, 1)


def some_threads(writer: TileWriter) -> None:
    """Statements that only some of the threads come to; they work on shared tiles, which all read behind a meeting."""
    threads, pick = writer.threads, writer.random.choice
    tx = writer.name("tx")
    asked = pick(
        (
            f"{tx} < {max(threads // 2, 32)}",
            f"{tx} >= {threads // 2}",
            f"{tx} < 32",
            f"{tx} < {threads}",
            f"{tx} // 32 == 0",
            f"{tx} == 0",
            f"{tx} < 48",
        )
    )
    writer.filled_tile(scope="shared")
    targets = writer.writable(lambda t: t.scope == "shared" and t.dtype != "bool")
    if not targets:
        return
    writer.note("threads", asked.replace(tx, "tx"))
    writer.line(f"{tx} = T.get_thread_binding()")
    if writer.chance(0.5):
        writer.line("T.sync_threads()")
    with writer.inside(f"if {asked}:", branch=True):
        for _ in range(pick((1, 1, 2))):
            target = pick(targets)
            way = pick(("bring", "elements", "fill", "copy"))
            if way == "bring":
                writer.bring(target, writer.wanted_bound(target.dtype))
            elif way == "fill":
                writer.line(f"T.fill({target.name}, {pick((1, 2))})")
                writer.keep(target, 2)
            else:
                _overwrite(writer, target, way)
    if writer.chance(0.7):
        writer.line("T.sync_threads()")


def _overwrite(writer: TileWriter, target: Tile, way: str) -> None:
    sources = writer.readable(
        lambda t: t.scope == "shared" and t.shape == target.shape and t is not target and t.bound is not None
    )
    variables = INDICES[: len(target.shape)]
    if way == "copy" and sources:
        writer.line(f"T.copy({writer.random.choice(sources).name}, {target.name})")
        writer.keep(target, None)
        return
    value = writer.expressions(variables, target.shape, sources[:2]).value(target.dtype, 2)
    writer.line(f"for {', '.join(variables)} in T.Parallel({', '.join(map(str, target.shape))}):")
    writer.line(f"    {target.name}[{', '.join(variables)}] = {value.text}")
    writer.keep(target, bounded(target.dtype, value))


# Loops -------------------------------------------------------------------------------------------


def _carry(writer: TileWriter) -> None:
    """Tiles that the turns of a loop hand on: those that hold little, and sums that begin here."""
    for tile in writer.writable(lambda t: t.bound is not None and t.bound <= 64 and t.dtype != "bool"):
        tile.carried = writer.chance(0.6)
    if writer.chance(0.6):
        dtype = writer.random.choice(("float32", "float32", "int32", *writer.types))
        tile = writer.new_tile(
            writer.random.choice([t.shape for t in writer.tiles] or [writer.shape()])
            if writer.chance(0.4)
            else writer.shape(writer.random.choice((1, 2))),
            dtype,
        )
        writer.line(f"T.clear({tile.name})")
        writer.keep(tile, 0)
        tile.carried = True


def pipeline(writer: TileWriter) -> None:
    """A loop over K whose loads may run ahead."""
    pick = writer.random.choice
    _carry(writer)
    stages = pick((0, 1, 2, 2, 3, 3))
    bounds = pick(("STEPS", "STEPS", "STEPS", "T.min(count, STEPS)", "1, STEPS", "T.min(count, STEPS), STEPS"))
    options = [f"num_stages={stages}"]
    specialize = pick((None, None, None, True, False))
    if specialize is not None:
        options.append(f"specialize={specialize}")
    held, k = writer.stages, writer.name("k")
    product = Product.drawn(writer) if writer.chance(0.45) else None
    if writer.chance(0.25):
        by_pointers(writer, product)
    writer.stages = stages
    writer.note("pipeline", stages, f"specialize {specialize}", "dynamic" if "K" in writer.dynamic else writer.steps)
    with writer.inside(f"for {k} in T.Pipelined({bounds}, {', '.join(options)}):", max(writer.steps, 1), k):
        work = partial(product.turn, writer) if product is not None else partial(_turn, writer)
        if writer.chance(0.3):
            with writer.inside(f"if {_asked(writer)}:", branch=True):
                work()
        else:
            work()
    writer.stages = held
    writer.placed.clear()
    _settle(writer)


@dataclass(frozen=True)
class Product:
    """A product that the turns of a loop add up, with work around it: operands of one loop, loaded in every turn."""

    dtype: str
    total: str
    shape: tuple[int, int, int]
    transposed: tuple[bool, bool]
    sums: Tile

    @staticmethod
    def drawn(writer: TileWriter) -> Product:
        """Sizes that matrix instructions take, as often as not those of the program's blocks; the sums begin at zero."""
        pick = writer.random.choice
        dtype, total = pick(OPERANDS[:8]) if writer.chance(0.8) else pick(OPERANDS)
        m, n = pick((16, 32, 64, 64, 128)), pick((8, 16, 32, 64))
        m = writer.block_rows if writer.chance(0.5) and writer.block_rows >= 8 else m
        if writer.chance(0.4):  # what warpgroups multiply
            m, dtype, total = pick((64, 128)), *pick(OPERANDS[:3])
        k = writer.slice_side if writer.chance(0.7) else pick((16, 32, 64))
        sums = writer.new_tile((m, n), total, "fragment")
        writer.line(f"T.clear({sums.name})")
        writer.keep(sums, 0)
        sums.carried = True
        return Product(dtype, total, (m, n, k), (writer.chance(0.2), writer.chance(0.5)), sums)

    def turn(self, writer: TileWriter) -> None:
        """Loads, the product, and other work before, between and behind."""
        (m, n, k), (left, right) = self.shape, self.transposed
        a = writer.load((k, m) if left else (m, k), self.dtype, "shared", bound=2)
        b = writer.load((n, k) if right else (k, n), self.dtype, "shared", bound=2)
        if writer.chance(0.4):
            block(writer, 2)
        if writer.chance(0.3):
            with writer.inside(f"if {_asked(writer)}:", branch=True):
                self._added(writer, a, b)
        else:
            self._added(writer, a, b)
        if writer.chance(0.4):
            block(writer, 2)

    def _added(self, writer: TileWriter, a: Tile, b: Tile) -> None:
        (left, right), c = self.transposed, self.sums
        if a.bound is None or b.bound is None:
            return
        bound = (c.bound or 0) + a.bound * b.bound * self.shape[2] * math.prod(writer.trip_stack[c.level :])
        if bound > exact(self.total):
            return
        writer.note(
            "operator",
            "gemm",
            self.dtype,
            self.total,
            "shared shared",
            f"transposed {left} {right}",
            f"stages {writer.stages}",
        )
        more = [f"transpose_A={left}"] * left + [f"transpose_B={right}"] * right
        writer.line(f"T.gemm({', '.join([a.name, b.name, c.name, *more])})")
        c.bound = bound


def by_pointers(writer: TileWriter, product: Product | None) -> None:
    """A tensor of several, which one a scalar says that a loop has found: loads from it are brought from there."""
    pick = writer.random.choice
    if "K" in writer.dynamic:
        return
    dtype, rows, which = pick(("float16", "bfloat16", "int8", "float32")), pick((16, 32, 64)), writer.name("v")
    if product is not None:
        dtype, rows = product.dtype, product.shape[pick((0, 0, 1))]
    order = writer.tensor("order", "(4,)", [4], "int32", writer.numbers.integers(0, 4, [4]).astype(np.int32))
    writer.line(f'{which} = T.alloc_var("int32", init=0)')
    writer.line("for z in T.serial(4):")
    writer.line(f"    {which} = T.if_then_else(bx + by >= {order}[z], z, {which})")
    extents = (rows, max(writer.depth_of_k, 1))
    table = writer.table(4, extents, dtype)
    name = writer.name("P")
    writer.line(f'{name} = T.make_tensor({table}[{which}], {extents}, "{dtype}")')
    writer.note("pointers", dtype)
    writer.placed.append((name, extents, dtype))


def _turn(writer: TileWriter) -> None:
    """What one turn does: loads, then work on what was loaded."""
    for _ in range(writer.random.choice((1, 1, 2))):
        shape = writer.shape()
        if writer.chance(0.5):
            shape = writer.random.choice(
                ((writer.block_rows, writer.slice_side), (writer.slice_side, writer.block_rows), (writer.slice_side,))
            )
        writer.load(shape, writer.random.choice(writer.types), "shared" if writer.chance(0.8) else None)
    block(writer, 4)
    if writer.chance(0.7):
        tallied(writer)


def serial(writer: TileWriter) -> None:
    """A loop whose turns follow one another."""
    _carry(writer)
    word, trips = writer.random.choice((("serial", 2), ("serial", 3), ("unroll", 2), ("serial", 1), ("serial", 0)))
    name = writer.name("t")
    with writer.inside(f"for {name} in T.{word}({trips}):", trips):
        if trips:
            writer.scalars.append(Value(name, "int32", (0, trips - 1)))
        block(writer, 3)
    _settle(writer)


def _settle(writer: TileWriter) -> None:
    for tile in writer.tiles:
        if tile.level == writer.level:
            tile.carried = False


def tallied(writer: TileWriter) -> None:
    """Something of this turn reaches memory."""
    tiles = writer.readable(
        lambda t: t.level == writer.level and t.bound is not None and t.dtype != "bool" and not ALL[t.dtype].is_packed
    )
    if tiles:
        writer.tally(writer.random.choice(tiles))


def history(writer: TileWriter) -> None:
    """A tile of this turn as it is, at the turn's place of a tensor."""
    tiles = writer.readable(lambda t: t.level == writer.level and not ALL[t.dtype].is_packed)
    if not tiles or writer.step is None or writer.level != 1 or "K" in writer.dynamic or "M" in writer.dynamic:
        return
    tile = writer.random.choice(tiles)
    extents = [writer.columns_of_grid, writer.blocks, max(writer.steps, 1), *tile.shape]
    name = writer.tensor("H", shape_text(extents), extents, tile.dtype, np.zeros(extents, ALL[tile.dtype].numpy))
    writer.note("history", tile.scope, tile.dtype, f"stages {writer.stages}")
    writer.line(f"T.copy({tile.name}, {name}[bx, by, {writer.step}, {', '.join('0' for _ in tile.shape)}])")


# Layouts and views -------------------------------------------------------------------------------


def annotated(writer: TileWriter) -> None:
    """A shared tile whose layout is the author's, loaded and read."""
    shape, dtype = writer.shape(writer.random.choice((1, 2, 2, 2))), writer.random.choice(writer.types)
    tile = writer.new_tile(shape, dtype, "shared")
    tile.fixed = True
    rows, columns = (1, *shape)[-2:]
    i, j = ("0", "i") if len(shape) == 1 else ("i", "j")
    pad = writer.random.choice((1, 2, 4, 8))
    ways = {
        "padded": f"{i} * {columns + pad} + {j}",
        "columns": f"{j} * {rows} + {i}",
        "turned": f"{i} * {columns} + ({j} + {i} * {pad}) % {columns}",
        "folded": f"({i} * {columns} + {j}) * {pad} % {rows * columns}",
    }
    if columns & (columns - 1) == 0:
        ways["crossed"] = f"{i} * {columns} + ({j} ^ ({i} * {pad} % {columns}))"
    way = writer.random.choice([*ways, "padded", "columns", "turned", *["swizzled"] * 5])
    writer.note("layout", way, dtype)
    if way == "swizzled" and len(shape) == 2:
        writer.declared.append(f"T.annotate_layout({{{tile.name}: make_swizzled_layout({tile.name})}})")
    else:
        text = ways.get(way, ways["padded"])
        writer.declared.append(
            f"T.annotate_layout({{{tile.name}: T.Layout({shape_text(shape)}, lambda {', '.join('ij'[: len(shape)])}: {text})}})"
        )
    writer.bring(tile, writer.wanted_bound(dtype))


def viewed(writer: TileWriter) -> None:
    """A shared tile in another shape, which is read or written from here on instead of it."""
    tiles = writer.readable(
        lambda t: (
            t.scope == "shared"
            and not t.fixed
            and t.level == writer.level
            and not ALL[t.dtype].is_packed
            and t.dtype != "bool"
        )
    )
    tile = (
        writer.random.choice(tiles)
        if tiles and writer.chance(0.5)
        else writer.load(writer.shape(), writer.random.choice(writer.types), "shared")
    )
    shapes = [(tile.size,), *((side, tile.size // side) for side in (2, 4, 8, 16) if tile.size % side == 0)]
    if ALL[tile.dtype].is_packed:
        return
    shape, name = writer.random.choice(shapes), writer.name("w")
    writer.line(f"{name} = {writer.random.choice(('T.reshape', 'T.view'))}({tile.name}, {shape_text(shape)})")
    writer.note("view", tile.dtype, f"stages {writer.stages}")
    writer.tiles.remove(tile)
    seen = Tile(name, shape, tile.dtype, "shared", tile.bound, tile.level)
    writer.tiles.append(seen)
