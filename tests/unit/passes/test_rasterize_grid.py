"""Panels visit every block once, in the order that the pass's docstring promises."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T


def visits(columns, rows, panel, order, target):
    @T.prim_func
    def number(C: T.Tensor((rows, columns, 32), "int32")):
        with T.Kernel(columns, rows, threads=32) as (bx, by):
            T.use_swizzle(panel, order=order)
            for lane in T.Parallel(32):
                C[by, bx, lane] = by * columns + bx + 1

    return tilewright.compile(number, out_idx=-1, target=target)


@pytest.mark.parametrize(
    "columns, rows, panel, order", [(5, 7, 3, "row"), (4, 4, 8, "row"), (6, 5, 2, "column"), (1, 9, 4, "row")]
)
def test_every_block_is_visited_once(columns, rows, panel, order):
    kernel = visits(columns, rows, panel, order, "cuda -arch=sm_80")
    expected = np.repeat(np.arange(columns * rows, dtype=np.int32) + 1, 32).reshape(rows, columns, 32)
    assert np.array_equal(kernel.emulate(), expected)
    assert np.array_equal(kernel.interpret(), expected)
    assert "panel" in kernel.get_kernel_source()
