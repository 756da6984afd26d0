"""Products of low-bit weights, and sums that blocks add to one another."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, drawn, nan

import tilewright.language as T

bf = ml_dtypes.bfloat16


def mxfp4_grouped():
    """Experts' mxfp4 weights decoded into a tile of the author's layout; rows of tokens by a sorted list, padded with -1."""
    draw, rng = drawn(0)
    M, K, N, E, topk = 24, 256, 128, 4, 2
    BM, BN, BK, stages, threads, _split, scale_size = 32, 64, 64, 2, 128, 1, 32
    padding_M = -(-(M * topk + E * (BM - 1)) // BM) * BM
    num_blocks = padding_M // BM

    def factory(in_dtype="bfloat16", out_dtype="bfloat16", accum="float32", num_elems_per_byte=2):
        storage = "uint8"
        QK = K // num_elems_per_byte

        @T.macro
        def dequant(B_shared, B_local, B_deq_local, B_deq, Scale_shared, k):
            T.copy(B_shared, B_local)
            for i, j in T.Parallel(BN, BK):
                B_deq_local[i, j] = to_bf16(
                    B_local[i, j // num_elems_per_byte],
                    j % num_elems_per_byte,
                    Scale_shared[i, k * BK // scale_size + j // scale_size],
                )
            T.copy(B_deq_local, B_deq)

        def to_bf16(val, pos, scale):
            f4 = (val >> (pos.astype("uint8") * T.uint8(4))) & T.uint8(15)
            s = f4 >> T.uint8(3)
            e_f4 = (f4 & T.uint8(6)) >> T.uint8(1)
            m_f4 = f4 & T.uint8(1)
            e = T.min(T.cast(e_f4, "uint16") + T.uint16(126), T.uint16(254))
            mag = T.if_then_else(
                e_f4 == T.uint8(0),
                T.if_then_else(m_f4 == T.uint8(0), T.uint16(0), T.uint16(126 << 7)),
                (e << T.uint16(7)) | (m_f4.astype("uint16") << T.uint16(6)),
            )
            v = T.reinterpret(mag | (s.astype("uint16") << T.uint16(15)), "bfloat16")
            return v * T.reinterpret(scale.astype("uint16") << T.uint16(7), "bfloat16")

        @T.prim_func
        def main(
            A: T.Tensor((M, K), in_dtype),
            B: T.Tensor((E, N, QK), storage),
            Scale: T.Tensor((E, N, K // scale_size), storage),
            Bias: T.Tensor((E, N), out_dtype),
            topk_weights: T.Tensor((M * topk), out_dtype),
            sorted_token_ids: T.Tensor((padding_M), "int32"),
            expert_ids: T.Tensor((num_blocks), "int32"),
            C: T.Tensor((M, topk, N), out_dtype),
        ):
            with T.Kernel(T.ceildiv(N, BN), T.ceildiv(padding_M, BM), threads=threads) as (bx, by):
                A_shared = T.alloc_shared((BM, BK), in_dtype)
                B_shared = T.alloc_shared((BN, BK // num_elems_per_byte), storage)
                B_local = T.alloc_fragment((BN, BK // num_elems_per_byte), storage)
                B_deq_local = T.alloc_fragment((BN, BK), in_dtype)
                B_deq = T.alloc_shared((BN, BK), in_dtype)
                Scale_shared = T.alloc_shared((BN, K // scale_size), storage)
                Bias_shared = T.alloc_shared((BN), out_dtype)
                tw_local = T.alloc_fragment((BM), out_dtype)
                tid_shared = T.alloc_shared((BM), "int32")
                C_local = T.alloc_fragment((BM, BN), accum)
                C_shared = T.alloc_shared((BM, BN), out_dtype)
                expert_id = T.alloc_local((1), "int32")
                T.annotate_layout(
                    {
                        C_shared: T.Layout((BM, BN), lambda i, j: i * BN + (j ^ ((i % 8) * 8))),
                        B_deq: T.Layout((BN, BK), lambda i, j: i * BK + (j // 8 ^ i % 8) * 8 + j % 8),
                    }
                )
                T.use_swizzle(10)
                T.copy(sorted_token_ids[by * BM : (by + 1) * BM], tid_shared)
                expert_id[0] = expert_ids[by]
                for i in T.Parallel(BM):
                    tw_local[i] = T.if_then_else(tid_shared[i] != -1, topk_weights[tid_shared[i]], 0)
                for i in T.Parallel(BN):
                    Bias_shared[i] = Bias[expert_id[0], bx * BN + i]
                for i, j in T.Parallel(BN, K // scale_size):
                    Scale_shared[i, j] = Scale[expert_id[0], bx * BN + i, j]
                for i, j in T.Parallel(BM, BN):
                    C_local[i, j] = Bias_shared[j]
                tx = T.get_thread_binding()
                for k in T.Pipelined(K // BK, num_stages=stages):
                    for copy_i in T.serial(BM * BK // threads // 8):
                        base = copy_i * threads * 8 + tx * 8
                        if tid_shared[base // BK] != -1:
                            for v in T.vectorized(8):
                                A_shared[base // BK, base % BK + v] = A[
                                    tid_shared[base // BK] // topk, k * BK + base % BK + v
                                ]
                        else:
                            for v in T.vectorized(8):
                                A_shared[base // BK, base % BK + v] = T.bfloat16(0)
                    T.copy(B[expert_id[0], bx * BN, k * BK // num_elems_per_byte], B_shared)
                    dequant(B_shared, B_local, B_deq_local, B_deq, Scale_shared, k)
                    T.gemm(A_shared, B_deq, C_local, transpose_B=True)
                for i, j in T.Parallel(BM, BN):
                    C_local[i, j] = C_local[i, j] * tw_local[i]
                T.copy(C_local, C_shared)
                for copy_i in T.serial(BM * BN // threads // 8):
                    base = copy_i * threads * 8 + tx * 8
                    if tid_shared[base // BN] != -1:
                        for v in T.vectorized(8):
                            C[
                                tid_shared[base // BN] // topk, tid_shared[base // BN] % topk, bx * BN + base % BN + v
                            ] = C_shared[base // BN, base % BN + v]

        return main

    a, codes, sc, bias = (
        draw(M, K, dtype=bf),
        rng.integers(0, 256, (E, N, K // 2)).astype(np.uint8),
        rng.integers(124, 130, (E, N, K // 32)).astype(np.uint8),
        draw(E, N, dtype=bf),
    )
    tw = rng.random(M * topk).astype(bf)
    tab = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    tab = np.concatenate([tab, -tab])
    w = tab[np.stack([codes & 15, codes >> 4], -1).reshape(E, N, K)] * np.repeat(2.0 ** (sc.astype(int) - 127), 32, -1)
    choice = np.stack([rng.permutation(E)[:topk] for _ in range(M)]).reshape(-1)
    ids, ex = [], []
    for e in range(E):
        mine = np.flatnonzero(choice == e)
        pad = -(-len(mine) // BM) * BM
        ids += list(mine) + [-1] * (pad - len(mine))
        ex += [e] * (pad // BM)
    ids += [-1] * (padding_M - len(ids))
    ex += [0] * (num_blocks - len(ex))
    out = np.einsum("tk,tnk->tn", np.repeat(a.astype(float), topk, 0), w[choice]) + bias[choice].astype(float)
    out = out * tw.astype(float)[:, None]
    return Familiar(
        factory(),
        (a, codes, sc, bias, tw, np.array(ids, np.int32), np.array(ex, np.int32), nan(M, topk, N, dtype=bf)),
        {7: out.reshape(M, topk, N)},
        2e-2,
    )


def splitk_packed():
    """Parts of K, added two and four at a time."""
    _draw, rng = drawn(3)
    M, N, K, BM, BN, BK, S = 64, 128, 512, 64, 64, 32, 4

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
        H: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), S, threads=128) as (bx, by, bz):
            A_shared = T.alloc_shared((BM, BK), "float16")
            B_shared = T.alloc_shared((BK, BN), "float16")
            C_shared = T.alloc_shared((BM, BN), "float32")
            H_shared = T.alloc_shared((BM, BN), "float16")
            C_local = T.alloc_fragment((BM, BN), "float32")
            if bz == 0:
                for i, j in T.Parallel(BM, BN):
                    C_local[i, j] = 1.0
            else:
                T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K // S, BK), num_stages=0):
                T.copy(A[by * BM, bz * (K // S) + ko * BK], A_shared)
                for k, j in T.Parallel(BK, BN):
                    B_shared[k, j] = B[bz * (K // S) + ko * BK + k, bx * BN + j]
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C_shared)
            T.copy(C_local, H_shared)
            for i, j in T.Parallel(BM, BN // 4):
                T.atomic_addx4(C[by * BM + i, bx * BN + j * 4], C_shared[i, j * 4])
            for i, j in T.Parallel(BM, BN // 2):
                T.atomic_addx2(H[by * BM + i, bx * BN + j * 2], H_shared[i, j * 2])

    a, b = rng.integers(-2, 3, (M, K)).astype(np.float16), rng.integers(-2, 3, (K, N)).astype(np.float16)
    e = a.astype(float) @ b.astype(float) + 1
    return Familiar(main, (a, b, np.zeros((M, N), np.float32), np.zeros((M, N), np.float16)), {2: e, 3: e}, 0)


def w4_groupwise_zeros():
    """Nibbles in words along K, zeros in words along N."""
    draw, rng = drawn(7)
    M, N, K, g, BM, BN, BK = 48, 128, 256, 64, 16, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        qw: T.Tensor((K // 8, N), "int32"),
        qz: T.Tensor((K // g, N // 8), "int32"),
        sc: T.Tensor((K // g, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            As = T.alloc_shared((BM, BK), "float16")
            Qs = T.alloc_shared((BK // 8, BN), "int32")
            Ws = T.alloc_shared((BK, BN), "float16")
            zs = T.alloc_shared((BN // 8,), "int32")
            ss = T.alloc_shared((BN,), "float16")
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(K // BK, num_stages=2):
                T.copy(A[by * BM, k * BK], As)
                T.copy(qw[k * BK // 8, bx * BN], Qs)
                T.copy(qz[k * BK // g, bx * BN // 8], zs)
                T.copy(sc[k * BK // g, bx * BN], ss)
                for i, j in T.Parallel(BK, BN):
                    code = (Qs[i // 8, j] >> ((i % 8) * 4)) & 0xF
                    zero = ((zs[j // 8] >> ((j % 8) * 4)) & 0xF) + 1
                    Ws[i, j] = T.cast(code - zero, "float16") * ss[j]
                T.gemm(As, Ws, acc)
            T.copy(acc, C[by * BM, bx * BN])

    a = draw(M, K)
    codes, zeros = rng.integers(0, 16, (K, N)), rng.integers(0, 16, (K // g, N))
    s = (rng.random((K // g, N)) * 0.1).astype(np.float16)
    qw = np.zeros((K // 8, N), np.int64)
    for i in range(8):
        qw |= codes[i::8] << (4 * i)
    qz = np.zeros((K // g, N // 8), np.int64)
    for i in range(8):
        qz |= zeros[:, i::8] << (4 * i)
    w = (codes - np.repeat(zeros, g, 0) - 1) * np.repeat(s.astype(float), g, 0)
    return Familiar(
        main,
        (a, qw.astype(np.uint32).view(np.int32), qz.astype(np.uint32).view(np.int32), s, nan(M, N, dtype=np.float16)),
        {4: a.astype(float) @ w},
        1e-2,
    )


def fp8_two_level():
    """Scales of rows and of blocks by a second accumulator."""
    draw, rng = drawn(1)
    M, N, K, group, BM, BN, BK = 100, 256, 384, 128, 64, 128, 128
    M = T.dynamic("M")

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float8_e4m3fn"),
        B: T.Tensor((N, K), "float8_e4m3fn"),
        C: T.Tensor((M, N), "bfloat16"),
        sA: T.Tensor((M, T.ceildiv(K, group)), "float32"),
        sB: T.Tensor((T.ceildiv(N, group), T.ceildiv(K, group)), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            A_shared = T.alloc_shared((BM, BK), "float8_e4m3fn")
            B_shared = T.alloc_shared((BN, BK), "float8_e4m3fn")
            C_shared = T.alloc_shared((BM, BN), "bfloat16")
            Scale_C = T.alloc_shared((BM,), "float32")
            C_local = T.alloc_fragment((BM, BN), "float32")
            C_acc = T.alloc_fragment((BM, BN), "float32")
            T.use_swizzle(panel_size=10)
            T.clear(C_local)
            T.clear(C_acc)
            K_iters = T.ceildiv(K, BK)
            for k in T.Pipelined(K_iters, num_stages=4):
                T.copy(A[by * BM, k * BK], A_shared)
                T.copy(B[bx * BN, k * BK], B_shared)
                Scale_B = sB[bx * BN // group, k]
                for i in T.Parallel(BM):
                    Scale_C[i] = sA[by * BM + i, k] * Scale_B
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
                for i, j in T.Parallel(BM, BN):
                    C_acc[i, j] += C_local[i, j] * Scale_C[i]
                T.clear(C_local)
            T.copy(C_acc, C_shared)
            T.copy(C_shared, C[by * BM, bx * BN])

    m = 100
    a, b = draw(m, K, dtype=ml_dtypes.float8_e4m3fn), draw(N, K, dtype=ml_dtypes.float8_e4m3fn)
    sa, sb = (
        rng.random((m, K // group)).astype(np.float32) + 0.5,
        rng.random((N // group, K // group)).astype(np.float32) + 0.5,
    )
    x = a.astype(float) * np.repeat(sa, group, 1)
    y = b.astype(float) * np.repeat(np.repeat(sb, group, 0), group, 1)
    return Familiar(main, (a, b, nan(m, N, dtype=bf), sa, sb), {2: x @ y.T}, 2e-2)
