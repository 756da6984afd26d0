"""Counting and dealing: running sums over blocks, routing of tokens, histograms, what a cache keeps of keys."""

import ml_dtypes
import numpy as np
from familiar_program import Familiar, drawn, nan

import tilewright.language as T

bf = ml_dtypes.bfloat16


def prefix_blocks():
    """Running sums of a long row: of tiles, of their sums, and what the one owes the other."""
    _, rng = drawn(5)
    N, BLK = 1500, 256
    nb = -(-N // BLK)

    @T.prim_func
    def main(
        X: T.Tensor((N,), "int32"),
        part: T.Tensor((nb,), "int32"),
        Y: T.Tensor((N,), "int32"),
        Z: T.Tensor((N,), "int32"),
    ):
        with T.Kernel(nb, threads=128) as b:
            x = T.alloc_shared((BLK,), "int32")
            T.copy(X[b * BLK], x)
            T.cumsum(x, dim=0)
            T.copy(x, Y[b * BLK])
            if T.get_thread_binding() == 0:
                part[b] = x[BLK - 1]
        with T.Kernel(1, threads=32):
            run = T.alloc_var("int32", init=0)
            for i in T.serial(nb):
                t = part[i]
                part[i] = run
                run += t
        with T.Kernel(nb, threads=128) as b:
            for i in T.Parallel(BLK):
                at = b * BLK + i
                if at < N:
                    Y[at] += part[b]
                    Z[at] = Y[at] - X[at]

    x = rng.integers(-9, 10, N).astype(np.int32)
    c = np.cumsum(x)
    s = np.add.reduceat(x, np.arange(0, N, BLK))
    return Familiar(
        main,
        (x, np.zeros(nb, np.int32), np.zeros(N, np.int32), np.zeros(N, np.int32)),
        {2: c, 3: c - x, 1: np.cumsum(s) - s},
        0,
    )


def moe_routing():
    """The two best experts of a token, how many each gets, where they begin, and who goes where."""
    draw, _ = drawn(14)
    Tn, E, k, BT = 50, 16, 2, 16

    @T.prim_func
    def main(
        logits: T.Tensor((Tn, E), "float32"),
        W: T.Tensor((Tn, k), "float32"),
        I: T.Tensor((Tn, k), "int32"),
        count: T.Tensor((E,), "int32"),
        offs: T.Tensor((E + 1,), "int32"),
        fillc: T.Tensor((E,), "int32"),
        order: T.Tensor((Tn * k,), "int32"),
        inverse: T.Tensor((Tn * k,), "int32"),
    ):
        with T.Kernel(T.ceildiv(Tn, BT), threads=128) as b:
            x = T.alloc_fragment((BT, E), "float32")
            mx = T.alloc_fragment((BT,), "float32")
            s = T.alloc_fragment((BT,), "float32")
            at = T.alloc_fragment((BT, E), "int32")
            best = T.alloc_fragment((BT,), "int32")
            T.copy(logits[b * BT, 0], x)
            T.reduce_max(x, mx, dim=1)
            for i, j in T.Parallel(BT, E):
                x[i, j] = T.exp(x[i, j] - mx[i])
            T.reduce_sum(x, s, dim=1)
            for i, j in T.Parallel(BT, E):
                x[i, j] = x[i, j] / s[i]
            for r in T.serial(k):
                T.reduce_max(x, mx, dim=1)
                for i, j in T.Parallel(BT, E):
                    at[i, j] = T.if_then_else(x[i, j] == mx[i], j, E)
                T.reduce_min(at, best, dim=1)
                for i in T.Parallel(BT):
                    if b * BT + i < Tn:
                        W[b * BT + i, r] = mx[i]
                        I[b * BT + i, r] = best[i]
                        T.atomic_add(count[best[i]], 1)
                for i, j in T.Parallel(BT, E):
                    x[i, j] = T.if_then_else(j == best[i], -1.0, x[i, j])
        with T.Kernel(1, threads=32):
            c = T.alloc_shared((E,), "int32")
            T.copy(count, c)
            T.cumsum(c, dim=0)
            for e in T.Parallel(E):
                offs[e + 1] = c[e]
            if T.get_thread_binding() == 0:
                offs[0] = 0
        with T.Kernel(T.ceildiv(Tn * k, 64), threads=64) as b:
            tx = T.get_thread_binding()
            at = b * 64 + tx
            if at < Tn * k:
                e = I[at // k, at % k]
                place = T.atomic_add(fillc[e], 1, return_prev=True)
                order[offs[e] + place] = at
                inverse[at] = offs[e] + place

    x = draw(Tn, E, dtype=np.float32)
    p = np.exp(x.astype(float))
    p /= p.sum(1, keepdims=True)
    i = np.argsort(-p, 1)[:, :k]
    cnt = np.bincount(i.ravel(), minlength=E)
    return Familiar(
        main,
        (
            x,
            nan(Tn, k),
            np.zeros((Tn, k), np.int32),
            np.zeros(E, np.int32),
            np.zeros(E + 1, np.int32),
            np.zeros(E, np.int32),
            np.zeros(Tn * k, np.int32),
            np.zeros(Tn * k, np.int32),
        ),
        {1: np.take_along_axis(p, i, 1), 2: i, 3: cnt, 4: np.concatenate([[0], np.cumsum(cnt)]), 5: cnt},
        1e-5,
    )


def histogram():
    """Counts of a block in shared memory, added to those of all."""
    _, rng = drawn(3)
    n = T.dynamic("n")
    BINS, BLK = 64, 512

    @T.prim_func
    def main(X: T.Tensor((n,), "uint8"), H: T.Tensor((BINS,), "int32")):
        with T.Kernel(T.ceildiv(n, BLK), threads=128) as bx:
            h = T.alloc_shared((BINS,), "int32")
            T.clear(h)
            T.sync_threads()
            for i in T.Parallel(BLK):
                if bx * BLK + i < n:
                    T.atomic_add(h[T.cast(X[bx * BLK + i], "int32") // 4], 1)
            T.sync_threads()
            for i in T.Parallel(BINS):
                if h[i] > 0:
                    T.atomic_add(H[i], h[i])

    x = rng.integers(0, 256, 1777).astype(np.uint8)
    return Familiar(main, (x, np.zeros(BINS, np.int32)), {1: np.bincount(x // 4, minlength=BINS)}, 0)


def kv_quant():
    """Keys as int8 and as nibbles with a scale a head, in the slots that a list names; -1 is no slot."""
    draw, rng = drawn(9)
    tokens, H, D, slots = 37, 2, 64, 64

    @T.prim_func
    def main(
        K: T.Tensor((tokens, H, D), "bfloat16"),
        slot: T.Tensor((tokens,), "int64"),
        cache: T.Tensor((slots, H, D), "int8"),
        scale: T.Tensor((slots, H), "float32"),
        c4: T.Tensor((slots, H, D // 2), "uint8"),
    ):
        with T.Kernel(T.ceildiv(tokens, 4), H, threads=128) as (bt, h):
            x = T.alloc_fragment((4, D), "float32")
            am = T.alloc_fragment((4,), "float32")
            T.copy(K[bt * 4 : bt * 4 + 4, h, :], x)
            T.reduce_absmax(x, am, dim=1)
            for i in T.Parallel(4):
                am[i] = T.max(am[i], 1e-6) / 127.0
            for i, d in T.Parallel(4, D):
                if bt * 4 + i < tokens and slot[bt * 4 + i] >= 0:
                    cache[slot[bt * 4 + i], h, d] = T.cast(T.clamp(T.round(x[i, d] / am[i]), -127.0, 127.0), "int8")
            for i in T.Parallel(4):
                if bt * 4 + i < tokens and slot[bt * 4 + i] >= 0:
                    scale[slot[bt * 4 + i], h] = am[i]
            xs = T.alloc_shared((4, D), "float32")
            T.copy(x, xs)
            for i, d in T.Parallel(4, D // 2):
                if bt * 4 + i < tokens and slot[bt * 4 + i] >= 0:
                    lo = T.cast(T.clamp(T.round(xs[i, 2 * d] / (am[i] * 127.0 / 7.0)) + 8.0, 0.0, 15.0), "uint8")
                    hi = T.cast(T.clamp(T.round(xs[i, 2 * d + 1] / (am[i] * 127.0 / 7.0)) + 8.0, 0.0, 15.0), "uint8")
                    c4[slot[bt * 4 + i], h, d] = lo | (hi << T.uint8(4))

    k = draw(tokens, H, D, dtype=bf)
    slot = rng.permutation(slots)[:tokens].astype(np.int64)
    slot[[3, 9]] = -1
    x = k.astype(np.float32)
    am = (np.abs(x).max(-1) / np.float32(127)).astype(np.float32)
    cache, scale, c4 = (
        np.zeros((slots, H, D), np.int8),
        np.zeros((slots, H), np.float32),
        np.zeros((slots, H, D // 2), np.uint8),
    )
    ok = slot >= 0
    ce, se, c4e = cache.copy(), scale.copy(), c4.copy()
    ce[slot[ok]] = np.clip(np.rint(x / am[..., None]), -127, 127)[ok]
    se[slot[ok]] = am[ok]
    q = np.clip(np.rint(x / (am * np.float32(127) / np.float32(7))[..., None]) + 8, 0, 15).astype(np.uint8)
    c4e[slot[ok]] = (q[..., 0::2] | q[..., 1::2] << 4)[ok]
    return Familiar(main, (k, slot, cache, scale, c4), {2: ce, 3: se, 4: c4e}, 1e-6)
