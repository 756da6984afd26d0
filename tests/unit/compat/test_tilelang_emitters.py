"""Matrix instructions by hand (`T.ptx_mma`, `T.ptx_ldmatrix`), and the emitters that programs put products together with."""

import ml_dtypes
import numpy as np
import pytest
import tilewright.compat.tilelang.language as T
from tilewright.compat.tilelang.intrinsics import (
    INT4TensorCoreIntrinEmitter,
    TensorCoreIntrinEmitter,
    mma_store_index_map,
)

import tilewright
from tilewright.errors import MissingCapability
from tilewright.language.mistakes import NumberExpected, TileExpected
from tilewright.specialization import InvalidUse

rng = np.random.default_rng(0)


def random(shape, dtype):
    if dtype in ("int4", "uint4"):
        return rng.integers(*((-8, 8) if dtype == "int4" else (0, 16)), shape).astype(getattr(ml_dtypes, dtype))
    if dtype in ("int8", "uint8"):
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
    found = (
        ml_dtypes.float8_e4m3fn if dtype == "float8_e4m3fn" else ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    )
    return rng.integers(-4, 5, shape).astype(np.float32).astype(found)


def product(
    M, N, K, dtype, total, turned_a, turned_b, m_first=False, part=False, chunk=None, kind=TensorCoreIntrinEmitter
):
    """A product of one block for each 64 x 32 tile, as its author puts it together."""
    chunk = chunk or (32 if dtype in ("float32", "float16", "bfloat16", "float64") else 64)
    rows, columns = (16, 16) if dtype == "float64" else (32, 16)
    emitter = kind(
        a_dtype=dtype, b_dtype=dtype, accum_dtype=total, a_transposed=turned_a, b_transposed=turned_b, block_row_warps=2,
        block_col_warps=2, warp_row_tiles=rows, warp_col_tiles=columns, chunk=chunk, is_m_first=m_first,
    )  # fmt: skip
    bM, bN = 2 * rows, 2 * columns
    a_tile, b_tile = (chunk, bM) if turned_a else (bM, chunk), (bN, chunk) if turned_b else (chunk, bN)
    sums = emitter.warp_rows * emitter.warp_cols * emitter.local_size_out

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if turned_a else (M, K), dtype), B: T.Tensor((N, K) if turned_b else (K, N), dtype),
        C: T.Tensor((M, N), total),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=128) as (bx, by):
            a, b = T.alloc_shared((2, *a_tile), dtype), T.alloc_shared((2, *b_tile), dtype)
            C_shared = T.alloc_shared((bM, bN), total)
            own_a = T.alloc_local((emitter.warp_rows * emitter.local_size_a,), dtype)
            own_b = T.alloc_local((emitter.warp_cols * emitter.local_size_b,), dtype)
            own_c = T.alloc_local((sums,), total)
            T.clear(own_c)
            for k in T.serial(T.ceildiv(K, chunk)):
                if turned_a:
                    T.copy(A[k * chunk, by * bM], a[k % 2, :, :])
                else:
                    T.copy(A[by * bM, k * chunk], a[k % 2, :, :])
                if turned_b:
                    T.copy(B[bx * bN, k * chunk], b[k % 2, :, :])
                else:
                    T.copy(B[k * chunk, bx * bN], b[k % 2, :, :])
                for ki in T.serial(chunk // emitter.k_dim):
                    emitter.ldmatrix_a(own_a, a[k % 2, :, :], ki)
                    emitter.ldmatrix_b(own_b, b[k % 2, :, :], ki)
                    emitter.mma(own_a, own_b, own_c)
            if part:
                emitter.stmatrix(own_c, C, pid_m=by, pid_n=bx)
            else:
                emitter.stmatrix(own_c, C_shared)
                T.copy(C_shared, C[by * bM, bx * bN])

    return main


def packed(array):
    """Elements of four bits two in a byte."""
    if "int4" not in str(array.dtype):
        return array
    bits = array.astype(np.int8).view(np.uint8) & 15
    return bits[:, ::2] | bits[:, 1::2] << 4


def run(program, target, way, *arrays):
    kernel = tilewright.compile(program, target=target)
    getattr(kernel, way)(*map(packed, arrays))
    return arrays[-1]


TYPES = [
    ("float16", "float32"), ("bfloat16", "float32"), ("float16", "float16"), ("float32", "float32"), ("int8", "int32"),
    ("uint8", "int32"), ("int4", "int32"), ("uint4", "int32"), ("float8_e4m3fn", "float32"), ("float64", "float64"),
]  # fmt: skip


@pytest.mark.parametrize("way", ["interpret", "emulate"])
@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "cuda -arch=sm_90a"])
@pytest.mark.parametrize("turned", [(False, True), (True, False), (False, False), (True, True)])
@pytest.mark.parametrize(("dtype", "total"), TYPES)
def test_products(dtype, total, turned, target, way):
    M, N, K = (40, 40, 72) if dtype == "float64" else (100, 40, 136)
    program = product(M, N, K, dtype, total, *turned, m_first=turned[0], part=turned[1] and M % 64 == 0)
    a, b = random((K, M) if turned[0] else (M, K), dtype), random((N, K) if turned[1] else (K, N), dtype)
    c = np.full((M, N), 77, total)
    run(program, target, way, a, b, c)
    wanted = (a.T if turned[0] else a).astype(np.float64) @ (b.T if turned[1] else b).astype(np.float64)
    np.testing.assert_array_equal(c, wanted.astype(total))


