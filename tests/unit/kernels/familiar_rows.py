"""Work on rows: the largest, running sums, normalisation backwards, losses over a vocabulary, rotations, narrow casts."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, drawn, nan

import tilewright.language as T

bf = ml_dtypes.bfloat16
f8 = ml_dtypes.float8_e4m3fn


def largest():
    """The largest few of each row, one after the other."""
    normal, _ = drawn(0)
    M, N, k, BM = 33, 128, 6, 16

    @T.prim_func
    def main(
        logits: T.Tensor([M, N], "float32"), gates: T.Tensor([M, k], "float32"), indices: T.Tensor([M, k], "int32")
    ):
        with T.Kernel(T.ceildiv(M, BM), threads=128) as bx:
            frag = T.alloc_fragment([BM, N], "float32")
            max_val = T.alloc_fragment([BM], "float32")
            expand = T.alloc_fragment([BM, N], "int32")
            max_idx = T.alloc_fragment([BM], "int32")
            T.copy(logits[bx * BM, 0], frag)
            for kk in T.serial(k):
                T.fill(expand, -1)
                T.reduce_max(frag, max_val, dim=1, clear=True)
                for i, j in T.Parallel(BM, N):
                    expand[i, j] = T.if_then_else(max_val[i] == frag[i, j], j, expand[i, j])
                T.reduce_max(expand, max_idx, dim=1, clear=True)
                for i, j in T.Parallel(BM, N):
                    frag[i, j] = T.if_then_else(max_val[i] == frag[i, j], -10000.0, frag[i, j])
                for i in T.Parallel(BM):
                    gates[bx * BM + i, kk] = max_val[i]
                    indices[bx * BM + i, kk] = max_idx[i]

    x = normal(M, N, dtype=np.float32)
    o = np.argsort(-x, 1)[:, :k]
    return Familiar(main, (x, nan(M, k), np.full((M, k), -7, np.int32)), {1: np.take_along_axis(x, o, 1), 2: o}, 0)


def radix_select():
    """Histogram of the high byte in shared memory, suffix counts, threshold: top-k by counting."""
    normal, _ = drawn(1)
    N, K, RADIX, BLOCK = 700, 50, 256, 256

    @T.prim_func
    def main(
        x: T.Tensor((2, N), "float32"),
        count: T.Tensor((2, RADIX), "int32"),
        threshold: T.Tensor((2,), "int32"),
        index: T.Tensor((2, N), "int32"),
        found: T.Tensor((2,), "int32"),
    ):
        with T.Kernel(2, threads=BLOCK) as bx:
            tx = T.get_thread_binding()
            hist = T.alloc_shared([RADIX + 1], "int32")
            s_thr = T.alloc_shared([1], "int32")
            s_num = T.alloc_shared([1], "int32")
            bits = T.alloc_var("uint32")
            key = T.alloc_var("uint32")
            own = T.alloc_var("int32")
            T.fill(hist, 0)
            T.fill(s_num, 0)
            T.sync_threads()
            for s in T.serial(T.ceildiv(N, BLOCK)):
                if s * BLOCK + tx < N:
                    bits = T.reinterpret(x[bx, s * BLOCK + tx], "uint32")
                    key = T.if_then_else(x[bx, s * BLOCK + tx] < 0, ~bits, bits | T.uint32(0x80000000))
                    T.atomic_add(hist[T.cast(key >> 24, "int32")], 1)
            T.sync_threads()
            if tx < RADIX:
                count[bx, tx] = hist[tx]
            for i in T.serial(8):
                offset = 1 << i
                T.sync_threads()
                own = 0
                if tx < RADIX - offset:
                    own = hist[tx] + hist[tx + offset]
                T.sync_threads()
                if tx < RADIX - offset:
                    hist[tx] = own
            T.sync_threads()
            if hist[tx] >= K and hist[tx + 1] < K:
                s_thr[0] = tx
            T.sync_threads()
            for s in T.serial(T.ceildiv(N, BLOCK)):
                if s * BLOCK + tx < N:
                    bits = T.reinterpret(x[bx, s * BLOCK + tx], "uint32")
                    key = T.if_then_else(x[bx, s * BLOCK + tx] < 0, ~bits, bits | T.uint32(0x80000000))
                    if T.cast(key >> 24, "int32") >= s_thr[0]:
                        pos = T.atomic_add(s_num[0], 1, return_prev=True)
                        index[bx, pos] = s * BLOCK + tx
            T.sync_threads()
            if tx == 0:
                threshold[bx] = s_thr[0]
                found[bx] = s_num[0]

    x = normal(2, N, dtype=np.float32)
    b = x.view(np.uint32)
    key = np.where(x < 0, ~b, b | 0x80000000)
    hi = (key >> 24).astype(int)
    cnt = np.stack([np.bincount(h, minlength=256) for h in hi])
    suf = cnt[:, ::-1].cumsum(1)[:, ::-1]
    thr = np.array([np.max(np.nonzero(s >= K)) for s in suf])
    return Familiar(
        main,
        (
            x,
            np.full((2, 256), -1, np.int32),
            np.full(2, -1, np.int32),
            np.full((2, N), -1, np.int32),
            np.full(2, -1, np.int32),
        ),
        {1: cnt, 2: thr, 4: (hi >= thr[:, None]).sum(1)},
        0,
    )


def running_sums():
    """Both ways along a row, and where its largest element is."""
    normal, _ = drawn(2)
    M, N = 20, 100

    @T.prim_func
    def main(
        x: T.Tensor((M, N), "float32"),
        c: T.Tensor((M, N), "float32"),
        r: T.Tensor((M, N), "float32"),
        am: T.Tensor((M,), "int32"),
    ):
        with T.Kernel(T.ceildiv(M, 8), threads=64) as b:
            xs = T.alloc_shared((8, 128), "float32")
            cs = T.alloc_shared((8, 128), "float32")
            f = T.alloc_fragment((8, 128), "float32")
            top = T.alloc_fragment((8,), "float32")
            where = T.alloc_fragment((8, 128), "int32")
            first = T.alloc_fragment((8,), "int32")
            T.copy(x[b * 8, 0], xs)
            T.cumsum(src=xs, dst=cs, dim=1)
            T.copy(cs, c[b * 8, 0])
            T.cumsum(src=xs, dim=1, reverse=True)
            T.copy(xs, r[b * 8, 0])
            T.copy(x[b * 8, 0], f)
            for i, j in T.Parallel(8, 128):
                f[i, j] = T.if_then_else(j < N, f[i, j], -T.infinity("float32"))
            T.reduce_max(f, top, dim=1)
            for i, j in T.Parallel(8, 128):
                where[i, j] = T.if_then_else(f[i, j] == top[i], j, N)
            T.reduce_min(where, first, dim=1)
            T.copy(first, am[b * 8])

    x = normal(M, N, dtype=np.float32)
    return Familiar(
        main,
        (x, nan(M, N), nan(M, N), np.full(M, -1, np.int32)),
        {1: x.astype(float).cumsum(1), 2: x.astype(float)[:, ::-1].cumsum(1)[:, ::-1], 3: x.argmax(1)},
        1e-4,
    )


def layer_norm_backward():
    """Sums of columns over all blocks are added atomically."""
    normal, _ = drawn(3)
    M, N, BM = 50, 96, 8

    @T.prim_func
    def main(
        dy: T.Tensor((M, N), "float16"),
        x: T.Tensor((M, N), "float16"),
        w: T.Tensor((N,), "float16"),
        dx: T.Tensor((M, N), "float16"),
        dw: T.Tensor((N,), "float32"),
        db: T.Tensor((N,), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, BM), threads=128) as bx:
            X = T.alloc_fragment((BM, N), "float32")
            G = T.alloc_fragment((BM, N), "float32")
            tmp = T.alloc_fragment((BM, N), "float32")
            mean = T.alloc_fragment((BM,), "float32")
            var = T.alloc_fragment((BM,), "float32")
            c1 = T.alloc_fragment((BM,), "float32")
            c2 = T.alloc_fragment((BM,), "float32")
            part = T.alloc_fragment((N,), "float32")
            T.copy(x[bx * BM : (bx + 1) * BM, :], X)
            T.copy(dy[bx * BM : (bx + 1) * BM, :], G)
            T.reduce_sum(X, mean, dim=1)
            for i in T.Parallel(BM):
                mean[i] /= N
            for i, j in T.Parallel(BM, N):
                X[i, j] -= mean[i]
                tmp[i, j] = X[i, j] * X[i, j]
            T.reduce_sum(tmp, var, dim=1)
            for i in T.Parallel(BM):
                var[i] = T.rsqrt(var[i] / N + 1e-5)
            for i, j in T.Parallel(BM, N):
                X[i, j] *= var[i]
                tmp[i, j] = G[i, j] * X[i, j]
            T.reduce_sum(tmp, part, dim=0)
            for j in T.Parallel(N):
                T.atomic_add(dw[j], part[j])
            T.reduce_sum(G, part, dim=0)
            T.atomic_add(db[0:N], part)
            for i, j in T.Parallel(BM, N):
                G[i, j] *= w[j]
                tmp[i, j] = G[i, j] * X[i, j]
            T.reduce_sum(G, c1, dim=1)
            T.reduce_sum(tmp, c2, dim=1)
            for i, j in T.Parallel(BM, N):
                tmp[i, j] = (G[i, j] - c1[i] / N - X[i, j] * c2[i] / N) * var[i]
            T.copy(tmp, dx[bx * BM : (bx + 1) * BM, :])

    dy, x, w = normal(M, N), normal(M, N), normal(N)
    X = x.astype(float)
    xc = X - X.mean(1, keepdims=True)
    rs = 1 / np.sqrt(xc.var(1, keepdims=True) + 1e-5)
    xh = xc * rs
    g = dy.astype(float) * w.astype(float)
    dx = (g - g.mean(1, keepdims=True) - xh * (g * xh).mean(1, keepdims=True)) * rs
    return Familiar(
        main,
        (dy, x, w, nan(M, N, dtype=np.float16), np.zeros(N, np.float32), np.zeros(N, np.float32)),
        {3: dx, 4: (dy.astype(float) * xh).sum(0), 5: dy.astype(float).sum(0)},
        5e-3,
    )


def cross_entropy():
    """Online softmax over a long vocabulary with a label gather."""
    normal, rng = drawn(4)
    M, V, BN = 6, 1000, 256

    @T.prim_func
    def main(
        x: T.Tensor((M, V), "bfloat16"),
        label: T.Tensor((M,), "int64"),
        loss: T.Tensor((M,), "float32"),
        lse: T.Tensor((M,), "float32"),
    ):
        with T.Kernel(M, threads=128) as bx:
            t = T.alloc_fragment((1, BN), "float32")
            m = T.alloc_fragment((1,), "float32")
            mn = T.alloc_fragment((1,), "float32")
            l = T.alloc_fragment((1,), "float32")
            s = T.alloc_fragment((1,), "float32")
            T.fill(m, -T.infinity("float32"))
            T.clear(l)
            for k in T.Pipelined(T.ceildiv(V, BN), num_stages=2):
                for j in T.Parallel(BN):
                    t[0, j] = T.if_then_else(
                        k * BN + j < V, T.cast(x[bx, k * BN + j], "float32"), -T.infinity("float32")
                    )
                T.reduce_max(t, mn, dim=1)
                for i in T.Parallel(1):
                    mn[i] = T.max(mn[i], m[i])
                for i, j in T.Parallel(1, BN):
                    t[i, j] = T.exp(t[i, j] - mn[i])
                T.reduce_sum(t, s, dim=1)
                for i in T.Parallel(1):
                    l[i] = l[i] * T.exp(m[i] - mn[i]) + s[i]
                    m[i] = mn[i]
            lse[bx] = T.log(l[0]) + m[0]
            loss[bx] = T.log(l[0]) + m[0] - T.cast(x[bx, label[bx]], "float32")

    x, lab = normal(M, V, dtype=bf), rng.integers(0, V, M).astype(np.int64)
    X = x.astype(float)
    L = np.log(np.exp(X).sum(1))
    return Familiar(main, (x, lab, nan(M), nan(M)), {2: L - X[np.arange(M), lab], 3: L}, 1e-4)


def rotary():
    """Halves, and neighbours, turned by an angle of their position."""
    normal, rng = drawn(5)
    S, H, D = 37, 3, 64

    @T.prim_func
    def main(
        x: T.Tensor((S, H, D), "float16"),
        cos: T.Tensor((S, D // 2), "float32"),
        sin: T.Tensor((S, D // 2), "float32"),
        y: T.Tensor((S, H, D), "float16"),
        z: T.Tensor((S, H, D), "float16"),
    ):
        with T.Kernel(T.ceildiv(S, 16), H, threads=128) as (bx, h):
            xs = T.alloc_shared((16, D), "float16")
            T.copy(x[bx * 16 : (bx + 1) * 16, h, :], xs)
            for i, j in T.Parallel(16, D // 2):
                if bx * 16 + i < S:
                    c, s = cos[bx * 16 + i, j], sin[bx * 16 + i, j]
                    a, b = T.cast(xs[i, j], "float32"), T.cast(xs[i, j + D // 2], "float32")
                    y[bx * 16 + i, h, j] = a * c - b * s
                    y[bx * 16 + i, h, j + D // 2] = b * c + a * s
            for i, j in T.Parallel(16, D):
                if bx * 16 + i < S:
                    c, s = cos[bx * 16 + i, j // 2], sin[bx * 16 + i, j // 2]
                    other = T.if_then_else(
                        j % 2 == 0, -T.cast(xs[i, j + 1], "float32"), T.cast(xs[i, j - 1], "float32")
                    )
                    z[bx * 16 + i, h, j] = T.cast(xs[i, j], "float32") * c + other * s

    x = normal(S, H, D)
    th = rng.random((S, D // 2))
    c, s = np.cos(th).astype(np.float32), np.sin(th).astype(np.float32)
    X = x.astype(float)
    a, b = X[..., : D // 2], X[..., D // 2 :]
    cc, ss = c[:, None], s[:, None]
    y = np.concatenate([a * cc - b * ss, b * cc + a * ss], -1)
    z = np.empty_like(X)
    z[..., 0::2] = X[..., 0::2] * cc - X[..., 1::2] * ss
    z[..., 1::2] = X[..., 1::2] * cc + X[..., 0::2] * ss
    return Familiar(main, (x, c, s, nan(S, H, D, dtype=np.float16), nan(S, H, D, dtype=np.float16)), {3: y, 4: z}, 2e-3)


def narrow_cast():
    """A scale for each row of a group; the author says which thread holds what."""
    normal, _ = drawn(6)
    M, N, g, BM = 50, 256, 128, 32

    @T.prim_func
    def main(
        X: T.Tensor((M, N), "bfloat16"), Y: T.Tensor((M, N), "float8_e4m3fn"), A: T.Tensor((M, N // g), "float32")
    ):
        with T.Kernel(T.ceildiv(M, BM), N // g, threads=128) as (row, rg):
            y = T.alloc_fragment((BM, g), "float32")
            am = T.alloc_fragment((BM,), "float32")
            s = T.alloc_fragment((BM,), "float32")
            q = T.alloc_fragment((BM, g), "float32")
            q8 = T.alloc_fragment((BM, g), "float8_e4m3fn")
            T.annotate_layout({y: T.Fragment((BM, g), forward_thread_fn=lambda i, j: (i // (BM // 4)) * 32 + j % 32)})
            T.copy(X[row * BM : (row + 1) * BM, rg * g : (rg + 1) * g], y)
            T.reduce_absmax(y, am, dim=1)
            for i in T.Parallel(BM):
                am[i] = T.max(am[i], 1e-4)
                s[i] = am[i] / 448.0
            for i, j in T.Parallel(BM, g):
                q[i, j] = T.clamp(y[i, j] / s[i], -448.0, 448.0)
            T.copy(q, q8)
            for i in T.Parallel(BM):
                A[row * BM + i, rg] = s[i]
            T.copy(q8, Y[row * BM : (row + 1) * BM, rg * g : (rg + 1) * g])

    x = normal(M, N, dtype=bf)
    X = x.astype(np.float32).reshape(M, -1, g)
    s = (np.abs(X).max(-1) / np.float32(448)).astype(np.float32)
    q = (X / s[..., None]).astype(f8).reshape(M, N)
    return Familiar(main, (x, np.zeros((M, N), f8), nan(M, N // g)), {1: q.astype(float), 2: s}, 1e-6)
