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


@pytest.mark.parametrize("rows, loops, asked", [(2, 2, 0), (20, 2, 0), (30, 1, 30)])
def test_a_loop_is_cut_where_its_tensor_ends_unless_it_is_large(rows: int, loops: int, asked: int) -> None:
    """Both parts are compiled: a long one asks at each access instead."""

    @T.prim_func
    def program(A: T.Tensor((100,), "float32"), B: T.Tensor((rows, 130), "float32")):
        with T.Kernel(2) as bx:
            for i in T.serial(64):
                for row in list(range(rows)):  # a list: its loop is written out
                    B[row, bx * 64 + i] = A[bx * 64 + i] + row

    kernel = tilewright.compile(program, target="cpu")
    text = kernel.show_program("guard_bounds")
    assert (text.count("for i in"), text.count(" if ")) == (loops, asked)
    a, b = np.arange(1, 101, dtype=np.float32), np.zeros((rows, 130), np.float32)
    kernel(a, b)
    expected = np.arange(rows)[:, None] + np.pad(a, (0, 28))
    assert np.array_equal(b, np.pad(expected, ((0, 0), (0, 2))))
