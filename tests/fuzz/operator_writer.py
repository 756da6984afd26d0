"""Calls of tile operators: of every one that is registered, with what the writer's tiles hold.

An operator that authors know by name has a recipe here, which says what its numbers become.  Any other is made from its fields
alone: operands and constants are tried until its own check is content, and what it writes leaves the block at once.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
from expression_writer import FLOATS, ExpressionWriter, Value, exact
from tile_writer import Part, Tile, TileWriter, shape_text

import tilewright.ops  # noqa: F401  (registers the operators)
from tilewright.formats.sparse import compress, prune
from tilewright.ir import ALL, TILE_OPERATORS, Buffer, DType, Expr, Region, TileOperator, nodes
from tilewright.ops import COMBINE, POLICIES, CopySchedule, compute_dtype

Recipe = Callable[[TileWriter], bool]
RECIPES: dict[str, Recipe] = {}


def recipe(name: str) -> Callable[[Recipe], Recipe]:
    def register(made: Recipe) -> Recipe:
        RECIPES[name] = made
        return made

    return register


def write_operator(writer: TileWriter, name: str | None = None) -> bool:
    """A statement of one operator; False where nothing that is there fits it."""
    name = name or writer.random.choice(list(TILE_OPERATORS))
    made = RECIPES.get(name)
    if made is None or writer.chance(0.04):
        return by_its_fields(writer, TILE_OPERATORS[name])
    return made(writer)


def after_cast(tile: Tile, dtype: str, bound: float | None = None) -> float | None:
    """The bound of a tile's numbers in another type."""
    held = tile.range if bound is None else (-bound, bound)
    if tile.bound is None and bound is None:
        held = None
    return ExpressionWriter(None, (), lambda *_: None).cast(Value("", tile.dtype, held), dtype).bound  # type: ignore[arg-type]


def other_dtype(writer: TileWriter, tile: Tile) -> str:
    return tile.dtype if writer.chance(0.6) else writer.random.choice(writer.types)


# Moves -------------------------------------------------------------------------------------------


@recipe("copy")
def copy(writer: TileWriter) -> bool:
    """Between tiles, converting; or halves of a tile that change places on the way."""
    source = writer.part(writer.filled_tile())
    if source.shape == source.tile.shape and writer.chance(0.25):
        return _crosswise(writer, source.tile)
    into = writer.writable(lambda t: t is not source.tile and t.dtype != "bool" and len(t.shape) == len(source.shape)
                           and all(map(int.__ge__, t.shape, source.shape)))  # fmt: skip
    if into and writer.chance(0.4):
        to = writer.part(writer.random.choice(into), source.shape)
        bound, old = after_cast(source.tile, to.tile.dtype), to.tile.bound
        whole = to.shape == to.tile.shape
        writer.keep(to.tile, bound if whole else None if None in (bound, old) else max(bound, old))  # type: ignore[type-var]
    else:
        tile = writer.new_tile(source.shape, other_dtype(writer, source.tile))
        to = Part(tile.name, tile, tile.shape)
        writer.keep(tile, after_cast(source.tile, tile.dtype))
    writer.note(
        "operator", "copy", f"{source.tile.scope} to {to.tile.scope}", source.tile.dtype, f"stages {writer.stages}"
    )
    writer.line(f"T.copy({source.text}, {to.text})")
    return True


def _crosswise(writer: TileWriter, source: Tile) -> bool:
    """The two halves of a tile, along any dimension, exchanged."""
    axes = [axis for axis, extent in enumerate(source.shape) if extent % 2 == 0]
    if not axes or ALL[source.dtype].is_packed:
        return False
    axis = writer.random.choice(axes)
    half, to = source.shape[axis] // 2, writer.new_tile(source.shape, other_dtype(writer, source))
    for mine in writer.random.sample((0, 1), 2):
        parts = []
        for at in (mine, 1 - mine):
            parts.append(
                ", ".join(f"{at * half}:{at * half + half}" if a == axis else ":" for a in range(len(source.shape)))
            )
        writer.line(f"T.copy({source.name}[{parts[0]}], {to.name}[{parts[1]}])")
    writer.note("operator", "copy", f"halves of {source.scope} to {to.scope}", source.dtype)
    writer.keep(to, after_cast(source, to.dtype))
    return True


