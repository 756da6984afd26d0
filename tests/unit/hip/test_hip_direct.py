"""Tiles that go from tensors to shared memory directly: what waves start, in which order it lies, and what is waited for."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hip_programs import on
from machine_loops import shared_bytes, vector, waits_before_products

import tilewright.language as T
from tilewright.emulator import run
from tilewright.ir.dtypes import ALL as DTYPES
from tilewright.ir.nodes import Buffer, whole
from tilewright.layout.access import bank_conflicts
from tilewright.ops import Copy
from tilewright.passes.tile.pipelines.transposed_tiles import _transposed_tile
from tilewright.targets.hip.emulation import HIP
from tilewright.targets.hip.machine_code import hottest_loop

from cuda_gemm import matmul, operands  # isort: skip

BANKS = 32
SCHEDULES = (("late", 0), ("early", 0), ("random", 3))


def agrees(kernel, a, b, transpose_A=False, transpose_B=True, bound=1e-3):
    left, right = (a.T if transpose_A else a).astype(np.float64), (b.T if transpose_B else b).astype(np.float64)
    for schedule, seed in SCHEDULES:
        got = kernel.emulate(a, b, schedule=schedule, seed=seed).astype(np.float64)
        assert np.abs(got - left @ right).max(initial=0) <= bound


def test_waits_leave_the_next_stages_on_their_way():
    """Of three slots two are on their way: the wait leaves as many loads as a wave starts in a step; at the end it waits for all."""
    kernel = on("gfx950", matmul).compile(
        *operands(1024, 1024, 1024, "bfloat16"), dtype="bfloat16", out="bfloat16", block=(128, 128, 64), threads=256, num_stages=3,
    )  # fmt: skip
    text = kernel.get_kernel_source()
    loop = text[text.index("for (int32_t k = 0;") :]
    assert re.search(
        r"if \(k \+ 1 < 16\) \{\s*tw::cp_async_wait<8>\(\);\s*\}\s*else \{\s*tw::cp_async_wait<0>\(\);", loop
    ), loop
    assert loop.index("cp_async_wait") < loop.index("sync_shared") < loop.index("tw::cp_async<16>") < loop.index("mfma")
    assert "store_fragment<8>(&A_shared" not in text and "load_fragment<8>(A_part" not in text
    hottest = hottest_loop(kernel.ptx())
    loads = [operands for name, operands in hottest.instructions if name == "buffer_load_dwordx4"]
    assert len(loads) == 8 and all(one.endswith("lds") for one in loads)
    assert any(name == "s_waitcnt" and "vmcnt(8)" in operands for name, operands in hottest.instructions)
    assert not waits_before_products(hottest) and shared_bytes(hottest, "write", "store") == 0
    assert vector(hottest) <= hottest.products
    (resources,) = kernel.resources().values()
    assert resources["scratch_bytes"] == 0 and resources["lds_bytes"] == 3 * 2 * 128 * 64 * 2


@pytest.mark.parametrize("K", [0, 8, 31 * 8, 32, 64, 96, 200])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_any_number_of_iterations(K, stages, dtype):
    K = K * 2 if dtype == "int8" else K
    a, b = operands(56, 24, K, dtype, seed=K)
    out = "int32" if dtype == "int8" else "float32"
    function = on("gfx950", matmul)
    kernel = function.compile(a, b, dtype=dtype, accumulator=out, out=out, block=(32, 32, 64), num_stages=stages)
    assert K == 0 or "tw::cp_async<16>" in kernel.get_kernel_source()
    agrees(kernel, a, b, bound=0 if dtype == "int8" else 1e-3)


@pytest.mark.parametrize("transposed", [(False, True), (False, False), (True, True), (True, False)])
@pytest.mark.parametrize("sizes", [(100, 72, 136), (128, 128, 128)])
def test_operands_in_every_order(transposed, sizes):
    m, n, k = (-(-one // 8) * 8 for one in sizes)
    a, b = operands(m, n, k, "float16", *transposed)
    options = {"transpose_A": transposed[0], "transpose_B": transposed[1]}
    kernel = on("gfx950", matmul).compile(a, b, block=(64, 64, 32), num_stages=3, **options)
    assert ("tw::cp_async<16>" in kernel.get_kernel_source()) == (
        transposed != (True, False)
    )  # turned ones go by registers
    agrees(kernel, a, b, *transposed)


def test_rows_that_end_within_a_piece_go_through_registers():
    a, b = operands(40, 40, 68, "float16")
    kernel = on("gfx950", matmul).compile(a, b, block=(32, 32, 32))
    assert "tw::cp_async<" not in kernel.get_kernel_source() and "fewer than pieces of 4" in kernel.explain()
    agrees(kernel, a, b)


def test_a_ring_that_is_larger_than_lds_goes_through_registers():
    a, b = operands(256, 256, 256, "float16")
    kernel = on("gfx950", matmul).compile(a, b, block=(256, 256, 64), threads=512, num_stages=4)
    assert "tw::cp_async<" not in kernel.get_kernel_source()
    agrees(kernel, a, b)


def unknown_rows(A, B):
    M, N = T.dynamic("M"), T.dynamic("N")
    K = T.const("K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=(32, 4)) as (bx, by):
        a = T.alloc_shared((32, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        total = T.alloc_fragment((32, 32), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 32, k * 32], a)
            T.copy(B[bx * 32, k * 32], b)
            T.gemm(a, b, total, transpose_B=True)
        T.copy(total, C[by * 32, bx * 32])
    return C


def test_tensors_of_unknown_size_are_read_by_address():
    """What is out of bounds is read from a block of zeros: the lanes' own addresses say so."""
    a, b = operands(45, 33, 104, "float16")
    kernel = on("gfx950", unknown_rows).compile(a, b)
    assert re.search(r"tw::cp_async<16>\(&a_stages\[.*first_of_wave\(\).*\], tw::within\(", kernel.get_kernel_source())
    assert "global_load_lds_dwordx4" in kernel.ptx()
    agrees(kernel, a, b)


