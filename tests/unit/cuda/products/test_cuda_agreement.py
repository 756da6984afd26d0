"""Gemms that use one fragment agree on where its elements are."""

import numpy as np
import pytest
from cuda_gemm import on

import tilewright.language as T
from tilewright.layout import REGISTER, row_major
from tilewright.passes.tile.gemms.select_instructions import agree

FIRST, SECOND, THIRD = (row_major((extent,), REGISTER) for extent in (2, 4, 8))


def test_the_least_sum_of_ranks_among_ways_that_agree():
    one = [{"c": FIRST}, {"c": SECOND}, {"c": THIRD}]
    other = [{"c": THIRD}, {"c": SECOND}]
    assert agree([one, other]) == [1, 1]
    assert agree([one, [{"c": THIRD}]]) == [2, 0]
    assert agree([one, [{"d": THIRD}]]) == [0, 0]


def test_chains_of_fragments_and_ways_without_any():
    assert agree([[{"a": FIRST}, {"a": SECOND}], [{"a": SECOND, "b": FIRST}], [{"b": FIRST}, {}]]) == [1, 0, 0]
    assert agree([[{"a": FIRST}], [{"a": SECOND}]]) is None
    assert agree([]) == []


def both_orders(A, B, D, depth=64):
    """A product by rows of B and one of `depth` columns of A by columns of D, into the same sums."""
    A: T.Tensor((64, 128), "float16")
    B: T.Tensor((64, 128), "float16")
    D: T.Tensor((2 * depth, 64), "float16")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        left = T.alloc_shared((64, depth), "float16")
        d = T.alloc_shared((depth, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
            T.copy(A[0, k * depth], left)
            T.copy(D[k * depth, 0], d)
            T.gemm(left, d, c)
        T.copy(c, C)
    return C


@pytest.mark.parametrize("depth", [64, 8])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_two_gemms_that_add_to_one_accumulator(arch, depth):
    rng = np.random.default_rng(0)
    a, b, d = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 128), (64, 128), (2 * depth, 64)))
    kernel = on(arch, both_orders).compile(a, b, d, depth=depth)
    expected = a.astype(np.float32) @ b.T.astype(np.float32) + a[:, : 2 * depth].astype(np.float32) @ d.astype(
        np.float32
    )
    assert np.array_equal(kernel.emulate(a, b, d, schedule="random", seed=2), expected)
    if arch == "sm_90a":
        # Warpgroups share tiles in both orders; an instruction of eight columns takes the warps that hold their sums.
        assert kernel.explain().count("gemm: wgmma_ss on 1 x 2 warpgroups") == (2 if depth == 64 else 1)
        assert ("another gemm cannot hold the fragment that both use so" in kernel.explain()) == (depth == 8)
