"""Kernels whose grid has no blocks."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T


def doubled(rows):
    @T.prim_func
    def program(A: T.Tensor((rows, 5), "float32"), B: T.Tensor((rows, 5), "float32")):
        with T.Kernel(T.ceildiv(rows, 4)) as block:
            for i, j in T.Parallel(4, 5):
                B[block * 4 + i, j] = A[block * 4 + i, j] * 2

    return program


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80"])
@pytest.mark.parametrize("rows", [0, 3])
def test_a_static_grid_of_no_blocks_runs_nothing(target, rows):
    kernel = tilewright.compile(doubled(rows), out_idx=-1, target=target)
    run = kernel if target == "cpu" else kernel.emulate
    assert np.array_equal(run(np.ones((rows, 5), np.float32)), np.full((rows, 5), 2, np.float32))


def test_a_grid_known_at_launch_may_have_no_blocks():
    kernel = tilewright.compile(doubled(T.dynamic("n")), out_idx=-1, target="cpu")
    assert kernel(np.ones((0, 5), np.float32)).shape == (0, 5)
