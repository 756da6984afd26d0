"""Micro-kernels: every machine's way to multiply, interpreted; this machine's, compiled; against exact products."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.arith import Analyzer
from tilewright.interpreter import interpret
from tilewright.ir import nodes as ir
from tilewright.kernels.matmul import linear
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.language.choices import traced_for
from tilewright.passes.context import Context
from tilewright.passes.manager import run_passes
from tilewright.passes.pipeline import PIPELINE
from tilewright.runtime.kernel import Kernel
from tilewright.targets.cpu.arch import PRESETS, arch, make_arch, runs_here
from tilewright.targets.cpu.compiler import build
from tilewright.targets.cpu.multiplicands import SharedPrefetch
from tilewright.targets.cpu.target import CPU


@tilewright.jit
def product(
    M: int, N: int, K: int, a: str, b: str, c: str, transpose_B: bool, packed: bool = False, block_M: int = 16,
    block_N: int = 32, block_K: int = 32,
) -> Any:  # fmt: skip
    """A staged product; codes of fewer than eight bits are decoded into a tile."""
    shape = (N, K) if transpose_B else (K, N)
    right = (T.Packed if packed else T.Tensor)(shape, b)
    tile = ("uint8" if b.startswith("u") else "int8") if tilewright.dtype(b).bits < 8 else b

    @T.prim_func
    def product(A: T.Tensor((M, K), a), B: right, C: T.Tensor((M, N), c)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=1) as (bn, bm):
            left = T.alloc_shared((block_M, block_K), a)
            weight = T.alloc_fragment((block_N, block_K) if transpose_B else (block_K, block_N), tile)
            total = T.alloc_fragment((block_M, block_N), c)
            T.clear(total)
            for k in T.serial(T.ceildiv(K, block_K)):
                T.copy(A[bm * block_M, k * block_K], left)
                if transpose_B:
                    source = B[bn * block_N : bn * block_N + block_N, k * block_K : k * block_K + block_K]
                else:
                    source = B[k * block_K : k * block_K + block_K, bn * block_N : bn * block_N + block_N]
                if tile == b:
                    T.copy(source, weight)
                else:
                    T.decode(source, weight)
                T.gemm(left, weight, total, transpose_B=transpose_B)
            T.copy(total, C[bm * block_M, bn * block_N])

    return product


def random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Values over the whole range of an integer type, or normal ones."""
    rng, record = np.random.default_rng(seed), tilewright.dtype(dtype)
    if record.is_integer:
        return rng.integers(int(record.minimum), int(record.maximum), shape, endpoint=True).astype(record.numpy)
    return rng.standard_normal(shape).astype(record.numpy)


def kernel_for(machine: str, *arguments: Any, **named: Any) -> Kernel:
    return tilewright.compile(product.trace(*arguments, **named), target=f"cpu -arch={machine}")


def check(
    kernel: Kernel, run: Any, sizes: tuple[int, int, int], dtypes: tuple[str, str, str], transpose_B: bool
) -> None:
    """Run on random operands; integers must be exact, floats within the rounding of K products."""
    (M, N, K), (a_type, b_type, c_type) = sizes, dtypes
    a = random((M, K), a_type, 0)
    b = random((N, K) if transpose_B else (K, N), b_type, 1)
    stored: Any = tilewright.pack(b, tilewright.dtype(b_type))
    if kernel.function.params[1].packed:  # type: ignore[union-attr]
        stored = kernel.pack(B=stored)
    c = np.zeros((M, N), tilewright.dtype(c_type).numpy)
    run(a, stored, c)
    wide = np.int64 if tilewright.dtype(c_type).is_integer else np.float64
    exact = a.astype(wide) @ (b.T if transpose_B else b).astype(wide)
    if wide is np.int64:
        np.testing.assert_array_equal(c, exact)
    else:
        magnitude = np.abs(a.astype(wide)) @ np.abs(b.T if transpose_B else b).astype(wide)
        assert (np.abs(c.astype(wide) - exact) <= K * 2.0**-23 * magnitude).all()


def interpreted(kernel: Kernel, a: Any, b: Any, c: np.ndarray) -> None:
    """The final program, statement by statement, in NumPy."""
    interpret(kernel.program.final, (a, b, c))


