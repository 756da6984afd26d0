"""Programs whose authors order threads and copies themselves, as users of TileLang write them, and mistakes in them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import tilewright.language as T

RNG = np.random.default_rng(5)


def whole(*shape: int, dtype: str = "float16") -> np.ndarray:
    """Small integers: sums are exact in any order."""
    return RNG.integers(-3, 4, shape).astype(dtype)


def product(M: int, N: int, K: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    a, b = whole(M, K), whole(N, K)
    return (a, b, np.full((M, N), np.nan, np.float16)), a.astype(float) @ b.astype(float).T


def warp_groups(
    M=100, N=136, K=320, block=(128, 64, 64), stages=3, consumers=2, in_flight=1, elect=True, registers=(40, 232),
    wrong="", blocks=1,
):  # fmt: skip
    """A producer warpgroup feeds others by the copy engine; the next product starts before the last one is waited for.

    wrong : the mistake to make: ``"arrive"`` (slots are never given back), ``"parity"``, ``"count"``, ``"bytes"``.
    """
    BM, BN, BK = block
    steps = -(-K // BK)
    arrivals = consumers if elect else consumers * 128

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128 * (consumers + 1)) as (bx, by):
            T.annotate_min_blocks_per_sm(blocks)
            A_shared = T.alloc_shared((stages, BM, BK), "float16")
            B_shared = T.alloc_shared((stages, BN, BK), "float16")
            C_local = T.alloc_fragment((BM, BN), "float32")
            full = T.alloc_barrier([128] * stages)
            empty = T.alloc_barrier([1 if wrong == "count" else arrivals] * stages)
            with T.ws(*range(consumers)):
                if registers:
                    T.set_max_nreg(registers[1], 1)
                T.clear(C_local)
                for k in T.serial(steps):
                    T.mbarrier_wait_parity(full[k % stages], k // stages % 2)
                    T.wgmma_gemm(A_shared[k % stages, :, :], B_shared[k % stages, :, :], C_local, transpose_B=True)
                    T.wait_wgmma(in_flight)
                    if wrong != "arrive" and k >= in_flight and (not elect or T.shuffle_elect(128)):
                        T.mbarrier_arrive(empty[(k - in_flight) % stages])
                T.wait_wgmma(0)
                T.copy(C_local, C[by * BM, bx * BN])
            with T.ws(consumers):
                if registers:
                    T.set_max_nreg(registers[0], 0)
                for k in T.serial(steps):
                    T.mbarrier_wait_parity(empty[k % stages], k // stages % 2 ^ (0 if wrong == "parity" else 1))
                    if wrong == "bytes" and T.shuffle_elect(128):
                        T.mbarrier_expect_tx(full[k % stages], 2 * BK * BM)
                    T.tma_copy(A[by * BM, k * BK], A_shared[k % stages, :, :], barrier=full[k % stages])
                    T.tma_copy(B[bx * BN, k * BK], B_shared[k % stages, :, :], barrier=full[k % stages])
                    T.mbarrier_arrive(full[k % stages])

    return main, *product(M, N, K)


def conditions(M=70, N=136, K=200, stages=2):
    """Conditions on the thread's index; one warp loads, phases count in a scalar, the tile is allocated before they part."""
    BM, BN, BK = 64, 64, 64

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
            A_shared = T.alloc_shared((stages, BM, BK), "float16")
            B_shared = T.alloc_shared((stages, BN, BK), "float16")
            C_local = T.alloc_fragment((BM, BN), "float32")
            loaded = T.alloc_barrier([32] * stages)
            consumed = T.alloc_barrier([1] * stages)
            phase = T.alloc_var("int32", 0)
            slot = T.alloc_var("int32", 0)
            T.clear(C_local)
            tx = T.get_thread_binding()
            if tx < 128:
                for _ in T.serial(T.ceildiv(K, BK)):
                    T.barrier_wait(loaded[slot], phase)
                    T.gemm(A_shared[slot, :, :], B_shared[slot, :, :], C_local, transpose_B=True)
                    if tx == 0:
                        T.barrier_arrive(consumed[slot])
                    slot = (slot + 1) % stages
                    if slot == 0:
                        phase = phase ^ 1
                T.copy(C_local, C[by * BM, bx * BN])
            elif tx < 160:
                for k in T.serial(T.ceildiv(K, BK)):
                    T.barrier_wait(consumed[slot], phase ^ 1)
                    T.tma_copy(A[by * BM, k * BK], A_shared[slot, :, :], barrier=loaded[slot])
                    T.tma_copy(B[bx * BN, k * BK], B_shared[slot, :, :], barrier=loaded[slot])
                    T.barrier_arrive(loaded[slot])
                    slot = (slot + 1) % stages
                    if slot == 0:
                        phase = phase ^ 1

    return main, *product(M, N, K)


