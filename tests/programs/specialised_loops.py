"""Products whose roles are written by hand: T.ws around loops, loops around roles, fragments of the block."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


def loop_around(M, N, K, bM, bN, bK, stages, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=256) as (bx, by):
            A_shared = T.alloc_shared((stages, bM, bK), dtype)
            B_shared = T.alloc_shared((stages, bK, bN), dtype)
            C_local = T.alloc_fragment((bM, bN), "float")
            loaded = T.alloc_barrier([128] * stages)
            consumed = T.alloc_barrier([128] * stages)
            T.clear(C_local)
            for ko in range(T.ceildiv(K, bK)):
                with T.ws(1):
                    T.barrier_wait(consumed[ko % stages], ((ko // stages) % 2) ^ 1)
                    T.copy(A[by * bM : (by + 1) * bM, ko * bK : (ko + 1) * bK], A_shared[ko % stages, :, :])
                    T.copy(B[ko * bK : (ko + 1) * bK, bx * bN : (bx + 1) * bN], B_shared[ko % stages, :, :])
                    T.barrier_arrive(loaded[ko % stages])
                with T.ws(0):
                    T.barrier_wait(loaded[ko % stages], (ko // stages) % 2)
                    T.gemm(A_shared[ko % stages, :, :], B_shared[ko % stages, :, :], C_local)
                    T.barrier_arrive(consumed[ko % stages])
            with T.ws(0):
                T.copy(C_local, C[by * bM, bx * bN])

    return main


def inside(M, N, K, bM, bN, bK, dtype="float16"):
    """Two consumers of 128 rows each, one producer."""
    stages = 2

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=384) as (bx, by):
            A0 = T.alloc_shared((stages, bM // 2, bK), dtype)
            A1 = T.alloc_shared((stages, bM // 2, bK), dtype)
            B_shared = T.alloc_shared((stages, bN, bK), dtype)
            C0 = T.alloc_fragment((bM // 2, bN), "float")
            C1 = T.alloc_fragment((bM // 2, bN), "float")
            loaded = T.alloc_barrier([128] * stages)
            consumed = T.alloc_barrier([256] * stages)
            with T.ws(2):
                T.set_max_nreg(24, 0)
                for k in range(T.ceildiv(K, bK)):
                    T.barrier_wait(consumed[k % stages], ((k // stages) % 2) ^ 1)
                    T.copy(A[by * bM, k * bK], A0[k % stages, :, :])
                    T.copy(A[by * bM + bM // 2, k * bK], A1[k % stages, :, :])
                    T.copy(B[bx * bN, k * bK], B_shared[k % stages, :, :])
                    T.barrier_arrive(loaded[k % stages])
            with T.ws(0):
                T.set_max_nreg(240, 1)
                T.clear(C0)
                for k in range(T.ceildiv(K, bK)):
                    T.barrier_wait(loaded[k % stages], (k // stages) % 2)
                    T.gemm(A0[k % stages, :, :], B_shared[k % stages, :, :], C0, transpose_B=True)
                    T.barrier_arrive(consumed[k % stages])
                T.copy(C0, C[by * bM, bx * bN])
            with T.ws(1):
                T.set_max_nreg(240, 1)
                T.clear(C1)
                for k in range(T.ceildiv(K, bK)):
                    T.barrier_wait(loaded[k % stages], (k // stages) % 2)
                    T.gemm(A1[k % stages, :, :], B_shared[k % stages, :, :], C1, transpose_B=True)
                    T.barrier_arrive(consumed[k % stages])
                T.copy(C1, C[by * bM + bM // 2, bx * bN])

    return main


def shared_between(M, N, K, bM, bN, bK, dtype="float16"):
    """Single-stage mbarriers by ID list, with the block's own fragments written behind the roles."""

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), "float")):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=256) as (bx, by):
            A_shared = T.alloc_shared((bM, bK), dtype)
            B_shared = T.alloc_shared((bK, bN), dtype)
            C_local = T.alloc_fragment((bM, bN), "float")
            C_shared = T.alloc_shared((bM, bN), "float")
            data_is_ready = T.alloc_barrier(arrive_count=128)
            compute_is_done = T.alloc_barrier(arrive_count=128)
            with T.ws(1):
                for ko in T.serial(T.ceildiv(K, bK)):
                    T.barrier_wait(compute_is_done, (ko + 1) % 2)
                    T.copy(A[by * bM, ko * bK], A_shared)
                    T.copy(B[ko * bK, bx * bN], B_shared)
                    T.barrier_arrive(data_is_ready)
            with T.ws(0):
                T.clear(C_local)
                for ko in T.serial(T.ceildiv(K, bK)):
                    T.barrier_wait(data_is_ready, ko % 2)
                    T.gemm(A_shared, B_shared, C_local)
                    T.barrier_arrive(compute_is_done)
                T.copy(C_local, C_shared)
            T.sync_threads()
            T.copy(C_shared, C[by * bM, bx * bN])

    return main


REAL_SIZES = [
    ("loop_around", lambda: tilelang.compile(loop_around(4096, 4096, 4096, 128, 128, 64, 2), out_idx=[2])),
    ("loop_around4", lambda: tilelang.compile(loop_around(4096, 4096, 4096, 128, 128, 64, 4, "bfloat16"), out_idx=[2])),
    ("inside", lambda: tilelang.compile(inside(4096, 4096, 4096, 256, 128, 64), out_idx=[2])),
    ("shared_between", lambda: tilelang.compile(shared_between(4096, 4096, 4096, 128, 128, 64), out_idx=[2])),
]

if __name__ == "__main__":
    M, N, K = 128, 128, 256
    a, b = torch.randn(M, K, device=dev).half(), torch.randn(K, N, device=dev).half()
    ref = a.double() @ b.double()
    bad = []
    for f, args in [
        (loop_around(M, N, K, 64, 64, 32, 2), (a, b)),
        (inside(M, N, K, 128, 64, 32), (a, b.T.contiguous())),
        (shared_between(M, N, K, 64, 64, 32), (a, b)),
    ]:
        try:
            c = tilelang.compile(f, out_idx=[2])(*args)
            torch.testing.assert_close(c.double(), ref, rtol=1e-2, atol=1e-1)
        except Exception as e:
            bad.append(f"{f} {type(e).__name__} {str(e)[:600]}")
    assert not bad, "\n".join(bad)
    print("ok")