INT8, MIXED, UINT8 = ("int8", "int8", "int32"), ("uint8", "int8", "int32"), ("int8", "uint8", "int32")
FLOATS, NARROW, PROMOTED = ("float32",) * 3, ("bfloat16", "bfloat16", "float32"), ("int8", "int8", "float32")
CASES: list[tuple[str, tuple[str, str, str], bool]] = [
    ("avx2", INT8, True), ("avx2", MIXED, False), ("avx2", FLOATS, True),
    ("avx512-vnni-bf16", UINT8, False), ("avx512-vnni-bf16", PROMOTED, True), ("avx512-vnni-bf16", NARROW, True),
    ("neon-dotprod", INT8, True), ("neon-dotprod", MIXED, True), ("neon-i8mm-bf16", UINT8, True),
    ("neon-i8mm-bf16", NARROW, False), ("x86_64", INT8, False), ("x86_64", UINT8, True), ("x86_64", FLOATS, True),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "dtypes", "transpose_B"), CASES)
def test_every_machine_multiplies_exactly(machine: str, dtypes: tuple[str, str, str], transpose_B: bool) -> None:
    kernel = kernel_for(machine, 3, 37, 44, *dtypes, transpose_B)
    check(kernel, functools.partial(interpreted, kernel), (3, 37, 44), dtypes, transpose_B)


@pytest.mark.parametrize(
    ("machine", "b"), [("avx2", "uint4"), ("x86_64", "uint4"), ("avx512-vnni", "int4"), ("neon-dotprod", "int2")]
)
def test_packed_codes_are_unpacked_in_registers(machine: str, b: str) -> None:
    kernel = kernel_for(machine, 3, 37, 44, "int8", b, "int32", True, packed=True)
    assert (
        "weight" not in kernel.get_kernel_source().split("int32_t")[0] and "weight[" not in kernel.get_kernel_source()
    )
    check(kernel, functools.partial(interpreted, kernel), (3, 37, 44), ("int8", b, "int32"), True)


RUNS: list[tuple[tuple[str, str, str], bool, bool]] = [
    (INT8, True, False), (("uint8", "uint8", "int32"), False, False), (("bfloat16", "bfloat16", "float32"), True, False),
    (("int8", "uint2", "int32"), True, True), (("float32", "int4", "float32"), True, True), (("float16",) * 2 + ("float32",), True, True),
]  # fmt: skip


@pytest.mark.parametrize(("dtypes", "transpose_B", "packed"), RUNS)
def test_this_machine_multiplies(dtypes: tuple[str, str, str], transpose_B: bool, packed: bool) -> None:
    sizes = (37, 71, 133)
    kernel = kernel_for("native", *sizes, *dtypes, transpose_B, packed=packed, block_K=64)
    check(kernel, kernel, sizes, dtypes, transpose_B)


def test_avx2_text_runs_where_there_is_more() -> None:
    machine = arch({"arch": "avx2"})
    if not runs_here(machine):
        pytest.skip("this machine has no AVX2")
    kernel = kernel_for("avx2", 9, 40, 64, "int8", "uint4", "int32", True, packed=True, block_K=64)
    check(kernel, kernel, (9, 40, 64), ("int8", "uint4", "int32"), True)
    assert "maddubs" not in kernel.get_kernel_source() and "tw_dot4_u4_s8_i32x8" in kernel.get_kernel_source()


@pytest.mark.parametrize(("machine", "unpacks"), [("avx2", True), ("avx512-vnni", False)])
def test_many_rows_multiply_codes_in_registers_where_bytes_cost_more(machine: str, unpacks: bool) -> None:
    """Bytes of any value take AVX2 seven operations, codes below 128 three."""
    text = quant_matmul.for_target(f"cpu -arch={machine}", 96, 256, "uint4", 128, 8).get_kernel_source()
    assert ("uint8_t weight[" not in text) is unpacks
    assert ("tw_dot4_u8_s8_i32x8" not in text and "tw_dot4_u4_s8_i32x8" in text) is unpacks


