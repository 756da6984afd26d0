"""The foundation's kernels, as TileLang's users would write them, in both styles: traced, verified, interpreted."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from busy import takes

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret
from tilewright.ir import dtypes
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify
from tilewright.language.direct import DirectFunction
from tilewright.language.foreign import INSTEAD
from tilewright.language.mistakes import UnknownName

RANDOM = np.random.default_rng(7)


def check(prim: T.PrimFunc) -> T.PrimFunc:
    """Every traced program verifies and survives printing."""
    verify(prim.function)
    text = print_program(prim.function)
    assert print_program(parse(text)) == text
    return prim


def call(function: Any, *arrays: np.ndarray, **constants: Any) -> np.ndarray:
    """What the JIT does, on the interpreter: bind the sizes, trace, run."""
    direct = DirectFunction(function)
    runtime, given = direct.split(*arrays, **constants)
    declaration = direct.declare(given)
    shapes = {}
    for name in declaration.tensors:
        packed = tilewright.dtype(declaration.tensors[name].dtype).per_byte
        *outer, last = runtime[name].shape
        shapes[name] = (*outer, last * packed)
    prim = check(direct.trace(given, declaration.bind(shapes)))
    results = interpret(prim.function, list(runtime.values()))
    return results[0]


# Element-wise with broadcast ----------------------------------------------------------------------


def add_rows(M: int, N: int, block_M: int = 16, block_N: int = 32) -> T.PrimFunc:
    @T.prim_func
    def main(A: T.Tensor((M, N), "float32"), bias: T.Tensor((N,), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            for i, j in T.Parallel(block_M, block_N):
                y, x = by * block_M + i, bx * block_N + j
                C[y, x] = A[y, x] + bias[x]

    return main


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_parameter_annotated_with_none_is_left_out(with_bias: bool) -> None:
    Bias = T.Tensor((8,), "float32") if with_bias else None

    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), bias: Bias, C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                C[i] = A[i] if bias is None else A[i] + bias[i]

    check(main)
    assert [param.name for param in main.params] == ["A", *["bias"][:with_bias], "C"]
    a, shift, c = RANDOM.random(8, np.float32), RANDOM.random(8, np.float32), np.empty(8, np.float32)
    interpret(main.function, [a, *[shift][:with_bias], c])
    np.testing.assert_array_equal(c, a + shift if with_bias else a)


def add_rows_direct(A, bias, block_M=16, block_N=32):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    bias: T.Tensor((N,), "float32")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            C[by * block_M + i, bx * block_N + j] = A[by * block_M + i, bx * block_N + j] + bias[bx * block_N + j]
    return C


def test_add_rows() -> None:
    A, bias = RANDOM.normal(size=(33, 70)).astype(np.float32), RANDOM.normal(size=70).astype(np.float32)
    C = np.zeros_like(A)
    interpret(check(add_rows(33, 70)).function, [A, bias, C])
    np.testing.assert_array_equal(C, A + bias)
    np.testing.assert_array_equal(call(add_rows_direct, A, bias), A + bias)


def test_printed_program() -> None:
    assert str(add_rows(33, 70)) == (
        '@stage("traced")\n'
        "def main(A: float32[33, 70], bias: float32[70], C: float32[33, 70]):\n"
        "    with kernel(blocks={bx: 3, by: 3}, threads={tx: 128, ty: 1, tz: 1}):\n"
        "        for i, j in parallel(16, 32):\n"
        "            C[by * 16 + i, bx * 32 + j] = A[by * 16 + i, bx * 32 + j] + bias[bx * 32 + j]\n"
    )


# Softmax and RMS norm -----------------------------------------------------------------------------


def softmax(X, block_M=4):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, block_M), threads=64) as block:
        tile = T.alloc_fragment((block_M, N), "float32")
        peak = T.alloc_fragment((block_M,), "float32")
        total = T.alloc_fragment((block_M,), "float32")
        T.copy(X[block * block_M, 0], tile)
        T.reduce_max(tile, peak, dim=1)
        for i, j in T.Parallel(block_M, N):
            tile[i, j] = T.exp(tile[i, j] - peak[i])
        T.reduce_sum(tile, total, dim=1)
        for i, j in T.Parallel(block_M, N):
            tile[i, j] /= total[i]
        T.copy(tile, Y[block * block_M, 0])
    return Y


def rms_norm(X, weight, eps: float = 1e-6, block_M=2):
    M = T.dynamic("M")
    N = T.const("N")
    X: T.Tensor((M, N), "float32")
    weight: T.Tensor((N,), "float32")
    Y = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, block_M), threads=64) as block:
        tile = T.alloc_fragment((block_M, N), "float32")
        squares = T.alloc_fragment((block_M, N), "float32")
        total = T.alloc_fragment((block_M,), "float32")
        T.copy(X[block * block_M : (block + 1) * block_M, :], tile)
        for i, j in T.Parallel(block_M, N):
            squares[i, j] = tile[i, j] * tile[i, j]
        T.reduce_sum(squares, total, dim=-1)
        for i, j in T.Parallel(block_M, N):
            tile[i, j] = tile[i, j] * T.rsqrt(total[i] / N + eps) * weight[j]
        T.copy(tile, Y[block * block_M : (block + 1) * block_M, :])
    return Y


def test_softmax_and_rms_norm() -> None:
    X, weight = RANDOM.normal(size=(7, 45)).astype(np.float32), RANDOM.normal(size=45).astype(np.float32)
    wide = X.astype(np.float64)
    powers = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(call(softmax, X), powers / powers.sum(1, keepdims=True), rtol=2e-6)
    norm = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(call(rms_norm, X, weight), norm, rtol=2e-6)


# Matmul -------------------------------------------------------------------------------------------


def matmul(M, N, K, block_M=32, block_N=32, block_K=16, dtype="float32", accum_dtype="float32", transpose_B=False):
    B_shape = (N, K) if transpose_B else (K, N)
    B_tile = (block_N, block_K) if transpose_B else (block_K, block_N)

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor(B_shape, dtype), C: T.Tensor((M, N), accum_dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared(B_tile, dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            T.use_swizzle(panel_size=10, enable=True)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[by * block_M, k * block_K], A_shared)
                if transpose_B:
                    T.copy(B[bx * block_N, k * block_K], B_shared)
                else:
                    T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=transpose_B)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


@pytest.mark.parametrize(("dtype", "accum"), [("float32", "float32"), ("bfloat16", "float32"), ("int8", "int32")])
@pytest.mark.parametrize("transpose_B", [False, True])
def test_matmul(dtype: str, accum: str, transpose_B: bool) -> None:
    M, N, K = 33, 40, 50
    carrier = dtypes.dtype(dtype).numpy
    A = RANDOM.integers(-9, 9, (M, K)).astype(carrier)
    B = RANDOM.integers(-9, 9, (K, N)).astype(carrier)
    C = np.zeros((M, N), accum)
    prim = check(matmul(M, N, K, dtype=dtype, accum_dtype=accum, transpose_B=transpose_B))
    interpret(prim.function, [A, np.ascontiguousarray(B.T) if transpose_B else B, C])
    np.testing.assert_array_equal(C, A.astype(np.float64) @ B.astype(np.float64))


def test_out_idx_makes_outputs() -> None:
    prim = matmul(8, 8, 8)
    assert [buffer.name for buffer in prim.with_outputs(-1).function.outputs] == ["C"]
    assert [buffer.name for buffer in prim.with_outputs([2, 0]).function.outputs] == ["C", "A"]
    assert prim.with_outputs(None) is prim


# FlashAttention forward ---------------------------------------------------------------------------


def flash_attention(Q, K, V, is_causal: bool = False, block_M: int = 16, block_N: int = 16):
    batch, heads, length, dim = T.const("batch heads length dim")
    Q: T.Tensor[[batch, length, heads, dim], T.float32]
    K: T.Tensor[[batch, length, heads, dim], T.float32]
    V: T.Tensor[[batch, length, heads, dim], T.float32]
    O = T.empty((batch, length, heads, dim), T.float32)
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    with T.Kernel(T.ceildiv(length, block_M), heads, batch, threads=128) as (bx, by, bz):
        Q_shared = T.alloc_shared([block_M, dim], T.float32)
        K_shared = T.alloc_shared([block_N, dim], T.float32)
        V_shared = T.alloc_shared([block_N, dim], T.float32)
        scores = T.alloc_fragment([block_M, block_N], T.float32)
        output = T.alloc_fragment([block_M, dim], T.float32)
        peak = T.alloc_fragment([block_M], T.float32)
        peak_before = T.alloc_fragment([block_M], T.float32)
        rescale = T.alloc_fragment([block_M], T.float32)
        block_sum = T.alloc_fragment([block_M], T.float32)
        total = T.alloc_fragment([block_M], T.float32)

        T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], Q_shared)
        T.fill(output, 0)
        T.fill(total, 0)
        T.fill(peak, -T.infinity("float32"))
        steps = (
            T.min(T.ceildiv(length, block_N), T.ceildiv((bx + 1) * block_M, block_N))
            if is_causal
            else T.ceildiv(length, block_N)
        )
        for k in T.Pipelined(steps, num_stages=2):
            T.copy(K[bz, k * block_N : (k + 1) * block_N, by, :], K_shared)
            for i, j in T.Parallel(block_M, block_N):
                visible = k * block_N + j < length
                if is_causal:
                    visible = visible and bx * block_M + i >= k * block_N + j
                scores[i, j] = T.if_then_else(visible, 0, -T.infinity(scores.dtype))
            T.gemm(Q_shared, K_shared, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            T.copy(peak, peak_before)
            T.reduce_max(scores, peak, dim=1, clear=False)
            for i in T.Parallel(block_M):
                rescale[i] = T.exp2(peak_before[i] * scale - peak[i] * scale)
            for i, j in T.Parallel(block_M, block_N):
                scores[i, j] = T.exp2(scores[i, j] * scale - peak[i] * scale)
            T.reduce_sum(scores, block_sum, dim=1)
            for i in T.Parallel(block_M):
                total[i] = total[i] * rescale[i] + block_sum[i]
            for i, j in T.Parallel(block_M, dim):
                output[i, j] *= rescale[i]
            T.copy(V[bz, k * block_N : (k + 1) * block_N, by, :], V_shared)
            T.gemm(scores, V_shared, output, policy=T.GemmWarpPolicy.FullRow)
        for i, j in T.Parallel(block_M, dim):
            output[i, j] /= total[i]
        T.copy(output, O[bz, bx * block_M : (bx + 1) * block_M, by, :])
    return O


@pytest.mark.parametrize("is_causal", [False, True])
def test_flash_attention(is_causal: bool) -> None:
    batch, length, heads, dim = 2, 21, 2, 8
    Q, K, V = (RANDOM.normal(size=(batch, length, heads, dim)).astype(np.float32) for _ in range(3))
    scores = np.einsum("bihd,bjhd->bhij", Q.astype(np.float64), K.astype(np.float64)) / np.sqrt(dim)
    if is_causal:
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhij,bjhd->bihd", weights, V.astype(np.float64))
    np.testing.assert_allclose(call(flash_attention, Q, K, V, is_causal=is_causal), expected, rtol=1e-5, atol=1e-5)


def test_attention_is_traced_quickly() -> None:
    direct = DirectFunction(flash_attention)
    constants = direct.split(None, None, None, is_causal=True)[1]
    constants = {name: value for name, value in constants.items() if name not in "QKV"}
    sizes = {"batch": 2, "heads": 2, "length": 1000, "dim": 64}
    direct.trace(constants, sizes)
    assert takes(0.03, lambda: direct.trace(constants, sizes))


# Quantised matmul ---------------------------------------------------------------------------------


def quantized_matmul(A, W, scales, zeros, bits=4, group=16, block_M=16, block_N=16):
    M = T.dynamic("M")
    N, K, groups = T.const("N, K, groups")
    A: T.Tensor((M, K), "float32")
    W: T.Packed((N, K), f"uint{bits}")
    scales: T.Tensor((N, groups), "float32")
    zeros: T.Tensor((N, groups), "float32")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        A_shared = T.alloc_shared((block_M, group), "float32")
        W_shared = T.alloc_shared((block_N, group), f"uint{bits}")
        W_local = T.alloc_fragment((block_N, group), "float32")
        scale = T.alloc_fragment((block_N, 1), "float32")
        zero = T.alloc_fragment((block_N, 1), "float32")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, group), num_stages=2):
            T.copy(A[by * block_M, k * group], A_shared)
            T.copy(W[bx * block_N, k * group], W_shared)
            T.copy(scales[bx * block_N : (bx + 1) * block_N, k : k + 1], scale)
            T.copy(zeros[bx * block_N : (bx + 1) * block_N, k : k + 1], zero)
            T.decode(W_shared, W_local, scale=scale, zero=zero)
            T.gemm(A_shared, W_local, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("M", [1, 19])
def test_quantized_matmul(bits: int, M: int) -> None:
    N, K, group = 24, 64, 16
    codes = RANDOM.integers(0, 1 << bits, (N, K)).astype(np.uint8)
    A = RANDOM.normal(size=(M, K)).astype(np.float32)
    scales = RANDOM.uniform(0.5, 1.5, (N, K // group)).astype(np.float32)
    zeros = RANDOM.integers(0, 1 << bits, (N, K // group)).astype(np.float32)
    weight = (codes - np.repeat(zeros, group, 1)).astype(np.float64) * np.repeat(scales, group, 1)
    packed = dtypes.pack(codes, dtypes.dtype(f"uint{bits}"))
    result = call(quantized_matmul, A, packed, scales, zeros, bits=bits, group=group)
    np.testing.assert_allclose(result, A.astype(np.float64) @ weight.T, rtol=1e-4, atol=1e-4)


def test_packed_parameter_is_marked() -> None:
    direct = DirectFunction(quantized_matmul)
    declaration = direct.declare({"bits": 4, "group": 16, "block_M": 16, "block_N": 16})
    assert declaration.tensors["W"].packed and not declaration.tensors["A"].packed


# Other operators ----------------------------------------------------------------------------------


def test_scans_transposes_and_atomics() -> None:
    @T.prim_func
    def main(A: T.Tensor((4, 8), "int32"), C: T.Tensor((8, 4), "int32"), total: T.Tensor((4,), "int32")):
        with T.Kernel(2, threads=32) as block:
            tile = T.alloc_fragment((4, 8), "int32")
            turned = T.alloc_fragment((8, 4), "int32")
            rows = T.alloc_fragment((4,), "int32")
            T.copy(A, tile)
            T.cumsum(tile, dim=1)
            if block == 0:
                T.transpose(tile, turned)
                T.copy(turned, C)
            T.reduce_max(tile, rows, dim=1)
            T.atomic_add(total, rows)
            T.atomic_add(total[0:2], 100)
            for i in T.Parallel(4):
                T.atomic_max(total[i], 7)

    A = RANDOM.integers(0, 9, (4, 8)).astype(np.int32)
    C, total = np.zeros((8, 4), np.int32), np.zeros(4, np.int32)
    interpret(check(main).function, [A, C, total])
    np.testing.assert_array_equal(C, A.cumsum(1).T)
    expected = np.array([0, 0, 0, 0])
    for _ in range(2):
        expected += A.cumsum(1).max(1)
        expected[:2] += 100
        expected = np.maximum(expected, 7)
    np.testing.assert_array_equal(total, expected)


def test_hints_reach_the_kernel() -> None:
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(4, 2, threads=(32, 2), cluster_dims=2) as (bx, by):
            tile = T.alloc_shared((8, 8), "float32")
            T.annotate_safe_value({A: 1})
            T.annotate_layout({tile: T.Layout((8, 8), lambda i, j: i * 8 + (j ^ i))})
            T.use_swizzle(4, order="column")
            T.annotate_min_blocks_per_sm(2)
            T.copy(A[bx, by], tile)

    kernel: Any = check(main).function.body.statements[0]
    assert kernel.threads == (32, 2, 1) and kernel.attribute("raster") == ("column", 4)
    assert kernel.attribute("cluster") == (2, 1, 1) and kernel.attribute("min_blocks_per_sm") == 2
    (buffer, value), (laid_out, layout) = kernel.safe_values[0], kernel.layouts[0]
    assert buffer.name == "A" and value.value == 1.0 and laid_out.name == "tile"
    assert layout.table("memory")[1].tolist() == [9, 8, 11, 10, 13, 12, 15, 14]


def test_two_kernels_and_a_workspace() -> None:
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        doubled = T.alloc_global((64,), "float32")
        with T.Kernel(2, threads=32) as block:
            for i in T.Parallel(32):
                doubled[block * 32 + i] = A[block * 32 + i] * 2
        with T.Kernel(1, threads=32):
            T.copy(doubled, C)

    A, C = RANDOM.normal(size=64).astype(np.float32), np.zeros(64, np.float32)
    interpret(check(main).function, [A, C])
    np.testing.assert_array_equal(C, A * 2)


@pytest.mark.parametrize("way", ["interpreted", "on the CPU", "emulated"])
def test_a_workspace_that_atomics_count_in_begins_as_zeros(way: str) -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), C: T.Tensor((1,), "int32")):
        total = T.alloc_global((2,), "int32")
        with T.Kernel(8, threads=32) as block:
            for _ in T.Parallel(1):
                T.atomic_add(total[0], A[block])
                if T.atomic_add(total[1], 1, return_prev=True) == 7:
                    C[0] = T.atomic_add(total[0], 0, return_prev=True)

    A, C = np.arange(8, dtype=np.int32), np.full(1, 77, np.int32)
    kernel = tilewright.compile(check(main), target="cpu" if way == "on the CPU" else "cuda -arch=sm_80")
    run = {"interpreted": kernel.interpret, "on the CPU": kernel, "emulated": getattr(kernel, "emulate", None)}[way]
    assert run is not None
    run(A, C)
    assert C[0] == 28


def test_bfloat16_arrays_reach_the_interpreter() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "bfloat16"), C: T.Tensor((8,), "bfloat16")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                C[i] = A[i] * 1.5

    A = np.arange(8).astype(ml_dtypes.bfloat16)
    C = np.zeros_like(A)
    interpret(check(main).function, [A, C])
    np.testing.assert_array_equal(C.astype(np.float32), np.arange(8) * 1.5)


@pytest.mark.parametrize(
    "name", ["alloc_descriptor", "create_barriers", "nextafter", "vectorlow", "get_let_value", "JITFunc"]
)
def test_names_that_no_kernel_needs_here_say_what_to_write(name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        getattr(T, name)
    assert caught.value.hint == INSTEAD[name] and INSTEAD[name].split()[0] in ("write", "pass", "leave")


def test_other_names_of_words_that_are_here() -> None:
    assert T.wgmma_mma is T.wgmma_gemm
    assert getattr(T, "__ldg")(3) == 3  # as an attribute the name would be mangled in a class
