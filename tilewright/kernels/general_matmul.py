"""The product for every combination: each tile of codes is decoded once, by arithmetic or by table, then multiplied.

This is the tier that serves what no faster kernel does: any format, scale, zero, act-order, size and machine.  Its
weight is packed row by row, low bits first; parameters that a recipe does not use are tensors of one element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.kernels import TILE_ROWS, Grouped, Recipe, Tile, Value, applied, stored, tile_place
from tilewright.language.proxies import Scalar
from tilewright.language.tensors import TensorType
from tilewright.language.trace import PrimFunc


@dataclass(frozen=True, slots=True)
class Tensors:
    """The parameters of `general_matmul` and `masked_matmul`, under their names there."""

    A: Tile
    activation_scales: Tile
    W: Tile
    table: Tile
    scales: Tile
    zeros: Tile
    multipliers: Tile
    factor: Tile
    slots: Tile
    divisors: Tile
    gathered: Tile
    bias: Tile
    residual: Tile
    C: Tile


FEW_ROWS = 16
"""Rows of a block for calls with at most so many."""

NATIVE = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
"""Formats that a cast decodes."""


TABLE_BITS = 6
"""Of codes whose tables lie in shared memory: those of eight bits have no room beside tiles of 32 KB."""


def is_looked_up(recipe: Recipe) -> bool:
    """Whether codes are decoded by a table, not by arithmetic or a cast."""
    of = recipe.format
    return of.kind not in ("int", "uint") and not (of.name in NATIVE and recipe.whole == 1)


def decoded(code: Scalar, recipe: Recipe, table: Tile) -> Value:
    """The number that a code (int32) stands for: an int32 where all are whole, else a float32."""
    of = recipe.format
    if of.kind in ("int", "uint"):
        if of.name == "int1":
            return code * 2 - 1
        sign = 1 << (of.bits - 1) if of.kind == "int" else 0
        return code - sign if recipe.offset_binary else (code ^ sign) - sign
    if is_looked_up(recipe):
        return table[code]
    return T.cast(T.reinterpret(T.cast(code, "uint8"), NATIVE[of.name]), "float32")


def of_group(tensor: Tile, facts: Grouped, n: Value, g: Value, wide: str) -> Value:
    """The element of a tensor of groups that belongs to row n of the weight and group g, as float32 or wider."""
    if facts.dtype == "float8_e8m0fnu":
        g = T.min(g, facts.columns - 1)  # behind the last column there would be a zero, which this type lacks: a NaN
    element = tensor[n // facts.rows_each if facts.rows > 1 else 0, g if facts.columns > 1 else 0]
    return T.cast(element, "float64" if facts.dtype == "float64" else wide)


@T.macro
def packed_zero(zeros: Tile, r: Recipe, n: Value, g: Value) -> Value:
    """The zero point (int32) of row n of the weight and group g, from zeros that are packed as codes are."""
    bits = r.format.bits
    point_bit = n * bits
    point = T.cast(zeros[g, point_bit // 8], "int32") >> point_bit % 8
    if 8 % bits:
        beyond = T.min(point_bit // 8 + 1, -(-r.N * bits // 8) - 1)
        point = point | T.cast(zeros[g, beyond], "int32") << 8 - point_bit % 8
    return point & (1 << bits) - 1


@T.macro
def store_result(value: Value, r: Recipe, row: Value, n: Value, t: Tensors, wide: str) -> None:
    """A scaled sum into C: with the recipe's factor, bias, function and residual, computed in `wide`."""
    if r.factor and r.zeros != "rescale":
        value = T.cast(value, wide) * t.factor[0]
    if r.bias or r.function or r.residual:
        value = T.cast(value, wide)
    if r.bias:
        value = value + T.cast(t.bias[n], wide)
    value = applied(value, r.function)
    if r.residual:
        value = value + T.cast(t.residual[row, n], wide)
    t.C[row, n] = stored(value, r.out)


