"""Products of activations with low-bit weights: ``C = A (codes - zeros) * scales``, any number of rows.

The weight is packed once (``kernel.pack``); its codes are unpacked in registers next to the multiplication.
Scales and zero points belong to groups along K; both are given group by group, ``[K / group, N]``, so that
the columns of a tile lie side by side.

The zero points cost the main loop nothing: as ``sum_k a (c - z) s = s (sum_k a c - z sum_k a)`` in every group, one for
all of them is a number for each row that its products begin with, and a tensor of them a factor of that number for each
column. Points that are taken off scaled codes are one small product of the groups' sums of A with them.
"""

from __future__ import annotations

import functools
import math
import operator

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError
from tilewright.kernels import PLAIN, Epilogue, Tile, Value, paired, stored
from tilewright.kernels.activation_quantization import scale_rows, whole, widened
from tilewright.kernels.matmul import by_tiles
from tilewright.language.trace import PrimFunc
from tilewright.machine import Arch, DotInstruction, match_operands
from tilewright.options import InvalidOption

FEW_ROWS = 32
"""Up to here a block has few rows, so that short batches waste nothing on rows that do not exist."""
RUN = 128
"""Elements of K that a product goes over at most, where groups are smaller."""
MANY_REGISTERS = 32
"""As many hold the sums of a tile beside the totals of a group."""
CORE_BYTES = 40e9
"""Bytes of a weight that a core multiplies in a second where they are in its cache."""
START = 2e-6
"""Seconds until other cores take part in a launch, and until they have been waited for."""
NARROW, NARROW_FLOATS = 0.25, 0.8
"""What narrow blocks lose (`columns_of_each`): a Zen 5, blocks of 16 to 96 columns, in the second-level cache. Of 8-bit
codes one row loses less than a tenth of that."""
WORTHWHILE = 0.97
"""Blocks are narrower than they might be where that makes a product shorter by so much."""
LEAST_ROWS = 8
"""From here on a matrix unit multiplies faster than codes are unpacked next to dot products; below, blocks have fewer
rows than this."""


class InvalidGroup(TilewrightError):
    """Groups that do not divide K."""

    def __init__(self, group: int, K: int) -> None:
        super().__init__(
            f"groups of {group} do not divide K = {K}",
            hint="pad K to a multiple of the group, or take one group for all of K (group=K)",
        )


def _invalid(name: str, value: object, expected: str) -> InvalidOption:
    return InvalidOption(f"{name} is {value!r}, expected {expected}", hint="see the docstring of quant_matmul")


def _check_options(
    weights: str,
    zero: Value | None,
    activations: str,
    out: str,
    arithmetic: str,
    codebook: tuple[float, ...] | None,
    scaled: bool,
) -> None:
    """Raise InvalidOption for the first option that has an impossible value."""
    codes = tilewright.dtype(weights)
    least, most = (8, 32) if codes.is_float else (1, 8)
    if (codes.is_packed and codes.is_float) or not least <= codes.bits <= most:
        raise _invalid("weights", weights, "an integer type of at most 8 bits, or a float type of 8, 16 or 32")
    if codes.is_float and arithmetic != "float32":
        raise _invalid("arithmetic", arithmetic, f"'float32', in which {weights} are multiplied")
    number = isinstance(zero, (int, float)) and not isinstance(zero, bool) and math.isfinite(zero)
    if zero is not None and not number:
        raise _invalid("zero", zero, "a number, or None where the kernel takes a tensor of zero points")
    if activations != "int8" and not tilewright.dtype(activations).is_float:
        raise _invalid("activations", activations, "a float type or 'int8'")
    if tilewright.dtype(out).bits < 8:
        raise _invalid("out", out, "a float type, or an integer type of whole bytes")
    if codebook is not None and not _is_table(codebook, codes.bits, activations, arithmetic):
        expected = (
            f"{1 << codes.bits} whole numbers, at most 255 apart, multiplied in int8, or as many floats in float32"
        )
        raise _invalid("codebook", codebook, expected)
    if codebook is not None and _has_fractions(codebook) and zero not in (0, None):
        raise _invalid("zero", zero, "0 or None where a codebook holds floats")
    if arithmetic not in ("int8", "float32"):
        raise _invalid("arithmetic", arithmetic, "'int8' or 'float32'")
    if scaled and activations != "int8" and arithmetic == "int8":
        raise _invalid("scaled", scaled, "False where the call makes the scales of its activations")


