"""Convolutions: as a product of rows that index arithmetic gathers, and of each channel alone."""

import numpy as np
from familiar_program import Familiar, nan, normal

import tilewright.language as T


def convolution(images=2, channels=16, size=9, filters=24, window=3, pad=1):
    """Indices divide and wrap; what lies outside of the image is zero.  Weights and results are seen as matrices."""
    BM, BN, BK, pixels, depth = 64, 32, 32, size * size, window * window * channels

    @T.prim_func
    def main(
        data: T.Tensor((images, size, size, channels), "float16"),
        weight: T.Tensor((window, window, channels, filters), "float16"),
        out: T.Tensor((images, size, size, filters), "float16"),
    ):
        with T.Kernel(T.ceildiv(filters, BN), T.ceildiv(images * pixels, BM), threads=128) as (bx, by):
            patches = T.alloc_shared((BM, BK), "float16")
            weights = T.alloc_shared((BK, BN), "float16")
            staged = T.alloc_shared((BM, BN), "float16")
            total = T.alloc_fragment((BM, BN), "float32")
            weight_rows = T.reshape(weight, (depth, filters))
            out_rows = T.reshape(out, (images * pixels, filters))
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(depth, BK), num_stages=3):
                for i, j in T.Parallel(BM, BK):
                    place, deep = by * BM + i, k * BK + j
                    y = place % pixels // size + deep // (window * channels) - pad
                    x = place % size + deep // channels % window - pad
                    inside = (y >= 0) and (x >= 0) and (y < size) and (x < size) and place < images * pixels
                    patches[i, j] = T.if_then_else(inside, data[place // pixels, y, x, deep % channels], 0)
                T.copy(weight_rows[k * BK, bx * BN], weights)
                T.gemm(patches, weights, total)
            T.copy(total, staged)
            T.copy(staged, out_rows[by * BM, bx * BN])

    data = normal(images, size, size, channels)
    weight = normal(window, window, channels, filters, scale=0.2, seed=1)
    padded = np.pad(data.astype(float), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    expected = sum(
        np.einsum("nhwc,cf->nhwf", padded[:, y : y + size, x : x + size], weight[y, x].astype(float))
        for y, x in np.ndindex(window, window)
    )
    empty = nan(images, size, size, filters, dtype=np.float16)
    return Familiar(main, (data, weight, empty), {2: expected}, 5e-3, ("LDGSTS", "UTMALDG", "HGMMA", "STG.E.128"))


def depthwise(batch=2, length=45, channels=64, window=4):
    """Every channel with the past few of its own, a bias and SiLU."""

    @T.prim_func
    def main(
        x: T.Tensor((batch, length, channels), "float16"),
        w: T.Tensor((channels, window), "float16"),
        bias: T.Tensor((channels,), "float16"),
        y: T.Tensor((batch, length, channels), "float16"),
    ):
        with T.Kernel(T.ceildiv(length, 16), batch, threads=128) as (bx, b):
            tile = T.alloc_shared((16 + window - 1, channels), "float16")
            total = T.alloc_fragment((16, channels), "float32")
            for i, c in T.Parallel(16 + window - 1, channels):
                row = bx * 16 + i - (window - 1)
                tile[i, c] = T.if_then_else(row >= 0, x[b, row, c], 0)
            for i, c in T.Parallel(16, channels):
                total[i, c] = T.cast(bias[c], "float32")
                for k in T.unroll(window):
                    total[i, c] += T.cast(tile[i + k, c], "float32") * T.cast(w[c, k], "float32")
            for i, c in T.Parallel(16, channels):
                total[i, c] = total[i, c] / (1.0 + T.exp(-total[i, c]))
            T.copy(total, y[b, bx * 16 : (bx + 1) * 16, :])

    x, w, bias = normal(batch, length, channels), normal(channels, window, seed=1), normal(channels, seed=2)
    padded = np.pad(x.astype(float), ((0, 0), (window - 1, 0), (0, 0)))
    total = sum(padded[:, k : k + length] * w[:, k].astype(float) for k in range(window)) + bias.astype(float)
    empty = nan(batch, length, channels, dtype=np.float16)
    return Familiar(main, (x, w, bias, empty), {3: total / (1 + np.exp(-total))}, 5e-3, ("LDG.E.128", "STG.E.128"))
