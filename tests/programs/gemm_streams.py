"""Products dealt out to blocks that stay: stream-K with a part first, persistent loops, and experts' rows, with their gradient."""

import math

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit
def streamk(M, N, K, sms, BM=32, BN=32, BK=32, dtype="float16", accum="float32"):
    m_blocks, n_blocks, iters = math.ceil(M / BM), math.ceil(N / BN), math.ceil(K / BK)
    tiles = m_blocks * n_blocks
    streamk_tiles = tiles % sms + (sms if tiles - tiles % sms > sms else 0) if tiles % sms else 0
    blocking, total = tiles - streamk_tiles, streamk_tiles * iters
    full, partial = total // sms, total % sms

    @T.macro
    def first_wave(pid, A, B, a, b, C, c):
        start, last = T.alloc_fragment((1,), "int32"), T.alloc_fragment((1,), "int32")
        start[0] = pid * full + T.min(pid, partial)
        last[0] = (pid + 1) * full + T.min(pid + 1, partial)
        while start[0] < last[0]:
            end = T.min(start[0] + (iters - start[0] % iters), last[0])
            tile = start[0] // iters
            rest = start[0] % iters
            pid_m, pid_n = tile // n_blocks, tile % n_blocks
            T.clear(c)
            for k in T.Pipelined(end - start[0], num_stages=1):
                T.copy(A[pid_m * BM, (k + rest) * BK], a)
                T.copy(B[pid_n * BN, (k + rest) * BK], b)
                T.gemm(a, b, c, transpose_B=True)
            if rest == 0 and (end % iters) == 0:
                T.copy(c, C[pid_m * BM, pid_n * BN])
            else:
                for i, j in T.Parallel(BM, BN):
                    T.atomic_add(C[pid_m * BM + i, pid_n * BN + j], c[i, j])
            start[0] = end

    @T.macro
    def rest(pid, A, B, a, b, C, c):
        for p in T.serial(T.ceildiv(blocking - pid, sms)):
            tile = pid + streamk_tiles + p * sms
            pid_m, pid_n = tile // n_blocks, tile % n_blocks
            T.clear(c)
            for k in T.Pipelined(iters, num_stages=0):
                T.copy(A[pid_m * BM, k * BK], a)
                T.copy(B[pid_n * BN, k * BK], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[pid_m * BM, pid_n * BN])

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), accum)):
        with T.Kernel(sms, threads=64) as pid:
            a, b = T.alloc_shared((BM, BK), dtype), T.alloc_shared((BN, BK), dtype)
            c = T.alloc_fragment((BM, BN), accum)
            first_wave(pid, A, B, a, b, C, c)
            if streamk_tiles < tiles:
                rest(pid, A, B, a, b, C, c)

    return main


@tilelang.jit(out_idx=[-1])
def persistent(M, N, K, sms, BM=32, BN=32, BK=32):
    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(sms, threads=64) as (block_id):
            a, b = T.alloc_shared((BM, BK), "float16"), T.alloc_shared((BK, BN), "float16")
            c, c_shared = T.alloc_fragment((BM, BN), "float"), T.alloc_shared((BM, BN), "float16")
            for bx, by in T.Persistent([T.ceildiv(M, BM), T.ceildiv(N, BN)], sms, block_id):
                T.clear(c)
                for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
                    T.copy(A[bx * BM, k * BK], a)
                    T.copy(B[k * BK, by * BN], b)
                    T.gemm(a, b, c)
                T.copy(c, c_shared)
                T.copy(c_shared, C[bx * BM, by * BN])

    return main


