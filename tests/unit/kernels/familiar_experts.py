"""Rows of experts: gathered by sorted lists, in groups with offsets, two products with an activation between them."""

import numpy as np
from familiar_program import Familiar, drawn, nan

import tilewright.language as T


def fused_experts():
    """Gather tokens, gate and up, SiLU, then down with weights scattered by atomics."""
    normal, rng = drawn(0)
    tokens, hidden, inter, experts, topk, BM, BN, BK = 40, 64, 96, 4, 2, 16, 32, 32
    pads = 8 * BM

    @T.prim_func
    def main(
        X: T.Tensor((tokens, hidden), "float16"),
        W1: T.Tensor((experts, inter, hidden), "float16"),
        W3: T.Tensor((experts, inter, hidden), "float16"),
        W2: T.Tensor((experts, hidden, inter), "float16"),
        sorted_ids: T.Tensor((pads,), "int32"),
        expert_of: T.Tensor((pads // BM,), "int32"),
        num_blocks: T.Tensor((1,), "int32"),
        weights: T.Tensor((tokens * topk,), "float32"),
        up: T.Tensor((pads, inter), "float16"),
        Y: T.Tensor((tokens, hidden), "float32"),
    ):
        with T.Kernel(pads // BM, T.ceildiv(inter, BN), threads=128) as (bx, by):
            xs = T.alloc_shared((BM, BK), "float16")
            w1 = T.alloc_shared((BN, BK), "float16")
            w3 = T.alloc_shared((BN, BK), "float16")
            g = T.alloc_fragment((BM, BN), "float32")
            u = T.alloc_fragment((BM, BN), "float32")
            if bx < num_blocks[0]:
                e = expert_of[bx]
                T.clear(g)
                T.clear(u)
                for k in T.Pipelined(T.ceildiv(hidden, BK), num_stages=2):
                    for i, j in T.Parallel(BM, BK):
                        xs[i, j] = T.if_then_else(
                            sorted_ids[bx * BM + i] < tokens * topk, X[sorted_ids[bx * BM + i] // topk, k * BK + j], 0
                        )
                    T.copy(W1[e, by * BN, k * BK], w1)
                    T.copy(W3[e, by * BN, k * BK], w3)
                    T.gemm(xs, w1, g, transpose_B=True)
                    T.gemm(xs, w3, u, transpose_B=True)
                for i, j in T.Parallel(BM, BN):
                    g[i, j] = g[i, j] * T.sigmoid(g[i, j])
                    up[bx * BM + i, by * BN + j] = g[i, j] * u[i, j]
        with T.Kernel(pads // BM, T.ceildiv(hidden, BN), threads=128) as (bx, by):
            a = T.alloc_shared((BM, BK), "float16")
            w = T.alloc_shared((BN, BK), "float16")
            c = T.alloc_fragment((BM, BN), "float32")
            if bx < num_blocks[0]:
                T.clear(c)
                for k in T.Pipelined(T.ceildiv(inter, BK), num_stages=2):
                    T.copy(up[bx * BM, k * BK], a)
                    T.copy(W2[expert_of[bx], by * BN, k * BK], w)
                    T.gemm(a, w, c, transpose_B=True)
                for i, j in T.Parallel(BM, BN):
                    if sorted_ids[bx * BM + i] < tokens * topk:
                        T.atomic_add(
                            Y[sorted_ids[bx * BM + i] // topk, by * BN + j], c[i, j] * weights[sorted_ids[bx * BM + i]]
                        )

    x = normal(tokens, hidden, scale=0.5)
    w1, w3 = normal(experts, inter, hidden, scale=0.2), normal(experts, inter, hidden, scale=0.2)
    w2 = normal(experts, hidden, inter, scale=0.2)
    route = np.stack([rng.permutation(experts)[:topk] for _ in range(tokens)])
    wt = rng.random(tokens * topk).astype(np.float32)
    ids, eo = [], []
    for e in range(experts):
        mine = np.argwhere(route.reshape(-1) == e)[:, 0].tolist()
        while len(mine) % BM:
            mine.append(tokens * topk)
        ids += mine
        eo += [e] * (len(mine) // BM)
    nb = len(eo)
    ids += [tokens * topk] * (pads - len(ids))
    eo += [0] * (pads // BM - nb)
    assert len(ids) == pads, len(ids)
    y = np.zeros((tokens, hidden))
    for t in range(tokens):
        for s in range(topk):
            e = route[t, s]
            gg = w1[e].astype(float) @ x[t].astype(float)
            uu = w3[e].astype(float) @ x[t].astype(float)
            y[t] += wt[t * topk + s] * (w2[e].astype(float) @ (gg / (1 + np.exp(-gg)) * uu))
    return Familiar(
        main,
        (
            x,
            w1,
            w3,
            w2,
            np.array(ids, np.int32),
            np.array(eo, np.int32),
            np.array([nb], np.int32),
            wt,
            nan(pads, inter, dtype=np.float16),
            np.zeros((tokens, hidden), np.float32),
        ),
        {9: y},
        1e-2,
    )


def groups_with_offsets():
    """Which group a block of rows belongs to is found in an array of the thread."""
    normal, _ = drawn(1)
    sizes = [30, 0, 65, 17]
    G = 4
    K, N, BM, BN, BK = 96, 80, 64, 64, 32
    total = sum(sizes)
    m_blocks = sum(-(-s // BM) for s in sizes)

    @T.prim_func
    def main(
        A: T.Tensor((total, K), "float16"),
        B: T.Tensor((G, N, K), "float16"),
        sz: T.Tensor((G,), "int32"),
        off: T.Tensor((G,), "int32"),
        padded: T.Tensor((G,), "int32"),
        C: T.Tensor((total, N), "float16"),
    ):
        with T.Kernel(m_blocks, T.ceildiv(N, BN), threads=128) as (bx, by):
            As = T.alloc_shared([BM, BK], "float16")
            Bs = T.alloc_shared([BN, BK], "float16")
            acc = T.alloc_fragment([BM, BN], "float32")
            cur = T.alloc_local([1], "int32")
            size = T.alloc_local([1], "int32")
            m_start_padded = bx * BM
            for i in range(G):
                inside = T.if_then_else(m_start_padded >= padded[i], i, -1)
                cur[0] = T.if_then_else(inside >= 0, i, cur[0]) if i > 0 else 0
            size[0] = sz[cur[0]]
            m_start = m_start_padded - padded[cur[0]] + off[cur[0]]
            actual = T.max(0, T.min(BM, size[0] + padded[cur[0]] - m_start_padded))
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
                T.copy(A[m_start : m_start + BM, k * BK : (k + 1) * BK], As)
                T.copy(B[cur[0], by * BN : (by + 1) * BN, k * BK : (k + 1) * BK], Bs)
                T.gemm(As, Bs, acc, transpose_B=True)
            for i, j in T.Parallel(BM, BN):
                if i < actual:
                    C[m_start + i, by * BN + j] = acc[i, j]

    a, b = normal(total, K), normal(G, N, K, scale=0.3)
    off = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
    pad = np.concatenate([[0], np.cumsum([-(-s // BM) * BM for s in sizes])[:-1]]).astype(np.int32)
    out = np.concatenate(
        [a[o : o + s].astype(float) @ b[g].astype(float).T for g, (o, s) in enumerate(zip(off, sizes))]
    )
    return Familiar(main, (a, b, np.array(sizes, np.int32), off, pad, nan(total, N, dtype=np.float16)), {5: out}, 5e-3)


def expert_in_a_scalar(array=False, persistent=None):
    """Which weight a block multiplies by stands in a scalar, or an array of one element, that is set from its index."""
    groups, M, N, K = 4, 64, 128, 256

    @T.prim_func
    def main(
        A: T.Tensor((groups * M, K), "float16"),
        B: T.Tensor((groups, N, K), "float16"),
        order: T.Tensor((groups,), "int32"),
        C: T.Tensor((groups * M, N), "float32"),
    ):
        with T.Kernel(N // 64, groups, threads=128, persistent=persistent) as (bx, by):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            expert = T.alloc_local((1,), "int32") if array else T.alloc_var("int32")
            if array:
                expert[0] = order[by]
            else:
                expert = order[by]
            T.clear(c)
            for k in T.Pipelined(K // 64, num_stages=3):
                T.copy(A[by * 64, k * 64], a)
                T.copy(B[expert[0] if array else expert, bx * 64 : bx * 64 + 64, k * 64 : k * 64 + 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 64, bx * 64])

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((groups * M, K), (groups, N, K)))
    order = np.array([2, 0, 3, 1], np.int32)
    parts = [a[g * M : (g + 1) * M].astype(float) @ b[e].astype(float).T for g, e in enumerate(order)]
    arguments = (a, b, order, nan(groups * M, N))
    return Familiar(main, arguments, {3: np.concatenate(parts)}, 0, ("UTMALDG", "HGMMA", "UTMASTG"))
