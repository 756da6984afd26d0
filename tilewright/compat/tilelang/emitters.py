"""``tilelang.intrinsics``: products that a program puts together from matrix instructions, warp by warp.

An emitter knows which rows and columns of a block's tile each warp has, and records loads, products and stores for
them.  It is written in words of the language: nothing here is known to the compiler.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tilewright.language as T
from tilewright.ir import WARP
from tilewright.language.buffers import BufferProxy, RegionProxy, region_of
from tilewright.language.matrix_words import SHORT_NAMES, a_place, b_place, load_matrices, registers, result_place
from tilewright.language.proxies import Scalar, Value
from tilewright.specialization import InvalidUse


class _LanePlace:
    """A tile in memory, and where in it the block's own part begins."""

    def __init__(self, value: BufferProxy | RegionProxy, what: str) -> None:
        region = region_of(value, what, "a buffer, or a part of one such as tile[k % 2, :, :]")
        self.buffer, self.starts, self.frame = region.buffer, region.starts, value.frame

    def __call__(self, row: Value, column: Value) -> tuple[Value, ...]:
        """Indices of an element of the part."""
        starts = [Scalar(start, self.frame) for start in self.starts]
        return (*starts[:-2], starts[-2] + row, starts[-1] + column)

    @property
    def proxy(self) -> BufferProxy:
        return BufferProxy(self.buffer, self.frame)


