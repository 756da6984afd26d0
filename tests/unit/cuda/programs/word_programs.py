"""Programs with words for single threads, warps and the grid, as users of TileLang write them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import tilewright.language as T

RNG = np.random.default_rng(9)
NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def whole(*shape: int, dtype: Any = "float16", low: int = -3, high: int = 4) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def added_accumulators(dtype="float16", N=60):
    """Parts of a product added to a tensor whose rows end within a tile: neighbours go together where they may."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, N), "float16"), C: T.Tensor((50, N), dtype)):
        with T.Kernel(2, threads=128) as part:
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A[0, part * 32], a)
            T.copy(B[part * 32, 0], b)
            T.clear(c)
            T.gemm(a, b, c)
            T.atomic_add(C[0, 0], c)

    a, b = whole(64, 64), whole(64, N)
    return main, (a, b, np.zeros((50, N), NUMPY[dtype])), (a.astype(float) @ b.astype(float))[:50]


def added_floats():
    return added_accumulators("float32")


def added_odd_rows():
    return added_accumulators("float16", 61)


def added_quads(threads=128):
    """Four neighbours of each thread, in one word of the language."""

    @T.prim_func
    def main(A: T.Tensor((threads, 4), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            own = T.alloc_local((4,), "float32")
            for i in T.vectorized(4):
                own[i] = A[tx, i]
            T.atomic_addx4(C[tx % 2 * 4], own[0])

    a = whole(threads, 4, dtype="float32")
    return main, (a, np.zeros(8, np.float32)), np.concatenate([a[::2].sum(0), a[1::2].sum(0)])


def sums_of_rows(dtype="int32"):
    """Rows that whole warps share."""

    @T.prim_func
    def main(A: T.Tensor((64, 256), dtype), B: T.Tensor((64,), dtype), C: T.Tensor((64,), dtype)):
        with T.Kernel(1, threads=256):
            tile = T.alloc_fragment((64, 256), dtype)
            sums = T.alloc_fragment((64,), dtype)
            largest = T.alloc_fragment((64,), dtype)
            T.copy(A, tile)
            T.reduce_sum(tile, sums, dim=1)
            T.reduce_max(tile, largest, dim=1)
            for i in T.Parallel(64):
                C[i] = sums[i] + B[i] * largest[i]

    a, b = whole(64, 256, dtype=dtype, low=-99, high=99), whole(64, dtype=dtype)
    return main, (a, b, np.zeros(64, dtype)), a.sum(1) + b * a.max(1)


def dots_of_bytes():
    """Four products at a time, and what the threads of a warp and of the block know together."""

    @T.prim_func
    def main(A: T.Tensor((64, 16), "int8"), B: T.Tensor((64, 16), "int8"), C: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            a = T.alloc_local((16,), "int8")
            b = T.alloc_local((16,), "int8")
            c = T.alloc_local((1,), "int32")
            T.clear(c)
            for i in T.vectorized(16):
                a[i] = A[tx, i]
                b[i] = B[tx, i]
            for i in T.serial(4):
                T.dp4a(a[i * 4], b[i * 4], c[0])
            of_warp = T.warp_reduce_sum(c[0])
            few = T.syncthreads_count(tx < 3)
            some = T.syncthreads_or(tx == 70)
            every = T.syncthreads_and(tx < 64)
            C[tx] = c[0] + of_warp + few + T.if_then_else(every & ~some, 100, 0)

    a, b = (whole(64, 16, dtype="int8", low=-128, high=128) for _ in range(2))
    dots = (a.astype(int) * b).sum(1)
    return main, (a, b, np.zeros(64, np.int32)), dots + np.repeat(dots.reshape(2, 32).sum(1), 32) + 103


def reduced_over_threads(block=4, slices=32):
    """A matrix times a row as older programs write it."""
    N, K = 50, 512

    @T.prim_func
    def main(A: T.Tensor((K,), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=(block, slices)) as b:
            row = T.get_thread_binding(0)
            part = T.get_thread_binding(1)
            own = T.alloc_local((1,), "float32")
            total = T.alloc_local((1,), "float32")
            T.clear(own)
            for k in T.serial(K // slices):
                at = k * slices + part
                own[0] += A[at].astype("float32") * B[b * block + row, at].astype("float32")
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.Cast("float32", 0)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(T.tvm_thread_allreduce(T.uint32(1), own[0], True, total[0], part, dtype="handle"))
            C[b * block + row] = total[0]

    a, b = whole(K), whole(N, K)
    return main, (a, b, np.zeros(N, np.float32)), b.astype(float) @ a.astype(float)


def reduced_in_warps():
    return reduced_over_threads(4, 8)


def bound_threads():
    """A loop over threads, fewer than the block has."""

    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.thread_binding(0, 64, thread="threadIdx.x"):
                C[i] = A[i] + 1.0

    a = whole(64, dtype="float32")
    return main, (a, np.zeros(64, np.float32)), a + 1


def whole_grid(blocks=4, rounds=3):
    """All blocks meet, several times and call after call."""

    @T.prim_func
    def main(A: T.Tensor((blocks * 64,), "int32"), C: T.Tensor((blocks * 64,), "int32")):
        sums = T.alloc_global((rounds,), "int32")
        with T.Kernel(blocks, threads=64) as block:
            tx = T.get_thread_binding()
            if (block == 0) & (tx < rounds):
                T.atomic_store(sums[tx], 0)
            T.sync_grid()
            for r in T.serial(rounds):
                T.atomic_add(sums[r], A[block * 64 + tx] + r)
                T.sync_grid()
                C[block * 64 + tx] = T.atomic_load(sums[r])

    a = whole(blocks * 64, dtype="int32")
    return main, (a, np.zeros_like(a)), np.full(a.shape, a.sum() + (rounds - 1) * a.size)


def handed_over(blocks=3):
    """Each block waits until the one before it has left its sum, and leaves its own."""

    @T.prim_func
    def main(A: T.Tensor((blocks * 64,), "int32"), C: T.Tensor((blocks * 64,), "int32")):
        left = T.alloc_global((blocks + 1, 64), "int32")
        there = T.alloc_global((blocks + 1,), "uint32")
        with T.Kernel(blocks, threads=64) as block:
            tx = T.get_thread_binding()
            if (tx == 0) & (block > 0):
                ready = T.alloc_var("uint32", 0)
                while ready == 0:
                    ready = T.atomic_load(there[block], "acquire")
            T.sync_threads()
            own = T.alloc_var("int32", A[block * 64 + tx])
            if block > 0:
                own = own + left[block, tx]
            C[block * 64 + tx] = own
            left[block + 1, tx] = own
            T.sync_threads()
            if tx == 0:
                T.atomic_store(there[block + 1], 1, "release")

    a = whole(blocks * 64, dtype="int32")
    return main, (a, np.zeros_like(a)), np.cumsum(a.reshape(blocks, 64), axis=0).reshape(-1)


SOURCE = """
__device__ void twice(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = 2 * x[i]; }
template <class X> __device__ X half_of(X x) { return x / 2; }
"""


def foreign_functions():
    """Functions of the device's own language on tensors, shared tiles and a thread's own memory."""

    @T.prim_func
    def main(A: T.Tensor((64, 4), "float32"), C: T.Tensor((64,), "float32")):
        T.import_source(SOURCE)
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            own = T.alloc_local((4,), "float32")
            tile = T.alloc_shared((64, 4), "float32")
            T.call_extern("handle", "twice", T.access_ptr(A[tx, 0], "r"), T.access_ptr(own, "w"), 4)
            T.call_extern("handle", "twice", own, T.address_of(tile[tx, 0]), 4)
            T.sync_threads()
            C[tx] = T.call_extern("float32", "half_of", tile[63 - tx, 1]) + own[2]

    a = whole(64, 4, dtype="float32")
    return main, (a, np.zeros(64, np.float32)), 2 * a[::-1, 1] + 2 * a[:, 2]


PROGRAMS: list[Any] = [
    added_accumulators, added_floats, added_odd_rows, added_quads, sums_of_rows, dots_of_bytes, reduced_over_threads,
    reduced_in_warps, bound_threads, whole_grid, handed_over, foreign_functions,
]  # fmt: skip


def pointers():
    """Tensors behind pointers, whose sizes are numbers that the caller passes."""

    @T.prim_func
    def main(a: T.ptr, b: T.ptr("float32"), m: T.int32, n: T.int32, c: T.ptr):
        A = T.make_tensor(a, (m, n), "float32")
        B = T.make_tensor(b, (n,))
        C = T.make_tensor(c, (m, n), "float32")
        flat = T.make_tensor(a, (m * n,), "float32")
        with T.Kernel(m, threads=64) as row:
            for j in T.Parallel(64):
                if j < n:
                    C[row, j] = A[row, j] + B[j] * flat[row * n + n - 1 - j]

    a, b = whole(5, 40, dtype="float32"), whole(40, dtype="float32")
    return main, (a, b, 5, 40, np.zeros((5, 40), np.float32)), a + b * a[:, ::-1]


def short_vectors():
    """Indices and values of several lanes."""

    @T.prim_func
    def main(A: T.Tensor((64, 4), "float32"), C: T.Tensor((4, 64), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            own = T.alloc_local((4,), "float32")
            own[T.Ramp(0, 1, 4)] = A[tx, T.Ramp(0, 1, 4)] * 2.0 + T.Broadcast(1.0, 4)
            C[T.Ramp(0, 1, 4), tx] = own[T.Ramp(3, -1, 4)]

    a = whole(64, 4, dtype="float32")
    return main, (a, np.zeros((4, 64), np.float32)), 2 * a[:, ::-1].T + 1


PROGRAMS += [pointers, short_vectors]


def dealt_tiles(rows=7, columns=5, workers=3, width=2, column_major=True, cluster=1):
    """Blocks that stay get tile after tile, each of them once."""

    @T.prim_func
    def main(C: T.Tensor((rows, columns), "int32")):
        with T.Kernel(workers, threads=32) as block:
            tiles = T.PersistentTileScheduler(
                rows, columns, swizzle_size=width, column_major=column_major, cluster_size=cluster, name="tiles"
            )
            tiles.init(block)
            while tiles.valid():
                by, bx = tiles.m_idx, tiles.n_idx
                tiles.next_tile()
                if T.get_thread_binding() == 0:
                    T.atomic_add(C[by, bx], tiles.current_iter)

    order = np.arange(rows * columns) // workers + 1
    walked = np.zeros((rows, columns), np.int32)
    fast, slow = (rows, columns) if column_major else (columns, rows)
    at = [
        (f, first + s) for first in range(0, slow, width) for f in range(fast) for s in range(min(width, slow - first))
    ]
    for (f, s), number in zip(at, order, strict=True):
        walked[(f, s) if column_major else (s, f)] = number
    return main, (np.zeros((rows, columns), np.int32),), walked


def dealt_rows():
    return dealt_tiles(4, 6, 5, 4, column_major=False)


def launched_threads():
    """A kernel of the older form: its dimensions one after the other, buffers declared in it."""

    @T.prim_func
    def main(A: T.Tensor((6, 64), "float32"), C: T.Tensor((6, 64), "float32")):
        bx = T.launch_thread("blockIdx.x", 2)
        by = T.launch_thread("blockIdx.y", 3)
        tx = T.launch_thread("threadIdx.x", 64)
        tile = T.decl_buffer((64,), "float32", scope="shared")
        flipped = T.decl_buffer((8, 8), "float32", data=tile)
        tile[tx] = A[by * 2 + bx, tx]
        T.sync_threads()
        C[by * 2 + bx, tx] = flipped[tx % 8, tx // 8]

    a = whole(6, 64, dtype="float32")
    return main, (a, np.zeros((6, 64), np.float32)), a.reshape(6, 8, 8).transpose(0, 2, 1).reshape(6, 64)


def launched_in_with():
    """Two kernels of the older form, each in a ``with`` of its own."""

    @T.prim_func
    def main(A: T.Tensor((100,), "float32"), C: T.Tensor((100,), "float32")):
        with T.launch_thread("blockIdx.x", 2) as bx, T.launch_thread("threadIdx.x", 64) as tx:
            if bx * 64 + tx < 100:
                C[bx * 64 + tx] = A[bx * 64 + tx] * 2.0
        with T.launch_thread("threadIdx.x", 100) as tx:
            C[tx] += 1.0

    a = whole(100, dtype="float32")
    return main, (a, np.zeros(100, np.float32)), a * 2 + 1


@T.meta_class
class Counter:
    """Methods that speak of the program."""

    def __init__(self) -> None:
        self.total = T.alloc_var("int32", init=0)

    def add(self, x: Any) -> None:
        if x % 2 == 1:
            self.total[0] = self.total[0] + x


def bits_and_older_numbers():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            odd = Counter()
            odd.add(tx)
            odd.add(A[tx] // 2 % 2)
            bits = T.clz(A[tx]) * 100 + T.__ffs(A[tx])
            C[tx] = T.ieee_fmaf(B[tx], 2.0, 0.5, "rn") + T.nearbyint(B[tx]) + T.cast(bits + odd.total, "float32")

    a = whole(64, dtype="int32", low=-(2**31), high=2**31)
    a[:4] = 0, 1, -1, 1 << 30
    b = whole(64, dtype="float32")
    clz = np.array([32 - int(x).bit_length() for x in a.view(np.uint32)])
    tx = np.arange(64)
    ffs = np.array([(int(x) & -int(x)).bit_length() for x in a])
    return (
        main,
        (a, b, np.zeros(64, np.float32)),
        b * 2 + 0.5 + np.round(b) + clz * 100 + ffs + tx * (tx % 2) + (a // 2 % 2),
    )


PROGRAMS += [dealt_tiles, dealt_rows, launched_threads, launched_in_with, bits_and_older_numbers]


def copied_by_layout():
    """A copy whose threads the author places: row i by thread i."""

    @T.prim_func
    def main(A: T.Tensor((64, 8), "float32"), C: T.Tensor((64, 8), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((64, 8), "float32")
            T.copy(A, tile, loop_layout=T.Fragment((64, 8), lambda i, j: (i, j)))
            T.copy(tile, C, loop_layout=T.Fragment((64, 8), lambda i, j: (i, j)))

    a = whole(64, 8, dtype="float32")
    return main, (a, np.zeros((64, 8), np.float32)), a


def laid_out_by_author(threads=64):
    """A fragment and a loop whose places the author says; half of the threads have copies."""

    @T.prim_func
    def main(A: T.Tensor((32, 8), "float32"), C: T.Tensor((32, 8), "float32")):
        with T.Kernel(1, threads=threads):
            rows = T.alloc_fragment((32, 8), "float32")
            T.annotate_layout({rows: T.Fragment((32, 8), lambda i, j: (i, j))})
            T.copy(A, rows)
            for i, j in T.Parallel(32, 8, loop_layout=T.Fragment((32, 8), lambda i, j: (i, j))):
                rows[i, j] = rows[i, j] * 2.0
            T.copy(rows, C)

    a = whole(32, 8, dtype="float32")
    return main, (a, np.zeros((32, 8), np.float32)), a * 2


PROGRAMS += [copied_by_layout, laid_out_by_author]


def grouped_by_pointers(dtype="float16", groups=3, block=(32, 32, 32), stages=2, **options):
    """Products of arrays that lie anywhere, each with as many rows as it has; a block finds its own in tables."""
    M, N, K = 70, 64, 96
    BM, BN, BK = block
    sizes = [33, 70, 5][:groups]

    @T.prim_func
    def main(
        A: T.Tensor((groups,), T.ptr), B: T.Tensor[(groups,), T.ptr], rows: T.Tensor((groups,), "int32"),
        C: T.Tensor((groups,), T.ptr), out: T.Tensor((1,), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), groups, threads=128, **options) as (bx, by, g):
            a = T.make_tensor(A[g], (rows[g], K), dtype)
            b = T.make_tensor(B[g], (K, N), dtype)
            c = T.make_tensor_from_addr(C[g], (rows[g], N), "float32")
            a_tile = T.alloc_shared((BM, BK), dtype)
            b_tile = T.alloc_shared((BK, BN), dtype)
            total = T.alloc_fragment((BM, BN), "float32")
            T.clear(total)
            if by * BM < rows[g]:
                for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
                    T.copy(a[by * BM, k * BK], a_tile)
                    T.copy(b[k * BK, bx * BN], b_tile)
                    T.gemm(a_tile, b_tile, total)
                T.copy(total, c[by * BM, bx * BN])

    a, b = [whole(m, K, dtype=dtype) for m in sizes], [whole(K, N, dtype=dtype) for _ in sizes]
    c = [np.full((m, N), np.nan, np.float32) for m in sizes]
    return (
        main,
        (a, b, np.array(sizes, np.int32), c, np.zeros(1, np.float32)),
        [x.astype(float) @ y for x, y in zip(a, b)],
    )


def greatest_of_products():
    """Where a row of a product is greatest, a column least: of equal ones the first.  The gemm is not waited for, its author says."""

    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16"), B: T.Tensor((32, 48), "float16"), C: T.Tensor((64 + 48,), "int64")):
        with T.Kernel(threads=128):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 48), "float16")
            c = T.alloc_fragment((64, 48), "float32")
            rows = T.alloc_fragment((64,), "int64")
            columns = T.alloc_fragment((1, 48), "int32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True, wg_wait=-1)
            T.wait_wgmma(0)
            T.reduce_argmax(c, rows, dim=1)
            T.reduce_argmin(c, columns, dim=0)
            T.copy(rows, C[0:64])
            for j in T.Parallel(48):
                C[64 + j] = columns[0, j]

    a, b = whole(64, 32, low=-2, high=3), whole(32, 48, low=-2, high=3)
    c = a.astype(float) @ b.astype(float)
    return main, (a, b, np.zeros(112, np.int64)), np.concatenate([c.argmax(1), c.argmin(0)])


def places_of_nan(threads=64):
    """NaN is before all numbers, the first of several; what is as small as the beginning of a search is a number."""

    @T.prim_func
    def main(A: T.Tensor((7, 5), "float32"), C: T.Tensor((7,), "int32")):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((7, 5), "float32")
            at = T.alloc_shared((7,), "int32")
            T.copy(A, a)
            T.reduce_argmax(a, at)
            T.copy(at, C)

    a = whole(7, 5, dtype="float32")
    a[0], a[1, 2:4], a[2], a[3, 4] = -np.inf, np.nan, np.nan, np.inf
    return main, (a, np.zeros(7, np.int32)), a.argmax(1)


def single_elements():
    """Elements copied one by one, by threads and in a parallel loop; a number of half precision; a tensor in another shape."""

    @T.prim_func
    def main(
        A: T.Tensor((8, 16), "float32"), at: T.Tensor((128,), "int64"), by: T.float16, C: T.Tensor((128,), "float16")
    ):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            place = T.alloc_local([1], "int32")
            line = T.Tensor((128,), "float32", A.data)
            T.copy(at[tx], place[0])
            C[tx] = line[place[0]] * by
            for i in T.Parallel(4):
                T.copy(A[0, i], C[i])

    a, at = whole(8, 16, dtype="float32"), RNG.permutation(128)
    expected = a.reshape(-1)[at] * 1.5
    expected[:4] = a[0, :4]
    return main, (a, at, 1.5, np.zeros(128, np.float16)), expected


PROGRAMS += [greatest_of_products, places_of_nan, single_elements]


def elements_of_fragments():
    """Single elements of tiles that lie in many threads: summed, moved, found by each thread for itself; and a tile of no block's work."""

    @T.prim_func
    def main(A: T.Tensor((3, 64), "float32"), C: T.Tensor((3, 64), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            row = T.alloc_fragment((64,), "float32")
            counts = T.alloc_fragment((2, 2), "float32")
            T.clear(counts)
            for k in T.serial(3):
                T.copy(A[k, :], row)
                total = T.alloc_var("float32", 0.0)
                for i in T.serial(8):
                    total += row[i * 8]
                if row[k] > 0:
                    for i in T.Parallel(64):
                        row[i] += total
                row[5] = row[5] + 1.0
                for i in T.serial(3):
                    row[7 + i] = row[8 + i] * 2.0
                counts[k // 2, k % 2] = counts[0, 0] + total
                if tx < 32:
                    C[k, tx] = row[63 - tx]
                else:
                    C[k, tx] = row[tx] + counts[k // 2, k % 2]

    a = whole(3, 64, dtype="float32")
    a[:2, :2] = 1, -1
    expected, counts = np.zeros((3, 64)), []
    for k, row in enumerate(a.astype(float)):
        total = row[::8].sum()
        row = row + total * (row[k] > 0)
        row[5] += 1
        for i in range(3):
            row[7 + i] = row[8 + i] * 2
        counts.append(total + (counts[0] if counts else 0))
        expected[k] = np.concatenate([row[::-1][:32], row[32:] + counts[-1]])
    return main, (a, np.zeros((3, 64), np.float32)), expected


PROGRAMS += [elements_of_fragments]


def asked_tiles():
    """Whether any or every element of a tile is not zero: in every memory, of parts, in conditions of branches, loops and elements."""

    @T.prim_func
    def main(M: T.Tensor((6, 40), "float16"), B: T.Tensor((6, 4, 8), "bool"), Y: T.Tensor((6, 7), "int32")):
        with T.Kernel(6, threads=64) as r:
            row = T.alloc_shared((40,), "float16")
            spread = T.alloc_fragment((40,), "float16")
            bits = T.alloc_fragment((4, 8), "bool")
            own = T.alloc_local((3,), "int32")
            n = T.alloc_var("int32", 0)
            T.copy(M[r, 0:40], row)
            T.copy(row, spread)
            T.copy(B[r, 0, 0], bits)
            for i in T.serial(3):
                own[i] = r - i
            Y[r, 0] = T.cast(T.any_of(row), "int32") + 2 * T.cast(T.all_of(row[3:9]), "int32")
            if T.any_of(spread) and not T.all_of(spread):
                Y[r, 1] = 1
            else:
                Y[r, 1] = 0
            Y[r, 2] = T.cast(T.all_of(bits), "int32") + 2 * T.cast(T.any_of(bits[1:3, :]), "int32")
            Y[r, 3] = T.cast(T.any_of(B[r, 2, 0:8]), "int32")
            Y[r, 4] = T.cast(T.all_of(own), "int32")
            while T.any_of(row[n : n + 2]) and n < 30:
                n += 1
            Y[r, 5] = n
            for i in T.Parallel(1):
                Y[r, 6 + i] = T.if_then_else(T.any_of(row[0:4]), 5, 6)

    m = whole(6, 40, low=0, high=3)
    m[1], m[2] = 0, 1
    b = RNG.random((6, 4, 8)) < 0.9
    b[0], b[3] = True, False
    runs = [next((n for n in range(30) if not row[n : n + 2].any()), 30) for row in m]
    expected = np.stack([
        m.any(1) + 2 * m[:, 3:9].all(1), m.any(1) & ~m.all(1), b.all((1, 2)) + 2 * b[:, 1:3].any((1, 2)), b[:, 2].any(1),
        np.arange(6) > 2, runs, np.where(m[:, :4].any(1), 5, 6),
    ], 1)  # fmt: skip
    return main, (m, b, np.zeros((6, 7), np.int32)), expected


PROGRAMS += [asked_tiles]