@tilelang.jit(out_idx=[2])
def grouped(batch_sizes, K, N, BM=16, BN=32, BK=32, padding=16):
    batch_count, batch_sum = len(batch_sizes), sum(batch_sizes)
    total_m_blocks = sum((size + BM - 1) // BM for size in batch_sizes)

    @T.prim_func
    def kernel(
        A: T.Tensor([batch_sum, K], "float16"), B: T.Tensor([batch_count, K, N], "float16"), C: T.Tensor([batch_sum, N], "float16"),
        sizes: T.Tensor([batch_count], "int32"), offsets: T.Tensor([batch_count], "int32"), padded: T.Tensor([batch_count], "int32"),
    ):  # fmt: skip
        with T.Kernel(total_m_blocks, T.ceildiv(N, BN), threads=64) as (bx, by):
            a, b = T.alloc_shared([BM, BK], "float16"), T.alloc_shared([BK, BN], "float16")
            c = T.alloc_fragment([BM, BN], "float32")
            cur_batch_idx, cur_batch_size = T.alloc_var(dtype="int32"), T.alloc_var(dtype="int32")
            m_start_padded = bx * BM
            cur_batch_idx = 0
            for i in range(batch_count):
                in_cur_batch_idx = m_start_padded >= padded[i]
                cur_batch_idx = T.if_then_else(in_cur_batch_idx, i, cur_batch_idx)
            cur_batch_size = sizes[cur_batch_idx]
            m_start = m_start_padded - padded[cur_batch_idx] + offsets[cur_batch_idx]
            actual_rows = T.max(0, T.min(BM, cur_batch_size + padded[cur_batch_idx] - m_start_padded))
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=1):
                T.copy(A[m_start : m_start + BM, k * BK : (k + 1) * BK], a)
                T.copy(B[cur_batch_idx, k * BK : (k + 1) * BK, by * BN : (by + 1) * BN], b)
                T.gemm(a, b, c)
            for i, j in T.Parallel(BM, BN):
                if i < actual_rows:
                    C[m_start + i, by * BN + j] = c[i, j]

    return kernel


@tilelang.jit(out_idx=[2])
def grouped_gradient(batch_sum, batch_count, M, N, BM=32, BN=32, BK=16):
    @T.prim_func
    def kernel(
        A: T.Tensor([batch_sum, M], "float16"), B: T.Tensor([batch_sum, N], "float16"), C: T.Tensor([batch_count, M, N], "float16"),
        sizes: T.Tensor([batch_count], "int32"), offsets: T.Tensor([batch_count], "int32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(M, BM), T.ceildiv(N, BN), batch_count, threads=64) as (bx, by, bz):
            a, b = T.alloc_shared([BK, BM], "float16"), T.alloc_shared([BK, BN], "float16")
            c = T.alloc_fragment([BM, BN], "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(sizes[bz], BK), num_stages=1):
                for i, j in T.Parallel(BK, BM):
                    a[i, j] = T.if_then_else(i < sizes[bz] - k * BK, A[offsets[bz] + k * BK + i, bx * BM + j], 0)
                for i, j in T.Parallel(BK, BN):
                    b[i, j] = T.if_then_else(i < sizes[bz] - k * BK, B[offsets[bz] + k * BK + i, by * BN + j], 0)
                T.gemm(a, b, c, transpose_A=True)
            T.copy(c, C[bz, bx * BM, by * BN])

    return kernel


def near(found, wanted):
    torch.testing.assert_close(found.float(), wanted, rtol=1e-2, atol=1e-1)


a, b, c = (
    torch.randn(96, 64, device=device).half(),
    torch.randn(160, 64, device=device).half(),
    torch.zeros(96, 160, device=device),
)
streamk(96, 160, 64, 4)(a, b, c)
near(c, a.float() @ b.float().T)
near(persistent(96, 160, 64, 4)(a, b.T.contiguous()), a.float() @ b.float().T)
sizes = [5, 30, 16]
starts = [0, 5, 35]
padded = [0, 16, 48]
x, w = torch.randn(51, 64, device=device).half(), torch.randn(3, 64, 96, device=device).half()
index = [torch.tensor(one, device=device, dtype=torch.int32) for one in (sizes, starts, padded)]
near(
    grouped(tuple(sizes), 64, 96)(x, w, *index),
    torch.cat([x[s : s + n].float() @ w[i].float() for i, (s, n) in enumerate(zip(starts, sizes))]),
)
y = torch.randn(51, 96, device=device).half()
near(
    grouped_gradient(51, 3, 64, 96)(x, y, *index[:2]),
    torch.stack([x[s : s + n].float().T @ y[s : s + n].float() for s, n in zip(starts, sizes)]),
)
