"""Records of weights that torch holds, against those of the same weight in NumPy's arrays, byte for byte."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.ir.dtypes import ALL  # noqa: E402
from tilewright.matmul import PackedWeight  # noqa: E402
from tilewright.matmul.tiers import bytes as byte_tier  # noqa: E402
from tilewright.matmul.tiers.records import can_be_lifted, coding_of, form_of, records_of, scales_and_zeros  # noqa: E402
from tilewright.matmul.tiers.scaled import channel_scales  # noqa: E402
from tilewright.quant import QuantizedWeight, quantize  # noqa: E402
from tilewright.runtime.tensors import as_numpy  # noqa: E402


@pytest.mark.parametrize("size", [1.0, 1e-7, 1e4])
@pytest.mark.parametrize(
    "format, options",
    [
        ("int4", {"group": 64}),
        ("uint4", {"group": 32, "zeros": "group"}),
        ("int4", {"group": None}),
        ("int3", {"group": 256}),
        ("nf4", {"group": 48}),
        ("int4", {"block": (4, 64)}),
    ],
)
@pytest.mark.parametrize("activations", ["float16", "bfloat16"])
def test_scales_stay_where_they_are(format, options, size, activations):
    made = quantize(
        np.random.default_rng(0).standard_normal((20, 300)) * size, format, scale_dtype=activations, **options
    )
    held = PackedWeight.pack(made)
    form, coding = form_of(held.facts, activations), coding_of(made.format, ALL[activations])
    expected, found = records_of(held, form, coding, np.zeros(1)), records_of(held.to("cpu"), form, coding, np.zeros(1))
    assert np.array_equal(found.words, expected.words)
    assert found.factor == expected.factor


def test_usual_scales_are_not_brought_to_the_host():
    made = quantize(np.random.default_rng(0).standard_normal((20, 256)), "int4", group=128, scale_dtype="float16")
    held = PackedWeight.pack(made).to("cpu")
    parts, factor = scales_and_zeros(held, form_of(held.facts, "float16"))
    assert torch.is_tensor(parts["scales"])
    assert np.log2(factor) % 1 == 0  # as large as there is room for, so that codes can be lifted


@pytest.mark.parametrize("activations", ["float16", "bfloat16"])
@pytest.mark.parametrize(("ratio", "near"), [(2.0**-7, True), (2.0**-9, False)])
def test_codes_are_lifted_where_scales_are_near_one_another(activations, ratio, near):
    made = quantize(np.random.default_rng(0).standard_normal((20, 256)), "int4", group=128, scale_dtype=activations)
    scales = np.full_like(made.scales, 0.25)
    scales[3, 1] *= ratio
    scales[4, 0] = 0
    held = PackedWeight.pack(dataclasses.replace(made, scales=scales))
    form = form_of(held.facts, activations)
    found = {can_be_lifted(one, form) for one in (held, held.to("cpu"))}
    assert found == {near or activations == "bfloat16"}  # which has room for all
    far = dataclasses.replace(made, scales=np.full_like(made.scales, 2.0**11))
    assert can_be_lifted(PackedWeight.pack(far), form) == (activations == "float16")  # whose scales are made smaller


@pytest.mark.parametrize("block", [(1, 300), (0, 0), (8, 300)], ids=["channels", "tensor", "rows by eight"])
@pytest.mark.parametrize("scale_dtype", ["float32", "float16"])
def test_scales_of_channels_stay_where_they_are(block, scale_dtype):
    numbers = np.random.default_rng(0).standard_normal((20, 300))
    made = quantize(numbers, "int8", block=block, scale_dtype=scale_dtype)
    made = dataclasses.replace(made, tensor_scale=0.3)
    held = PackedWeight.pack(made)
    found = channel_scales(held.to("cpu"), torch.zeros(1))
    assert np.array_equal(found.numpy(), channel_scales(held, np.zeros(1))) and found.is_contiguous()


RESCALED = quantize(np.random.default_rng(0).standard_normal((20, 300)), "uint4", group=64, zeros="group")
OTHERS = {
    "float32 scales": quantize(np.random.default_rng(1).standard_normal((20, 300)), "int4", group=64),
    "tiny": quantize(np.random.default_rng(1).standard_normal((20, 300)) * 1e-6, "int4", group=64),
    "e8m0": quantize(np.random.default_rng(2).standard_normal((20, 300)), "mxfp4"),
    "e4m3": quantize(np.random.default_rng(3).standard_normal((20, 300)), "nvfp4"),
    "blocks": quantize(np.random.default_rng(4).standard_normal((200, 300)), "fp8_block"),
    "tensor": quantize(np.random.default_rng(5).standard_normal((20, 300)), "int8", block=(0, 0)),
    "rescaled zeros": QuantizedWeight(
        RESCALED.codes, RESCALED.format, RESCALED.scales, RESCALED.zeros * RESCALED.scales, "rescale", RESCALED.block
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("activations", ["float16", "bfloat16"])
def test_scales_of_other_types_are_rounded_alike(kind, activations):
    made = OTHERS[kind]
    held = PackedWeight.pack(made)
    form, coding = form_of(held.facts, activations), coding_of(made.format, ALL[activations])
    expected, found = records_of(held, form, coding, np.zeros(1)), records_of(held.to("cpu"), form, coding, np.zeros(1))
    assert np.array_equal(found.words, expected.words)
    assert found.factor == expected.factor


TWO_LEVELS = QuantizedWeight(
    np.random.default_rng(6).integers(0, 16, (20, 256)).astype(np.uint8), "int4", np.full((20, 1), 0.25, np.float32),
    multipliers=np.random.default_rng(7).integers(1, 9, (20, 8)).astype(np.int8), block=(1, 32),
)  # fmt: skip
OF_BYTES = {
    **OTHERS,
    "two levels": TWO_LEVELS,
    "zeros": RESCALED,
    "channel": quantize(np.eye(20, 256), "int4", group=None),
}


PAIRS = [(kind, activations) for kind in OF_BYTES for activations in ("int8", "float8_e4m3fn")]
ELSEWHERE = [("e8m0", "int8"), ("e4m3", "int8"), ("blocks", "int8"), ("tensor", "float8_e4m3fn")]
"""Small floats beside integers and int8 beside floats: other tiers serve them."""


def test_the_pairs_that_are_decoded_elsewhere():
    codings = {(kind, of): byte_tier.byte_coding_of(OF_BYTES[kind].format, of) for kind, of in PAIRS}
    assert [pair for pair, coding in codings.items() if coding is None] == ELSEWHERE


@pytest.mark.parametrize(("kind", "activations"), [pair for pair in PAIRS if pair not in ELSEWHERE])
def test_weights_for_8_bit_activations_are_held_alike(kind, activations):
    held = PackedWeight.pack(OF_BYTES[kind])
    coding = byte_tier.byte_coding_of(held.format, activations)
    assert coding is not None
    expected, found = byte_tier.plan_of(held, coding), byte_tier.plan_of(held.to("cpu"), coding)
    assert (found.form, found.zeros, found.offset, found.by_channel) == (
        expected.form, expected.zeros, expected.offset, expected.by_channel,
    )  # fmt: skip
    assert np.array_equal(as_numpy(found.of_channels), expected.of_channels)
    words = [byte_tier.words(held, plan, coding, np.zeros(1)) for plan in (expected, found)]
    assert np.array_equal(*words)