@recipe("fill")
def fill(writer: TileWriter) -> bool:
    """A tile that is there, or a new one, gets one number."""
    there = writer.writable()
    tile = (
        writer.random.choice(there)
        if there and writer.chance(0.4)
        else writer.new_tile(writer.shape(), writer.random.choice(writer.types))
    )
    writer.note("operator", "fill", tile.scope, tile.dtype)
    if writer.chance(0.4):
        writer.line(f"T.clear({tile.name})")
        writer.keep(tile, 0)
        return True
    scalars = [one for one in writer.scalars if one.range is not None]
    value = (
        writer.random.choice(scalars)
        if scalars and writer.chance(0.4)
        else Value(str(writer.random.choice((1, 2, 3))), "int32", (0, 3))
    )
    text = value.text if value.dtype == tile.dtype or value.text.isdigit() else f'T.cast({value.text}, "{tile.dtype}")'
    writer.line(f"T.fill({tile.name}, {text})")
    writer.keep(tile, value.bound)
    return True


@recipe("transpose")
def transpose(writer: TileWriter) -> bool:
    fits = writer.readable(lambda t: len(t.shape) == 2 and not ALL[t.dtype].is_packed)
    source = writer.random.choice(fits) if fits else writer.filled_tile(writer.shape(2))
    to = writer.new_tile(source.shape[::-1], other_dtype(writer, source))
    writer.note("operator", "transpose", f"{source.scope} to {to.scope}", source.dtype)
    writer.line(f"T.transpose({source.name}, {to.name})")
    writer.keep(to, after_cast(source, to.dtype))
    return True


# Folds -------------------------------------------------------------------------------------------


def _sums_fit(writer: TileWriter, source: Tile, dtype: str, total: float) -> bool:
    """Whether the sums of a fold are the same in any order."""
    if ALL[dtype].is_integer:
        return ALL[source.dtype].is_integer or source.dtype == "bool"
    return total <= exact(compute_dtype(ALL[source.dtype], ALL[dtype]).name)


def _spoken_dim(writer: TileWriter, axis: int, rank: int) -> int:
    return axis if writer.chance(0.5) else axis - rank


