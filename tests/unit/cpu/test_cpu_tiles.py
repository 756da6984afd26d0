"""Products by the matrix unit: interpreted anywhere, compiled where this machine has one, against exact products."""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cpu_gemm import check, interpreted, kernel_for, product, random

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret
from tilewright.kernels.matmul import linear, matmul
from tilewright.runtime.kernel import Kernel
from tilewright.targets.base import UnknownTarget
from tilewright.targets.cpu.arch import AMX, arch, host, runs_here
from tilewright.targets.cpu.compiler import build

MACHINE = "avx512-vnni-bf16-amx"
here = pytest.mark.skipif(not runs_here(arch({"arch": MACHINE})), reason="this machine has no matrix unit")
INTEGERS = [(a, b, "int32") for a in ("int8", "uint8") for b in ("int8", "uint8")]
NARROW = ("bfloat16", "bfloat16", "float32")


def is_by_tiles(kernel: Kernel) -> bool:
    return "tw_tile_load" in kernel.get_kernel_source()


def both_ways(kernel: Kernel, sizes: tuple[int, int, int], dtypes: tuple[str, str, str], transpose_B: bool) -> None:
    """Interpreted, and compiled where that is possible."""
    check(kernel, functools.partial(interpreted, kernel), sizes, dtypes, transpose_B)
    if runs_here(kernel.arch):
        check(kernel, kernel, sizes, dtypes, transpose_B)


CASES = [
    (dtypes, transpose_B, packed)
    for dtypes in (*INTEGERS, NARROW)
    for transpose_B, packed in ((True, False), (False, False), (True, True))
]


@pytest.mark.parametrize(("dtypes", "transpose_B", "packed"), CASES)
def test_every_pair_of_types(dtypes: tuple[str, str, str], transpose_B: bool, packed: bool) -> None:
    sizes = 37, 71, 133
    kernel = kernel_for(MACHINE, *sizes, *dtypes, transpose_B, packed=packed, block_M=32, block_K=64)
    assert is_by_tiles(kernel)
    both_ways(kernel, sizes, dtypes, transpose_B)


@pytest.mark.parametrize("block_K", [32, 48, 96, 100])
@pytest.mark.parametrize("packed", [False, True])
def test_words_of_k_that_fill_no_tile(block_K: int, packed: bool) -> None:
    """32 bytes, 48, twice 48, five times 20 (which vectors do as well); K ends within a tile."""
    sizes = 16, 40, 150
    kernel = kernel_for(MACHINE, *sizes, "int8", "int8", "int32", True, packed=packed, block_K=block_K)
    assert is_by_tiles(kernel) == (block_K != 100)
    both_ways(kernel, sizes, ("int8", "int8", "int32"), True)


@here
@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_every_number_of_rows(dtype: str) -> None:
    """Tiles of fewer rows, two of different heights, several bands; rows of A at any address."""
    N, K, out = 40, 144, "int32" if dtype == "int8" else "float32"
    kernel = tilewright.compile(linear.trace(N, K, dtype, out, out, block_M=64), target=f"cpu -arch={MACHINE}")
    assert is_by_tiles(kernel)
    w = random((N, K), dtype, 1)
    packed = kernel.pack(W=w)
    for M in range(1, 71):
        room = random((M * K + 3,), dtype, M)
        a = room[3:].reshape(M, K)
        c = np.full((M, N), -7, out)
        kernel(a, packed, c)
        exact = a.astype(np.float64) @ w.T.astype(np.float64)
        if dtype == "int8":
            np.testing.assert_array_equal(c, exact)
        else:
            magnitude = np.abs(a.astype(np.float64)) @ np.abs(w.T.astype(np.float64))
            assert (np.abs(c - exact) <= K * 2.0**-23 * magnitude).all(), M


@pytest.mark.parametrize("rows", [20, 24, 40])
def test_tiles_of_a_block_whose_rows_fill_none(rows: int) -> None:
    sizes = 50, 35, 64
    kernel = kernel_for(MACHINE, *sizes, "int8", "uint8", "int32", False, block_M=rows, block_K=64)
    assert is_by_tiles(kernel)
    both_ways(kernel, sizes, ("int8", "uint8", "int32"), False)


@pytest.mark.parametrize("block_M", [4, 16])
def test_panels_of_bfloat16_serve_few_rows_too(block_M: int) -> None:
    """Vectors read the pairs that tiles want, by their own instruction or widened to float32."""
    for machine in (MACHINE, "avx512+amx_tile+amx_bf16"):
        kernel = kernel_for(machine, 7, 37, 50, *NARROW, True, packed=True, block_M=block_M)
        assert is_by_tiles(kernel) == (block_M == 16)
        both_ways(kernel, (7, 37, 50), NARROW, True)


