"""Final programs ask nothing that sizes, loops and assumptions decide: whatever number of steps and slots a pipeline has."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_gemm import matmul, on
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
import tilewright.language as T
from tilewright.ir.nodes import Const
from tilewright.passes.scoped import ScopedRewriter


class Decided(ScopedRewriter):
    """Collects the conditions whose value is certain where they stand."""

    def __init__(self, function):
        super().__init__(function)
        self.found = []

    def note(self, condition):
        if isinstance(self.analyzer.simplify(condition), Const):
            self.found.append(condition)

    def visit_If(self, branch):
        self.note(branch.condition)
        return super().visit_If(branch)

    def visit_Select(self, select):
        self.note(select.condition)
        return super().visit_Select(select)


def decided(kernel):
    collector = Decided(kernel.program.final)
    collector(kernel.program.final.body)
    return collector.found


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@settings(max_examples=6, deadline=None)
@given(rows=st.integers(1, 130), depth=st.integers(1, 200), stages=st.integers(1, 4), transposed=st.booleans())
def test_no_condition_is_decided_before_it_runs(arch, rows, depth, stages, transposed):
    shapes = [(rows, depth), (48, depth) if transposed else (depth, 48)]
    operands = [np.zeros(shape, np.float16) for shape in shapes]
    kernel = on(arch, matmul).compile(*operands, block=(64, 32, 32), num_stages=stages, transpose_B=transposed)
    assert decided(kernel) == []


@T.prim_func
def beyond_what_runs(A: T.Tensor((2,), "int32"), B: T.Tensor((2, 32), "int32")):
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((2,), "int32")
        for i in T.Parallel(2):
            tile[i] = A[i]
        for k in T.serial(1, 2):
            for j in T.Parallel(32):
                B[1, j] = T.if_then_else(k + 2 < 3, tile[k + 2], tile[k])
            if k + 2 < 2 and B[0, 0] >= 0:
                for j in T.Parallel(32):
                    B[0, j] = tile[k + 2]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_never_runs_asks_for_no_element_beyond_a_tile(arch):
    """Found by a fuzzed pipeline: in a dead branch facts contradict one another, and indices become any number."""
    kernel = tilewright.compile(beyond_what_runs, target=f"cuda -arch={arch}")
    B = np.zeros((2, 32), np.int32)
    kernel.emulate(np.array([3, 5], np.int32), B)
    np.testing.assert_array_equal(B, [[0] * 32, [5] * 32])
