"""`T.im2col`: convolutions as products of gathered rows, against their definition; what is said where operands do not fit."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.language.mistakes import NumberExpected, TileExpected
from tilewright.targets.cuda.compiler import compile_text

BM, BN, BK = 64, 32, 32


def convolution(images=2, channels=16, height=9, width=7, filters=24, window=3, stride=1, dilation=1, pad=1):
    """The program, its arguments and the exact result."""
    reach = dilation * (window - 1) + 1
    down, across = (height + 2 * pad - reach) // stride + 1, (width + 2 * pad - reach) // stride + 1
    pixels, depth = images * down * across, window * window * channels

    @T.prim_func
    def main(
        data: T.Tensor((images, height, width, channels), "float16"),
        weight: T.Tensor((window, window, channels, filters), "float16"),
        out: T.Tensor((images, down, across, filters), "float32"),
    ):
        with T.Kernel(T.ceildiv(filters, BN), T.ceildiv(pixels, BM), threads=128) as (bx, by):
            patches = T.alloc_shared((BM, BK), "float16")
            weights = T.alloc_shared((BK, BN), "float16")
            total = T.alloc_fragment((BM, BN), "float32")
            weight_rows = T.reshape(weight, (depth, filters))
            out_rows = T.reshape(out, (pixels, filters))
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(depth, BK), num_stages=3):
                T.im2col(data, patches, by, k, window, stride, dilation, pad)
                T.copy(weight_rows[k * BK, bx * BN], weights)
                T.gemm(patches, weights, total)
            T.copy(total, out_rows[by * BM, bx * BN])

    rng = np.random.default_rng(0)
    data = rng.integers(-3, 4, (images, height, width, channels)).astype(np.float16)
    weight = rng.integers(-3, 4, (window, window, channels, filters)).astype(np.float16)
    padded = np.pad(data.astype(float), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    exact = np.zeros((images, down, across, filters))
    for y, x in np.ndindex(window, window):
        rows = slice(y * dilation, y * dilation + (down - 1) * stride + 1, stride)
        columns = slice(x * dilation, x * dilation + (across - 1) * stride + 1, stride)
        exact += np.einsum("nhwc,cf->nhwf", padded[:, rows, columns], weight[y, x].astype(float))
    return main, (data, weight, np.full(exact.shape, np.nan, np.float32)), exact


SHAPES = [
    {}, {"stride": 2}, {"dilation": 2, "pad": 2}, {"window": 1, "pad": 0}, {"channels": 5},
    {"window": 5, "pad": 0, "channels": 8, "stride": 2},
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "cuda -arch=sm_90a", "cpu"])
def test_convolution(shape, target):
    function, arguments, exact = convolution(**shape)
    kernel = tilewright.compile(function, target=target)
    for run in (kernel.interpret, kernel if target == "cpu" else kernel.emulate):
        given = [one.copy() for one in arguments]
        run(*given)
        assert np.array_equal(given[2], exact)


def test_rows_of_channels_come_in_vectors():
    kernel = tilewright.compile(convolution()[0], target="cuda -arch=sm_90a")
    assert "wgmma_ss" in kernel.explain() and "tma_load into weights_ring" in kernel.explain()
    assert "cp_async into patches_ring" in kernel.explain()
    assert re.search(r"LDGSTS\S*\.128", compile_text(kernel.get_kernel_source(), kernel.arch).machine_code())


def test_operands_that_do_not_fit():
    def program(img, col, *window):
        @T.prim_func
        def main(A: T.Tensor((1, 8, 8, 8), "float16"), B: T.Tensor((8, 8), "float16")):
            with T.Kernel(1, threads=128):
                tile = T.alloc_shared((8, 8), "float16")
                T.im2col({"A": A, "B": B}[img], {"A": A, "tile": tile}[col], 0, 0, *window)

        return main

    with pytest.raises(TileExpected, match=r"img of T\.im2col"):
        program("B", "tile", 3)
    with pytest.raises(TileExpected, match=r"col of T\.im2col"):
        program("A", "A", 3)
    with pytest.raises(NumberExpected, match=r"T\.im2col"):
        program("A", "tile", 0)
