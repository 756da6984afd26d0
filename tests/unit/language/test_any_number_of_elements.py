"""What sets and moves slices whose lengths are numbers of the program."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80", "cuda -arch=sm_90a", "metal -arch=apple7"])
def test_slices_of_any_length(target: str) -> None:
    """They were refused, as slices of fragments are."""

    @T.prim_func
    def program(A: T.Tensor((64, 32), "float32"), Range: T.Tensor((2,), "int32"), B: T.Tensor((70, 32), "float16")):
        with T.Kernel(1, threads=64):
            first, last = Range[0], Range[1]
            tile = T.alloc_shared((64, 32), "float32")
            T.fill(tile, 1)
            T.copy(A[first:last, :], tile[0 : last - first, :])
            T.clear(A[first:last, 0:8])
            T.copy(tile[0:last, :], B[0:last, :])

    kernel = tilewright.compile(program, target=target)
    rng = np.random.default_rng(0)
    for first, last in ((3, 60), (0, 0), (5, 6), (0, 64)):
        a, b = rng.standard_normal((64, 32)).astype(np.float32), np.full((70, 32), 9, np.float16)
        tile, after, wanted = np.ones_like(a), a.copy(), b.copy()
        tile[: last - first] = a[first:last]
        after[first:last, :8] = 0
        wanted[:last] = tile[:last]
        for run in (kernel if target == "cpu" else kernel.emulate, kernel.interpret):
            ours, found = a.copy(), b.copy()
            run(ours, np.array([first, last], np.int32), found)
            assert np.array_equal(ours, after) and np.array_equal(found, wanted)


def test_both_sides_have_one_length() -> None:
    with pytest.raises(TilewrightError, match=r"T\.copy: shapes differ") as caught:

        @T.prim_func
        def program(A: T.Tensor((64,), "float32"), Range: T.Tensor((2,), "int32")):
            with T.Kernel(1, threads=64):
                tile = T.alloc_shared((64,), "float32")
                first, last = Range[0], Range[1]
                T.copy(tile[0:first], A[0:last])

    assert "T.copy(tile[0:first], A[0:last])" in str(caught.value)
