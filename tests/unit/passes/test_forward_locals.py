"""Arrays of a thread that only hold elements of tensors: the block's conditions are on the tensors themselves."""

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as T

TILES, SIZE = 6, 64


def chosen_products(fill, written=False):
    """The sum of the products of those tiles of a row that a mask keeps."""

    @T.prim_func
    def program(
        A: T.Tensor((SIZE, TILES * SIZE), "float16"),
        B: T.Tensor((TILES * SIZE, SIZE), "float16"),
        Mask: T.Tensor((2, TILES), "int32"),
        C: T.Tensor((2, SIZE, SIZE), "float32"),
    ):
        with T.Kernel(2, threads=128) as row:
            left = T.alloc_shared((SIZE, SIZE), "float16")
            right = T.alloc_shared((SIZE, SIZE), "float16")
            total = T.alloc_fragment((SIZE, SIZE), "float32")
            kept = T.alloc_local((TILES,), "int32")
            T.clear(total)
            if fill == "serial":
                for k in T.serial(TILES):
                    kept[k] = Mask[row, k]
            elif fill == "parallel":
                for k in T.Parallel(TILES):
                    kept[k] = Mask[row, k]
            else:
                T.copy(Mask[row, :], kept)
            if written:
                Mask[row, 0] = 0
            for k in T.Pipelined(TILES, num_stages=1):
                if kept[k] != 0:
                    T.copy(A[0, k * SIZE], left)
                    T.copy(B[k * SIZE, 0], right)
                    T.gemm(left, right, total)
            T.copy(total, C[row, 0, 0])

    return program


@pytest.mark.parametrize("fill", ["serial", "parallel", "copy"])
def test_a_producer_asks_the_tensor(fill):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((SIZE, TILES * SIZE), (TILES * SIZE, SIZE)))
    mask = np.array([[1, 0, 0, 1, 1, 0], [0, 1, 0, 0, 0, 1]], np.int32)
    kernel = tilewright.compile(chosen_products(fill), target="cuda -arch=sm_90a")
    for schedule in ("late", "early"):
        c = np.full((2, SIZE, SIZE), np.nan, np.float32)
        kernel.emulate(a, b, mask, c, schedule=schedule)
        columns = np.repeat(mask, SIZE, 1)
        assert np.array_equal(c, np.einsum("mk,rk,kn->rmn", a.astype(float), columns, b.astype(float)))
    text = kernel.get_kernel_source()
    assert text.count("tma_load") == 2 and not re.search(r"Fragment<int32_t, \d+> kept;", text)


def test_a_tensor_that_changes_is_kept():
    shown = tilewright.compile(chosen_products("serial", written=True), target="cuda -arch=sm_90a").show_program(
        "forward_locals"
    )
    assert "kept = local" in shown
