"""Programs as users of TileLang write them, by the shapes of its examples: interpreted, on this machine, emulated."""

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.passes.tile.layouts.separate_views import FragmentReinterpreted

RNG = np.random.default_rng(11)


def normal(*shape, dtype=np.float16):
    return RNG.standard_normal(shape).astype(dtype)


def product_of_a_row(block_N=4, slices=32, vector=8):
    """A matrix times a row: every thread has its own sum, the block adds them in shared memory."""
    N, K = 50, 512

    @T.prim_func
    def main(A: T.Tensor((K,), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), threads=(block_N, slices)) as block:
            row, part = T.get_thread_binding(0), T.get_thread_binding(1)
            A_local = T.alloc_local((vector,), "float16")
            B_local = T.alloc_local((vector,), "float16")
            partial = T.alloc_local((1,), "float32")
            sums = T.alloc_shared((block_N, slices), "float32")
            T.clear(partial)
            for k in T.serial(T.ceildiv(K, slices * vector)):
                for v in T.vectorized(vector):
                    A_local[v] = A[(k * slices + part) * vector + v]
                    B_local[v] = B[block * block_N + row, (k * slices + part) * vector + v]
                for v in T.serial(vector):
                    partial[0] += A_local[v].astype("float32") * B_local[v].astype("float32")
            sums[row, part] = partial[0]
            T.sync_threads()
            if part == 0:
                total = T.alloc_var("float32", 0.0)
                for s in T.serial(slices):
                    total += sums[row, s]
                C[block * block_N + row] = total

    a, b = normal(K), normal(N, K)
    return main, (a, b, np.full(N, np.nan, np.float32)), b.astype(float) @ a.astype(float), 1e-4


def copies_of_own_tiles():
    """Tile operators on a thread's own memory, to and from tensors."""

    @T.prim_func
    def main(A: T.Tensor((32, 4), "float32"), C: T.Tensor((32, 4), "float32")):
        with T.Kernel(1, threads=32):
            thread = T.get_thread_binding(0)
            own = T.alloc_local((4,), "float32")
            other = T.alloc_local((4,), "float32")
            T.copy(A[thread, 0:4], own)
            T.fill(other, 2.0)
            for i in T.Parallel(4):
                other[i] += own[i]
            T.copy(other, C[thread, 0:4])

    a = normal(32, 4, dtype=np.float32)
    return main, (a, np.full((32, 4), np.nan, np.float32)), (a + np.float32(2)).astype(float), 0.0


