"""Hyper-connections: residual streams mixed by a doubly stochastic matrix (Sinkhorn), before and after a layer; forward and backward."""

import tilelang
import tilelang.language as T
import torch

torch.manual_seed(1)
dev = "cuda" if torch.cuda.is_available() else "cpu"


@tilelang.jit(pass_configs={tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True}, out_idx=[4, 5, 6])
def split_and_normalise(hc, repeat, eps, threads=32):
    tokens = T.dynamic("tokens")
    hc2 = hc * hc

    @T.prim_func
    def main(
        mixes: T.Tensor[(tokens, 2 * hc + hc2), T.float32],
        scale: T.Tensor[(3,), T.float32],
        base: T.Tensor[(2 * hc + hc2,), T.float32],
        unused: T.int32,
        pre: T.Tensor[(tokens, hc), T.float32],
        post: T.Tensor[(tokens, hc), T.float32],
        comb: T.Tensor[(tokens, hc, hc), T.float32],
    ):
        with T.Kernel(tokens, threads=threads) as i:
            mixed = T.alloc_shared(2 * hc + hc2, T.float32)
            cm = T.alloc_fragment((hc, hc), T.float32)
            T.copy(mixes[i, :], mixed)
            for j in T.Parallel(hc):
                pre[i, j] = T.sigmoid(mixed[j] * scale[0] + base[j]) + eps
            for j in T.Parallel(hc):
                post[i, j] = 2 * T.sigmoid(mixed[j + hc] * scale[1] + base[j + hc])
            for j, k in T.Parallel(hc, hc):
                cm[j, k] = mixed[j * hc + k + hc * 2] * scale[2] + base[j * hc + k + hc * 2]
            row_sum = T.alloc_fragment(hc, T.float32)
            col_sum = T.alloc_fragment(hc, T.float32)
            row_max = T.alloc_fragment(hc, T.float32)
            T.reduce_max(cm, row_max, dim=1)
            for j, k in T.Parallel(hc, hc):
                cm[j, k] = T.exp(cm[j, k] - row_max[j])
            T.reduce_sum(cm, row_sum, dim=1)
            for j, k in T.Parallel(hc, hc):
                cm[j, k] = cm[j, k] / row_sum[j] + eps
            T.reduce_sum(cm, col_sum, dim=0)
            for j, k in T.Parallel(hc, hc):
                cm[j, k] = cm[j, k] / (col_sum[k] + eps)
            for _ in T.serial(repeat - 1):
                T.reduce_sum(cm, row_sum, dim=1)
                for j, k in T.Parallel(hc, hc):
                    cm[j, k] = cm[j, k] / (row_sum[j] + eps)
                T.reduce_sum(cm, col_sum, dim=0)
                for j, k in T.Parallel(hc, hc):
                    cm[j, k] = cm[j, k] / (col_sum[k] + eps)
            T.copy(cm, comb[i, 0, 0])

    return main


@tilelang.jit
def post_mix(a, b, c, d, hc: int, hidden: int, n_thr: int = 128, h_blk: int = 128):
    n = T.dynamic("num_tokens")
    h = hidden
    a: T.Tensor((n, hc, hc), T.float32)
    b: T.Tensor((n, hc, h), T.bfloat16)
    c: T.Tensor((n, hc), T.float32)
    d: T.Tensor((n, h), T.bfloat16)
    x = T.empty((n, hc, h), T.bfloat16)
    with T.Kernel(n, threads=n_thr) as i_n:
        x_shared = T.alloc_shared((hc, h_blk), T.bfloat16)
        b_shared = T.alloc_shared((hc, h_blk), T.bfloat16)
        d_shared = T.alloc_shared(h_blk, T.bfloat16)
        x_local = T.alloc_fragment((hc, h_blk), T.float32)
        b_local = T.alloc_fragment((hc, h_blk), T.float32)
        d_local = T.alloc_fragment(h_blk, T.float32)
        a_local = T.alloc_fragment((hc, hc), T.float32)
        c_local = T.alloc_fragment(hc, T.float32)
        T.copy(a[i_n, 0, 0], a_local)
        T.copy(c[i_n, 0], c_local)
        for i0_h in T.Pipelined(T.ceildiv(h, h_blk), num_stages=2):
            T.copy(b[i_n, 0, i0_h * h_blk], b_shared, disable_tma=True)
            T.copy(d[i_n, i0_h * h_blk], d_shared, disable_tma=True)
            T.copy(b_shared, b_local)
            T.copy(d_shared, d_local)
            for i_hco, i1_h in T.Parallel(hc, h_blk):
                x_local[i_hco, i1_h] = c_local[i_hco] * d_local[i1_h]
                for i_hci in T.serial(hc):
                    x_local[i_hco, i1_h] += a_local[i_hci, i_hco] * b_local[i_hci, i1_h]
            T.copy(x_local, x_shared)
            T.copy(x_shared, x[i_n, 0, i0_h * h_blk], disable_tma=True)
    return x


