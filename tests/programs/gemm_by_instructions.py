"""Products put together from matrix instructions by hand, in halves, bytes and floats of eight bits."""

import tilelang
import tilelang.language as T
import torch
from tilelang.intrinsics import get_swizzle_layout
from tilelang.intrinsics.mma_macro_generator import TensorCoreIntrinEmitter
from tilelang.transform import simplify_prim_func
from tilelang.utils.tensor import map_torch_type
from tvm import DataType

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


def make_swizzle_layout(shared_buf):
    dtype = shared_buf.dtype
    shape = shared_buf.shape
    can_swizzle = shape[-1] * DataType(dtype).bits == 512
    if not can_swizzle:
        return T.Layout(shape, lambda *args: args)

    def transform_func(i, j):
        new_warp_i, new_warp_j = get_swizzle_layout(i, j, shape[-1], dtype)
        return [new_warp_i, new_warp_j]

    return T.Layout(shape, transform_func)


@tilelang.jit(out_idx=[2])
@simplify_prim_func
def tl_matmul(
    M,
    N,
    K,
    in_dtype,
    out_dtype,
    accum_dtype,
    block_row_warps=2,
    block_col_warps=2,
    warp_row_tiles=32,
    warp_col_tiles=32,
    stage=2,
):
    assert in_dtype in ["float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"]
    micro_size_x = micro_size_y = micro_size_k = 16
    is_float8 = in_dtype in ["float8_e4m3fn", "float8_e5m2"]
    if out_dtype == "int32" or is_float8:
        micro_size_k = 32
    chunk = 32 if in_dtype == "float16" else 64
    shared_scope = "shared.dyn"

    block_M = block_row_warps * warp_row_tiles
    block_N = block_col_warps * warp_col_tiles
    block_K = chunk
    A_shape = (M, K)
    B_shape = (N, K)
    A_shared_shape = (block_M, block_K)
    B_shared_shape = (block_N, block_K)
    C_shared_shape = (block_M // micro_size_x, block_N // micro_size_y, micro_size_x, micro_size_y)

    warp_size = 32
    threads = warp_size * (block_row_warps * block_col_warps)
    local_size_a = (micro_size_x * micro_size_k) // warp_size
    local_size_b = (micro_size_y * micro_size_k) // warp_size
    local_size_c = (micro_size_x * micro_size_y) // warp_size
    warp_rows = warp_row_tiles // micro_size_x
    warp_cols = warp_col_tiles // micro_size_y

    mma_emitter = TensorCoreIntrinEmitter(
        a_dtype=in_dtype,
        b_dtype=in_dtype,
        accum_dtype=accum_dtype,
        a_transposed=False,
        b_transposed=True,
        block_row_warps=block_row_warps,
        block_col_warps=block_col_warps,
        warp_row_tiles=warp_row_tiles,
        warp_col_tiles=warp_col_tiles,
        chunk=chunk,
    )

    @T.prim_func
    def gemm_intrinsics(A: T.Tensor(A_shape, in_dtype), B: T.Tensor(B_shape, in_dtype), C: T.Tensor((M, N), out_dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared(A_shared_shape, in_dtype, scope=shared_scope)
            B_shared = T.alloc_shared(B_shared_shape, in_dtype, scope=shared_scope)
            C_shared = T.alloc_shared(C_shared_shape, out_dtype, scope=shared_scope)
            A_local = T.alloc_local((warp_rows * local_size_a), in_dtype)
            B_local = T.alloc_local((warp_cols * local_size_b), in_dtype)
            C_local = T.alloc_local((warp_rows * warp_cols * local_size_c), accum_dtype)

            T.annotate_layout({A_shared: make_swizzle_layout(A_shared), B_shared: make_swizzle_layout(B_shared)})
            T.use_swizzle(panel_size=10)
            T.clear(C_local)

            for ko in T.Pipelined((K // block_K), num_stages=stage):
                for i, k in T.Parallel(block_M, block_K):
                    A_shared[i, k] = A[by * block_M + i, ko * block_K + k]
                for j, k in T.Parallel(block_N, block_K):
                    B_shared[j, k] = B[bx * block_N + j, ko * block_K + k]
                for ki in T.serial(0, (block_K // micro_size_k)):
                    mma_emitter.ldmatrix_a(A_local, A_shared, ki)
                    mma_emitter.ldmatrix_b(B_local, B_shared, ki)
                    mma_emitter.mma(A_local, B_local, C_local)

            mma_emitter.stmatrix(C_local, C_shared)
            for i, j in T.Parallel(block_M, block_N):
                C[by * block_M + i, bx * block_N + j] = C_shared[
                    i // micro_size_x, j // micro_size_y, i % micro_size_x, j % micro_size_y
                ]

    return gemm_intrinsics


@tilelang.jit(out_idx=[2])
def nn_matmul(M, N, K, dtype="float16"):
    """Neither operand transposed in memory, sums straight to the tensor."""
    emitter = TensorCoreIntrinEmitter(
        a_dtype=dtype,
        b_dtype=dtype,
        accum_dtype="float32",
        block_row_warps=2,
        block_col_warps=2,
        warp_row_tiles=16,
        warp_col_tiles=32,
        chunk=32,
        a_transposed=True,
        b_transposed=False,
    )
    k_steps = 32 // emitter.k_dim

    @T.prim_func
    def main(A: T.Tensor((K, M), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=128) as (bx, by):
            A_shared = T.alloc_shared((2, 32, 32), dtype)
            B_shared = T.alloc_shared((2, 32, 64), dtype)
            A_local = T.alloc_local((emitter.warp_rows * emitter.local_size_a,), dtype)
            B_local = T.alloc_local((emitter.warp_cols * emitter.local_size_b,), dtype)
            C_local = T.alloc_local((emitter.warp_rows * emitter.warp_cols * emitter.local_size_out,), "float32")
            for i in T.serial(emitter.warp_rows * emitter.warp_cols * emitter.local_size_out):
                C_local[i] = 0
            for ko in T.serial(K // 32):
                T.copy(A[ko * 32, by * 32], A_shared[ko % 2, :, :])
                T.copy(B[ko * 32, bx * 64], B_shared[ko % 2, :, :])
                for ki in T.serial(k_steps):
                    emitter.ldmatrix_a(A_local, A_shared[ko % 2, :, :], ki)
                    emitter.ldmatrix_b(B_local, B_shared[ko % 2, :, :], ki)
                    emitter.mma(A_local, B_local, C_local)
            emitter.stmatrix(C_local, C, pid_m=by, pid_n=bx)

    return main


REAL_SIZES = [
    ("halves", lambda: tl_matmul(4096, 4096, 4096, "float16", "float32", "float32", 2, 2, 64, 64)),
    ("bytes", lambda: tl_matmul(4096, 4096, 4096, "int8", "int32", "int32", 2, 2, 64, 64)),
    ("float8", lambda: tl_matmul(4096, 4096, 4096, "float8_e4m3fn", "float32", "float32", 1, 1, 64, 64)),
    ("nn", lambda: nn_matmul(4096, 4096, 4096)),
]


def assert_tl_matmul_correctness(M, N, K, in_dtype, out_dtype, accum_dtype):
    kernel = tl_matmul(M, N, K, in_dtype, out_dtype, accum_dtype)
    src_code = kernel.get_kernel_source()
    assert src_code is not None
    if in_dtype == "int8":
        A, B = (torch.randint(-128, 127, s, dtype=torch.int8, device=dev) for s in ((M, K), (N, K)))
    else:
        A, B = (torch.randn(s, device=dev).to(map_torch_type(in_dtype)) for s in ((M, K), (N, K)))
    C = kernel(A, B)
    torch.testing.assert_close(C.double(), A.double() @ B.double().T, rtol=1e-2, atol=5e-2)


if __name__ == "__main__":
    assert_tl_matmul_correctness(128, 64, 128, "float16", "float32", "float32")
    assert_tl_matmul_correctness(64, 128, 128, "int8", "int32", "int32")
    assert_tl_matmul_correctness(64, 64, 128, "float8_e4m3fn", "float32", "float32")
    for dtype in ("float16", "float32", "bfloat16"):
        A, B = (torch.randn(s, device=dev).to(getattr(torch, dtype)) for s in ((96, 64), (96, 128)))
        C = nn_matmul(64, 128, 96, dtype)(A, B)
        torch.testing.assert_close(C.double(), A.double().T @ B.double(), rtol=1e-2, atol=5e-2)
    print("All checks pass.")
