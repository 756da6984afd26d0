"""What the operators share: elements of regions, loops over them, sentences about shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tilewright.arith import Analyzer
from tilewright.errors import Span
from tilewright.ir import FLOAT32, FLOAT64, INT32, DType, fields_of, same
from tilewright.ir import nodes as ir

INDEX_NAMES = "ijklmn"


# Shapes -----------------------------------------------------------------------------------------


def shape_text(region: ir.Region) -> str:
    """The region's shape as the author would write it."""
    return "(" + ", ".join(str(e) if isinstance(e, int) else "?" for e in region.extents) + ")"


def same_extent(a: ir.Extent, b: ir.Extent) -> bool:
    """Whether two extents are known to be equal."""
    return same(ir.expr(a), ir.expr(b))


def same_shape(a: Sequence[ir.Extent], b: Sequence[ir.Extent]) -> bool:
    """Whether two shapes are known to be equal."""
    return len(a) == len(b) and all(map(same_extent, a, b))


def check_apart(source: ir.Region, destination: ir.Region, same: bool = True) -> Iterator[str]:
    """A sentence where two parts of one buffer certainly share elements; the same part may be both, unless said."""
    long, wide = static_extents(source), static_extents(destination)
    if source.buffer is not destination.buffer or long is None or wide is None:
        return
    steps = [Analyzer().simplify(a - b) for a, b in zip(source.starts, destination.starts, strict=True)]
    known = [int(step.value) for step in steps if isinstance(step, ir.Const)]
    within = len(known) == len(steps) and all(-x < by < y for by, x, y in zip(known, long, wide))
    if within and not (same and not any(known)):
        yield f"two operands overlap in {source.buffer.name!r}, one of which is changed while the other one is read"


def kept_axes(region: ir.Region, rank: int) -> tuple[int, ...] | None:
    """The dimensions of a region that remain when it is read as a tile of `rank` dimensions.

    Dimensions of extent 1 are dropped, the outermost first, until `rank` are left; None where that is
    impossible.
    """
    axes = list(range(len(region.extents)))
    for axis in tuple(axes):
        if len(axes) > rank and ir.is_literal(region.extents[axis], 1):
            axes.remove(axis)
    return tuple(axes) if len(axes) == rank else None


def shape_of_rank(region: ir.Region, rank: int) -> tuple[ir.Extent, ...] | None:
    """The region's shape read as a tile of `rank` dimensions, or None (see `kept_axes`)."""
    axes = kept_axes(region, rank)
    return None if axes is None else tuple(region.extents[axis] for axis in axes)


def static_shape_of_rank(region: ir.Region, rank: int) -> tuple[int, ...] | None:
    """The same where all extents are known."""
    shape = shape_of_rank(region, rank)
    return None if shape is None else ir.known(shape)


def matrix_shape(region: ir.Region) -> tuple[int, int]:
    """The region's rows and columns; only for regions that `check` accepts."""
    shape = static_shape_of_rank(region, 2)
    if shape is None:
        raise ValueError(f"a region of shape {shape_text(region)} is not a matrix of known size")
    return shape[0], shape[1]


def static_extents(region: ir.Region) -> tuple[int, ...] | None:
    """The region's extents where all are known."""
    return ir.known(region.extents)


def check_known(**regions: ir.Region | None) -> Iterator[str]:
    """A sentence for each region whose extents are not all known."""
    for name, region in regions.items():
        if region is not None and static_extents(region) is None:
            yield f"the extents of {name}, {shape_text(region)}, must be known when compiling"


def check_matrices(**regions: ir.Region) -> Iterator[str]:
    """The same, and a sentence for each that is no matrix."""
    yield from check_known(**regions)
    for name, region in regions.items():
        if shape_of_rank(region, 2) is None:
            yield f"{name} has shape {shape_text(region)}, but two dimensions are needed"


# Elements ---------------------------------------------------------------------------------------


