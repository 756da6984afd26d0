"""2:4 sparse products: interpreted, emulated in pipelines of both kinds, and compiled to sparse matrix instructions."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_gemm import on
from hypothesis import given
from hypothesis import strategies as st
from sparse_matmul import pack_metadata, sparse_parts
from sparse_matmul import sparse_matmul as sparse_matmul_kernel

import tilewright.language as T
from tilewright.errors import EmulationError, TilewrightError
from tilewright.formats.sparse import NotSparse, compress, expand, group_of, in_lanes, in_rows, prune
from tilewright.ir.dtypes import dtype as dtype_of
from tilewright.ir.printer import print_program
from tilewright.kernels.roofline import hopper_speed
from tilewright.kernels.tiles import Tiles
from tilewright.passes.tile.gemms import pair_iterations
from tilewright.specialization import JITFactory
from tilewright.targets.cuda.compiler import compile_text

sys.path.insert(0, str(Path(__file__).parents[3] / "gpu"))
from cuda_facts_sparse import metadata_word


def sparse_matmul(
    A, E, B, dtype="float16", accumulator="float32", block=(64, 32, 64), transpose_B=True, num_stages=2, threads=128, specialize=None,
    registers=False, order="rows",
):  # fmt: skip
    M, N, K = T.const("M, N, K")
    BM, BN, BK = block
    per_byte = 4 if dtype == "tfloat32" else 8
    A: T.Tensor((M, K // 2), dtype)
    E: T.Tensor((M, K // per_byte), "uint8")
    B: T.Tensor((N, K) if transpose_B else (K, N), dtype)
    C = T.empty((M, N), accumulator)
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        a = T.alloc_shared((BM, BK // 2), dtype)
        e = T.alloc_shared((BM, BK // per_byte), "uint8")
        a_registers = T.alloc_fragment((BM, BK // 2), dtype)
        b = T.alloc_shared((BN, BK) if transpose_B else (BK, BN), dtype)
        c = T.alloc_fragment((BM, BN), accumulator)
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=num_stages, specialize=specialize):
            T.copy(A[by * BM, k * (BK // 2)], a)
            T.copy(E[by * BM, k * (BK // per_byte)], e)
            if transpose_B:
                T.copy(B[bx * BN, k * BK], b)
            else:
                T.copy(B[k * BK, bx * BN], b)
            if registers:
                T.copy(a, a_registers)
                T.gemm_sp(a_registers, e, b, c, transpose_B=transpose_B, order=order)
            else:
                T.gemm_sp(a, e, b, c, transpose_B=transpose_B, order=order)
        T.copy(c, C[by * BM, bx * BN])
    return C


def problem(m, n, k, dtype, transpose_B=True, seed=0):
    """Kept elements, metadata, B, and the exact product."""
    rng = np.random.default_rng(seed)
    kind, group, low = dtype_of(dtype).numpy, group_of(dtype_of(dtype)), 0 if dtype == "uint8" else -4
    a, b = prune(rng.integers(low, 5, (m, k)), group), rng.integers(low, 5, (n, k))
    kept, metadata = compress(a.astype(kind), group)
    return kept, metadata, np.ascontiguousarray((b if transpose_B else b.T).astype(kind)), a @ b.T


WARPS = [
    ("sm_80", "float16", "mma_sparse_m16n8k32"), ("sm_80", "int8", "mma_sparse_m16n8k64"), ("sm_80", "tfloat32", "mma_sparse_m16n8k16"),
    ("sm_89", "float8_e4m3fn", "mma_sparse_m16n8k64"), ("sm_89", "float8_e5m2", "mma_sparse_m16n8k64"),
]  # fmt: skip
GROUPS = ["float16", "bfloat16", "tfloat32", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"]
SCHEDULES = (("late", 0), ("early", 1), ("random", 2))


def check(
    arch, dtype, instruction, schedules=SCHEDULES, size=(100, 72, 320), block=(64, 32, 128), transpose_B=True, **options
):
    *arrays, expected = problem(*size, dtype, transpose_B)
    accumulator = "int32" if "int" in dtype else "float32"
    kernel = on(arch, sparse_matmul).compile(
        *arrays, dtype=dtype, accumulator=accumulator, block=block, num_stages=3, transpose_B=transpose_B, **options
    )
    assert f"sparse gemm: {instruction} on" in kernel.explain()
    assert np.array_equal(kernel.interpret(*arrays), expected)
    for schedule, seed in schedules:
        assert np.array_equal(kernel.emulate(*arrays, schedule=schedule, seed=seed), expected)
    return kernel.explain()


@pytest.mark.parametrize("arch, dtype, instruction", WARPS)
def test_warps_in_pipelines(arch, dtype, instruction):
    check(arch, dtype, instruction, SCHEDULES[:1])


@pytest.mark.parametrize("dtype", GROUPS)
def test_warpgroups_in_roles(dtype):
    block = (64, 32, 64 if dtype == "tfloat32" else 128)
    said = check(
        "sm_90a", dtype, "wgmma_sparse_ss", SCHEDULES if dtype in ("float16", "int8") else SCHEDULES[2:], block=block
    )
    assert "tma_load into a_ring" in said and ("cp_async into e_ring" in said) == (dtype != "tfloat32")


def test_metadata_by_the_copy_engine_and_two_warpgroups():
    said = check("sm_90a", "float16", "wgmma_sparse_ss", size=(130, 72, 512), block=(128, 64, 128), threads=256)
    assert "tma_load into e_ring" in said


def test_metadata_stays_until_the_products_have_run(monkeypatch):
    """Two sets of registers in turn; with one alone, what is loaded next overwrites what a product in flight still reads."""
    sizes = {"size": (64, 32, 512), "block": (64, 32, 128)}
    check("sm_90a", "float16", "wgmma_sparse_ss", SCHEDULES[:1], **sizes)
    first = []

    def one_set(record, **changes):
        if "words" in changes:
            first.append(changes["words"])
            changes["words"] = first[0]
        return dataclasses.replace(record, **changes)

    monkeypatch.setattr(pair_iterations, "replace", one_set)
    with pytest.raises(EmulationError, match="operand-written"):
        check("sm_90a", "float16", "wgmma_sparse_ss", SCHEDULES[:1], **sizes)


def test_warpgroups_without_roles():
    check("sm_90a", "bfloat16", "wgmma_sparse_ss", SCHEDULES[2:], specialize=False)


def test_an_odd_number_of_steps_and_a_dense_operand_along_n():
    check(
        "sm_90a",
        "float16",
        "wgmma_sparse_ss",
        SCHEDULES[2:],
        size=(64, 128, 192),
        block=(64, 64, 96),
        transpose_B=False,
    )


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_what_is_kept_in_registers(dtype):
    check("sm_90a", dtype, "wgmma_sparse_rs", SCHEDULES[2:], registers=True)


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
    assert "HMMA.SP.16832.F32" in binary.machine_code()


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([2, 4]), st.integers(0, 2**32 - 1))
def test_what_is_compressed_expands_to_the_same(rows, bytes_a_row, group, seed):
    matrix = prune(np.random.default_rng(seed).integers(-3, 4, (rows, 2 * group * bytes_a_row)), group)
    kept, metadata = compress(matrix, group)
    assert kept.shape == (rows, group * bytes_a_row) and metadata.shape == (rows, bytes_a_row)
    assert np.array_equal(expand(kept, metadata, group), matrix)


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


@pytest.mark.parametrize("dtype, M, two", [("float16", 192, True), ("int8", 70, False), ("tfloat32", 64, False)])
def test_the_kernel_of_large_products(dtype, M, two):
    """Metadata in the order of steps: a tile is one piece for the copy engine, where the kernel knows that it lies inside."""
    K = 160 if dtype == "tfloat32" else 320
    kept, metadata, b, expected = problem(M, 40, K, dtype)
    depth = 32 if dtype == "tfloat32" else 64
    tiles, out = Tiles(64, 32, depth, 3, 128), "int32" if dtype == "int8" else "float32"
    factory = JITFactory(sparse_matmul_kernel.function, None, "cuda -arch=sm_90a -cores=4", None)
    parts = ((64, tiles), (M - 64, Tiles(128, 32, depth, 3, 256)))
    kernel = factory(M, K, dtype, out, tiles=parts if two else tiles)
    packed = pack_metadata(metadata, dtype, tiles)
    assert packed.shape == (-(-K // depth), -(-M // 16) * 16, 8)
    assert ("bulk_load" in kernel.get_kernel_source()) == (M % 64 == 0)
    for schedule in ("late", "random"):
        result = np.full((M, 40), 77, dtype_of(out).numpy)
        kernel.emulate(kept, packed, b, result, schedule=schedule, seed=1)
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("bits", [8, 16])
def test_metadata_in_the_order_of_lanes_has_their_words_in_turn(bits):
    rows = np.random.default_rng(bits).integers(0, 256, (2, 32, 24)).astype(np.uint8)
    lanes = in_lanes(rows, bits)
    assert np.array_equal(in_rows(lanes, bits), rows)
    words = lanes.reshape(2, 2, 3, 32, 4)  # of 16 rows and 8 bytes each, the words of 32 lanes
    nibbles = np.stack([rows & 15, rows >> 4], -1).reshape(2, 32, 48)
    for lane in range(32):
        selector = 0 if bits == 8 else lane % 4 // 2
        places = metadata_word(lane, bits, 512 // bits, selector)
        for number, (row, group) in enumerate(places):
            found = words[:, :, :, lane, number // 2] >> 4 * (number % 2) & 15
            first = group + (0 if bits == 8 else 8 * selector)
            expected = nibbles[:, [row, row + 16], first::16]
            assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    "arch, dtype, instruction",
    [("sm_80", "float16", "mma_sparse_m16n8k32"), ("sm_80", "int8", "mma_sparse_m16n8k64"), ("sm_80", "float32", "scalar"),
     ("sm_90a", "bfloat16", "wgmma_sparse_ss"), ("sm_90a", "float8_e4m3fn", "wgmma_sparse_ss")],
)  # fmt: skip
def test_metadata_in_the_order_of_lanes(arch, dtype, instruction):
    """One step of k, so that the order of a tile is that of the tensor."""
    kept, metadata, b, expected = problem(64, 24, 128, dtype)
    accumulator = "int32" if dtype == "int8" else "float32"
    kernel = on(arch, sparse_matmul).compile(
        kept, metadata, b, dtype=dtype, accumulator=accumulator, block=(64, 24, 128), num_stages=1, order="lanes"
    )
    assert instruction in kernel.explain()
    packed = in_lanes(metadata, dtype_of(dtype).bits)
    for found in (kernel.interpret(kept, packed, b), kernel.emulate(kept, packed, b, schedule="random", seed=1)):
        assert np.array_equal(found, expected)


def test_lanes_need_whole_words():
    kept, metadata, b, _ = problem(64, 32, 96, "float16")
    reason = r"the metadata has shape \(64, 12\); in the order of lanes it should have a multiple of 16 rows and of 8 columns"
    with pytest.raises(TilewrightError, match=reason):
        on("sm_80", sparse_matmul).compile(kept, metadata, b, block=(64, 32, 96), order="lanes")


@pytest.mark.parametrize("out", ["bfloat16", "float16"])
def test_whole_sums_are_rounded_on_their_way_into_boxes(out):
    """So that no registers hold them twice."""
    kept, metadata, b, expected = problem(128, 64, 256, "int8")
    tiles = Tiles(128, 64, 128, 2, 256)
    kernel = JITFactory(sparse_matmul_kernel.function, None, "cuda -arch=sm_90a -cores=4", None)(
        128, 256, "int8", out, tiles=tiles
    )
    assert "stmatrix and tma_store in boxes of" in kernel.explain()
    result = np.zeros((128, 64), dtype_of(out).numpy)
    kernel.emulate(kept, pack_metadata(metadata, "int8", tiles), b, result, schedule="late")
    assert np.array_equal(result, expected.astype(result.dtype))


def test_parts_make_whole_waves():
    (height, first), (rest, second) = sparse_parts(8192, 8192, 8192, "float16")
    assert (height, rest) == (7680, 512) and (first.block_M, first.block_N) == (256, 192)
    assert second.block_M * second.block_N <= 256 * 128  # no wave of large tiles
    assert [rows for rows, _ in sparse_parts(2048, 2048, 8192, "float16")] == [2048]


@pytest.mark.parametrize("cores", [78, 108, 114, 128, 132, 142])
def test_parts_cover_the_rows_in_few_waves(cores):
    speed = hopper_speed(cores)
    for M, N, K in ((8192, 8192, 8192), (14336, 4096, 4096), (3008, 1111, 2048), (64, 64, 64)):
        parts = sparse_parts(M, N, K, "int8", speed)
        assert sum(rows for rows, _ in parts) == M
        area = sum(
            -(-rows // tiles.block_M) * -(-N // tiles.block_N) * tiles.block_M * tiles.block_N for rows, tiles in parts
        )
        # No more than a wave of the smallest tiles, or a quarter, beyond what is there.
        assert area <= max(1.25 * M * N, M * N + cores * 128 * 128)


def test_unless_columns_are_known_there_is_one_launch_of_the_largest_tiles():
    kernel = JITFactory(sparse_matmul_kernel.function, None, "cuda -arch=sm_90a", None)(8192, 8192, "int8", "bfloat16")
    assert len(kernel.program.source.entries) == 1
    assert "fragment(int32[256, 192])" in print_program(kernel.function)