@recipe("reduce")
def reduce(writer: TileWriter) -> bool:
    source = writer.part(writer.filled_tile())
    tile, rank = source.tile, len(source.shape)
    axis, kind = writer.random.randrange(rank), writer.random.choice(list(COMBINE))
    of_integers = kind.startswith("bit")
    if of_integers and not ALL[tile.dtype].is_integer:
        kind, of_integers = "max", False
    clear, dim = writer.chance(0.6), _spoken_dim(writer, axis, rank)
    kept = [extent for at, extent in enumerate(source.shape) if at != axis]
    shape = tuple(kept) or (1,)
    if writer.chance(0.15):
        shape = tuple(1 if at == axis else extent for at, extent in enumerate(source.shape))
    wanted = (
        tile.dtype
        if of_integers or not writer.chance(0.4)
        else writer.random.choice((*writer.types, "float32", "int32"))
    )
    if kind not in ("any", "all", "sum", "abssum") and tile.dtype == "bool":
        kind = "any"
    if kind in ("sum", "abssum"):
        if ALL[tile.dtype].is_float and not ALL[wanted].is_float:
            wanted = "float32"
        if tile.bound is None:
            kind = "max"
    if wanted == "bool":
        wanted = "int32"
    to = _folded_into(writer, shape, wanted, clear, tile)
    growth = math.prod(writer.trip_stack[to.level :])
    total = (tile.bound or 0) * source.shape[axis]
    old = 0 if clear else (to.bound or 0)
    if kind in ("sum", "abssum") and not (
        _sums_fit(writer, tile, to.dtype, total + old) and (clear or to.bound is not None)
        and (ALL[to.dtype].is_integer or old + total * growth <= (exact(to.dtype) if growth > 1 else float(ALL[to.dtype].maximum) / 2))
    ):  # fmt: skip
        kind = "max" if tile.dtype != "bool" else "any"
    writer.note(
        "operator",
        "reduce",
        kind,
        f"dim {dim} of {rank}",
        f"{tile.scope} to {to.scope}",
        tile.dtype,
        to.dtype,
        f"stages {writer.stages}",
    )
    call = f"T.reduce_{kind}(" if kind not in ("any", "all") else "T.reduce("
    named = f'"{kind}", ' if kind in ("any", "all") else ""
    said = f"dim={dim}" if dim != -1 or writer.chance(0.5) else ""
    more = ", ".join(part for part in (said, "" if clear and writer.chance(0.5) else f"clear={clear}") if part)
    writer.line(f"{call}{source.text}, {to.name}, {named}{more})".replace(", )", ")"))
    if kind in ("sum", "abssum"):
        bound: float | None = old + total * growth
        if ALL[to.dtype].is_float and bound is not None and bound > exact(to.dtype):
            bound = bound * 1.2
    elif kind in ("any", "all"):
        bound = max(1, old)
    else:
        cast = after_cast(tile, to.dtype)
        bound = cast if clear else None if cast is None or to.bound is None else max(cast, old)
    if to.level == writer.level:
        writer.keep(to, bound)
    else:
        to.bound = bound
    return True


def _folded_into(writer: TileWriter, shape: tuple[int, ...], dtype: str, clear: bool, source: Tile) -> Tile:
    """Where a fold goes: a new tile, one that is there, or one that a loop carries on."""
    if clear:
        there = writer.writable(lambda t: t.shape == shape and t.dtype == dtype and t is not source)
        return writer.random.choice(there) if there and writer.chance(0.3) else writer.new_tile(shape, dtype)
    there = [
        t
        for t in writer.tiles
        if t.shape == shape
        and t.dtype == dtype
        and (t.carried or t.level == writer.level)
        and not t.fixed
        and t is not source
    ]
    if there:
        return writer.random.choice(there)
    tile = writer.load(shape, dtype, bound=2) if writer.chance(0.5) else writer.new_tile(shape, dtype)
    if tile.bound is None:
        writer.line(f"T.fill({tile.name}, {writer.random.choice((0, 1))})")
        writer.keep(tile, 1)
    return tile


@recipe("scan")
def scan(writer: TileWriter) -> bool:
    source = writer.filled_tile()
    rank = len(source.shape)
    axis, kind = writer.random.randrange(rank), writer.random.choice(("sum", "max"))
    dim, reverse = _spoken_dim(writer, axis, rank), writer.chance(0.4)
    total = (source.bound or 0) * source.shape[axis]
    in_place = source in writer.writable() and source.dtype != "bool" and writer.chance(0.4)
    dtype = source.dtype if in_place else other_dtype(writer, source)
    if dtype == "bool" or (ALL[source.dtype].is_float and not ALL[dtype].is_float):
        dtype = "float32"
    if in_place and dtype != source.dtype:
        in_place = False
    sums = source.bound is not None and _sums_fit(writer, source, dtype, total)
    if kind == "sum" and not (sums and (not ALL[dtype].is_float or total < float(ALL[dtype].maximum) / 2)):
        kind = "max"
    if kind == "max" and source.dtype == "bool":
        return False
    to = source if in_place else writer.new_tile(source.shape, dtype)
    writer.note(
        "operator",
        "scan",
        kind,
        f"dim {dim} of {rank}",
        f"{source.scope} to {to.scope}",
        source.dtype,
        dtype,
        f"stages {writer.stages}",
    )
    more = [] if in_place else [to.name]
    more += [f"dim={dim}"] if dim or writer.chance(0.5) else []
    more += ["reverse=True"] if reverse else []
    writer.line(f"T.cum{kind}({', '.join([source.name, *more])})")
    if kind == "max":
        writer.keep(to, after_cast(source, dtype))
    else:
        writer.keep(to, total * (1.2 if ALL[dtype].is_float and total > exact(dtype) else 1))
    return True