def full_index(region: ir.Region, index: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
    """Buffer indices of the element at `index` of the region read as a tile of ``len(index)`` dimensions."""
    axes = kept_axes(region, len(index))
    if axes is None:
        raise ValueError(f"a region of shape {shape_text(region)} has no element of {len(index)} indices")
    indices = list(region.starts)
    for axis, offset in zip(axes, index, strict=True):
        if not ir.is_literal(region.extents[axis], 1):
            indices[axis] = region.starts[axis] + offset
    return tuple(indices)


def element(region: ir.Region, index: Sequence[ir.Expr]) -> ir.Expr:
    """The element at `index` of the region, loaded."""
    return ir.Load(region.dtype, region.buffer, full_index(region, index))


def store_element(region: ir.Region, index: Sequence[ir.Expr], value: ir.Expr) -> ir.Statement:
    """Store `value`, cast to the region's dtype, at `index` of the region."""
    return ir.Store(region.buffer, full_index(region, index), ir.cast(value, region.dtype))


def blocked_index(index: ir.Expr, extent: int, blocks: int) -> ir.Expr:
    """Which of `blocks` equal parts of `extent` elements `index` falls in."""
    return ir.const(0) if blocks == 1 else index // (extent // blocks)


# Loops ------------------------------------------------------------------------------------------


def elementwise(
    region: ir.Region, body: Callable[..., ir.Statement | Sequence[ir.Statement]], *, span: Span | None
) -> ir.Parallel:
    """A `Parallel` loop over `region`'s tile shape; `body` gets one index variable a dimension."""
    return parallel(region.tile_shape, body, span=span)


def parallel(
    shape: Sequence[ir.Extent], body: Callable[..., ir.Statement | Sequence[ir.Statement]], *, span: Span | None
) -> ir.Parallel:
    """A `Parallel` loop over `shape`; `body` gets one index variable a dimension."""
    vars = tuple(ir.Var(INT32, name) for name in INDEX_NAMES[: len(shape)])
    return ir.Parallel(vars, tuple(shape), ir.seq(body(*vars)), span=span)


def along_lines(
    extents: Sequence[int], axis: int, body: Callable[[dict[int, ir.Var]], Sequence[ir.Statement]], span: Span | None
) -> ir.Statement:
    """`body` for each line of a tile along an axis, given the indices of the other axes."""
    kept = [other for other in range(len(extents)) if other != axis]
    return parallel([extents[other] for other in kept] or [1], lambda *index: body(dict(zip(kept, index))), span=span)


def serial(name: str, start: ir.Extent, stop: ir.Extent, body: Callable[[ir.Var], Sequence[ir.Statement]]) -> ir.For:
    """``for name in range(start, stop)``."""
    var = ir.Var(INT32, name)
    return ir.For(var, ir.expr(start), ir.expr(stop), ir.const(1), ir.Seq(tuple(body(var))))


def accumulator(name: str, dtype: DType) -> ir.Buffer:
    """A mutable scalar."""
    return ir.Buffer(name, (1,), dtype, scope="scalar")


def begin(buffer: ir.Buffer, value: ir.Expr) -> ir.Statement:
    """Allocate a scalar with its first value."""
    return ir.Allocate(buffer, ir.cast(value, buffer.dtype))


def get(buffer: ir.Buffer) -> ir.Expr:
    """The value of a scalar."""
    return ir.load(buffer, 0)


def put(buffer: ir.Buffer, value: ir.Expr) -> ir.Statement:
    """Set a scalar."""
    return ir.Store(buffer, (ir.const(0),), ir.cast(value, buffer.dtype))


# Values -----------------------------------------------------------------------------------------


def zero(dtype: DType) -> ir.Const:
    """The literal 0 of a dtype."""
    return ir.const(False if dtype.kind == "bool" else 0.0 if dtype.is_float else 0, dtype)


def compute_dtype(*dtypes: DType) -> DType:
    """The float type in which generic lowerings compute: float64 where an operand needs it, else float32."""
    wide = any(dtype.bits == 64 or (dtype.is_integer and dtype.bits > 16) for dtype in dtypes)
    return FLOAT64 if wide else FLOAT32


def scalar_operands(operator: ir.TileOperator) -> tuple[ir.Expr, ...]:
    """The operands that are expressions, in the order of the fields.

    An operator's `reference` takes their values after the arrays that it reads.
    """
    values: list[object] = [getattr(operator, name) for name in fields_of(type(operator))]
    return tuple(value for value in values if isinstance(value, ir.Expr))


def as_shape(array: np.ndarray, shape: Sequence[ir.Extent] | None) -> np.ndarray:
    """An operand's array, which arrives shaped as the region's extents, in another shape of as many elements."""
    sizes = None if shape is None else ir.known(shape)
    assert sizes is not None
    return np.reshape(array, sizes)
