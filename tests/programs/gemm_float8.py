"""FP8 products whose sums are promoted every few steps, and with scales of tokens and blocks."""

import argparse

import tilelang
import tilelang.language as T
import torch
from tilelang.utils.tensor import map_torch_type

dev = "cuda" if torch.cuda.is_available() else "cpu"


def calc_diff(x, y):
    x, y = x.double(), y.double()
    return 1 - 2 * (x * y).sum() / (x * x + y * y).sum()


@tilelang.jit(out_idx=[2])
def matmul_2acc(M, N, K, block_M, block_N, block_K, dtype, accum_dtype="float", update_interval=2):
    assert K % (block_K * update_interval) == 0, "K must be a multiple"

    @T.prim_func
    def gemm_fp8_2xAcc(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_N, block_K), dtype)
            C_shared = T.alloc_shared((block_M, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            C_local_accum = T.alloc_fragment((block_M, block_N), accum_dtype)

            T.clear(C_local)
            T.clear(C_local_accum)
            K_iters = T.ceildiv(K, block_K)
            for k in T.Pipelined(K_iters, num_stages=3):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
                if (k + 1) % update_interval == 0:
                    for i, j in T.Parallel(block_M, block_N):
                        C_local_accum[i, j] += C_local[i, j]
                    T.clear(C_local)
            if K_iters % update_interval != 0:
                for i, j in T.Parallel(block_M, block_N):
                    C_local_accum[i, j] += C_local[i, j]
            T.copy(C_local_accum, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return gemm_fp8_2xAcc


@tilelang.jit(out_idx=[4])
def deepgemm_style(M, N, K, block_N, in_dtype, out_dtype, accum_dtype):
    assert in_dtype in [T.float8_e4m3fn]
    assert out_dtype in [T.bfloat16, T.float32]
    group_size = 128
    block_M, block_K = 64, 128

    @T.prim_func
    def main(
        A: T.Tensor[(M, K), in_dtype],
        B: T.Tensor[(N, K), in_dtype],
        scales_a: T.Tensor[(M, T.ceildiv(K, group_size)), T.float32],
        scales_b: T.Tensor[(T.ceildiv(N, group_size), T.ceildiv(K, group_size)), T.float32],
        C: T.Tensor[(M, N), out_dtype],
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared([block_M, block_K], in_dtype)
            B_shared = T.alloc_shared((block_N, block_K), in_dtype)
            C_shared = T.alloc_shared((block_M, block_N), out_dtype)
            Scale_C_shared = T.alloc_shared((block_M,), T.float32)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            C_local_accum = T.alloc_fragment((block_M, block_N), accum_dtype)
            T.use_swizzle(panel_size=10)
            T.clear(C_local)
            T.clear(C_local_accum)
            K_iters = T.ceildiv(K, block_K)
            for k in T.Pipelined(K_iters, num_stages=4):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                Scale_B = scales_b[bx * block_N // group_size, k]
                for i in T.Parallel(block_M):
                    Scale_C_shared[i] = scales_a[by * block_M + i, k] * Scale_B
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
                for i, j in T.Parallel(block_M, block_N):
                    C_local_accum[i, j] += C_local[i, j] * Scale_C_shared[i]
                T.clear(C_local)
            T.copy(C_local_accum, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return main


def per_token_cast_to_fp8(x):
    m, n = x.shape
    x_view = x.view(m, -1, 128)
    amax = x_view.abs().float().amax(dim=2).clamp(1e-4)
    return (x_view * (448.0 / amax.unsqueeze(2))).to(torch.float8_e4m3fn).view(m, n), (amax / 448.0).view(m, -1)


REAL_SIZES = [
    ("2acc", lambda: matmul_2acc(4096, 4096, 4096, 128, 128, 64, "float8_e4m3fn")),
    ("deepgemm", lambda: deepgemm_style(1024, 4096, 7168, 128, T.float8_e4m3fn, T.bfloat16, T.float32)),
]


def main():
    torch.manual_seed(0)
    for dtype in ["float8_e4m3fn", "float8_e5m2"]:
        torch_dtype = map_torch_type(dtype)
        M = N = 128
        K = 256
        kernel = matmul_2acc(M, N, K, 64, 64, 64, dtype)
        a = torch.rand(M, K, device=dev).to(torch_dtype)
        b = torch.rand(N, K, device=dev).to(torch_dtype)
        c = kernel(a, b)
        ref_c = (a.half() @ b.half().T).to(torch_dtype)
        diff = calc_diff(c, ref_c)
        print(f"diff: {diff}")
        assert diff < 1e-3
    x, y = torch.randn(100, 384, device=dev).bfloat16(), torch.randn(128, 384, device=dev).bfloat16()
    xq, xs = per_token_cast_to_fp8(x)
    yq = y.to(torch.float8_e4m3fn)
    ys = torch.rand(1, 3, device=dev)
    k2 = deepgemm_style(100, 128, 384, 128, T.float8_e4m3fn, T.bfloat16, T.float32)
    out = k2(xq, yq, xs, ys)
    ref = (xq.float().view(100, 3, 128) * xs[:, :, None]).view(100, 384) @ (
        yq.float().view(128, 3, 128) * ys[0][None, :, None]
    ).view(128, 384).T
    assert calc_diff(out, ref) < 1e-3
    print("All checks passed.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iters", type=int, default=1)
    parser.parse_known_args()
    main()
