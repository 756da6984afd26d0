"""Products that no matrix instruction executes, though one could: authors are told what to write."""

from __future__ import annotations

import random
import re
import warnings
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightWarning
from tilewright.options import override


def product(source: str, dtype_b: str = "float16"):
    """A product whose operands are read from `source`: a tensor or a shared tile."""

    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16"), B: T.Tensor((64, 32), dtype_b), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            left, right = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), dtype_b)
            sums = T.alloc_fragment((64, 64), "float32")
            T.clear(sums)
            if source == "global":
                T.gemm(A, B, sums, transpose_B=True)
            else:
                T.copy(A, left)
                T.copy(B, right)
                T.gemm(left, right, sums, transpose_B=True)
            T.copy(sums, C)

    return main


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "source, dtype, message",
    [
        ("global", "float16", "A and B of this product lie in global memory; copy tiles of them into shared ones first"),
        ("shared", "bfloat16", "no instruction multiplies float16 by bfloat16; give both operands one type"),
    ],
)  # fmt: skip
def test_scalar_products_are_said(source, dtype, message, arch):
    with pytest.warns(TilewrightWarning, match=f"threads multiply element by element: {message}"):
        tilewright.compile(product(source, dtype), target=f"cuda -arch={arch}")


@pytest.mark.parametrize("source, target", [("shared", "cuda -arch=sm_90a"), ("global", "cpu"), ("shared", "cpu")])
def test_nothing_is_said_where_products_are_fast(source, target):
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        tilewright.compile(product(source), target=target)


def staged(m: int, n: int, k: int, threads: int, dtype: str = "float16", sums_dtype: str = "float32"):
    """A product of one tile in steps of k, its operands in shared memory."""

    @T.prim_func
    def main(A: T.Tensor((m, 4 * k), dtype), B: T.Tensor((n, 4 * k), dtype), C: T.Tensor((m, n), sums_dtype)):
        with T.Kernel(1, threads=threads):
            left, right = T.alloc_shared((m, k), dtype), T.alloc_shared((n, k), dtype)
            sums = T.alloc_fragment((m, n), sums_dtype)
            T.clear(sums)
            for step in T.Pipelined(4, num_stages=2):
                T.copy(A[0, step * k], left)
                T.copy(B[0, step * k], right)
                T.gemm(left, right, sums, transpose_B=True)
            T.copy(sums, C)

    return main


def said(*shape: Any, arch: str = "sm_90a") -> list[str]:
    """What authors are told of a product that threads multiply, and whether warps do."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TilewrightWarning)
        kernel = tilewright.compile(staged(*shape), target=f"cuda -arch={arch}")
    messages = [str(one.message) for one in caught if "element by element" in str(one.message)]
    assert bool(messages) == ("gemm: scalar products" in kernel.explain())
    return messages


def test_threads_that_cannot_share_a_tile_are_said_with_the_nearest_that_can():
    (message,) = said(128, 256, 32, 384)
    lines = message.splitlines()
    assert lines[0] == (
        "warning: threads multiply element by element: wgmma_ss: 3 warpgroups cannot share 128 x 256; not wgmma_rs: a lies in "
        "shared memory; not mma_m16n8k16: 12 warps cannot share 128 x 256; not mma_m16n8k8: 12 warps cannot share 128 x 256"
    )
    assert "T.gemm(left, right, sums, transpose_B=True)" in message
    assert lines[-1] == "  help: the matrix unit takes it with 256 or 512 threads, or a tile of 128 x 240"


def test_products_that_no_instruction_adds_up_are_said():
    (message,) = said(64, 64, 32, 128, "float16", "float64")
    assert "no instruction adds products of float16 up in float64; add them up in float32 or float16" in message


def test_exact_products_of_float32_are_meant_so():
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        tilewright.compile(staged(64, 64, 32, 128, "float32"), target="cuda -arch=sm_90a")


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_advised_uses_the_matrix_unit(seed):
    draw = random.Random(seed)
    arch, dtype = draw.choice(["sm_80", "sm_90a"]), draw.choice(["float16", "bfloat16", "int8"])
    sums = "int32" if dtype == "int8" else "float32"
    for _ in range(40):
        m, n = (draw.choice([8, 24, 40, 64, 100, 112, 128]) for _ in range(2))
        k, threads = draw.choice([16, 20, 32, 48, 64]), draw.choice([32, 96, 128, 160, 256, 384])
        for message in said(m, n, k, threads, dtype, sums, arch=arch):
            advice = message.splitlines()[-1]
            counts = re.search(r"with ([\d or]+) threads", advice)
            tile = re.search(r"a tile of (\d+) x (\d+)(?: in steps of (\d+) along k)?", advice)
            assert counts or tile
            for count in re.findall(r"\d+", counts[1]) if counts else ():
                assert not said(m, n, k, int(count), dtype, sums, arch=arch)
            if tile:
                assert not said(int(tile[1]), int(tile[2]), int(tile[3] or k), threads, dtype, sums, arch=arch)
            return


def crowded(A, B):
    """1024 threads have 64 registers each; two rows of 28 numbers that meet crosswise leave none for anything else."""
    A: T.Tensor((1024, 28), "float32")
    B: T.Tensor((1024, 28), "float32")
    with T.Kernel(1, threads=1024):
        left, right = T.alloc_fragment((1024, 28), "float32"), T.alloc_fragment((1024, 28), "float32")
        T.copy(A, left)
        T.copy(B, right)
        for _ in T.serial(4):
            for i, j in T.Parallel(1024, 28):
                left[i, j] = left[i, j] * right[i, 27 - j] + left[i, j] / (right[i, j] + 3)
            for i, j in T.Parallel(1024, 28):
                right[i, j] = right[i, j] * left[i, 27 - j] + T.exp(left[i, j])
        T.copy(left, A)
        T.copy(right, B)


def test_spills_that_the_compiler_reports_are_said_where_a_kernel_is_built(tmp_path):
    given = [np.zeros((1024, 28), np.float32)] * 2
    kernel = tilewright.jit(target="cuda -arch=sm_90a")(crowded).compile(*given)
    for _ in range(2):  # built, and found in the cache
        with override(cache_dir=tmp_path), pytest.warns(TilewrightWarning, match="registers do not suffice") as caught:
            assert kernel.path.is_dir()
        (message,) = (str(one.message) for one in caught)
        assert re.match(
            r"registers do not suffice \(64 a thread\): \d+ bytes are stored to and \d+ loaded from local memory\n",
            message,
        )
        assert re.search(r"test_cuda_scalar_products\.py:\d+:\d+\n", message) and "left[i, j]" in message
        assert message.splitlines()[-1] == "  help: it fits with left of half its size"
        kernel = tilewright.jit(target="cuda -arch=sm_90a")(crowded).compile(*given)