def has_room(bits: int) -> bool:
    """Whether so much fits into the memory that a block of the machine shares."""
    machine = T.machine()
    return machine is None or not machine.has_threads or bits <= 8 * machine.shared_bytes


@tilewright.jit
def general_matmul(
    recipe: Recipe, block_M: int = 64, block_N: int = 64, threads: int = 128, num_stages: int = 3
) -> PrimFunc:
    """The product that `recipe` describes, for any number of rows.

    Parameters
    ----------
    block_M, block_N, threads, num_stages : how it is divided; a few rows have blocks of `FEW_ROWS`.

    Returns
    -------
    kernel of ``A[M, columns]``, ``activation_scales`` (``[1, 1]``, ``[M, 1]`` or ``[M, groups]``), ``W`` (bytes
    ``[N, row_bytes]``, dense formats ``[N, K]``; in tiles ``[N / 16, K / columns, bytes]``), ``table`` (values of the
    codes), ``scales``, ``zeros`` and ``multipliers`` (as their `Grouped` says), ``factor[1]``, ``slots``,
    ``divisors[columns]``, ``gathered[K]`` (int32, column of A, negative for none), ``bias[N]``, ``residual[M, N]`` and
    ``C[M, N]``.
    """
    r = recipe
    M = T.dynamic("M")
    N, K, bits = r.N, r.K, r.format.bits
    period = r.period
    span = period or K
    dense, own = r.format.is_dense, r.format.dtype
    native, tiled = r.is_native, r.tiles[1] > 0
    as_stored = own is not None and (dense or native)
    looked_up = not (dense or native) and is_looked_up(r) and bits <= TABLE_BITS
    wide = "float64" if r.accumulate == "float64" else "float32"
    coded = 0 if as_stored and not tiled else bits
    column_bits = block_M * dtype_of(r.left).bits + block_N * (dtype_of(r.right).bits + coded)
    table_bits = dtype_of(wide).bits << bits if looked_up else 0
    sizes = [
        size
        for size in ((32, 16) if r.left == "float64" else (64, 32, 16))
        if size == 16 or has_room(size * column_bits + table_bits)
    ]
    block_K = next(size for size in sizes if size == 16 or span % size == 0) if period else sizes[0]
    tile_bytes = block_K * bits // 8
    per_word = 32 // bits if r.slots else 1
    per_byte = dtype_of(r.activations).per_byte
    shared_byte = r.columns % per_byte > 0
    copied = r.left == r.activations and not (r.gather or r.divisors or r.activation_scales == "element")
    copies = copied or native or tiled or not dense
    code_type = own.name if own is not None and as_stored else "uint8"
    code_tile: tuple[int, ...] = (block_N, tile_bytes)
    if tiled:
        block_K = max(block_K, r.tiles[0])
        tile_codes = TILE_ROWS * r.tiles[0]
        code_tile = (block_N // TILE_ROWS, block_K // r.tiles[0], tile_codes if as_stored else tile_codes * bits // 8)

    @T.macro
    def convert(t: Tensors, A_shared: Tile, first_row: Value, first: Value) -> None:
        """A tile of activations in the order and the type that are multiplied."""
        for i, j in T.Parallel(*A_shared.shape):
            row, k = first_row + i, first + j
            column = t.gathered[k] if r.gather else k
            if r.gather and K % block_K:  # padding columns count as zeros, whatever their codes
                column = T.if_then_else(k < K, column, -1)
            element: Value = t.A[row, column]
            if shared_byte:  # the last byte of a row may hold more than K elements
                element = T.if_then_else(column < r.columns, element, T.cast(0, r.activations))
            if r.gather:
                element = T.if_then_else(column >= 0, t.A[row, T.max(column, 0)], T.cast(0, r.activations))
            if r.divisors:
                there = (column >= 0) & (column < r.columns) if r.gather else column < r.columns
                element = T.cast(element, wide) / T.if_then_else(there, t.divisors[column], 1.0)
            if r.activation_scales == "element":
                group = column // r.activation_group
                if r.activation_scale_dtype == "float8_e8m0fnu":  # as in `of_group`
                    group = T.max(T.min(group, -(-r.columns // r.activation_group) - 1), 0)
                element = T.cast(element, wide) * T.cast(t.activation_scales[row, group], wide)
            A_shared[i, j] = T.cast(element, r.left)

    @T.macro
    def decode(t: Tensors, codes: Tile, table: Tile, W_shared: Tile, first_row: Value, first: Value) -> None:
        """A tile of codes as the numbers that are multiplied."""
        for i, j in T.Parallel(block_N, block_K):
            place = tile_place(i % TILE_ROWS, j % r.tiles[0], r.tiles) if tiled else j
            bit = place * bits
            if r.slots:
                bit = place // per_word * 32 + t.slots[place % per_word] * bits
            byte = codes[i // TILE_ROWS, j // r.tiles[0], bit // 8] if tiled else codes[i, bit // 8]
            code = T.cast(byte, "int32") >> bit % 8
            if 8 % bits:
                following = T.min(bit // 8 + 1, tile_bytes - 1)
                code = code | T.cast(codes[i, following], "int32") << 8 - bit % 8
            number: Any = decoded(code & (1 << bits) - 1, r, table)
            n, g = first_row + i, (first + j) // r.group
            if r.zeros == "one":
                number = number - (int(r.zero) if r.zero == int(r.zero) else r.zero)
            if r.zeros == "groups":
                number = T.cast(number, wide) - of_group(t.zeros, r.zero_point, n, g, wide)
            if r.zeros == "packed":
                number = number - packed_zero(t.zeros, r, n, g)
            if r.multiplier:
                number = T.cast(number, wide) * of_group(t.multipliers, r.multiplier, n, g, wide)
            if r.scaled == "weight":
                number = T.cast(number, wide) * of_group(t.scales, r.scale, n, g, wide)
            if r.zeros == "rescale":
                number = T.cast(number, wide) * t.factor[0] if r.factor else number
                number = number - of_group(t.zeros, r.zero_point, n, g, wide)
            if dtype_of(r.right).is_float and not number.dtype.is_float:
                number = T.cast(
                    number, "float32"
                )  # whole numbers of a few bits: exact, and a cheap conversion from there
            W_shared[i, j] = T.cast(number, r.right)

    @T.macro
    def multiply(t: Tensors, block_M: int) -> None:
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), r.left)
            W_shared = T.alloc_shared((block_N, block_K), r.right)
            codes: Any = None if as_stored and not tiled else T.alloc_shared(code_tile, code_type)
            partial = T.alloc_fragment((block_M, block_N), r.accumulate)
            values: Tile = t.table
            if looked_up:  # behind what the next step loads, each look into the tensor would wait for all of it
                values = T.alloc_shared((1 << bits,), wide)
                T.copy(t.table, values)
            if period:
                total = T.alloc_fragment((block_M, block_N), wide)
                T.clear(total)
            for span_index in T.serial(T.ceildiv(K, span)):
                T.clear(partial)
                for step in T.Pipelined(T.ceildiv(span, block_K), num_stages=num_stages if copies else 1):
                    first = span_index * span + step * block_K
                    if copied:
                        T.copy(t.A[by * block_M, first], A_shared)
                    else:
                        convert(t, A_shared, by * block_M, first)
                    if tiled:
                        T.copy(t.W[bx * (block_N // TILE_ROWS), first // r.tiles[0], 0], codes)
                    if tiled and as_stored:
                        for i, j in T.Parallel(block_N, block_K):
                            place = tile_place(i % TILE_ROWS, j % r.tiles[0], r.tiles)
                            W_shared[i, j] = T.cast(codes[i // TILE_ROWS, j // r.tiles[0], place], r.right)
                    elif native:
                        T.copy(t.W[bx * block_N, first], W_shared)
                    elif dense:
                        for i, j in T.Parallel(block_N, block_K):
                            W_shared[i, j] = T.cast(t.W[bx * block_N + i, first + j], r.right)
                    else:
                        if not tiled:
                            T.copy(t.W[bx * block_N, first * bits // 8], codes)
                        decode(t, codes, values, W_shared, bx * block_N, first)
                    T.gemm(A_shared, W_shared, partial, transpose_B=True)
                if period:
                    for i, j in T.Parallel(block_M, block_N):
                        scaled = T.cast(partial[i, j], wide)
                        if r.scaled == "sums":
                            weight_group = span_index * span // r.group
                            scaled = scaled * of_group(t.scales, r.scale, bx * block_N + j, weight_group, wide)
                        if r.activation_scales == "group":
                            group = span_index * span // r.activation_group
                            scaled = scaled * T.cast(t.activation_scales[by * block_M + i, group], wide)
                        total[i, j] = total[i, j] + scaled
            for i, j in T.Parallel(block_M, block_N):
                row, n = by * block_M + i, bx * block_N + j
                if (row < M) & (n < N):
                    value: Value = total[i, j] if period else partial[i, j]
                    if r.scaled == "result":
                        value = T.cast(value, wide) * of_group(t.scales, r.scale, n, 0, wide)
                    if r.activation_scales in ("tensor", "token"):
                        token = row if r.activation_scales == "token" else 0
                        value = T.cast(value, wide) * T.cast(t.activation_scales[token, 0], wide)
                    store_result(value, r, row, n, t, wide)

    weight = T.Tensor((N, K if as_stored else r.row_bytes), code_type)
    if tiled:
        weight = T.Tensor((N // TILE_ROWS, K // r.tiles[0], code_tile[-1]), code_type)

    @T.macro
    def product(t: Tensors) -> None:
        if M <= FEW_ROWS:
            multiply(t, 16)
        else:
            multiply(t, block_M)

    return entry_point("general_matmul", r, M, weight, wide, product)


def entry_point(
    name: str, r: Recipe, M: Value, Weight: TensorType, wide: str, product: Callable[[Tensors], None]
) -> PrimFunc:
    """The function of a kernel of a recipe for M rows: `product` is given its parameters, of which W is `Weight`."""
    N, K, bits = r.N, r.K, r.format.bits
    per_byte = dtype_of(r.activations).per_byte
    scale_rows = M if r.activation_scales in ("token", "group", "element") else 1
    scale_groups = -(-r.columns // r.activation_group) if r.activation_group else 1
    multiplier = r.multiplier or Grouped("int8")

    def launched(
        A: T.Tensor((M, -(-r.columns // per_byte) * per_byte), r.activations),
        activation_scales: T.Tensor((scale_rows, scale_groups), r.activation_scale_dtype),
        W: Weight,
        table: T.Tensor((1 << bits if bits <= 8 else 1,), wide),
        scales: T.Tensor((r.scale.rows, r.scale.columns), r.scale.dtype),
        zeros: T.Tensor(*r.zero_tensor),
        multipliers: T.Tensor((multiplier.rows, multiplier.columns), multiplier.dtype),
        factor: T.Tensor((1,), wide),
        slots: T.Tensor((len(r.slots) or 1,), "int32"),
        divisors: T.Tensor((r.columns if r.divisors else 1,), "float32"),
        gathered: T.Tensor((K if r.gather else 1,), "int32"),
        bias: T.Tensor((N if r.bias else 1,), r.bias or "float32"),
        residual: T.Tensor((M if r.residual else 1, N if r.residual else 1), r.out),
        C: T.Tensor((M, N), r.out),
    ) -> None:
        rest = (table, scales, zeros, multipliers, factor, slots, divisors, gathered, bias, residual, C)
        product(Tensors(A, activation_scales, W, *rest))

    launched.__name__ = name
    return T.prim_func(launched)
