"""The largest of each row, layer norms, casts of tokens to float8 with a scale each, and Hadamard's transform."""

import math

import tilelang
import tilelang.language as T
import tilelang.testing
import torch
from tilelang.autotuner import autotune

device = "cuda" if torch.cuda.is_available() else "cpu"
tilelang.testing.set_random_seed(0)


def get_configs():
    return [{"blk_m": m, "threads": t} for m in (8, 16) for t in (32, 64)]


@autotune(configs=get_configs(), warmup=1, rep=1)
@tilelang.jit(out_idx=[1, 2])
def topk(M, N, k, blk_m=8, threads=32):
    dtype = "float32"

    @T.prim_func
    def kernel(logits: T.Tensor([M, N], dtype), gates: T.Tensor([M, k], dtype), indices: T.Tensor([M, k], "int32")):
        with T.Kernel(T.ceildiv(M, blk_m), threads=threads) as bx:
            values = T.alloc_fragment([blk_m, N], dtype=dtype)
            max_val = T.alloc_fragment([blk_m], dtype=dtype)
            expand = T.alloc_fragment([blk_m, N], "int32")
            max_idx = T.alloc_fragment([blk_m], "int32")
            T.copy(logits[bx * blk_m, 0], values)
            for which in T.serial(k):
                T.fill(expand, -1)
                T.reduce_max(values, max_val, dim=1, clear=True)
                for i, j in T.Parallel(blk_m, N):
                    expand[i, j] = T.if_then_else(max_val[i] == values[i, j], j, expand[i, j])
                T.reduce_max(expand, max_idx, dim=1, clear=True)
                for i, j in T.Parallel(blk_m, N):
                    values[i, j] = T.if_then_else(max_val[i] == values[i, j], -10000.0, values[i, j])
                for i in T.Parallel(blk_m):
                    gates[bx * blk_m + i, which] = max_val[i]
                    indices[bx * blk_m + i, which] = max_idx[i]

    return kernel


@tilelang.jit(out_idx=[-1], pass_configs={"tl.disable_tma_lower": True})
def layer_norm(M, N, blk_m):
    dtype = "float"

    @T.prim_func
    def main(
        A: T.Tensor((M, N), dtype), W: T.Tensor((N,), dtype), Bias: T.Tensor((N,), dtype), B: T.Tensor((M, N), dtype)
    ):
        with T.Kernel(T.ceildiv(M, blk_m), threads=128) as bx:
            A_shared, A_local = T.alloc_shared((blk_m, N), dtype), T.alloc_fragment((blk_m, N), dtype)
            square, mean, var = (
                T.alloc_fragment((blk_m, N), dtype),
                T.alloc_fragment((blk_m,), dtype),
                T.alloc_fragment((blk_m,), dtype),
            )
            T.copy(A[bx * blk_m : (bx + 1) * blk_m, :], A_shared)
            T.copy(A_shared, A_local)
            T.reduce_sum(A_local, mean, dim=1)
            for i, j in T.Parallel(blk_m, N):
                square[i, j] = (A_local[i, j] - mean[i] / N) * (A_local[i, j] - mean[i] / N)
            T.reduce_sum(square, var, dim=1)
            for i in T.Parallel(blk_m):
                var[i] = T.rsqrt(var[i] / N + 1e-5)
            for i, j in T.Parallel(blk_m, N):
                A_local[i, j] = (A_local[i, j] - mean[i] / N) * var[i] * W[j] + Bias[j]
            T.copy(A_local, A_shared)
            T.copy(A_shared, B[bx * blk_m : (bx + 1) * blk_m, :])

    return main


