"""Quantising weights: codes round to nearest, stay in range, and stand for what they were made from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import CannotQuantize
from tilewright.formats import SCHEMES, number_format, unpack_plain
from tilewright.quant import quantize

KINDS = [("int2", "none"), ("int3", "none"), ("int4", "none"), ("int6", "none"), ("int8", "none"), ("uint2", "middle"),
         ("uint4", "middle"), ("uint5", "middle"), ("uint8", "middle"), ("uint1", "group"), ("uint2", "group"),
         ("uint3", "group"), ("uint4", "group"), ("uint8", "group")]  # fmt: skip
FLOATS = ["nf4", "e2m1", "e3m2", "e2m3", "e4m3", "e5m2", "e3m1", *SCHEMES]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 1 << 30), st.sampled_from([1e-30, 0.02, 1.0, 1e30]))
def test_every_element_is_within_half_a_step(kind: tuple[str, str], seed: int, size: float) -> None:
    name, zeros = kind
    weight = np.random.default_rng(seed).standard_normal((5, 43)) * size
    weight[1, :16] = 0.0
    made = quantize(weight, name, group=16, zeros=zeros)
    steps = made.expanded(made.scales)
    # A zero point rounded to a whole code moves a group's ends by at most half a step more.
    slack = 0.5 + (0.5 if zeros == "group" else 0.0) + 1e-5
    assert (np.abs(made.dequantize() - weight) <= slack * steps).all()
    assert (made.dequantize()[1, :16] == 0.0).all()


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(FLOATS), st.integers(0, 1 << 30), st.sampled_from([1e-3, 1.0, 1e3]))
def test_every_element_takes_the_nearest_value(name: str, seed: int, size: float) -> None:
    weight = np.random.default_rng(seed).standard_normal((5, 150)) * size
    made = quantize(weight, name, group=48)
    steps = made.expanded(made.scales) * made.tensor_scale
    table = np.array([v for c, v in enumerate(made.format.values) if np.isfinite(v) and c not in made.format.unused])
    nearest = np.abs((weight / steps)[..., None] - table).min(-1)
    assert (np.abs(made.dequantize() - weight) <= (nearest + 1e-9) * steps).all()
    if made.format.name != "ternary":  # whose scale is the mean, so that large elements are cut off
        assert (np.abs(weight) <= made.format.maximum * steps * (1 + 1e-6)).all()


@pytest.mark.parametrize(("name", "zeros"), [("int4", "none"), ("uint4", "middle"), ("uint8", "group")])
def test_the_formula_is_the_documented_one(name: str, zeros: str) -> None:
    weight = np.random.default_rng(1).standard_normal((3, 30)).astype(np.float32)
    made = quantize(weight, name, group=8, zeros=zeros)
    assert made.scales.shape == (3, 4) and made.shape == (3, 30)
    grouped = made.by_group(made.zeros.astype(np.float64)) if made.zero is None and made.zeros is not None else None
    assert made.grouped_scales.shape == (4, 3)
    for n in range(3):
        for k in range(30):
            zero = made.zero if grouped is None else grouped[k // 8, n]
            value = made.format.values[made.codes[n, k]]
            assert made.dequantize()[n, k] == (value - float(zero)) * float(made.grouped_scales[k // 8, n])


def test_codes_are_packed_low_bits_first_along_k() -> None:
    made = quantize(np.random.default_rng(2).standard_normal((4, 6)), "uint4", group=None)
    assert made.packed.shape == (4, 3)
    assert (made.packed[:, 0] == made.codes[:, 0] | made.codes[:, 1] << 4).all()
    assert (unpack_plain(made.packed, 6, 4) == made.codes).all()
    assert made.group == 6 and made.bits_per_element == pytest.approx(4 + 32 / 6)


def test_blocks_tensors_and_scale_types() -> None:
    weight = np.random.default_rng(3).standard_normal((200, 300))
    assert quantize(weight, "fp8_block").scales.shape == (2, 3)
    assert quantize(weight, "int8", block=(0, 0)).scales.shape == (1, 1)
    assert quantize(weight, "mxfp4").scales.dtype.name == "float8_e8m0fnu"
    assert quantize(weight, "nvfp4").scales.dtype.name == "float8_e4m3fn"
    assert quantize(weight, "int4", scale_dtype="bfloat16").scale_dtype() == "bfloat16"
    for scheme in SCHEMES.values():
        assert scheme.bits_per_element >= scheme.format.bits


def test_divisors_move_size_from_activations_to_the_weight() -> None:
    rng = np.random.default_rng(4)
    weight, divisors = rng.standard_normal((4, 16)), rng.uniform(0.5, 8.0, 16).astype(np.float32)
    made = quantize(weight, "int8", group=None, divisors=divisors)
    steps = made.expanded(made.scales) / divisors
    assert (np.abs(made.to_dense() - weight) <= 0.50001 * steps).all()


@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        (np.ones(4), {}, "a weight has two dimensions, [N, K], not 1"),
        (np.array([[1.0, np.nan]]), {}, "the weight is nan at [0, 1]\n  help: only finite weights have codes"),
        (
            np.ones((2, 128)),
            {"to": "float16"},
            "float16 holds no codes\n  help: formats of 1 to 8 bits do, int4 or e2m1 for example",
        ),
        (np.ones((2, 128)), {"to": "int4", "zeros": "group"}, "int4 does not go with zeros='group'\n  help: use none"),
        (
            np.ones((2, 128)),
            {"to": "uint1", "zeros": "middle"},
            "uint1 does not go with zeros='middle'\n  help: use group or none",
        ),
        (np.ones((2, 128)), {"zeros": "some"}, "no kind of zeros 'some'\n  help: known: none, middle, group"),
        (np.ones((2, 8), complex), {}, "a weight of complex128 has no codes\n  help: real numbers do"),
        (np.full((2, 8), "1"), {}, "a weight of <U1 has no codes\n  help: real numbers do"),
        ([[1.0, 2.0], [3.0]], {}, "the weight is no matrix: its rows differ in length"),
        (
            np.ones((2, 8)),
            {"group": 1.5},
            "groups of 1 x 1.5 elements\n  help: whole numbers; None is one group for all of K",
        ),
        (
            np.ones((2, 8)),
            {"block": (3,)},
            "groups of 3 elements\n  help: whole numbers; None is one group for all of K",
        ),
        (
            np.ones((2, 8)),
            {"divisors": np.ones(3)},
            "divisors has shape [3], but K is 8\n  help: one element a column: [8]",
        ),
        (np.ones((2, 8)), {"divisors": np.arange(8)}, "divisors[0] is 0\n  help: activations are divided by these"),
        (
            np.ones((2, 8)),
            {"scale_dtype": "int8"},
            "scales are floats, not int8\n  help: float32, float16, bfloat16, e8m0 or e4m3",
        ),
        *(
            (
                np.full((2, 8), 7e5 if held != "float32" else 1e300),
                {"to": "int4", "scale_dtype": held},
                f"a group's scale is {1e5 if held != 'float32' else 1e300 / 7:.3g}, which {held} does not have\n  help: "
                "float32 has the largest scales (scale_dtype), formats of more bits need smaller ones",
            )
            for held in ("float16", "e4m3", "float32")
        ),
    ],
)
def test_what_cannot_be_quantised_is_refused(weight: np.ndarray, options: dict[str, object], message: str) -> None:
    with pytest.raises(CannotQuantize) as caught:
        quantize(weight, **options)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_tensors_of_torch_are_weights() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    expected = quantize(weight.numpy(), "int4", group=8)
    for tensor in (weight.requires_grad_(), weight.double()):
        assert (quantize(tensor, "int4", group=8).dequantize() == expected.dequantize()).all()
    half = quantize(weight.bfloat16(), "int4", group=8)
    assert (
        half.dequantize() == quantize(weight.detach().bfloat16().float().numpy(), "int4", group=8).dequantize()
    ).all()
    with pytest.raises(CannotQuantize, match="the weight is on the meta device: it has no numbers"):
        quantize(weight.to("meta"))


@pytest.mark.parametrize("shape", [(0, 128), (4, 0), (0, 0)])
def test_weights_without_elements(shape: tuple[int, int]) -> None:
    for zeros in ("middle", "group"):
        assert quantize(np.ones(shape), "uint4", zeros=zeros).dequantize().shape == shape


def test_scales_and_zeros_must_be_finite() -> None:
    made = quantize(np.ones((3, 32)), "uint4", group=8, zeros="group")
    scales, zeros = made.scales.copy(), made.zeros.copy()
    scales[1, 2], zeros[2, 0] = np.nan, np.inf
    with pytest.raises(CannotQuantize) as caught:
        replace(made, scales=scales)
    assert str(caught.value) == (
        "the scale of group 2 of row 1 is nan\n  help: only finite scales and zero points give a weight"
    )
    with pytest.raises(CannotQuantize, match="the zero point of group 0 of row 2 is inf"):
        replace(made, zeros=zeros)
    with pytest.raises(CannotQuantize, match=r"divisors\[31\] is nan"):
        replace(made, divisors=np.append(np.ones(31), np.nan))


def test_formats_of_weights_are_found_by_name() -> None:
    assert quantize(np.ones((2, 4)), "fp4_e2m1").format is number_format("e2m1")


def test_codes_of_one_bit_without_sign_have_a_zero_point_of_their_own() -> None:
    weight = np.random.default_rng(0).standard_normal((4, 32))
    made = quantize(weight, "uint1", group=16)
    assert made.zeros is not None and np.abs(made.dequantize() - weight).max() <= np.abs(weight).max() * 2