def _is_table(codebook: tuple[float, ...], bits: int, activations: str, arithmetic: str) -> bool:
    if len(codebook) != 1 << bits or bits > 4:
        return False
    if _has_fractions(codebook):
        return arithmetic == "float32" and all(math.isfinite(value) for value in codebook)
    return max(codebook) - min(codebook) <= 255 and (activations == "int8" or arithmetic == "int8")


def _has_fractions(codebook: tuple[float, ...]) -> bool:
    """Whether a codebook holds floats, which are multiplied as such, whole or not."""
    return not all(isinstance(value, int) for value in codebook)


def run_of_floats(group: int) -> int:
    """Elements of K for which a tile holds floats of a codebook: as few as a group has, and as leave it in the
    first-level cache."""
    return next((run for run in range(min(RUN, group), 7, -1) if group % run == 0 and run % 8 == 0), group)


def columns(arch: Arch | None) -> int:
    """Columns of a block: as many as let the sums of many rows stay in the first-level cache, beside the codes."""
    return 96 if arch is None or arch.l1_bytes >= 48 << 10 else 64


def columns_of_each(arch: Arch | None, N: int, row_bytes: int, narrow: float, step: int = 1) -> int:
    """Columns of a block where rows are few: fewer than `columns` where cores would wait for those that have one block
    more.

    `row_bytes` are those of a column of the weight. A block that is n vectors wide takes a share of `narrow` / n longer
    for each of them.
    """
    most = columns(arch)
    if arch is None or arch.has_threads or arch.cores < 2:
        return most
    lanes = arch.vector_bytes // 4
    vectors, of_vector = math.ceil(N / lanes), lanes * row_bytes / CORE_BYTES

    def seconds(width: int) -> float:
        blocks = math.ceil(vectors / width)
        start = START if blocks > 1 else 0.0
        return math.ceil(blocks / arch.cores) * (min(width, vectors) + narrow) * of_vector + start

    widest = most // lanes
    best = min(range(widest, 0, -step), key=seconds)
    return lanes * (best if seconds(best) < WORTHWHILE * seconds(widest) else widest)


