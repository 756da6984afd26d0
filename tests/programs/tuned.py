"""A product tuned over its tiles, by the decorator and step by step."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

from tilelang.autotuner import AutoTuner, set_autotune_inputs


def product(M, N, K, tile=32, stages=1):
    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, tile), T.ceildiv(M, tile), threads=64) as (bx, by):
            a, b, c = (
                T.alloc_shared((tile, 32), "float16"),
                T.alloc_shared((32, tile), "float16"),
                T.alloc_fragment((tile, tile), "float32"),
            )
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=stages):
                T.copy(A[by * tile, k * 32], a)
                T.copy(B[k * 32, bx * tile], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * tile, bx * tile])

    return main


tuned = tilelang.autotune(configs={"tile": [16, 32], "stages": [0]}, warmup=1, rep=1)(
    tilelang.jit(out_idx=[-1])(product)
)
a, b = torch.randn(64, 64, device=device).half(), torch.randn(64, 64, device=device).half()
with set_autotune_inputs(a, b):
    kernel = tuned(64, 64, 64)
torch.testing.assert_close(kernel(a, b).float(), a.float() @ b.float(), rtol=1e-2, atol=5e-2)
assert kernel.config["tile"] in (16, 32) and kernel.latency > 0

tuner = AutoTuner.from_kernel(lambda tile=32: product(64, 64, 64, tile), configs=[{"tile": 16}, {"tile": 32}])
tuner.set_compile_args(out_idx=[-1], target="auto", execution_backend="auto")
tuner.set_profile_args(warmup=1, rep=1, supply_type=tilelang.TensorSupplyType.Integer, ref_prog=lambda a, b: a @ b)
result = tuner.run(warmup=1, rep=1, early_stop=None)
torch.testing.assert_close(result.kernel(a, b).float(), a.float() @ b.float(), rtol=1e-2, atol=5e-2)
