"""Linear attention by chunks: a state carried from chunk to chunk, decays, a state kept in half, and the delta rule's inverse."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[4, 5])
def gated(B, S, H, DK, DV, chunk=16, block_V=32, dtype=T.float16, accum_dtype=T.float32):
    NT = S // chunk

    @T.prim_func
    def main(
        Q: T.Tensor([B, S, H, DK], dtype), K: T.Tensor([B, S, H, DK], dtype), V: T.Tensor([B, S, H, DV], dtype),
        G: T.Tensor([B, S, H], accum_dtype), O: T.Tensor([B, S, H, DV], dtype), Final: T.Tensor([B, H, DK, DV], accum_dtype),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(DV, block_V), B * H, threads=64) as (bv, bbh):
            bb, bh = bbh // H, bbh % H
            q, k = T.alloc_shared([chunk, DK], dtype), T.alloc_shared([chunk, DK], dtype)
            v, h_shared = T.alloc_shared([chunk, block_V], dtype), T.alloc_shared([DK, block_V], dtype)
            s, s_shared = T.alloc_fragment([chunk, chunk], accum_dtype), T.alloc_shared([chunk, chunk], dtype)
            o, h = T.alloc_fragment([chunk, block_V], accum_dtype), T.alloc_fragment([DK, block_V], accum_dtype)
            g = T.alloc_shared([chunk], accum_dtype)
            v_scaled = T.alloc_shared([chunk, block_V], dtype)
            T.clear(h)
            T.annotate_layout({h_shared: tilelang.layout.make_swizzled_layout(h_shared)})
            for i_t in T.Pipelined(NT, num_stages=1):
                T.copy(Q[bb, i_t * chunk : (i_t + 1) * chunk, bh, :], q)
                T.copy(K[bb, i_t * chunk : (i_t + 1) * chunk, bh, :], k)
                T.copy(V[bb, i_t * chunk : (i_t + 1) * chunk, bh, bv * block_V : (bv + 1) * block_V], v)
                T.copy(G[bb, i_t * chunk : (i_t + 1) * chunk, bh], g)
                T.cumsum(g, dim=0)
                T.copy(h, h_shared)
                T.gemm(q, h_shared, o, clear_accum=True)
                for i, j in T.Parallel(chunk, block_V):
                    o[i, j] *= T.exp(g[i])
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(chunk, chunk):
                    s_shared[i, j] = T.if_then_else(i >= j, s[i, j] * T.exp(g[i] - g[j]), 0)
                T.gemm(s_shared, v, o)
                T.copy(o, O[bb, i_t * chunk : (i_t + 1) * chunk, bh, bv * block_V : (bv + 1) * block_V])
                for i, j in T.Parallel(chunk, block_V):
                    v_scaled[i, j] = v[i, j] * T.exp(g[chunk - 1] - g[i])
                for i, j in T.Parallel(DK, block_V):
                    h[i, j] *= T.exp(g[chunk - 1])
                T.gemm(k, v_scaled, h, transpose_A=True)
            T.copy(h, Final[bb, bh, :, bv * block_V : (bv + 1) * block_V])

    return main


@tilelang.jit(out_idx=[1])
def inverse(B, n=16, dtype="float32"):
    """Of 1 + L for a lower triangle L, row by row."""

    @T.prim_func
    def main(A: T.Tensor([B, n, n], dtype), Out: T.Tensor([B, n, n], dtype)):
        with T.Kernel(B, threads=32) as b:
            a, row, total = T.alloc_shared([n, n], dtype), T.alloc_fragment([n, n], dtype), T.alloc_fragment([n], dtype)
            T.copy(A[b, :, :], a)
            for i, j in T.Parallel(n, n):
                a[i, j] = T.if_then_else(i > j, -a[i, j], 0)
            for i in T.serial(1, n):
                for j, k in T.Parallel(n, n):
                    row[j, k] = T.if_then_else(k < i and k > j, a[i, k] * a[k, j], 0.0)
                T.reduce_sum(row, total, dim=1, clear=True)
                for j in T.Parallel(n):
                    if j < i:
                        a[i, j] = a[i, j] + total[j]
            for i, j in T.Parallel(n, n):
                Out[b, i, j] = T.if_then_else(i == j, 1.0, a[i, j])

    return main


B, S, H, DK, DV = 1, 64, 2, 32, 64
q, k, v = (torch.randn(B, S, H, d, device=device).half() / 4 for d in (DK, DK, DV))
g = -torch.rand(B, S, H, device=device)
o, final = gated(B, S, H, DK, DV)(q, k, v, g)
state, wanted = torch.zeros(B, H, DK, DV, device=device), torch.zeros(B, S, H, DV, device=device)
for t in range(S):
    state = state * g[:, t].exp()[:, :, None, None] + torch.einsum("bhk,bhv->bhkv", k[:, t].float(), v[:, t].float())
    wanted[:, t] = torch.einsum("bhk,bhkv->bhv", q[:, t].float(), state)
torch.testing.assert_close(o.float(), wanted, rtol=2e-2, atol=2e-2)
torch.testing.assert_close(final, state, rtol=2e-2, atol=2e-2)
a = torch.randn(3, 16, 16, device=device) / 4
torch.testing.assert_close(
    inverse(3)(a), torch.linalg.inv(torch.eye(16, device=device) + a.tril(-1)), rtol=1e-3, atol=1e-3
)