# Atomics -----------------------------------------------------------------------------------------


@recipe("atomic")
def atomic(writer: TileWriter) -> bool:
    """A tile combined with a tensor that all blocks share, or with a shared tile; in any order the same."""
    dtype = writer.random.choice(("int32", "uint32", "float32", "float32", "float16", "int32"))
    value = writer.filled_tile(dtype=dtype)
    kind = writer.random.choice(
        ("add", "add", "max", "min", *(("and", "or", "xor") if not ALL[dtype].is_float else ()))
    )
    blocks = writer.blocks * writer.columns_of_grid
    growth = writer.trips * max(blocks, 1)
    if value.bound is None or (ALL[dtype].is_float and kind != "add"):
        return False
    if kind == "add" and dtype != "uint32" and (value.bound + 2) * growth > exact(dtype):
        return False
    writer.note("operator", "atomic", kind, dtype, value.scope)
    shape = list(value.shape)
    tensor = writer.tensor("D", shape_text(shape), shape, dtype, writer.values(shape, dtype, 2))
    index = ", ".join("0" for _ in shape)
    said = writer.random.choice(("call", "fields"))
    region = f"{tensor}[{', '.join(f'0:{extent}' for extent in shape)}]"
    if said == "call":
        writer.line(f"T.atomic_{kind}({writer.random.choice((tensor, f'{tensor}[{index}]', region))}, {value.name})")
    else:
        writer.line(f'operator("atomic", destination={region}, value={value.name}, kind="{kind}")')
    return True


# Products ----------------------------------------------------------------------------------------

OPERANDS = (
    ("float16", "float32"), ("float16", "float32"), ("bfloat16", "float32"), ("float16", "float16"), ("float32", "float32"),
    ("float64", "float64"), ("int8", "int32"), ("int8", "int32"), ("uint8", "int32"), ("float8_e4m3fn", "float32"), ("float8_e5m2", "float32"),
    ("int16", "int32"), ("int32", "int32"), ("bfloat16", "bfloat16"), ("float8_e4m3fn", "float16"), ("int8", "float32"),
)  # fmt: skip


def _accumulator(writer: TileWriter, shape: tuple[int, int], dtype: str) -> tuple[Tile, str]:
    """Where products go, and what is said of what it held."""
    there = [
        t
        for t in writer.tiles
        if t.shape == shape and t.dtype == dtype and t.scope == "fragment" and (t.carried or t.level == writer.level)
    ]
    if there and writer.chance(0.8):
        tile = writer.random.choice(there)
        return tile, "False" if tile.level != writer.level else writer.random.choice(("False", "False", "True"))
    tile = writer.new_tile(shape, dtype, "fragment" if writer.chance(0.9) else "shared")
    if writer.chance(0.4):
        return tile, "True"
    writer.line(f"T.clear({tile.name})")
    writer.keep(tile, 0)
    return tile, writer.random.choice(("False", "count > 1"))