def cluster(M=200, N=130, K=200, stages=2, eviction="evict_last"):
    """Two blocks share the tile of B, which one of them loads for both; slots are given back across the cluster."""
    BM, BN, BK, blocks = 64, 64, 64, 2
    rows = -(-M // (BM * blocks)) * blocks
    N = -(-N // 8) * 8

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(rows, T.ceildiv(N, BN), threads=256, cluster_dims=blocks) as (by, bx):
            A_shared = T.alloc_shared((stages, BM, BK), "float16")
            B_shared = T.alloc_shared((stages, BN, BK), "float16")
            full = T.alloc_cluster_barrier([128] * stages)
            empty = T.alloc_cluster_barrier([blocks] * stages)
            with T.ws(0):
                C_local = T.alloc_fragment((BM, BN), "float32")
                T.clear(C_local)
                for k in T.serial(T.ceildiv(K, BK)):
                    T.mbarrier_wait_parity(full[k % stages], k // stages % 2)
                    T.wgmma_gemm(A_shared[k % stages, :, :], B_shared[k % stages, :, :], C_local, transpose_B=True)
                    T.wait_wgmma(0)
                    if T.shuffle_elect(128):
                        for block in T.serial(blocks):
                            T.mbarrier_arrive(empty[k % stages], block)
                T.copy(C_local, C[by * BM, bx * BN])
            with T.ws(1):
                for k in T.serial(T.ceildiv(K, BK)):
                    T.mbarrier_wait_parity(empty[k % stages], k // stages % 2 ^ 1)
                    T.tma_copy(A[by * BM, k * BK], A_shared[k % stages, :, :], barrier=full[k % stages])
                    T.tma_copy(
                        B[bx * BN, k * BK], B_shared[k % stages, :, :], barrier=full[k % stages], cluster_mask=0b11,
                        eviction_policy=eviction,
                    )  # fmt: skip
                    T.mbarrier_arrive(full[k % stages])
            T.cluster_sync()

    return main, *product(M, N, K)


def engine_stores(M=100, N=136, fence=True):
    """Tiles come and go by the copy engine, and change in between; two stores are on their way at a time."""
    rows, columns = 32, 64

    @T.prim_func
    def main(A: T.Tensor((M, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as block:
            tile = T.alloc_shared((2, rows, columns), "float16")
            ready = T.alloc_barrier([128, 128])
            for j in T.serial(T.ceildiv(N, columns)):
                T.tma_store_wait(1)
                T.sync_threads()
                T.tma_copy(A[block * rows, j * columns], tile[j % 2, :, :], barrier=ready[j % 2])
                T.mbarrier_arrive(ready[j % 2])
                T.mbarrier_wait_parity(ready[j % 2], j // 2 % 2)
                for i, k in T.Parallel(rows, columns):
                    tile[j % 2, i, k] = tile[j % 2, i, k] * 2 + 1
                T.fence_proxy_async()
                T.sync_threads()
                T.tma_copy(tile[j % 2, :, :], C[block * rows, j * columns])
            T.tma_store_wait(0, False)

    a = whole(M, N)
    return main, (a, np.full((M, N), np.nan, np.float16)), 2 * a.astype(float) + 1


def rows_of_bytes(N=1024, part=256):
    """Bytes in one piece, loaded and stored."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(N // part, threads=64) as block:
            tile = T.alloc_shared((part,), "float32")
            ready = T.alloc_barrier(64)
            T.tma_copy(A[block * part], tile, barrier=ready)
            T.mbarrier_arrive(ready)
            T.mbarrier_wait_parity(ready, 0)
            for i in T.Parallel(part):
                tile[i] = tile[i] + 1.0
            T.tma_copy(tile, C[block * part])
            T.tma_store_wait()

    a = whole(N, dtype="float32")
    return main, (a, np.full(N, np.nan, np.float32)), a + 1.0


def thread_copies(M=96, N=64, K=128, block=32):
    """cp.async copies a tile ahead, waited for by hand."""

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
            A_shared = T.alloc_shared((2, block, block), "float16")
            B_shared = T.alloc_shared((2, block, block), "float16")
            C_local = T.alloc_fragment((block, block), "float32")
            T.clear(C_local)
            T.async_copy(A[by * block, 0], A_shared[0, :, :])
            T.async_copy(B[bx * block, 0], B_shared[0, :, :])
            for k in T.serial(K // block):
                if k + 1 < K // block:
                    T.async_copy(A[by * block, (k + 1) * block], A_shared[(k + 1) % 2, :, :])
                    T.async_copy(B[bx * block, (k + 1) * block], B_shared[(k + 1) % 2, :, :])
                    T.ptx_wait_group(2)
                else:
                    T.ptx_wait_group(0)
                T.sync_threads()
                T.gemm(A_shared[k % 2, :, :], B_shared[k % 2, :, :], C_local, transpose_B=True)
                T.sync_threads()
            T.copy(C_local, C[by * block, bx * block])

    return main, *product(M, N, K)


def own_pieces(N=512, last=300):
    """Each thread copies pieces of its own by cp.async, zeros beyond the end, and arrives when they have landed."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((N,), "float32")
            landed = T.alloc_barrier(128)
            tx = T.get_thread_binding()
            with T.ws(1):
                T.ptx_cp_async(tile[(tx - 128) * 4], A[(tx - 128) * 4], 4, (tx - 128) * 4 < last)
                T.cp_async_barrier_noinc(landed)
            with T.ws(0):
                T.mbarrier_wait_parity(landed, 0)
                for i in T.serial(4):
                    C[i * 128 + tx] = tile[i * 128 + tx]

    a = whole(N, dtype="float32")
    return main, (a, np.full(N, np.nan, np.float32)), np.where(np.arange(N) < last, a, 0)


def committed_pieces(rows=40, slots=2):
    """A ring that half of the block fills by cp.async in groups that nobody waits for: each slot's barrier has their arrivals."""

    @T.prim_func
    def main(A: T.Tensor((rows, 512), "float32"), C: T.Tensor((rows, 512), "float32")):
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((slots, 512), "float32")
            full, empty = T.alloc_barrier([256] * slots), T.alloc_barrier([128] * slots)
            tx = T.get_thread_binding()
            with T.ws(1):
                for k in T.serial(rows):
                    T.mbarrier_wait_parity(empty[k % slots], k // slots % 2 ^ 1)
                    T.async_copy(A[k, 0:512], tile[k % slots, :])
                    T.cp_async_barrier_noinc(full[k % slots])
                    T.mbarrier_arrive(full[k % slots])
            with T.ws(0):
                for k in T.serial(rows):
                    T.mbarrier_wait_parity(full[k % slots], k // slots % 2)
                    for i in T.serial(4):
                        C[k, i * 128 + tx] = tile[k % slots, i * 128 + tx]
                    T.mbarrier_arrive(empty[k % slots])

    a = whole(rows, 512, dtype="float32")
    return main, (a, np.full((rows, 512), np.nan, np.float32)), a


def consumers_apart(M=100, N=136, K=192, block=(128, 128, 64), stages=2):
    """Each of two consumers is a block of its own in the text, with half of the rows, which leave side by side."""
    BM, BN, BK = block
    half = BM // 2

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=384) as (bx, by):
            a = T.alloc_shared((stages, BM, BK), "float16")
            b = T.alloc_shared((stages, BN, BK), "float16")
            c = T.alloc_fragment((half, BN), "float32")
            full, empty = T.alloc_barrier([128] * stages), T.alloc_barrier([256] * stages)
            with T.ws(0):
                for k in T.serial(K // BK):
                    T.mbarrier_wait_parity(empty[k % stages], k // stages % 2 ^ 1)
                    T.tma_copy(A[by * BM, k * BK], a[k % stages, :, :], barrier=full[k % stages])
                    T.tma_copy(B[bx * BN, k * BK], b[k % stages, :, :], barrier=full[k % stages])
                    T.mbarrier_arrive(full[k % stages])
            for part in (0, 1):
                with T.ws(part + 1):
                    T.clear(c)
                    for k in T.serial(K // BK):
                        T.mbarrier_wait_parity(full[k % stages], k // stages % 2)
                        own = a[k % stages, part * half : (part + 1) * half, :]
                        T.wgmma_gemm(own, b[k % stages, :, :], c, transpose_B=True)
                        T.wait_wgmma(0)
                        T.mbarrier_arrive(empty[k % stages])
                    T.copy(c, C[by * BM + part * half, bx * BN])

    return main, *product(M, N, K)


def named_barriers(N=256):
    """Half of the block fills a tile and goes on; the other half meets it by number. Warps of each meet among themselves."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((128,), "float32")
            other = T.alloc_shared((128,), "float32")
            tx = T.get_thread_binding()
            with T.ws(0):
                tile[tx] = A[tx] * 2.0
                T.named_barrier_arrive(2, 256)
                other[tx] = A[tx + 128]
                T.sync_threads(3, 128)
                C[tx] = other[127 - tx]
            with T.ws(1):
                T.sync_threads(2, 256)
                C[tx] = tile[255 - tx]

    a = whole(N, dtype="float32")
    return main, (a, np.full(N, np.nan, np.float32)), np.concatenate([a[128:][::-1], 2 * a[:128][::-1]])


def decoded_by_threads(M=64, N=64, K=256, stages=2, fence=True):
    """Threads of the producer decode bytes into tiles that matrix instructions read by descriptor."""
    BK = 64

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "int8"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(1, threads=256):
            A_shared = T.alloc_shared((stages, M, BK), "float16")
            B_shared = T.alloc_shared((stages, N, BK), "float16")
            full = T.alloc_barrier([128] * stages)
            empty = T.alloc_barrier([128] * stages)
            with T.ws(0):
                C_local = T.alloc_fragment((M, N), "float32")
                T.clear(C_local)
                for k in T.serial(K // BK):
                    T.mbarrier_wait_parity(full[k % stages], k // stages % 2)
                    T.wgmma_gemm(A_shared[k % stages, :, :], B_shared[k % stages, :, :], C_local, transpose_B=True)
                    T.wait_wgmma(0)
                    T.mbarrier_arrive(empty[k % stages])
                T.copy(C_local, C)
            with T.ws(1):
                for k in T.serial(K // BK):
                    T.mbarrier_wait_parity(empty[k % stages], k // stages % 2 ^ 1)
                    T.tma_copy(A[0, k * BK], A_shared[k % stages, :, :], barrier=full[k % stages])
                    for i, j in T.Parallel(N, BK):
                        B_shared[k % stages, i, j] = B[i, k * BK + j].astype("float16") - 1.0
                    T.fence_proxy_async()
                    T.mbarrier_arrive(full[k % stages])

    a, b = whole(M, K), whole(N, K, dtype="int8")
    return main, (a, b, np.full((M, N), np.nan, np.float16)), a.astype(float) @ (b.astype(float) - 1).T


def meeting_in_parts(N=256):
    """Blocks of a cluster meet in two parts, and one reads what the other wrote."""

    @T.prim_func
    def main(A: T.Tensor((2, N), "float32"), C: T.Tensor((2, N), "float32")):
        with T.Kernel(2, threads=128, cluster_dims=2) as block:
            tile = T.alloc_shared((N,), "float32")
            other = T.alloc_fragment((N,), "float32")
            rank = T.block_rank_in_cluster()
            T.copy(A[block, :], tile)
            T.cluster_arrive()
            T.cluster_wait()
            T.copy(tile, other, rank=1 - rank)
            T.cluster_sync()
            T.copy(other, C[block, :])

    a = whole(2, N, dtype="float32")
    return main, (a, np.full((2, N), np.nan, np.float32)), a[::-1]


HOPPER: list[Any] = [
    warp_groups, conditions, cluster, engine_stores, rows_of_bytes, own_pieces, decoded_by_threads, meeting_in_parts,
    committed_pieces, consumers_apart,
]  # fmt: skip
"""Programs for machines with a copy engine."""

EVERYWHERE: list[Any] = [thread_copies, named_barriers]


def sent_tiles(N=256):
    """Each block of a cluster sends a tile to the next one, which waits for its bytes."""
    blocks = 4

    @T.prim_func
    def main(A: T.Tensor((8, N), "float32"), C: T.Tensor((8, N), "float32")):
        with T.Kernel(8, threads=128, cluster_dims=blocks) as block:
            tile = T.alloc_shared((N,), "float32")
            got = T.alloc_shared((2, N), "float32")
            arrived = T.alloc_cluster_barrier([1])
            rank = T.block_rank_in_cluster()
            T.copy(A[block, 0], tile)
            T.copy_cluster(tile, got[1, :], dst_block=(rank + 1) % blocks, remote_barrier=arrived)
            T.mbarrier_wait_parity(arrived, 0)
            for i in T.Parallel(N):
                C[block, i] = got[1, i] + 1.0
            T.cluster_sync()

    a = whole(8, N, dtype="float32")
    received = a.reshape(2, 4, N)[:, [3, 0, 1, 2]].reshape(8, N)
    return main, (a, np.full((8, N), np.nan, np.float32)), received + 1


HOPPER.append(sent_tiles)


def loops_around_roles(M=130, N=72, K=320, block=(64, 64, 32), stages=3):
    """The loops, a condition and names stand around the warps' parts; the sums belong to the block, as authors write them."""
    BM, BN, BK = block

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, BN), 2, threads=256) as (bx, half):
            A_shared = T.alloc_shared((stages, BM, BK), "float16")
            B_shared = T.alloc_shared((stages, BN, BK), "float16")
            total = T.alloc_fragment((BM, BN), "float32")
            full, free = T.alloc_barrier([128] * stages), T.alloc_barrier([128] * stages)
            for tile in T.serial(2):
                by = tile * 2 + half
                if by * BM < M:
                    with T.ws(0):
                        T.clear(total)
                    for k in T.serial(K // BK):
                        step = tile * (K // BK) + k
                        with T.ws(1):
                            T.barrier_wait(free[step % stages], step // stages % 2 ^ 1)
                            T.copy(A[by * BM, k * BK], A_shared[step % stages, :, :])
                            T.copy(B[bx * BN, k * BK], B_shared[step % stages, :, :])
                            T.barrier_arrive(full[step % stages])
                        with T.ws(0):
                            T.barrier_wait(full[step % stages], step // stages % 2)
                            T.gemm(
                                A_shared[step % stages, :, :], B_shared[step % stages, :, :], total, transpose_B=True
                            )
                            T.barrier_arrive(free[step % stages])
                    with T.ws(0):
                        T.copy(total, C[by * BM, bx * BN])

    arguments, expected = product(M, N, K)
    return main, arguments, expected


HOPPER.append(loops_around_roles)


def gathered_attention(H=64, D=64, S=192, block=64, asynchronous=True):
    """One warpgroup gathers rows by an index list, one computes weights and half of the result, one the other half."""
    scale = 1.44269504 / D**0.5
    turns = S // block

    @T.prim_func
    def main(
        Q: T.Tensor((H, D), "bfloat16"),
        K: T.Tensor((S, D), "bfloat16"),
        V: T.Tensor((S, 2 * D), "bfloat16"),
        indices: T.Tensor((S,), "int32"),
        O: T.Tensor((H, 2 * D), "float32"),
    ):
        with T.Kernel(1, threads=384):
            Q_s = T.alloc_shared((H, D), "bfloat16")
            K_s = T.alloc_shared((2, block, D), "bfloat16")
            left = T.alloc_shared((2, block, D), "bfloat16")
            right = T.alloc_shared((2, block, D), "bfloat16")
            weights = T.alloc_shared((H, block), "bfloat16")
            alpha_s = T.alloc_shared((H,), "float32")
            total_s = T.alloc_shared((H,), "float32")
            of_left = T.alloc_fragment((H, D), "float32")
            of_right = T.alloc_fragment((H, D), "float32")
            scores = T.alloc_fragment((H, block), "float32")
            total = T.alloc_fragment((H,), "float32")
            total_r = T.alloc_fragment((H,), "float32")
            part = T.alloc_fragment((H,), "float32")
            alpha = T.alloc_fragment((H,), "float32")
            alpha_r = T.alloc_fragment((H,), "float32")
            largest = T.alloc_fragment((H,), "float32")
            before = T.alloc_fragment((H,), "float32")
            loaded = T.alloc_barrier([128, 128])
            free = T.alloc_barrier([256, 256])
            weighed = T.alloc_barrier(128)
            used = T.alloc_barrier(128)
            done = T.alloc_barrier(128)
            tx = T.get_thread_binding()
            T.copy(Q, Q_s)
            if tx < 128:
                T.set_max_nreg(240, 1)
                T.fill(total, 0.0)
                T.fill(largest, -(2.0**30))
                T.fill(of_left, 0.0)
                for i in T.serial(turns):
                    T.barrier_wait(loaded[i % 2], i // 2 % 2)
                    T.gemm(Q_s, K_s[i % 2, :, :], scores, transpose_B=True, clear_accum=True)
                    T.copy(largest, before)
                    T.reduce_max(scores, largest, dim=1, clear=False)
                    for h in T.Parallel(H):
                        alpha[h] = T.exp2((before[h] - largest[h]) * scale)
                    for h, j in T.Parallel(H, block):
                        scores[h, j] = T.exp2((scores[h, j] - largest[h]) * scale)
                    T.reduce_sum(scores, part, dim=1)
                    for h in T.Parallel(H):
                        total[h] = total[h] * alpha[h] + part[h]
                    for h, j in T.Parallel(H, D):
                        of_left[h, j] *= alpha[h]
                    T.barrier_wait(used, i % 2 ^ 1)
                    T.copy(alpha, alpha_s)
                    T.copy(scores, weights)
                    T.fence_proxy_async()
                    T.barrier_arrive(weighed)
                    T.gemm(weights, left[i % 2, :, :], of_left)
                    T.barrier_arrive(free[i % 2])
                T.copy(total, total_s)
                T.barrier_arrive(done)
                for h, j in T.Parallel(H, D):
                    O[h, j] = of_left[h, j] / total[h]
            elif tx < 256:
                T.set_max_nreg(168, 1)
                T.fill(of_right, 0.0)
                for i in T.serial(turns):
                    T.barrier_wait(weighed, i % 2)
                    T.copy(alpha_s, alpha_r)
                    for h, j in T.Parallel(H, D):
                        of_right[h, j] *= alpha_r[h]
                    T.gemm(weights, right[i % 2, :, :], of_right)
                    T.barrier_arrive(used)
                    T.barrier_arrive(free[i % 2])
                T.barrier_wait(done, 0)
                T.copy(total_s, total_r)
                for h, j in T.Parallel(H, D):
                    O[h, D + j] = of_right[h, j] / total_r[h]
            else:
                T.set_max_nreg(80, 0)
                for i in T.serial(turns):
                    T.barrier_wait(free[i % 2], i // 2 % 2 ^ 1)
                    for q in T.serial(block // 16):
                        row = q * 16 + (tx - 256) // 8
                        column = (tx - 256) % 8 * 8
                        at = indices[i * block + row]
                        with T.attr("default", "async_scope" if asynchronous else "none", 1):
                            for v in T.vectorized(8):
                                K_s[i % 2, row, column + v] = K[at, column + v]
                                left[i % 2, row, column + v] = V[at, column + v]
                                right[i % 2, row, column + v] = V[at, D + column + v]
                    if asynchronous:
                        T.cp_async_barrier_noinc(loaded[i % 2])
                    else:
                        T.barrier_arrive(loaded[i % 2])

    q, k, v = (RNG.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((H, D), (S, D), (S, 2 * D)))
    indices = RNG.permutation(S).astype(np.int32)
    scores = q.astype(float) @ k.astype(float)[indices].T / D**0.5
    shares = np.exp(scores - scores.max(1, keepdims=True))
    expected = shares / shares.sum(1, keepdims=True) @ v.astype(float)[indices]
    return main, (q, k, v, indices, np.full((H, 2 * D), np.nan, np.float32)), expected


def gathered_by_stores():
    return gathered_attention(asynchronous=False)


ROUNDED: list[Any] = [gathered_attention, gathered_by_stores]
"""Programs for machines with a copy engine whose results are rounded on the way: to 2**-8 of weights up to 1."""
