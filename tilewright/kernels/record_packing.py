"""A weight's plain codes, scales and zeros into records in fragment order, where they are."""

from __future__ import annotations

import functools

import numpy as np

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import ALL
from tilewright.kernels.values import Tile, Value
from tilewright.language.trace import PrimFunc
from tilewright.machine import ACROSS, COLUMNS, TILE, FragmentRecords


@functools.lru_cache(maxsize=256)
def order_of(form: FragmentRecords) -> np.ndarray:
    """Which code of a record, row by row, stands at each place (int32)."""
    found = np.argsort(form.codes().permutation().reshape(-1)).astype(np.int32)
    found.flags.writeable = False
    return found


@tilewright.jit
def pack_records(form: FragmentRecords, bits: int, threads: int = 128) -> PrimFunc:
    """``form.pack`` of codes that stand row by row, low bits first, for a weight of any size.

    Parameters
    ----------
    bits : of a plain code, up to 8.

    Returns
    -------
    kernel of ``codes[N, bytes]`` (uint8), ``K`` (int32, their columns), ``table[2**bits]`` (uint8, the record's code
    for each plain one), ``order`` (`order_of`), then where records hold them ``scales`` and ``zeros``
    ``[N, ceil(K / group)]`` (unsigned integers with the bits of their type), and ``words`` (uint32,
    ``form.shape(N, K)``).
    """
    N, B, G, down, across = (T.dynamic(name) for name in ("N", "B", "G", "down", "across"))
    words, per_word, mask = form.words, 32 // form.bits, (1 << bits) - 1

    def code(codes: Tile, table: Tile, K: Value, n: Value, k: Value) -> Value:
        """The record's code of a row and a column, 0 behind the weight's ends."""
        first = k * bits // 8
        raw: Value = T.cast(codes[n, first], "uint32")
        if 8 % bits:
            raw = raw | T.cast(codes[n, first + 1], "uint32") << 8
        found = (raw >> T.cast(k * bits % 8, "uint32")) & mask
        inside = T.if_then_else(n < N, k < K, False)
        return T.if_then_else(inside, T.cast(table[T.cast(found, "int32")], "uint32"), T.uint32(0))

    @T.macro
    def place(values: Tile, target: Tile, offset: int, ending: int, block: Value, record: Value) -> None:
        """Scales or zeros, those of rows g and g + 8 side by side (`FragmentRecords.lines`)."""
        for p in T.Parallel(form.rows * form.sets):
            line, group = p % form.rows, record * form.sets + p // form.rows
            n = block * form.rows + line // TILE * TILE + line % 2 * 8 + line % TILE // 2
            inside = T.if_then_else(n < N, group < G, False)
            target[block, record, offset + p] = T.if_then_else(inside, values[n, group], T.cast(ending, values.dtype))

    @T.macro
    def pack(codes: Tile, K: Value, table: Tile, order: Tile, scales: Tile, zeros: Tile, packed: Tile) -> None:
        with T.Kernel(across // ACROSS, down, threads=threads) as (quarter, block):
            for part in T.serial(ACROSS):
                record = quarter * ACROSS + part
                for w in T.Parallel(form.rows * COLUMNS // per_word):
                    word: Value = T.uint32(0)
                    for field in list(range(per_word)):
                        at = order[w * per_word + field]
                        n, k = block * form.rows + at // COLUMNS, record * COLUMNS + at % COLUMNS
                        word = word | code(codes, table, K, n, k) << (field * form.bits)
                    packed[block, record, w] = word
                for of, name, values in ((form.scale, "scales", scales), (form.zero, "zeros", zeros)):
                    if of is not None and values is not None:
                        size, ending = of.bits // 8, 127 if of == ALL["float8_e8m0fnu"] else 0
                        view = T.view(packed, (down, across, words * 4 // size), f"uint{of.bits}")
                        place(values, view, form.offset(name) // size, ending, block, record)

    Scales, Zeros = (T.Tensor((N, G), f"uint{of.bits}") if of else None for of in (form.scale, form.zero))
    both, Lines = Scales is not None and Zeros is not None, Scales or Zeros
    One, First, Second = (None, Scales, Zeros) if both else (Lines, None, None)

    def launched(
        codes: T.Tensor((N, B), "uint8"),
        K: T.int32,
        table: T.Tensor((1 << bits,), "uint8"),
        order: T.Tensor((form.rows * COLUMNS,), "int32"),
        lines: One,
        scales: First,
        zeros: Second,
        packed: T.Tensor((down, across, words), "uint32"),
    ) -> None:
        of_scales, of_zeros = (scales, zeros) if both else (lines, None) if form.scale is not None else (None, lines)
        pack(codes, K, table, order, of_scales, of_zeros, packed)

    launched.__name__ = "pack_scales_and_zeros" if both else "pack_codes" if Lines is None else "pack_lines"
    return T.prim_func(launched)


def places_of(form: FragmentRecords) -> np.ndarray:
    """The place of each code of a record, row by row (int32): the inverse of `order_of`."""
    return form.codes().permutation().reshape(-1).astype(np.int32)


@tilewright.jit
def unpack_codes(form: FragmentRecords, bits: int, threads: int = 128) -> PrimFunc:
    """The plain codes that `pack_records` made records of, row by row, low bits first.

    Returns
    -------
    kernel of ``words`` (uint32, ``form.shape(N, K)``), ``K`` (int32), ``table`` (uint8, the plain code for each of the
    record's), ``places`` (`places_of`) and ``codes[N, bytes]`` (uint8).
    """
    N, B, down, across = (T.dynamic(name) for name in ("N", "B", "down", "across"))
    per_word, mask, reach = 32 // form.bits, (1 << form.bits) - 1, 8 * threads

    def code(packed: Tile, table: Tile, places: Tile, K: Value, n: Value, k: Value) -> Value:
        """The plain code of a row and a column, 0 behind the last."""
        place = places[n % form.rows * COLUMNS + k % COLUMNS]
        word = packed[n // form.rows, k // COLUMNS, place // per_word]
        found = (word >> T.cast(place % per_word * form.bits, "uint32")) & mask
        return T.if_then_else(k < K, T.cast(table[T.cast(found, "int32")], "uint32"), T.uint32(0))

    @T.prim_func
    def unpack(
        packed: T.Tensor((down, across, form.words), "uint32"),
        K: T.int32,
        table: T.Tensor((1 << form.bits,), "uint8"),
        places: T.Tensor((form.rows * COLUMNS,), "int32"),
        codes: T.Tensor((N, B), "uint8"),
    ):
        with T.Kernel(T.ceildiv(B, reach), N, threads=threads) as (part, n):
            for i in T.Parallel(reach):
                b = part * reach + i
                if b < B:
                    found: Value = T.uint32(0)
                    # All codes that have bits in this byte.
                    for field in list(range(-(-(bits + 7) // bits))):
                        k = b * 8 // bits + field
                        value = code(packed, table, places, K, n, k)
                        ahead = k * bits - b * 8  # of the byte's first bit
                        found = found | T.if_then_else(
                            ahead < 0,
                            value >> T.cast(T.max(-ahead, 0), "uint32"),
                            T.if_then_else(
                                ahead < 8, value << T.cast(T.min(T.max(ahead, 0), 7), "uint32"), T.uint32(0)
                            ),
                        )
                    codes[n, b] = T.cast(found & 255, "uint8")

    return unpack
