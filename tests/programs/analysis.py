"""The work of a kernel, counted, and how long a machine takes for it."""

import tilelang.language as T
from tilelang.carver.arch import CUDA
from tilelang.tools import Analyzer


def kernel(
    M=512, N=512, K=512, block_M=128, block_N=128, block_K=32, num_stages=3, thread_num=128, enable_rasteration=True
):
    dtype = "float16"
    accum_dtype = "float"

    @T.prim_func
    def matmul(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=thread_num) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_N, block_K), dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            C_shared = T.alloc_shared((block_M, block_N), dtype)
            T.use_swizzle(panel_size=10, enable=enable_rasteration)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return matmul


def main():
    my_func = kernel(128, 128, 64)
    cuda_device = CUDA("cuda")
    result = Analyzer.analysis(my_func, cuda_device)
    print(result)
    print(f"Analyzed FLOPs: {result.total_flops}")
    print(f"Expected Latency: {result.estimated_time}")
    print(f"Expected TFLOPs: {result.expected_tflops}")
    print(f"bandwidth: {result.expected_bandwidth_GBps}")
    assert result.total_flops == 2 * 128 * 128 * 64
    assert result.total_global_bytes > 0


if __name__ == "__main__":
    main()
