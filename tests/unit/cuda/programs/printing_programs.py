"""Programs that print: each gives a function, its arguments, and whether a CPU runs it too."""

from __future__ import annotations

import numpy as np

import tilewright.language as T


def of_everything():
    """Texts, scalars, tiles of every scope, threads apart, elements of a parallel loop, two blocks."""

    @T.prim_func
    def everything(A: T.Tensor((20, 20), "float32"), n: T.int32, B: T.Tensor((20, 20), "float32")):
        with T.Kernel(2, threads=64) as bx:
            tx = T.get_thread_binding()
            shared = T.alloc_shared((20, 20), "float16")
            fragment = T.alloc_fragment((20, 20), "float32")
            mine = T.alloc_local((2,), "uint8")
            print('100% {braces} "n"\n is', n, bx, n > 3)
            T.copy(A, shared)
            T.copy(shared, fragment)
            T.print(shared[0:2, 3:20], msg="shared", warp_id=1)
            T.print(fragment, msg="all of it")
            T.print(fragment[bx : bx + 3, 4], msg="column")
            mine[0] = tx
            mine[1] = 255
            if tx % 32 == 3:
                T.print(mine)
                print(tx, T.cast(tx, "int64") * 4000000000, T.float64(0.1) * n)
            T.print(A[19, 3])
            for i in T.Parallel(3):
                T.print(shared[i, 0] + 0.5)
            T.copy(fragment, B)

    values = np.arange(400, dtype=np.float32).reshape(20, 20) / 3
    return everything, [values, 5, np.zeros((20, 20), np.float32)], True


def of_a_long_row():
    """A row that is no whole number of pieces, in a fragment that meets in parts; negative and infinite numbers."""

    @T.prim_func
    def long_row(A: T.Tensor((4104,), "float32"), B: T.Tensor((4104,), "float32")):
        with T.Kernel(1, threads=128):
            fragment = T.alloc_fragment((4104,), "float32")
            T.copy(A, fragment)
            print(fragment)
            T.copy(fragment, B)

    values = np.random.default_rng(0).standard_normal(4104).astype(np.float32)
    values[:2] = [np.inf, -np.inf]
    return long_row, [values, np.zeros_like(values)], True


def of_a_product():
    """Within a pipelined product: on sm_90a, roles, rings and the copy engine stay."""

    @T.prim_func
    def product(
        A: T.Tensor((128, 192), "float16"), B: T.Tensor((192, 128), "float16"), C: T.Tensor((128, 128), "float32")
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                print("k", k)
                T.print(a[3, 0:5])
                T.gemm(a, b, c)
                T.print(c[5:7, 0:9], msg="so far")
            T.copy(c, C)

    random = np.random.default_rng(1)
    left, right = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((128, 192), (192, 128)))
    return product, [left, right, np.zeros((128, 128), np.float32)], False


def of_groups():
    """Groups of warps that the author divides, each with threads of its own."""

    @T.prim_func
    def groups(A: T.Tensor((8,), "int32"), C: T.Tensor((8,), "int32")):
        with T.Kernel(1, 2, threads=256) as (_, by):
            tx = T.get_thread_binding()
            with T.ws(0):
                T.print(A[by], msg="first")
            with T.ws(1):
                if tx == 130:
                    T.print(A[7], msg="second")
                for i in T.Parallel(8):
                    C[i] = A[i]

    return groups, [np.arange(8, dtype=np.int32), np.zeros(8, np.int32)], False


PRINTING = (of_everything, of_a_long_row, of_a_product, of_groups)
