"""Layouts that authors write: kept by whoever fills the tile, and refused where elements would share a place."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.compat.tilelang.layout import make_swizzled_layout
from tilewright.errors import InvalidLayout

ROWS, COLUMNS = 16, 64
LAYOUTS = {
    "swizzled": lambda tile: make_swizzled_layout(tile).layout,
    "padded": lambda tile: T.Layout((ROWS, COLUMNS), lambda i, j: i * (COLUMNS + 8) + j),
    "transposed": lambda tile: T.Layout((ROWS, COLUMNS), lambda i, j: j * ROWS + i),
    "row-major": lambda tile: T.Layout((ROWS, COLUMNS), lambda i, j: i * COLUMNS + j),
}
TARGETS = ["cuda -arch=sm_90a", "cuda -arch=sm_90", "cuda -arch=sm_80", "cpu"]


def run(function: T.PrimFunc, target: str, *arrays: np.ndarray) -> None:
    kernel = tilewright.compile(function, target=target)
    (kernel if target == "cpu" else kernel.emulate)(*arrays)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [0, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles_that_are_copied_in_one_piece_lie_as_the_author_says(layout: str, stages: int, target: str) -> None:
    @T.prim_func
    def mirrored(X: T.Tensor((3 * ROWS, COLUMNS), "float16"), O: T.Tensor((3 * ROWS, COLUMNS), "float16")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((ROWS, COLUMNS), "float16")
            T.annotate_layout({s: LAYOUTS[layout](s)})
            for k in T.Pipelined(3, num_stages=stages):
                T.copy(X[k * ROWS, 0], s)
                for i, j in T.Parallel(ROWS, COLUMNS):
                    O[k * ROWS + i, j] = s[i, COLUMNS - 1 - j]

    x = np.random.default_rng(0).standard_normal((3 * ROWS, COLUMNS)).astype(np.float16)
    out = np.full_like(x, np.nan)
    run(mirrored, target, x, out)
    np.testing.assert_array_equal(out, x[:, ::-1])


@pytest.mark.parametrize("layout", ["swizzled", "row-major"])
def test_copies_by_hand_heed_the_authors_layout(layout: str) -> None:
    @T.prim_func
    def mirrored(X: T.Tensor((2 * ROWS, COLUMNS), "float16"), O: T.Tensor((2 * ROWS, COLUMNS), "float16")):
        with T.Kernel(1, threads=128):
            s, landed = T.alloc_shared((ROWS, COLUMNS), "float16"), T.alloc_barrier(1)
            T.annotate_layout({s: LAYOUTS[layout](s)})
            for k in T.serial(2):
                if T.get_thread_binding() == 0:
                    T.tma_copy(X[k * ROWS : k * ROWS + ROWS, :], s, barrier=landed)
                    T.barrier_arrive(landed)
                T.mbarrier_wait_parity(landed, k % 2)
                for i, j in T.Parallel(ROWS, COLUMNS):
                    O[k * ROWS + i, j] = s[i, COLUMNS - 1 - j]
                T.sync_threads()

    x = np.random.default_rng(0).standard_normal((2 * ROWS, COLUMNS)).astype(np.float16)
    out = np.full_like(x, np.nan)
    run(mirrored, "cuda -arch=sm_90a", x, out)
    np.testing.assert_array_equal(out, x[:, ::-1])


@pytest.mark.parametrize(
    ("kind", "layout", "said"),
    [
        ("shared", lambda: T.Layout((8, 4), lambda i, j: i * 2 + j), "elements (0, 2) and (1, 0)"),
        ("fragment", lambda: T.Fragment((8, 4), lambda i, j: (i, j // 2)), "elements (0, 0) and (0, 1)"),
        ("fragment", lambda: T.Fragment((8, 4), lambda i, j: (i % 4, j)), "elements (0, 0) and (4, 0)"),
    ],
)
def test_elements_that_would_share_a_place_are_refused(kind: str, layout: object, said: str) -> None:
    with pytest.raises(InvalidLayout, match=re.escape(f"the layout of 's' puts {said} in one place")) as caught:

        @T.prim_func
        def crowded(X: T.Tensor((8, 4), "float32")):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((8, 4), "float32") if kind == "shared" else T.alloc_fragment((8, 4), "float32")
                T.annotate_layout({s: layout()})
                T.copy(X, s)

    assert caught.value.span is not None and "annotate_layout" in str(caught.value)
