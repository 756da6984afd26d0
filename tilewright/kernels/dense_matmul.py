"""``C = A @ B`` on matrix units, for every pair of operand types of 8 to 64 bits and every order, and the same with
scales.

A weight's N and K are fixed when a kernel is made, the number of rows M is not.  Sums of 8-bit floats stay in the
matrix unit's accumulator ("fast accumulation") unless they are promoted: then a step's products are added to sums of
float32.

Matrix instructions read operands of 8 bits along k only. Of one that lies the other way the instruction's rows are
taken, which lanes transpose in registers; where both lie so, the other is first transposed through shared memory into a
workspace, by a kernel of its own.
"""

from __future__ import annotations

from typing import Any

import tilewright
import tilewright.language as T
from tilewright.kernels import HOPPER, Tile, Value
from tilewright.kernels.cluster_sums import add_over_cluster
from tilewright.kernels.tile_choice import MANY, DenseProduct
from tilewright.kernels.tile_launches import Parts
from tilewright.kernels.tiles import BLOCK as SCALED
from tilewright.kernels.tiles import Tiles, padded_rows
from tilewright.language.macro import Macro
from tilewright.language.trace import PrimFunc

DEEP, WIDE = 128, 256
"""Rows and columns of a tile that is transposed."""

PADDING = 8
"""Columns beyond those of a tile of sums, so that eight rows of an accumulator meet in no bank."""

SCALES_AT = 16
"""Bytes at whose multiples the scales of a step begin where the copy engine brings them."""

BLOCK = 4
"""Rows and columns of what a thread transposes in its registers, so that shared memory is read and written by words."""


def sum_type(dtype: str) -> str:
    """The type that products of operands of a type are summed in."""
    record = tilewright.dtype(dtype)
    return "int32" if record.is_integer else "float64" if record.bits == 64 else "float32"


@tilewright.jit
def dense_matmul(
    N: int,
    K: int,
    A_dtype: str = "bfloat16",
    B_dtype: str | None = None,
    out: str | None = None,
    transpose_A: bool = False,
    transpose_B: bool = True,
    tiles: Tiles | Parts | None = None,
) -> PrimFunc:
    """Product of two matrices.

    Parameters
    ----------
    A_dtype, B_dtype : of the operands; B's is A's where not given.
    out : type of the result; that of the sums where not given: int32, float32 or float64.
    transpose_A, transpose_B : whether A is ``[K, M]`` in memory, and B ``[N, K]``.
    tiles : for all columns, or for parts of them; None for those that suit many rows, see `DenseProduct`.

    Returns
    -------
    kernel of A ``[M, K]`` (or ``[K, M]``), B ``[K, N]`` (or ``[N, K]``) and C ``[M, N]``; any M.
    """
    M, accumulate = T.dynamic("M"), sum_type(A_dtype)
    types = A_dtype, B_dtype or A_dtype, out or accumulate
    product = _product(M, N, K, types, (transpose_A, transpose_B), tiles)

    @T.prim_func
    def dense_matmul(
        A: T.Tensor((K, M) if transpose_A else (M, K), A_dtype),
        B: T.Tensor((N, K) if transpose_B else (K, N), B_dtype or A_dtype),
        C: T.Tensor((M, N), out or accumulate),
    ):
        product(A, B, None, None, None, C)

    return dense_matmul


