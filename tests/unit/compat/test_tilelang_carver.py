"""``tilelang.carver``: hints of templates, for each machine, and the programs that they stand for."""

import itertools

import numpy as np
import pytest
from tilewright.compat.tilelang.carver.roller import Hint
from tilewright.compat.tilelang.carver.roller.rasterization import NoRasterization
from tilewright.compat.tilelang.carver.template import ConvTemplate

import tilewright
from tilewright.compat.tilelang.carver import (
    CUDA,
    ElementwiseTemplate,
    FlashAttentionTemplate,
    GEMVTemplate,
    GeneralReductionTemplate,
    MatmulTemplate,
)
from tilewright.specialization import InvalidUse

SM90, SM80 = CUDA("cuda -arch=sm_90a"), CUDA("cuda -arch=sm_80")
rng = np.random.default_rng(0)


@pytest.mark.parametrize("arch", [SM90, SM80, CUDA("hip -arch=gfx942"), CUDA("cpu")], ids=lambda arch: arch.name[:8])
@pytest.mark.parametrize(
    ("M", "N", "K"), [(1024, 1024, 1024), (1, 4096, 4096), (16, 32, 8), (16384, 8192, 512), (77, 13, 1001)]
)
@pytest.mark.parametrize("dtype", ["float16", "int8", "float8_e4m3fn"])
def test_products_have_tiles_that_fit(M, N, K, dtype, arch):
    hints = MatmulTemplate(M, N, K, in_dtype=dtype, accum_dtype="float32").with_arch(arch).recommend_hints(topk=10)
    assert (
        len(hints) == (10 if min(M, N) > 500 else min(10, len(hints)))
        and len({str(one) for one in hints}) == len(hints) > 0
    )
    for hint in hints:
        (m, n), (wm, wn), (k,) = hint.block, hint.warp, hint.rstep
        assert m % wm == 0 and n % wn == 0 and wm % 16 == 0 and wn % 8 == 0
        warps = m // wm * (n // wn)
        assert 1 <= warps <= 8 and Hint.from_dict(hint.to_dict()).block == hint.block
        if arch.machine.has_threads:
            assert hint.pipeline_stage * (m + n) * k * (2 if dtype == "float16" else 1) <= arch.smem_cap
    best = hints[0].block
    if M == 1:
        assert best[0] == 16
    if M == 16384:
        assert best[0] * best[1] >= 128 * 128 and not isinstance(hints[0].rasterization_plan, NoRasterization)


def test_hints_make_a_kernel_that_is_right():
    import tilewright.compat.tilelang.language as T

    def matmul(M, N, K, hint):
        m, n, k = *hint.block, *hint.rstep
        threads = 32 * (m // hint.warp[0]) * (n // hint.warp[1])

        @T.prim_func
        def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")):
            with T.Kernel(T.ceildiv(N, n), T.ceildiv(M, m), threads=threads) as (bx, by):
                a, b, c = (
                    T.alloc_shared((m, k), "float16"),
                    T.alloc_shared((n, k), "float16"),
                    T.alloc_fragment((m, n), "float32"),
                )
                T.clear(c)
                for ko in T.Pipelined(T.ceildiv(K, k), num_stages=hint.pipeline_stage):
                    T.copy(A[by * m, ko * k], a)
                    T.copy(B[bx * n, ko * k], b)
                    T.gemm(a, b, c, transpose_B=True)
                T.copy(c, C[by * m, bx * n])

        return main

    a, b = (rng.integers(-3, 4, (size, 96)).astype(np.float16) for size in (100, 70))
    for hint in MatmulTemplate(100, 70, 96).with_arch(SM90).recommend_hints(3):
        c = np.full((100, 70), 7, np.float32)
        tilewright.compile(matmul(100, 70, 96, hint), target="cuda -arch=sm_90a").emulate(a, b, c)
        np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float).T)


def run(template, *arrays):
    tilewright.compile(template.equivalent_function(), target="cpu")(*arrays)
    return arrays[-1]


@pytest.mark.parametrize("turned", list(itertools.product((False, True), repeat=2)))
def test_the_product_itself(turned):
    template = MatmulTemplate(30, 70, 9, *turned, accum_dtype="float32", out_dtype="float32")
    a, b = rng.standard_normal((30, 9)).astype(np.float16), rng.standard_normal((9, 70)).astype(np.float16)
    given = (np.ascontiguousarray(a.T) if turned[0] else a, np.ascontiguousarray(b.T) if turned[1] else b)
    c = run(template, *given, np.full((30, 70), 7, np.float32))
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=1e-5, atol=1e-5)


def test_a_vector_times_a_matrix():
    template = GEMVTemplate(50, 33, accum_dtype="float32", out_dtype="float32")
    a, b = rng.standard_normal((1, 33)).astype(np.float16), rng.standard_normal((50, 33)).astype(np.float16)
    np.testing.assert_allclose(
        run(template, a, b, np.zeros((1, 50), np.float32)), a.astype(float) @ b.T.astype(float), rtol=1e-5, atol=1e-5
    )
    for hint in template.with_arch(SM80).recommend_hints(5):
        assert hint.block[0] * hint.reduce_thread[0] in (64, 128, 256) and not hint.use_tc


