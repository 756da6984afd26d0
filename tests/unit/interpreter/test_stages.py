"""One program at every stage of its way to a processor: what the interpreter says of it stays the same.

Machines are described, not needed: the interpreter knows what their instructions mean.
"""

from __future__ import annotations

import numpy as np
import pytest
from programs import program

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret
from tilewright.ir import Function, dtypes
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.passes.context import Context
from tilewright.passes.pipeline import PIPELINE
from tilewright.runtime.packing import pack_operands
from tilewright.targets.registry import resolve

MACHINES = ["x86_64", "avx2", "avxvnni", "avx512", "avx512-vnni-bf16", "neon", "neon-i8mm-bf16"]
SHOWN = frozenset({"forward_operands", "lower_tiles", "lower_threads", "flatten_buffers", "vectorize_accesses"})
"""Passes after which the program is run."""


def stages(function: Function, machine: str) -> list[tuple[str, Function]]:
    """The program after each pass in `SHOWN` that changed it, by the pass's name."""
    target, arch = resolve(f"cpu -arch={machine}")
    context = Context(arch, overrides=target.overrides)
    found = []
    for step in PIPELINE:
        if step.when is None or step.when(context):
            before, function = function, step.run(function, context)
            if function is not before and step.name in SHOWN:
                found.append((step.name, function))
    return found


def compare(function: Function, arguments: list[np.ndarray], machine: str, tolerance: np.ndarray | float) -> None:
    """Every stage gives what the traced program gives, within `tolerance` (0: bit by bit)."""
    expected = interpret(function, arguments)
    names = []
    for name, lowered in stages(function, machine):
        results = interpret(lowered, arguments)
        for got, wanted in zip(results, expected, strict=True):
            if isinstance(tolerance, float) and tolerance == 0.0:
                np.testing.assert_array_equal(got, wanted, err_msg=f"after {name}")
            else:
                error = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
                assert (error <= tolerance).all(), f"after {name}: {error.max()}"
        names.append(name)
    assert names[-1] == "vectorize_accesses" and "flatten_buffers" in names


def matmul(a: str, b: str, c: str, transposed: bool) -> str:
    shape, tile, part = ("N, K", "16, 16", "bx * 16 : +16, k * 16 : +16") if transposed else (
        "K, N", "16, 16", "k * 16 : +16, bx * 16 : +16"
    )  # fmt: skip
    return f"""
    def matmul(A: {a}[M, K], B: {b}[{shape}], C: {c}[M, N], *, M: int32, K: int32, N: int32) -> C:
        with kernel(blocks={{bx: (N + 15) // 16, by: (M + 15) // 16}}, threads={{tx: 32, ty: 1, tz: 1}}):
            A_shared = shared({a}[16, 16])
            B_shared = shared({b}[{tile}])
            C_local = fragment({c}[16, 16])
            fill(destination=C_local, value={c}(0))
            for k in pipelined((K + 15) // 16, num_stages=2):
                copy(source=A[by * 16 : +16, k * 16 : +16], destination=A_shared)
                copy(source=B[{part}], destination=B_shared)
                gemm(a=A_shared, b=B_shared, c=C_local, transpose_b={transposed})
            copy(source=C_local, destination=C[by * 16 : +16, bx * 16 : +16])
    """


@pytest.mark.parametrize(
    ("a", "machine"),
    [("float32", "avx2"), ("float32", "avx512"), ("bfloat16", "avx512-vnni-bf16"), ("bfloat16", "neon-i8mm-bf16")],
)
def test_float_matmul(a: str, machine: str) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(dtypes.dtype(a).numpy) for shape in ((13, 18), (15, 18)))
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64)).T
    compare(program(matmul(a, a, "float32", True)), [x, y], machine, 26 * 2.0**-24 * magnitude)


@pytest.mark.parametrize(
    ("a", "b", "machine"),
    [
        ("int8", "int8", "avx512-vnni"),
        ("int8", "int8", "neon-i8mm-bf16"),
        ("uint8", "int8", "avx2"),
        ("int8", "uint8", "avxvnni"),
        ("int8", "uint8", "neon-dotprod"),
    ],
)
def test_integer_matmul_is_bitwise_equal(a: str, b: str, machine: str) -> None:
    rng = np.random.default_rng(1)
    x, y = (
        rng.integers(dtype.minimum, int(dtype.maximum) + 1, shape).astype(dtype.numpy)
        for dtype, shape in ((dtypes.dtype(a), (13, 18)), (dtypes.dtype(b), (18, 15)))
    )
    compare(program(matmul(a, b, "int32", False)), [x, y], machine, 0.0)


