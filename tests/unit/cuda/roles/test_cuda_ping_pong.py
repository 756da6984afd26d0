"""Consumers that work at different tiles in turn: exact under every schedule, and refused with a reason where it cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_gemm import on
from ping_pong_programs import plain, programs
from specialized_attention import attention_expected
from specialized_base import integers, product

import tilewright.language as T
from tilewright.kernels.attention import AttentionTiles, flash_attention
from tilewright.kernels.dense_matmul import dense_matmul
from tilewright.kernels.tiles import Tiles
from tilewright.options import override
from tilewright.passes.context import Schedule
from tilewright.specialization import JITFunction
from tilewright.targets.cuda.compiler import compile_text

TWO, FOUR = "sm_90a -cores=2", "sm_90a -cores=4"


PROGRAMS = programs(64 * 5 - 6)
"""Five tiles a column for two blocks, or two pairs: one consumer has a tile more than the other."""

QUICK = ("0 columns of k, dealt", "200 columns of k, claimed", "through shared memory", "of different length")


def check(program, schedules):
    """Bits of the interpreter and of the emulator, which reports neither a race nor a wait for ever."""
    kernel = on(FOUR if "cluster" in program.options else TWO, program.kernel)
    kernel = kernel.compile(*program.inputs, **program.options)
    assert "grid: persistent" in kernel.explain() and "ping-pong schedule of two consumers" in kernel.explain()
    expected = program.expected(*program.inputs)
    assert np.array_equal(kernel.interpret(*program.inputs), expected)
    for schedule, seed in schedules:
        assert np.array_equal(kernel.emulate(*program.inputs, schedule=schedule, seed=seed), expected)


@pytest.mark.parametrize("program", [one for one in PROGRAMS if one.name in QUICK], ids=lambda program: program.name)
def test_some_programs(program):
    check(program, [("late", 0), ("random", 1)])


@pytest.mark.proof
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_all_programs_under_many_schedules(program):
    check(
        program, [("late", 0), ("early", 0), *(("random", seed) for seed in range(12)), ("explore", 0), ("explore", 1)]
    )


def test_fewer_tiles_than_consumers():
    """Where only the launch says how many there are: blocks with one tile, with two."""
    b = integers(64, 48, seed=1)
    kernel = on(TWO, plain).compile(integers(64, 48), b)
    for rows in (1, 128, 192):
        a = integers(rows, 48)
        schedule = "early" if rows == 128 else "late"
        assert np.array_equal(kernel.emulate(a, b, schedule=schedule), product(a, b.T).astype(np.float16))


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.proof)])
def test_attention_in_turn(causal):
    """Several channels, products of two kinds in flight; causal tiles are claimed."""
    heads = tuple(integers(1, count, rows, 64, seed=8) for count, rows in ((2, 150), (1, 201), (1, 201)))
    jitted = JITFunction(flash_attention.direct.function, f"cuda -arch={TWO}", Schedule(ping_pong=True))
    kernel = jitted.compile(*heads, dtype="float16", causal=causal, tiles=AttentionTiles(64, 32, 128))
    assert "ping-pong schedule of two consumers" in kernel.explain()
    expected = attention_expected(*heads, causal=causal)
    for schedule in ("late", "random"):
        assert np.allclose(kernel.emulate(*heads, schedule=schedule), expected, rtol=3e-3, atol=3e-3)


def test_a_turn_lasts_from_the_first_tile_received_to_the_last():
    """Results leave, and the last products are waited for, when the other consumer has its turn."""
    a, b = integers(640, 200), integers(64, 200, seed=1)
    text = on(FOUR, plain).compile(a, b).get_kernel_source()
    consumer = text[: text.index("setmaxnreg_dec")]
    events = ["named_barrier_sync(", "wgmma_ss<", "named_barrier_arrive(", "wgmma_wait<0>", "tma_store("]
    places = [consumer.index(one) for one in events]
    assert places == sorted(places)


def test_registers_and_products_in_flight():
    """Tiles of 192 accumulators a thread: none spilled, no product put in sequence by the assembler."""
    with override(target="cuda -arch=sm_90a"):
        tiles = Tiles(128, 192, 64, 4, 128, (1, 2), ping_pong=True)
        kernel = dense_matmul(4096, 512, "bfloat16", None, "bfloat16", tiles=tiles)
    assert "2 blocks along by share loads of B" in kernel.explain()
    binary = compile_text(kernel.get_kernel_source(), kernel.arch)
    assert binary.warnings == ()
    assert all(one.spill_store_bytes == 0 for one in binary.resources.values())


@pytest.mark.parametrize(
    "architecture, options, reason",
    [
        ("sm_80", {}, "the kernel is not divided into roles"),
        (FOUR, {"persistent": False}, "its blocks have one tile each, as the author asks"),
        (FOUR, {"persistent": "claim", "cluster": (1, 2), "block": (64, 128, 32)},
         "blocks of a cluster would have to claim the same tiles"),
        (FOUR, {"threads": 512, "block": (256, 32, 32)},
         "two consumers of 512 threads and a producer are more than the 1024 of a block"),
    ],
)  # fmt: skip
def test_refusals_say_why(architecture, options, reason):
    a, b = integers(640, 96), integers(256, 96, seed=1)
    with pytest.warns(UserWarning, match=f"without a ping-pong schedule: {reason}"):
        kernel = on(architecture, plain).compile(a, b, **options)
    assert "ping-pong schedule of two consumers" not in kernel.explain()
    expected = product(a, b.T).astype(np.float16)
    assert np.allclose(kernel.emulate(a, b), expected, rtol=1e-3)


def wide_results(A, B, columns=64):
    """Results pass through a shared tile; the number of rows is known."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, 128), threads=128, ping_pong=True) as (bx, by):
        a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((columns, 64), "float16")
        c, results = T.alloc_fragment((128, columns), "float32"), T.alloc_shared((128, columns), "float32")
        T.clear(c)
        for k in T.Pipelined(K // 64, num_stages=2):
            T.copy(A[by * 128, k * 64], a)
            T.copy(B[bx * columns, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, results)
        T.copy(results, C[by * 128, bx * columns])
    return C


@pytest.mark.parametrize(
    "rows, columns, reason",
    [
        (512, 64, "no block has a second tile"),
        (1280, 192, "the ring and the tiles of two consumers take 279552 bytes of 232448 of shared memory"),
    ],
)
def test_sizes_that_leave_no_room_for_two(rows, columns, reason):
    a, b = integers(rows, 64), integers(columns, 64, seed=1)
    with pytest.warns(UserWarning, match=reason):
        kernel = on(FOUR, wide_results).compile(a, b, columns=columns)
    assert np.array_equal(kernel.emulate(a, b), product(a, b.T))


def walked(A, B):
    """The author goes through the tiles."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(4, threads=128, ping_pong=True) as block:
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        for bx, by in T.Persistent([N // 64, M // 64], 4, block):
            T.clear(c)
            for k in T.Pipelined(K // 64, num_stages=2):
                T.copy(A[by * 64, k * 64], a)
                T.copy(B[bx * 64, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 64, bx * 64])
    return C


def test_loops_over_tiles_of_the_author():
    a, b = integers(384, 64), integers(64, 64, seed=1)
    with pytest.warns(UserWarning, match="how often consumer passes through loads is not said by one loop"):
        kernel = on(TWO, walked).compile(a, b)
    assert np.array_equal(kernel.emulate(a, b), product(a, b.T))