def mixed(A, B, steps: T.int32):
    """One operand's rows are no whole pieces: it goes through registers beside the other."""
    A: T.Tensor((64, 512), "float16")
    B: T.Tensor((64, 509), "float16")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        total = T.alloc_fragment((64, 64), "float32")
        T.clear(total)
        for k in T.Pipelined(steps, num_stages=3):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, total, transpose_B=True)
        T.copy(total, C)
    return C


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 8])
def test_both_ways_in_one_loop(steps):
    a, b = operands(64, 64, 512, "float16")
    b = np.ascontiguousarray(b[:, :509])
    kernel = on("gfx950", mixed).compile(a, b, steps)
    text = kernel.get_kernel_source()
    assert "tw::cp_async<16>(&a_stages" in text and "tw::cp_async<16>(&b" not in text
    wanted = a.astype(np.float64)[:, : min(64 * steps, 509)] @ b.astype(np.float64)[:, : 64 * steps].T
    for schedule, seed in SCHEDULES:
        assert np.abs(kernel.emulate(a, b, steps, schedule=schedule, seed=seed) - wanted).max() < 1e-3


def sometimes(A, wanted):
    """A load that not every iteration makes: how many are under way is not known, so all of them are waited for."""
    A: T.Tensor((16, 64, 64), "float16")
    wanted: T.Tensor((16,), "int32")
    C = T.empty((64, 64), "float32")
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        total = T.alloc_fragment((64, 64), "float32")
        T.clear(total)
        for k in T.Pipelined(16, num_stages=3):
            if wanted[k] > 0:
                T.copy(A[k, :, :], a)
                for i, j in T.Parallel(64, 64):
                    total[i, j] += a[i, j]
        T.copy(total, C)
    return C


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_loads_under_conditions(arch):
    a = np.random.default_rng(3).standard_normal((16, 64, 64)).astype(np.float16)
    which = (np.random.default_rng(4).random(16) < 0.5).astype(np.int32)
    kernel = on(arch, sometimes).compile(a, which)
    for schedule, seed in SCHEDULES:
        got = kernel.emulate(a, which, schedule=schedule, seed=seed)
        assert np.abs(got - a[which > 0].astype(np.float64).sum(0)).max() < 1e-2


