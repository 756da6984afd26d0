"""Dense products of the library on Hopper: every type and order; the scales of their epilogues."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_gemm import operands, product

import tilewright
from tilewright.ir.walking import kernels as kernels_of
from tilewright.kernels.dense_matmul import dense_matmul, scaled_matmul
from tilewright.kernels.roofline import HOPPER
from tilewright.kernels.tile_choice import MANY, DenseProduct, fastest_alone, parts_for
from tilewright.kernels.tile_launches import BEGIN, Launch, cycles, cycles_of_parts
from tilewright.kernels.tiles import PROMOTED, Tiles
from tilewright.passes.context import Schedule
from tilewright.specialization import JITFactory

SMALL, E4M3 = Tiles(64, 32, 64, 2, 128), "float8_e4m3fn"
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 0.0, "float64": 0.0}
SUMS = {"float32": 2.0**-24, "float64": 2.0**-53}


def on_hopper(factory, *arguments, **named):
    return JITFactory(factory.function, None, "cuda -arch=sm_90a -cores=4", None)(*arguments, **named)


def filled(shape, dtype):
    """An output that holds values which nobody should see."""
    return np.full(shape, 77, tilewright.dtype(dtype).numpy)


def run(kernel, shape, out, *arguments, schedule=None):
    result = filled(shape, out)
    kernel.interpret(*arguments, result) if schedule is None else kernel.emulate(*arguments, result, schedule=schedule)
    return result.astype(np.float64 if tilewright.dtype(out).is_float else np.int64)


ORDERS = [(False, True), (False, False), (True, True), (True, False)]


def check_product(dtype, out, transpose_A=False, transpose_B=True, schedules=(None, "late")):
    M, N, K = 80, 48, 96
    a, b = operands(M, N, K, dtype, transpose_A, transpose_B)
    if dtype == "tfloat32":
        a, b = ((one.view(np.int32) & ~0x1FFF).view(np.float32) for one in (a, b))
    tiles = Tiles(64, 32, 32 if tilewright.dtype(dtype).bits >= 32 else 64, 2, 128)
    kernel = on_hopper(
        dense_matmul, N, K, dtype, out=out, transpose_A=transpose_A, transpose_B=transpose_B, tiles=tiles
    )
    exact, size = product(a, b, transpose_A, transpose_B)
    for schedule in schedules:
        found = run(kernel, (M, N), out, a, b, schedule=schedule)
        if out == "int32":
            assert np.array_equal(found, exact)
        else:
            sums = 2.0**-12 if "float8" in dtype else SUMS.get(out, 2.0**-24)
            assert (np.abs(found - exact) <= (K + 2) * sums * size + ROUNDING[out] * np.abs(exact)).all()
    return kernel.explain()


@pytest.mark.parametrize(
    "dtype, out, instruction",
    [
        ("uint8", "int32", "wgmma_ss"), ("float8_e4m3fn", "bfloat16", "wgmma_ss"), ("float8_e5m2", "float32", "wgmma_ss"),
        ("tfloat32", "float32", "wgmma_ss"), ("float64", "float64", "mma_m16n8k8"),
    ],
)  # fmt: skip
def test_types(dtype, out, instruction):
    assert instruction in check_product(dtype, out)


@pytest.mark.parametrize("transpose_A, transpose_B", ORDERS)
def test_orders_of_halves(transpose_A, transpose_B):
    assert "wgmma_ss" in check_product("bfloat16", "bfloat16", transpose_A, transpose_B, ("late",))


@pytest.mark.parametrize(
    "order, turned, by_lanes, kernels",
    [
        ("nn", True, True, 1),
        ("nn", False, False, 2),
        ("tt", False, True, 1),
        ("tn", False, True, 2),
        ("tn", True, True, 2),
    ],
)
def test_orders_of_bytes(order, turned, by_lanes, kernels):
    # The instruction reads bytes along k only: of operands that lie the other way lanes turn its left one, a kernel the other.
    transpose_A, transpose_B = order[0] == "t", order[1] == "t"
    instruction = "wgmma_rs" if by_lanes else "wgmma_ss"
    M, N, K = 80, 72, 304
    for dtype, out in (("int8", "int32"), ("float8_e4m3fn", "bfloat16")):
        a, b = operands(M, N, K, dtype, transpose_A, transpose_B)
        kernel = on_hopper(
            dense_matmul, N, K, dtype, None, out, transpose_A, transpose_B, Tiles(64, 64, 128, 2, 128, swapped=turned)
        )
        assert instruction in kernel.explain() and kernel.get_kernel_source().count("TW_KERNEL") == kernels
        exact, size = product(a, b, transpose_A, transpose_B)
        found = run(kernel, (M, N), out, a, b, schedule="late")
        if out == "int32":
            assert np.array_equal(found, exact)
        else:
            assert (np.abs(found - exact) <= (K + 2) * 2.0**-12 * size + ROUNDING[out] * np.abs(exact)).all()


def test_the_operand_that_lanes_turn_gives_the_rows_of_the_instruction():
    for transposed in (False, True):
        program = dense_matmul.trace(8192, 8192, "int8", None, None, transposed, transposed)
        parts = DenseProduct(8192, 8192, "int8", swapped=not transposed).fastest_parts(MANY)
        assert len(list(kernels_of(program.function))) == len(parts)  # none that turns an operand beforehand


@pytest.mark.parametrize(
    "dtype, out, scale_A, scale_B, bias, M",
    [
        ("int8", "bfloat16", "token", "channel", False, 130), ("int8", "float16", "tensor", "channel", True, 1),
        ("float8_e4m3fn", "bfloat16", "tensor", "tensor", False, 64), ("int8", "float32", "token", "tensor", True, 65),
    ],
)  # fmt: skip
def test_scales(dtype, out, scale_A, scale_B, bias, M):
    N, K = 72, 144
    a, b = operands(M, N, K, dtype)
    rng = np.random.default_rng(1)
    scales_A = rng.uniform(0.005, 0.02, M if scale_A == "token" else 1).astype(np.float32)
    scales_B = rng.uniform(0.005, 0.02, N if scale_B == "channel" else 1).astype(np.float32)
    more = [rng.standard_normal(N).astype(np.float32)] if bias else []
    kernel = on_hopper(scaled_matmul, N, K, dtype, out=out, scale_A=scale_A, scale_B=scale_B, bias=bias, tiles=SMALL)
    assert "wgmma_ss" in kernel.explain() and "tma_store" in kernel.get_kernel_source()
    sums, size = product(a, b)
    factors = scales_A.astype(np.float64)[:, None] * scales_B.astype(np.float64)
    exact = sums * factors + (more[0] if bias else 0.0)
    unit = 2.0**-12 * K if "float8" in dtype else 2.0**-22
    bound = unit * (size * factors + 8) + ROUNDING[out] * np.abs(exact)
    for schedule in (None, "early"):
        found = run(kernel, (M, N), out, a, b, scales_A, scales_B, *more, schedule=schedule)
        assert (np.abs(found - exact) <= bound).all()


@pytest.mark.parametrize(
    "tiles, orders, out",
    [
        (Tiles(80, 64, 64, 3, 128, (2, 1), swapped=True), (False, True), "bfloat16"),
        (Tiles(48, 128, 64, 3, 256, persistent=False, swapped=True), (True, False), "bfloat16"),
        (Tiles(32, 64, 64, 3, 128, (1, 2), swapped=True), (False, True), "float32"),
        (Tiles(48, 128, 64, 3, 256, None, 2, False, swapped=True), (False, False), "bfloat16"),
        (Tiles(40, 128, 64, 3, 128, (1, 2), ping_pong=True, swapped=True), (False, True), "bfloat16"),
        (Tiles(24, 64, 64, 3, 128, (2, 1), ping_pong=True, swapped=True), (False, True), "bfloat16"),
    ],
)  # fmt: skip
def test_rows_of_b_as_rows_of_the_instruction(tiles, orders, out):
    M, N, K = 100, 264, 160
    a, b = operands(M, N, K, "bfloat16", *orders)
    kernel = on_hopper(dense_matmul, N, K, "bfloat16", None, out, *orders, tiles=tiles)
    stored = "transpose: stmatrix and tma_store" in kernel.explain()
    assert stored == (out == "bfloat16" and tiles.splits == 1)
    exact, size = product(a, b, *orders)
    for schedule in (None, "late"):
        found = run(kernel, (M, N), out, a, b, schedule=schedule)
        assert (np.abs(found - exact) <= (K + 2) * SUMS["float32"] * size + ROUNDING[out] * np.abs(exact)).all()


@pytest.mark.parametrize("splits", [1, 2])
def test_scales_of_sums_that_leave_transposed(splits):
    M, N, K = 100, 136, 288
    a, b = operands(M, N, K, "int8")
    rng = np.random.default_rng(1)
    scales_A, scales_B = (rng.uniform(0.005, 0.02, size).astype(np.float32) for size in (M, N))
    bias = rng.standard_normal(N).astype(np.float32)
    tiles = Tiles(48, 64, 128, 3, 128, None if splits > 1 else (1, 1), splits, False, swapped=True)
    kernel = on_hopper(scaled_matmul, N, K, "int8", bias=True, tiles=tiles)
    sums, _ = product(a, b)
    exact = sums * (scales_A.astype(np.float64)[:, None] * scales_B) + bias
    for schedule in (None, "early"):
        found = run(kernel, (M, N), "bfloat16", a, b, scales_A, scales_B, bias, schedule=schedule)
        assert (np.abs(found - exact) <= 2.0**-8 * np.abs(exact) + 2.0**-20).all()


def test_a_persistent_grid_waits_for_the_kernel_before_once():
    """A wait in every tile took the product of turned bytes 5% longer; and the loads are one thread's, the wait included."""
    tiles = Tiles(128, 256, 128, 4, 256, (1, 1))
    kernel = on_hopper(dense_matmul, 512, 256, "int8", transpose_B=False, tiles=tiles)
    text = kernel.get_kernel_source()
    loads = text[text.index("setmaxnreg_dec") :]
    assert "grid: persistent" in kernel.explain()
    assert loads.index("thread == 0") < loads.index("griddepcontrol_wait") < loads.index("iteration = 0")
    assert loads.count("thread == 0") == 1


