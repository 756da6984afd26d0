"""What a seed becomes: a whole program of tiles, statement by statement, each drawn from what can be said at its place.

The writer keeps account of the tiles that hold something, and of how large their numbers can be, so that whatever it says has one meaning.
It knows the language, not the compiler: nothing here asks what a machine does with a statement.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from expression_writer import FLOATS, NUMBERS, ExpressionWriter, Value, exact, whole_range, wraps
from tile_programs import Param, TileProgram, edges, small

from tilewright.ir.dtypes import ALL

INDICES = "ijlmn"


@dataclass(eq=False)
class Tile:
    """A tile of the program: what it is, and the largest magnitude of its numbers (None: floats that may be anything)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str
    bound: float | None = None
    level: int = 0
    carried: bool = False
    fixed: bool = False
    """Its layout is the author's, or others see it through a view: it is not cut."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def range(self) -> tuple[float, float] | None:
        if self.bound is None:
            return None
        low, high = whole_range(self.dtype) if ALL[self.dtype].kind != "bool" else (0, 1)
        return (
            (max(-self.bound, low), min(self.bound, high)) if ALL[self.dtype].is_integer else (-self.bound, self.bound)
        )


@dataclass(frozen=True)
class Part:
    """A region as it is written, of a tile."""

    text: str
    tile: Tile
    shape: tuple[int, ...]


class TileWriter:
    """Writes one program; every choice is drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        pick = self.random.choice
        self.lines: list[str] = []
        self.declared: list[str] = []
        self.depth, self.level = 0, 0
        self.trip_stack: list[int] = []
        self.placed: list[tuple[str, tuple[int, int], str]] = []
        """Tensors that the kernel finds by pointers: name, extents, type."""
        self.tiles: list[Tile] = []
        self.scalars: list[Value] = []
        self.params: dict[str, Param] = {}
        self.outputs: dict[str, tuple[str, str]] = {}
        self.near: set[str] = set()
        self.features: set[tuple[str, ...]] = set()
        self.made = itertools.count(1)
        self.told: set[str] = set()
        """Sizes that the shape of a parameter tells."""
        self.stages = 0
        self.step: str | None = None
        self.warps_part = False
        self.threads = pick((32, 64, 128, 128, 128, 256))
        self.cheap = 1024
        sides = (1, 2, 3, 4, 5, 7, 8, 8, 16, 16, 32, 32, 64)
        self.sides = tuple(pick(sides) for _ in range(3))
        self.types = (*self.random.sample(NUMBERS, 3), pick(("float16", "float32", "int32", "int8", "bfloat16")))
        self.block_rows = pick(self.sides)
        self.columns_of_grid = pick((1, 1, 1, 2))
        self.slice_side = pick(self.sides)
        if self.chance(0.4):  # as products like it
            self.block_rows, self.slice_side = pick((16, 32, 64, 64, 128)), pick((16, 32, 32, 64))
        self.rows = pick(
            (0, 1, self.block_rows, self.block_rows, 2 * self.block_rows, 2 * self.block_rows + 3, self.block_rows + 1)
        )
        self.rows = max(self.rows, int(self.chance(0.9)))
        self.depth_of_k = pick(
            (
                0,
                1,
                self.slice_side,
                2 * self.slice_side,
                3 * self.slice_side,
                4 * self.slice_side + 1,
                9 * self.slice_side,
                5 * self.slice_side,
            )
        )
        self.dynamic = {letter for letter in "MK" if self.random.random() < 0.35}
        self.count = self.random.randint(0, 4)

    # Words and names -----------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, kind: str) -> str:
        return f"{kind}{next(self.made)}"

    def note(self, *words: Any) -> None:
        """One more thing that the program reaches."""
        self.features.add(tuple(map(str, words)))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    @property
    def trips(self) -> int:
        """How often a statement is done that stands here."""
        return math.prod(self.trip_stack)

    @property
    def steps(self) -> int:
        """Iterations of a loop over K."""
        return -(-self.depth_of_k // self.slice_side)

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.block_rows)

    # The program -----------------------------------------------------------------------------------

    def write(self) -> TileProgram:
        """Statements first; then what is left in tiles leaves the block."""
        from control_writer import statement

        self.scalar_parameters()
        for _ in range(self.random.randint(1, 7)):
            statement(self)
            self.retire()
        self.leave(self.tiles)
        self.tell_scalars()
        sizes = [
            *(
                f"{letter} = T.dynamic('{letter}')" if letter in self.dynamic & self.told else f"{letter} = {size}"
                for letter, size in (("M", self.rows), ("K", self.depth_of_k))
            ),
            f"BM, BK, GX, STEPS = {self.block_rows}, {self.slice_side}, {self.columns_of_grid}, T.ceildiv(K, {self.slice_side})",
        ]
        kernel = f"with T.Kernel(GX, T.ceildiv(M, BM), threads={self.threads}{self.options()}) as (bx, by):"
        if not self.outputs and not any(line.lstrip().startswith("T.atomic") for line in self.lines):
            self.leave([self.filled_tile()], sure=True)
        return TileProgram(
            self.seed, tuple(sizes), tuple(self.params.values()),
            tuple((name, shape, dtype) for name, (shape, dtype) in self.outputs.items()), kernel,
            (*self.declared, *self.lines), features=frozenset(self.features), near=frozenset(self.near),
        )  # fmt: skip

    def options(self) -> str:
        """Of the kernel."""
        chosen = self.random.choice(("", "", "", "", ", specialize=True", ", specialize=False", ", persistent=True"))
        if chosen:
            self.note("kernel", chosen.strip(", "))
        return chosen

    def scalar_parameters(self) -> None:
        """Numbers that the caller gives; of any type."""
        self.params["count"] = Param("count", "T.int32", self.count, is_scalar=True)
        self.scalars.append(Value("count", "int32", (0, 4)))
        if self.chance(0.4):
            dtype = self.random.choice([one for one in NUMBERS if ALL[one].bits >= 16 and one != "bfloat16"])
            name, number = self.name("p"), self.random.randint(0, 9)
            self.params[name] = Param(
                name, f"T.{dtype}", ALL[dtype].numpy.type(number) if ALL[dtype].is_float else number, is_scalar=True
            )
            self.note("scalar parameter", dtype)
            self.scalars.append(Value(name, dtype, (0, 9)))

    # Tiles ---------------------------------------------------------------------------------------

    def new_tile(self, shape: Sequence[int], dtype: str, scope: str | None = None) -> Tile:
        """A tile that holds nothing yet; who asks for it fills it."""
        scope = scope or self.random.choice(("shared", "fragment"))
        tile = Tile(self.name("s" if scope == "shared" else "f"), tuple(shape), dtype, scope, level=self.level)
        self.declared.append(f'{tile.name} = T.alloc_{scope}({shape_text(shape)}, "{dtype}")')
        self.note("tile", scope, dtype, len(tile.shape))
        return tile

    def keep(self, tile: Tile, bound: float | None) -> Tile:
        """The tile holds numbers up to a bound from here on."""
        if not ALL[tile.dtype].is_float:
            top = max(map(abs, whole_range(tile.dtype))) if ALL[tile.dtype].kind != "bool" else 1
            bound = top if bound is None else min(bound, top)
        tile.bound = bound
        if tile not in self.tiles:
            self.tiles.append(tile)
        return tile

    def readable(self, where: Callable[[Tile], bool] = lambda tile: True) -> list[Tile]:
        """Tiles that hold something that can be read here without a number growing from turn to turn."""
        return [
            tile
            for tile in self.tiles
            if where(tile) and (not tile.carried or tile.level == self.level or wraps(tile.dtype))
        ]

    def writable(self, where: Callable[[Tile], bool] = lambda tile: True) -> list[Tile]:
        """Tiles that may be overwritten here."""
        return [tile for tile in self.tiles if where(tile) and tile.level == self.level and not tile.fixed]

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """A shape for a tile: not too many elements."""
        rank = rank or self.random.choice((1, 1, 2, 2, 2, 2, 3))
        shape = [self.random.choice(self.sides) for _ in range(rank)]
        while math.prod(shape) > self.cheap * 4:
            shape[shape.index(max(shape))] //= 2
        return tuple(shape)

    def filled_tile(
        self, shape: Sequence[int] | None = None, dtype: str | None = None, scope: str | None = None
    ) -> Tile:
        """A tile with something in it: one that is there, or one loaded for the purpose."""
        fits = self.readable(
            lambda tile: (
                (shape is None or tile.shape == tuple(shape))
                and dtype in (None, tile.dtype)
                and scope in (None, tile.scope)
            )
        )
        if fits and self.chance(0.75):
            return self.random.choice(fits)
        return self.load(shape or self.shape(), dtype or self.random.choice(self.types), scope)

    def part(self, tile: Tile, shape: Sequence[int] | None = None) -> Part:
        """A tile as it is, or a slice of it."""
        wanted = list(tile.shape if shape is None else shape)
        if len(wanted) == len(tile.shape) and all(map(int.__le__, wanted, tile.shape)):
            if shape is None and tile.scope == "shared" and not tile.fixed and self.chance(0.12):
                wanted = [self.random.choice((extent, extent, max(extent // 2, 1))) for extent in tile.shape]
            if tuple(wanted) == tile.shape and self.chance(0.9):
                return Part(tile.name, tile, tile.shape)
            starts = [self.random.choice((0, have - want)) for have, want in zip(tile.shape, wanted)]
            text = ", ".join(f"{start}:{start + want}" for start, want in zip(starts, wanted))
            self.note("slice", tile.scope)
            return Part(f"{tile.name}[{text}]", tile, tuple(wanted))
        return Part(tile.name, tile, tile.shape)

    # Tensors ---------------------------------------------------------------------------------------

    def tensor(self, kind: str, shape: str, extents: Sequence[int], dtype: str, values: np.ndarray) -> str:
        """A parameter."""
        name = self.name(kind)
        assert list(values.shape[:-1]) == list(extents[:-1]), (shape, extents)
        tells = {letter for letter in "MK" if letter in re.split(r"[(), ]+", re.sub(r"T\.\w+\([^)]*\)", "", shape))}
        self.told |= tells
        self.params[name] = Param(name, f'T.Tensor({shape}, "{dtype}")', values, tells=frozenset(tells))
        return name

    def table(self, count: int, extents: Sequence[int], dtype: str) -> str:
        """A parameter that is a table of pointers to tensors of one shape, of small numbers."""
        name = self.name("G")
        values = [small(self.numbers, extents, dtype, 2) for _ in range(count)]
        self.params[name] = Param(name, f"T.Tensor(({count},), T.ptr)", values)
        return name

    def values(self, extents: Sequence[int], dtype: str, bound: float | None) -> np.ndarray:
        if bound is None or (bound >= max(map(abs, whole_range(dtype))) > 1 and not ALL[dtype].is_float):
            return edges(self.numbers, extents, dtype)
        return small(self.numbers, extents, dtype, int(bound))

    def wanted_bound(self, dtype: str) -> float | None:
        """How large the numbers of a tensor are: small, or whatever the type holds."""
        if ALL[dtype].kind == "bool":
            return 1
        if self.chance(0.3):
            return None if ALL[dtype].is_float else max(map(abs, whole_range(dtype)))
        return self.random.choice((1, 2, 2, 3, 7))

    def load(self, shape: Sequence[int], dtype: str, scope: str | None = None, bound: float | None = -1.0) -> Tile:
        """A new tile that is brought from a tensor."""
        tile = self.new_tile(shape, dtype, scope)
        self.bring(tile, self.wanted_bound(dtype) if bound == -1.0 else bound)
        return tile

    def bring(self, tile: Tile, bound: float | None) -> None:
        """Fill a tile from a tensor of its own, in one of many ways."""
        tensor, place, limits = self._source(tile, bound)
        index = ", ".join(place)
        ways = ["copy"] * 6 + ["slice", "words", "parallel", "parallel"]
        if tile.scope == "shared":
            ways += ["registers"]
        way = self.random.choice(ways)
        if ALL[tile.dtype].is_packed:
            way = "copy"
        self.note("load", way, tile.scope, tile.dtype, f"stages {self.stages}")
        if way == "copy":
            self.line(f"T.copy({tensor}[{index}], {tile.name})")
        elif way == "words":
            word = self.random.choice(
                ("disable_tma=True", 'prefer_instruction="sync"', 'eviction_policy="evict_first"', "coalesced_width=1")
            )
            self.line(f"T.copy({tensor}[{index}], {tile.name}, {word})")
        elif way == "slice":
            missing = len(place) - len(tile.shape)
            slices = [*place[:missing], *map(self._slice, place[missing:], tile.shape)]
            self.line(f"T.copy({tensor}[{', '.join(slices)}], {tile.name})")
        elif way == "registers":
            held = self.new_tile(tile.shape, tile.dtype, "fragment")
            self.line(f"T.copy({tensor}[{index}], {held.name})")
            self.line(f"T.copy({held.name}, {tile.name})")
            self.keep(held, bound)
        else:
            self._parallel_load(tile, tensor, place, limits)
        self.keep(tile, bound)

    def _parallel_load(self, tile: Tile, tensor: str, place: list[str], limits: list[str]) -> None:
        """A loop over elements, which says itself where the tensor ends."""
        variables = INDICES[: len(tile.shape)]
        missing = len(place) - len(variables)
        at = [*place[:missing], *(f"{start} + {var}" for start, var in zip(place[missing:], variables))]
        inside = " and ".join(f"{index} < {limit}" for index, limit in zip(at[missing:], limits[missing:]))
        element, zero = f"{tensor}[{', '.join(at)}]", f'T.cast(0, "{tile.dtype}")'
        self.line(f"for {', '.join(variables)} in T.Parallel({', '.join(map(str, tile.shape))}):")
        target = f"{tile.name}[{', '.join(variables)}]"
        if self.chance(0.5):
            self.line(f"    {target} = T.if_then_else({inside}, {element}, {zero})")
        elif self.chance(0.5):
            self.line(f"    if {inside}:")
            self.line(f"        {target} = {element}")
            self.line("    else:")
            self.line(f"        {target} = {zero}")
        else:
            self.line(f"    {target} = {element}")

    def _slice(self, at: str, extent: int) -> str:
        """A slice of as many elements as a tile has, or of more of them, or to the tensor's end."""
        return f"{at}:{self.random.choice((f'{at} + {extent}', f'{at} + {extent + 3 * (not at.isdigit())}', ''))}"

    def _source(self, tile: Tile, bound: float | None) -> tuple[str, list[str], list[str]]:
        """A tensor for a tile: its name, where the block's part begins, and its extents."""
        shape, dtype = tile.shape, tile.dtype
        fits = [one for one in self.placed if one[2] == dtype and len(shape) == 2 and shape[0] == one[1][0]]
        if fits and self.step is not None and shape[1] == self.slice_side and bound == 2 and self.chance(0.8):
            name, extents, _ = self.random.choice(fits)
            return name, ["0", f"{self.step} * BK"], list(map(str, extents))
        kinds = ["packed", "packed", "short", "same"]
        if len(shape) == 2 and shape[0] == self.block_rows:
            kinds += ["rows"] * 4
        if len(shape) == 2 and shape[1] == self.block_rows:
            kinds += ["columns"] * 2
        if len(shape) == 1 and shape[0] == self.slice_side and self.step:
            kinds += ["line"] * 2
        kind = self.random.choice(kinds)
        step = self.step
        if kind in ("rows", "columns"):
            width = shape[1] if kind == "rows" else shape[0]
            along_k = step is not None and width == self.slice_side
            other, extent, at = ("K", self.depth_of_k, f"{step} * BK") if along_k else self._other_side(width)
            per_byte = ALL[dtype].per_byte
            if extent % per_byte:
                kind = "packed"
            else:
                text, extents = (
                    (f"(M, {other})", [self.rows, extent]) if kind == "rows" else (f"({other}, M)", [extent, self.rows])
                )
                name = self.tensor("X", text, extents, dtype, self.values(extents, dtype, bound))
                where = ["by * BM", at]
                limits = ["M", other]
                return (name, where, limits) if kind == "rows" else (name, where[::-1], limits[::-1])
        if kind == "line":
            name = self.tensor("X", "(K,)", [self.depth_of_k], dtype, self.values([self.depth_of_k], dtype, bound))
            return name, [f"{step} * BK"], ["K"]
        if kind == "packed":
            lead, counts, where = [], [], []
            if self.chance(0.5):
                lead, counts, where = ["T.ceildiv(M, BM)"], [self.blocks], ["by"]
            if step is not None and self.chance(0.7):
                lead, counts, where = (
                    [*lead, "T.max(STEPS, 1)" if "K" not in self.dynamic else "STEPS"],
                    [*counts, max(self.steps, int("K" not in self.dynamic))],
                    [*where, step],
                )
            extents = [*counts, *shape]
            name = self.tensor("X", shape_text([*lead, *shape]), extents, dtype, self.values(extents, dtype, bound))
            return name, [*where, *("0" for _ in shape)], [*lead, *map(str, shape)]
        extents = list(shape)
        if kind == "short" and not ALL[dtype].is_packed:
            extents = [
                self.random.choice((extent, extent, max(extent - 3, 1), max(extent // 2, 1))) for extent in shape
            ]
        name = self.tensor("X", shape_text(extents), extents, dtype, self.values(extents, dtype, bound))
        return name, ["0" for _ in shape], list(map(str, extents))

    def _other_side(self, width: int) -> tuple[str, int, str]:
        extent = self.random.choice((width, width, 2 * width, width + 1, max(width - 1, 1)))
        at = self.random.choice(("0", f"bx * {width}")) if extent >= width * self.columns_of_grid else "0"
        return str(extent), extent, at

    def mask(self) -> str:
        """A list of truths, one for each step: never, always, or now and then true."""
        extent, text = max(self.steps, 1), "T.max(STEPS, 1)"
        if "K" in self.dynamic:
            extent, text = self.steps, "STEPS"
        kind = self.random.choice(("never", "always", "some"))
        values = {"never": np.zeros(extent), "always": np.ones(extent), "some": self.numbers.integers(0, 2, extent)}[
            kind
        ]
        self.note("mask", kind)
        return self.tensor("mask", f"({text},)", [extent], "int32", values.astype(np.int32))

    # What leaves the block -------------------------------------------------------------------------

    def leave(self, tiles: Sequence[Tile], sure: bool = False) -> None:
        """Tiles go to outputs of their own."""
        for tile in list(tiles):
            if not sure and not self.chance(0.6):
                continue
            self.store(tile)

    def retire(self) -> None:
        """A tile that nobody uses from here on, so that others may take its place; it leaves the block now, or never."""
        if self.tiles and self.chance(0.5):
            tile = self.random.choice(self.tiles)
            if self.chance(0.6):
                self.store(tile)
            self.tiles.remove(tile)

    def tell_scalars(self) -> None:
        """What scalars hold at the end."""
        for scalar in [one for one in self.scalars if one.text.startswith("v") and self.chance(0.7)]:
            tile = self.new_tile((2,), scalar.dtype, "fragment")
            self.line(f"T.fill({tile.name}, {scalar.text})")
            self.store(tile)

    def tally_scalar(self, scalar: Value) -> None:
        """What a scalar holds in this turn, added up in a tensor."""
        total = self.blocks * self.columns_of_grid * self.trips
        if scalar.bound is None or scalar.bound * total > 2**24:
            return
        name = self.tensor("D", "(1,)", [1], "int32", np.zeros(1, np.int32))
        self.line("for i in T.Parallel(1):")
        self.line(f'    T.atomic_add({name}[0], T.cast({scalar.text}, "int32"))')

    def store(self, tile: Tile) -> None:
        """A tile to an output of its own."""
        name = self.name("Y")
        dtype = tile.dtype
        if ALL[dtype].is_packed:
            return
        if (
            self.step is None
            and len(tile.shape) == 2
            and tile.shape[0] == self.block_rows
            and self.columns_of_grid == 1
            and self.chance(0.5)
        ):
            columns = self.random.choice((tile.shape[1], tile.shape[1], tile.shape[1] + 3, max(tile.shape[1] - 1, 1)))
            if columns <= tile.shape[1]:
                self.outputs[name] = (f"(M, {columns})", dtype)
                self.line(f"T.copy({tile.name}, {name}[by * BM, 0])")
                self.note("store", "rows", tile.scope, dtype)
                return
        lead, where = ["GX", "T.ceildiv(M, BM)"], ["bx", "by"]
        if self.step is not None:
            lead, where = [*lead, "T.max(STEPS, 1)", "4"], [*where, self.step, "0"]
        self.outputs[name] = (shape_text([*lead, *tile.shape]), dtype)
        if self.step is not None:
            raise AssertionError("stores in loops go by `history`")
        self.note("store", "whole", tile.scope, dtype)
        variables = INDICES[: len(tile.shape)]
        if self.chance(0.3):
            self.line(f"for {', '.join(variables)} in T.Parallel({', '.join(map(str, tile.shape))}):")
            self.line(f"    {name}[{', '.join([*where, *variables])}] = {tile.name}[{', '.join(variables)}]")
        else:
            self.line(f"T.copy({tile.name}, {name}[{', '.join([*where, *('0' for _ in tile.shape)])}])")

    def tally(self, tile: Tile) -> None:
        """What a tile holds here is added up in a tensor that all blocks share, by atomics, so that no order matters."""
        dtype = "float32" if ALL[tile.dtype].is_float else self.random.choice(("int32", "uint32"))
        total = self.blocks * self.columns_of_grid * self.trips * tile.size
        if tile.bound is None or (dtype != "uint32" and tile.bound * total > exact(dtype)):
            return
        extents = [tile.shape[-1]]
        name = self.tensor("D", shape_text(extents), extents, dtype, np.zeros(extents, ALL[dtype].numpy))
        variables = INDICES[: len(tile.shape)]
        word = self.random.choice(("add", "add", "max", "min", "or" if dtype == "uint32" else "add"))
        self.note("atomic element", word, dtype)
        self.line(f"for {', '.join(variables)} in T.Parallel({', '.join(map(str, tile.shape))}):")
        self.line(
            f'    T.atomic_{word}({name}[{variables[-1]}], T.cast({tile.name}[{", ".join(variables)}], "{dtype}"))'
        )

    # Places ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def inside(self, header: str, trips: int = 1, step: str | None = None, branch: bool = False) -> Iterator[None]:
        """Lines below a header, of a loop or of a branch; tiles that come to be there are gone behind it."""
        self.line(header)
        before, scalars = list(self.tiles), list(self.scalars)
        bounds = {tile: tile.bound for tile in before}
        mark, held = len(self.lines), (self.step, self.level, len(self.trip_stack))
        self.depth += 1
        if not branch:
            self.level += 1
            self.trip_stack.append(max(trips, 1))
        if step is not None:
            self.step = step
        yield
        if len(self.lines) == mark:
            self.line("pass")
        self.step, self.level, trips = held
        del self.trip_stack[trips:]
        self.depth -= 1
        self.tiles, self.scalars = before, scalars
        for tile in before:
            if bounds[tile] is None or tile.bound is None:
                tile.bound = None
            else:
                tile.bound = max(tile.bound, bounds[tile] or 0)

    # Expressions -----------------------------------------------------------------------------------

    def expressions(self, variables: Sequence[str], shape: Sequence[int], tiles: Sequence[Tile]) -> ExpressionWriter:
        """A writer of expressions over elements of some tiles, the indices and the scalars."""
        leaves: list[Callable[[], Value]] = []
        for tile in tiles:
            leaves += [lambda tile=tile: self._element(tile, variables, shape)] * 3
        for variable, extent in zip(variables, shape):
            leaves.append(lambda variable=variable, extent=extent: Value(variable, "int32", (0, extent - 1)))
        for scalar in self.scalars:
            leaves.append(lambda scalar=scalar: scalar)
        return ExpressionWriter(self.random, leaves, self.note)

    def _element(self, tile: Tile, variables: Sequence[str], shape: Sequence[int]) -> Value:
        """An element of a tile for the indices of a loop: that of its place, or one as far from the other end."""
        index = []
        for extent in tile.shape:
            fits = [axis for axis, side in enumerate(shape) if side <= extent]
            if not fits:
                index.append(str(self.random.randrange(extent)))
                continue
            axis = self.random.choice(fits)
            if tile.shape == tuple(shape):
                axis = len(index)
            word = variables[axis]
            if tile.scope == "shared" and self.chance(0.15):
                word = f"{extent - 1} - {word}"
            index.append(word)
        text = f"{tile.name}[{', '.join(index)}]"
        held = tile.range
        return Value(text, tile.dtype, held)


def shape_text(shape: Sequence[Any]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def bounded(dtype: str, value: Value) -> float | None:
    """The bound of a tile that takes a value."""
    if ALL[dtype].kind == "bool":
        return 1
    return value.bound


__all__ = ["FLOATS", "INDICES", "NUMBERS", "Part", "Tile", "TileWriter", "bounded", "replace", "shape_text"]