def by_hand(A):
    N = T.const("N")
    A: T.Tensor((N, 64), "float32")
    C = T.empty((N, 64), "float32")
    with T.Kernel(T.ceildiv(N, 16), threads=64) as block:
        first = T.alloc_shared((16, 64), "float32")
        second = T.alloc_shared((16, 64), "float32")
        T.async_copy(A[block * 16, 0], first)
        T.async_copy(A[block * 16, 0], second)
        T.ptx_wait_group(0)
        for i, j in T.Parallel(16, 64):
            C[block * 16 + i, j] = first[i, j] + second[15 - i, j]
    return C


@pytest.mark.parametrize(("arch", "size"), [("gfx90a", 4), ("gfx942", 4), ("gfx950", 16)])
def test_copies_begun_by_hand(arch, size):
    a = np.random.default_rng(1).standard_normal((48, 64)).astype(np.float32)
    kernel = on(arch, by_hand).compile(a)
    text = kernel.get_kernel_source()
    assert f"tw::cp_async<{size}>(&first" in text and "tw::cp_async_wait<0>" in text
    assert re.search(r"(buffer|global)_load\w*_dword(x4)?\b.*\blds|global_load_lds_dword", kernel.ptx())
    wanted = a + a.reshape(-1, 16, 64)[:, ::-1].reshape(-1, 64)
    for schedule, seed in SCHEDULES:
        assert (kernel.emulate(a, schedule=schedule, seed=seed) == wanted).all()


def wide_tile(A):
    """A tile that registers do not hold: even pieces of 4 bytes are better than no load ahead."""
    A: T.Tensor((8, 64, 128), "float32")
    C = T.empty((64, 128), "float32")
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((64, 128), "float32")
        total = T.alloc_fragment((64, 128), "float32")
        T.clear(total)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(A[k, :, :], a)
            for i, j in T.Parallel(64, 128):
                total[i, j] += a[i, j]
        T.copy(total, C)
    return C


def test_small_pieces_only_where_registers_are_too_few():
    a = np.random.default_rng(1).integers(-9, 9, (8, 64, 128)).astype(np.float32)
    kernel = on("gfx942", wide_tile).compile(a)
    assert "tw::cp_async<4>(&a_stages" in kernel.get_kernel_source()
    assert (kernel.emulate(a, schedule="late") == a.sum(0)).all()
    a, b = operands(64, 64, 64, "float16")
    said = on("gfx942", matmul).compile(a, b).explain()
    assert "loads of 16 bytes into registers are fewer than pieces of 4" in said


RULE = """#include "tilewright_gfx942.h"
TW_KERNEL(128, 1)
rule(const uint32_t* A, uint32_t* C) {
  TW_SHARED(shared_memory, 1024);
  uint32_t* const tile = reinterpret_cast<uint32_t*>(shared_memory);
  const int tx = threadIdx.x;
  tw::cp_async<4>(tile + FIRST, tw::place(A, tx));
  tw::cp_async<4>(tile + 128 + tw::first_of_wave(), tw::place(A, tx));
  tw::cp_async_wait<LEFT>();
  tw::sync_shared();
  C[tx] = tile[tx ^ 1];
}
"""


@pytest.mark.parametrize(
    ("first", "left", "outcome"),
    [("tw::first_of_wave()", 0, "right"), ("tw::first_of_wave()", 1, "right"), ("tw::first_of_wave()", 2, "reported"),
     ("tx", 1, "right"), ("0", 1, "reported"), ("64 - tw::first_of_wave()", 1, "wrong")],
)  # fmt: skip
def test_the_emulator_knows_the_rule_of_lanes_and_counts_loads(first, left, outcome):
    """The first lane's place decides, whatever the others name; a wait counts loads from the last one back."""
    a, c = np.arange(7, 135, dtype=np.uint32), np.zeros(128, np.uint32)
    text = RULE.replace("FIRST", first).replace("LEFT", str(left))
    found = run(
        text, "rule", [a, c], grid=(1,), block=(128,), shared_bytes=1024, registers=0, vocabulary=HIP, schedule="late"
    )
    right = (c == a[np.arange(128) ^ 1]).all()
    assert ("reported" if found.reports else "right" if right else "wrong") == outcome, found.reports[:1]


TURNED = [
    ("gfx90a", "float16"), ("gfx942", "bfloat16"), ("gfx950", "float16"),
    ("gfx90a", "int8"), ("gfx942", "int8"), ("gfx942", "float8_e4m3fnuz"), ("gfx950", "float8_e5m2"), ("gfx1100", "int8"),
    ("gfx1201", "float8_e4m3fn"),
]  # fmt: skip


