"""Attention and its backward pass: grouped heads, sequences of any length, windows, sinks."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(out_idx=[3, 4], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def flashattn_fwd(
    batch,
    heads,
    seq_len,
    dim_qk,
    dim_v,
    is_causal,
    groups=1,
    block_M=128,
    block_N=64,
    stages=1,
    threads=128,
    window=None,
    sink=False,
    dtype="float16",
):
    scale = (1.0 / dim_qk) ** 0.5 * 1.44269504
    head_kv = heads // groups
    accum_dtype = "float"

    @T.prim_func
    def flash_fwd(
        Q: T.Tensor([batch, seq_len, heads, dim_qk], dtype),
        K: T.Tensor([batch, seq_len, head_kv, dim_qk], dtype),
        V: T.Tensor([batch, seq_len, head_kv, dim_v], dtype),
        Output: T.Tensor([batch, seq_len, heads, dim_v], dtype),
        lse: T.Tensor([batch, heads, seq_len], accum_dtype),
        Sinks: T.Tensor([heads], accum_dtype),
    ):
        with T.Kernel(T.ceildiv(seq_len, block_M), heads, batch, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, dim_qk], dtype)
            K_shared = T.alloc_shared([block_N, dim_qk], dtype)
            V_shared = T.alloc_shared([block_N, dim_v], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, dim_v], accum_dtype)
            scores_max = T.alloc_fragment([block_M], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_M], accum_dtype)
            scores_scale = T.alloc_fragment([block_M], accum_dtype)
            scores_sum = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)
            sinks = T.alloc_fragment([block_M], accum_dtype)
            T.annotate_layout({Q_shared: tilelang.layout.make_swizzled_layout(Q_shared)})
            T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            if sink:
                for i in T.Parallel(block_M):
                    sinks[i] = Sinks[by]
            end = (
                T.min(T.ceildiv(seq_len, block_N), T.ceildiv((bx + 1) * block_M, block_N))
                if is_causal
                else T.ceildiv(seq_len, block_N)
            )
            start = T.max(0, (bx * block_M - window) // block_N) if window is not None else 0
            for k in T.Pipelined(start, end, num_stages=stages):
                T.copy(K[bz, k * block_N : (k + 1) * block_N, by // groups, :], K_shared)
                if is_causal:
                    for i, j in T.Parallel(block_M, block_N):
                        q_idx = bx * block_M + i
                        k_idx = k * block_N + j
                        if window is not None:
                            acc_s[i, j] = T.if_then_else(
                                q_idx >= k_idx and q_idx < k_idx + window, 0, -T.infinity(acc_s.dtype)
                            )
                        else:
                            acc_s[i, j] = T.if_then_else(q_idx >= k_idx, 0, -T.infinity(acc_s.dtype))
                else:
                    for i, j in T.Parallel(block_M, block_N):
                        acc_s[i, j] = T.if_then_else(k * block_N + j >= seq_len, -T.infinity(acc_s.dtype), 0)
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(V[bz, k * block_N : (k + 1) * block_N, by // groups, :], V_shared)
                T.copy(scores_max, scores_max_prev)
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
                if window is not None:
                    for i in T.Parallel(block_M):
                        scores_max[i] = T.if_then_else(scores_max[i] == -T.infinity(accum_dtype), 0, scores_max[i])
                for i in T.Parallel(block_M):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                for i, j in T.Parallel(block_M, dim_v):
                    acc_o[i, j] *= scores_scale[i]
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                T.copy(acc_s, acc_s_cast)
                T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_M):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
            if sink:
                for i in T.Parallel(block_M):
                    logsum[i] += T.exp2(sinks[i] * 1.44269504 - scores_max[i] * scale)
            for i, j in T.Parallel(block_M, dim_v):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output[bz, bx * block_M : (bx + 1) * block_M, by, :])
            for i in T.Parallel(block_M):
                logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale
            T.copy(logsum, lse[bz, by, bx * block_M : (bx + 1) * block_M])

    return flash_fwd


@tilelang.jit(out_idx=[2])
def flashattn_bwd_preprocess(batch, heads, seq_len, dim_v, blk=32, dtype="float16"):
    accum_dtype = "float"
    shape = [batch, seq_len, heads, dim_v]

    @T.prim_func
    def flash_bwd_prep(
        O: T.Tensor(shape, dtype), dO: T.Tensor(shape, dtype), Delta: T.Tensor([batch, heads, seq_len], accum_dtype)
    ):
        with T.Kernel(heads, T.ceildiv(seq_len, blk), batch) as (bx, by, bz):
            o = T.alloc_fragment([blk, blk], dtype)
            do = T.alloc_fragment([blk, blk], dtype)
            acc = T.alloc_fragment([blk, blk], accum_dtype)
            delta = T.alloc_fragment([blk], accum_dtype)
            T.clear(acc)
            for k in range(T.ceildiv(dim_v, blk)):
                T.copy(O[bz, by * blk : (by + 1) * blk, bx, k * blk : (k + 1) * blk], o)
                T.copy(dO[bz, by * blk : (by + 1) * blk, bx, k * blk : (k + 1) * blk], do)
                for i, j in T.Parallel(blk, blk):
                    acc[i, j] += o[i, j] * do[i, j]
            T.reduce_sum(acc, delta, 1)
            T.copy(delta, Delta[bz, bx, by * blk : (by + 1) * blk])

    return flash_bwd_prep


def make_dq_layout(dQ):
    return T.Layout(dQ.shape, lambda b, l, h, d: [b, l // 8, h, d // 8, (d % 2), 4 * (l % 8) + (d % 8) // 2])


@tilelang.jit(out_idx=[1])
def flashattn_bwd_postprocess(batch, heads, seq_len, dim_qk, blk=64, dtype="float16"):
    accum_dtype = "float"
    shape = [batch, seq_len, heads, dim_qk]

    @T.prim_func
    def flash_bwd_post(dQ: T.Tensor(shape, accum_dtype), dQ_out: T.Tensor(shape, dtype)):
        with T.Kernel(T.ceildiv(seq_len, blk), heads, batch, threads=128) as (bx, by, bz):
            T.annotate_layout({dQ: make_dq_layout(dQ)})
            T.copy(dQ[bz, bx * blk : (bx + 1) * blk, by, :], dQ_out[bz, bx * blk : (bx + 1) * blk, by, :])

    return flash_bwd_post


@tilelang.jit(pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def flashattn_bwd(
    batch,
    heads,
    seq_len,
    dim_qk,
    dim_v,
    is_causal,
    block_M,
    block_N,
    threads=256,
    num_stages=2,
    groups=1,
    style="atomic",
    dtype="float16",
):
    sm_scale = (1.0 / dim_qk) ** 0.5
    scale = sm_scale * 1.44269504
    head_kv = heads // groups
    accum_dtype = "float"

    @T.prim_func
    def flash_bwd(
        Q: T.Tensor([batch, seq_len, heads, dim_qk], dtype),
        K: T.Tensor([batch, seq_len, head_kv, dim_qk], dtype),
        V: T.Tensor([batch, seq_len, head_kv, dim_v], dtype),
        dO: T.Tensor([batch, seq_len, heads, dim_v], dtype),
        lse: T.Tensor([batch, heads, seq_len], accum_dtype),
        Delta: T.Tensor([batch, heads, seq_len], accum_dtype),
        dQ: T.Tensor([batch, seq_len, heads, dim_qk], accum_dtype),
        dK: T.Tensor([batch, seq_len, head_kv, dim_qk], accum_dtype),
        dV: T.Tensor([batch, seq_len, head_kv, dim_v], accum_dtype),
    ):
        with T.Kernel(heads, T.ceildiv(seq_len, block_M), batch, threads=threads) as (bx, by, bz):
            K_shared = T.alloc_shared([block_M, dim_qk], dtype)
            dsT_shared = T.alloc_shared([block_M, block_N], dtype)
            q = T.alloc_shared([block_N, dim_qk], dtype)
            V_shared = T.alloc_shared([block_M, dim_v], dtype)
            qkT = T.alloc_fragment([block_M, block_N], accum_dtype)
            dsT = T.alloc_fragment([block_M, block_N], accum_dtype)
            qkT_cast = T.alloc_fragment([block_M, block_N], dtype)
            dsT_cast = T.alloc_fragment([block_M, block_N], dtype)
            lse_shared = T.alloc_shared([block_N], accum_dtype)
            delta = T.alloc_shared([block_N], accum_dtype)
            do = T.alloc_shared([block_N, dim_v], dtype)
            dv = T.alloc_fragment([block_M, dim_v], accum_dtype)
            dk = T.alloc_fragment([block_M, dim_qk], accum_dtype)
            dq = T.alloc_fragment([block_N, dim_qk], accum_dtype)
            dk_shared = T.alloc_shared([block_M, dim_qk], accum_dtype)
            dv_shared = T.alloc_shared([block_M, dim_v], accum_dtype)
            dq_shared = T.alloc_shared([block_N, dim_qk], accum_dtype)
            T.annotate_layout({K_shared: tilelang.layout.make_swizzled_layout(K_shared)})
            if style == "layout":
                T.annotate_layout({dQ: make_dq_layout(dQ)})
            T.copy(K[bz, by * block_M : (by + 1) * block_M, bx // groups, :], K_shared)
            T.copy(V[bz, by * block_M : (by + 1) * block_M, bx // groups, :], V_shared)
            T.clear(dv)
            T.clear(dk)
            loop_st = T.floordiv(by * block_M, block_N) if is_causal else 0
            loop_ed = T.ceildiv(seq_len, block_N)
            for k in T.Pipelined(loop_st, loop_ed, num_stages=num_stages):
                T.copy(Q[bz, k * block_N : (k + 1) * block_N, bx, :], q)
                T.clear(qkT)
                T.gemm(K_shared, q, qkT, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(dO[bz, k * block_N : (k + 1) * block_N, bx, :], do)
                T.clear(dsT)
                T.gemm(V_shared, do, dsT, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(lse[bz, bx, k * block_N : (k + 1) * block_N], lse_shared)
                for i, j in T.Parallel(block_M, block_N):
                    qkT[i, j] = T.exp2(qkT[i, j] * scale - lse_shared[j])
                if is_causal:
                    for i, j in T.Parallel(block_M, block_N):
                        qkT[i, j] = T.if_then_else(by * block_M + i <= k * block_N + j, qkT[i, j], 0)
                T.copy(qkT, qkT_cast)
                T.gemm(qkT_cast, do, dv, policy=T.GemmWarpPolicy.FullRow)
                T.copy(Delta[bz, bx, k * block_N : (k + 1) * block_N], delta)
                for i, j in T.Parallel(block_M, block_N):
                    dsT_cast[i, j] = qkT[i, j] * (dsT[i, j] - delta[j]) * sm_scale
                T.gemm(dsT_cast, q, dk, policy=T.GemmWarpPolicy.FullRow)
                T.copy(dsT_cast, dsT_shared)
                T.clear(dq)
                T.gemm(dsT_shared, K_shared, dq, transpose_A=True)
                if style == "tma":
                    T.copy(dq, dq_shared)
                    T.atomic_add(dQ[bz, k * block_N : (k + 1) * block_N, bx, :], dq_shared, use_tma=True)
                elif style == "layout":
                    for i, j in T.Parallel(block_N, dim_qk):
                        T.atomic_add(dQ[bz, k * block_N + i, bx, j], dq[i, j])
                else:
                    T.atomic_add(dQ[bz, k * block_N : (k + 1) * block_N, bx, :], dq)
            if style == "tma":
                T.copy(dv, dv_shared)
                T.atomic_add(dV[bz, by * block_M : (by + 1) * block_M, bx // groups, :], dv_shared, use_tma=True)
                T.copy(dk, dk_shared)
                T.atomic_add(dK[bz, by * block_M : (by + 1) * block_M, bx // groups, :], dk_shared, use_tma=True)
            else:
                for i, j in T.Parallel(block_M, dim_v):
                    T.atomic_add(dV[bz, by * block_M + i, bx // groups, j], dv[i, j])
                for i, j in T.Parallel(block_M, dim_qk):
                    T.atomic_add(dK[bz, by * block_M + i, bx // groups, j], dk[i, j])

    return flash_bwd


REAL_SIZES = []
for d, m, n, s, t in (
    (64, 128, 128, 2, 128),
    (128, 128, 128, 2, 256),
    (128, 64, 64, 1, 128),
    (192, 128, 64, 2, 256),
    (256, 64, 64, 1, 128),
    (256, 128, 64, 2, 256),
):
    for causal in (False, True):
        REAL_SIZES.append(
            (
                f"fwd {d} {m}x{n} s{s} t{t} causal={causal}",
                lambda d=d, m=m, n=n, s=s, t=t, c=causal: flashattn_fwd(
                    1, 32, 4096, d, min(d, 128) if d == 192 else d, c, 4, m, n, s, t
                ),
            )
        )
REAL_SIZES += [
    (
        "fwd window sink bf16",
        lambda: flashattn_fwd(1, 32, 4096, 128, 128, True, 8, 128, 128, 2, 256, 128, True, "bfloat16"),
    ),
    ("prep", lambda: flashattn_bwd_preprocess(1, 32, 4096, 128)),
    ("post", lambda: flashattn_bwd_postprocess(1, 32, 4096, 128)),
    ("bwd layout 64", lambda: flashattn_bwd(1, 32, 4096, 64, 64, True, 128, 128, 256, 2, 1, "layout")),
    ("bwd atomic 128", lambda: flashattn_bwd(1, 32, 4096, 128, 128, True, 128, 32, 256, 2, 4)),
    ("bwd tma 128", lambda: flashattn_bwd(1, 32, 4096, 128, 128, False, 128, 32, 256, 2, 4, "tma")),
    ("bwd 192/128 tma", lambda: flashattn_bwd(1, 32, 4096, 192, 128, True, 128, 32, 256, 1, 16, "tma")),
    ("bwd 64 s0 128t", lambda: flashattn_bwd(1, 32, 4096, 64, 64, True, 64, 64, 128, 0)),
]

if __name__ == "__main__":
    B, S, H, G = 1, 128, 4, 2

    def ref(q, k, v, causal, window=None, sink=None):
        k, v = k.repeat_interleave(q.shape[2] // k.shape[2], 2), v.repeat_interleave(q.shape[2] // v.shape[2], 2)
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        i, j = torch.arange(S, device=dev)[:, None], torch.arange(S, device=dev)
        ok = (i >= j) if causal else torch.ones(S, S, dtype=torch.bool, device=dev)
        if window:
            ok = ok & (i < j + window)
        s = s.masked_fill(~ok, float("-inf"))
        if sink is not None:
            s = torch.cat([s, sink.double()[None, :, None, None].expand(B, H, S, 1)], -1)
            return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1)[..., :-1], v)
        return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v)

    for D, DV, causal, w, sk in ((64, 64, True, None, False), (32, 64, False, None, False), (64, 32, True, 40, True)):
        q, k, v = (
            torch.randn(B, S, H, D, device=dev).half(),
            torch.randn(B, S, H // G, D, device=dev).half(),
            torch.randn(B, S, H // G, DV, device=dev).half(),
        )
        sink = torch.randn(H, device=dev)
        o, lse = flashattn_fwd(B, H, S, D, DV, causal, G, 64, 64, 2, 128, w, sk)(q, k, v, sink)
        torch.testing.assert_close(
            o.double(), ref(q.double(), k.double(), v.double(), causal, w, sink if sk else None), rtol=1e-2, atol=1e-2
        )
    for style in ("atomic", "tma", "layout"):
        D, DV, G = 64, 32, 2 if style != "layout" else 1
        q, k, v = (
            torch.randn(B, S, H, D, device=dev).half(),
            torch.randn(B, S, H // G, D, device=dev).half(),
            torch.randn(B, S, H // G, DV, device=dev).half(),
        )
        o, lse = flashattn_fwd(B, H, S, D, DV, True, G, 64, 64, 1, 128)(q, k, v, torch.zeros(H, device=dev))
        do = torch.randn_like(o)
        qd, kd, vd = (x.double().requires_grad_() for x in (q, k, v))
        ref(qd, kd, vd, True).backward(do.double())
        delta = flashattn_bwd_preprocess(B, H, S, DV)(o, do)
        dq, dk, dv = (
            torch.zeros(B, S, H, D, device=dev),
            torch.zeros(B, S, H // G, D, device=dev),
            torch.zeros(B, S, H // G, DV, device=dev),
        )
        flashattn_bwd(B, H, S, D, DV, True, 64, 32, 128, 2, G, style)(q, k, v, do, lse, delta, dq, dk, dv)
        if style == "layout":
            dq = flashattn_bwd_postprocess(B, H, S, D)(dq)
        for name, got, want in (("dq", dq, qd), ("dk", dk, kd), ("dv", dv, vd)):
            assert torch.allclose(got.double(), want.grad, rtol=3e-2, atol=3e-2), (style, name)
    print("ok")
