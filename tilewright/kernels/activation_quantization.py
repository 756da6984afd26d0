"""Activations in 8 bits: ``codes = x / scale``, rounded to nearest, a scale for each token, group of columns, or
tensor.

The scale is the largest magnitude over the type's largest code, and ``code = round(x * (limit / largest))``, both in
float32; what is all zero has scale 0. The formula is that of dynamic quantisation everywhere, in PyTorch and vLLM for
example. Where an element is infinite or NaN the scale is infinite and codes are 0, so that every product with them is
NaN.
"""

from __future__ import annotations

import tilewright
import tilewright.language as T
from tilewright.kernels.values import Tile, Value
from tilewright.language.trace import PrimFunc

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""The largest code of each type."""

LEAST = 1e-33
"""Magnitudes below this are as good as zero: the inverse of their scale would be no float32 number."""

AT_ONCE = 1 << 15
"""Elements of a token that a block holds in registers, up to 64 to a thread; longer tokens are read twice."""

SHARE = 4096
"""Elements that a block holds of what is cut: of groups, of a tensor, of a token that is too long."""

LINE, VECTOR = 128, 8
"""Elements that short tokens are padded to multiples of, and those that a thread loads at once."""

BLOCKS = 1024
"""Blocks that look for the largest magnitude of a tensor."""


def widened(value: Value) -> Value:
    """A number of A as float32, NaN as infinity: largest magnitudes leave NaN out, and its code would be that of 0."""
    return T.min(T.cast(value, "float32"), T.infinity("float32"))


def inverse_of(largest: Value, to: str) -> Value:
    """What numbers of at most this magnitude are multiplied by to become codes."""
    return T.if_then_else(largest > LEAST, LARGEST[to] / largest, 0.0)


def whole(value: Value, inverse: Value, to: str) -> Value:
    """A float32 as the code of int8 that it is rounded to, still float32; for floats the conversion rounds."""
    scaled = value * inverse
    return T.round(scaled) if to == "int8" else scaled


@T.macro
def scale_rows(tile: Tile, scales: Tile, inverse: Tile, to: str) -> None:
    """The scale of each row of a tile of floats, and what its numbers are multiplied by to become codes."""
    T.reduce_absmax(tile, scales, dim=1)
    for i in T.Parallel(tile.shape[0]):
        inverse[i] = inverse_of(scales[i], to)
        scales[i] = scales[i] / LARGEST[to]


def padded(K: int, unit: int) -> int:
    """K rounded up to a multiple, which threads divide evenly; what is added reads as zero and is not written."""
    return -(-K // unit) * unit


@tilewright.jit
def quantize_activations(
    K: int,
    dtype: str = "bfloat16",
    to: str = "int8",
    group: int | None = None,
    tensor: bool = False,
    divisors: bool = False,
    by_group: bool = False,
) -> PrimFunc:
    """Quantise every row of an activation.

    Parameters
    ----------
    K : elements of a token.
    dtype : of the activations, a float.
    to : ``"int8"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
    group : columns that share a scale; None for one scale a token.  The last group may be cut.
    tensor : one scale for all.
    divisors : whether activations are divided by a vector first (SmoothQuant).
    by_group : scales are ``[groups, M]``, those of a group side by side, as `scaled_matmul` takes them.

    Returns
    -------
    kernel of ``X[M, K]``, with `divisors` then ``divisors[K]`` (float32), ``codes[M, K]`` and ``scales[M, groups]``
    (float32), ``[M, 1]`` for tokens and ``[1, 1]`` for a tensor; any M.

    Notes
    -----
    A launch begins before the previous kernel has ended, and lets the next one begin before it has (`T.pdl_sync`).
    """
    M, width, machine = T.dynamic("M"), group or K, T.machine()
    groups = -(-K // width)
    core = None if machine is None or machine.has_threads else machine
    """A block is one core, which loads vectors, and parts of them, from anywhere, and has a token in its second-level
    cache."""
    at_once = AT_ONCE if core is None else max(AT_ONCE, core.l2_bytes // 4)
    if tensor:
        rows, across, threads = max(1, SHARE // K), -(-K // SHARE), 256
        shape = rows, min(K, SHARE)
    elif group is None and at_once < K:
        rows, across, threads = 1, -(-K // SHARE), 256
        shape = 1, SHARE
    elif group is None:
        columns = K if core else padded(K, LINE)
        rows, across = 1 if core else max(1, SHARE // columns), 1
        threads = 256 if rows > 1 else next((threads for threads in (128, 256) if 32 * threads >= K), 512)
        shape = rows, columns if rows > 1 or core else padded(K, VECTOR * threads)
    else:
        # Groups of a token side by side, and those of several tokens where a token has few.
        beside = min(groups, max(1, SHARE // width))
        rows, across, threads = max(1, SHARE // (width * beside)), -(-groups // beside), 256
        shape = rows * beside, width
    per_row = shape[0] // rows
    """Rows of the tile for each row of X."""

    @T.macro
    def load(X: Tile, vector: Tile | None, first: Value, share: Value, tile: Tile) -> None:
        for i, k in T.Parallel(*shape):
            column = (share * per_row + i % per_row) * shape[1] + k
            value = X[first + i // per_row, column]
            # Behind the last column a divisor reads as zero.
            divided = value if vector is None else value / T.if_then_else(column < K, vector[column], 1.0)
            tile[i, k] = widened(divided)

    @T.macro
    def store(codes: Tile, first: Value, share: Value, tile: Tile, inverse: Tile) -> None:
        for i, k in T.Parallel(*shape):
            column = (share * per_row + i % per_row) * shape[1] + k
            inverted = inverse[i if inverse.shape[0] > 1 else 0]
            codes[first + i // per_row, column] = T.cast(whole(tile[i, k], inverted, to), to)

    @T.macro
    def quantize_whole(X: Tile, vector: Tile | None, codes: Tile, scales: Tile) -> None:
        """A block has all that shares a scale: every element is read once."""
        with T.Kernel(across, T.ceildiv(M, rows), threads=threads) as (share, bm):
            T.pdl_sync()
            T.pdl_trigger()
            tile = T.alloc_fragment(shape, "float32")
            scale = T.alloc_fragment((shape[0],), "float32")
            inverse = T.alloc_fragment((shape[0],), "float32")
            load(X, vector, bm * rows, share, tile)
            scale_rows(tile, scale, inverse, to)
            store(codes, bm * rows, share, tile, inverse)
            for i in T.Parallel(shape[0]):
                m, g = bm * rows + i // per_row, share * per_row + i % per_row
                if by_group:
                    scales[g, m] = scale[i]
                else:
                    scales[m, g] = scale[i]

    @T.macro
    def write(X: Tile, vector: Tile | None, codes: Tile, first: Value, share: Value, most: Tile) -> None:
        tile = T.alloc_fragment(shape, "float32")
        inverse = T.alloc_fragment((1,), "float32")
        for one in T.Parallel(1):
            inverse[one] = inverse_of(most[one], to)
        load(X, vector, first, share, tile)
        store(codes, first, share, tile, inverse)

    @T.macro
    def largest_of(X: Tile, vector: Tile | None, first: Value, most: Tile) -> None:
        """Raise ``most[0]`` to the largest magnitude of a block's rows."""
        tile = T.alloc_fragment(shape, "float32")
        of_rows = T.alloc_fragment((shape[0],), "float32")
        found = T.alloc_fragment((1,), "float32")
        for share in T.serial(across):
            load(X, vector, first, share, tile)
            T.reduce_absmax(tile, of_rows, dim=1)
            T.reduce_max(of_rows, found, dim=0)
            for one in T.Parallel(1):
                most[one] = T.max(most[one], found[one])

    @T.macro
    def quantize_long(X: Tile, vector: Tile | None, codes: Tile, scales: Tile) -> None:
        """A token that no block holds: it is read again, from the cache as a rule."""
        with T.Kernel(M, threads=threads) as m:
            T.pdl_sync()
            T.pdl_trigger()
            most = T.alloc_fragment((1,), "float32")
            T.clear(most)
            largest_of(X, vector, m, most)
            for share in T.serial(across):
                write(X, vector, codes, m, share, most)
            for one in T.Parallel(1):
                scales[m, one] = most[one] / LARGEST[to]

    @T.macro
    def quantize_tensor(X: Tile, vector: Tile | None, codes: Tile, scales: Tile) -> None:
        """The largest magnitudes of parts first, then everything once more."""
        parts = T.alloc_global((BLOCKS,), "float32")
        with T.Kernel(BLOCKS, threads=threads) as block:
            T.pdl_sync()
            most = T.alloc_fragment((1,), "float32")
            T.clear(most)
            for turn in T.serial(T.ceildiv(M, rows * BLOCKS)):
                largest_of(X, vector, (turn * BLOCKS + block) * rows, most)
            for one in T.Parallel(1):
                parts[block + one] = most[one]
        with T.Kernel(across, T.ceildiv(M, rows), threads=threads) as (share, bm):
            T.pdl_sync()
            T.pdl_trigger()
            found = T.alloc_fragment((1, BLOCKS), "float32")
            most = T.alloc_fragment((1,), "float32")
            for one, i in T.Parallel(1, BLOCKS):
                found[one, i] = parts[i]
            T.reduce_max(found, most, dim=1)
            write(X, vector, codes, bm * rows, share, most)
            if share + bm == 0:
                for one in T.Parallel(1):
                    scales[0, one] = most[one] / LARGEST[to]

    quantize = quantize_tensor if tensor else quantize_long if group is None and at_once < K else quantize_whole
    Activations, Codes = T.Tensor((M, K), dtype), T.Tensor((M, K), to)
    Scales = T.Tensor((1, 1) if tensor else (groups, M) if by_group else (M, groups), "float32")
    Divisors = T.Tensor((K,), "float32") if divisors else None

    def launched(X: Activations, vector: Divisors, codes: Codes, scales: Scales) -> None:
        quantize(X, vector, codes, scales)

    launched.__name__ = "quantize_divided" if divisors else "quantize_activations"
    return T.prim_func(launched)
