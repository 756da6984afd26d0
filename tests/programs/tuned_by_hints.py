"""A product tuned over what the roller recommends, or a grid of tiles, with arguments of the command line and the harness's timing."""

import argparse
import itertools

import tilelang
import tilelang.language as T
import torch
from tilelang.autotuner import AutoTuner
from tilelang.carver.arch import CDNA, CUDA
from tilelang.carver.roller.rasterization import NoRasterization
from tilelang.carver.template import MatmulTemplate
from tilelang.profiler import do_bench

dev = "cuda" if torch.cuda.is_available() else "cpu"


def ref_program(A, B):
    return A @ B.T


def get_configs(M, N, K, with_roller=False, topk=3):
    if with_roller:
        arch = CUDA("cuda") if torch.version.hip is None else CDNA("hip")
        carve_template = MatmulTemplate(
            M=M, N=N, K=K, in_dtype=T.float16, out_dtype=T.float16, accum_dtype=T.float32
        ).with_arch(arch)
        func = carve_template.equivalent_function()
        assert func is not None, "Function is None"
        roller_hints = carve_template.recommend_hints(topk=topk)
        if roller_hints is None:
            raise ValueError("No Roller Hints Found for TensorCore Scheduling")
        configs = []
        for hint in roller_hints:
            config = {}
            block_m, block_n = hint.block
            warp_m, warp_n = hint.warp
            block_rows, block_cols = block_m // warp_m, block_n // warp_n
            config["block_M"] = block_m
            config["block_N"] = block_n
            config["block_K"] = hint.rstep[0]
            config["num_stages"] = hint.pipeline_stage if hint.pipeline_stage > 1 else 0
            config["thread_num"] = block_rows * block_cols * 32
            config["enable_rasteration"] = hint.rasterization_plan is not NoRasterization
            configs.append(config)
    else:
        _configs = list(itertools.product([64], [64, 128], [32], [0, 2], [128], [True]))
        configs = [
            {
                "block_M": c[0],
                "block_N": c[1],
                "block_K": c[2],
                "num_stages": c[3],
                "thread_num": c[4],
                "enable_rasteration": c[5],
            }
            for c in _configs
        ]
    return configs


def get_best_config(M, N, K, with_roller=False):
    def kernel(block_M=None, block_N=None, block_K=None, num_stages=None, thread_num=None, enable_rasteration=None):
        dtype = T.float16
        accum_dtype = T.float32

        @T.prim_func
        def main(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
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

        return main

    autotuner = (
        AutoTuner.from_kernel(kernel=kernel, configs=get_configs(M, N, K, with_roller))
        .set_compile_args(out_idx=[-1], target="auto")
        .set_profile_args(supply_type=tilelang.TensorSupplyType.Integer, ref_prog=ref_program, skip_check=False)
    )
    return autotuner.run(warmup=1, rep=1)


def main(M=128, N=128, K=64, use_autotune=True, with_roller=False):
    result = get_best_config(M, N, K, with_roller)
    print(result.config, result.latency)
    kernel = result.kernel
    a, b = torch.randn(M, K, device=dev).half(), torch.randn(N, K, device=dev).half()
    torch.testing.assert_close(kernel(a, b), ref_program(a, b), rtol=1e-2, atol=1e-2)
    if torch.cuda.is_available():
        profiler = kernel.get_profiler(tensor_supply_type=tilelang.TensorSupplyType.Auto)
        tilelang_latency = profiler.do_bench()
        ref_latency = profiler.do_bench(ref_program)
        profiler.assert_allclose(ref_program, atol=1e-2, rtol=1e-2)
        print(
            f"TileLang latency: {tilelang_latency} Ref latency: {ref_latency}",
            do_bench(lambda: kernel(a, b), warmup=2, rep=2),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Autotuned MatMul Benchmark")
    parser.add_argument("--m", type=int, default=128, help="Matrix dimension M")
    parser.add_argument("--with_roller", action="store_true", default=False)
    args, _ = parser.parse_known_args()
    main(args.m, with_roller=args.with_roller)
    main(args.m, with_roller=True)