def test_sums_go_to_a_tensor_by_their_block():
    a, b, c = random((128, 64), "float16"), random((64, 64), "float16"), np.full((128, 64), 7, np.float32)
    run(product(128, 64, 64, "float16", "float32", False, True, part=True), "cuda -arch=sm_90a", "emulate", a, b, c)
    np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float).T)


@pytest.mark.parametrize("way", ["interpret", "emulate"])
@pytest.mark.parametrize("turned", [(False, True), (True, False)])
def test_bytes_of_two_numbers(turned, way):
    M, N, K = 100, 40, 136
    a, b = random((M, 2 * K), "int4"), random((N, 2 * K), "int4")
    held = [packed(one).view(np.int8) for one in (a, b)]
    held = [held[0].T.copy() if turned[0] else held[0], held[1] if turned[1] else held[1].T.copy()]
    c = np.full((M, N), 77, np.int32)
    program = product(M, N, K, "int8", "int32", *turned, kind=INT4TensorCoreIntrinEmitter)
    run(program, "cuda -arch=sm_90a", way, *held, c)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32).T)


@pytest.mark.parametrize("way", ["interpret", "emulate"])
@pytest.mark.parametrize("older", [False, True])
def test_words_themselves(way, older):
    @T.prim_func
    def main(A: T.Tensor((16, 16), "float16"), B: T.Tensor((8, 16), "float16"), C: T.Tensor((16, 8), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            a, b = T.alloc_shared((16, 16), "float16"), T.alloc_shared((8, 16), "float16")
            own_a, own_b = T.alloc_local((8,), "float16"), T.alloc_local((4,), "float16")
            own_c = T.alloc_local((8,), "float32")
            T.copy(A, a)
            T.copy(B, b)
            for i in T.serial(8):
                own_c[i] = i
            if older:
                T.ptx_ldmatrix(
                    "float16", False, 4, ".b16", own_a.data, 0, a.access_ptr("r", offset=tx % 16 * 16 + tx // 16 * 8), 0
                )
            else:
                T.ptx_ldmatrix(False, 4, T.access_ptr(a[tx % 16, 8 * (tx // 16)], "r"), T.access_ptr(own_a[0], "w"))
            T.ptx_ldmatrix(0, 2, T.access_ptr(b[tx % 8, 8 * (tx // 8 % 2)], "r"), own_b)
            T.ptx_mma(
                "float32", "m16n8k16", "row", "col", "fp16", "fp16", "fp32", own_a.data, 0, own_b.data, 0, own_c.data, 4,
                T.bool(False),
            )  # fmt: skip
            for i in T.serial(4):
                row, column = mma_store_index_map(tx, i)
                C[row, column] = own_c[4 + i]

    a, b, c = random((16, 16), "float16"), random((8, 16), "float16"), np.full((16, 8), 7, np.float32)
    run(main, "cuda -arch=sm_90a", way, a, b, c)
    begun = 4 + 2 * (np.arange(16)[:, None] // 8) + np.arange(8) % 2
    np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float).T + begun)


@pytest.mark.parametrize("way", ["interpret", "emulate"])
def test_an_instruction_takes_words_that_hold_its_elements(way):
    @T.prim_func
    def main(A: T.Tensor((16, 8), "uint32"), B: T.Tensor((8, 8), "uint32"), C: T.Tensor((16, 8), "float32")):
        with T.Kernel(1, threads=32):
            lane = T.get_thread_binding()
            own_a, own_b = T.alloc_local((4,), "uint32"), T.alloc_local((4,), "uint32")
            own_c = T.alloc_local((4,), "float32")
            for i in T.unroll(4):
                own_a[i] = A[lane // 4 + i % 2 * 8, lane % 4 + i // 2 * 4]
                own_c[i] = 0.0
            for i in T.unroll(2):
                own_b[2 + i] = B[lane // 4, lane % 4 + i * 4]
            types = ("float32", "m16n8k16", "row", "col", "fp16", "fp16", "fp32")
            T.ptx_mma(*types, own_a.data, 0, own_b.data, 2, own_c.data, 0)
            for i in T.unroll(4):
                C[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = own_c[i]

    a, b, c = random((16, 16), "float16"), random((8, 16), "float16"), np.zeros((16, 8), np.float32)
    run(main, "cuda -arch=sm_90a", way, a.view(np.uint32), b.view(np.uint32), c)
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float).T, atol=1e-5)


@pytest.mark.parametrize("way", ["interpret", "emulate"])
def test_places_as_programs_of_tvm_say_them(way):
    """A type, a buffer, elements from its beginning on, how many, who reads or writes them."""

    @T.prim_func
    def main(A: T.Tensor((8, 16), "float32"), B: T.Tensor((8, 16), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((8, 16), "float32")
            T.ptx_cp_async(
                T.tvm_access_ptr(T.type_annotation("float32"), tile.data, tx * 4, 4, 2),
                T.tvm_access_ptr(T.type_annotation("float32"), A.data, 124 - tx * 4, 4, 1),
                4,
            )
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.sync_threads()
            T.copy(tile, B)

    a, b = random((8, 16), "float32"), np.zeros((8, 16), np.float32)
    run(main, "cuda -arch=sm_90a", way, a, b)
    np.testing.assert_array_equal(b, a.reshape(32, 4)[::-1].reshape(8, 16))


def test_machines_without_the_instruction_say_so():
    program = product(64, 32, 64, "float16", "float32", False, True)
    for target in ("cpu -arch=avx2", "hip -arch=gfx942", "metal -arch=apple7"):
        with pytest.raises(MissingCapability, match="has no loads of matrices"):
            tilewright.compile(program, target=target)


def test_types_without_an_instruction():
    with pytest.raises(InvalidUse, match="no matrix instruction of ours multiplies int4 by int8"):
        TensorCoreIntrinEmitter(a_dtype="int4", b_dtype="int8", accum_dtype="int32")

    @T.prim_func
    def main(C: T.Tensor((1,), "float16")):
        with T.Kernel(1, threads=32):
            a, b, c = T.alloc_local((8,), "bfloat16"), T.alloc_local((4,), "bfloat16"), T.alloc_local((4,), "float16")
            T.ptx_mma("float16", "m16n8k16", "row", "col", "bf16", "bf16", "fp16", a, 0, b, 0, c, 0)

    with pytest.raises(
        MissingCapability, match="no instruction m16n8k16 of bfloat16 and bfloat16 with sums in float16"
    ):
        tilewright.compile(main, target="cuda -arch=sm_90a")


def test_mistakes():
    def made(**changed):
        given = {
            "dtype": "float32", "shape": "m16n8k16", "A_layout": "row", "B_layout": "col", "A_dtype": "fp16",
            "B_dtype": "fp16", "C_dtype": "fp32", "a_index": 0, "b_index": 0, "c_index": 0,
        } | changed  # fmt: skip

        @T.prim_func
        def main(C: T.Tensor((1,), "float16")):
            with T.Kernel(1, threads=32):
                a, b, c = T.alloc_local((8,), "float16"), T.alloc_local((4,), "float16"), T.alloc_local((4,), "float32")
                shared = T.alloc_shared((16, 16), "float16")
                T.clear(shared)
                left = shared if changed.get("saturate") == 5 else a
                T.ptx_mma(**given, multiplicand_a=left, multiplicand_b=b, accumulator=c)

    for changed, kind, message in (
        ({"shape": "16x8"}, NumberExpected, "shape"), ({"B_layout": "row"}, NumberExpected, "layouts"),
        ({"A_dtype": "bf16"}, NumberExpected, "multiplicand_a"), ({"saturate": True}, NumberExpected, "saturate=False"),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            made(**changed)

    with pytest.raises(TileExpected, match=r"the source of T\.ptx_ldmatrix"):

        @T.prim_func
        def main(A: T.Tensor((16, 16), "float16")):
            with T.Kernel(1, threads=32):
                T.ptx_ldmatrix(False, 4, T.access_ptr(A[0, 0]), T.alloc_shared((8,), "float16"))
