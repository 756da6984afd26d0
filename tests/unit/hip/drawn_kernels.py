"""Kernels drawn at random, to be judged by their machine code: products (`drawn_products`), rows, scans, conversions."""

import random
from typing import Any

import numpy as np

import tilewright.language as T
from tilewright.ir.dtypes import dtype as ir_dtype

from drawn import Drawn, numbers  # isort: skip
from drawn_products import attention, blockwise, convolution, dequantised, gemm, grouped, masked  # isort: skip


def rows(pick: random.Random, arch: str, large: bool) -> Drawn:
    dtype = pick.choice(["float16", "bfloat16", "float32"])
    kind = pick.choice(["softmax", "layernorm", "rmsnorm", "argmax", "logsumexp"])
    count, length, each, threads = (
        pick.randrange(1, 20),
        pick.choice([1, 7, 64, 100, 255, 512, 1000, 2048]),
        pick.choice([1, 2, 4]),
        pick.choice([32, 64, 128, 256]),
    )
    if each * length > 64 * threads:
        each = 1
    while length > 64 * threads:
        threads *= 2
    out = "int32" if kind == "argmax" else "float32" if kind == "logsumexp" else dtype

    def work(X: Any, W: Any, Y: Any) -> None:
        X: T.Tensor((count, length), dtype)
        W: T.Tensor((length,), dtype)
        Y: T.Tensor((count,) if kind in ("argmax", "logsumexp") else (count, length), out)
        with T.Kernel(T.ceildiv(count, each), threads=threads) as block:
            x, y = T.alloc_fragment((each, length), "float32"), T.alloc_fragment((each, length), "float32")
            m, s = T.alloc_fragment((each,), "float32"), T.alloc_fragment((each,), "float32")
            index, best = T.alloc_fragment((each, length), "int32"), T.alloc_fragment((each,), "int32")
            T.copy(X[block * each, 0], x)
            if kind in ("softmax", "logsumexp", "argmax"):
                T.reduce_max(x, m, dim=1)
            if kind == "argmax":
                for i, j in T.Parallel(each, length):
                    index[i, j] = T.if_then_else(x[i, j] == m[i], j, length)
                T.reduce_min(index, best, dim=1)
                for i in T.Parallel(each):
                    if block * each + i < count:
                        Y[block * each + i] = best[i]
            elif kind == "logsumexp":
                for i, j in T.Parallel(each, length):
                    y[i, j] = T.exp(x[i, j] - m[i])
                T.reduce_sum(y, s, dim=1)
                for i in T.Parallel(each):
                    if block * each + i < count:
                        Y[block * each + i] = m[i] + T.log(s[i])
            else:
                if kind == "softmax":
                    for i, j in T.Parallel(each, length):
                        y[i, j] = T.exp(x[i, j] - m[i])
                    T.reduce_sum(y, s, dim=1)
                else:
                    if kind == "layernorm":
                        T.reduce_sum(x, m, dim=1)
                        for i, j in T.Parallel(each, length):
                            x[i, j] = x[i, j] - m[i] / length
                    for i, j in T.Parallel(each, length):
                        y[i, j] = x[i, j] * x[i, j]
                    T.reduce_sum(y, s, dim=1)
                for i, j in T.Parallel(each, length):
                    if block * each + i < count:
                        Y[block * each + i, j] = (
                            y[i, j] / s[i] if kind == "softmax" else x[i, j] * T.rsqrt(s[i] / length + 1e-5) * W[j]
                        )

    rng = np.random.default_rng(pick.randrange(1 << 30))
    shape = (count,) if kind in ("argmax", "logsumexp") else (count, length)
    arguments = [
        numbers(rng, (count, length), dtype),
        numbers(rng, (length,), dtype),
        np.zeros(shape, ir_dtype(out).numpy),
    ]
    return Drawn(f"rows {kind} {dtype} {count}x{length}, {each} each on {threads}", work, arguments, None, threads)


def scan(pick: random.Random, arch: str, large: bool) -> Drawn:
    dtype = pick.choice(["float32", "int32"])
    count, length, threads, reverse = (
        pick.randrange(1, 9),
        pick.choice([1, 31, 64, 100, 256, 1000]),
        pick.choice([32, 64, 128, 256]),
        pick.random() < 0.3,
    )

    def sums(X: Any, Y: Any) -> None:
        X: T.Tensor((count, length), dtype)
        Y: T.Tensor((count, length), dtype)
        with T.Kernel(count, threads=threads) as block:
            x = T.alloc_shared((1, length), dtype)
            T.copy(X[block, 0], x)
            T.cumsum(x, dim=1, reverse=reverse)
            T.copy(x, Y[block, 0])

    rng = np.random.default_rng(pick.randrange(1 << 30))
    x = rng.integers(-9, 10, (count, length)).astype(dtype)
    return Drawn(
        f"scan {dtype} {count}x{length} on {threads}{' reverse' * reverse}", sums, [x, np.zeros_like(x)], None, threads
    )


def turned(pick: random.Random, arch: str, large: bool) -> Drawn:
    dtype = pick.choice(["float16", "float32", "int8"])
    m, n, side, threads = (
        pick.randrange(1, 140),
        pick.randrange(1, 140),
        pick.choice([16, 32, 64]),
        pick.choice([64, 128, 256]),
    )

    def turn(X: Any, Y: Any) -> None:
        X: T.Tensor((m, n), dtype)
        Y: T.Tensor((n, m), dtype)
        with T.Kernel(T.ceildiv(n, side), T.ceildiv(m, side), threads=threads) as (bx, by):
            tile, other = T.alloc_shared((side, side), dtype), T.alloc_shared((side, side), dtype)
            T.copy(X[by * side, bx * side], tile)
            T.transpose(tile, other)
            T.copy(other, Y[bx * side, by * side])

    x = numbers(np.random.default_rng(pick.randrange(1 << 30)), (m, n), dtype)
    return Drawn(f"turned {dtype} {m}x{n} by {side} on {threads}", turn, [x, np.zeros((n, m), x.dtype)], None, threads)


def conversion(source: str, to: str) -> Drawn:
    """A tensor's elements in another type."""

    def converted(A: Any, B: Any) -> None:
        A: T.Tensor((4096,), source)
        B: T.Tensor((4096,), to)
        with T.Kernel(4, threads=128) as block:
            for i in T.Parallel(1024):
                B[block * 1024 + i] = T.cast(A[block * 1024 + i], to)

    arrays = [np.zeros(4096, ir_dtype(one).numpy) for one in (source, to)]
    return Drawn(f"{source} as {to}", converted, arrays)


FAMILIES = (
    gemm, gemm, gemm, attention, attention, dequantised, grouped, masked, blockwise, convolution, rows, scan, turned,
)  # fmt: skip


def drawn(seed: int, arch: str, large: bool = False) -> Drawn:
    """The kernel of a seed for a machine, on arrays to run it with or of the sizes that models have."""
    pick = random.Random(f"{arch} {seed}")
    return pick.choice(FAMILIES)(pick, arch, large)
