"""Final programs ask nothing that sizes, loops and assumptions decide: whatever number of steps and slots a pipeline has."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_gemm import matmul, on
from hypothesis import given, settings
from hypothesis import strategies as st

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
