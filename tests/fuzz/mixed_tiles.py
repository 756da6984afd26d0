"""Tiles of mixed programs: what is known of the numbers in them, and numbers that are computed of them."""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from expression_writer import SIGNED, UNSIGNED, ExpressionWriter, Value, whole_range
from tile_programs import Param, TileProgram, small

import tilewright
from tilewright.ir.dtypes import ALL
from tilewright.runtime.kernel import Kernel

EXACT = {
    "float64": 2**40, "float32": 2**23, "float16": 2048, "bfloat16": 256, "float8_e4m3fn": 16, "float8_e5m2": 8,
    "float8_e4m3b11fnuz": 16, "float8_e4m3fnuz": 16, "float8_e5m2fnuz": 8, "float6_e2m3fn": 7, "float6_e3m2fn": 8,
    "float4_e2m1fn": 4, "tfloat32": 2048,
}  # fmt: skip
"""Whole numbers up to these, positive and negative, are exact."""

WIDE = ("float32", "float32", "int32", "int32", "float16", "bfloat16", "int64", "float64")
NARROW = ("int8", "uint8", "int16", "uint16", "uint32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float6_e2m3fn",
          "float4_e2m1fn", "int4", "uint4", "uint2", "int2", "uint1", "bool")  # fmt: skip
TURN = 9
"""What tiles that outlive a loop's turn hold in it."""

LIMIT = 2**22
"""What the numbers of a tile may reach before they are brought back."""


def exact_range(dtype: str) -> tuple[int, int]:
    """The whole numbers that a type holds exactly, none of them beyond `LIMIT`."""
    record = ALL[dtype]
    if record.kind == "bool":
        return 0, 1
    if dtype in EXACT:
        bound = min(EXACT[dtype], LIMIT)
        return -bound, bound
    return max(int(record.minimum), -LIMIT), min(int(record.maximum), LIMIT)


def is_float(dtype: str) -> bool:
    return ALL[dtype].is_float


