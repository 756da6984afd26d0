"""Blocks of clusters: tiles loaded once for several, exchanged between shared memories, and grid-wide meetings."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[2])
def multicast_gemm(M, N, K, bM=64, bN=64, bK=32, dtype=T.float16):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), T.float32)):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=128, cluster_dims=(2, 1, 1)) as (bx, by):
            A_shared, B_shared = T.alloc_shared((bM, bK), dtype), T.alloc_shared((bK, bN), dtype)
            C_local = T.alloc_fragment((bM, bN), T.float32)
            full = T.alloc_cluster_barrier([1])
            rank = T.block_rank_in_cluster()
            T.clear(C_local)
            for ko in T.serial(T.ceildiv(K, bK)):
                T.cluster_sync()
                if T.get_thread_binding() == 0:
                    if rank == 0:
                        T.tma_copy(A[by * bM, ko * bK], A_shared, barrier=full[0], cluster_mask=3)
                    else:
                        T.mbarrier_expect_tx(full[0], bM * bK * 2)
                    T.tma_copy(B[ko * bK, bx * bN], B_shared, barrier=full[0])
                    T.mbarrier_arrive(full[0])
                T.mbarrier_wait_parity(full[0], ko % 2)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * bM, bx * bN])

    return main


@tilelang.jit(out_idx=[1])
def exchanged(N=64, dtype=T.float32):
    """Each block of a pair gets the other's tile."""

    @T.prim_func
    def main(A: T.Tensor((4, N), dtype), B: T.Tensor((4, N), dtype)):
        with T.ClusterKernel(4, cluster_dims=2, threads=N) as bx:
            mine, theirs = T.alloc_shared((N,), dtype), T.alloc_shared((N,), dtype)
            arrived = T.alloc_cluster_barrier([1])
            tx = T.get_thread_binding()
            mine[tx] = A[bx, tx]
            T.cluster_sync()
            T.copy_cluster(mine, theirs, dst_block=T.block_rank_in_cluster() ^ 1, remote_barrier=arrived[0])
            T.mbarrier_wait_parity(arrived[0], 0)
            B[bx, tx] = theirs[tx]
            T.cluster_sync()

    return main


@tilelang.jit
def grid_softmax(N, blocks=4, threads=128):
    """A softmax of one long row: blocks meet twice."""

    @T.prim_func
    def main(X: T.Tensor((N,), T.float32), part: T.Tensor((blocks, 2), T.float32), Y: T.Tensor((N,), T.float32)):
        with T.Kernel(blocks, threads=threads) as b:
            per = N // blocks
            x = T.alloc_fragment((per,), T.float32)
            m, s = T.alloc_fragment((1,), T.float32), T.alloc_fragment((1,), T.float32)
            top, total = T.alloc_var(T.float32), T.alloc_var(T.float32)
            T.copy(X[b * per], x)
            T.reduce_max(x, m, dim=0)
            for i in T.Parallel(per):
                x[i] = T.exp(x[i] - m[0])
            T.reduce_sum(x, s, dim=0)
            part[b, 0] = m[0]
            part[b, 1] = s[0]
            T.sync_grid()
            top = -T.infinity(T.float32)
            total = 0
            for k in T.serial(blocks):
                top = T.max(top, part[k, 0])
            for k in T.serial(blocks):
                total += part[k, 1] * T.exp(part[k, 0] - top)
            for i in T.Parallel(per):
                x[i] = x[i] * T.exp(m[0] - top) / total
            T.copy(x, Y[b * per])

    return main


REAL_SIZES = [
    ("multicast", lambda: multicast_gemm(4096, 4096, 4096, 128, 128, 64)),
    ("exchanged", lambda: exchanged()),
    ("grid softmax", lambda: grid_softmax(1 << 16, 64, 256)),
]

if __name__ == "__main__":
    a, b = torch.randn(64, 96, device=dev).half(), torch.randn(96, 128, device=dev).half()
    torch.testing.assert_close(multicast_gemm(64, 128, 96)(a, b), a.float() @ b.float(), rtol=1e-3, atol=1e-2)
    x = torch.randn(4, 64, device=dev)
    torch.testing.assert_close(exchanged()(x), x[[1, 0, 3, 2]])
    x, y, part = torch.randn(1024, device=dev), torch.zeros(1024, device=dev), torch.zeros(4, 2, device=dev)
    grid_softmax(1024)(x, part, y)
    torch.testing.assert_close(y, x.softmax(0))
    print("ok")
