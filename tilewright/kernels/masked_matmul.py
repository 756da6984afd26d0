"""The product of a few rows with low-bit codes that are masked where they lie in their words: nothing is shifted,
nothing staged.

For machines whose matrix instructions ask for whole tiles of numbers, which a few rows do not fill. Code ``j`` of a
word, bits ``[s, s + bits)``, is ``(word & mask_j) * 2^-s``; the power of two goes into the activation beforehand, once
for all rows of the weight that a lane works on. So an element costs a mask, a conversion and a multiplication with sum
for each row of A, and no shift, which Apple's machines are slow at. Zero points are subtracted from the sums of a
group, as zero times the sum of its activations. 8-bit floats and e2m1 are halves when their bits are put in a half's
places, two codes of a word at once; the exponents' difference is a power of two, which the scale takes.
"""

from __future__ import annotations

import math

import tilewright
import tilewright.language as T
from tilewright.formats import Format
from tilewright.ir import WARP
from tilewright.kernels import Recipe, Tile, Value
from tilewright.kernels.general_matmul import Tensors, entry_point, of_group, packed_zero, store_result
from tilewright.language.trace import PrimFunc

WORD = 32

FLOATS = {"e2m1": 2.0**14, "e4m3": 2.0**8, "e5m2": 1.0}
"""What a format's numbers are times the halves that have its bits in their places."""

SMALL, LIFT = 2.0**79, 2.0**32
"""Activations below `SMALL` are lifted, in types with a float32's exponents: the powers of two that codes' places ask
for then leave no subnormal numbers, which devices take for zeros."""

UNITS = (4, 2, 1)
"""Bytes of one load of codes, the widest first: what rows begin at multiples of."""


def is_masked(of: Format) -> bool:
    """Whether codes of a format are multiplied where they lie."""
    return not of.is_dense and (of.kind in ("int", "uint") or of.name in FLOATS)