@dataclass(eq=False)
class Tile:
    """A tile or tensor: where it is, its shape, and the range of the numbers in it (None: it has no value yet)."""

    name: str
    scope: str
    shape: tuple[int, ...]
    dtype: str
    range: tuple[int, int] | None = None
    base: Tile | None = None
    group: int | None = None
    """The warpgroup that alone uses it."""

    made_in: tuple[str, ...] = ()
    """The loops that it is declared in."""

    sums_in: tuple[str, ...] = ()
    """The loops in which it only adds up."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def holder(self) -> Tile:
        """The tile whose memory it is."""
        return self.base.holder if self.base is not None else self


@dataclass
class Context:
    """What holds where statements are being written."""

    depth: int = 0
    indices: tuple[tuple[str, int, int], ...] = ()
    """Uniform scalars that may be read here, with their ranges."""

    sure: bool = True
    """Whether the block runs whenever the one around it does, all of it."""

    group: int | None = None
    turns: int = 1
    """How often it may run: sums grow by as much."""

    loops: tuple[str, ...] = ()
    pipelined: bool = False


@dataclass(frozen=True)
class MixedProgram(TileProgram):
    """A program with a kernel before its own one, and with helpers before the function.

    Where it is `traced`, it is one of `T.prim_func`: tensors are declared as its parameters are, those among them that callers get back; of some
    parameters (`handles`) the kernel says itself which tensors they are.
    """

    before: tuple[str, ...] = field(default=())
    helpers: tuple[str, ...] = field(default=())
    traced: bool = False
    handles: tuple[str, ...] = field(default=())

    @property
    def used(self) -> tuple[Param, ...]:
        said = "\n".join([*self.before, *self.body, self.kernel])
        return tuple(p for p in self.params if p.tells or re.search(rf"\b{p.name}\b", said))

    @property
    def text(self) -> str:
        text = self.as_traced() if self.traced else super().text
        head = f"    {self.kernel}\n"
        if self.before:
            text = text.replace(head, "".join(f"    {line}\n" for line in self.before) + head, 1)
        return "".join(f"{line}\n" for line in self.helpers) + text

    def as_traced(self) -> str:
        """The function with all that it is given among its parameters."""
        sizes = [line for line in self.sizes if re.fullmatch(r'm\d = T\.\w+\("m\d".*\)', line)]
        given = [
            f"{one.name}_: T.handle" if one.name in self.handles else f"{one.name}: {one.declared}" for one in self.used
        ]
        given += [f'{name}: T.Tensor({shape}, "{dtype}")' for name, shape, dtype in self.outputs]
        lines = [*sizes, "@T.prim_func", f"def program({', '.join(given)}):"]
        lines += [f"    {line}" for line in self.sizes if line not in sizes]
        for one in self.used:
            if one.name in self.handles:
                lines.append(f"    {one.name} = {one.declared.replace('T.Tensor(', f'T.match_buffer({one.name}_, ')}")
        return "\n".join([*lines, f"    {self.kernel}", *(f"        {line}" for line in self.body)]) + "\n"

    def kernel_of(self, function: Any, target: str) -> Kernel:
        if not self.traced:
            return super().kernel_of(function, target)
        return tilewright.compile(function, out_idx=list(range(-len(self.outputs), 0)) or None, target=target)


class MixedState:
    """A program while it is written: what there is, and what may be said of it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = np.random.default_rng([seed, 0x3A7])
        self.signs = random.Random(f"signs {seed}")  # of its own, so that other programs stay what they are
        self.sizes: list[str] = []
        self.params: list[Param] = []
        self.outputs: list[tuple[str, str, str]] = []
        self.tiles: list[Tile] = []
        self.lines: list[str] = []
        self.features: set[tuple[str, ...]] = set()
        self.names = itertools.count()
        self.context = Context()
        self.shared_bytes = 0
        self.shifted = False
        self.annotated: list[Tile] = []
        self.annotates = self.pick((0.05, 0.15, 0.15, 0.6))
        self.dynamic: list[tuple[str, int]] = []

    # Drawing ---------------------------------------------------------------------------------------

    def pick(self, among: Any) -> Any:
        return among[int(self.random.integers(len(among)))]

    def chance(self, part: float) -> bool:
        return bool(self.random.random() < part)

    def between(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def name(self, letter: str) -> str:
        return f"{letter}{next(self.names)}"

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.context.depth + line for line in lines]

    def feature(self, *words: str) -> None:
        self.features.add(words)

    def fits(self, values: tuple[int, int], dtype: str) -> bool:
        low, high = exact_range(dtype)
        return low <= values[0] and values[1] <= high

    # Tensors and tiles -------------------------------------------------------------------------------

    def tensor(
        self, shape: tuple[int, ...], dtype: str, values: tuple[int, int], extents: tuple[str, ...] = ()
    ) -> Tile:
        """A tensor parameter with numbers of a range."""
        name = self.name("A")
        declared = ", ".join(extents or map(str, shape)) + ("," if len(shape) == 1 else "")
        numbers = self.numbers(shape, dtype, values)
        text = f'T.Tensor(({declared}), "{dtype}")'
        tells = frozenset(size for size, _ in self.dynamic if size in extents)
        self.params.append(Param(name, text, numbers, tells=tells))
        made = Tile(name, "global", shape, dtype, (min(0, values[0]), max(0, values[1])))
        return made

    def numbers(self, shape: tuple[int, ...], dtype: str, values: tuple[int, int]) -> np.ndarray:
        record = ALL[dtype]
        if record.is_packed:
            return small(self.random, shape, dtype, max(abs(values[0]), abs(values[1])))
        return self.random.integers(values[0], values[1] + 1, shape).astype(record.numpy)

    def start_range(self, dtype: str) -> tuple[int, int]:
        low, high = exact_range(dtype)
        return max(low, -4), min(high, 4)

    def shape(self) -> tuple[int, ...]:
        kind = self.between(0, 9)
        if kind < 5:
            return (self.pick((16, 32, 64)), self.pick((16, 32, 64)))
        if kind == 5:
            return (self.pick((5, 7, 8, 1, 3)), self.pick((7, 16, 24, 1, 2)))
        if kind == 6:
            return (self.pick((1, 7, 32, 64, 100)),)
        if kind == 7:
            return (self.pick((2, 3)), self.pick((4, 8, 5)), self.pick((8, 16)))
        if kind == 8:
            return (2, self.pick((1, 3)), 4, 8)
        return (self.pick((16, 48, 128)), self.pick((16, 8)))

    def new_tile(
        self, shape: tuple[int, ...] | None = None, dtype: str | None = None, scope: str | None = None
    ) -> Tile:
        """Declare a tile where we are, and mostly give it a value."""
        shape = shape or self.shape()
        dtype = dtype or (self.pick(WIDE) if self.chance(0.7) else self.pick(NARROW))
        scope = scope or self.pick(("shared", "fragment"))
        if scope == "shared" and ALL[dtype].is_packed and shape[-1] * ALL[dtype].bits % 8:
            dtype = "int8"
        if scope == "shared":
            size = math.prod(shape) * max(8, ALL[dtype].bits) // 8
            if self.shared_bytes + size > 20000:
                scope = "fragment"
            else:
                self.shared_bytes += size
        tile = Tile(
            self.name("s" if scope == "shared" else "f"),
            scope,
            shape,
            dtype,
            group=self.context.group,
            made_in=self.context.loops,
        )
        self.emit(f'{tile.name} = T.alloc_{scope}({shape}, "{dtype}")')
        self.tiles.append(tile)
        if scope == "shared" and len(shape) == 2 and not self.context.depth and self.chance(self.annotates):
            self.annotate(tile)
        if self.chance(0.9):
            self.pick((self.fill, self.load, self.load, self.compute, self.in_parts))(tile)
        return tile

    def annotate(self, tile: Tile) -> None:
        """Give a shared tile a layout of the author's: longer rows, columns first, or a swizzle."""
        rows, columns = tile.shape
        ways = [
            f"T.Layout({tile.shape}, lambda i, j: i * {columns + 8} + j)",
            f"T.Layout({tile.shape}, lambda i, j: j * {rows} + i)",
        ]
        if columns in (16, 32, 64) and rows % 8 == 0 and ALL[tile.dtype].bits >= 8:
            ways += [f"make_swizzled_layout({tile.name})"] * 2
        if not ALL[tile.dtype].is_packed:
            self.emit(f"T.annotate_layout({{{tile.name}: {self.pick(ways)}}})")
            self.annotated.append(tile)
            self.feature("annotated")

    def usable(self, scopes: tuple[str, ...] = ("shared", "fragment"), value: bool | None = True) -> list[Tile]:
        """Tiles that this context may use."""
        return [
            tile
            for tile in self.tiles
            if tile.scope in scopes
            and (value is None or (tile.range is not None) == value)
            and (tile.scope == "global" or tile.group == self.context.group)
            and not tile.holder.sums_in
        ]

    def room(self, tile: Tile) -> tuple[int, int]:
        """What may be stored into a tile: in a loop, what the loop was told of tiles that outlive a turn."""
        low, high = exact_range(tile.dtype)
        return (low, high) if tile.holder.made_in == self.context.loops else (max(low, -TURN), min(high, TURN))

    def takes(self, tile: Tile, values: tuple[int, int]) -> bool:
        low, high = self.room(tile)
        return low <= values[0] and values[1] <= high

    def wrote(self, tile: Tile, values: tuple[int, int], whole: bool = True) -> None:
        """Keep account of what a tile holds now; what shares its memory under another type loses its value."""
        if not whole and tile.range is not None:
            values = min(values[0], tile.range[0]), max(values[1], tile.range[1])
        tile.range = values
        for other in self.tiles:
            if other is not tile and other.holder is tile.holder:
                other.range = values if other.dtype == tile.dtype and other.elements == tile.elements else None

    # Scalars -----------------------------------------------------------------------------------------

    def index(self, low: int, high: int) -> str:
        """An integer that all threads agree on, surely between two numbers."""
        fitting = [one for one in self.context.indices if low <= one[1] and one[2] <= high]
        kind = self.between(0, 3)
        if kind == 0 and fitting:
            return str(self.pick(fitting)[0])
        if kind == 1 and self.context.indices and high > low:
            return f"({self.pick(self.context.indices)[0]} % {high - low + 1} + {low})"
        if kind == 2 and high > low:
            return f"T.min(T.max({self.flags.name}[{self.index(0, 7)}] + {self.between(-1, 2)}, {low}), {high})"
        return str(self.between(low, high))

    def condition(self) -> str:
        """A condition that all threads of the block agree on."""
        kind = self.between(0, 5)
        name = self.pick(self.context.indices)[0]
        if kind == 0:
            return f"{self.flags.name}[{self.index(0, 7)}] != 0"
        if kind == 1:
            return f"{name} % 2 == {self.between(0, 1)}"
        if kind == 2:
            return f"{name} < {self.between(0, 3)} and {self.pick(self.context.indices)[0]} != {self.between(0, 3)}"
        if kind == 3 and self.dynamic:
            return f"{self.pick(self.dynamic)[0]} > {self.pick((0, 1, 7))}"
        tiles = [one for one in self.usable(("shared",)) if not is_float(one.dtype) and ALL[one.dtype].bits >= 8]
        if kind == 4 and tiles and not self.roles:
            return f"T.{self.pick(('any_of', 'all_of'))}({self.pick(tiles).name})"
        return f"{name} >= {self.between(0, 2)}"

    def expression(
        self, indices: list[tuple[str, int]], avoid: Tile | None, depth: int = 2
    ) -> tuple[str, int, int, str]:
        """A number for each point of an index space: its text, its range and its type; `avoid` is only read at the same point."""
        kind = self.pick(("float32", "int32", "int32", "float32", "int64", "float16"))
        text, low, high = self.term(indices, avoid, kind, depth)
        return text, low, high, kind

    def term(self, indices: list[tuple[str, int]], avoid: Tile | None, kind: str, depth: int) -> tuple[str, int, int]:
        if depth == 0 or self.chance(0.2):
            return self.leaf(indices, avoid, kind)
        a, a_low, a_high = self.term(indices, avoid, kind, depth - 1)
        choice = self.between(0, 9)
        b, b_low, b_high = self.term(indices, avoid, kind, depth - 1)
        made: tuple[str, int, int]
        if choice <= 1:
            made = f"({a} + {b})", a_low + b_low, a_high + b_high
        elif choice == 2:
            made = f"({a} - {b})", a_low - b_high, a_high - b_low
        elif choice == 3:
            corners = [x * y for x in (a_low, a_high) for y in (b_low, b_high)]
            made = f"({a} * {b})", min(corners), max(corners)
        elif choice == 4:
            made = f"T.max({a}, {b})", max(a_low, b_low), max(a_high, b_high)
        elif choice == 5:
            made = f"T.min({a}, {b})", min(a_low, b_low), min(a_high, b_high)
        elif choice == 6:
            made = f"T.abs({a})", 0, max(abs(a_low), abs(a_high))
        elif choice == 7:
            test = self.pick((f"{a} > {b}", f"{a} == {b}", f"({a} < {b}) or ({a} > 2)", f"not ({a} <= {b})"))
            if self.chance(0.4) and indices:
                test = f"{indices[0][0]} % 2 == {self.between(0, 1)} and {test}"
            made = f"T.if_then_else({test}, {a}, {b})", min(a_low, b_low), max(a_high, b_high)
        elif choice == 8 and not is_float(kind):
            divisor = self.pick((2, 3, -2, 5))
            if self.chance(0.5):
                ends = [a_low // divisor, a_high // divisor]
                made = f"({a} // {divisor})", min(ends), max(ends)
            else:
                made = f"({a} % {divisor})", min(0, divisor + 1), max(0, divisor - 1)
        elif choice == 9 and not is_float(kind):
            bound = max(abs(a_low), abs(a_high), abs(b_low), abs(b_high), 1)
            top = 2 ** bound.bit_length()
            made = f"({a} {self.pick('&|^')} {b})", -top, top
        else:
            made = f"(-{a} + {b})", b_low - a_high, b_high - a_low
        if self.signs.random() < 0.15:
            made = self.signed(made, kind)
        low, high = exact_range(kind)
        if made[1] < low // 4 or made[2] > high // 4:
            return f"T.clamp({made[0]}, {self.cast('-9', kind)}, {self.cast('9', kind)})", -9, 9
        return made

    def signed(self, made: tuple[str, int, int], kind: str) -> tuple[str, int, int]:
        """A number behind signs, some of them one after another."""
        text, low, high = made
        for _ in range(self.signs.choice((1, 2, 2, 3))):
            if not is_float(kind) and self.signs.random() < 0.3:
                text, low, high = f"(~{text})", -high - 1, -low - 1
            else:
                text, low, high = f"(-{text})", -high, -low
        return text, low, high

    def of_any_type(self, indices: list[tuple[str, int]], avoid: Tile | None) -> tuple[str, int, int, str]:
        """A whole number by every operation on numbers of every type: as `expression` gives one, in a range of any size."""
        kind = self.pick((*SIGNED, *UNSIGNED))

        def leaf() -> Value:
            text, low, high = self.leaf(indices, avoid, kind)
            least, most = whole_range(kind)
            return Value(text, kind, (low, high) if least <= low and high <= most else (least, most))

        made = ExpressionWriter(random.Random(int(self.random.integers(1 << 32))), [leaf], lambda *_: None)
        made.signs = 0.4
        value = made.value(kind, self.between(2, 4))
        low, high = whole_range(kind) if value.range is None else value.range
        self.feature("worked out", kind)
        return value.text, int(low), int(high), kind

    def cast(self, text: str, kind: str) -> str:
        return f'T.cast({text}, "{kind}")'

    def leaf(self, indices: list[tuple[str, int]], avoid: Tile | None, kind: str) -> tuple[str, int, int]:
        choice = self.between(0, 9)
        if choice == 0:
            value = self.between(-3, 3)
            return self.cast(str(value), kind), value, value
        if choice == 1 and indices:
            return self.cast(f"({self.pick(indices)[0]} % 5)", kind), 0, 4
        if choice == 2:
            name, low, high = self.pick(self.context.indices)
            return self.cast(name, kind), low, high
        tiles = [one for one in self.usable(("shared", "fragment", "global")) if self.reads(one, kind)]
        if not tiles:
            return self.cast("2", kind), 2, 2
        tile = self.pick(tiles)
        assert tile.range is not None
        at = self.element(tile, indices, avoid)
        if at is None:
            return self.cast("1", kind), 1, 1
        return self.cast(f"{tile.name}[{at}]", kind), min(0, tile.range[0]), max(0, tile.range[1])

    def reads(self, tile: Tile, kind: str) -> bool:
        return tile.range is not None and self.fits(tile.range, kind) and max(map(abs, tile.range)) < 2**12

    def element(self, tile: Tile, indices: list[tuple[str, int]], avoid: Tile | None) -> str | None:
        """Where in a tile an element for a point of an index space stands; what the loop writes is read at the same point alone."""
        if avoid is not None and tile.holder is avoid.holder:
            if tile is not avoid or self.shifted or len(indices) != len(tile.shape):
                return None
            return ", ".join(name for name, _ in indices)
        places: list[str] = []
        order = list(indices)
        if self.chance(0.2):
            self.random.shuffle(order)  # type: ignore[arg-type]
        if self.chance(0.5):  # axes that fit take the indices that fit them
            order.sort(key=lambda one: -one[1])
        for extent in (max(1, one) for one in tile.shape):  # of a tensor without elements zeros are read
            fitting = [one for one in order if one[1] <= extent]
            kind = self.between(0, 7)
            if kind < 5 and fitting:
                name, run = self.pick(fitting)
                order = [one for one in order if one[0] != name] or order
                if run < extent and self.chance(0.4):
                    name = f"{name} + {self.index(0, extent - run)}"
                places.append(name)
            elif kind == 5 and indices:
                name, _ = self.pick(indices)
                places.append(
                    self.pick((f"({name} * 2 + 1) % {extent}", f"({name} + 1) % {extent}", f"{name} // 3 % {extent}"))
                )
            elif kind == 6 and indices and tile.scope == "global" and tile.name != self.flags.name:
                name, _ = self.pick(indices)
                places.append(f"{name} - {self.between(0, 2)}")
            else:
                places.append(self.index(0, extent - 1))
        return ", ".join(places)
