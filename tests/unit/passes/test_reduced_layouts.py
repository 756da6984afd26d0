"""What a reduction leaves has one layout, whichever tile of the loop around it is the largest."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T

TARGETS = ("cuda -arch=sm_80", "cuda -arch=sm_90a", "hip -arch=gfx942", "hip -arch=gfx1100", "metal -arch=apple7")


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_two_products_without_instructions(target: str, width: int) -> None:
    """The wider product's rows gave the maxima their layout, and the narrower one's reduction was refused."""

    def program(A, B, V):
        A: T.Tensor((6, 24), "float32")
        B: T.Tensor((24, 20), "float32")
        V: T.Tensor((20, width), "float32")
        O = T.empty((6, width), "float32")
        with T.Kernel(1, threads=128):
            a, b, v, p = (T.alloc_shared(shape, "float32") for shape in ((6, 24), (24, 20), (20, width), (6, 20)))
            s, o = T.alloc_fragment((6, 20), "float32"), T.alloc_fragment((6, width), "float32")
            top, before = T.alloc_fragment((6,), "float32"), T.alloc_fragment((6,), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(V, v)
            T.clear(o)
            T.fill(top, -100)
            for _ in T.serial(2):
                T.clear(s)
                T.gemm(a, b, s)
                T.copy(top, before)
                T.reduce_max(s, top, dim=1, clear=False)
                for i, j in T.Parallel(6, 20):
                    s[i, j] = s[i, j] - top[i]
                T.copy(s, p)
                for i, j in T.Parallel(6, width):
                    o[i, j] = o[i, j] + top[i] - before[i]
                T.gemm(p, v, o)
            T.copy(o, O)
        return O

    rng = np.random.default_rng(width)
    given = [rng.integers(-3, 4, shape).astype("float32") for shape in ((6, 24), (24, 20), (20, width))]
    kernel = tilewright.jit(target=target)(program).compile(*given)
    scores = given[0] @ given[1]
    rows = scores.max(1, keepdims=True)
    assert (kernel.emulate(*given) == 2 * ((scores - rows) @ given[2]) + rows + 100).all()


@pytest.mark.parametrize("kind", ["max", "sum"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("target", TARGETS)
def test_two_tiles_of_one_total(target: str, dtype: str, kind: str) -> None:
    """Their lines lie in different threads: what one of them leaves is handed over."""

    def program(A, B):
        A: T.Tensor((6, 20), "float32")
        B: T.Tensor((6, 200), "float32")
        O = T.empty((6,), dtype)
        with T.Kernel(1, threads=128):
            a, b = T.alloc_fragment((6, 20), "float32"), T.alloc_fragment((6, 200), "float32")
            total = T.alloc_fragment((6,), dtype)
            T.copy(A, a)
            T.copy(B, b)
            reduce = T.reduce_max if kind == "max" else T.reduce_sum
            reduce(a, total, dim=1)
            reduce(b, total, dim=1, clear=False)
            reduce(a, total, dim=1, clear=False)
            T.copy(total, O)
        return O

    rng = np.random.default_rng(7)
    given = [rng.integers(-9, 10, shape).astype("float32") for shape in ((6, 20), (6, 200))]
    kernel = tilewright.jit(target=target)(program).compile(*given)
    every = np.concatenate([given[0], given[1], given[0]], 1)
    assert (kernel.emulate(*given) == (every.max(1) if kind == "max" else every.sum(1))).all()