@pytest.mark.parametrize("stages", [0, 1, 2, 3])
@pytest.mark.parametrize("transposed", [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize(("arch", "dtype"), TURNED)
def test_operands_across_k_are_turned_on_their_way(arch, dtype, transposed, stages):
    """Threads load rows, store columns, and lanes read runs of k; sizes that divide nothing, and whole ones."""
    options = {"transpose_A": transposed[0], "transpose_B": transposed[1], "num_stages": stages, "dtype": dtype}
    if dtype == "int8":
        options |= {"accumulator": "int32", "out": "int32"}
    for m, n, k in ((104, 72, 136), (128, 64, 64), (64, 64, 0), (40, 24, 8), (16, 48, 272)):
        a, b = operands(m, n, k, dtype, *transposed)
        kernel = on(arch, matmul).compile(a, b, block=(64, 64, 64), **options)
        in_place = (arch, stages) == ("gfx950", 1)  # loads to LDS directly, which one stage waits for
        assert k == 0 or in_place or "_registers_transposed" in kernel.get_kernel_source()
        agrees(kernel, a, b, *transposed, bound=0 if dtype == "int8" else 1e-3)


@pytest.mark.parametrize(
    ("arch", "dtype", "most"),
    [("gfx90a", "bfloat16", 1), ("gfx942", "bfloat16", 0.7), ("gfx950", "bfloat16", 1.35), ("gfx1100", "int8", 1.4),
     ("gfx942", "int8", 1.3), ("gfx1201", "float8_e4m3fn", 1.2)],
)  # fmt: skip
def test_transposed_operands_take_few_instructions(arch, dtype, most):
    """Reads and stores of LDS are vectors, and a wave waits for no load of the next step."""
    deep = (32 if arch in ("gfx90a", "gfx1100", "gfx1201") else 64) * 16 // DTYPES[dtype].bits
    options = {"accumulator": "int32"} if dtype == "int8" else {}
    kernel = on(arch, matmul).compile(
        *operands(1024, 1024, 1024, dtype, True, False), dtype=dtype, out=options.get("accumulator", "float32"),
        block=(128, 128, deep), threads=256, transpose_A=True, transpose_B=False, **options,
    )  # fmt: skip
    hottest = hottest_loop(kernel.ptx())
    narrow = [name for name in hottest.names if re.match(r"ds_(read|write|load|store)_(u16|b16|u8|b8)", name)]
    assert narrow == [] and sum(name.startswith("ds_") for name in hottest.names) <= 64
    assert not waits_before_products(hottest) and vector(hottest) <= most * hottest.products
    (resources,) = kernel.resources().values()
    assert resources["scratch_bytes"] == 0 and resources["waves"] >= 2


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    ("K", "N", "threads"), [(64, 128, 256), (32, 128, 256), (128, 128, 256), (64, 64, 128), (32, 256, 128)]
)
def test_transposed_tiles_are_stored_and_read_without_conflicts(K, N, threads, bits):
    """A wave's stores as its threads make them, and reads of 8 bytes of sixteen columns."""
    tile = Buffer("tile", (K, N), DTYPES["int8" if bits == 8 else "float16"], "shared")
    tensor = replace(tile, name="tensor", scope="global")
    way = _transposed_tile(Copy(whole(tensor), whole(tile)), threads)
    assert way is not None
    size = bits // 8
    run = way.stored.offset("register", np.zeros(K, int), np.arange(K))
    width = size * int(np.argmax(np.diff(run) != 1) + 1)  # bytes of a column that a thread stores at once
    together, stores, extra = 128 // width, 0, 0
    for register in range(0, way.stored.extent("register"), width // size):
        for first in range(0, threads, together):
            n, k = way.stored.coordinates(thread=first + np.arange(together), register=np.full(together, register))
            extra += bank_conflicts(way.memory.offset("memory", n, k) * size, width, BANKS)
            stores += 1
    assert extra <= (0 if width == 8 else stores)  # halves of runs lie in every other bank
    for first in range(0, N, 16):
        for k in range(0, K, 8 // size):
            assert (
                bank_conflicts(way.memory.offset("memory", first + np.arange(16), np.full(16, k)) * size, 8, BANKS) == 0
            )
