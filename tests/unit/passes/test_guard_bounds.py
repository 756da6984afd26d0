"""Loops cut at the ends of tensors, where the author's indices say the loop's variable in a roundabout way."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T


def copied(rows: int, across: int):
    """A copy in tiles whose index is put together from quotients and remainders of the loop's variable."""

    @T.prim_func
    def program(A: T.Tensor((5, 30), "float32"), B: T.Tensor((5, 30), "float32")):
        with T.Kernel(T.ceildiv(5, rows), T.ceildiv(30, across * 4)) as (bm, share):
            tile = T.alloc_fragment((rows * across, 4), "float32")
            for i, k in T.Parallel(rows * across, 4):
                tile[i, k] = A[bm * rows + i // across, (share * across + i % across) * 4 + k]
            for i, k in T.Parallel(rows * across, 4):
                B[bm * rows + i // across, (share * across + i % across) * 4 + k] = tile[i, k]

    return program


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80"])
@pytest.mark.parametrize("rows, across", [(1, 5), (4, 1), (2, 3), (1, 1)])
def test_quotients_and_remainders_of_a_loop_variable(target, rows, across):
    kernel = tilewright.compile(copied(rows, across), out_idx=-1, target=target)
    run = kernel if target == "cpu" else kernel.emulate
    a = np.arange(150, dtype=np.float32).reshape(5, 30)
    assert np.array_equal(run(a), a)