class TensorCoreIntrinEmitter:
    """What each warp of a block loads, multiplies and stores of a product ``C += A B``, by ``mma.sync``.

    Parameters
    ----------
    a_dtype, b_dtype, accum_dtype : of the elements.
    a_transposed, b_transposed : A lies in shared memory as ``[k, m]``; B as ``[n, k]``.
    block_row_warps, block_col_warps : warps along the rows and columns of the block's tile.
    warp_row_tiles, warp_col_tiles : rows and columns of a warp.
    chunk : of k, that an iteration of the author's loop has.
    reduce_k : groups of warps that share k among them.
    num_elems_per_byte : 1: elements that share bytes are not read.
    is_m_first : whether neighbouring warps have neighbouring columns.
    thread_var : the thread's number in its block, where it is not `T.get_thread_binding`.
    """

    WARP_SIZE = WARP

    def __init__(
        self,
        a_dtype: object = "float16",
        b_dtype: object = "float16",
        accum_dtype: object = "float16",
        a_transposed: bool = False,
        b_transposed: bool = False,
        block_row_warps: int = 2,
        block_col_warps: int = 2,
        warp_row_tiles: int = 8,
        warp_col_tiles: int = 8,
        chunk: int = 16,
        reduce_k: int = 1,
        num_elems_per_byte: int = 1,
        is_m_first: bool | None = False,
        thread_var: Scalar | None = None,
    ) -> None:
        names = [SHORT_NAMES.get(str(one), str(one)) for one in (a_dtype, b_dtype, accum_dtype)]
        self.a_dtype, self.b_dtype, self.accum_dtype = names
        bits = {T.dtype(name).bits for name in names[:2]}
        if len(bits) > 1 or num_elems_per_byte != 1 or min(bits) < 4:
            raise InvalidUse(
                f"no matrix instruction of ours multiplies {names[0]} by {names[1]}", hint="write T.gemm on tiles"
            )
        self.bits = bits.pop()
        self.k_dim = 4 if self.bits == 64 else 256 // self.bits
        self.M_DIM = self.micro_size_x = 8 if self.bits == 64 else 16
        self.n_dim = self.N_DIM = self.micro_size_y = 16 if warp_col_tiles % 16 == 0 and self.bits < 64 else 8
        self.micro_size_k = self.k_dim
        for name, count, unit in (
            ("warp_row_tiles", warp_row_tiles, self.M_DIM),
            ("warp_col_tiles", warp_col_tiles, self.n_dim),
            ("chunk", chunk, self.k_dim),
        ):
            if count % unit or count < unit:
                raise InvalidUse(f"{name}={count} of an emitter is no multiple of {unit}", hint="write one")
        self.a_transposed, self.b_transposed = a_transposed, b_transposed
        self.block_row_warps, self.block_col_warps = block_row_warps, block_col_warps
        self.warp_row_tiles, self.warp_col_tiles = warp_row_tiles, warp_col_tiles
        self.warp_rows, self.warp_cols = warp_row_tiles // self.M_DIM, warp_col_tiles // self.n_dim
        self.chunk, self.reduce_k, self.num_elems_per_byte = chunk, reduce_k, num_elems_per_byte
        self.threads = WARP * block_row_warps * block_col_warps * reduce_k
        self.local_size_a = self.M_DIM * self.k_dim // WARP
        self.local_size_b = self.n_dim * self.k_dim // WARP
        self.local_size_out = self.M_DIM * self.n_dim // WARP
        self.is_m_first, self.thread_var = bool(is_m_first), thread_var

    def get_thread_binding(self) -> Value:
        """The thread's number in its block."""
        return T.get_thread_binding() if self.thread_var is None else self.thread_var

    def extract_thread_binding(self, thread_id: Value, is_m_first: bool | None = None) -> tuple[Value, Value, Value]:
        """Lane, and place of the warp along the columns and the rows."""
        warp = thread_id // WARP
        rows, columns = self.block_row_warps, self.block_col_warps
        if self.is_m_first if is_m_first is None else is_m_first:
            return thread_id % WARP, warp % columns, warp // columns % rows
        return thread_id % WARP, warp // rows % columns, warp % rows

    def get_store_index_map(self, inverse: bool = False) -> Callable[..., object]:
        """Row and column, in a tile of the result, by lane and place."""
        if inverse:
            raise InvalidUse("the map of an emitter's results is not inverted", hint="write it out")
        return result_place

    def ldmatrix_a(
        self, A_local_buf: BufferProxy | RegionProxy, A_shared_buf: BufferProxy | RegionProxy, ki: Value, rk: Value = 0
    ) -> None:
        """Load the warp's rows of A at step ki of k into each thread's own array."""
        self._load_all(A_local_buf, A_shared_buf, ki, rk, True)

    def ldmatrix_b(
        self, B_local_buf: BufferProxy | RegionProxy, B_shared_buf: BufferProxy | RegionProxy, ki: Value, rk: Value = 0
    ) -> None:
        """Load the warp's columns of B at step ki of k into each thread's own array."""
        self._load_all(B_local_buf, B_shared_buf, ki, rk, False)

    def _load_all(self, own: object, tile: BufferProxy | RegionProxy, ki: Value, rk: Value, left: bool) -> None:
        """The warp's tiles of one operand."""
        lane, across, down = self.extract_thread_binding(self.get_thread_binding())
        warp, count, size = (down, self.warp_rows, self.M_DIM) if left else (across, self.warp_cols, self.n_dim)
        source = _LanePlace(tile, f"{'A' if left else 'B'} of an emitter")
        first, deep = warp * (count * size), rk * self.chunk + ki * self.k_dim
        for number in range(count):
            self._load(source, own, number, first + number * size, deep, lane, left)

    def _load(
        self, source: _LanePlace, own: object, tile: int, across: Value, deep: Value, lane: Value, left: bool
    ) -> None:
        """One tile of an operand: matrices of 16-byte rows where they lie so, else single elements."""
        size = self.local_size_a if left else self.local_size_b
        transposed = self.a_transposed if left else not self.b_transposed
        base = tile * size
        matrices = size * self.bits // 32
        by_rows = source.buffer.scope == "shared" and source.buffer.dtype.bits == self.bits
        if by_rows and (self.bits == 16 or (not transposed and 8 <= self.bits < 64)):
            # Neighbouring matrices are the halves of 16 rows first of A, the halves of k first of B.
            high, low = (lane // 16, lane // 8 % 2) if left else (lane // 8 % 2, lane // 16)
            chunk = 128 // self.bits
            row, column = (8 * low, lane % 8 + 8 * high) if transposed else (lane % 8 + 8 * low, chunk * high)
            place = (deep + column, across + row) if transposed else (across + row, deep + column)
            where = T.access_ptr(source.proxy[source(*place)], "r", chunk).region
            load_matrices(transposed, matrices, where, registers(own, base, size, "an emitter's array"))
            return
        for local in range(size):
            if self.bits == 64:
                row, column = lane // 4, lane % 4
            elif left:
                row, column = a_place(self.bits, lane, local)
            else:
                row, column = b_place(self.bits, self.k_dim, lane, local)
            place = (deep + column, across + row) if transposed else (across + row, deep + column)
            _own(own)[base + local] = source.proxy[source(*place)]

    def mma(
        self, A_local_buf: Any, B_local_buf: Any, C_local_buf: BufferProxy | RegionProxy, k_inner: Value = 0
    ) -> None:
        """Add the products of all the warp's tiles."""
        if self.bits == 4:
            sizes = self.warp_rows * self.local_size_a, self.warp_cols * self.local_size_b
            A_local_buf = _bytes(A_local_buf, k_inner * sizes[0], sizes[0], self.a_dtype, _a_byte)
            B_local_buf = _bytes(B_local_buf, k_inner * sizes[1], sizes[1], self.b_dtype, lambda place: place)
            k_inner = 0
        for row in range(self.mma_num_inst_m):
            for column in range(self.mma_num_inst_n):
                self.mma_atom(A_local_buf, B_local_buf, C_local_buf, row, column, k_inner)

    @property
    def mma_num_inst_m(self) -> int:
        """Tiles of the warp along the rows."""
        return self.warp_rows

    @property
    def mma_num_inst_n(self) -> int:
        """Tiles of the warp along the columns."""
        return self.warp_cols

    def mma_atom(
        self,
        A_local_buf: BufferProxy | RegionProxy,
        B_local_buf: BufferProxy | RegionProxy,
        C_local_buf: BufferProxy | RegionProxy,
        inst_m_idx: Value,
        inst_n_idx: Value,
        k_inner: Value = 0,
    ) -> None:
        """Add the product of one of the warp's tiles."""
        if self.bits == 4 and T.dtype(_own(A_local_buf).dtype).bits == 4:
            raise InvalidUse("single tiles of four bits are not multiplied", hint="write emitter.mma(A, B, C)")
        halves, deep = self.n_dim // 8, 2 if self.bits == 4 else 1  # four bits: as bytes, of two halves of k
        shape = f"m{self.M_DIM}n8k{self.k_dim // deep}"
        a = (k_inner * self.warp_rows + inst_m_idx) * self.local_size_a
        b = (k_inner * self.warp_cols + inst_n_idx) * self.local_size_b
        c = (inst_m_idx * self.warp_cols + inst_n_idx) * self.local_size_out
        types = [name.replace("int4", "int8") for name in (self.a_dtype, self.b_dtype)]
        size_a, size_b = self.local_size_a // deep, self.local_size_b // halves // deep
        for half, step in itertools.product(range(halves), range(deep)):
            left, right = (A_local_buf, a + step * size_a), (B_local_buf, b + (half * deep + step) * size_b)
            sums = C_local_buf, c + half * (self.local_size_out // halves)
            T.ptx_mma(self.accum_dtype, shape, "row", "col", *types, self.accum_dtype, *left, *right, *sums)

    def stmatrix(
        self, C_local_buf: BufferProxy | RegionProxy, C_buf: BufferProxy, pid_m: Any = None, pid_n: Any = None
    ) -> None:
        """Store the warp's sums, to a tile ``[rows, columns, 16, 16]``, to one ``[m, n]``, or to a tensor at a block's
        place."""
        lane, warp_n, warp_m = self.extract_thread_binding(self.get_thread_binding())
        target = _LanePlace(C_buf, "C of an emitter")
        of_block = pid_m is not None and pid_n is not None

        def place(tile_m: Any, tile_n: Any, local: Any) -> tuple[Value, ...]:
            row, column = warp_m * self.warp_rows + tile_m, warp_n * self.warp_cols + tile_n
            if of_block:
                row = row + pid_m * self.block_row_warps * self.warp_rows
                column = column + pid_n * self.block_col_warps * self.warp_cols
            at = (lane // 4, lane % 4 * 2 + local) if self.bits == 64 else result_place(lane, local)
            if target.buffer.rank == 4 and not of_block:
                return row, column, *at
            return target(row * self.M_DIM + at[0], column * self.n_dim + at[1])

        _store(target.proxy, place, _own(C_local_buf), self.warp_rows, self.warp_cols, self.local_size_out)


class INT4TensorCoreIntrinEmitter(TensorCoreIntrinEmitter):
    """One whose operands are bytes of two signed numbers of four bits: halves of bytes are multiplied as bytes, the low
    ones, then the high ones."""

    halves: tuple[object, ...] = ()

    def mma(
        self, A_local_buf: object, B_local_buf: object, C_local_buf: BufferProxy | RegionProxy, k_inner: Value = 0
    ) -> None:
        """Add the products of all the warp's tiles."""
        sizes = self.warp_rows * self.local_size_a, self.warp_cols * self.local_size_b
        for low in (True, False):
            a = _halves(A_local_buf, k_inner * sizes[0], sizes[0], low)
            b = _halves(B_local_buf, k_inner * sizes[1], sizes[1], low)
            self.halves = (a, b)
            super().mma(a, b, C_local_buf)

    def mma_atom(
        self,
        A_local_buf: BufferProxy | RegionProxy,
        B_local_buf: BufferProxy | RegionProxy,
        C_local_buf: BufferProxy | RegionProxy,
        inst_m_idx: Value,
        inst_n_idx: Value,
        k_inner: Value = 0,
    ) -> None:
        """Add the product of one of the warp's tiles, of halves of bytes."""
        if not any(A_local_buf is half for half in self.halves):
            raise InvalidUse("single tiles of four bits are not multiplied", hint="write emitter.mma(A, B, C)")
        super().mma_atom(A_local_buf, B_local_buf, C_local_buf, inst_m_idx, inst_n_idx, k_inner)


def _a_byte(place: int) -> int:
    """Where a byte of two tiles of 16 x 32 is among the elements of one of 16 x 64: k is counted otherwise, as in b."""
    tile, half, register, within = place // 32, place % 32 // 16, place % 16 // 4, place % 4
    return tile * 32 + (register % 2 + 2 * half) * 8 + register // 2 * 4 + within


def _bytes(array: object, first: Value, count: int, dtype: str, of: Callable[[int], int]) -> object:
    """Elements of four bits as bytes, in another order."""
    made = T.alloc_local((count,), dtype.replace("int4", "int8"))
    for place in range(count):
        made[place] = _own(array)[first + of(place)]
    return made


def _halves(array: object, first: Value, count: int, low: bool) -> BufferProxy:
    """The low or the high half of each byte, a signed number of four bits."""
    made = T.alloc_local((count,), "int8")
    for place in range(count):
        byte = T.cast(_own(array)[first + place], "int32")
        made[place] = T.cast(byte << 28 >> 28 if low else byte >> 4, "int8")
    return made


@T.macro
def _store(
    target: BufferProxy, place: Callable[..., tuple[Value, ...]], own: BufferProxy, rows: int, columns: int, count: int
) -> None:
    """Store a warp's sums: one loop, so that threads need not meet in between."""
    for tile_m in T.unroll(rows):
        for tile_n in T.unroll(columns):
            for local in T.unroll(count):
                target[place(tile_m, tile_n, local)] = own[(tile_m * columns + tile_n) * count + local]


def _own(array: object) -> BufferProxy:
    if not isinstance(array, BufferProxy):
        raise InvalidUse("an emitter keeps what threads hold in arrays of T.alloc_local", hint="give the array itself")
    return array


def mma_store_index_map(thread_id: Value, local_id: Value) -> tuple[Value, Value]:
    """Row and column, in a tile of 16 x 16, of the sum that a thread of a warp has at one of the 8 places of its
    array."""
    return result_place(thread_id, local_id)


def get_mma_micro_size(dtype: object) -> tuple[int, int, int]:
    """Rows, columns and depth of what matrix instructions multiply of operands of a type at once."""
    bits = T.dtype(dtype).bits
    if bits == 64:
        return 8, 8, 4
    return 16, 16, max(8, 256 // bits)