@pytest.mark.parametrize("machine", ["avx2", "avx512-vnni-bf16"])
def test_a_quantised_matmul_with_a_packed_weight(machine: str) -> None:
    rng = np.random.default_rng(2)
    rows, columns, depth, group = 3, 20, 32, 16
    a = rng.standard_normal((rows, depth)).astype(np.float32)
    codes = rng.integers(0, 16, (columns, depth)).astype(np.uint8)
    scales = rng.random((depth // group, columns)).astype(np.float32)
    zeros = rng.integers(0, 16, (depth // group, columns)).astype(np.float32)
    weight = dtypes.pack(codes, dtypes.dtype("uint4"))
    function = quant_matmul.trace(columns, depth, group=group, block_N=32).function
    expected = np.zeros((rows, columns), np.float32)
    arguments = [a, weight, scales, zeros]
    interpret(function, [*arguments, expected])
    wide = (codes - np.repeat(zeros.T, group, axis=1).astype(np.float64)) * np.repeat(scales.T, group, axis=1)
    scale = np.abs(a).max(axis=1, keepdims=True) / 127
    exact = (np.round(a / scale) * scale) @ wide.T
    assert np.abs(expected - exact).max() <= 1e-4 * np.abs(exact).max()
    for name, lowered in stages(function, machine):
        if name == "forward_operands":
            continue
        given = [a, pack_operands(lowered, {"W": weight})[0], scales, zeros]
        result = np.zeros_like(expected)
        interpret(lowered, [*given, result])
        assert np.abs(result - expected).max() <= 1e-5 * np.abs(exact).max(), name


ELEMENTWISE = """
def f(X: float32[M, N], Y: float32[M, N], S: float32[M], *, M: int32, N: int32) -> (Y, S):
    with kernel(blocks={bx: (M + 3) // 4}, threads={tx: 32, ty: 1, tz: 1}, safe_values={X: -1.0}):
        tile = fragment(float32[4, 40])
        most = fragment(float32[4])
        copy(source=X[bx * 4 : +4, 0 : +40], destination=tile)
        reduce(source=tile, destination=most, kind="max", dim=1)
        for i, j in parallel(4, 40):
            tile[i, j] = max(tile[i, j] - most[i], -2.0) if j % 3 != 1 else tile[i, j] * 2.0
        copy(source=tile, destination=Y[bx * 4 : +4, 0 : +40])
        for i in parallel(4):
            S[bx * 4 + i] = most[i]
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_elementwise_work_and_a_maximum(machine: str) -> None:
    x = np.random.default_rng(3).standard_normal((10, 37)).astype(np.float32)
    compare(program(ELEMENTWISE), [x], machine, 0.0)


THREADS = """
def f(X: int32[n], Y: int32[n], H: int32[8], *, n: int32) -> Y:
    with kernel(blocks={bx: (n + 63) // 64}, threads={tx: 64, ty: 1, tz: 1}):
        tile = shared(int32[64])
        mine = local(int32[2])
        i: int32 = bx * 64 + tx
        tile[tx] = X[i]
        mine[0] = tx * 3
        sync_threads()
        mine[1] = tile[63 - tx]
        if i < n:
            Y[i] = mine[0] + mine[1]
            atomic_add(H[tx % 8 : +1], X[i], "relaxed")
"""


def test_threads_become_loops() -> None:
    x = np.random.default_rng(4).integers(-99, 99, 150).astype(np.int32)
    function = program(THREADS)
    results = []
    for lowered in (function, *(stage for _, stage in stages(function, "avx512"))):
        histogram = np.zeros(8, np.int32)
        (y,) = interpret(lowered, [x, histogram])
        results.append((y, histogram))
    for y, histogram in results[1:]:
        np.testing.assert_array_equal(y, results[0][0])
        np.testing.assert_array_equal(histogram, results[0][1])


# With threads -----------------------------------------------------------------------------------

TILES = """
def matmul(A: {a}[M, K], B: {b}[{shape}], C: {c}[M, N], *, M: int32, K: int32, N: int32) -> C:
    with kernel(blocks={{bx: (N + 31) // 32, by: (M + 31) // 32}}, threads={{tx: 64, ty: 1, tz: 1}}):
        A_shared = shared({a}[32, 32])
        B_shared = shared({b}[32, 32])
        C_local = fragment({c}[32, 32])
        fill(destination=C_local, value={c}(0))
        for k in pipelined((K + 31) // 32, num_stages=2):
            copy(source=A[by * 32 : +32, k * 32 : +32], destination=A_shared)
            copy(source=B[{part}], destination=B_shared)
            gemm(a=A_shared, b=B_shared, c=C_local, transpose_b={transposed})
        copy(source=C_local, destination=C[by * 32 : +32, bx * 32 : +32])
"""


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("a", "c"), [("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32")])
def test_matrix_instructions_of_a_gpu(a: str, c: str, transposed: bool) -> None:
    rng = np.random.default_rng(5)
    m, n, k = 37, 41, 45
    shape, part = ("N, K", "bx * 32 : +32, k * 32 : +32") if transposed else ("K, N", "k * 32 : +32, bx * 32 : +32")
    function = program(TILES.format(a=a, b=a, c=c, shape=shape, part=part, transposed=transposed))
    if a == "int8":
        x, y = (rng.integers(-128, 128, size).astype(np.int8) for size in ((m, k), (n, k)))
    else:
        x, y = (rng.standard_normal(size).astype(dtypes.dtype(a).numpy) for size in ((m, k), (n, k)))
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64)).T
    arguments = [x, y if transposed else np.ascontiguousarray(y.T)]
    (expected,) = interpret(function, arguments)
    names = []
    for name, lowered in gpu_stages(function, "sm_80"):
        (got,) = interpret(lowered, arguments)
        assert (np.abs(got.astype(np.float64) - expected) <= 4 * 2.0**-24 * magnitude).all(), name
        if a == "int8":
            np.testing.assert_array_equal(got, expected, err_msg=name)
        names.append(name)
    assert "assign_threads" in names and "flatten_buffers" in names and names[-1] == "plan_shared_memory"


def gpu_stages(function: Function, machine: str) -> list[tuple[str, Function]]:
    """The program after each pass that changed it on the way to a GPU."""
    target, arch = resolve(f"cuda -arch={machine}")
    context = Context(arch, overrides=target.overrides)
    found = []
    for step in PIPELINE:
        if step.when is None or step.when(context):
            before, function = function, step.run(function, context)
            if function is not before:
                found.append((step.name, function))
    return found


def test_loops_and_reductions_on_a_gpu() -> None:
    x = np.random.default_rng(3).standard_normal((10, 37)).astype(np.float32)
    expected = interpret(program(ELEMENTWISE), [x])
    for name, lowered in gpu_stages(program(ELEMENTWISE), "sm_90a"):
        for got, wanted in zip(interpret(lowered, [x]), expected, strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=name)


def test_threads_of_a_gpu_stay_threads() -> None:
    x = np.random.default_rng(4).integers(-99, 99, 150).astype(np.int32)
    histograms = []
    results = []
    for lowered in (program(THREADS), *(stage for _, stage in gpu_stages(program(THREADS), "sm_90a"))):
        histograms.append(np.zeros(8, np.int32))
        results.append(interpret(lowered, [x, histograms[-1]])[0])
    assert len(results) > 1
    for y, histogram in zip(results[1:], histograms[1:], strict=True):
        np.testing.assert_array_equal(y, results[0])
        np.testing.assert_array_equal(histogram, histograms[0])


@pytest.mark.parametrize("machine", ["cuda -arch=sm_80", "hip -arch=gfx942", "hip -arch=gfx90a", "metal -arch=apple7"])
@pytest.mark.parametrize("dtype", ["float32", "tfloat32"])
def test_the_last_program_of_a_gpu_multiplies_both_floats_of_32_bits(dtype: str, machine: str) -> None:
    """What Metal's product of float32 makes of tfloat32 nobody knew: a KeyError."""

    @T.prim_func
    def product(A: T.Tensor((32, 32), dtype), B: T.Tensor((32, 32), dtype), C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=128):
            left, right = T.alloc_shared((32, 32), dtype), T.alloc_shared((32, 32), dtype)
            total = T.alloc_fragment((32, 32), "float32")
            T.copy(A, left)
            T.copy(B, right)
            T.clear(total)
            T.gemm(left, right, total)
            T.copy(total, C)

    rng, c = np.random.default_rng(0), np.zeros((32, 32), np.float32)
    a, b = (rng.integers(-99, 100, (32, 32)).astype(np.float32) for _ in range(2))
    interpret(tilewright.compile(product, target=machine).program.final, (a, b, c))
    np.testing.assert_array_equal(c, a @ b)