@tilelang.jit(out_idx=[1, 2])
def cast_tokens(N, group_size=128, blk_m=8):
    M = T.symbolic("M")
    fp8_max, dtype, fp8 = 448.0, "float32", T.float8_e4m3fn

    @T.prim_func
    def main(
        X: T.Tensor((M, N), dtype), X_fp8: T.Tensor((M, N), fp8), X_amax: T.Tensor((M, T.ceildiv(N, group_size)), dtype)
    ):
        with T.Kernel(T.ceildiv(M, blk_m), T.ceildiv(N, group_size), threads=128) as (bx, by):
            row, row_g = bx, by
            y = T.alloc_fragment((blk_m, group_size), dtype)
            amax, scale = T.alloc_fragment((blk_m,), dtype), T.alloc_fragment((blk_m,), dtype)
            quant, quant_fp8 = T.alloc_fragment((blk_m, group_size), dtype), T.alloc_fragment((blk_m, group_size), fp8)
            T.annotate_layout(
                {y: T.Fragment(y.shape, forward_thread_fn=lambda i, j: (i // (blk_m // 4)) * 32 + j % 32)}
            )
            T.copy(X[row * blk_m : (row + 1) * blk_m, row_g * group_size : (row_g + 1) * group_size], y)
            T.reduce_absmax(y, amax, dim=1)
            for i in T.Parallel(blk_m):
                amax[i] = T.max(amax[i], 1e-4)
                scale[i] = amax[i] / fp8_max
            for i, j in T.Parallel(blk_m, group_size):
                quant[i, j] = T.clamp(y[i, j] / scale[i], -fp8_max, fp8_max)
            T.copy(quant, quant_fp8)
            for i in T.Parallel(blk_m):
                X_amax[row * blk_m + i, row_g] = scale[i]
            T.copy(quant_fp8, X_fp8[row * blk_m : (row + 1) * blk_m, row_g * group_size : (row_g + 1) * group_size])

    return main


@tilelang.jit(out_idx=[1])
def hadamard(b, n, dtype):
    logN = int(math.log2(n))
    threads = 32
    each = n // threads

    @T.macro
    def within(buf: T.LocalBuffer, rounds: int):
        for r in T.serial(rounds):
            chunk = 1 << (r + 1)
            for c in T.serial(each // chunk):
                for i in T.serial(chunk // 2):
                    x = T.alloc_var(dtype, buf[c * chunk + i])
                    y = T.alloc_var(dtype, buf[c * chunk + chunk // 2 + i])
                    buf[c * chunk + i] = x + y
                    buf[c * chunk + chunk // 2 + i] = x - y

    @T.prim_func
    def main(A: T.Tensor((b, n), dtype), B: T.Tensor((b, n), dtype)):
        with T.Kernel(b, threads=threads) as bx:
            local, shared = T.alloc_local((each,), dtype), T.alloc_shared((n,), dtype)
            tx = T.get_thread_binding(0)
            for i in T.vectorized(each):
                local[i] = A[bx, tx * each + i]
            within(local, int(math.log2(each)))
            for r in range(int(math.log2(each)), logN):
                for i in T.serial(each):
                    shared[tx * each + i] = local[i]
                T.sync_threads()
                other = tx ^ (1 << (r - int(math.log2(each))))
                for i in T.serial(each):
                    if tx < other:
                        local[i] = local[i] + shared[other * each + i]
                    else:
                        local[i] = shared[other * each + i] - local[i]
                T.sync_threads()
            for i in T.vectorized(each):
                B[bx, tx * each + i] = local[i]

    return main


logits = torch.rand(32, 64, device=device)
gates, indices = topk(32, 64, 4)(logits)
wanted = logits.topk(4, dim=1)
assert torch.equal(gates, wanted.values) and torch.equal(indices.long(), wanted.indices)
x, w, bias = torch.randn(16, 128, device=device), torch.randn(128, device=device), torch.randn(128, device=device)
torch.testing.assert_close(
    layer_norm(16, 128, 4)(x, w, bias), torch.nn.functional.layer_norm(x, (128,), w, bias), rtol=1e-4, atol=1e-4
)
x = torch.randn(20, 256, device=device)
fp8, scale = cast_tokens(256)(x)
groups = x.view(20, 2, 128)
most = groups.abs().amax(-1).clamp(1e-4) / 448
torch.testing.assert_close(scale, most)
back = fp8.float().view(20, 2, 128) * scale[:, :, None]
torch.testing.assert_close(back, groups, rtol=7e-2, atol=1e-2)
x = torch.randn(3, 128, device=device)
matrix = torch.ones(1, 1, device=device)
while matrix.shape[0] < 128:
    matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
torch.testing.assert_close(hadamard(3, 128, "float32")(x), x @ matrix, rtol=1e-4, atol=1e-4)