@tilewright.jit
def scaled(M: int, N: int, K: int, group: int, zeros: str) -> Any:
    """Totals of groups, scaled; with a number for each row that they begin with, the same for all columns or not."""
    groups = K // group

    @T.prim_func
    def scaled(
        A: T.Tensor((M, K), "int8"),
        B: T.Tensor((N, K), "uint8"),
        S: T.Tensor((groups, N), "float32"),
        Z: T.Tensor((M, groups), "int32"),
        P: T.Tensor((groups, N), "uint8"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=1):
            a, b = T.alloc_shared((M, group), "int8"), T.alloc_shared((N, group), "uint8")
            c = T.alloc_fragment((M, N), "float32")
            T.clear(c)
            for g in T.serial(groups):
                T.copy(A[0, g * group], a)
                T.copy(B[0, g * group], b)
                points = P[g, 0:N] if zeros == "columns" else None
                T.gemm(a, b, c, transpose_B=True, scale_B=S[g, 0:N], shift=Z[0:M, g] if zeros else None, shift_B=points)
            T.copy(c, C)

    return scaled


@pytest.mark.parametrize("zeros", ["", "rows", "columns"])
@pytest.mark.parametrize(("M", "N", "group"), [(21, 32, 128), (21, 24, 32), (70, 48, 64)])
def test_scaled_totals(M: int, N: int, group: int, zeros: str) -> None:
    """Of 70 rows, vectors finish the first thirty-two while the next are multiplied."""
    K = 256
    kernel = tilewright.compile(scaled.trace(M, N, K, group, zeros), target=f"cpu -arch={MACHINE}")
    assert is_by_tiles(kernel)
    a, b = random((M, K), "int8", 0), random((N, K), "uint8", 1)
    s = np.float32(2.0) ** np.random.default_rng(2).integers(-3, 3, (K // group, N)).astype(np.float32)
    z, p = random((M, K // group), "int32", 3) >> 12, random((K // group, N), "uint8", 4)
    parts = np.einsum("mgk,ngk->gmn", *(x.reshape(len(x), -1, group).astype(np.float64) for x in (a, b)))
    added = z.T[:, :, None].astype(np.float64) * (p[:, None, :] if zeros == "columns" else 1)
    exact = ((parts + (added if zeros else 0)) * s[:, None, :]).sum(0)
    c = np.zeros((M, N), np.float32)
    interpret(kernel.program.final, (a, b, s, z, p, c))
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=4 if zeros == "columns" else 1)
    if runs_here(kernel.arch):
        found = np.zeros((M, N), np.float32)
        kernel(a, b, s, z, p, found)
        np.testing.assert_array_equal(found, c)


@here
def test_the_interpreter_rounds_as_the_matrix_unit_does() -> None:
    """Order of the sums, subnormal numbers (which are zeros here), infinities and signed zeros."""
    kernel = kernel_for(MACHINE, 16, 32, 96, *NARROW, True)
    rng = np.random.default_rng(0)
    for scale in (1.0, 2.0**-64, 2.0**64):
        a, b = ((rng.standard_normal(shape) * scale).astype("float32") for shape in ((16, 96), (32, 96)))
        a[0], a[1, :4], b[0, :2] = -0.0, [2.0**-130, np.inf, 1, -1], [2.0**-127, -0.0]
        operands = [x.astype(tilewright.dtype("bfloat16").numpy) for x in (a, b)]
        c, found = np.zeros((16, 32), np.float32), np.zeros((16, 32), np.float32)
        interpret(kernel.program.final, (*operands, c))
        kernel(*operands, found)
        np.testing.assert_array_equal(found.view(np.uint32)[~np.isnan(c)], c.view(np.uint32)[~np.isnan(c)])
        assert (np.isnan(found) == np.isnan(c)).all()


@here
@pytest.mark.parametrize(("dtype", "out"), [("int8", "int32"), ("bfloat16", "float32")])
def test_two_matrices_met_for_the_first_time(dtype: str, out: str) -> None:
    """Both operands are copied by kernels before, once for all blocks; A begins anywhere."""
    M, N, K = 150, 170, 90
    a, b = random((M + 1, K), dtype, 0).reshape(-1)[1 : M * K + 1].reshape(M, K), random((K, N), dtype, 1)
    kernel = matmul.compile(a, b, dtype=dtype, accumulate=out, out=out, block_M=64, block_N=96)
    found = kernel(a, b)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    magnitude = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert (np.abs(found - exact) <= (0 if dtype == "int8" else K * 2.0**-23 * magnitude)).all()


def largest_of_sums(M: int, N: int, K: int) -> Any:
    """The largest of each column's sums in blocks of 32 rows and 64 columns, zeros beyond the end of A and B among them."""

    @T.prim_func
    def main(A: T.Tensor((M, K), "int8"), B: T.Tensor((N, K), "int8"), D: T.Tensor((1, 64), "int32")):
        with T.Kernel(1, threads=1) as _:
            a = T.alloc_shared((32, K), "int8")
            b = T.alloc_shared((64, K), "int8")
            c = T.alloc_fragment((32, 64), "int32")
            d = T.alloc_fragment((64,), "int32")
            T.clear(c)
            for k in T.Pipelined(1):
                T.copy(A[0, k * K], a)
                T.copy(B[0, k * K], b)
                T.gemm(a, b, c, transpose_B=True)
            T.reduce_max(c, d, dim=0)
            T.copy(d, D[0, 0])

    return main


@pytest.mark.parametrize(("M", "N"), [(32, 64), (20, 64), (12, 64), (32, 40), (20, 40)])
def test_sums_that_no_product_reaches_are_zero(M: int, N: int) -> None:
    """Registers begin at zero, so nobody fills c; rows and columns that do not exist are zero all the same."""
    kernel = tilewright.compile(largest_of_sums(M, N, 64), target=f"cpu -arch={MACHINE}")
    assert "tw_tile_zero" in kernel.get_kernel_source()
    a, b = np.full((M, 64), -3, np.int8), np.full((N, 64), 5, np.int8)
    expected = np.zeros((1, 64), np.int32)
    expected[:, :N] = -960 if M == 32 else 0
    found = np.full((1, 64), 7, np.int32)
    interpret(kernel.program.final, (a, b, found))
    np.testing.assert_array_equal(found, expected)
    if runs_here(kernel.arch):
        kernel(a, b, found)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("K", "pitch"), [(128, 192), (64, 64), (100, 192), (320, 320)])
def test_copied_rows_lie_an_odd_number_of_lines_apart(K: int, pitch: int) -> None:
    """Sixteen rows at a power of two share few sets of the first-level cache."""
    M, N = 200, 80
    trace = product.trace(M, N, K, "int8", "int8", "int32", True, block_M=96, block_N=32, block_K=-(-K // 64) * 64)
    kernel = tilewright.compile(trace, target=f"cpu -arch={MACHINE}")
    loads = [line for line in kernel.get_kernel_source().splitlines() if "tile_load(4" in line]
    assert loads and all(line.endswith(f", {pitch});") for line in loads)
    both_ways(kernel, (M, N, K), ("int8", "int8", "int32"), True)


def test_few_rows_are_multiplied_by_vectors() -> None:
    kernel = kernel_for(MACHINE, 37, 71, 133, "int8", "int8", "int32", True, block_M=4)
    assert not is_by_tiles(kernel)


@pytest.mark.parametrize("dtypes", [INTEGERS[0], NARROW])
def test_text_compiles_without_the_unit(dtypes: tuple[str, str, str], tmp_path: Path) -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the C compiler here makes code for another family")
    kernel = kernel_for(MACHINE, 20, 37, 64, *dtypes, True)
    build(kernel.program.source, arch({"arch": MACHINE}), tmp_path)


def test_features_of_this_machine_can_be_left_out() -> None:
    """By name; those that are not known are told."""
    without = arch({"arch": "native-" + "-".join(AMX)}) if host().has("x86_64") else host()
    assert without.features == host().features - set(AMX) and without.cores == host().cores
    with pytest.raises(UnknownTarget, match=r"unknown .* feature 'amx_fp8'"):
        arch({"arch": "native-amx_fp8"})


def shifted_by_floats(M: int, N: int, K: int) -> Any:
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "uint8"),
        B: T.Tensor((N, K), "int8"),
        Z: T.Tensor((M,), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=1) as _:
            a, b = T.alloc_shared((M, K), "uint8"), T.alloc_shared((N, K), "int8")
            c = T.alloc_fragment((M, N), "float32")
            T.clear(c)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, shift=Z[0:M])
            T.copy(c, C)

    return main


def test_integers_that_pairs_of_floats_multiply() -> None:
    """A float shift leaves totals of integers out: bytes become pairs of bfloat16, which is no order of panels."""
    M, N, K = 16, 32, 64
    kernel = tilewright.compile(shifted_by_floats(M, N, K), target="cpu -arch=avx512-vnni-bf16")
    assert "dot2_bf16" in str(kernel.program.final)
    a, b, z = random((M, K), "uint8", 0), random((N, K), "int8", 1), np.arange(M, dtype=np.float32)
    c = np.zeros((M, N), np.float32)
    interpret(kernel.program.final, (a, b, z, c))
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.T.astype(np.float64) + z[:, None])
