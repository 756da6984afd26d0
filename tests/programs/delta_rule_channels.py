"""Chunks of a gated delta rule with gates of every channel (KDA): inside a chunk, across chunks, beside the recurrence in float64."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[-1])
def chunk_cumsum_gates(B, S, H, K, chunk, threads=128):
    @T.prim_func
    def main(g: T.Tensor((B, S, H, K), T.float32), out: T.Tensor((B, S, H, K), T.float32)):
        with T.Kernel(T.ceildiv(S, chunk), H, B, threads=threads) as (bs, bh, bb):
            tile = T.alloc_shared((chunk, K), T.float32)
            T.copy(g[bb, bs * chunk : (bs + 1) * chunk, bh, :], tile)
            T.cumsum(tile, dim=0)
            T.copy(tile, out[bb, bs * chunk : (bs + 1) * chunk, bh, :])

    return main


@tilelang.jit(out_idx=[-2, -1])
def chunk_products(B, S, H, K, chunk, scale, threads=128):
    """Products of keys (below the diagonal, times beta) and of queries with keys, with the gates between them."""

    @T.prim_func
    def main(
        q: T.Tensor((B, S, H, K), T.float32),
        k: T.Tensor((B, S, H, K), T.float32),
        gc: T.Tensor((B, S, H, K), T.float32),
        beta: T.Tensor((B, S, H), T.float32),
        Akk: T.Tensor((B, S, H, chunk), T.float32),
        Aqk: T.Tensor((B, S, H, chunk), T.float32),
    ):
        with T.Kernel(T.ceildiv(S, chunk), H, B, threads=threads) as (bs, bh, bb):
            qs, ks = T.alloc_shared((chunk, K), T.float32), T.alloc_shared((chunk, K), T.float32)
            up, kn = T.alloc_shared((chunk, K), T.float32), T.alloc_shared((chunk, K), T.float32)
            akk, aqk = T.alloc_fragment((chunk, chunk), T.float32), T.alloc_fragment((chunk, chunk), T.float32)
            for i, j in T.Parallel(chunk, K):
                d = gc[bb, bs * chunk + i, bh, j]
                qs[i, j] = q[bb, bs * chunk + i, bh, j] * T.exp(d) * scale
                up[i, j] = k[bb, bs * chunk + i, bh, j] * T.exp(d)
                kn[i, j] = k[bb, bs * chunk + i, bh, j] * T.exp(-d)
            T.gemm(up, kn, akk, transpose_B=True, clear_accum=True)
            T.gemm(qs, kn, aqk, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(chunk, chunk):
                akk[i, j] = T.if_then_else(i > j, akk[i, j] * beta[bb, bs * chunk + i, bh], 0)
                aqk[i, j] = T.if_then_else(i >= j, aqk[i, j], 0)
            T.copy(akk, Akk[bb, bs * chunk : (bs + 1) * chunk, bh, :])
            T.copy(aqk, Aqk[bb, bs * chunk : (bs + 1) * chunk, bh, :])

    return main


@tilelang.jit(out_idx=[-1])
def solve_lower(B, S, H, chunk, threads=64):
    """(I + A)^-1 row by row in shared memory."""

    @T.prim_func
    def main(A: T.Tensor((B, S, H, chunk), T.float32), out: T.Tensor((B, S, H, chunk), T.float32)):
        with T.Kernel(T.ceildiv(S, chunk), H, B, threads=threads) as (bs, bh, bb):
            a, inv = T.alloc_shared((chunk, chunk), T.float32), T.alloc_shared((chunk, chunk), T.float32)
            row = T.alloc_fragment((chunk,), T.float32)
            T.copy(A[bb, bs * chunk : (bs + 1) * chunk, bh, :], a)
            for i, j in T.Parallel(chunk, chunk):
                inv[i, j] = T.if_then_else(i == j, 1.0, 0.0)
            for i in T.serial(1, chunk):
                T.clear(row)
                for p in T.serial(i):
                    for j in T.Parallel(chunk):
                        row[j] += a[i, p] * inv[p, j]
                for j in T.Parallel(chunk):
                    inv[i, j] = inv[i, j] - row[j]
            T.copy(inv, out[bb, bs * chunk : (bs + 1) * chunk, bh, :])

    return main


@tilelang.jit(out_idx=[-1])
def chunk_states(B, S, H, K, V, chunk, scale, block_V=32, threads=128):
    NT = S // chunk

    @T.prim_func
    def main(
        q: T.Tensor((B, S, H, K), T.float32),
        k: T.Tensor((B, S, H, K), T.float32),
        v: T.Tensor((B, S, H, V), T.float32),
        gc: T.Tensor((B, S, H, K), T.float32),
        beta: T.Tensor((B, S, H), T.float32),
        inv: T.Tensor((B, S, H, chunk), T.float32),
        Aqk: T.Tensor((B, S, H, chunk), T.float32),
        O: T.Tensor((B, S, H, V), T.float32),
    ):
        with T.Kernel(T.ceildiv(V, block_V), H, B, threads=threads) as (bv, bh, bb):
            h = T.alloc_fragment((K, block_V), T.float32)
            h_s, w_s = T.alloc_shared((K, block_V), T.float32), T.alloc_shared((chunk, K), T.float32)
            inv_s, u_s = T.alloc_shared((chunk, chunk), T.float32), T.alloc_shared((chunk, block_V), T.float32)
            u, o = T.alloc_fragment((chunk, block_V), T.float32), T.alloc_fragment((chunk, block_V), T.float32)
            T.clear(h)
            for t in T.serial(NT):
                T.copy(h, h_s)
                T.copy(inv[bb, t * chunk : (t + 1) * chunk, bh, :], inv_s)
                # what the state says already: beta (v - (k e^g) h), solved by the inverse
                for i, j in T.Parallel(chunk, K):
                    w_s[i, j] = k[bb, t * chunk + i, bh, j] * T.exp(gc[bb, t * chunk + i, bh, j])
                T.gemm(w_s, h_s, u, clear_accum=True)
                for i, j in T.Parallel(chunk, block_V):
                    u_s[i, j] = (v[bb, t * chunk + i, bh, bv * block_V + j] - u[i, j]) * beta[bb, t * chunk + i, bh]
                T.gemm(inv_s, u_s, u, clear_accum=True)
                T.copy(u, u_s)
                for i, j in T.Parallel(chunk, K):
                    w_s[i, j] = q[bb, t * chunk + i, bh, j] * T.exp(gc[bb, t * chunk + i, bh, j]) * scale
                T.gemm(w_s, h_s, o, clear_accum=True)
                T.copy(Aqk[bb, t * chunk : (t + 1) * chunk, bh, :], inv_s)
                T.gemm(inv_s, u_s, o)
                T.copy(o, O[bb, t * chunk : (t + 1) * chunk, bh, bv * block_V : (bv + 1) * block_V])
                for i, j in T.Parallel(chunk, K):
                    w_s[i, j] = k[bb, t * chunk + i, bh, j] * T.exp(
                        gc[bb, (t + 1) * chunk - 1, bh, j] - gc[bb, t * chunk + i, bh, j]
                    )
                for i, j in T.Parallel(K, block_V):
                    h[i, j] = h[i, j] * T.exp(gc[bb, (t + 1) * chunk - 1, bh, i])
                T.gemm(w_s, u_s, h, transpose_A=True)

    return main


def reference(q, k, v, g, beta, scale):
    q, k, v, g, beta = (one.double() for one in (q, k, v, g, beta))
    B, S, H, K = q.shape
    h = torch.zeros(B, H, K, v.shape[-1], dtype=torch.float64, device=q.device)
    out = []
    for t in range(S):
        h = h * g[:, t].exp()[..., None]
        old = torch.einsum("bhk,bhkv->bhv", k[:, t], h)
        h = h + torch.einsum("bhk,bhv->bhkv", k[:, t], (v[:, t] - old) * beta[:, t][..., None])
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], h) * scale)
    return torch.stack(out, 1)


REAL_SIZES = [
    ("cumsum", lambda: chunk_cumsum_gates(1, 8192, 32, 128, 64)),
    ("products", lambda: chunk_products(1, 8192, 32, 128, 64, 0.088)),
    ("inverse", lambda: solve_lower(1, 8192, 32, 64)),
    ("states", lambda: chunk_states(1, 8192, 32, 128, 128, 64, 0.088)),
]

if __name__ == "__main__":
    B, S, H, K, V, chunk = 1, 48, 1, 16, 32, 16
    scale = K**-0.5
    q, k = (torch.nn.functional.normalize(torch.randn(B, S, H, K, device=dev), dim=-1) for _ in range(2))
    v, beta = torch.randn(B, S, H, V, device=dev), torch.rand(B, S, H, device=dev)
    g = -0.1 * torch.rand(B, S, H, K, device=dev)
    gc = chunk_cumsum_gates(B, S, H, K, chunk)(g)
    akk, aqk = chunk_products(B, S, H, K, chunk, scale)(q, k, gc, beta)
    inv = solve_lower(B, S, H, chunk)(akk)
    o = chunk_states(B, S, H, K, V, chunk, scale)(q, k, v, gc, beta, inv, aqk)
    torch.testing.assert_close(o.double(), reference(q, k, v, g, beta, scale), rtol=1e-3, atol=1e-4)
    print("kda ok")