def split_sums(block=32, splits=4):
    """K divided among blocks, which add to C."""
    M, N, K = 70, 50, 256

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), splits, threads=128) as (bx, by, bz):
            A_shared = T.alloc_shared((block, block), "float16")
            B_shared = T.alloc_shared((block, block), "float16")
            C_local = T.alloc_fragment((block, block), "float32")
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K // splits, block), num_stages=2):
                T.copy(A[by * block, bz * (K // splits) + k * block], A_shared)
                T.copy(B[bz * (K // splits) + k * block, bx * block], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            for i, j in T.Parallel(block, block):
                T.atomic_add(C[by * block + i, bx * block + j], C_local[i, j])

    a, b = normal(M, K), normal(K, N)
    return main, (a, b, np.zeros((M, N), np.float32)), a.astype(float) @ b.astype(float), 1e-4


def decoded_weight(block=32, block_K=64):
    """Nibbles decoded in a fragment, multiplied from a swizzled tile."""
    M, N, K = 40, 96, 256

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K // 2), "uint8"),
        scales: T.Tensor((N, K // 32), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block, block_K), "float16")
            B_shared = T.alloc_shared((block, block_K // 2), "uint8")
            B_local = T.alloc_fragment((block, block_K // 2), "uint8")
            decoded = T.alloc_fragment((block, block_K), "float16")
            decoded_shared = T.alloc_shared((block, block_K), "float16")
            C_local = T.alloc_fragment((block, block), "float32")
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[by * block, k * block_K], A_shared)
                T.copy(B[bx * block, k * block_K // 2], B_shared)
                T.copy(B_shared, B_local)
                for i, j in T.Parallel(block, block_K):
                    code = (B_local[i, j // 2] >> T.cast(j % 2 * 4, "uint8")) & 15
                    decoded[i, j] = (code.astype("float16") - 8.0) * scales[bx * block + i, (k * block_K + j) // 32]
                T.copy(decoded, decoded_shared)
                T.gemm(A_shared, decoded_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block, bx * block])

    a, codes, s = (
        normal(M, K),
        RNG.integers(0, 256, (N, K // 2)).astype(np.uint8),
        RNG.random((N, K // 32)).astype(np.float16),
    )
    weight = (np.stack([codes & 15, codes >> 4], -1).reshape(N, K).astype(np.float16) - np.float16(8)) * np.repeat(
        s, 32, 1
    )
    return main, (a, codes, s, np.full((M, N), np.nan, np.float32)), a.astype(float) @ weight.astype(float).T, 1e-2


def ragged_groups(block=32):
    """Rows in groups of sizes known at run time, a matrix a group."""
    K, N, sizes = 96, 50, np.array([5, 40, 0, 33], np.int32)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    rows = T.dynamic("rows")

    @T.prim_func
    def main(
        A: T.Tensor((rows, K), "bfloat16"),
        B: T.Tensor((4, K, N), "bfloat16"),
        sizes: T.Tensor((4,), "int32"),
        starts: T.Tensor((4,), "int32"),
        C: T.Tensor((rows, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(rows, block), 4, threads=128) as (bx, by, group):
            A_shared = T.alloc_shared((block, block), "bfloat16")
            B_shared = T.alloc_shared((block, block), "bfloat16")
            C_local = T.alloc_fragment((block, block), "float32")
            size, start = sizes[group], starts[group]
            if by * block < size:
                T.clear(C_local)
                for k in T.Pipelined(T.ceildiv(K, block), num_stages=2):
                    T.copy(A[start + by * block, k * block], A_shared)
                    T.copy(B[group, k * block : (k + 1) * block, bx * block : (bx + 1) * block], B_shared)
                    T.gemm(A_shared, B_shared, C_local)
                for i, j in T.Parallel(block, block):
                    if by * block + i < size and bx * block + j < N:
                        C[start + by * block + i, bx * block + j] = C_local[i, j]

    a, b = normal(sizes.sum(), K, dtype=ml_dtypes.bfloat16), normal(4, K, N, dtype=ml_dtypes.bfloat16)
    parts = [a[s : s + n].astype(float) @ b[g].astype(float) for g, (s, n) in enumerate(zip(starts, sizes))]
    return main, (a, b, sizes, starts, np.full((len(a), N), np.nan, np.float32)), np.concatenate(parts), 1e-4


def few_heads():
    """As below; 16 heads are one row of matrix instructions, so warps share columns and exchange the weights."""
    return two_kernels(H=16)


def two_kernels(H=64, splits=3, block=32):
    """Attention of one query a head: parts of the keys by the first kernel, put together by the second."""
    B, S, D = 1, 100, 64
    part = -(-S // splits)

    @T.prim_func
    def main(
        Q: T.Tensor((B, H, D), "float16"),
        K: T.Tensor((B, S, D), "float16"),
        V: T.Tensor((B, S, D), "float16"),
        sums: T.Tensor((B, H, splits), "float32"),
        parts: T.Tensor((B, H, splits, D), "float32"),
        Output: T.Tensor((B, H, D), "float32"),
    ):
        with T.Kernel(B, splits, threads=128) as (b, z):
            Q_shared = T.alloc_shared((H, D), "float16")
            K_shared = T.alloc_shared((block, D), "float16")
            V_shared = T.alloc_shared((block, D), "float16")
            scores = T.alloc_fragment((H, block), "float32")
            weights = T.alloc_fragment((H, block), "float16")
            result = T.alloc_fragment((H, D), "float32")
            largest = T.alloc_fragment((H,), "float32")
            before = T.alloc_fragment((H,), "float32")
            total = T.alloc_fragment((H,), "float32")
            tile_sum = T.alloc_fragment((H,), "float32")
            T.copy(Q[b, :, :], Q_shared)
            T.fill(largest, -T.infinity("float32"))
            T.clear(total)
            T.clear(result)
            for n in T.Pipelined(T.ceildiv(part, block), num_stages=2):
                T.copy(K[b, z * part + n * block : z * part + (n + 1) * block, :], K_shared)
                T.copy(V[b, z * part + n * block : z * part + (n + 1) * block, :], V_shared)
                T.gemm(Q_shared, K_shared, scores, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(H, block):
                    inside = n * block + j < part and z * part + n * block + j < S
                    scores[i, j] = T.if_then_else(inside, scores[i, j], -T.infinity("float32"))
                T.copy(largest, before)
                T.reduce_max(scores, largest, dim=1, clear=False)
                for i, j in T.Parallel(H, block):
                    scores[i, j] = T.exp(scores[i, j] - largest[i])
                T.reduce_sum(scores, tile_sum, dim=1)
                for i in T.Parallel(H):
                    total[i] = total[i] * T.exp(before[i] - largest[i]) + tile_sum[i]
                for i, j in T.Parallel(H, D):
                    result[i, j] *= T.exp(before[i] - largest[i])
                T.copy(scores, weights)
                T.gemm(weights, V_shared, result, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(H, D):
                parts[b, i, z, j] = result[i, j] / total[i]
            for i in T.Parallel(H):
                sums[b, i, z] = T.log(total[i]) + largest[i]
        with T.Kernel(H, B, threads=128) as (h, b):
            largest_sum = T.alloc_var("float32")
            whole = T.alloc_var("float32")
            combined = T.alloc_fragment((D,), "float32")
            T.clear(combined)
            largest_sum = -T.infinity("float32")
            for z in T.serial(splits):
                largest_sum = T.max(largest_sum, sums[b, h, z])
            whole = 0.0
            for z in T.serial(splits):
                whole += T.exp(sums[b, h, z] - largest_sum)
            for z in T.serial(splits):
                for j in T.Parallel(D):
                    combined[j] += parts[b, h, z, j] * T.exp(sums[b, h, z] - largest_sum) / whole
            for j in T.Parallel(D):
                Output[b, h, j] = combined[j]

    q, k, v = normal(B, H, D) * np.float16(0.3), normal(B, S, D), normal(B, S, D)
    scores = np.einsum("bhd,bsd->bhs", q.astype(float), k.astype(float))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhs,bsd->bhd", weights / weights.sum(-1, keepdims=True), v.astype(float))
    empty = [np.full(shape, np.nan, np.float32) for shape in ((B, H, splits), (B, H, splits, D), (B, H, D))]
    return main, (q, k, v, *empty), expected, 2e-3


def reshaped_accumulator():
    """An accumulator seen in other shapes: its elements are in registers of many threads."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        flat: T.Tensor((4096,), "float32"),
        sums: T.Tensor((32,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((64, 64), "float16")
            B_shared = T.alloc_shared((64, 64), "float16")
            product = T.alloc_fragment((64, 64), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.copy(A, A_shared)
            T.copy(B, B_shared)
            T.clear(product)
            T.gemm(A_shared, B_shared, product)
            line = T.reshape(product, (4096,))
            for i in T.Parallel(4096):
                line[i] = line[i] * 2
                flat[i] = line[i]
            T.reduce_sum(T.reshape(product, (32, 128)), total, dim=1)
            T.copy(total, sums)

    a, b = (RNG.integers(-3, 4, (64, 64)).astype(np.float16) for _ in range(2))
    expected = (2 * (a.astype(float) @ b.astype(float))).reshape(32, 128).sum(1)
    return main, (a, b, np.full(4096, np.nan, np.float32), np.full(32, np.nan, np.float32)), expected, 0.0


PROGRAMS = [
    product_of_a_row,
    copies_of_own_tiles,
    split_sums,
    decoded_weight,
    ragged_groups,
    two_kernels,
    few_heads,
    reshaped_accumulator,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("how", ["interpreter", "cpu", "cuda -arch=sm_80", "cuda -arch=sm_90a"])
def test_program(program, how):
    function, arguments, expected, tolerance = program()
    kernel = tilewright.compile(function, target=how if how.startswith("cuda") else "cpu")
    run = {"interpreter": kernel.interpret, "cpu": kernel}.get(how, kernel.emulate)
    run(*arguments)
    assert np.abs(arguments[-1] - expected).max() <= tolerance


def test_a_fragment_of_other_elements_has_no_registers():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((128,), "float16")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_fragment((64,), "float32")
            T.copy(A, tile)
            T.copy(T.view(tile, (128,), "float16"), B)

    with pytest.raises(FragmentReinterpreted) as error:
        tilewright.compile(main, target="cuda -arch=sm_80")
    assert str(error.value).splitlines()[0] == (
        "'tile_view' sees the fragment 'tile' as elements of another size, which lie in registers of several threads"
    )


def test_vector_loops_of_threads_move_vectors():
    text = tilewright.compile(product_of_a_row()[0], target="cuda -arch=sm_80").get_kernel_source()
    assert text.count("tw::load_fragment<8>") == 2
