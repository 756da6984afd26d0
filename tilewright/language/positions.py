"""`T.reduce_argmax` and `T.reduce_argmin`: where along a dimension of a tile the greatest or least element stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32
from tilewright.language.buffers import region_of
from tilewright.language.memory import alloc_fragment
from tilewright.language.mistakes import NumberExpected, SymbolicExtent
from tilewright.language.proxies import constant
from tilewright.language.recording import check_tile_place, in_kernel, made_word, statement_here
from tilewright.language.reductions import REDUCTIONS
from tilewright.ops.base import same_shape, shape_text


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
