"""Words of single threads on machines that have no instruction for them: products of bytes, copies that threads begin."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T

TARGETS = ("cpu", "cuda -arch=sm_80", "hip -arch=gfx942", "hip -arch=gfx1100", "metal -arch=apple7")


def check(program, target, given, expected):
    kernel = tilewright.compile(program, target=target)
    for run in (kernel.interpret, kernel if target == "cpu" else kernel.emulate):
        arguments = [array.copy() for array in given]
        run(*arguments)
        np.testing.assert_array_equal(arguments[-1], expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("types", [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8"), ("int8", "uint8")])
def test_products_of_bytes(types, target):
    total = "uint32" if types == ("uint8", "uint8") else "int32"

    @T.prim_func
    def program(A: T.Tensor((64, 4), types[0]), B: T.Tensor((64, 4), types[1]), C: T.Tensor((64,), total)):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            a, b = T.alloc_local((4,), types[0]), T.alloc_local((8,), types[1])
            c = T.alloc_local((1,), total)
            for i in T.vectorized(4):
                a[i] = A[tx, i]
                b[4 + i] = B[tx, i]
            c[0] = tx
            T.dp4a(a, b[4], c)
            C[tx] = c[0]

    words = np.random.default_rng(0).integers(0, 256, (2, 64, 4)).astype(np.uint8)
    a, b = words[0].view(types[0]), words[1].view(types[1])
    expected = (a.astype(np.int64) * b).sum(1) + np.arange(64)
    check(program, target, (a, b, np.zeros(64, total)), expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("last", [64, 37])
def test_copies_that_threads_begin(last, target):
    @T.prim_func
    def program(A: T.Tensor((64, 8), "float16"), C: T.Tensor((64, 8), "float16")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((64, 8), "float16")
            T.ptx_cp_async(tile[tx, 0], A[tx, 0], 8, tx < last)
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.sync_threads()
            for i in T.serial(8):
                C[tx, i] = tile[63 - tx, i]

    a = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float16)
    expected = np.where(np.arange(64)[:, None] < last, a, 0)[::-1]
    check(program, target, (a, np.zeros_like(a)), expected)
