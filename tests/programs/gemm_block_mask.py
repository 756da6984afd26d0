"""Block-sparse products over a mask of tiles, with cache, swizzle and tuning of the harness."""

import itertools

import tilelang
import tilelang.language as T
import torch

dev = "cuda" if torch.cuda.is_available() else "cpu"


def get_configs():
    block_M, block_N, block_K = [32], [32, 64], [32]
    _configs = list(itertools.product(block_M, block_N, block_K, [2], [128], [T.GemmWarpPolicy.Square], [True]))
    return [
        {
            "block_M": c[0],
            "block_N": c[1],
            "block_K": c[2],
            "num_stages": c[3],
            "thread_num": c[4],
            "policy": c[5],
            "enable_rasteration": c[6],
        }
        for c in _configs
    ]


def supply_program(params):
    M, N, K = 64, 128, 64
    a = torch.randn(M, K, device=dev).half()
    b = torch.randn(K, N, device=dev).half()
    mask = torch.rand(tuple(int(s) for s in params[2].shape), device=dev) > 0.5
    return [a, b, mask]


@tilelang.autotune(configs=get_configs(), warmup=1, rep=1)
@tilelang.jit(out_idx=[-1])
def blocksparse_matmul(
    M,
    N,
    K,
    block_M,
    block_N,
    block_K,
    num_stages,
    thread_num,
    policy,
    enable_rasteration,
    dtype=T.float16,
    accum_dtype=T.float32,
):
    block_mask_shape = (M // block_M, N // block_N, K // block_K)

    @T.prim_func
    def block_sparse_matmul(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        BlockMask: T.Tensor(block_mask_shape, "bool"),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=thread_num) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            C_shared = T.alloc_shared((block_M, block_N), dtype)
            T.use_swizzle(panel_size=10, enable=enable_rasteration)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                if BlockMask[by, bx, k]:
                    T.copy(A[by * block_M, k * block_K], A_shared)
                    T.copy(B[k * block_K, bx * block_N], B_shared)
                    T.gemm(A_shared, B_shared, C_local, policy=policy)
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return block_sparse_matmul


def ref_program(A, B, BlockMask, bM, bN, bK):
    mask = BlockMask.repeat_interleave(bM, 0).repeat_interleave(bN, 1).repeat_interleave(bK, 2)
    return torch.einsum("mk,kn,mnk->mn", A.double(), B.double(), mask.double())


def main():
    M, N, K = 64, 128, 64
    a, b = torch.randn(M, K, device=dev).half(), torch.randn(K, N, device=dev).half()
    kernel = blocksparse_matmul(
        M,
        N,
        K,
        block_M=32,
        block_N=32,
        block_K=32,
        num_stages=2,
        thread_num=128,
        policy=T.GemmWarpPolicy.Square,
        enable_rasteration=True,
    )
    mask = torch.rand(2, 4, 2, device=dev) > 0.5
    c = kernel(a, b, mask)
    torch.testing.assert_close(c.double(), ref_program(a, b, mask, 32, 32, 32), rtol=1e-2, atol=1e-2)
    print("Results are close!")


if __name__ == "__main__":
    main()
