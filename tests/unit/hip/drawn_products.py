"""Products drawn at random: of tiles, of attention, of codes, of groups, of convolutions, masked, by blocks."""

import random
from typing import Any

import numpy as np

import tilewright.language as T
from tilewright.ir.dtypes import dtype as ir_dtype

from drawn import EPILOGUES, OPERANDS, Drawn, numbers, size_of, summed  # isort: skip


def gemm(pick: random.Random, arch: str, large: bool) -> Drawn:
    dtype = pick.choice(OPERANDS[arch])
    rows, columns = (
        pick.choice([16, 32, 48, 64, 80, 96, 128, 160, 256]),
        pick.choice([16, 32, 48, 64, 96, 112, 128, 192, 256]),
    )
    depth = pick.choice([16, 32, 48, 64, 128])
    threads = pick.choice([64, 128, 192, 256, 512])
    while rows * columns > 128 * threads:
        rows, columns = max(rows // 2 // 16 * 16, 16), max(columns // 2 // 16 * 16, 16)
    while (rows + columns) * depth * ir_dtype(dtype).bits // 8 > 32768:
        depth //= 2
    stages = pick.choice([0, 1, 2, 2, 2, 3, 4])
    across_a, across_b = pick.random() < 0.3, pick.random() < 0.5
    ending = pick.choice(list(EPILOGUES)) if summed(dtype) == "float32" else "plain"
    out = pick.choice(["float32", "bfloat16", "float16"]) if summed(dtype) == "float32" else "int32"
    m, n, k = size_of(pick, rows, 2, large), size_of(pick, columns, 2, large), size_of(pick, depth, 5, large)
    whole = pick.random() < 0.5
    if whole:
        m, n, k = -(-m // rows) * rows, -(-n // columns) * columns, -(-k // depth) * depth
    panel = pick.choice([0, 0, 4, 10])
    dynamic = pick.random() < 0.25
    split = pick.choice([1, 1, 1, 2]) if out == "float32" and ending == "plain" else 1
    acc = summed(dtype)

    def product(A: Any, B: Any, column: Any, row: Any, C: Any) -> None:
        M, N, K = (T.dynamic("M"), T.dynamic("N"), T.dynamic("K")) if dynamic else (m, n, k)
        A: T.Tensor((K, M) if across_a else (M, K), dtype)
        B: T.Tensor((K, N) if across_b else (N, K), dtype)
        column: T.Tensor((N,), "float32")
        row: T.Tensor((M,), "float32")
        C: T.Tensor((M, N), out)
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), split, threads=threads) as (bx, by, bz):
            a = T.alloc_shared((depth, rows) if across_a else (rows, depth), dtype)
            b = T.alloc_shared((depth, columns) if across_b else (columns, depth), dtype)
            c = T.alloc_fragment((rows, columns), acc)
            if panel:
                T.use_swizzle(panel)
            T.clear(c)
            steps = T.ceildiv(T.ceildiv(K, depth), split)
            for k0 in T.Pipelined(steps, num_stages=stages):
                at = (bz * steps + k0) * depth
                if across_a:
                    T.copy(A[at, by * rows], a)
                else:
                    T.copy(A[by * rows, at], a)
                if across_b:
                    T.copy(B[at, bx * columns], b)
                else:
                    T.copy(B[bx * columns, at], b)
                T.gemm(a, b, c, transpose_A=across_a, transpose_B=not across_b)
            if split > 1:
                for i, j in T.Parallel(rows, columns):
                    T.atomic_add(C[by * rows + i, bx * columns + j], c[i, j])
            elif ending == "plain":
                T.copy(c, C[by * rows, bx * columns])
            else:
                for i, j in T.Parallel(rows, columns):
                    if by * rows + i < M and bx * columns + j < N:
                        C[by * rows + i, bx * columns + j] = EPILOGUES[ending](
                            c[i, j], column[bx * columns + j], row[by * rows + i]
                        )

    rng = np.random.default_rng(pick.randrange(1 << 30))
    arguments = [
        numbers(rng, (k, m) if across_a else (m, k), dtype), numbers(rng, (k, n) if across_b else (n, k), dtype),
        numbers(rng, (n,), "float32"), numbers(rng, (m,), "float32"), np.zeros((m, n), ir_dtype(out).numpy),
    ]  # fmt: skip
    name = f"gemm {dtype} {rows}x{columns}x{depth} on {threads}, {stages} stages, {m}x{n}x{k}{' dynamic' * dynamic}, across {int(across_a)}{int(across_b)}, {ending} to {out}, split {split}, panel {panel}"
    return Drawn(name, product, arguments, (rows, columns, depth), threads, stages >= 2)