@recipe("gemm")
def gemm(writer: TileWriter) -> bool:
    dtype, total = writer.random.choice(OPERANDS)
    sides = (8, 16, 16, 32, 32, 64, *writer.sides)
    if writer.chance(0.75):
        sides = (16, 16, 32, 64)
    m, n = writer.random.choice(sides), writer.random.choice(sides)
    k = (
        writer.slice_side
        if writer.step and writer.chance(0.7)
        else writer.random.choice(sides if ALL[dtype].bits > 8 else (32, 32, 64, *sides))
    )
    if writer.chance(0.3) and writer.block_rows in (1, 5, 8, 16, 32, 64):
        m = writer.block_rows
    while m * n * k > 40000:
        m, n = (m // 2, n) if m > n else (m, n // 2)
    c = _written_product(writer, "gemm", dtype, total, m, n, k)
    return c


def _written_product(writer: TileWriter, word: str, dtype: str, total: str, m: int, n: int, k: int) -> bool:
    left, right = writer.chance(0.25), writer.chance(0.5)
    a = writer.filled_tile((k, m) if left else (m, k), dtype, None if writer.chance(0.15) else "shared")
    b = writer.filled_tile((n, k) if right else (k, n), dtype, "shared")
    if a.bound is None or b.bound is None:
        return False
    delta = a.bound * b.bound * k
    c, clear = _accumulator(writer, (m, n), total)
    growth = math.prod(writer.trip_stack[c.level :])
    bound = delta * growth + (0 if clear == "True" else (c.bound or 0))
    if bound > (exact(total) if total != "int32" else 2**31 - 1):
        return False
    writer.note(
        "operator", word, dtype, total, f"{a.scope} {b.scope}", f"transposed {left} {right}", f"stages {writer.stages}"
    )
    more = [f"transpose_A={left}"] * left + [f"transpose_B={right}"] * right
    more += [f"clear_accum={clear}"] * (clear != "False")
    if writer.chance(0.2):
        more.append(f'policy="{writer.random.choice(POLICIES)}"')
    if writer.chance(0.05) and k % 2 == 0:
        more.append(f"promote_every={k // 2}")
    writer.line(f"T.gemm({', '.join([a.name, b.name, c.name, *more])})")
    if c.level == writer.level:
        writer.keep(c, bound)
    else:
        c.bound = bound
    return True


@recipe("sparse_gemm")
def sparse_gemm(writer: TileWriter) -> bool:
    """Two of every four neighbours along k are zero, and left out."""
    dtype, total = writer.random.choice((("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32")))
    m, n = writer.random.choice((16, 32, 64)), writer.random.choice((8, 16, 32))
    k = 64 if dtype == "int8" else writer.random.choice((32, 64))
    steps = max(writer.steps, 1) if writer.step and "K" not in writer.dynamic else 1
    step = writer.step if steps > 1 or (writer.step and "K" not in writer.dynamic) else "0"
    dense = prune(writer.numbers.integers(-2, 3, (m, k * steps))).astype(ALL[dtype].numpy)
    kept, places = compress(dense)
    values = kept.reshape(m, steps, k // 2).transpose(1, 0, 2).copy()
    metadata = places.reshape(m, steps, k // 8).transpose(1, 0, 2).copy()
    s = writer.tensor("S", f"({steps}, {m}, {k // 2})", values.shape, dtype, values)
    e = writer.tensor("E", f"({steps}, {m}, {k // 8})", metadata.shape, "uint8", metadata)
    a, where = writer.new_tile((m, k // 2), dtype, "shared"), writer.new_tile((m, k // 8), "uint8", "shared")
    writer.line(f"T.copy({s}[{step}, 0, 0], {a.name})")
    writer.line(f"T.copy({e}[{step}, 0, 0], {where.name})")
    right = writer.chance(0.5) or dtype == "int8"
    b = writer.filled_tile((n, k) if right else (k, n), dtype, "shared")
    c, clear = _accumulator(writer, (m, n), total)
    bound = 2 * (b.bound if b.bound is not None else math.inf) * k * math.prod(writer.trip_stack[c.level :]) + (
        c.bound or 0
    )
    if bound > exact(total):
        return False
    writer.note("operator", "sparse_gemm", dtype, f"stages {writer.stages}")
    writer.line(f"T.gemm_sp({a.name}, {where.name}, {b.name}, {c.name}, transpose_B={right}, clear_accum={clear})")
    if c.level == writer.level:
        writer.keep(c, bound)
    else:
        c.bound = bound
    return True


# Packed weights ----------------------------------------------------------------------------------


@recipe("decode")
def decode(writer: TileWriter) -> bool:
    codes = writer.random.choice(("int4", "uint4", "int2", "uint2", "uint1", "int8", "uint8", "float8_e4m3fn"))
    per_byte = ALL[codes].per_byte
    columns = writer.random.choice([side for side in (8, 16, 32, 64) if side % per_byte == 0])
    shape = (writer.random.choice(writer.sides), columns)
    source = writer.load(shape, codes, "shared", bound=7)
    dtype = writer.random.choice(("float16", "bfloat16", "float32", "float64", "int8", "int32"))
    to, more = writer.new_tile(shape, dtype), []
    bound: float | None = 15 if per_byte > 1 else 8
    if ALL[dtype].is_float and writer.chance(0.7):
        groups = writer.random.choice((1, 2, columns // 4))
        scale = writer.load((shape[0], groups), writer.random.choice(("float16", "float32", "bfloat16")), bound=3)
        more.append(f"scale={scale.name}")
        zeros = writer.random.choice((None, "original", "rescale", "quantized"))
        if zeros is not None:
            kind = writer.random.choice(("int8", "uint8")) if zeros == "quantized" else scale.dtype
            zero = writer.load((shape[0], groups), kind, bound=3)
            more += [f"zero={zero.name}", f'zeros_mode="{zeros}"']
        bound = 66
    writer.note("operator", "decode", codes, dtype, *(word.split("=")[0] for word in more))
    writer.line(f"T.decode({', '.join([source.name, to.name, *more])})")
    writer.tiles.remove(source)
    writer.keep(to, bound)
    return True


@recipe("unpack")
def unpack(writer: TileWriter) -> bool:
    """Records of a packed weight, as the library's kernels take them apart."""
    from tilewright.machine.fragment_records import FragmentRecords

    bits, operand = writer.random.choice((1, 2, 4, 8)), writer.random.choice(("float16", "bfloat16"))
    scaled = writer.chance(0.5)
    form = FragmentRecords(bits, ALL[operand], ALL[operand] if scaled else None)
    codes = writer.numbers.integers(0, 1 << bits, (form.rows, 128)).astype(np.uint8)
    fields: dict[str, Any] = {"codes": codes}
    if scaled:
        fields["scales"] = writer.numbers.integers(1, 4, (form.rows, 1)).astype(ALL[operand].numpy)
    words = np.asarray(form.pack(fields)).reshape(-1, form.words)[:1].copy()
    name = writer.tensor("W", shape_text([form.words]), [form.words], "uint32", words[0])
    held = writer.new_tile((form.words,), "uint32", "shared")
    step = 8 * form.packed
    columns = writer.random.choice([side for side in (step, 2 * step, 64, 128) if side % step == 0 and side <= 128])
    first = writer.random.choice((0, 128 - columns))
    to = writer.new_tile((form.rows, columns), operand, "fragment")
    offset = writer.random.choice((0, 1 << (bits - 1)))
    writer.line(f"T.copy({name}, {held.name})")
    kind = f"FragmentRecords({bits}, ALL['{operand}']{f', ALL[{operand!r}]' if scaled else ''})"
    more = ", scaled=True" if scaled else ""
    writer.line(f"T.unpack({held.name}, {kind}, {to.name}, first={first}, offset={offset}{more})")
    writer.note("operator", "unpack", bits, operand, f"scaled {scaled}")
    writer.keep(to, (1 << bits) * (3 if scaled else 1))
    return True


# Any operator ------------------------------------------------------------------------------------

CONSTANTS: dict[type, tuple[Any, ...]] = {
    bool: (False, True), int: (-1, 0, 1, -2, 2, 4, 8), float: (0.0, 1.0), DType: tuple(ALL[name] for name in ("float32", "int32", "float16")),
}  # fmt: skip
ATTEMPTS = 300


def by_its_fields(writer: TileWriter, kind: type[TileOperator]) -> bool:
    """A statement of an operator of which only its record is known: what its check lets pass."""
    hints = typing.get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.name not in ("span", "token")]
    sides = [(2, 8), (8, 2), (8, 8), (8,), (2,), (16, 16), (1,), (4, 2, 8)]
    words: dict[str, list[str]] = {}
    for _ in range(ATTEMPTS):
        chosen: dict[str, Any] = {}
        base = writer.random.sample(sides, 2)
        types = writer.random.sample(("float32", "int32", "float16", "int8", "uint8"), 2)
        for field in fields:
            chosen[field.name] = _proposal(writer, field, hints[field.name], base, types, words)
        try:
            operator = kind(**chosen)
            problems = list(operator.check())
            effects = operator.effects() if not problems else None
        except Exception:  # a record may not stand what its check refuses
            continue
        for problem in problems:
            found = re.match(
                r"the (?:kind|memory order|policy) is .*|(\w+) is '.*', but should be one of (.*)", problem
            )
            if found and "one of " in problem:
                names = problem.split("one of ")[1].split(", ")
                for field in fields:
                    if field.type == "str" and repr(chosen[field.name]) in problem:
                        words[field.name] = names
        if (
            effects is None
            or not effects.writes
            or any(region.buffer.scope == "global" for region in (*effects.reads, *effects.writes))
        ):
            continue
        return _by_regions(writer, kind, chosen, operator)
    return False


def _proposal(
    writer: TileWriter, field: Any, hint: Any, shapes: list[Any], types: list[str], words: dict[str, list[str]]
) -> Any:
    """A value for one field: operands of any kind, constants of the kind that the default is of."""
    options = [one for one in typing.get_args(hint) or (hint,) if one is not type(None)]
    if field.default is not dataclasses.MISSING and (Region not in options or writer.chance(0.6)):
        if field.default is None or writer.chance(0.5):
            return field.default
        options = [type(field.default)]
    chosen = writer.random.choice(options)
    if chosen is Region:
        shape, dtype = writer.random.choice(shapes), ALL[writer.random.choice(types)]
        buffer = Buffer("t", shape, dtype, writer.random.choice(("shared", "shared", "fragment")))
        return Region(buffer, (nodes.const(0),) * len(shape), shape)
    if chosen is Expr:
        return nodes.const(writer.random.choice((0, 1, 2)), ALL[writer.random.choice(types)])
    if chosen is str:
        return writer.random.choice(words.get(field.name) or [field.default if isinstance(field.default, str) else "?"])
    return writer.random.choice(CONSTANTS.get(chosen, (None,)))


def _by_regions(writer: TileWriter, kind: type[TileOperator], chosen: dict[str, Any], operator: TileOperator) -> bool:
    """The statement: what it reads is loaded first, what it writes goes out."""
    effects = operator.effects()
    tiles: dict[int, Tile] = {}
    said = []
    for name, value in chosen.items():
        if isinstance(value, Region):
            shape, dtype, scope = value.static_extents, value.dtype.name, value.buffer.scope
            reads = any(region is value for region in effects.reads)
            tiles[id(value)] = tile = (
                writer.load(shape, dtype, scope, bound=2) if reads else writer.new_tile(shape, dtype, scope)
            )
            said.append(f"{name}={tile.name}")
        elif isinstance(value, nodes.Const):
            said.append(f'{name}=number({value.value}, "{value.dtype}")')
        elif isinstance(value, DType):
            said.append(f"{name}=ALL['{value.name}']")
        elif value is not None and not isinstance(value, CopySchedule):  # hints of passes are no author's
            said.append(f"{name}={value!r}")
    writer.line(f'operator("{kind.name}", {", ".join(said)})')
    writer.note("operator", kind.name, "by its fields")
    written = [tiles[id(region)] for region in effects.writes]
    for tile in tiles.values():
        if tile in writer.tiles:
            writer.tiles.remove(tile)
    for tile in written:
        if writer.depth == 0:
            writer.store(tile)
        elif not ALL[tile.dtype].is_float:
            writer.keep(tile, None)
    return True


__all__ = ["FLOATS", "RECIPES", "write_operator"]