def groups_together(arch: Arch | None, groups: int, group: int) -> int:
    """Groups that one product multiplies, a divisor of all of them: their sums stay in registers, where there are
    enough for both."""
    if arch is None or arch.has_threads or arch.registers < MANY_REGISTERS:
        return 1
    return max(count for count in range(1, max(1, RUN // group) + 1) if groups % count == 0)


def _is_processor(arch: Arch | None) -> bool:
    """Whether products may begin with a number for each row, which matrix units of GPUs do not."""
    return arch is None or not arch.has_threads


def _multiplies_codes_faster(arch: Arch | None, weights: str) -> bool:
    """Whether the machine's best product of int8 by the codes takes fewer operations than that by bytes (AVX2, of codes
    below 128)."""
    if arch is None or arch.has_threads:
        return False
    kinds = tilewright.dtype(weights), tilewright.dtype("uint8" if weights.startswith("u") else "int8")
    dots = arch.products(DotInstruction)
    best = [
        next((one.uops for one in dots if match_operands(one, tilewright.dtype("int8"), kind)), math.inf)
        for kind in kinds
    ]
    return best[0] < best[1]


@tilewright.jit
def quant_matmul(
    N: int,
    K: int,
    weights: str = "uint4",
    group: int = 128,
    zero: float | None = None,
    activations: str = "float32",
    out: str = "float32",
    arithmetic: str = "int8",
    block_N: int | None = None,
    codebook: tuple[float, ...] | None = None,
    epilogue: Epilogue = PLAIN,
    scaled: bool = False,
    rescale: bool = False,
    scale_dtype: str = "float32",
    zero_dtype: str = "float32",
    exact: bool = False,
) -> PrimFunc:
    """The product with a quantised weight ``[N, K]``.

    Parameters
    ----------
    weights : type of the codes, a signed or unsigned integer of at most 8 bits, or a float of 8 bits (in float32
        arithmetic).
    group : elements of K that share a scale; K for one scale a column.
    zero : the one zero point of all groups (0 for signed codes, 8 for offset uint4), or None where the kernel
        takes a tensor of them.
    activations : float type of A, or ``"int8"`` for activations already quantised, which come with a scale a token.
    out : type of C, a float or an integer, to which sums are rounded and which keeps those within its range.
    arithmetic : ``"int8"``: float activations are quantised, one scale a token, as part of the call; ``"float32"``:
        they are multiplied as they are, and so are int8 activations by codes that are floats.
    codebook : the numbers that unsigned codes of at most four bits stand for, where they are not their own; from these
        `zero` is taken off. Whole ones in int8 arithmetic; in float32 arithmetic any, with `zero` 0 or None.
    epilogue : what becomes of sums before they are stored; it has no factor.
    scaled : whether float activations, too, come with a scale a token.
    rescale : whether the tensor of zero points holds what is taken off scaled codes: ``code * scale - zero``.
    scale_dtype, zero_dtype : types in which scales and zero points are given.
    exact : whether sums are whole numbers (int32) that no scale changes: of int8 by integers with one whole zero point.

    Returns
    -------
    kernel of ``A[M, K]``, then for int8 or scaled activations ``token_scales[M]`` (float32), ``W`` (packed),
    ``scales[K / group, N]``, and without `zero` also ``zeros[K / group, N]``, giving ``C[M, N]``.
    With an epilogue it is always of ``A, token_scales, W, scales, zeros, bias[N], residual[M, N], C``, one element for
    what is not used; residual and C are ``[M, N / 2]`` where pairs of columns become one.

    Raises
    ------
    InvalidGroup : `group` does not divide K.
    InvalidOption : another option has an impossible value.

    Notes
    -----
    Scales are used as they are: a NaN or an infinity among them gives NaN in its column, as in any product.
    A `PackedWeight` refuses such scales when it is made, once instead of at every call.
    """
    _check_options(weights, zero, activations, out, arithmetic, codebook, scaled)
    if group <= 0 or K % group:
        raise InvalidGroup(group, K)
    columns_given = block_N
    groups = K // group
    fractions = codebook is not None and _has_fractions(codebook)
    least = 0 if codebook is None or fractions else int(min(codebook))
    table = None if codebook is None else tuple(value - least for value in codebook)
    zero = zero if zero is None else zero - least
    has_zeros = zero is None or zero != 0
    quantise = activations != "int8" and arithmetic == "int8"
    takes_scales = scaled or activations == "int8"
    floats = tilewright.dtype(weights).is_float or fractions
    operand = "int8" if not floats and (quantise or activations == "int8") else "float32"
    each = 2 if epilogue.pairs else 1
    processor = _is_processor(T.machine())
    begins_shifted = processor and has_zeros and zero is not None and (operand == "float32" or zero == int(zero))
    by_columns = processor and zero is None and not rescale and least == 0
    taken_after = has_zeros and not begins_shifted and not by_columns
    sum_type = "int32" if begins_shifted and operand == "int8" else "float32"
    tiles = by_tiles(T.machine(), operand)
    together = 1 if tiles or operand != "int8" else groups_together(T.machine(), groups, group)
    run = run_of_floats(group) if fractions else group * together
    M = T.dynamic("M")

    def columns_for(rows: int) -> int:
        """Columns of a block of so many rows."""
        if rows > FEW_ROWS or fractions:
            return columns(T.machine())
        column = K * tilewright.dtype(weights).bits // 8
        if operand == "float32":
            return columns_of_each(T.machine(), N, column, NARROW_FLOATS)
        # Odd numbers of vectors leave registers unused beside several rows.
        return columns_of_each(T.machine(), N, column, NARROW, 1 if rows == 1 else 2)

    @T.macro
    def prepare(A: Tile, operands: Tile, token_scales: Tile, sums: Tile) -> None:
        """Each token in the type that is multiplied, with the sums of its groups."""
        with T.Kernel(M, threads=1) as m:
            row = T.alloc_fragment((groups, group), "float32")
            total = T.alloc_fragment((groups,), "float32")
            for g, k in T.Parallel(groups, group):
                a = A[m, g * group + k]
                row[g, k] = widened(a) if quantise else T.cast(a, "float32")
            if quantise:
                scale = T.alloc_fragment((1,), "float32")
                inverse = T.alloc_fragment((1,), "float32")
                scale_rows(T.reshape(row, (1, K)), scale, inverse, "int8")
                token_scales[m] = scale[0]
                for g, k in T.Parallel(groups, group):
                    row[g, k] = whole(row[g, k], inverse[0], "int8")
            if operands is not A:
                for g, k in T.Parallel(groups, group):
                    operands[m, g * group + k] = T.cast(row[g, k], operand)
            if has_zeros:
                T.reduce_sum(row, total, dim=1)
                for g in T.Parallel(groups):
                    value = T.cast(total[g] * (-1.0 if by_columns else 1.0 if zero is None else -zero), sum_type)
                    if begins_shifted or by_columns:
                        sums[g, m] = value
                    else:
                        sums[m, g] = value

    @T.macro
    def multiply(
        A: Tile,
        token_scales: Tile,
        sums: Tile,
        W: Tile,
        scales: Tile,
        zeros: Tile,
        added: tuple[Tile, Tile],
        C: Tile,
        block_M: int,
        beside_tiles: int = 0,
    ) -> None:
        bias, residual = added
        # A matrix unit is done with a group so fast that sums in the second-level cache would keep it waiting.
        block_N = columns_given or (beside_tiles if tiles and beside_tiles else columns_for(block_M))
        if fractions and not columns_given:
            block_N //= 2  # a tile of floats is as large as four of codes
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=1) as (bn, bm):
            tile = T.alloc_shared((block_M, run), operand)
            # Few rows are multiplied by codes as they come out of the registers, many by a tile of what is multiplied.
            codes = "float32" if fractions else weights if floats else "uint8" if weights.startswith("u") else "int8"
            weight = T.alloc_fragment((block_N, run), codes)
            result = T.alloc_fragment((block_M, block_N), "int32" if exact else "float32")
            T.clear(result)
            for part in T.serial(K // run):
                k, g = part * run, part * run // group
                T.copy(A[bm * block_M, k], tile)
                lines, across = slice(g, g + together), slice(bn * block_N, bn * block_N + block_N)
                if floats and not fractions:
                    T.copy(W[across, k : k + run], weight)
                else:
                    T.decode(W[across, k : k + run], weight, codebook=table)
                scale: Any = None if exact else scales[lines, across]
                rows = slice(bm * block_M, bm * block_M + block_M)
                shift: Any = sums[lines, rows] if begins_shifted or by_columns else None
                points = zeros[lines, across] if by_columns else None
                T.gemm(
                    tile, weight, result, transpose_B=True, scale_B=scale, shift=shift, shift_B=points, groups=together
                )
                if taken_after and block_M == 1:  # as the scales are read
                    for n in T.Parallel(block_N):
                        result[0, n] += of_zeros(sums, scales, zeros, bm, g, bn * block_N + n)
            if taken_after and block_M > 1:
                shift = T.alloc_fragment((groups, block_N), "float32")
                for g, n in T.Parallel(groups, block_N):
                    shift[g, n] = taken_off(scales, zeros, g, bn * block_N + n)
                T.gemm(sums[bm * block_M : bm * block_M + block_M, 0:groups], shift, result)
            for m, n in T.Parallel(block_M, block_N // each):
                row, column = bm * block_M + m, bn * (block_N // each) + n
                factor = token_scales[row] if quantise or takes_scales else 1.0
                parts = []
                for part in list(range(each)):
                    added_bias = T.cast(bias[column * each + part], "float32") if epilogue.bias else None
                    total = result[m, n * each + part]
                    if not exact:
                        total = total * factor
                    elif not epilogue.is_plain:
                        total = T.cast(total, "float32")
                    parts.append(epilogue.before_residual(total, None, added_bias))
                value = paired(parts[0], parts[1], epilogue.function) if epilogue.pairs else parts[0]
                if epilogue.residual:
                    value = value + T.cast(residual[row, column], "float32")
                C[row, column] = stored(value, out)

    def taken_off(scales: Tile, zeros: Tile, g: Value, column: Value) -> Value:
        """What the zero of one group adds to a column for each unit of the group's sum."""
        point = None if zero is not None else T.cast(zeros[g, column], "float32")
        if rescale and not least:
            return -point
        scale = T.cast(scales[g, column], "float32")
        if rescale:
            return least * scale - point
        return scale if point is None else (least - point) * scale

    def of_zeros(sums: Tile, scales: Tile, zeros: Tile, row: Value, first: Value, column: Value) -> Value:
        """What the zeros of the groups that are multiplied together add to an element of the result."""
        parts = (sums[row, first + g] * taken_off(scales, zeros, first + g, column) for g in range(together))
        return functools.reduce(operator.add, parts)

    @T.macro
    def both(
        A: Tile,
        token_scales: Tile | None,
        W: Tile,
        scales: Tile,
        zeros: Tile | None,
        added: tuple[Tile | None, Tile | None],
        C: Tile,
    ) -> None:
        operands, sums = A, None
        if operand != activations:
            operands = T.alloc_global((M, K), operand)
        if quantise:
            token_scales = T.alloc_global((M,), "float32")
        if has_zeros:
            # What rows of one group begin with lies side by side: in steps of a row of groups they would fall into few
            # sets of the cache.
            sums = T.alloc_global((M, groups) if taken_after else (groups, M), sum_type)
        if has_zeros or operand != activations:
            prepare(A, operands, token_scales, sums)
        # Codes become floats in registers as fast as a tile of floats is read.
        if fractions and M > FEW_ROWS:
            multiply(operands, token_scales, sums, W, scales, zeros, added, C, 64)
        elif operand == "int8" and M == 1:  # what tokens are made with: nothing is asked of rows that there are not
            multiply(operands, token_scales, sums, W, scales, zeros, added, C, 1)
        elif operand == "float32" or _multiplies_codes_faster(T.machine(), weights):
            multiply(operands, token_scales, sums, W, scales, zeros, added, C, 16)
        elif tiles and M < LEAST_ROWS:
            multiply(operands, token_scales, sums, W, scales, zeros, added, C, LEAST_ROWS - 1)
        elif M <= FEW_ROWS:
            multiply(operands, token_scales, sums, W, scales, zeros, added, C, FEW_ROWS if tiles else 16, 64)
        else:
            multiply(operands, token_scales, sums, W, scales, zeros, added, C, 128, 32)

    plain, takes_zeros = epilogue.is_plain, zero is None
    Scales, Zeros = (T.Tensor((groups, N), of) for of in (scale_dtype, zero_dtype))
    PerToken = T.Tensor((M if takes_scales else 1,), "float32") if takes_scales or not plain else None
    OfGroups = Zeros if takes_zeros else None if plain else T.Tensor((1, 1), zero_dtype)
    Bias = None if plain else T.Tensor((N if epilogue.bias else 1,), epilogue.bias or "float32")
    Added = None if plain else T.Tensor((M, N // each) if epilogue.residual else (1, 1), out)

    @T.prim_func
    def quant_matmul(
        A: T.Tensor((M, K), activations),
        token_scales: PerToken,
        W: T.Packed((N, K), weights),
        scales: Scales,
        zeros: OfGroups,
        bias: Bias,
        residual: Added,
        C: T.Tensor((M, N // each), out),
    ):
        of_tokens, of_groups = token_scales if takes_scales else None, zeros if takes_zeros else None
        both(A, of_tokens, W, scales, of_groups, (bias, residual), C)

    return quant_matmul
