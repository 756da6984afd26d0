"""What HIP's users write: products of blocks that are there, operands from every memory, built-ins by hand, changed texts, panels of the grid."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from hip_programs import EVERY, on
from repository_programs import ALL, differences, run

import tilewright
import tilewright.language as T
from tilewright.compat.tilelang import engine
from tilewright.errors import TilewrightWarning

M, N, K, BLOCK = 100, 72, 96, 32


def block_sparse(a_from: str, b_from: str):
    """Blocks of A that a mask leaves out are not multiplied; rows and columns divide nothing."""

    def product(A, B, mask):
        A: T.Tensor((M, K), "float16")
        B: T.Tensor((N, K), "float16")
        mask: T.Tensor((T.ceildiv(M, BLOCK), K // BLOCK), "int32")
        C = T.empty((M, N), "float32")
        with T.Kernel(T.ceildiv(N, BLOCK), T.ceildiv(M, BLOCK), threads=64) as (bx, by):
            a = T.alloc_shared((BLOCK, BLOCK), "float16")
            rows = T.alloc_fragment((BLOCK, BLOCK), "float16")
            b = T.alloc_shared((BLOCK, BLOCK), "float16")
            c = T.alloc_fragment((BLOCK, BLOCK), "float32")
            T.clear(c)
            for k in T.Pipelined(K // BLOCK, num_stages=2):
                if mask[by, k] != 0:
                    if a_from == "shared":
                        T.copy(A[by * BLOCK, k * BLOCK], a)
                    if a_from == "register":
                        T.copy(A[by * BLOCK, k * BLOCK], rows)
                    if b_from == "shared":
                        T.copy(B[bx * BLOCK, k * BLOCK], b)
                    left = A[by * BLOCK : (by + 1) * BLOCK, k * BLOCK : (k + 1) * BLOCK]
                    right = B[bx * BLOCK : (bx + 1) * BLOCK, k * BLOCK : (k + 1) * BLOCK]
                    T.gemm(
                        {"shared": a, "register": rows, "global": left}[a_from],
                        {"shared": b, "global": right}[b_from], c, transpose_B=True,
                    )  # fmt: skip
            T.copy(c, C[by * BLOCK, bx * BLOCK])
        return C

    return product


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("b_from", ["shared", "global"])
@pytest.mark.parametrize("a_from", ["shared", "register", "global"])
def test_block_sparse_products(a_from, b_from, architecture):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((M, K), (N, K)))
    mask = rng.integers(0, 2, (-(-M // BLOCK), K // BLOCK)).astype(np.int32)
    kernel = on(architecture, block_sparse(a_from, b_from)).compile(a, b, mask)
    text = kernel.get_kernel_source()
    assert "tw::mfma" in text or "tw::wmma" in text
    kept = a.astype(np.float64) * np.kron(mask, np.ones((BLOCK, BLOCK)))[:M]
    assert np.abs(kernel.emulate(a, b, mask, schedule="random", seed=2) - kept @ b.astype(np.float64).T).max() < 1e-3
    (resources,) = kernel.resources().values()
    assert resources["scratch_bytes"] == resources["vector_spills"] == 0


@pytest.mark.parametrize("target", ["cuda -arch=sm_80"])
def test_elsewhere_a_product_out_of_tensors_goes_element_by_element(target):
    a, b = (np.random.default_rng(n).standard_normal((n, K)).astype(np.float16) for n in (M, N))
    mask = np.ones((-(-M // BLOCK), K // BLOCK), np.int32)
    with pytest.warns(TilewrightWarning, match="A of this product lies in global memory"):
        kernel = tilewright.jit(block_sparse("global", "shared"), target=target).compile(a, b, mask)
    assert np.abs(kernel.emulate(a, b, mask) - a.astype(np.float64) @ b.astype(np.float64).T).max() < 1e-3


SOURCE = """
// A wave's product by hand: lane l has row l % 16 of a and of b, and k from 4 (l / 16); the result's row is l % 16.
__device__ void multiply(float* sums, const tw::half* a, const tw::half* b) {
  tw::Fragment<float, 4> d;
  tw::Fragment<tw::half, 4> x, y;
  for (int i = 0; i < 4; ++i) { d[i] = sums[i]; x[i] = a[i]; y[i] = b[i]; }
  tw::mfma_m16n16k16(d, x, y);
  for (int i = 0; i < 4; ++i) sums[i] = d[i];
}
"""


@T.prim_func
def by_hand(A: T.Tensor((16, 64), "float16"), B: T.Tensor((16, 64), "float16"), C: T.Tensor((16, 16), "float32")):
    with T.Kernel(1, threads=64):
        T.import_source(SOURCE)
        lane = T.get_thread_binding()
        a, b = T.alloc_local((4,), "float16"), T.alloc_local((4,), "float16")
        sums = T.alloc_local((4,), "float32")
        for i in T.serial(4):
            sums[i] = 0.0
        for k in T.serial(4):
            for i in T.serial(4):
                a[i] = A[lane % 16, k * 16 + lane // 16 * 4 + i]
                b[i] = B[lane % 16, k * 16 + lane // 16 * 4 + i]
            T.call_extern("handle", "multiply", sums, a, b)
        for i in T.serial(4):
            C[lane % 16, lane // 16 * 4 + i] = sums[i]


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx942", "gfx950"])
def test_matrix_instructions_by_hand(architecture):
    kernel = tilewright.compile(by_hand, target=f"hip -arch={architecture}")
    a, b = (np.random.default_rng(n).standard_normal((16, 64)).astype(np.float16) for n in (1, 2))
    c = np.full((16, 16), np.nan, np.float32)
    kernel.emulate(a, b, c)
    assert np.abs(c - a.astype(np.float64) @ b.astype(np.float64).T).max() < 1e-4
    assert re.search(r"v_mfma_f32_16x16x16_?f16", kernel.sass())


@T.prim_func
def doubled(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
    with T.Kernel(2, threads=128) as block:
        for i in T.Parallel(128):
            B[block * 128 + i] = A[block * 128 + i] * 2.0


def test_a_callback_changes_the_text(monkeypatch):
    seen = []

    def changed(text, target):
        seen.append(str(target))
        return text.replace("2.0f", "3.0f")

    monkeypatch.setattr(engine, "_CHANGES", {})
    engine.register_hip_postproc_callback(changed)
    kernel = engine.postprocessed(tilewright.compile(doubled, target="hip -arch=gfx942"))
    a, b = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    kernel.emulate(a, b)
    assert (b == 3 * a).all() and "gfx942" in seen[0] and kernel.resources()


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx1201"])
def test_sparse_products_say_that_no_instruction_takes_them(architecture):
    """gfx1201 has such instructions (swmmac); where they have elements nobody has printed."""
    (program,) = (one for one in ALL if one.name == "sparse_matmul")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel, arguments = program.make(architecture)
    said = f"scalar products (tilewright multiplies sparse operands by no matrix instruction of {architecture})"
    assert said in kernel.explain()
    expected, found = run(kernel.interpret, arguments), run(kernel.emulate, arguments)
    assert not differences(found, expected, 2e-6)


def in_panels(A, B):
    A: T.Tensor((160, 64), "float16")
    B: T.Tensor((800, 64), "float16")
    C = T.empty((160, 800), "float32")
    with T.Kernel(25, 5, threads=64) as (bx, by):
        T.use_swizzle(10)
        a, b = T.alloc_shared((32, 64), "float16"), T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.copy(A[by * 32, 0], a)
        T.copy(B[bx * 32, 0], b)
        T.gemm(a, b, c, transpose_B=True, clear_accum=True)
        T.copy(c, C[by * 32, bx * 32])
    return C


@pytest.mark.parametrize("architecture", ["gfx942", "gfx1100"])
def test_panels_of_ten_are_known_at_compile_time(architecture):
    """25 columns are two panels of ten and one of five: which block works on what is arithmetic on constants."""
    a, b = (np.random.default_rng(n).standard_normal((n, 64)).astype(np.float16) for n in (160, 800))
    kernel = on(architecture, in_panels).compile(a, b)
    order = kernel.get_kernel_source().split("TW_KERNEL")[1].split("alloc_shared")[0]
    assert re.search(r"\b(10|50)\b", order) and "blockIdx.x" in order, order
    assert np.abs(kernel.emulate(a, b) - a.astype(np.float64) @ b.astype(np.float64).T).max() < 1e-3
