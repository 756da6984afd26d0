"""Gradients of attention: delta before, sums of blocks by atomics, the query's gradient brought to half after."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[3, 4], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def forward(batch, heads, seq_len, dim, block_M=32, block_N=32):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    shape, dtype, accum_dtype = [batch, seq_len, heads, dim], T.float16, T.float32

    @T.prim_func
    def fwd(
        Q: T.Tensor(shape, dtype), K: T.Tensor(shape, dtype), V: T.Tensor(shape, dtype), Output: T.Tensor(shape, dtype),
        lse: T.Tensor([batch, heads, seq_len], accum_dtype),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(seq_len, block_M), heads, batch, threads=64) as (bx, by, bz):
            q = T.alloc_shared([block_M, dim], dtype)
            k, v = T.alloc_shared([block_N, dim], dtype), T.alloc_shared([block_N, dim], dtype)
            s, p = T.alloc_fragment([block_M, block_N], accum_dtype), T.alloc_fragment([block_M, block_N], dtype)
            o = T.alloc_fragment([block_M, dim], accum_dtype)
            top, old = T.alloc_fragment([block_M], accum_dtype), T.alloc_fragment([block_M], accum_dtype)
            by_ = T.alloc_fragment([block_M], accum_dtype)
            part, total = T.alloc_fragment([block_M], accum_dtype), T.alloc_fragment([block_M], accum_dtype)
            T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], q)
            T.fill(o, 0)
            T.fill(total, 0)
            T.fill(top, -T.infinity(accum_dtype))
            for n in T.Pipelined(T.ceildiv((bx + 1) * block_M, block_N), num_stages=1):
                T.copy(K[bz, n * block_N : (n + 1) * block_N, by, :], k)
                for i, j in T.Parallel(block_M, block_N):
                    s[i, j] = T.if_then_else(bx * block_M + i >= n * block_N + j, 0, -T.infinity(s.dtype))
                T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(V[bz, n * block_N : (n + 1) * block_N, by, :], v)
                T.copy(top, old)
                T.reduce_max(s, top, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    top[i] = T.max(top[i], old[i])
                    by_[i] = T.exp2(old[i] * scale - top[i] * scale)
                for i, j in T.Parallel(block_M, dim):
                    o[i, j] *= by_[i]
                for i, j in T.Parallel(block_M, block_N):
                    s[i, j] = T.exp2(s[i, j] * scale - top[i] * scale)
                T.copy(s, p)
                T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * by_[i] + part[i]
            for i, j in T.Parallel(block_M, dim):
                o[i, j] /= total[i]
            T.copy(o, Output[bz, bx * block_M : (bx + 1) * block_M, by, :])
            for i in T.Parallel(block_M):
                total[i] = T.log2(total[i]) + top[i] * scale
            T.copy(total, lse[bz, by, bx * block_M : (bx + 1) * block_M])

    return fwd


@tilelang.jit(out_idx=[2])
def preprocess(batch, heads, seq_len, dim):
    dtype, accum_dtype, blk = "float16", "float", 32
    shape = [batch, seq_len, heads, dim]

    @T.prim_func
    def prep(
        O: T.Tensor(shape, dtype), dO: T.Tensor(shape, dtype), Delta: T.Tensor([batch, heads, seq_len], accum_dtype)
    ):
        with T.Kernel(heads, T.ceildiv(seq_len, blk), batch) as (bx, by, bz):
            o, do, acc = (T.alloc_fragment([blk, blk], t) for t in (dtype, dtype, accum_dtype))
            delta = T.alloc_fragment([blk], accum_dtype)
            T.clear(acc)
            for k in range(T.ceildiv(dim, blk)):
                T.copy(O[bz, by * blk : (by + 1) * blk, bx, k * blk : (k + 1) * blk], o)
                T.copy(dO[bz, by * blk : (by + 1) * blk, bx, k * blk : (k + 1) * blk], do)
                for i, j in T.Parallel(blk, blk):
                    acc[i, j] += o[i, j] * do[i, j]
            T.reduce_sum(acc, delta, 1)
            T.copy(delta, Delta[bz, bx, by * blk : (by + 1) * blk])

    return prep


def make_dq_layout(dQ):
    # atomics of whole fragments would like this order
    return T.Layout(dQ.shape, lambda b, l, h, d: [b, l // 8, h, d // 8, (d % 2), 4 * (l % 8) + (d % 8) // 2])


@tilelang.jit
def backward(batch, heads, seq_len, dim, block_M=32, block_N=32):
    sm_scale = (1.0 / dim) ** 0.5
    scale = sm_scale * 1.44269504
    shape, dtype, accum_dtype = [batch, seq_len, heads, dim], "float16", "float"

    @T.prim_func
    def bwd(
        Q: T.Tensor(shape, dtype), K: T.Tensor(shape, dtype), V: T.Tensor(shape, dtype), dO: T.Tensor(shape, dtype),
        lse: T.Tensor([batch, heads, seq_len], accum_dtype), Delta: T.Tensor([batch, heads, seq_len], accum_dtype),
        dQ: T.Tensor(shape, accum_dtype), dK: T.Tensor(shape, dtype), dV: T.Tensor(shape, dtype),
    ):  # fmt: skip
        with T.Kernel(heads, T.ceildiv(seq_len, block_M), batch, threads=64) as (bx, by, bz):
            K_shared, V_shared = T.alloc_shared([block_M, dim], dtype), T.alloc_shared([block_M, dim], dtype)
            q, do = T.alloc_shared([block_N, dim], dtype), T.alloc_shared([block_N, dim], dtype)
            dsT_shared = T.alloc_shared([block_M, block_N], dtype)
            qkT, dsT = (
                T.alloc_fragment([block_M, block_N], accum_dtype),
                T.alloc_fragment([block_M, block_N], accum_dtype),
            )
            qkT_cast, dsT_cast = (
                T.alloc_fragment([block_M, block_N], dtype),
                T.alloc_fragment([block_M, block_N], dtype),
            )
            lse_shared, delta = T.alloc_shared([block_N], accum_dtype), T.alloc_shared([block_N], accum_dtype)
            dv, dk = T.alloc_fragment([block_M, dim], accum_dtype), T.alloc_fragment([block_M, dim], accum_dtype)
            dq = T.alloc_fragment([block_N, dim], accum_dtype)
            T.copy(K[bz, by * block_M : (by + 1) * block_M, bx, :], K_shared)
            T.copy(V[bz, by * block_M : (by + 1) * block_M, bx, :], V_shared)
            T.clear(dv)
            T.clear(dk)
            loop_st = T.floordiv(by * block_M, block_N)
            loop_ed = T.ceildiv(seq_len, block_N)
            for k in T.Pipelined(loop_st, loop_ed, num_stages=2):
                T.copy(Q[bz, k * block_N : (k + 1) * block_N, bx, :], q)
                T.clear(qkT)
                T.gemm(K_shared, q, qkT, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(lse[bz, bx, k * block_N : (k + 1) * block_N], lse_shared)
                for i, j in T.Parallel(block_M, block_N):
                    qkT[i, j] = T.exp2(qkT[i, j] * scale - lse_shared[j])
                for i, j in T.Parallel(block_M, block_N):
                    qkT[i, j] = T.if_then_else(by * block_M + i <= k * block_N + j, qkT[i, j], 0)
                T.copy(dO[bz, k * block_N : (k + 1) * block_N, bx, :], do)
                T.clear(dsT)
                T.gemm(V_shared, do, dsT, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(qkT, qkT_cast)
                T.gemm(qkT_cast, do, dv, policy=T.GemmWarpPolicy.FullRow)
                T.copy(Delta[bz, bx, k * block_N : (k + 1) * block_N], delta)
                for i, j in T.Parallel(block_M, block_N):
                    dsT_cast[i, j] = qkT[i, j] * (dsT[i, j] - delta[j]) * sm_scale
                T.gemm(dsT_cast, q, dk, policy=T.GemmWarpPolicy.FullRow)
                T.copy(dsT_cast, dsT_shared)
                T.clear(dq)
                T.gemm(dsT_shared, K_shared, dq, transpose_A=True)
                for i, j in T.Parallel(block_N, dim):
                    if k * block_N + i < seq_len:
                        T.atomic_add(dQ[bz, k * block_N + i, bx, j], dq[i, j])
            dv_shared, dk_shared = T.alloc_shared([block_M, dim], dtype), T.alloc_shared([block_M, dim], dtype)
            T.copy(dv, dv_shared)
            T.copy(dk, dk_shared)
            T.copy(dv_shared, dV[bz, by * block_M : (by + 1) * block_M, bx, :])
            T.copy(dk_shared, dK[bz, by * block_M : (by + 1) * block_M, bx, :])

    return bwd


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        batch, seq, heads, dim = q.shape
        o, lse = forward(batch, heads, seq, dim)(q, k, v)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        batch, seq, heads, dim = q.shape
        do = do.contiguous()
        delta = preprocess(batch, heads, seq, dim)(o, do)
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        backward(batch, heads, seq, dim)(q, k, v, do, lse, delta, dq, dk, dv)
        return dq.half(), dk, dv


inputs = [torch.randn(1, 64, 2, 32, device=device).half().requires_grad_() for _ in range(3)]
others = [x.detach().float().requires_grad_() for x in inputs]
gradient = torch.randn(1, 64, 2, 32, device=device).half()
Attention.apply(*inputs).backward(gradient)
wanted = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in others), is_causal=True)
wanted.transpose(1, 2).backward(gradient.float())
for one, other in zip(inputs, others):
    torch.testing.assert_close(one.grad.float(), other.grad, rtol=3e-2, atol=3e-2)
