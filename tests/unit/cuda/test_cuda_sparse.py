"""2:4 sparse products: interpreted, emulated in pipelines of both kinds, and compiled to sparse matrix instructions."""

import numpy as np
import pytest
from cuda_gemm import on
from hypothesis import given
from hypothesis import strategies as st

import tilewright.language as T
from tilewright.errors import TilewrightError
from tilewright.formats.sparse import NotSparse, compress, expand, prune
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.targets.cuda.compiler import compile_text


def sparse_matmul(
    A, E, B, dtype="float16", accumulator="float32", block=(64, 32, 64), transpose_B=True, num_stages=2, threads=128, specialize=None,
):  # fmt: skip
    M, N, K = T.const("M, N, K")
    BM, BN, BK = block
    A: T.Tensor((M, K // 2), dtype)
    E: T.Tensor((M, K // 8), "uint8")
    B: T.Tensor((N, K) if transpose_B else (K, N), dtype)
    C = T.empty((M, N), accumulator)
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        a = T.alloc_shared((BM, BK // 2), dtype)
        e = T.alloc_shared((BM, BK // 8), "uint8")
        b = T.alloc_shared((BN, BK) if transpose_B else (BK, BN), dtype)
        c = T.alloc_fragment((BM, BN), accumulator)
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=num_stages, specialize=specialize):
            T.copy(A[by * BM, k * (BK // 2)], a)
            T.copy(E[by * BM, k * (BK // 8)], e)
            if transpose_B:
                T.copy(B[bx * BN, k * BK], b)
            else:
                T.copy(B[k * BK, bx * BN], b)
            T.gemm_sp(a, e, b, c, transpose_B=transpose_B)
        T.copy(c, C[by * BM, bx * BN])
    return C


def problem(m, n, k, dtype, transpose_B=True, seed=0):
    """Kept elements, metadata, B, and the exact product."""
    rng = np.random.default_rng(seed)
    a, b = prune(rng.integers(-4, 5, (m, k))), rng.integers(-4, 5, (n, k))
    kind = dtype_of(dtype).numpy
    kept, metadata = compress(a.astype(kind))
    return kept, metadata, np.ascontiguousarray((b if transpose_B else b.T).astype(kind)), a @ b.T


TYPES = [("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32")]


@pytest.mark.parametrize("arch, specialize", [("sm_80", None), ("sm_90a", None), ("sm_90a", False)])
@pytest.mark.parametrize("dtype, accumulator", TYPES)
def test_products_in_pipelines(dtype, accumulator, arch, specialize):
    *arrays, expected = problem(100, 72, 320, dtype)
    kernel = on(arch, sparse_matmul).compile(
        *arrays, dtype=dtype, accumulator=accumulator, block=(64, 32, 128), num_stages=3, specialize=specialize
    )
    assert "sparse gemm: mma_sparse_m16n8k" in kernel.explain()
    assert np.array_equal(kernel.interpret(*arrays), expected)
    for schedule, seed in (("late", 0), ("early", 1), ("random", 2)):
        assert np.array_equal(kernel.emulate(*arrays, schedule=schedule, seed=seed), expected)


@pytest.mark.parametrize("block, threads", [((32, 64, 32), 64), ((128, 64, 64), 256), ((48, 24, 96), 96)])
def test_other_tiles_and_orders(block, threads):
    *arrays, expected = problem(70, 136, 200, "float16", transpose_B=False)
    kernel = on("sm_80", sparse_matmul).compile(*arrays, block=block, threads=threads, transpose_B=False)
    assert np.array_equal(kernel.emulate(*arrays, schedule="random", seed=3), expected)


def test_types_without_an_instruction_are_multiplied_by_threads():
    *arrays, expected = problem(20, 24, 64, "float32")
    kernel = on("sm_80", sparse_matmul).compile(*arrays, dtype="float32", block=(16, 16, 32), threads=32)
    assert "sparse gemm: scalar products (no sparse matrix instruction for these types)" in kernel.explain()
    assert np.array_equal(kernel.emulate(*arrays), expected)


def test_machine_code_is_sparse():
    *arrays, _ = problem(128, 128, 512, "float16")
    kernel = on("sm_80", sparse_matmul).compile(*arrays, block=(128, 128, 64), num_stages=3)
    binary = compile_text(kernel.get_kernel_source(), kernel.arch)
    assert "HMMA.SP.16832.F32" in binary.sass()


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_what_is_compressed_expands_to_the_same(rows, groups, seed):
    matrix = prune(np.random.default_rng(seed).integers(-3, 4, (rows, 8 * groups)))
    kept, metadata = compress(matrix)
    assert kept.shape == (rows, 4 * groups) and metadata.shape == (rows, groups)
    assert np.array_equal(expand(kept, metadata), matrix)


def test_pruning_keeps_the_largest():
    assert prune(np.array([[1, -5, 2, 4, 0, 0, 3, 3.0]])).tolist() == [[0, -5, 0, 4, 0, 0, 3, 3]]


def test_dense_matrices_are_refused():
    with pytest.raises(NotSparse, match="more than two of the columns 4 to 7 of row 1 differ from zero"):
        compress(np.array([[0] * 8, [0, 0, 0, 0, 1, 2, 3, 0]]))
    with pytest.raises(NotSparse, match=r"a matrix of shape \(2, 12\) cannot be compressed"):
        compress(np.zeros((2, 12)))


def test_operands_that_do_not_fit_are_named():
    kept, metadata, b, _ = problem(64, 32, 64, "float16")

    def wrong(A, E, B):
        A: T.Tensor((64, 32), "float16")
        E: T.Tensor((64, 8), "uint8")
        B: T.Tensor((32, 64), "float16")
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            e = T.alloc_shared((64, 4), "uint8")
            b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((64, 32), "float32")
            T.gemm_sp(a, e, b, c, transpose_B=True)

    with pytest.raises(TilewrightError, match=r"the metadata should have shape \(64, 8\), but has \(64, 4\)"):
        on("sm_80", wrong).compile(kept, metadata, b)