@tilelang.jit(out_idx=[2, 3])
def pre_gemm_with_squares(hc, N, K, block_m=32, block_k=64, threads=128):
    M = T.dynamic("M")

    @T.prim_func
    def main(
        A: T.Tensor((M, K), T.bfloat16),
        B: T.Tensor((N, K), T.float32),
        C: T.Tensor((M, N), T.float32),
        sq: T.Tensor((M,), T.float32),
    ):
        with T.Kernel(T.ceildiv(M, block_m), threads=threads) as px:
            A_s = T.alloc_shared((block_m, block_k), T.bfloat16)
            B_s = T.alloc_shared((32, block_k), T.float32)
            A_l = T.alloc_fragment((block_m, block_k), T.float32)
            A_t = T.alloc_shared((block_m, block_k), T.float32)
            acc = T.alloc_fragment((block_m, 32), T.float32)
            part = T.alloc_fragment((block_m, 4), T.float32)
            total = T.alloc_fragment((block_m,), T.float32)
            T.clear(acc)
            T.clear(part)
            for pz in T.Pipelined(K // block_k, num_stages=2):
                T.copy(A[px * block_m, pz * block_k], A_s)
                T.copy(B[0, pz * block_k], B_s)
                T.copy(A_s, A_l)
                for jj in T.serial(block_k // 4):
                    for i, j in T.Parallel(block_m, 4):
                        part[i, j] += A_l[i, jj * 4 + j] * A_l[i, jj * 4 + j]
                T.copy(A_l, A_t)
                T.gemm(A_t, B_s, acc, transpose_B=True, clear_accum=False)
            T.reduce_sum(part, total)
            T.copy(total, sq[px * block_m])
            for i, j in T.Parallel(block_m, 32):
                if j < N and px * block_m + i < M:
                    C[px * block_m + i, j] = acc[i, j]

    return main


def main():
    hc, eps, repeat, n = 4, 1e-6, 5, 7
    mixes, scale, base = torch.randn(n, 24, device=dev), torch.randn(3, device=dev), torch.randn(24, device=dev)
    pre, post, comb = split_and_normalise(hc, repeat, eps)(mixes, scale, base, 3)
    m = mixes
    cm = (m[:, 8:] * scale[2] + base[8:]).view(n, 4, 4).softmax(-1) + eps
    cm = cm / (cm.sum(-2, keepdim=True) + eps)
    for _ in range(repeat - 1):
        cm = cm / (cm.sum(-1, keepdim=True) + eps)
        cm = cm / (cm.sum(-2, keepdim=True) + eps)
    torch.testing.assert_close(pre, torch.sigmoid(m[:, :4] * scale[0] + base[:4]) + eps)
    torch.testing.assert_close(post, 2 * torch.sigmoid(m[:, 4:8] * scale[1] + base[4:8]))
    torch.testing.assert_close(comb, cm, rtol=1e-4, atol=1e-5)
    b, d = (torch.randn(n, 4, 256, device=dev).bfloat16(), torch.randn(n, 256, device=dev).bfloat16())
    x = post_mix(comb, b, post, d, 4, 256)
    want = post[..., None] * d.float()[:, None] + torch.einsum("nio,nih->noh", comb, b.float())
    torch.testing.assert_close(x.float(), want, rtol=2e-2, atol=2e-2)
    A, B = torch.randn(45, 128, device=dev).bfloat16(), torch.randn(24, 128, device=dev)
    C, sq = pre_gemm_with_squares(hc, 24, 128)(A, B)
    torch.testing.assert_close(C, A.float() @ B.T, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(sq, A.float().square().sum(1), rtol=1e-3, atol=1e-3)
    print("right")


REAL_SIZES = [
    ("mixes", lambda: split_and_normalise(4, 20, 1e-6)),
    ("squares", lambda: pre_gemm_with_squares(4, 24, 16384)),
]

if __name__ == "__main__":
    main()