def rows_unit(recipe: Recipe) -> int:
    """Bytes of a load of codes: what all rows begin at multiples of."""
    return next(size for size in UNITS if -(-recipe.K * recipe.format.bits // 8) % size == 0)


def run_of(bits: int) -> int:
    """Consecutive codes that a lane takes at once: whole words, 16 codes at least."""
    return max(16, WORD // math.gcd(WORD, bits))


def pieces(bits: int, place: int) -> list[tuple[int, int, float]]:
    """Where code number `place` of a run lies: for each word that has bits of it the word's number, the mask, and what
    the masked word is to be multiplied by.

    Examples
    --------
    >>> pieces(4, 2)
    [(0, 3840, 0.00390625)]
    >>> pieces(3, 10)
    [(0, 3221225472, 9.313225746154785e-10), (1, 1, 4.0)]
    """
    first, behind, found = place * bits, (place + 1) * bits, []
    for word in range(first // WORD, (behind - 1) // WORD + 1):
        low, high = max(first - word * WORD, 0), min(behind - word * WORD, WORD)
        found.append((word, (1 << high) - (1 << low), 2.0 ** (word * WORD - first)))
    return found


def halves(name: str, word: Value, pair: int) -> Value:
    """Two codes of a word as the bits of two halves: of e2m1 codes ``pair`` and ``pair + 4``, of 8-bit floats ``pair``
    and ``pair + 2``."""
    if name == "e2m1":
        sign, rest = moved(word, 12 - 4 * pair) & 0x80008000, moved(word, 9 - 4 * pair) & 0x0E000E00
        return sign | rest
    high = moved(word, 8 - 8 * pair)
    if name == "e5m2":
        return high & 0xFF00FF00
    return (high & 0x80008000) | (moved(word, 7 - 8 * pair) & 0x3F803F80)


def moved(word: Value, places: int) -> Value:
    """A word shifted to the left, or to the right by less than nothing."""
    return word if places == 0 else word << places if places > 0 else word >> -places


def byte_of(bits: int, place: int) -> tuple[int, int, int, float]:
    """Where code number `place` of a run lies, where bytes are whole codes: the word's number, the mask of all codes in
    the same place of their bytes, the byte, and what its masked number is to be multiplied by.

    Examples
    --------
    >>> byte_of(4, 11)
    (1, 4042322160, 1, 0.0625)
    """
    word, at = divmod(place * bits, WORD)
    byte, low = divmod(at, 8)
    return word, ((1 << bits) - 1 << low) * 0x01010101, byte, 2.0**-low


@tilewright.jit
def masked_matmul(
    recipe: Recipe, rows: int = 1, each: int = 4, warps: int = 2, parts: int = 1, by_bytes: bool = False
) -> PrimFunc:
    """The product that `recipe` describes; it takes what `general_matmul` takes.

    Parameters
    ----------
    rows : of A that a block works on.
    each : rows of the weight of one warp.
    warps : of a block that have rows of the weight of their own.
    parts : of K: as many warps have the same rows, and what they have found is added up. More of a weight of few rows
        is on its way then.
    by_bytes : codes are masked four at once, one of each byte of a word, for machines that make any byte a float.
    """
    r = recipe
    M = T.dynamic("M")
    N, K, bits = r.N, r.K, r.format.bits
    floats, run = r.format.name in FLOATS, run_of(r.format.bits)
    words, row_bytes = run * bits // WORD, -(-K * bits // 8)
    unit = rows_unit(r)
    grouped = [facts for facts in (r.scale, r.zero_point, r.multiplier) if facts is not None and facts.varies_along_k]
    chunk = math.gcd(run, r.group) if grouped else run
    per_word = WORD // bits
    growth = FLOATS.get(r.format.name, 2.0 if r.format.name == "int1" else 1.0)
    sign = 1 << bits - 1 if r.format.kind == "int" else 0
    flips_signs = sign and bits > 1 and not r.offset_binary
    lifts = tilewright.dtype(r.activations).name in ("bfloat16", "float32")
    by_bytes = by_bytes and not floats and 8 % bits == 0
    chains = 2 if by_bytes else 1

    def zero_of(t: Tensors, n: Value, g: Value) -> Value | None:
        """What is subtracted of each code of a group before it is scaled; None for nothing."""
        found: Value | None = None
        if r.zeros == "one" and r.zero:
            found = T.cast(r.zero, "float32")
        if r.zeros == "groups":
            found = of_group(t.zeros, r.zero_point, n, g, "float32")
        if r.zeros == "packed":
            found = T.cast(packed_zero(t.zeros, r, n, g), "float32")
        if not sign:
            return found
        return float(sign) if found is None else found + float(sign)

    @T.macro
    def load_codes(t: Tensors, codes: Tile, n: Value, first: Value) -> None:
        """The words of a lane's run of a row of the weight."""
        at = first * bits // (8 * unit)
        if unit == 4:
            for w in T.vectorized(words):
                codes[w] = t.W[n, at + w]
        else:
            for w in T.unroll(words):
                low: Value = T.cast(t.W[n, at + 4 // unit * w], "uint32")
                for part in list(range(1, 4 // unit)):
                    low = low | T.cast(t.W[n, at + 4 // unit * w + part], "uint32") << 8 * unit * part
                codes[w] = low
        if flips_signs:
            for w in list(range(words)):
                codes[w] = codes[w] ^ sign_bits(w)

    def sign_bits(word: int) -> int:
        """The highest bits of a word's codes: with them flipped, codes count from the least number."""
        places = range((word * WORD - bits + 1) // bits, (word + 1) * WORD // bits + 1)
        return sum(1 << at for j in places if 0 <= (at := (j + 1) * bits - 1 - word * WORD) < WORD)

    @T.macro
    def load_activations(
        t: Tensors, raw: Tile, x: Tile, totals: Tile, lowered: Tile, m: Value, row: Value, first: Value
    ) -> None:
        """A lane's run of a row of A, each element times the power of two that its code's place asks for, and sums of
        chunks."""
        for j in T.vectorized(run):
            raw[j] = t.A[row, first + j]
        lifted: Value = 1.0
        if lifts:
            largest: Value = T.abs(T.cast(raw[0], "float32"))
            for j in list(range(1, run)):
                largest = T.max(largest, T.abs(T.cast(raw[j], "float32")))
            lowered[m] = T.if_then_else(largest < SMALL, growth / LIFT, growth)
            lifted = T.if_then_else(lowered[m] == growth, 1.0, LIFT)
        for c in list(range(run // chunk)):
            totals[m, c] = 0.0
            for j in list(range(c * chunk, (c + 1) * chunk)):
                value: Value = T.cast(raw[j], "float32")
                totals[m, c] = totals[m, c] + value
                power: float = 1.0 if floats else byte_of(bits, j)[3] if by_bytes else pieces(bits, j)[0][2]
                up: Value = value * lifted if lifts else value
                x[m, j] = up if power == 1.0 else up * power

    def number_of(codes: Tile, numbers: Tile, j: int) -> Value:
        """Code number `j` of a run as a float32: of whole numbers times ``2^place``, of floats by the factor of
        `FLOATS` too little."""
        if by_bytes:
            word, mask, byte, _ = byte_of(bits, j)
            return T.cast((codes[word] & mask) >> 8 * byte & 255, "float32")
        if not floats:
            parts = pieces(bits, j)
            found: Value = T.cast(codes[parts[0][0]] & parts[0][1], "float32")
            for word, mask, factor in parts[1:]:
                found = found + T.cast(codes[word] & mask, "float32") * (factor / parts[0][2])
            return found
        word, place = divmod(j, per_word)
        half = per_word // 2
        found = T.cast(numbers[2 * (word * half + place % half) + place // half], "float32")
        return T.if_then_else(T.abs(found) > 448.0 / 256.0, float("nan"), found) if r.format.name == "e4m3" else found

    @T.macro
    def multiply_run(
        t: Tensors,
        codes: Tile,
        pairs: Tile,
        numbers: Tile,
        of_rows: tuple[Tile, Tile, Tile, Tile],
        at: Value,
        n: Value,
        first: Value,
    ) -> None:
        """A run of one row of the weight times all rows of A, added to their sums."""
        x, totals, lowered, sums = of_rows
        if floats:
            for w in list(range(words)):
                for pair in list(range(per_word // 2)):
                    pairs[w * (per_word // 2) + pair] = halves(r.format.name, codes[w], pair)
        partial = T.alloc_local((rows, chains), "float32")
        for c in list(range(run // chunk)):
            for m in T.unroll(rows):
                for i in T.unroll(chains):
                    partial[m, i] = 0.0
            for j in list(range(c * chunk, (c + 1) * chunk)):
                number = number_of(codes, numbers, j)
                for m in T.unroll(rows):
                    partial[m, j % chains] = T.fma(x[m, j], number, partial[m, j % chains])
            for m in T.unroll(rows):
                if chains == 2:
                    partial[m, 0] = partial[m, 0] + partial[m, 1]
            g = (first + c * chunk) // r.group
            scale = scale_of(t, n, g)
            zero = zero_of(t, n, g)
            for m in T.unroll(rows):
                factor_back: Value = lowered[m] if lifts else growth
                found: Value = partial[m, 0] if not lifts and growth == 1.0 else partial[m, 0] * factor_back
                if zero is not None:
                    found = found - zero * totals[m, c]
                if scale is not None:
                    found = found * scale
                if r.zeros == "rescale":
                    found = found - of_group(t.zeros, r.zero_point, n, g, "float32") * totals[m, c]
                sums[m, at] = sums[m, at] + found

    def scale_of(t: Tensors, n: Value, g: Value) -> Value | None:
        """What the sums of a chunk are multiplied by; None for nothing."""
        parts: list[Value] = []
        if r.multiplier:
            parts.append(of_group(t.multipliers, r.multiplier, n, g, "float32"))
        if r.scaled in ("sums", "weight"):
            parts.append(of_group(t.scales, r.scale, n, g, "float32"))
        if r.factor and r.zeros == "rescale":
            parts.append(t.factor[0])
        return math.prod(parts[1:], start=parts[0]) if parts else None

    def of_result(total: Value, scales: Tile, n: Value) -> Value:
        """A sum, times the scale of its row where that is the only one."""
        return total * of_group(scales, r.scale, n, 0, "float32") if r.scaled == "result" else total

    @T.macro
    def product(t: Tensors) -> None:
        with T.Kernel(T.ceildiv(N, warps * each), T.ceildiv(M, rows), threads=WARP * warps * parts) as (bn, bm):
            lane, warp = T.get_lane_idx(), T.get_warp_idx()
            first_n = (bn * warps + warp % warps) * each
            codes = T.alloc_local((words,), "uint32")
            pairs = T.alloc_local((words * per_word // 2 if floats else 1,), "uint32")
            numbers = T.view(pairs, dtype="float16")
            raw = T.alloc_local((run,), r.activations)
            x = T.alloc_local((rows, run), "float32")
            totals = T.alloc_local((rows, run // chunk), "float32")
            lowered = T.alloc_local((rows,), "float32")
            sums = T.alloc_local((rows, each), "float32")
            for m in T.unroll(rows):
                for at in T.unroll(each):
                    sums[m, at] = 0.0
            for turn in T.serial(T.ceildiv(K, WARP * run * parts)):
                first = (turn * parts + warp // warps) * (WARP * run) + lane * run
                for m in T.unroll(rows):
                    load_activations(t, raw, x, totals, lowered, m, bm * rows + m, first)
                for at in T.unroll(each):
                    load_codes(t, codes, first_n + at, first)
                    multiply_run(t, codes, pairs, numbers, (x, totals, lowered, sums), at, first_n + at, first)
            if parts == 1:
                for m in T.unroll(rows):
                    for at in T.unroll(each):
                        total = T.warp_reduce_sum(sums[m, at])
                        row, n = bm * rows + m, first_n + at
                        if (lane == 0) & (row < M) & (n < N):
                            store_result(of_result(total, t.scales, n), r, row, n, t, "float32")
            else:
                found = T.alloc_shared((parts, rows, warps * each), "float32")
                for m in T.unroll(rows):
                    for at in T.unroll(each):
                        total = T.warp_reduce_sum(sums[m, at])
                        if lane == 0:
                            found[warp // warps, m, warp % warps * each + at] = total
                T.sync_threads()
                for m, at in T.Parallel(rows, warps * each):
                    row, n = bm * rows + m, bn * (warps * each) + at
                    if (row < M) & (n < N):
                        added = sum((found[part, m, at] for part in range(1, parts)), start=found[0, m, at])
                        store_result(of_result(added, t.scales, n), r, row, n, t, "float32")

    weight = T.Tensor((N, row_bytes // unit), f"uint{8 * unit}")
    return entry_point("masked_matmul", r, M, weight, "float32", product)