def requests_of(*traits: str) -> set[tuple[str, int]]:
    """How a machine with these traits asks for a weight: functions and bytes ahead."""
    machine = make_arch("x86_64", arch({"arch": "avx512-vnni"}).features.union(traits))
    traced = product.trace(4, 64, 4096, "float32", "float32", "float32", True, packed=True, block_M=4, block_K=128)
    final, _ = run_passes(traced.function, PIPELINE, Context(machine, overrides=CPU.overrides))
    asked = re.findall(r"(tw_prefetch\w*)\(B .*step \* 16 \+ (\d+)\)", CPU.emit(final, machine).text)
    return {(function, 4 * int(elements)) for function, elements in asked}


@pytest.mark.parametrize(("group", "ahead"), [(128, 4), (32, 8)])
def test_scales_are_asked_for_where_weights_are(group: int, ahead: int) -> None:
    """Four groups ahead, or two products of as many groups as one multiplies."""
    for traits, function in ((set(), "tw_prefetch"), ({"far_requests"}, "tw_prefetch_far")):
        machine = make_arch("x86_64", arch({"arch": "avx512-vnni"}).features.union(traits))
        with traced_for(machine):
            traced = quant_matmul.trace(64, 1024, "uint4", group, 8)
        final, _ = run_passes(traced.function, PIPELINE, Context(machine, overrides=CPU.overrides))
        asked = re.findall(r"(tw_prefetch\w*)\(scales .* \+ (\d+)\)", CPU.emit(final, machine).text)
        assert set(asked) == {(function, str(64 * ahead))}


def test_weights_are_asked_for_as_suits_the_machine() -> None:
    assert requests_of() == {("tw_prefetch", 1024)}
    assert requests_of("far_requests") == {("tw_prefetch_far", 2048)}
    assert requests_of("far_requests", "wide_first_level") == {("tw_prefetch", 2048)}


def test_tiles_as_wide_as_each_other_share_the_columns_that_are_near() -> None:
    traced = linear.trace(N=96, K=512)
    machine = make_arch("x86_64", arch({"arch": "avx512-vnni"}).features, l1_bytes=32 << 10, l2_bytes=1 << 20)
    final, _ = run_passes(traced.function, PIPELINE, Context(machine, overrides=CPU.overrides))
    few_rows = CPU.emit(final, machine).text.split("static int32_t")[1]
    assert "row += 8" in few_rows and "row += 2" in few_rows
    assert len(re.findall(r"for \(int32_t vector", few_rows)) == 1  # tiles of eight, four, two and one rows in it


@pytest.mark.parametrize("height", [1, 2, 8])
def test_tiles_of_rows_are_numbered_one_after_another(height: int) -> None:
    """What each asks for of the next panel is its number's share: none twice, none left out."""
    shared = SharedPrefetch(4, 1024, 2, rows=height, first=16, before=5)
    rows = [Analyzer().simplify(shared.number(ir.const(16 + height * tile))) for tile in range(4)]
    assert [row.value for row in rows if isinstance(row, ir.Const)] == [5, 6, 7, 8]


def test_rows_of_every_height_share_the_asking_for_the_next_tile() -> None:
    traced = linear.trace(N=192, K=512)
    machine = make_arch("x86_64", arch({"arch": "avx512-vnni"}).features, l1_bytes=32 << 10, l2_bytes=1 << 20)
    final, _ = run_passes(traced.function, PIPELINE, Context(machine, overrides=CPU.overrides))
    few_rows = CPU.emit(final, machine).text.split("static int32_t")[1]
    asked = re.findall(r"tw_prefetch\(W \+ .*\* share \+ .* ahead\);", few_rows)
    assert len(asked) == few_rows.count("tw_prefetch(W") == 12  # of tiles of 8, 4, 2 and 1 rows by three panels
    # A panel is 8192 elements of 4 tiles: the last is followed by the same panel of the block's next six; one row asks 1 KB ahead.
    assert "ahead = rows > 1 ? (k * 128 + 128 >= 512 ? (3072 - k * 128) * 16 : 2048) : 256;" in few_rows


