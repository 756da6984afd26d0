"""Products of runs of rows with a weight each, against exact sums; runs that are empty, short, and longer than a tile."""

import numpy as np
import pytest

from tilewright.errors import WrongArgumentShape
from tilewright.ir.dtypes import ALL
from tilewright.kernels.grouped_matmul import group_tiles, grouped_matmul
from tilewright.kernels.roofline import hopper_speed
from tilewright.kernels.tiles import Tiles
from tilewright.matmul import PackedExperts, PackedWeight
from tilewright.matmul.grouped_calls import GroupedCall
from tilewright.options import override
from tilewright.quant import quantize

RNG = np.random.default_rng(0)
HOPPER = "cuda -arch=sm_90a"


def product(a, b, sizes, factors=None):
    """Sums in float64, row by row with its expert's weight."""
    of = np.repeat(np.arange(len(sizes)), sizes)
    wide = np.stack([b[e].astype(np.float64) @ row.astype(np.float64) for e, row in zip(of, a)])
    return wide if factors is None else wide * factors[0][:, None] * factors[1][of]


@pytest.mark.parametrize(
    "tiles, blocks, dtype, scaled, sizes",
    [
        (Tiles(128, 64, 64, 3), 3, "bfloat16", False, (140, 0, 5, 128)),
        (Tiles(128, 64, 64, 2, cluster=(1, 2)), 4, "float16", False, (260, 1, 0)),
        (Tiles(128, 64, 128, 2, cluster=(2, 1)), 4, "int8", True, (0, 129, 63)),
        (Tiles(64, 128, 128, 2, swapped=True), 3, "int8", True, (0, 65, 63)),
        (Tiles(16, 64, 128, 3, 128, swapped=True), 3, "float8_e4m3fn", True, (17, 3, 0, 1)),
        (Tiles(8, 128, 64, 2, swapped=True), 2, "bfloat16", False, (3,) * 6),
    ],
    ids=str,
)
@pytest.mark.parametrize("N", [96])
def test_runs_of_rows(tiles, blocks, dtype, scaled, sizes, N):
    M, K, experts = sum(sizes), 192, len(sizes)
    a, b = (RNG.integers(-3, 4, shape).astype(ALL[dtype].numpy) for shape in ((M, K), (experts, N, K)))
    factors = tuple(np.exp2(RNG.integers(-2, 3, shape)).astype(np.float32) for shape in (M, (experts, N)))
    with override(target=HOPPER):
        kernel = grouped_matmul(experts, N, K, dtype, "float32", scaled, tiles, blocks)
    exact = product(a, b, sizes, factors if scaled else None)
    # A row behind the last run stays as it was.
    given = np.concatenate([a, a[:1]])
    factors = (np.append(factors[0], np.float32(1)), factors[1])
    for way in (kernel.interpret, kernel.emulate):
        found = np.full((M + 1, N), 77, np.float32)
        way(given, b, *(factors if scaled else ()), np.array(sizes, np.int32), found)
        assert np.array_equal(found[:M], exact)
        assert (found[M] == 77).all()


@pytest.mark.parametrize("cores", [78, 114, 132])
def test_tiles_fit_their_runs(cores):
    """Few rows swap the operands, long runs do not; rings fit shared memory."""
    chosen = {}
    for rows in (1, 5, 8, 9, 33, 64, 65, 300, 2000):
        for N in (256, 4096):
            found = group_tiles(64, rows, N, 4096, speed=hopper_speed(cores))
            assert all(one.stages >= 2 and one.stages * (one.block_M + one.block_N) * 128 < 227 << 10 for one in found)
            chosen[rows, N] = found[0]
    assert chosen[5, 4096].swapped and chosen[5, 4096].block_M <= 16
    if cores != 78:  # an H20 multiplies so slowly that rows behind a run's end cost it more than reading weights again
        assert not chosen[300, 4096].swapped and chosen[2000, 4096].cluster != (1, 1)
    assert chosen[64, 256].block_M <= 64


