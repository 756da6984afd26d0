"""Views of shared tiles: they see a tile's elements wherever its layout puts them, in pipelines and in roles."""

import numpy as np
import pytest
from cuda_gemm import on

import tilewright
import tilewright.language as T
from tilewright.targets.cuda.compiler import compile_text


def integers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float16)


def viewed(A, B, rows=64, columns=64, swizzle=False, specialize=None, persistent=None):
    """A gemm's operand, seen as one row, as words and in other rows."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    S = T.empty((M,), "float32")
    W = T.empty((M, 32), "int32")
    with T.Kernel(1, M // 64, threads=128, persistent=persistent) as (_, by):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        flat = T.view(a, (64 * 64,))
        other = T.view(a, (rows, columns))
        words = T.view(b, (64, 32), "int32")
        if swizzle:
            T.annotate_layout({a: T.Layout((64, 64), lambda i, j: i * 64 + (j ^ (i % 8 * 8)))})
        c = T.alloc_fragment((64, 64), "float32")
        sums = T.alloc_fragment((64,), "float32")
        found = T.alloc_fragment((64, 32), "int32")
        T.clear(c)
        T.clear(sums)
        T.clear(found)
        for k in T.Pipelined(K // 64, num_stages=3, specialize=specialize):
            T.copy(A[by * 64, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
            for i in T.Parallel(64):
                place = i * 64 + (i + 3) % 64
                sums[i] = sums[i] + T.cast(flat[place], "float32")
                sums[i] = sums[i] + T.cast(other[place // columns, place % columns], "float32")
            for i, j in T.Parallel(64, 32):
                found[i, j] = found[i, j] ^ words[i, j]
        T.copy(c, C[by * 64, 0])
        T.copy(sums, S[by * 64])
        T.copy(found, W[by * 64, 0])
    return C, S, W


@pytest.mark.parametrize("arch, specialize, swizzle, shape, persistent", [
    ("sm_80", None, False, (64, 64), None), ("sm_90a", None, False, (32, 128), None), ("sm_90a", None, True, (128, 32), None),
    ("sm_90a", False, False, (512, 8), None), ("sm_90a -cores=1", None, False, (4, 1024), True),
])  # fmt: skip
def test_views_of_operands(arch, specialize, swizzle, shape, persistent):
    a, b = integers(128, 192), integers(64, 192, seed=1)
    kernel = on(arch, viewed).compile(
        a, b, rows=shape[0], columns=shape[1], swizzle=swizzle, specialize=specialize, persistent=persistent
    )
    said = kernel.explain()
    assert ("tma_load into a_ring" in said) == (arch != "sm_80" and specialize is None)
    assert not kernel.program.diagnostics and ("grid: persistent" in said) == bool(persistent)
    diagonal = (np.arange(128) + 3) % 64
    sums = sum(2 * a[np.arange(128), 64 * k + diagonal].astype(np.float32) for k in range(3))
    words = np.bitwise_xor.reduce([np.ascontiguousarray(b[:, 64 * k : 64 * k + 64]).view(np.int32) for k in range(3)])
    expected = a.astype(np.float32) @ b.astype(np.float32).T, sums, np.concatenate([words, words])
    for found in (
        kernel.interpret(a, b),
        kernel.emulate(a, b, schedule="late"),
        kernel.emulate(a, b, schedule="random", seed=1),
    ):
        for one, other in zip(found, expected, strict=True):
            assert np.array_equal(one, other)


def uneven(A, B):
    """A view whose rows divide no row of the tile: the tile then lies row by row."""
    A: T.Tensor((64, 128), "float16")
    B: T.Tensor((64, 128), "float16")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 48), "float16")
        b = T.alloc_shared((64, 48), "float16")
        thirds = T.view(a, (48, 64))
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(A[0, k * 48], a)
            T.copy(B[0, k * 48], b)
            T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                c[i, j] = c[i, j] + T.cast(thirds[i * 48 // 64, i * 48 % 64 + j % 16], "float32")
        T.copy(c, C)
    return C


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_views_that_cut_across_the_pattern(arch):
    a, b = integers(64, 128), integers(64, 128, seed=1)
    kernel = on(arch, uneven).compile(a, b)
    wide = [np.pad(one, ((0, 0), (0, 16))).astype(np.float32) for one in (a, b)]
    expected = wide[0] @ wide[1].T + sum(np.tile(wide[0][:, 48 * k : 48 * k + 16], 4) for k in range(3))
    assert np.array_equal(kernel.interpret(a, b), expected)
    assert np.array_equal(kernel.emulate(a, b, schedule="random", seed=2), expected)


def written_through_views(A, B, how="view", by_loads=False):
    """An operand that its writers see in another shape or type: those that load, or those that multiply."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(1, M // 64, threads=128) as (_, by):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        raw = T.alloc_shared((64, 64), "float16")
        raw_words = T.view(raw, (64, 32), "int32")
        row = T.view(a, (4096,))
        wide = T.reshape(a, (32, 128))
        words = T.alias(a, (64, 32), "int32")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(K // 64, num_stages=3):
            if not by_loads:
                T.copy(A[by * 64, k * 64], raw)
            T.copy(B[0, k * 64], b)
            if how == "view":
                for i in T.Parallel(4096):
                    row[i] = A[by * 64 + i // 64, k * 64 + i % 64] if by_loads else raw[i // 64, i % 64]
            elif how == "reshape":
                for i, j in T.Parallel(32, 128):
                    at = i * 2 + j // 64
                    wide[i, j] = A[by * 64 + at, k * 64 + j % 64] if by_loads else raw[at, j % 64]
            else:
                for i, j in T.Parallel(64, 32):
                    words[i, j] = raw_words[i, j]
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[by * 64, 0])
    return C


@pytest.mark.parametrize(
    "how, by_loads", [("view", False), ("reshape", False), ("alias", False), ("view", True), ("reshape", True)]
)
def test_writing_through_views_in_roles(how, by_loads):
    a, b = integers(128, 192), integers(64, 192, seed=1)
    kernel = on("sm_90a", written_through_views).compile(a, b, how=how, by_loads=by_loads)
    said = kernel.explain()
    assert "one role" not in said and "tma_load into b_ring" in said and "wgmma_ss" in said
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(kernel.interpret(a, b), expected)
    for schedule in ("late", "early", "random"):
        assert np.array_equal(kernel.emulate(a, b, schedule=schedule, seed=1), expected)


def aliased(A, B):
    A: T.Tensor((64, 128), "float16")
    B: T.Tensor((64, 128), "float16")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=128):
        room = T.alloc_shared((64, 64), "float32")
        a = T.alias(room, (64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2, specialize=True):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
    return C


def test_a_tile_that_only_its_alias_fills_has_no_ring():
    """Said with the line, and right all the same."""
    a, b = integers(64, 128), integers(64, 128, seed=1)
    kernel = on("sm_90a", aliased).compile(a, b)
    assert "room is also filled as a, which has fewer bytes" in kernel.explain()
    assert "test_cuda_views.py" in str(kernel.program.diagnostics[0])
    assert np.array_equal(kernel.emulate(a, b), a.astype(np.float32) @ b.astype(np.float32).T)


def words_taken_apart(W, S):
    """Two codes of four bits a half, put into numbers by their bits, eight at once into a shared tile."""
    M, N = T.const("M, N")
    W: T.Tensor((M, N), "uint32")
    S: T.Tensor((M,), "float16")
    C = T.empty((M, N * 8), "float16")
    with T.Kernel(M // 32, threads=64) as block:
        tile = T.alloc_shared((32, N * 8), "float16")
        for i, j in T.Parallel(32, N):
            words = T.alloc_local((4,), "uint32")
            halves = T.view(words, (8,), "float16")
            for p in T.unroll(4):
                words[p] = ((W[block * 32 + i, j] >> T.uint32(4 * p)) & T.uint32(0x000F000F)) | T.uint32(0x64006400)
            for p in T.vectorized(8):
                tile[i, j * 8 + p] = (halves[p] - T.float16(1032)) * S[block * 32 + i]
        T.copy(tile, C[block * 32, 0])
    return C


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_views_of_a_threads_own_array(target):
    rng = np.random.default_rng(0)
    words, scales = rng.integers(0, 1 << 32, (64, 8), np.uint32), integers(64, seed=1)
    codes = np.stack([words >> np.uint32(shift) & 15 for p in range(4) for shift in (4 * p, 4 * p + 16)], axis=-1)
    expected = ((codes.astype(np.int64) - 8) * scales[:, None, None].astype(np.int64)).reshape(64, 64)
    if target == "cpu":
        kernel = tilewright.jit(target="cpu")(words_taken_apart).compile(words, scales)
        assert np.array_equal(kernel(words, scales), expected)
        assert np.array_equal(kernel.interpret(words, scales), expected)
        return
    kernel = on(target, words_taken_apart).compile(words, scales)
    for schedule in ("late", "early", "random"):
        assert np.array_equal(kernel.emulate(words, scales, schedule=schedule), expected)
    assert "tw::store_fragment<8>(&tile" in kernel.get_kernel_source()
    assert compile_text(kernel.get_kernel_source(), kernel.arch).warnings == ()
