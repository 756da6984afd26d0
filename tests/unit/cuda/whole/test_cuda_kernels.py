"""Kernels of the language on the cuda target: emulated under checks against exact references, and compiled to machine code."""

import numpy as np
import pytest
from cuda_gemm import matmul, on, operands, product

import tilewright.language as T
from tilewright.kernels.attention import flash_attention
from tilewright.kernels.attention_tiles import AttentionTiles, attention_tiles, tiles_for
from tilewright.kernels.elementwise import elementwise
from tilewright.kernels.rms_norm import rms_norm_of_long_rows, rms_norm_of_short_rows
from tilewright.kernels.softmax import softmax_of_long_rows, softmax_of_short_rows
from tilewright.passes.context import Schedule
from tilewright.specialization import JITFunction
from tilewright.targets.cuda.compiler import compile_text

RNG = np.random.default_rng(3)


def check_product(result, a, b, transpose_A, transpose_B, accumulator="float32"):
    exact, size = product(a, b, transpose_A, transpose_B)
    if accumulator == "int32":
        assert np.array_equal(result, exact.astype(np.int64).astype(np.int32))
        return
    k = a.shape[0] if transpose_A else a.shape[1]
    unit = 2.0**-24 if accumulator == "float32" else 2.0**-10
    assert (np.abs(result.astype(np.float64) - exact) <= (k + 2) * unit * size).all()


@pytest.mark.parametrize("transpose_A, transpose_B", [(False, True), (False, False), (True, True), (True, False)])
@pytest.mark.parametrize(
    "dtype, accumulator",
    [("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32"), ("uint8", "int32"), ("float16", "float16")],
)
def test_matmul_of_every_type_and_order(dtype, accumulator, transpose_A, transpose_B):
    a, b = operands(70, 100, 104, dtype, transpose_A, transpose_B)
    kernel = on("sm_80", matmul).compile(
        a, b, dtype=dtype, accumulator=accumulator, out=accumulator, transpose_A=transpose_A, transpose_B=transpose_B
    )
    check_product(kernel.emulate(a, b), a, b, transpose_A, transpose_B, accumulator)


@pytest.mark.parametrize(
    "block, threads",
    [((48, 80, 16), 96), ((96, 192, 48), 128), ((80, 48, 64), 128), ((16, 64, 64), 32), ((128, 128, 64), 256)],
    ids=str,
)
def test_matmul_of_odd_tiles(block, threads):
    a, b = operands(131, 151, 104, "float16")
    kernel = on("sm_80", matmul).compile(a, b, block=block, threads=threads)
    check_product(kernel.emulate(a, b, schedule="random", seed=5), a, b, False, True)


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (33, 65, 7), (64, 64, 0)])
def test_matmul_of_sizes_that_allow_no_vectors(m, n, k):
    a, b = operands(m, n, k, "float16")
    check_product(on("sm_80", matmul).compile(a, b).emulate(a, b), a, b, False, True)


def test_matmul_without_matrix_instructions():
    a, b = operands(70, 50, 40, "float32")
    kernel = on("sm_80", matmul).compile(a, b, dtype="float32")
    assert "scalar products" in kernel.explain()
    check_product(kernel.emulate(a, b), a, b, False, True)