def test_unpacking_inverts_packing() -> None:
    kernel = kernel_for("avx512-vnni", 1, 37, 44, "int8", "int4", "int32", True, packed=True)
    codes = tilewright.pack(random((37, 44), "int4", 2), tilewright.dtype("int4"))
    packed = kernel.pack(B=codes)
    assert packed.nbytes == 48 * 48 // 2
    np.testing.assert_array_equal(kernel.unpack(B=packed), codes)


@pytest.mark.parametrize("machine", ["avxvnni", "avx512", "avx512-vnni-bf16"])
def test_text_for_other_processors_compiles(machine: str, tmp_path: Path) -> None:
    """What this machine may lack it cannot run, but its compiler and assembler know the instructions."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the C compiler here makes code for another family")
    for dtypes, packed in ((("int8", "uint4", "int32"), True), (("bfloat16", "bfloat16", "float32"), False)):
        kernel = kernel_for(machine, 5, 37, 64, *dtypes, True, packed=packed)
        build(kernel.program.source, arch({"arch": machine}), tmp_path)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("arch", ["avx2", "avx512"])
def test_rows_of_tiles_that_lie_apart_in_memory(arch, dtype):
    """Heads lie between rows and columns; the last tile hangs over the end."""
    S, H, D, rows = 150, 2, 128, 64

    @T.prim_func
    def main(Q: T.Tensor((S, H, D), dtype), K: T.Tensor((S, H, D), dtype), C: T.Tensor((H, S, 160), "float32")):
        with T.Kernel(T.ceildiv(S, rows), H, threads=128) as (by, bx):
            q, k = T.alloc_shared((rows, D), dtype), T.alloc_shared((32, D), dtype)
            c = T.alloc_fragment((rows, 32), "float32")
            T.copy(Q[by * rows : (by + 1) * rows, bx, :], q)
            for step in T.Pipelined(5, num_stages=2):
                T.copy(K[step * 32 : (step + 1) * 32, bx, :], k)
                T.gemm(q, k, c, transpose_B=True, clear_accum=True)
                T.copy(c, C[bx, by * rows, step * 32])

    kernel = tilewright.compile(main, target=f"cpu -arch={arch}")
    rng = np.random.default_rng(0)
    q, k = (rng.integers(-3, 4, (S, H, D)).astype(tilewright.dtype(dtype).numpy) for _ in range(2))
    c = np.full((H, S, 160), np.nan, np.float32)
    (kernel if runs_here(kernel.arch) else functools.partial(interpreted, kernel))(q, k, c)
    exact = np.einsum("shd,thd->hst", q.astype(float), k.astype(float))
    assert np.array_equal(c[:, :, :S], exact) and not c[:, :, S:].any()


@pytest.mark.parametrize("transpose_B", [True, False])
@pytest.mark.parametrize(("dtype", "rows"), [("float32", 8), ("float32", 40), ("int8", 40), ("bfloat16", 8)])
def test_operands_that_begin_outside_their_tensor(dtype: str, rows: int, transpose_B: bool) -> None:
    """Outside of a tensor are zeros: before its first row, column and step of k, and in planes that it does not have."""
    planes, M, N, K, before = 3, 43, 37, 50, 16
    total = "int32" if dtype == "int8" else "float32"
    right = (planes, N, K) if transpose_B else (planes, K, N)

    @T.prim_func
    def main(
        A: T.Tensor((planes, M, K), dtype), B: T.Tensor(right, dtype), C: T.Tensor((planes + 1, 2 * rows, 64), total)
    ):
        with T.Kernel(2, 2, 2, threads=1) as (bn, bm, bp):
            a = T.alloc_shared((rows, 32), dtype)
            b = T.alloc_shared((32, 32), dtype)
            c = T.alloc_fragment((rows, 32), total)
            for half in T.serial(2):
                plane = bp * 2 + half
                T.clear(c)
                for step in T.serial(3):
                    T.copy(A[plane, bm * rows - before, step * 32 - before], a)
                    if transpose_B:
                        T.copy(B[plane, bn * 32 - before, step * 32 - before], b)
                    else:
                        T.copy(B[plane, step * 32 - before, bn * 32 - before], b)
                    T.gemm(a, b, c, transpose_B=transpose_B)
                T.copy(c, C[plane, bm * rows, bn * 32])

    kernel = tilewright.compile(main, target="cpu")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(tilewright.dtype(dtype).numpy) for shape in ((planes, M, K), right))
    c = np.full((planes + 1, 2 * rows, 64), 77, tilewright.dtype(total).numpy)
    kernel(a, b, c)
    product = a.astype(np.int64) @ (b.swapaxes(1, 2) if transpose_B else b).astype(np.int64)
    padded = np.zeros((planes + 1, before + max(M, 2 * rows), before + 64), np.int64)
    padded[:planes, before : before + M, before : before + N] = product
    np.testing.assert_array_equal(c, padded[:, : 2 * rows, :64])


def test_scales_and_shifts_that_end_with_their_tensors() -> None:
    """A group more than there are scales multiplies by zeros, and rows beyond the last have no shift."""
    M, N, K, groups = 21, 32, 64, 2

    @T.prim_func
    def main(A: T.Tensor((K, M), "int8"), B: T.Tensor((N, K), "int8"), scales: T.Tensor((groups, N), "float32"),
             shifts: T.Tensor((M,), "int32"), C: T.Tensor((48, N), "float32")):  # fmt: skip
        with T.Kernel(1, threads=1):
            a, b = T.alloc_shared((32, 48), "int8"), T.alloc_shared((N, 32), "int8")
            c = T.alloc_fragment((48, N), "float32")
            T.clear(c)
            for g in T.serial(groups + 1):
                T.copy(A[g * 32, 0], a)
                T.copy(B[0, g * 32], b)
                T.gemm(a, b, c, transpose_A=True, transpose_B=True, scale_B=scales[g, 0:N], shift=shifts[0:48])
            T.copy(c, C)

    kernel = tilewright.compile(main, target="cpu")
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (K, M), np.int8), rng.integers(-9, 9, (N, K), np.int8)
    memory = np.full((groups + 1, N), np.nan, np.float32)  # what lies behind the scales must not be read
    memory[:groups] = rng.integers(1, 4, (groups, N))
    behind = np.full(48, 1 << 20, np.int32)
    behind[:M] = rng.integers(-99, 99, M)
    c = np.full((48, N), np.nan, np.float32)
    kernel(a, b, memory[:groups], behind[:M], c)
    exact = np.zeros((48, N))
    for g in range(groups):
        step = slice(g * 32, g * 32 + 32)
        exact[:M] += (a[step].T.astype(int) @ b[:, step].T.astype(int) + behind[:M, None]) * memory[g]
    np.testing.assert_array_equal(c, exact)


@pytest.mark.parametrize("rows", [1, 5])
def test_scales_that_end_with_their_tensor_beside_few_rows(rows: int) -> None:
    """The tile that scales are copied to is read by vectors: it is no repetition of single elements of the tensor."""
    N, K, groups = 48, 64, 2

    @T.prim_func
    def main(A: T.Tensor((rows, K), "int8"), B: T.Tensor((N, K), "int8"), scales: T.Tensor((groups, N), "float32"),
             C: T.Tensor((rows, N), "float32")):  # fmt: skip
        with T.Kernel(1, threads=1):
            a, b = T.alloc_shared((rows, 32), "int8"), T.alloc_shared((N, 32), "int8")
            c = T.alloc_fragment((rows, N), "float32")
            T.clear(c)
            for g in T.serial(groups + 1):
                T.copy(A[0, g * 32], a)
                T.copy(B[0, g * 32], b)
                T.gemm(a, b, c, transpose_B=True, scale_B=scales[g, 0:N])
            T.copy(c, C)

    rng = np.random.default_rng(rows)
    a, b = rng.integers(-9, 9, (rows, K), np.int8), rng.integers(-9, 9, (N, K), np.int8)
    scales, c = rng.integers(1, 4, (groups, N)).astype(np.float32), np.full((rows, N), np.nan, np.float32)
    tilewright.compile(main, target="cpu")(a, b, scales, c)
    steps = [slice(g * 32, g * 32 + 32) for g in range(groups)]
    exact = sum((a[:, step].astype(int) @ b[:, step].T.astype(int)) * scales[g] for g, step in enumerate(steps))
    np.testing.assert_array_equal(c, exact)


@pytest.mark.parametrize("machine", ["native", "avx2", "x86_64"])
@pytest.mark.parametrize(
    ("operand", "shift"), [("int8", "rows"), ("int8", "columns"), ("float32", ""), ("float32", "columns")]
)
def test_groups_of_a_product_are_summed_in_registers(machine: str, operand: str, shift: str) -> None:
    """Six groups in two products of three, columns behind the last whole vector, rows of a second block."""
    M, N, K, groups = 21, 40, 96, 6

    @T.prim_func
    def main(A: T.Tensor((M, K), operand), B: T.Packed((N, K), "uint4"), scales: T.Tensor((groups, N), "float32"),
             shifts: T.Tensor((groups, M), "int32"), points: T.Tensor((groups, N), "uint8"),
             C: T.Tensor((M, N), "float32")):  # fmt: skip
        with T.Kernel(2, threads=1) as bm:
            a, b = T.alloc_shared((16, 48), operand), T.alloc_fragment((N, 48), "uint8")
            c = T.alloc_fragment((16, N), "float32")
            T.clear(c)
            for part in T.serial(2):
                T.copy(A[bm * 16, part * 48], a)
                T.decode(B[0:N, part * 48 : part * 48 + 48], b)
                added = shifts[part * 3 : part * 3 + 3, bm * 16 : bm * 16 + 16] if shift else None
                factor = points[part * 3 : part * 3 + 3, 0:N] if shift == "columns" else None
                T.gemm(
                    a, b, c, transpose_B=True, scale_B=scales[part * 3 : part * 3 + 3, 0:N], shift=added, groups=3,
                    shift_B=factor,
                )  # fmt: skip
            for i, j in T.Parallel(16, N):
                if bm * 16 + i < M:
                    C[bm * 16 + i, j] = c[i, j]

    kernel = tilewright.compile(main, target=f"cpu -arch={machine}")
    rng = np.random.default_rng(0)
    a, codes = (
        rng.integers(-9, 9, (M, K)).astype(tilewright.dtype(operand).numpy),
        rng.integers(0, 16, (N, K), np.uint8),
    )
    scales = rng.integers(1, 4, (groups, N)).astype(np.float32)
    shifts = rng.integers(-99, 99, (groups, M), np.int32)
    c = np.full((M, N), np.nan, np.float32)
    points = rng.integers(0, 255, (groups, N), np.uint8)
    kernel(a, kernel.pack(B=tilewright.pack(codes, tilewright.dtype("uint4"))), scales, shifts, points, c)
    exact = np.zeros((M, N))
    for g in range(groups):
        step = slice(g * 16, g * 16 + 16)
        product = a[:, step].astype(int) @ codes[:, step].T.astype(int)
        added = shifts[g][:, None] * (points[g].astype(int) if shift == "columns" else 1)
        exact += (product + (added if shift else 0)) * scales[g]
    np.testing.assert_array_equal(c, exact)
    kept = "sums_0" in kernel.get_kernel_source() or "sums_1_0" in kernel.get_kernel_source()
    assert kept is (kernel.arch.registers >= 32)


@pytest.mark.parametrize("machine", PRESETS)
@pytest.mark.parametrize(
    ("dtype", "accumulate"), [("int8", "int32"), ("uint8", "int32"), ("int8", "float32"), ("bfloat16", "float32")]
)
def test_every_machine_takes_a_packed_weight_of_every_type(machine: str, dtype: str, accumulate: str) -> None:
    """Machines whose vectors have no sums of these types were given operands that their instructions multiply."""
    kernel = linear.for_target(f"cpu -arch={machine}", 40, 96, dtype, accumulate, accumulate)
    rng, kind = np.random.default_rng(3), tilewright.dtype(dtype).numpy
    a, w = (rng.integers(0 if dtype == "uint8" else -8, 9, (rows, 96)).astype(kind) for rows in (37, 40))
    c = np.empty((37, 40), accumulate)
    interpret(kernel.program.final, [a, kernel.pack(W=w), c])
    np.testing.assert_array_equal(c, a.astype(np.int64) @ w.astype(np.int64).T)
