"""What the operators share: elements of regions, loops over them, rounding in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.errors import Span
from tilewright.ir import nodes
from tilewright.ir.dtypes import INT32, DType
from tilewright.ir.nodes import Expr, Parallel, Region, Statement, Store, Var, const, index_binary, seq


def shape_text(region: Region) -> str:
    """The region's shape as the author would write it."""
    return "(" + ", ".join(str(e) if isinstance(e, int) else "?" for e in region.extents) + ")"


def full_index(region: Region, index: Sequence[Expr]) -> tuple[Expr, ...]:
    """Buffer indices of the element at `index` of the region's `tile_shape`."""
    position = 0
    indices: list[Expr] = []
    single = len(region.tile_shape) == 1 and region.tile_shape[0] == 1
    for start, extent in zip(region.starts, region.extents, strict=True):
        if isinstance(extent, int) and extent == 1:
            indices.append(start)
        else:
            indices.append(index_binary("add", start, index[position]))
            position += 1
    assert single or position == len(index), (position, len(index))
    return tuple(indices)


def element(region: Region, index: Sequence[Expr]) -> Expr:
    """The element at `index` of the region's `tile_shape`, loaded."""
    return nodes.Load(region.dtype, region.buffer, full_index(region, index))


def store_element(region: Region, index: Sequence[Expr], value: Expr) -> Statement:
    """Store `value`, cast to the region's dtype, at `index` of its `tile_shape`."""
    return Store(region.buffer, full_index(region, index), nodes.cast(value, region.dtype))


def elementwise(region: Region, body: Callable[..., Statement | Sequence[Statement]], *, span: Span | None) -> Parallel:
    """A `Parallel` loop over `region`'s tile shape; `body` gets one index variable a dimension."""
    shape = region.tile_shape
    vars = tuple(Var(INT32, name) for name in "ijklmn"[: len(shape)])
    return Parallel(vars, shape, seq(body(*vars)), span=span)


def cast_array(values: np.ndarray, source: DType, destination: DType) -> np.ndarray:
    """`values` converted as a `Cast` converts, in carrier types.

    Float to float rounds to nearest even (saturating where the destination has no infinities), float to
    integer truncates and saturates with NaN giving 0, integer to integer wraps.
    """
    if destination.kind == "bool":
        return values.astype(bool) if source.kind == "bool" else values != 0
    if destination.is_integer:
        if source.is_float:
            wide = np.nan_to_num(np.trunc(values.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
            low, high = int(destination.minimum), int(destination.maximum)
            inside = np.clip(wide, float(low), np.nextafter(float(high) + 1.0, 0.0))
            return np.where(wide > high, high, inside.astype(destination.numpy)).astype(destination.numpy)
        return wrap(values, destination)
    if source == destination:
        return values
    wide = values.astype(np.float64) if destination.bits < 64 else values
    if not destination.infinities and destination.name != "float8_e8m0fnu":
        wide = np.clip(wide, destination.minimum, destination.maximum)
    if destination.name == "tfloat32":
        bits = wide.astype(np.float32).view(np.uint32)
        rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        return np.where(np.isfinite(wide), rounded & np.uint32(0xFFFFE000), bits).astype(np.uint32).view(np.float32)
    if destination.bits < 32:
        # ml_dtypes rounds twice on the way from float64; odd rounding to float32 first keeps the result exact.
        return round_to_odd(wide).astype(destination.numpy)
    return wide.astype(destination.numpy)


def round_to_odd(wide: np.ndarray) -> np.ndarray:
    """float64 to float32, truncated with the lost bits kept sticky in the last one.

    A second rounding to a type of at most 22 mantissa bits then gives the correctly rounded result
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    narrow = wide.astype(np.float32)
    back = narrow.astype(np.float64)
    inexact = (back != wide) & np.isfinite(wide)
    toward_zero = np.where(np.abs(back) > np.abs(wide), np.nextafter(narrow, np.float32(0)), narrow)
    odd = (toward_zero.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)
    return np.where(inexact, odd, narrow)


def wrap(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Integers modulo 2**bits, in the carrier of `dtype`."""
    wide = values.astype(np.int64) if values.dtype != np.uint64 else values
    if dtype.bits < 8:
        unused = 64 - dtype.bits
        wide = wide.astype(np.int64) << np.int64(unused)
        wide = wide >> np.int64(unused) if dtype.kind == "int" else (wide.view(np.uint64) >> np.uint64(unused))
    return wide.astype(dtype.numpy)


def zero(dtype: DType) -> nodes.Const:
    """The literal 0 of a dtype."""
    return const(False if dtype.kind == "bool" else 0.0 if dtype.is_float else 0, dtype)
