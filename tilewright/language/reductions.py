"""Reductions, scans and questions about whole tiles as authors call them, and where their extremes stand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright import ops
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import BOOL, INT32
from tilewright.language.buffers import region_of
from tilewright.language.memory import alloc_fragment
from tilewright.language.mistakes import NumberExpected, SymbolicExtent
from tilewright.language.proxies import Scalar, constant
from tilewright.language.recording import check_tile_place, in_kernel, made_word, record_operator, statement_here, word
from tilewright.language.tile_ops import record_tiles
from tilewright.ops.base import element, parallel, same_shape, shape_text, store_element


def _reduction(kind: str, meaning: str) -> Callable[..., None]:
    what = f"T.reduce_{kind}"

    def call(
        buffer: object,
        out: object,
        dim: object = -1,
        clear: bool = True,
        batch: int = 1,
        nan_propagate: bool = False,
        annotations: object = None,
    ) -> None:
        if nan_propagate and kind in ("max", "min", "absmax"):
            _reduce_with_nan(buffer, out, kind, dim, clear, what)
        else:
            _reduce(buffer, out, kind, dim, clear, what)

    dtype = "int32" if kind.startswith("bit") else "float32"
    parameters = {
        "buffer": "a tile, or a slice of one.", "out": "the shape of `buffer` without `dim`, or with 1 there.",
        "dim": "the dimension, from the end where negative.", "clear": "False combines with what `out` holds.",
        "batch, annotations": "accepted for TileLang's sake.",
        "nan_propagate":
            "whether NaN among the elements is the result; the greatest and least leave it out otherwise.",
    }  # fmt: skip
    return made_word(
        call,
        f"reduce_{kind}",
        f"{meaning} along one dimension of a tile.",
        parameters,
        f'values, result = T.alloc_fragment((64, 8), "{dtype}"), T.alloc_fragment((64,), "{dtype}")',
        "T.clear(values)",
        f"T.reduce_{kind}(values, result, dim=1)",
    )


def _reduce(buffer: object, out: object, kind: str, dim: object, clear: bool, what: str) -> None:
    in_kernel(what)
    source = region_of(buffer, f"the source of {what}")
    destination = region_of(out, f"the destination of {what}")
    operator = ops.Reduce(
        source, destination, kind, constant(dim, f"dim of {what}"), bool(clear), span=statement_here()
    )
    record_tiles(operator, what, source=source, destination=destination)


def _reduce_with_nan(buffer: object, out: object, kind: str, dim: object, clear: bool, what: str) -> None:
    """The reduction, and which lines have NaN in them beside it: a maximum of ones."""
    builder, span = in_kernel(what), statement_here()
    source = region_of(buffer, f"the source of {what}")
    destination = region_of(out, f"the destination of {what}")
    if not source.dtype.is_float:
        _reduce(buffer, out, kind, dim, clear, what)
        return
    seen = [ir.Buffer(builder.take_name("nan"), one.extents, INT32, "fragment") for one in (source, destination)]
    marks, lines = map(ir.whole, seen)
    for made in seen:
        builder.append(ir.Allocate(made, span=span))

    def mark(of: ir.Region, to: ir.Region) -> None:
        def one(*at: ir.Var) -> ir.Statement:
            found = ir.Call(BOOL, "isnan", (element(of, at),))
            return store_element(to, at, ir.Select(INT32, found, ir.const(1), ir.const(0)))

        builder.append(parallel(of.tile_shape, one, span=span))

    mark(source, marks)
    if not clear:
        mark(destination, lines)
    record_operator(ops.Reduce(marks, lines, "max", constant(dim, f"dim of {what}"), bool(clear), span=span), what)
    _reduce(buffer, out, kind, dim, clear, what)

    def keep(*at: ir.Var) -> ir.Statement:
        kept, nan = element(destination, at), ir.const(math.nan, destination.dtype)
        has_nan = ir.binary("ne", element(lines, at), ir.const(0))
        return store_element(destination, at, ir.Select(destination.dtype, has_nan, nan, kept))

    builder.append(parallel(destination.tile_shape, keep, span=span))


REDUCTIONS: dict[str, Callable[..., None]] = {
    f"reduce_{kind}": _reduction(kind, meaning)
    for kind, meaning in (
        ("sum", "The sum"),
        ("max", "The maximum"),
        ("min", "The minimum"),
        ("absmax", "The greatest absolute value"),
        ("abssum", "The sum of absolute values"),
        ("bitand", "Bitwise and"),
        ("bitor", "Bitwise or"),
        ("bitxor", "Bitwise exclusive or"),
    )
}
"""The reductions by name."""


@word
def reduce(
    buffer: object,
    out: object,
    reduce_type: str,
    dim: object = -1,
    clear: bool = True,
    batch: int = 1,
    annotations: object = None,
) -> None:
    """The reduction named by `reduce_type`: sum, max, min, absmax, abssum, bitand, bitor, bitxor, any, all.

    Parameters
    ----------
    buffer, out, dim, clear : as those of `reduce_sum`.
    reduce_type : ``"sum"``, ``"max"``, ``"min"``, ``"absmax"``, ``"abssum"``, ``"bitand"``, ``"bitor"``, ``"bitxor"``,
        ``"any"`` or ``"all"``.
    batch, annotations : accepted for TileLang's sake.

    Examples
    --------
    >>> T.copy(A, tile)
    >>> T.reduce(tile, row, "max", dim=1)
    """
    _reduce(buffer, out, reduce_type, dim, clear, "T.reduce")


def _scan(kind: str, meaning: str) -> Callable[..., None]:
    what = f"T.cum{kind}"

    def call(
        src: object, dst: object = None, dim: object = 0, reverse: bool = False, annotations: object = None
    ) -> None:
        in_kernel(what)
        source = region_of(src, f"the source of {what}")
        destination = source if dst is None else region_of(dst, f"the destination of {what}")
        axis = constant(dim, f"dim of {what}")
        operator = ops.Scan(source, destination, kind, axis, bool(reverse), span=statement_here())
        record_tiles(operator, what, source=source, destination=destination)

    parameters = {
        "src": "a tile.", "dst": "a tile of the same shape, or None.",
        "dim": "the dimension, from the end where negative.", "reverse": "from the last element to the first.",
        "annotations": "accepted for TileLang's sake.",
    }  # fmt: skip
    meaning = f"Running {meaning} along a dimension; in place where `dst` is None."
    return made_word(call, f"cum{kind}", meaning, parameters, "T.copy(A, tile)", f"{what}(tile, dim=1)")


cumsum, cummax = _scan("sum", "sums"), _scan("max", "maxima")


def _condition_of_tile(name: str, found: str, differ: str) -> Callable[..., Scalar]:
    def call(buffer: object) -> Scalar:
        in_kernel(f"T.{name}")
        region = region_of(buffer, f"the argument of T.{name}")
        return Scalar(ir.Call(BOOL, name, (region,)), getattr(buffer, "frame", None))

    meaning = f"Whether {found} of a tile or slice {differ} from zero."
    example = "T.copy(A, shared)", f"if T.{name}(shared[0, 0:8]):", "    C[0, 0] = 1"
    return made_word(call, name, meaning, {"buffer": "a shared tile, or a slice of one."}, *example)


any_of = _condition_of_tile("any_of", "any element", "differs")
all_of = _condition_of_tile("all_of", "all elements", "differ")


def _position(kind: str, meaning: str) -> Callable[..., None]:
    what = f"T.reduce_arg{kind}"

    def call(buffer: object, out: object, dim: object = -1) -> None:
        builder = in_kernel(what)
        check_tile_place(builder, what)
        source, destination = region_of(buffer, f"the source of {what}"), region_of(out, f"the destination of {what}")
        axis = _checked(source, destination, constant(dim, f"dim of {what}"), what)
        kept = [size for place, size in enumerate(source.extents) if place != axis] or [1]
        best, least = alloc_fragment(kept, source.dtype), alloc_fragment(kept, INT32)
        places = alloc_fragment(source.extents, INT32)
        REDUCTIONS[f"reduce_{kind}"](buffer, best, axis)
        _elementwise(source.extents, lambda at: _place(source, best.buffer, places.buffer, axis, at))
        REDUCTIONS["reduce_min"](places, least, axis)
        _elementwise(kept, lambda at: _result(least.buffer, destination, source.extents[axis], at))

    parameters = {
        "buffer": "a tile.",
        "out": "a tile of integers, of the shape of `buffer` without `dim`, or with 1 there.",
        "dim": "the dimension, counted in the tile's own shape; from the end where negative.",
    }
    return made_word(
        call,
        f"reduce_arg{kind}",
        f"The position of the {meaning} element along one dimension of a tile: of equal "
        "ones the first, of NaN the first of all.",
        parameters,
        "T.copy(A, tile)",
        'places = T.alloc_fragment((64,), "int32")',
        f"{what}(tile, places, dim=1)",
    )


def _checked(source: ir.Region, destination: ir.Region, dim: int, what: str) -> int:
    """The dimension, counted from the front."""
    for name, region in (("source", source), ("destination", destination)):
        if any(isinstance(size, ir.Expr) for size in region.extents):
            raise SymbolicExtent(what, name, region.buffer.name)
    rank = len(source.extents)
    if not -rank <= dim < rank:
        raise NumberExpected(f"dim of {what}", f"one of the {rank} dimensions of {source.buffer.name!r}", str(dim))
    kept = tuple(size for place, size in enumerate(source.extents) if place != dim % rank and size != 1) or (1,)
    if not destination.dtype.is_integer or not same_shape(kept, destination.tile_shape):
        found = f"{destination.dtype} {shape_text(destination)}"
        raise NumberExpected(f"the destination of {what}", f"integers of shape {kept}", found)
    return dim % rank


def _elementwise(extents: Sequence[ir.Extent], body: Callable[[tuple[ir.Var, ...]], ir.Store]) -> None:
    """A loop over all elements."""
    builder, span = in_kernel("T.Parallel"), statement_here()
    variables = tuple(ir.Var(INT32, f"i{place}") for place in range(len(extents)))
    frame = builder.push("T.Parallel", span)
    builder.append(body(variables))
    builder.append(ir.Parallel(variables, tuple(extents), builder.pop(frame), span=span))


def _place(source: ir.Region, best: ir.Buffer, places: ir.Buffer, axis: int, at: tuple[ir.Var, ...]) -> ir.Store:
    """The number of an element that is the best, one before all of these for NaN, and one behind them for the
    others."""
    size = source.extents[axis]
    assert isinstance(size, int)
    start = [begin + var for begin, var in zip(source.starts, at, strict=True)]
    element = ir.Load(source.dtype, source.buffer, tuple(start))
    of_line = ir.Load(source.dtype, best, tuple(var for place, var in enumerate(at) if place != axis) or (ir.const(0),))
    number, count = at[axis], ir.const(size)
    found: ir.Expr = ir.Select(INT32, ir.binary("eq", element, of_line), number, count)
    if source.dtype.is_float:
        found = ir.Select(INT32, ir.binary("ne", element, element), ir.binary("sub", number, count), found)
    return ir.Store(places, at, found, span=statement_here())


def _result(least: ir.Buffer, destination: ir.Region, count: int | ir.Expr, at: tuple[ir.Var, ...]) -> ir.Store:
    number = ir.Load(INT32, least, at)
    position = ir.Select(INT32, ir.binary("lt", number, ir.const(0)), ir.binary("add", number, ir.expr(count)), number)
    known = (step for step, size in zip(at, least.shape, strict=True) if size != 1)
    steps = [ir.const(0) if size == 1 else next(known) for size in destination.extents]
    indices = tuple(begin + step for begin, step in zip(destination.starts, steps, strict=True))
    return ir.Store(destination.buffer, indices, ir.cast(position, destination.dtype), span=statement_here())


reduce_argmax, reduce_argmin = _position("max", "greatest"), _position("min", "least")
