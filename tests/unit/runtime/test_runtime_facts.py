"""Fact classes: what calls with other addresses and strides run, and that it is right."""

import re
from collections import Counter

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.printer import print_program
from tilewright.kernels.softmax import softmax_of_long_rows
from tilewright.runtime.facts import FactClasses
from tilewright.specialization import JITFunction

SOFTMAX = JITFunction(softmax_of_long_rows.direct.function, "cuda -arch=sm_80", None)


def placed(array, offset, columns=None):
    """A copy at `offset` elements behind a 16-byte boundary, its rows `columns` elements apart."""
    rows, width = array.shape
    columns = columns or width
    memory = np.empty(rows * columns + 64, array.dtype)
    start = -(memory.ctypes.data // array.itemsize) % (16 // array.itemsize) + offset
    made = memory[start : start + rows * columns].reshape(rows, columns)[:, :width]
    made[...] = array
    return made


def linear_of_any_size(architecture, BM=64, BN=64, BK=32, strided=False):
    """C = A B^T with sizes, and perhaps strides, known only at launch."""
    M, N, K = T.dynamic("M, N, K")
    a, b, c = T.dynamic("a, b, c")

    @T.prim_func
    def product(
        A: T.StridedTensor((M, K), (a, 1), "float16") if strided else T.Tensor((M, K), "float16"),
        B: T.StridedTensor((N, K), (b, 1), "float16") if strided else T.Tensor((N, K), "float16"),
        C: T.StridedTensor((M, N), (c, 1), "float16") if strided else T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            A_shared = T.alloc_shared((BM, BK), "float16")
            B_shared = T.alloc_shared((BN, BK), "float16")
            total = T.alloc_fragment((BM, BN), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
                T.copy(A[by * BM, k * BK], A_shared)
                T.copy(B[bx * BN, k * BK], B_shared)
                T.gemm(A_shared, B_shared, total, transpose_B=True)
            T.copy(total, C[by * BM, bx * BN])

    return tilewright.compile(product, target=f"cuda -arch={architecture}")


def check(kernel, a, b, c):
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    c[...] = np.nan
    kernel.emulate(a, b, c)
    assert (np.abs(c - expected) <= 2.0**-10 * np.abs(expected) + 1e-3 * (np.abs(a) @ np.abs(b).T)).all()


def instructions(kernel):
    words = r"\b(HGMMA|HMMA|UTMALDG|UTMASTG|LDGSTS\S*|LDG|STG)\b"
    return Counter(re.findall(words, re.sub(r"(LDGSTS)\.E(\S*)", r"\1\2", kernel.sass())))


def operands(m, n, k):
    rng = np.random.default_rng(m + n + k)
    return (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (n, k), (m, n)))


def test_the_class_of_a_call():
    function = linear_of_any_size("sm_90a").function
    classes = FactClasses(function)
    assert classes.best == (16, 16, 16) and classes.depend_on_sizes
    assert classes.of([256, 512, 1024, 5, 64, 72]) == (16, 16, 16)
    assert classes.of([256, 514, 1024, 5, 72, 68]) == (16, 2, 8)
    assert "alignment=2" in print_program(classes.assuming((16, 2, 8)))
    assert "K % 8 == 0" in print_program(classes.assuming((16, 2, 8)))


@pytest.mark.parametrize(
    "m, n, k, offset, found",
    [
        (70, 72, 40, 0, {"UTMALDG": 2, "UTMASTG": 1}), (70, 72, 40, 2, {"UTMALDG": 0, "LDGSTS": True}),
        (65, 66, 34, 0, {"UTMALDG": 0, "LDGSTS": True}), (65, 67, 33, 0, {"UTMALDG": 0, "LDGSTS": False}),
    ],
    ids=["16 bytes", "16-byte rows, 4-byte addresses", "4 bytes", "2 bytes"],
)  # fmt: skip
def test_products_of_every_class(m, n, k, offset, found):
    kernel = linear_of_any_size("sm_90a")
    a, b, c = (placed(x, offset) for x in operands(m, n, k))
    check(kernel, a, b, c)
    variant = kernel.variant(a, b, c)
    counts = instructions(variant)
    wide = sum(count for name, count in counts.items() if name.startswith("LDGSTS"))
    assert counts["UTMALDG"] == found["UTMALDG"] and counts["UTMASTG"] == found.get("UTMASTG", 0)
    assert bool(wide) == found.get("LDGSTS", False)
    assert (variant is kernel) == (found["UTMALDG"] > 0)
    if variant is not kernel:
        assert kernel.explain().count("addresses and rows at multiples of bytes") == 2


@pytest.mark.parametrize("m, n, k", [(70, 72, 40), (5, 8, 0)])
def test_sizes_known_only_at_launch_cost_no_matrix_instruction(m, n, k):
    """The same loads, products and stores as for sizes that are known, and none of them serialised."""
    dynamic = linear_of_any_size("sm_90a")

    @tilewright.jit(target="cuda -arch=sm_90a")
    def static(A, B):
        A: T.Tensor((256, 4096), "float16")
        B: T.Tensor((512, 4096), "float16")
        C = T.empty((256, 512), "float16")
        with T.Kernel(8, 4, threads=128) as (bx, by):
            A_shared = T.alloc_shared((64, 32), "float16")
            B_shared = T.alloc_shared((64, 32), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            for step in T.Pipelined(128, num_stages=3):
                T.copy(A[by * 64, step * 32], A_shared)
                T.copy(B[bx * 64, step * 32], B_shared)
                T.gemm(A_shared, B_shared, total, transpose_B=True)
            T.copy(total, C[by * 64, bx * 64])
        return C

    known = static.compile(np.zeros((256, 4096), np.float16), np.zeros((512, 4096), np.float16))
    assert instructions(dynamic) == instructions(known) == {"UTMALDG": 2, "HGMMA": 2, "UTMASTG": 1}
    check(dynamic, *(placed(x, 0) for x in operands(m, n, k)))


def test_rows_that_end_within_sixteen_bytes_are_not_overrun():
    """Aligned strides, ragged widths: loads by the copy engine, stores by threads, and gaps between rows untouched."""
    kernel = linear_of_any_size("sm_90a", strided=True)
    a, b, c = operands(66, 100, 36)
    a, b, c = placed(a, 0, 40), placed(b, 0, 48), placed(c, 0, 104)
    gaps = np.lib.stride_tricks.as_strided(c, (66, 104), (208, 2))[:, 100:]
    gaps[...] = 7
    check(kernel, a, b, c)
    assert (gaps == 7).all()
    assert instructions(kernel)["UTMALDG"] == 2 and instructions(kernel)["UTMASTG"] == 0
    assert "not tma_store: rows of C do not end at a multiple of 16 bytes" in kernel.explain()


@pytest.mark.parametrize("columns, vectors", [(1040, True), (1041, False)])
def test_aligned_rows_move_in_vectors(columns, vectors):
    x = np.random.default_rng(0).standard_normal((5, columns)).astype(np.float32)
    kernel = SOFTMAX.compile(x)
    shifted = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert np.allclose(kernel.emulate(x), shifted / shifted.sum(1, keepdims=True), rtol=1e-5, atol=1e-12)
    variant = kernel.variant(x)
    assert ("load_fragment<4>" in variant.get_kernel_source()) == vectors == (variant is kernel)


@pytest.mark.parametrize("length, offset", [(4096, 0), (4099, 0), (1, 0), (4099, 1), (4098, 2)])
def test_tails_cost_no_vector_width(length, offset):
    """Vectors up to the last whole one whatever the length, single elements behind it."""
    N = T.dynamic("N")

    @T.prim_func
    def twice(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 512), threads=128) as block:
            for i in T.Parallel(512):
                Y[block * 512 + i] = X[block * 512 + i] * 2

    kernel = tilewright.compile(twice, target="cuda -arch=sm_80")
    x = placed(np.random.default_rng(1).standard_normal((1, length)).astype(np.float32), offset)[0]
    y = placed(np.full((1, length), np.nan, np.float32), offset)[0]
    kernel.emulate(x, y)
    assert np.array_equal(y, x * 2)
    text = kernel.variant(x, y).get_kernel_source()
    assert re.findall(r"load_fragment<(\d)>", text) == {0: ["4"], 1: [], 2: ["2"]}[offset]


def test_indices_have_as_many_bits_as_their_sizes():
    N = T.dynamic("N", "int64")

    @T.prim_func
    def twice(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 512), threads=128) as block:
            for i in T.Parallel(512):
                Y[block * 512 + i] = X[block * 512 + i] * 2

    kernel = tilewright.compile(twice, target="cuda -arch=sm_80")
    x, y = np.ones(1021, np.float32), np.zeros(1021, np.float32)
    kernel.emulate(x, y)
    assert (y == 2).all()
    assert "const int64_t block = blockIdx.x" in kernel.get_kernel_source()