def attention(pick: random.Random, arch: str, large: bool) -> Drawn:
    dtype = pick.choice(["float16", "bfloat16"])
    size = pick.choice([16, 32, 40, 48, 64, 72, 80, 96, 112, 128])
    padded = -(-size // 16) * 16
    rows, keys = pick.choice([32, 64, 64, 128]), pick.choice([32, 64, 128])
    threads = pick.choice([64, 128, 256])
    while rows * (keys + padded) > 80 * threads:
        rows, keys = (
            (rows // 2, keys) if rows > 32 and rows >= keys else (rows, keys // 2) if keys > 32 else (rows, keys)
        )
        if rows <= 32 and keys <= 32:
            threads = max(threads, 128)
            break
    stages = pick.choice([0, 1, 2, 2])
    causal, share = pick.random() < 0.5, pick.choice([1, 2])
    policy = pick.choice([T.GemmWarpPolicy.Square, T.GemmWarpPolicy.FullRow])
    length = size_of(pick, max(rows, keys), 2, large)

    def attend(Q: Any, K: Any, V: Any, O: Any) -> None:
        Q: T.Tensor((2, length, size), dtype)
        K: T.Tensor((2 // share, length, size), dtype)
        V: T.Tensor((2 // share, length, size), dtype)
        O: T.Tensor((2, length, size), dtype)
        with T.Kernel(T.ceildiv(length, rows), 2, threads=threads) as (bx, head):
            q, kt, v = (T.alloc_shared((one, padded), dtype) for one in (rows, keys, keys))
            s, p = T.alloc_fragment((rows, keys), "float32"), T.alloc_fragment((rows, keys), dtype)
            o = T.alloc_fragment((rows, padded), "float32")
            m, before, total, sums, factor = (T.alloc_fragment((rows,), "float32") for _ in range(5))
            T.copy(Q[head, bx * rows, 0], q)
            T.clear(o)
            T.clear(total)
            T.fill(m, -1e30)
            last = T.ceildiv(T.min((bx + 1) * rows, length), keys) if causal else T.ceildiv(length, keys)
            for t in T.Pipelined(last, num_stages=stages):
                T.copy(K[head // share, t * keys, 0], kt)
                for i, j in T.Parallel(rows, keys):
                    seen = t * keys + j < length
                    if causal:
                        seen = seen & (bx * rows + i >= t * keys + j)
                    s[i, j] = T.if_then_else(seen, 0.0, -1e30)
                T.gemm(q, kt, s, transpose_B=True, policy=policy)
                T.copy(m, before)
                T.reduce_max(s, m, dim=1, clear=False)
                for i in T.Parallel(rows):
                    factor[i] = T.exp2((before[i] - m[i]) * 0.18)
                for i, j in T.Parallel(rows, keys):
                    s[i, j] = T.exp2((s[i, j] - m[i]) * 0.18)
                T.reduce_sum(s, sums, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * factor[i] + sums[i]
                for i, j in T.Parallel(rows, padded):
                    o[i, j] *= factor[i]
                T.copy(s, p)
                T.copy(V[head // share, t * keys, 0], v)
                T.gemm(p, v, o, policy=policy)
            for i, j in T.Parallel(rows, padded):
                if bx * rows + i < length and j < size:
                    O[head, bx * rows + i, j] = o[i, j] / total[i]

    rng = np.random.default_rng(pick.randrange(1 << 30))
    q = numbers(rng, (2, length, size), dtype)
    k, v = (numbers(rng, (2 // share, length, size), dtype) for _ in range(2))
    name = f"attention {dtype} {rows}x{keys}x{size} on {threads}, {stages} stages, length {length}{' causal' * causal}, share {share}, {policy.name}"
    return Drawn(name, attend, [q, k, v, np.zeros_like(q)], (rows, keys, 2 * padded), threads, stages >= 2)


def dequantised(pick: random.Random, arch: str, large: bool) -> Drawn:
    dtype = pick.choice(["float16", "bfloat16"])
    bits = pick.choice([2, 4, 8])
    rows, columns, depth = pick.choice([16, 32, 64, 128]), pick.choice([32, 64, 128]), pick.choice([32, 64])
    threads, stages, group = pick.choice([64, 128, 256]), pick.choice([0, 2, 2, 3]), 32
    if rows * columns > 96 * threads:
        rows = 32
    per = 8 // bits
    m, n, steps = (
        size_of(pick, rows, 2, large),
        size_of(pick, columns, 2, large),
        pick.randrange(1, 5) * (8 if large else 1),
    )
    k = steps * depth
    zero = pick.random() < 0.5

    def product(A: Any, B: Any, S: Any, C: Any) -> None:
        A: T.Tensor((m, k), dtype)
        B: T.Tensor((n, k // per), "uint8")
        S: T.Tensor((n, k // group), dtype)
        C: T.Tensor((m, n), "float32")
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, rows), threads=threads) as (bx, by):
            a, codes, b = (
                T.alloc_shared((rows, depth), dtype),
                T.alloc_shared((columns, depth // per), "uint8"),
                T.alloc_shared((columns, depth), dtype),
            )
            c = T.alloc_fragment((rows, columns), "float32")
            T.clear(c)
            for k0 in T.Pipelined(steps, num_stages=stages):
                T.copy(A[by * rows, k0 * depth], a)
                T.copy(B[bx * columns, k0 * depth // per], codes)
                for i, j in T.Parallel(columns, depth):
                    code = T.cast((codes[i, j // per] >> (j % per * bits)) & ((1 << bits) - 1), dtype)
                    if zero:
                        code = code - T.cast(1 << (bits - 1), dtype)
                    b[i, j] = code * S[T.min(bx * columns + i, n - 1), (k0 * depth + j) // group]
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * rows, bx * columns])

    rng = np.random.default_rng(pick.randrange(1 << 30))
    arguments = [
        numbers(rng, (m, k), dtype),
        rng.integers(0, 256, (n, k // per)).astype(np.uint8),
        numbers(rng, (n, k // group), dtype),
        np.zeros((m, n), np.float32),
    ]
    name = f"dequantised {dtype} by {bits} bits {rows}x{columns}x{depth} on {threads}, {stages} stages, {m}x{n}x{k}{' zeros' * zero}"
    return Drawn(name, product, arguments, (rows, columns, depth), threads, stages >= 2, True)


def grouped(pick: random.Random, arch: str, large: bool) -> Drawn:
    dtype = pick.choice(["float16", "bfloat16", "int8"])
    rows, columns, depth = pick.choice([16, 32, 64]), pick.choice([32, 64, 128]), pick.choice([32, 64])
    threads, stages = pick.choice([64, 128, 256]), pick.choice([0, 2, 3])
    groups, n, k = pick.randrange(1, 4), size_of(pick, columns, 2, large), size_of(pick, depth, 4, large)
    counts = [pick.randrange(0, 2 * rows + 3) for _ in range(groups)]
    total, most = sum(counts), 2 * rows + 3
    across = pick.random() < 0.4
    acc = summed(dtype)

    def product(A: Any, B: Any, first: Any, C: Any) -> None:
        A: T.Tensor((total, k), dtype)
        B: T.Tensor((groups, k, n) if across else (groups, n, k), dtype)
        first: T.Tensor((groups + 1,), "int32")
        C: T.Tensor((total, n), acc)
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(most, rows), groups, threads=threads) as (bx, by, g):
            a = T.alloc_shared((rows, depth), dtype)
            b = T.alloc_shared((depth, columns) if across else (columns, depth), dtype)
            c = T.alloc_fragment((rows, columns), acc)
            start = first[g] + by * rows
            end = first[g + 1]
            if start < end:
                T.clear(c)
                for k0 in T.Pipelined(T.ceildiv(k, depth), num_stages=stages):
                    T.copy(A[start, k0 * depth], a)
                    if across:
                        T.copy(B[g, k0 * depth, bx * columns], b)
                    else:
                        T.copy(B[g, bx * columns, k0 * depth], b)
                    T.gemm(a, b, c, transpose_B=not across)
                for i, j in T.Parallel(rows, columns):
                    if start + i < end and bx * columns + j < n:
                        C[start + i, bx * columns + j] = c[i, j]

    rng = np.random.default_rng(pick.randrange(1 << 30))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    arguments = [
        numbers(rng, (total, k), dtype),
        numbers(rng, (groups, k, n) if across else (groups, n, k), dtype),
        offsets,
        np.zeros((total, n), ir_dtype(acc).numpy),
    ]
    name = f"grouped {dtype} {rows}x{columns}x{depth} on {threads}, {stages} stages, {counts} x{n}x{k}, across {int(across)}"
    return Drawn(name, product, arguments, (rows, columns, depth), threads, stages >= 2)


def convolution(pick: random.Random, arch: str, large: bool) -> Drawn:
    dtype = pick.choice(["float16", "bfloat16"])
    height, width, channels, filters, taps = (
        pick.randrange(3, 12),
        pick.randrange(3, 12),
        pick.choice([8, 16, 24, 32]) * (4 if large else 1),
        pick.choice([8, 16, 32, 40]) * (4 if large else 1),
        pick.choice([1, 3, 5]),
    )
    rows, columns, depth, threads, stages = (
        pick.choice([16, 32, 64]),
        pick.choice([16, 32, 64]),
        pick.choice([16, 32]),
        pick.choice([64, 128]),
        pick.choice([0, 2, 3]),
    )
    k = taps * taps * channels
    pad = taps // 2

    def convolve(X: Any, W: Any, Y: Any) -> None:
        X: T.Tensor((height, width, channels), dtype)
        W: T.Tensor((k, filters), dtype)
        Y: T.Tensor((height * width, filters), "float32")
        with T.Kernel(T.ceildiv(filters, columns), T.ceildiv(height * width, rows), threads=threads) as (bx, by):
            a, b = T.alloc_shared((rows, depth), dtype), T.alloc_shared((depth, columns), dtype)
            c = T.alloc_fragment((rows, columns), "float32")
            T.clear(c)
            for k0 in T.Pipelined(T.ceildiv(k, depth), num_stages=stages):
                for i, j in T.Parallel(rows, depth):
                    at, place = k0 * depth + j, by * rows + i
                    y, x = place // width + at // channels // taps - pad, place % width + at // channels % taps - pad
                    inside = (at < k) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
                    a[i, j] = T.if_then_else(inside, X[y, x, at % channels], T.cast(0, dtype))
                T.copy(W[k0 * depth, bx * columns], b)
                T.gemm(a, b, c)
            T.copy(c, Y[by * rows, bx * columns])

    rng = np.random.default_rng(pick.randrange(1 << 30))
    arguments = [
        numbers(rng, (height, width, channels), dtype),
        numbers(rng, (k, filters), dtype),
        np.zeros((height * width, filters), np.float32),
    ]
    name = f"convolution {dtype} {height}x{width}x{channels} by {taps} to {filters}, {rows}x{columns}x{depth} on {threads}, {stages} stages"
    return Drawn(name, convolve, arguments, (rows, columns, depth), threads, stages >= 2, True)


def masked(pick: random.Random, arch: str, large: bool) -> Drawn:
    """Products of blocks that a mask has, and of rows that tables name."""
    dtype = pick.choice(["float16", "bfloat16", "int8"])
    rows, columns, depth = pick.choice([16, 32, 64]), pick.choice([32, 64, 128]), pick.choice([32, 64])
    threads, stages, across = pick.choice([64, 128, 256]), pick.choice([0, 2, 2, 3]), pick.random() < 0.5
    kind, nested = pick.choice(["bool", "int32", "uint8"]), pick.random() < 0.3
    m, n, k = size_of(pick, rows, 2, large), size_of(pick, columns, 2, large), size_of(pick, depth, 5, large)
    across_tiles, down_tiles, steps = -(-n // columns), -(-m // rows), -(-k // depth)
    acc = summed(dtype)

    def product(A: Any, B: Any, mask: Any, chosen: Any, C: Any) -> None:
        A: T.Tensor((m, k), dtype)
        B: T.Tensor((k, n) if across else (n, k), dtype)
        mask: T.Tensor((down_tiles, across_tiles, steps), kind)
        chosen: T.Tensor((steps,), "int32")
        C: T.Tensor((m, n), acc)
        with T.Kernel(across_tiles, down_tiles, threads=threads) as (bx, by):
            a = T.alloc_shared((rows, depth), dtype)
            b = T.alloc_shared((depth, columns) if across else (columns, depth), dtype)
            c = T.alloc_fragment((rows, columns), acc)
            T.clear(c)
            for k0 in T.Pipelined(steps, num_stages=stages):
                if mask[by, bx, k0]:
                    at = chosen[k0]
                    if (at >= 0) if nested else True:
                        T.copy(A[by * rows, at * depth], a)
                        if across:
                            T.copy(B[at * depth, bx * columns], b)
                        else:
                            T.copy(B[bx * columns, at * depth], b)
                        T.gemm(a, b, c, transpose_B=not across)
            T.copy(c, C[by * rows, bx * columns])

    rng = np.random.default_rng(pick.randrange(1 << 30))
    arguments = [
        numbers(rng, (m, k), dtype),
        numbers(rng, (k, n) if across else (n, k), dtype),
        rng.integers(0, 2, (down_tiles, across_tiles, steps)).astype(ir_dtype(kind).numpy),
        rng.integers(-1 if nested else 0, steps, steps).astype(np.int32),
        np.zeros((m, n), ir_dtype(acc).numpy),
    ]
    name = f"masked {dtype} {rows}x{columns}x{depth} on {threads}, {stages} stages, {m}x{n}x{k}, across {int(across)}{' nested' * nested}"
    return Drawn(name, product, arguments, (rows, columns, depth), threads, stages >= 2, True)


def blockwise(pick: random.Random, arch: str, large: bool) -> Drawn:
    """Products of 8 bits whose steps of k have scales of their own."""
    dtype = pick.choice([one for one in OPERANDS[arch] if ir_dtype(one).bits == 8])
    rows, columns, depth = pick.choice([16, 32, 64]), pick.choice([32, 64]), pick.choice([32, 64, 128])
    threads, stages = pick.choice([64, 128, 256]), pick.choice([0, 2, 2, 3])
    m, n = size_of(pick, rows, 2, large), size_of(pick, columns, 2, large)
    steps = pick.randrange(1, 5) * (8 if large else 1)
    acc = summed(dtype)

    def product(A: Any, B: Any, row: Any, column: Any, C: Any) -> None:
        A: T.Tensor((m, steps * depth), dtype)
        B: T.Tensor((n, steps * depth), dtype)
        row: T.Tensor((m, steps), "float32")
        column: T.Tensor((T.ceildiv(n, columns), steps), "float32")
        C: T.Tensor((m, n), "bfloat16")
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, rows), threads=threads) as (bx, by):
            a, b = T.alloc_shared((rows, depth), dtype), T.alloc_shared((columns, depth), dtype)
            part, total = T.alloc_fragment((rows, columns), acc), T.alloc_fragment((rows, columns), "float32")
            scale = T.alloc_shared((rows,), "float32")
            T.clear(total)
            for k0 in T.Pipelined(steps, num_stages=stages):
                T.copy(A[by * rows, k0 * depth], a)
                T.copy(B[bx * columns, k0 * depth], b)
                for i in T.Parallel(rows):
                    scale[i] = row[by * rows + i, k0] * column[bx, k0]
                T.clear(part)
                T.gemm(a, b, part, transpose_B=True)
                for i, j in T.Parallel(rows, columns):
                    total[i, j] += T.cast(part[i, j], "float32") * scale[i]
            T.copy(total, C[by * rows, bx * columns])

    rng = np.random.default_rng(pick.randrange(1 << 30))
    arguments = [
        numbers(rng, (m, steps * depth), dtype),
        numbers(rng, (n, steps * depth), dtype),
        rng.random((m, steps), np.float32) + 0.5,
        rng.random((-(-n // columns), steps), np.float32) + 0.5,
        np.zeros((m, n), ir_dtype("bfloat16").numpy),
    ]
    name = f"blockwise {dtype} {rows}x{columns}x{depth} on {threads}, {stages} stages, {m}x{n}x{steps * depth}"
    return Drawn(name, product, arguments, (rows, columns, depth), threads, stages >= 2, True)