@pytest.mark.parametrize("transpose_B", [True, False])
def test_columns_that_make_no_whole_wave_are_a_part_of_their_own(transpose_B):
    M, N, K = 80, 72, 96
    a, b = operands(M, N, K, "bfloat16", False, transpose_B)
    parts = ((32, Tiles(64, 32, 64, 2, 128)), (40, Tiles(64, 16, 64, 2, 128)))
    kernel = on_hopper(dense_matmul, N, K, "bfloat16", out="float32", transpose_B=transpose_B, tiles=parts)
    text = kernel.get_kernel_source()
    assert text.count("TW_KERNEL") == 2
    # The second part begins beside the end of the first.
    beside = (
        text.index("griddepcontrol_launch_dependents") < text.rindex("TW_KERNEL") < text.index("griddepcontrol_wait")
    )
    assert beside and text.rstrip().endswith("tw::griddepcontrol_wait();\n}")
    exact, size = product(a, b, False, transpose_B)
    for schedule in (None, "late"):
        found = run(kernel, (M, N), "float32", a, b, schedule=schedule)
        assert (np.abs(found - exact) <= (K + 2) * SUMS["float32"] * size).all()


def test_the_last_wave_is_cut_smaller_where_that_saves_cycles():
    M, N, K = 2084, 4864, 5888
    (columns, large), (rest, small) = parts = DenseProduct(N, K).fastest_parts(M)
    assert columns + rest == N and columns % large.block_N == 0
    assert -(-columns // large.block_N) * -(-M // large.block_M) % HOPPER.cores == 0
    assert small.block_M * small.block_N < large.block_M * large.block_N
    assert cycles_of_parts(parts, M, K) < 0.99 * cycles(fastest_alone(DenseProduct(N, K), M)[0][0], M, N, K, HOPPER)


def test_blocks_of_a_second_part_begin_where_the_first_leaves_room():
    """132 multiprocessors, of which the first part leaves two alone, and the others at 900 and 1000 cycles behind its start."""
    START = HOPPER.rates.launch
    first = Launch(START + 1000.0, 130, 10, 1250)
    assert first.free(HOPPER) == [(0.0, 2), (START + 900.0, 50), (START + 1000.0, 80)]
    for blocks, end in ((2, 1000), (52, 1000), (54, 1000 + 100), (60, 1000 + 100)):
        second = Launch(START - BEGIN + 100.0, blocks, 1, blocks)
        assert first.beside(second, HOPPER) <= START + end
    assert first.beside(Launch(START - BEGIN + 50000.0, 132, 1, 132), HOPPER) == START + 51000


@pytest.mark.parametrize(
    "tiles",
    [Tiles(64, 80, 64, 2, 128), Tiles(128, 112, 64, 2, 256, None, 1, False), Tiles(176, 64, 64, 2, 128, swapped=True)],
    ids=str,
)
def test_results_of_any_width_leave_in_wide_boxes(tiles):
    """What is left of an instruction's columns leaves through part of a box."""
    M, N, K = 200, 200, 96
    a, b = operands(M, N, K, "bfloat16")
    kernel = on_hopper(dense_matmul, N, K, "bfloat16", out="bfloat16", tiles=tiles)
    assert "boxes of 64 x 64" in kernel.explain() or "boxes of 96 x 64" in kernel.explain()
    exact, size = product(a, b)
    for schedule in ("late", "early"):
        found = run(kernel, (M, N), "bfloat16", a, b, schedule=schedule)
        assert (np.abs(found - exact) <= ROUNDING["bfloat16"] * np.abs(exact) + (K + 2) * SUMS["float32"] * size).all()


@pytest.mark.parametrize(
    "tiles, boxes",
    [
        (Tiles(8, 64, 64, 2, 128, swapped=True), 8),
        (Tiles(40, 64, 64, 2, 128, (1, 1), 1, False, swapped=True), 40),
        (Tiles(72, 128, 64, 2, 256, (2, 1), swapped=True), 48),
        (Tiles(104, 192, 64, 2, 384, swapped=True), 64),  # in a loop over tiles two boxes alternate
        (Tiles(152, 64, 64, 2, 128, swapped=True), 80),
    ],
    ids=str,
)
@pytest.mark.parametrize("operands_of", ["bfloat16", "bytes across"])
def test_transposed_results_of_odd_eights_of_columns_leave_in_boxes(tiles, boxes, operands_of):
    """The last eight columns are packed alone, by the instruction for halves or as neighbours of turned bytes."""
    M, N, K = 200, 200, 160
    across = operands_of != "bfloat16"
    dtype = "float8_e4m3fn" if across else "bfloat16"
    tiles = replace(tiles, block_K=128) if across else tiles
    a, b = operands(M, N, K, dtype, False, not across)
    kernel = on_hopper(dense_matmul, N, K, dtype, out="bfloat16", transpose_B=not across, tiles=tiles)
    assert f"boxes of {boxes} x 64" in kernel.explain()
    exact, size = product(a, b, False, not across)
    sums = 2.0**-12 if across else SUMS["float32"]
    for schedule in ("late", "early"):
        found = run(kernel, (M, N), "bfloat16", a, b, schedule=schedule)
        assert (np.abs(found - exact) <= ROUNDING["bfloat16"] * np.abs(exact) + (K + 2) * sums * size).all()


def test_tiles_follow_the_size():
    assert fastest_alone(DenseProduct(4096, 4096, "float64"), 4096)[0][0] == Tiles(128, 64, 16, 4, 128)
    assert fastest_alone(DenseProduct(8192, 8192), 8192)[0][0] == Tiles(192, 256, 64, 3, 256, (1, 2), swapped=True)
    assert fastest_alone(DenseProduct(4096, 4096), 4096)[0][0] == Tiles(128, 256, 64, 4, 256, (1, 1))
    assert fastest_alone(DenseProduct(4096, 4096), 64)[0][0].block_M <= 64
    assert fastest_alone(DenseProduct(4096, 512), 8192)[0][0].ping_pong
    assert fastest_alone(DenseProduct(8192, 1024, "int8"), 8192)[0][0].ping_pong
    # There tiles of two consumers make no whole waves.
    assert not fastest_alone(DenseProduct(4096, 4096), 4096)[0][0].ping_pong


def blocks(M, N, K, seed=0):
    """Operands of a block-scaled product, and its exact value."""
    a, b = operands(M, N, K, "float8_e4m3fn", seed=seed)
    rng = np.random.default_rng(seed)
    scales_A = rng.uniform(0.5, 2, (-(-K // 128), M)).astype(np.float32)
    scales_B = rng.uniform(0.5, 2, (-(-N // 128), -(-K // 128))).astype(np.float32)
    wide_A = a.astype(np.float64) * np.repeat(scales_A.T, 128, 1)[:, :K]
    wide_B = b.astype(np.float64) * np.repeat(np.repeat(scales_B, 128, 0)[:N], 128, 1)[:, :K]
    return (a, b, scales_A, scales_B), wide_A @ wide_B.T, np.abs(wide_A) @ np.abs(wide_B).T


@pytest.mark.parametrize(
    "M, N, tiles",
    [
        (200, 192, Tiles(128, 64, 128, 2, 256)), (130, 72, Tiles(64, 32, 128, 2, 128)),
        (260, 128, Tiles(256, 64, 128, 2, 256, (2, 1))), (5, 256, Tiles(64, 256, 128, 1, 256)),
        (70, 328, Tiles(72, 192, 128, 2, 384, (2, 1), swapped=True)), (50, 200, Tiles(40, 128, 128, 2, 256, swapped=True)),
        (90, 328, ((192, Tiles(64, 192, 128, 2, 384, swapped=True)), (136, Tiles(64, 128, 128, 2, 256)))),
        (90, 200, Tiles(64, 64, 128, 2, 128, (1, 1), 2, swapped=True)),
        (150, 328, Tiles(152, 128, 128, 3, 256, swapped=True)), (70, 200, Tiles(64, 64, 128, 3, 128)),
    ],
    ids=str,
)  # fmt: skip
def test_blocks_are_scaled_and_promoted(M, N, tiles):
    K = 256
    arguments, exact, size = blocks(M, N, K)
    kernel = on_hopper(scaled_matmul, N, K, E4M3, scale_A="group", scale_B="block", tiles=tiles)
    assert "wgmma_ss" in kernel.explain()
    assert "tma_load into of_group_ring" in kernel.explain()  # by the one thread that loads the operands
    for schedule in (None, "late"):
        found = run(kernel, (M, N), "bfloat16", *arguments, schedule=schedule)
        assert (np.abs(found - exact) <= 128 * 2.0**-14 * size + ROUNDING["bfloat16"] * np.abs(exact)).all()


def test_threads_read_the_slots_that_a_persistent_grid_goes_on_with():
    # Five tiles of two steps each go through three slots: the second tile begins in the third.
    M, N, K = 320, 32, 256
    arguments, exact, size = blocks(M, N, K)
    factory = JITFactory(scaled_matmul.function, None, "cuda -arch=sm_90a -cores=2", Schedule(persistent=True))
    kernel = factory(N, K, E4M3, scale_A="group", scale_B="block", tiles=Tiles(64, 32, 128, 3, 128))
    assert "grid: persistent" in kernel.explain()
    found = run(kernel, (M, N), "bfloat16", *arguments, schedule="late")
    assert (np.abs(found - exact) <= 128 * 2.0**-14 * size + ROUNDING["bfloat16"] * np.abs(exact)).all()


@pytest.mark.parametrize(
    "scale_A, bias, M, N, K",
    [("group", True, 70, 72, 336), ("token", True, 40, 40, 144), ("tensor", False, 40, 40, 144)],
)
def test_blocks_with_tails_by_every_scale_of_the_activation(scale_A, bias, M, N, K):
    (a, b, _, scales_B), _, _ = blocks(M, N, K)
    rng = np.random.default_rng(2)
    shape = {"group": (-(-K // 128), M), "token": (M,), "tensor": (1,)}[scale_A]
    scales_A, more = rng.uniform(0.5, 2, shape).astype(np.float32), [rng.standard_normal(N).astype(np.float32)] * bias
    rows = np.repeat(scales_A.T, 128, 1)[:, :K] if scale_A == "group" else scales_A[:, None]
    wide_A, wide_B = (
        a * rows.astype(np.float64),
        b * np.repeat(np.repeat(scales_B, 128, 0)[:N], 128, 1)[:, :K].astype(np.float64),
    )
    exact, size = wide_A @ wide_B.T + (more[0] if bias else 0.0), np.abs(wide_A) @ np.abs(wide_B).T
    tiles = Tiles(64, 32, 128, 2, 128)
    kernel = on_hopper(scaled_matmul, N, K, E4M3, scale_A=scale_A, scale_B="block", bias=bias, tiles=tiles)
    assert "wgmma_ss" in kernel.explain()
    for schedule in (None, "late"):
        found = run(kernel, (M, N), "bfloat16", a, b, scales_A, scales_B, *more, schedule=schedule)
        assert (np.abs(found - exact) <= 128 * 2.0**-14 * size + ROUNDING["bfloat16"] * np.abs(exact)).all()


@pytest.mark.parametrize(
    "M, N", [(4096, 7168), (4096, 576), (600, 7168), (300, 2112), (64, 24576), (128, 7168), (1, 128)]
)
def test_tiles_of_blocks_have_room_for_their_scales(M, N):
    for _, tiles in parts_for(DenseProduct(N, 7168, E4M3, promoted=True, in_blocks=True), M):
        factors = tiles.block_M // 4 if tiles.swapped else 0
        assert 2 * tiles.block_M * tiles.block_N // tiles.threads + factors <= 2 * PROMOTED[tiles.threads]
        assert tiles.swapped or tiles.block_N % 128 == 0 or 128 % tiles.block_N == 0


def test_factors_are_loaded_while_products_are_made():
    kinds = {"scale_A": "group", "scale_B": "block"}
    text = on_hopper(
        scaled_matmul, 256, 512, E4M3, **kinds, tiles=Tiles(128, 64, 128, 2, 256, (1, 1))
    ).get_kernel_source()
    loop = text[text.index("setmaxnreg_inc") : text.index("tma_store")]
    steps = [loop.index(word) for word in ("wgmma_ss", "of_group_ring", "scales_B[", "wgmma_wait")]
    assert steps == sorted(steps)