@tilewright.jit
def scaled_matmul(
    N: int,
    K: int,
    A_dtype: str = "int8",
    B_dtype: str | None = None,
    out: str = "bfloat16",
    scale_A: str = "token",
    scale_B: str = "channel",
    bias: bool = False,
    transpose_A: bool = False,
    transpose_B: bool = True,
    tiles: Tiles | Parts | None = None,
    promote: bool = False,
) -> PrimFunc:
    """``C = scale_A * scale_B * (A @ B) + bias``: the scales are applied to sums, in float32.

    Parameters
    ----------
    A_dtype, B_dtype : of the operands; B's is A's where not given.
    out : type of the result.
    scale_A : ``"token"``, a factor for each row, ``"tensor"``, one for all, or ``"group"``, one for each 128 elements
        of a row.
    scale_B : ``"channel"``, a factor for each column, ``"tensor"``, or ``"block"``, one for each 128 x 128. Operands
        with scales of their parts have 8 bits, and the sums of each step are scaled and added to others.
    bias : whether a row ``[N]`` is added.
    transpose_A, transpose_B, tiles : as for `dense_matmul`.
    promote : whether the matrix unit adds up the products of a step alone (128 columns of 8-bit floats); see
        `fp8_scaled_matmul`.

    Returns
    -------
    kernel of A, B, ``scales_A[M]`` (or ``[1]``, or ``[ceil(K / 128), M]``), ``scales_B[N]`` (or ``[1]``, or
    ``[ceil(N / 128), ceil(K / 128)]``), all float32, with `bias` also ``bias[N]`` (float32), and C ``[M, N]``; any M.
    """
    M, groups = T.dynamic("M"), -(-K // SCALED)
    types = A_dtype, B_dtype or A_dtype, out
    product = _product(M, N, K, types, (transpose_A, transpose_B), tiles, (scale_A, scale_B), promote)
    Left = T.Tensor((K, M) if transpose_A else (M, K), A_dtype)
    Right = T.Tensor((N, K) if transpose_B else (K, N), B_dtype or A_dtype)
    ScalesA = T.Tensor((M,) if scale_A == "token" else (1,), "float32")
    if scale_A == "group":  # rows may begin at `SCALES_AT`, whatever M is
        ScalesA = T.StridedTensor((groups, M), (T.dynamic("apart"), 1), "float32")
    ScalesB = T.Tensor({"channel": (N,), "block": (-(-N // SCALED), groups)}.get(scale_B, (1,)), "float32")
    Bias = T.Tensor((N,), "float32") if bias else None

    def launched(A: Left, B: Right, scales_A: ScalesA, scales_B: ScalesB, bias: Bias, C: T.Tensor((M, N), out)) -> None:
        product(A, B, scales_A, scales_B, bias, C)

    launched.__name__ = "scaled_matmul_bias" if bias else "scaled_matmul"
    return T.prim_func(launched)


def _product(
    M: Value,
    N: int,
    K: int,
    types: tuple[str, str, str],
    transposed: tuple[bool, bool],
    tiles: Tiles | Parts | None,
    kinds: tuple[str, str] = ("tensor", "tensor"),
    promote: bool = False,
) -> Macro:
    """The kernel that all of these are: what follows a step, and the loop, depends on the scales given."""
    (A_dtype, B_dtype, out), (transpose_A, transpose_B) = types, transposed
    by_token, by_channel = kinds[0] == "token", kinds[1] == "channel"
    by_group, by_block = kinds[0] == "group", kinds[1] == "block"
    promote = promote or by_group or by_block
    bytes_A, bytes_B = (tilewright.dtype(dtype).bits == 8 for dtype in (A_dtype, B_dtype))
    across_A, across_B = transpose_A and bytes_A, not transpose_B and bytes_B
    # Lanes transpose the operand whose rows are the instruction's: where both lie across, the one that is likely to be
    # larger.
    swapped = across_B and (not across_A or N >= MANY) if across_A or across_B else None
    if isinstance(tiles, Tiles):
        tiles = ((N, tiles),)
    own = DenseProduct(N, K, A_dtype, swapped=swapped, promoted=promote, in_blocks=by_block)
    parts: Parts = tiles or own.fastest_parts(MANY)
    transposes_A = across_A and any(one.swapped for _, one in parts)
    transposes_B = across_B and not all(one.swapped for _, one in parts)
    transpose_A, transpose_B = transpose_A and not transposes_A, transpose_B or transposes_B

    @T.macro
    def transpose_bytes(source: Tile, target: Tile, dtype: str) -> None:
        """``target = source^T``, in tiles that pass through shared memory and, in blocks, through registers.

        Groups of four words stand in the row of a transposed tile as an exclusive-or says, so that those who write a
        column of blocks meet in a bank less often, and those who read rows never.
        """
        rows, columns = source.shape
        down, across = DEEP // BLOCK, WIDE // BLOCK
        groups = down // BLOCK
        with T.Kernel(T.ceildiv(columns, WIDE), T.ceildiv(rows, DEEP), threads=256) as (bc, br):
            tile = T.alloc_shared((DEEP, WIDE), dtype)
            words = T.view(tile, (DEEP, across), "uint32")
            transposed_tile = T.alloc_shared((WIDE, down), "uint32")
            T.pdl_sync()
            T.pdl_trigger()
            T.copy(source[br * DEEP, bc * WIDE], tile)
            for i, j in T.Parallel(down, across, coalesced_width=1):
                first, second = words[BLOCK * i, j], words[BLOCK * i + 1, j]
                third, fourth = words[BLOCK * i + 2, j], words[BLOCK * i + 3, j]
                for c in T.unroll(BLOCK):
                    low = (first >> (8 * c) & 255) | (second >> (8 * c) & 255) << 8
                    high = (third >> (8 * c) & 255) << 16 | (fourth >> (8 * c) & 255) << 24
                    transposed_tile[BLOCK * j + c, i ^ BLOCK * (j % groups)] = low | high
            if rows % (BLOCK * BLOCK) == 0:
                whole = T.view(target, (columns, rows // BLOCK), "uint32")
                for j, g, i in T.Parallel(WIDE, groups, BLOCK):
                    place = BLOCK * (g ^ (j // BLOCK) % groups) + i
                    whole[bc * WIDE + j, br * down + BLOCK * g + i] = transposed_tile[j, place]
            else:
                single = T.view(transposed_tile, (WIDE, DEEP), dtype)
                for j, i in T.Parallel(WIDE, DEEP):
                    place = (i // BLOCK) ^ BLOCK * ((j // BLOCK) % groups)
                    target[bc * WIDE + j, br * DEEP + i] = single[j, BLOCK * place + i % BLOCK]

    @T.macro
    def product(A: Tile, B: Tile, scales_A: Tile, scales_B: Tile, bias: Tile | None, C: Tile) -> None:
        left, right = A, B
        if transposes_A:
            left = T.alloc_global((M, K), A_dtype)
            transpose_bytes(A, left, A_dtype)
        if transposes_B:
            right = T.alloc_global((N, K), B_dtype)
            transpose_bytes(B, right, B_dtype)
        multiply(left, right, scales_A, scales_B, bias, C, 0, *parts[0])
        if len(parts) == 2:
            multiply(left, right, scales_A, scales_B, bias, C, parts[0][0], *parts[1], beside=True)

    @T.macro
    def multiply(
        A: Tile,
        B: Tile,
        scales_A: Tile,
        scales_B: Tile,
        bias: Tile | None,
        C: Tile,
        first: int,
        width: int,
        chosen: Tiles,
        beside: bool = False,
    ) -> None:
        """Some columns of the product; `beside` those that the kernel before makes."""
        block_M, block_N, swapped = chosen.block_M, chosen.block_N, chosen.swapped
        grid: tuple[Value, ...] = (T.ceildiv(width, block_N), T.ceildiv(M, block_M))
        cluster: tuple[int, ...] | None = chosen.cluster
        along_N, along_M = cluster or (1, 1)
        if chosen.splits > 1:
            # Blocks that meet fill whole clusters, those beyond the grid included.
            whole = tuple(T.ceildiv(count, along) * along for count, along in zip(grid, (along_N, along_M)))
            grid, cluster = (*whole, chosen.splits), (along_N, along_M, chosen.splits)
        # All tiles of the same columns begin together, so that bytes of the weight come from memory once, and not for
        # each row of tiles; where K is divided, as soon as hardly two rows run at once. Blocks that stay walk panels.
        rows_first = chosen.persistent is False
        if chosen.splits > 1:
            rows_first = 2 * chosen.splits * -(-width // block_N) > HOPPER.cores
        if rows_first:
            grid, cluster = (grid[1], grid[0], *grid[2:]), (along_M, along_N, *(cluster or (1, 1))[2:])
        steps = -(-K // (chosen.block_K * chosen.splits))
        height = block_M // chosen.splits
        with T.Kernel(
            *grid,
            threads=chosen.threads,
            cluster_dims=cluster,
            persistent=chosen.persistent,
            ping_pong=chosen.ping_pong or None,
            beside=beside,
        ) as place:
            if transposes_A or transposes_B:
                T.pdl_sync()
            across, down = (place[1], place[0]) if rows_first else (place[0], place[1])
            part = place[2] if chosen.splits > 1 else 0
            row, column = down * block_M, first + across * block_N
            total = T.alloc_fragment((block_N, block_M) if swapped else (block_M, block_N), sum_type(A_dtype))
            # Factors are read before the loop, which hides how long that takes.
            own_row = row + part * height
            by_rows = swapped and chosen.splits == 1  # of the sums as they leave are B's rows
            factors = factors_of((scales_A, scales_B, bias), height, block_N, by_rows)
            load_factors(factors, (scales_A, scales_B, bias), own_row, column)
            accumulate(A, B, total, (scales_A, scales_B), row, column, part * steps, steps, chosen, first)
            if chosen.splits == 1:
                finish(total, factors, C, row, column, swapped)
            else:
                found = T.alloc_shared((block_M, block_N + PADDING), sum_type(A_dtype))
                for i, j in T.Parallel(*total.shape):
                    if swapped:
                        found[j, i] = total[i, j]
                    else:
                        found[i, j] = total[i, j]
                mine = T.alloc_fragment((height, block_N), sum_type(A_dtype))
                of_across, of_down = (along_M, 1) if rows_first else (1, along_N)
                first_rank = across % along_N * of_across + down % along_M * of_down
                add_over_cluster(found, mine, part, chosen.splits, along_N * along_M, first_rank)
                T.cluster_arrive()  # peers may exit once their sums are read; no peer depends on the stores below
                if column < first + width:
                    finish(mine, factors, C, own_row, column, False)
                T.cluster_wait()

    @T.macro
    def accumulate(
        A: Tile,
        B: Tile,
        total: Tile,
        scales: tuple[Tile, Tile],
        row: Value,
        column: Value,
        first: Value,
        steps: Value,
        chosen: Tiles,
        origin: int = 0,
    ) -> None:
        """The sums of a tile, over so many steps along k from the first on; `origin`: the first column of all tiles."""
        block_M, block_N, block_K = chosen.block_M, chosen.block_N, chosen.block_K
        a = T.alloc_shared((block_K, block_M) if transpose_A else (block_M, block_K), A_dtype)
        b = T.alloc_shared((block_N, block_K) if transpose_B else (block_K, block_N), B_dtype)
        of_group: Any = T.alloc_shared((1, padded_rows(block_M)), "float32") if by_group else None
        of_A: Any = of_group[0, :block_M] if by_group else None
        many = by_group and chosen.swapped  # a thread has factors of many columns: it reads them before the product
        if many:
            of_A = T.alloc_fragment((block_M,), "float32")
        T.clear(total)
        for step in T.Pipelined(steps, num_stages=chosen.stages):
            k = (first + step) * block_K
            T.copy(A[(k, row) if transpose_A else (row, k)], a)
            T.copy(B[(column, k) if transpose_B else (k, column)], b)
            if by_group:
                T.copy(scales[0][first + step, row], of_group)
            if many:
                T.copy(of_group[0, :block_M], of_A)
            of_B = scales_of_blocks(scales[1], column, first + step, block_N, origin) if by_block else None
            every = block_K if promote else None
            swapped = b, a, total, not transpose_B, not transpose_A
            operands = swapped if chosen.swapped else (a, b, total, transpose_A, transpose_B)
            first_scale, second_scale = (of_B, of_A) if chosen.swapped else (of_A, of_B)
            T.gemm(*operands, scale_A=first_scale, scale_B=second_scale, promote_every=every)

    def factors_of(given: Factors, height: int, width: int, by_rows: bool) -> Factors:
        """What factors and bias of a tile are kept in: those of few values are read where they are used."""
        scales_A, scales_B, bias = given
        return (
            held(height, not by_rows) if by_token else scales_A,
            held(width, by_rows) if by_channel else scales_B,
            None if bias is None else held(width, by_rows),
        )

    @T.macro
    def load_factors(factors: Factors, given: Factors, row: Value, column: Value) -> None:
        """Factors and bias of the rows and columns of a tile."""
        if by_token:
            T.copy(given[0][row], factors[0])
        if by_channel:
            T.copy(given[1][column], factors[1])
        if given[2] is not None:
            T.copy(given[2][column], factors[2])

    @T.macro
    def scales_of_blocks(scales_B: Tile, column: Value, step: Value, size: int, origin: int) -> Any:
        """Those of a tile's columns in one step: of whole blocks, of parts of one, or of each column."""
        if (size % SCALED == 0 or SCALED % size == 0) and origin % min(size, SCALED) == 0:
            return scales_B[column // SCALED : column // SCALED + -(-size // SCALED), step : step + 1]
        each = T.alloc_fragment((size,), "float32")
        for i in T.Parallel(size):
            each[i] = scales_B[(column + i) // SCALED, step]
        return each

    def held(size: int, by_rows: bool) -> Tile:
        """Factors of a tile's rows, which few threads share, in registers; those of its columns in shared memory, a row
        that the copy engine brings."""
        return T.alloc_fragment((size,), "float32") if by_rows else T.alloc_shared((1, padded_rows(size)), "float32")

    def own(factors: Tile, place: Value) -> tuple[Value, ...]:
        """Where the factor of a row or column of a tile is."""
        return (0,) * (len(factors.shape) - 1) + (place,)

    @T.macro
    def finish(total: Tile, factors: Factors, C: Tile, row: Value, column: Value, swapped: bool) -> None:
        """Sums of a tile whose first row and column of C are these, with their factors, into C; the sums may be those
        of C transposed."""
        scales_A, scales_B, shift = factors
        result = total
        if scales_A is not None and not (by_group and by_block and shift is None):
            result = T.alloc_fragment(total.shape, out)
            for i, j in T.Parallel(*total.shape):
                m, n = (j, i) if swapped else (i, j)
                value = T.cast(total[i, j], "float32")
                if not by_group:
                    value = value * scales_A[own(scales_A, m if by_token else 0)]
                if not by_block:
                    value = value * scales_B[own(scales_B, n if by_channel else 0)]
                result[i, j] = T.cast(value if shift is None else value + shift[own(shift, n)], out)
        if swapped:
            columns, rows = result.shape
            T.transpose(result, C[row : row + rows, column : column + columns])
        else:
            T.copy(result, C[row, column])

    return product