def test_a_convolution():
    template = ConvTemplate(2, 5, 9, 8, 7, 3, 2, 1, 1, accum_dtype="float32", out_dtype="float32")
    a, b = rng.standard_normal((2, 9, 8, 5)).astype(np.float16), rng.standard_normal((3, 3, 5, 7)).astype(np.float16)
    padded = np.pad(a.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
    wanted = np.stack(
        [np.stack([np.einsum("nyxc,yxcf->nf", padded[:, y : y + 3, x : x + 3], b.astype(float)) for x in range(0, 8, 2)], 1)
         for y in range(0, 9, 2)], 1
    )  # fmt: skip
    np.testing.assert_allclose(run(template, a, b, np.zeros(wanted.shape, np.float32)), wanted, rtol=1e-4, atol=1e-4)
    assert template.with_arch(SM90).recommend_hints(2)[0].use_tc


def test_attention():
    template = FlashAttentionTemplate(2, 3, 8, 5, 11, out_dtype="float32")
    q, k, v = (rng.standard_normal((6, size, 8)).astype(np.float16) for size in (5, 11, 11))
    scores = np.exp(q.astype(float) @ k.astype(float).swapaxes(1, 2))
    wanted = scores / scores.sum(-1, keepdims=True) @ v.astype(float)
    np.testing.assert_allclose(run(template, q, k, v, np.zeros((6, 5, 8), np.float32)), wanted, rtol=1e-4, atol=1e-4)
    assert template.get_hardware_aware_configs(SM90, 4)


@pytest.mark.parametrize("structure", ["SSR", "RS", "R", ["S", "R", "S"]])
def test_sums(structure):
    shape = (3, 5, 7)[: len(structure)]
    template = GeneralReductionTemplate(structure=structure, shape=shape, dtype="float32")
    a = rng.standard_normal(shape).astype(np.float32)
    wanted = a.astype(float).sum(tuple(n for n, letter in enumerate(structure) if letter == "R")).reshape(-1)
    np.testing.assert_allclose(run(template, a, np.zeros(wanted.shape, np.float32)), wanted, rtol=1e-5, atol=1e-5)
    hints = template.with_arch(SM90).recommend_hints(10)
    assert hints and all(len(hint.block) == max(1, "".join(structure).count("S")) for hint in hints)


def test_elements():
    template = ElementwiseTemplate([30, 40], "float32").with_arch(SM90)
    a = rng.standard_normal(1200).astype(np.float32)
    np.testing.assert_array_equal(run(template, a, np.zeros_like(a)), a + 1)
    assert all(len(hint.block) == len(hint.thread) == 2 for hint in template.recommend_hints(10))
    assert template.params_as_dict() == {"shape": [30, 40], "dtype": "float32"} == template.class_attributes


def test_mistakes():
    with pytest.raises(InvalidUse, match="N=0 of MatmulTemplate"):
        MatmulTemplate(M=3, K=4)
    with pytest.raises(InvalidUse, match="structure='SX' does not say"):
        GeneralReductionTemplate("SX", (3, 4))


def test_work_is_counted():
    import tilewright.compat.tilelang.language as T
    from tilewright.compat.tilelang.tools import Analyzer

    def made(K, causal=False):
        @T.prim_func
        def main(A: T.Tensor((128, K), "float16"), B: T.Tensor((64, K), "float16"), C: T.Tensor((128, 64), "float32")):
            with T.Kernel(2, threads=128) as block:
                a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), "float16")
                c = T.alloc_fragment((64, 64), "float32")
                T.clear(c)
                for k in T.Pipelined(block + 1 if causal else K // 32, num_stages=2):
                    T.copy(A[block * 64, k * 32], a)
                    T.copy(B[0, k * 32], b)
                    T.gemm(a, b, c, transpose_B=True)
                for i, j in T.Parallel(64, 64):
                    C[block * 64 + i, j] = c[i, j]

        return main

    result = Analyzer.analysis(made(96), SM90)
    assert result.total_flops == 2 * 128 * 64 * 96
    assert result.total_global_bytes == 2 * 3 * 2 * 64 * 32 * 2 + 128 * 64 * 4
    assert result.estimated_time * result.expected_bandwidth_GBps * 1e9 == pytest.approx(result.total_global_bytes)
    assert Analyzer.analysis(made(64, True), SM90).total_flops == 2 * 128 * 64 * 64
    with pytest.raises(InvalidUse, match="the work of the loop over k depends on"):
        Analyzer.analysis(made(T.dynamic("K")), SM90)


def test_layouts_are_drawn(tmp_path, capsys):
    import tilewright.compat.tilelang.language as T
    from tilewright.compat.tilelang.tools import plot_layout

    lane = T.Fragment((8, 8), forward_thread_fn=lambda i, j: i * 4 + j // 2, forward_index_fn=lambda i, j: j % 2)
    plot_layout(lane, tmp_path, "lane", formats="svg,txt", verbose=True)
    text = (tmp_path / "lane.svg").read_text()
    assert text.count("<rect") == 64 and ">T31<" in text and ">L1<" in text
    assert (
        (tmp_path / "lane.txt").read_text().split()[:3]
        == ["T0:L0", "T0:L1", "T1:L0"]
        == capsys.readouterr().out.split()[:3]
    )
    plot_layout(T.Layout((2, 4), lambda i, j: j * 2 + i), tmp_path / "new", formats=["txt"])
    assert (tmp_path / "new" / "layout.txt").read_text().split() == list("02461357")
    with pytest.raises(InvalidUse, match="plot_layout writes no 'gif'"):
        plot_layout(lane, tmp_path, formats="gif")