@pytest.mark.parametrize("schedule", ["late", "early", "random"])
@pytest.mark.parametrize("columns", [1500, 1536])
def test_softmax_and_norm(schedule, columns):
    x, weight = RNG.standard_normal((6, columns)).astype(np.float32), RNG.standard_normal(columns).astype(np.float32)
    shifted = x.astype(np.float64) - x.max(1, keepdims=True)
    softmax = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    norm = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6) * weight
    short = columns % 128 == 0
    for kernel in (softmax_of_long_rows, softmax_of_short_rows)[: 1 + short]:
        assert np.allclose(on("sm_80", kernel).compile(x).emulate(x, schedule=schedule), softmax, rtol=1e-5, atol=1e-12)
    for kernel in (rms_norm_of_long_rows, rms_norm_of_short_rows)[: 1 + short]:
        result = on("sm_80", kernel).compile(x, weight).emulate(x, weight, schedule=schedule)
        assert np.allclose(result, norm, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    q = RNG.standard_normal((1, 2, 70, 64)).astype(np.float16)
    k, v = (RNG.standard_normal((1, 1, 133, 64)).astype(np.float16) for _ in range(2))
    kernel = on("sm_80", flash_attention).compile(q, k, v, dtype="float16", causal=causal)
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 1, 3, 2) / 8
    if causal:
        scores = np.where(np.arange(133)[None, :] <= np.arange(70)[:, None] + 63, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    # Weights and result are rounded to float16.
    assert np.abs(kernel.emulate(q, k, v) - expected).max() <= 4 * 2.0**-11 * np.abs(v).max()


@pytest.mark.parametrize(
    "causal, queries, keys, splits, kept", [(False, 1, 100, 3, 8), (True, 3, 70, 4, 8), (True, 40, 25, 1, 64), (True, 40, 25, 2, 16), (False, 1, 300, 16, 0)]
)  # fmt: skip
@pytest.mark.parametrize("arch", ["sm_90a", pytest.param("sm_80", marks=pytest.mark.proof)])
def test_few_queries(arch, causal, queries, keys, splits, kept):
    """Heads that share keys are rows of one tile; blocks split the keys, some of them without any, and combine their results in a
    cluster or by a second kernel; rows that see no key are zero."""
    q = RNG.standard_normal((2, 4, queries, 32)).astype(np.float16)
    k, v = (RNG.standard_normal((2, 2, keys, 32)).astype(np.float16) for _ in range(2))
    tiles = AttentionTiles(64, 32, 128, together=True, splits=splits, kept=kept)
    kernel = on(f"{arch} -cores=4", flash_attention).compile(q, k, v, dtype="float16", causal=causal, tiles=tiles)
    assert ("cluster_sync" in kernel.get_kernel_source()) == (arch == "sm_90a" and splits in (2, 4))
    wide_k, wide_v = (np.repeat(one, 2, axis=1).astype(np.float64) for one in (k, v))
    scores = q.astype(np.float64) @ wide_k.transpose(0, 1, 3, 2) * 32**-0.5
    visible = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries
    weights = np.where(visible | (not causal), np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    total = weights.sum(-1, keepdims=True)
    expected = weights / np.where(total > 0, total, 1) @ wide_v
    assert np.abs(kernel.emulate(q, k, v, schedule="random") - expected).max() <= 4 * 2.0**-11 * np.abs(v).max()


@pytest.mark.parametrize("causal, queries, keys", [(True, 200, 133), (False, 133, 200)])
def test_attention_blocks_stay_for_tiles_of_any_length(causal, queries, keys):
    q = RNG.standard_normal((1, 3, queries, 32)).astype(np.float16)
    k, v = (RNG.standard_normal((1, 3, keys, 32)).astype(np.float16) for _ in range(2))
    factory = JITFunction(flash_attention.direct.function, "cuda -arch=sm_90a -cores=2", Schedule(persistent=True))
    kernel = factory.compile(q, k, v, dtype="float16", causal=causal, tiles=AttentionTiles(64, 32, 128))
    assert "grid: persistent, 2 at once" in kernel.explain()
    assert "Q_shared_loads: a second slot, for the next tile" in kernel.explain()
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 1, 3, 2) * 32**-0.5
    visible = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries
    weights = np.where(visible | (not causal), np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    total = weights.sum(-1, keepdims=True)
    expected = weights / np.where(total > 0, total, 1) @ v.astype(np.float64)
    assert np.abs(kernel.emulate(q, k, v, schedule="random") - expected).max() <= 4 * 2.0**-11 * np.abs(v).max()


@pytest.mark.parametrize(
    "arch, dim, causal, rows, keys",
    [("sm_90a", 64, True, 192, 128), ("sm_90a", 128, False, 128, 128), pytest.param("sm_90a", 96, True, 128, 128, marks=pytest.mark.proof),
     pytest.param("sm_90a", 256, True, 128, 64, marks=pytest.mark.proof), ("sm_80", 128, False, 128, 64)],
)  # fmt: skip
def test_attention_has_tiles_that_fit_the_machine(arch, dim, causal, rows, keys):
    heads = [np.zeros((1, 1, 512, dim), np.float16) for _ in range(3)]
    kernel = on(arch, flash_attention).compile(*heads, dtype="float16", causal=causal)
    chosen = attention_tiles(kernel.arch, "float16", dim)
    assert (chosen.block_M, chosen.block_N) == (rows, keys)
    assert compile_text(kernel.get_kernel_source(), kernel.arch).warnings == ()


def test_attention_has_tiles_for_the_sizes_expected():
    """Steps that divide the keys, heads that share keys together for few queries, keys divided where blocks are few."""
    machine = on("sm_90a", flash_attention).compile(*[np.zeros((1, 1, 64, 64), np.float16)] * 3, dtype="float16").arch
    short = tiles_for(machine, "float16", (16, 32, 32), (512, 512), 128)
    assert 512 % short.block_N == 0
    few = tiles_for(machine, "float16", (1, 64, 8), (4, 16384), 128)
    assert few.together and few.splits > 4
    many = tiles_for(machine, "float16", (4, 32, 32), (16384, 16384), 128)
    assert many.splits == 1 and many.block_M > 64


def test_a_plain_call_has_tiles_for_its_sizes():
    """Few queries of heads that share keys are another kernel than many; lengths that are nearly the same are not."""
    attend = on("sm_90a", flash_attention)
    q, kv = (lambda heads, length: np.zeros((1, heads, length, 64), np.float16)), 2
    made = {
        (queries, keys): attend.compile(q(8, queries), q(kv, keys), q(kv, keys), dtype="float16", causal=True)
        for queries, keys in ((1, 3000), (1, 3060), (2000, 2000), (2030, 2030))
    }
    assert made[1, 3000] is made[1, 3060] and made[2000, 2000] is made[2030, 2030]
    assert made[1, 3000] is not made[2000, 2000]
    assert "cluster_sync" in made[1, 3000].get_kernel_source()  # blocks of a cluster split the keys
    assert "cluster_sync" not in made[2000, 2000].get_kernel_source()


def test_any_sizes_are_right_whatever_is_expected():
    q = RNG.standard_normal((1, 4, 5, 32)).astype(np.float16)
    k, v = (RNG.standard_normal((1, 2, 90, 32)).astype(np.float16) for _ in range(2))
    kernel = on("sm_90a", flash_attention).compile(q, k, v, dtype="float16", expected=(1, 2048))
    weights = np.exp(q.astype(np.float64) @ np.repeat(k, 2, axis=1).astype(np.float64).transpose(0, 1, 3, 2) * 32**-0.5)
    expected = weights / weights.sum(-1, keepdims=True) @ np.repeat(v, 2, axis=1).astype(np.float64)
    assert np.abs(kernel.emulate(q, k, v) - expected).max() <= 4 * 2.0**-11 * np.abs(v).max()


def test_elementwise():
    kernel = elementwise(
        lambda a, b: a * b + 1, [(37, 1), (200,)], ["float32"] * 2, "float32", target="cuda -arch=sm_80"
    )
    a, b = RNG.standard_normal((37, 1)).astype(np.float32), RNG.standard_normal(200).astype(np.float32)
    assert np.array_equal(kernel.emulate(a, b), a * b + np.float32(1))


def every_operator(X, Y_in):
    """Operators whose threads work together, or read elements of others."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y_in: T.Tensor((M, N), "float32")
    Y = T.empty((N, M), "float32")
    S = T.empty((M, N), "float32")
    R = T.empty((4, N), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_fragment((M, N), "float32")
        turned = T.alloc_fragment((N, M), "float32")
        columns = T.alloc_fragment((N,), "float32")
        T.copy(X, tile)
        for i, j in T.Parallel(N, M):
            turned[i, j] = tile[j, i]
        T.copy(turned, Y)
        T.cumsum(tile, dim=1)
        T.copy(tile, S)
        T.copy(Y_in, tile)
        T.reduce_sum(tile, columns, dim=0)
        for j in T.Parallel(N):
            R[0, j] = columns[j]
        T.reduce_max(tile, columns, dim=0)
        for j in T.Parallel(N):
            R[1, j] = columns[j]
        T.reduce_min(tile, columns, dim=0, clear=False)
        for j in T.Parallel(N):
            R[2, j] = columns[j]
        T.reduce_absmax(tile, columns, dim=0)
        for j in T.Parallel(N):
            R[3, j] = columns[j]
    return Y, S, R


@pytest.mark.parametrize("m, n", [(16, 64), (48, 80), (7, 24)])
def test_operators_of_many_threads(m, n):
    x, y = (RNG.standard_normal((m, n)).astype(np.float32) for _ in range(2))
    turned, sums, folds = on("sm_80", every_operator).compile(x, y).emulate(x, y, schedule="random", seed=1)
    assert np.array_equal(turned, x.T)
    assert np.allclose(sums, np.cumsum(x.astype(np.float64), axis=1), rtol=1e-5, atol=1e-5)
    assert np.allclose(folds[0], y.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)
    assert np.array_equal(folds[1:], [y.max(0), y.min(0), np.abs(y).max(0)])


def test_machine_code_uses_the_tensor_cores_and_no_local_memory():
    a, b = operands(256, 256, 128, "float16")
    kernel = on("sm_80", matmul).compile(a, b, block=(128, 128, 32))
    binary = compile_text(kernel.get_kernel_source(), kernel.arch)
    (resources,) = binary.resources.values()
    assert resources.spill_store_bytes == resources.spill_load_bytes == resources.stack_bytes == 0
    text = binary.machine_code()
    assert "HMMA.16816.F32" in text and "LDSM.16.M88.4" in text and "LDL" not in text


def test_the_text_reads_well():
    a, b = operands(100, 80, 96, "float16")
    text = on("sm_80", matmul).compile(a, b).get_kernel_source()
    assert "tw::mma_m16n8k16(" in text and "T.gemm(A_shared, B_shared, C_local" in text
    assert text.count("tw::sync_threads();") == 1


def folded(X):
    """Reductions of a tile that is smaller than the block."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    rows = T.empty((M,), "float32")
    columns = T.empty((N,), "float32")
    with T.Kernel(1, threads=32):
        tile = T.alloc_fragment((M, N), "float32")
        row_sums = T.alloc_fragment((M,), "float32")
        column_tops = T.alloc_fragment((N,), "float32")
        T.copy(X, tile)
        T.reduce_sum(tile, row_sums, dim=1)
        T.copy(row_sums, rows)
        T.reduce_max(tile, column_tops, dim=0)
        T.copy(column_tops, columns)
    return rows, columns


@pytest.mark.parametrize("m, n", [(4, 12), (5, 8), (3, 3)])
def test_tiles_smaller_than_the_block(m, n):
    x = RNG.standard_normal((m, n)).astype(np.float32)
    sums, tops = on("sm_80", folded).compile(x).emulate(x)
    assert np.allclose(sums, x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-6) and np.array_equal(tops, x.max(0))