def stacked(format: str, **options):
    made = [quantize(RNG.standard_normal((40, 128)), format, **options) for _ in range(3)]
    return PackedExperts([PackedWeight.pack(weight) for weight in made]), [weight.to_dense() for weight in made]


@pytest.mark.parametrize("to", ["int8", "e4m3"])
def test_one_launch_with_quantised_activations(to):
    experts, dense = stacked(to, group=None)
    x, sizes = RNG.standard_normal((12, 128)).astype(np.float32), [5, 0, 7]
    quantised = "int8" if to == "int8" else "float8_e4m3fn"
    call = GroupedCall.of(x, experts, sizes, None, quantised, None, target=HOPPER)
    assert isinstance(call, GroupedCall)
    exact = product(x, np.stack(dense), sizes)
    assert np.abs(call.emulate() - exact).max() < (0.02 if to == "int8" else 0.08) * np.abs(exact).max()


FEW_BLOCKS = {
    "tokens": 16, "tiles": 1, "records": 1, "stages": 2, "halves": 2, "weight_stages": 2, "sharing": 1, "band": 1,
    "promoted": False, "blocks": 3,
}  # fmt: skip
"""Options of the kernel that decodes, quick to emulate."""


@pytest.mark.parametrize("format, group", [("int4", 64), ("nf4", 128), ("uint2", 128)])
def test_one_launch_of_low_bit_weights(format, group):
    experts, dense = stacked(format, group=group)
    x, sizes = (RNG.standard_normal((12, 128))).astype(np.float16), [5, 0, 7]
    call = GroupedCall.of(x, experts, sizes, None, None, "float32", target=HOPPER, chosen=FEW_BLOCKS)
    assert isinstance(call, GroupedCall)
    exact = product(x, np.stack(dense), sizes)
    assert np.abs(call.emulate() - exact).max() < 2e-3 * np.abs(exact).max()


@pytest.mark.parametrize("format, group, quantised", [("int4", 128, None), ("int8", None, "int8")])
def test_a_bias_of_each_expert_and_gates(format, group, quantised):
    experts, dense = stacked(format, group=group)
    x, sizes = RNG.standard_normal((12, 128)).astype(np.float16), [5, 0, 7]
    bias = RNG.standard_normal((3, 40)).astype(np.float16)
    chosen = None if quantised else FEW_BLOCKS
    call = GroupedCall.of(x, experts, sizes, None, quantised, "float32", bias, "swiglu", target=HOPPER, chosen=chosen)
    assert isinstance(call, GroupedCall)
    sums = product(x, np.stack(dense), sizes) + np.repeat(bias.astype(np.float64), sizes, axis=0)
    exact = sums[:, ::2] / (1 + np.exp(-sums[:, ::2])) * sums[:, 1::2]
    found = call.emulate()
    assert found.shape == (12, 20)
    assert np.abs(found - exact).max() < (0.02 if quantised else 2e-3) * np.abs(exact).max()


def test_what_one_launch_does_not_serve_is_said():
    experts, _ = stacked("int4", group=24)
    x = np.zeros((3, 128), np.float16)
    found = GroupedCall.of(x, experts, [1, 1, 1], None, None, None, target=HOPPER)
    assert found == "scaled: float16 by int4 is decoded first; fragments: activations that are arranged first"


def test_experts_of_different_forms_are_not_stacked():
    one = PackedWeight.pack(quantize(RNG.standard_normal((4, 32)), "int4", group=32))
    other = PackedWeight.pack(quantize(RNG.standard_normal((4, 32)), "int8", group=32))
    with pytest.raises(
        WrongArgumentShape, match=r"weight 1 is <PackedWeight 4 x 32 int8 .*, weight 0 <PackedWeight 4 x 32 int4"
    ):
        PackedExperts([one, other])
