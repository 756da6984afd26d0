"""Reductions by threads whose number is no power of two, of rows that do not divide among them, and in a role of a block."""

import numpy as np
import pytest
from cuda_gemm import on

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret
from tilewright.ir.dtypes import ALL


def folded(A, dim=1, threads=96):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    C = T.empty((N if dim == 0 else M,), "float32")
    with T.Kernel(1, threads=threads):
        a = T.alloc_fragment((M, N), "float32")
        s = T.alloc_fragment((N if dim == 0 else M,), "float32")
        T.copy(A, a)
        T.fill(s, 1.0)
        T.reduce_sum(a, s, dim=dim, clear=False)
        T.copy(s, C)
    return C


@pytest.mark.parametrize("threads", [96, 160, 384])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(32, 96), (20, 24), (48, 40)])
def test_any_number_of_threads(shape, dim, threads):
    a = np.random.default_rng(0).integers(-9, 10, shape).astype(np.float32)
    kernel = on("sm_80", folded).compile(a, dim=dim, threads=threads)
    for schedule, seed in (("late", 0), ("random", 3)):
        assert np.array_equal(kernel.emulate(a, schedule=schedule, seed=seed), 1 + a.sum(dim))


def test_many_totals_of_many_threads_are_divided_among_them():
    """Each thread would else fold the 48 totals of each of its 20 columns, all of them the same sums."""
    a = np.random.default_rng(0).integers(-9, 10, (24, 40)).astype(np.float32)
    kernel = on("sm_90a", folded).compile(a, dim=0, threads=96)
    assert np.array_equal(kernel.emulate(a, schedule="random", seed=1), 1 + a.sum(0))
    assert kernel.sass().count("LDS") < 100


def beside_products(A, B):
    """The consumers fold what they multiply, through shared memory, while the producer loads on."""
    A: T.Tensor((64, 128), "float16")
    B: T.Tensor((32, 128), "float16")
    C = T.empty((64, 32), "float32")
    R = T.empty((32,), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        wide = T.alloc_fragment((64, 32), "float32")
        tops = T.alloc_fragment((32,), "float32")
        c = T.alloc_fragment((64, 32), "float32")
        T.clear(c)
        T.fill(tops, -100.0)
        for k in T.Pipelined(4, num_stages=2, specialize=True):
            T.copy(A[0, k * 32], a)
            T.copy(B[0, k * 32], b)
            T.gemm(a, b, c, transpose_B=True)
            T.copy(a, wide)
            T.reduce_max(wide, tops, dim=0, clear=False)
        T.copy(c, C)
        T.copy(tops, R)
    return C, R


def test_threads_of_a_role_meet_among_themselves():
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (rows, 128)).astype(np.float16) for rows in (64, 32))
    kernel = on("sm_90a", beside_products).compile(a, b)
    assert "tma_load" in kernel.explain()
    for schedule, seed in (("late", 0), ("early", 1), ("random", 2)):
        product, tops = kernel.emulate(a, b, schedule=schedule, seed=seed)
        assert np.array_equal(product, a.astype(np.float32) @ b.astype(np.float32).T)
        assert np.array_equal(tops, a.reshape(64, 4, 32).max((0, 1)))


@pytest.mark.parametrize(
    ("source", "into"),
    [("float16", "float16"), ("bfloat16", "bfloat16"), ("float8_e4m3fn", "float8_e4m3fn"), ("float16", "float32"),
     ("uint32", "float32"), ("int8", "float16"), ("uint8", "int8")],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["sum", "abssum"])
def test_sums_are_added_to_what_was_there_before_they_are_rounded(source, into, kind):
    """Once: numbers whose sums float32 has exactly, so that one rounding more or less shows."""
    rng, of_source, of_result = np.random.default_rng(len(source)), ALL[source], ALL[into]
    numbers = rng.integers(0 if of_source.kind == "uint" else -63, 64, (8, 64))
    x = (numbers / (1 if of_source.is_integer else 16)).astype(of_source.numpy)
    old = rng.integers(-40, 40, 8).astype(of_result.numpy)

    @T.prim_func
    def adding(X: T.Tensor((8, 64), source), O: T.Tensor((8,), into)):
        with T.Kernel(1, threads=64):
            s, o = T.alloc_fragment((8, 64), source), T.alloc_fragment((8,), into)
            T.copy(X, s)
            T.copy(O, o)
            getattr(T, f"reduce_{kind}")(s, o, dim=1, **({"clear": False} if kind == "sum" else {}))
            T.copy(o, O)

    expected, found = old.copy(), old.copy()
    interpret(adding.function, [x, expected])
    tilewright.compile(adding, target="cuda -arch=sm_80").emulate(x, found)
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))
