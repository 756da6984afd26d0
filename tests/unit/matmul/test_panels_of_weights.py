"""The tier of processors on every kind of weight, activation and epilogue that it says it serves, against float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import Unsupported, WrongArgumentShape
from tilewright.formats import number_format
from tilewright.kernels.recipe import Request
from tilewright.matmul import PackedWeight, grouped_matmul, quant_matmul
from tilewright.matmul.product import explain
from tilewright.matmul.tiers.dispatch import choose
from tilewright.quant import QuantizedWeight, quantize
from tilewright.targets.registry import resolve

FORMATS = ["int1", "uint2", "int3", "uint4", "int4", "int6", "uint8", "int8", "e2m1", "nf4", "e3m2", "e4m3", "e5m2",
           "e4m3fnuz", "e5m2fnuz", "e3m4", "e5m1"]  # fmt: skip
KINDS = ["plain", "one zero", "zeros", "rescale", "short last group", "groups of 20", "act-order", "divisors", "multipliers", "blocks"]  # fmt: skip
ACTIVATIONS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"]
WAYS = ["as they are", "scale of tokens", "one scale", "int8", "float8_e4m3fn"]
FUNCTIONS = {
    None: lambda x: x, "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))),
}  # fmt: skip
CASES = list(itertools.product(FORMATS, KINDS, WAYS))


def weight_of(format: str, kind: str, draw: np.random.Generator) -> QuantizedWeight:
    """A weight of odd sizes of a kind."""
    N, K = int(draw.integers(1, 90)), 192
    if kind == "short last group":
        K = 64 * int(draw.integers(1, 4)) + int(draw.integers(1, 64))
    group = 20 if kind == "groups of 20" else 64
    more: dict[str, Any] = {"group": group}
    if kind == "divisors":
        more["divisors"] = draw.uniform(0.3, 3, K).astype(np.float32)
    if kind == "blocks":
        more = {"block": (32, 64)}
    made = quantize(draw.standard_normal((N, K)).astype(np.float32), format, **more)
    groups = made.group_shape
    if kind == "act-order":
        return changed(made, g_idx=draw.permutation(np.arange(K) // group).astype(np.int32))
    if kind == "multipliers":
        return changed(made, multipliers=draw.integers(-8, 9, groups).astype(np.int8))
    if kind == "one zero":
        return changed(made, zeros=np.full((1, 1), 1.5, np.float32), zeros_mode="original")
    if kind in ("zeros", "rescale"):
        zeros = draw.standard_normal(groups).astype(np.float32)
        return changed(made, zeros=zeros, zeros_mode="original" if kind == "zeros" else "rescale")
    return made


def changed(weight: QuantizedWeight, **fields: Any) -> QuantizedWeight:
    own = {name: getattr(weight, name) for name in weight.__dataclass_fields__}
    return QuantizedWeight(**own | fields)


def with_scales_of(weight: QuantizedWeight, draw: np.random.Generator) -> QuantizedWeight:
    """The weight with scales of a type that checkpoints have; powers of two where they have no other numbers."""
    kind = draw.choice(["float32", "float16", "bfloat16", "float8_e8m0fnu"])
    if weight.scales is None or kind == "float32":
        return weight
    scales = np.asarray(weight.scales, np.float32)
    if kind == "float8_e8m0fnu":
        scales = np.exp2(np.rint(np.log2(np.maximum(np.abs(scales), 2.0**-20))))
    return changed(weight, scales=scales.astype(np.dtype(getattr(ml_dtypes, kind, kind))))


def rounded(x: np.ndarray, to: str) -> np.ndarray:
    """Activations as quantising ones stand for them: the scale of a token is its largest magnitude over the type's."""
    largest = {"int8": 127, "float8_e4m3fn": 448}[to]
    most = np.abs(x).max(axis=1, keepdims=True, initial=0).astype(np.float32)
    inverse = np.where(most > 0, np.float32(largest) / np.where(most > 0, most, np.float32(1)), np.float32(0))
    scaled = (x * inverse).astype(np.float32)
    codes = np.rint(scaled) if to == "int8" else scaled.astype(ml_dtypes.float8_e4m3fn)
    return codes.astype(np.float64) * (most / np.float32(largest)).astype(np.float64)


@pytest.mark.parametrize(("format", "kind", "way"), CASES)
def test_every_kind_of_weight(format: str, kind: str, way: str) -> None:
    draw = np.random.default_rng(CASES.index((format, kind, way)))
    source = with_scales_of(weight_of(format, kind, draw), draw)
    weight, (N, K) = PackedWeight.pack(source), source.shape
    quantised = way if way in ("int8", "float8_e4m3fn") else None
    of = str(draw.choice(ACTIVATIONS[:3] if quantised else ACTIVATIONS))
    element = np.dtype(of) if of in ("float32", "float16", "int8") else np.dtype(getattr(ml_dtypes, of))
    function = [None, *FUNCTIONS][int(draw.integers(len(FUNCTIONS) + 1))]
    bias = draw.standard_normal(N).astype(draw.choice(["float32", "float16"])) if draw.integers(2) else None
    dense, scaling = source.dequantize(), {"scale of tokens": "token", "one scale": "tensor"}.get(way, "none")
    request = Request(
        of, "float32", scaling, quantize=quantised, bias=None if bias is None else bias.dtype.name, function=function
    )
    assert choose(weight.facts, request, resolve("cpu")[1])[0].name == "panels"
    for rows in (0, 1, int(draw.integers(2, 9)), int(draw.integers(9, 140))):
        x = (draw.standard_normal((rows, K)) * (40 if of == "int8" else 1)).clip(-127, 127).astype(element)
        wide = x.astype(np.float32)
        if source.divisors is not None:
            wide = wide / source.divisors
        left = rounded(wide, quantised) if quantised else wide.astype(np.float64)
        scales = None
        if scaling != "none":
            scales = draw.uniform(0.1, 2, (rows if scaling == "token" else 1, 1)).astype(np.float32)
            left = left * scales
        residual = draw.standard_normal((rows, N)).astype(np.float32) if draw.integers(2) else None
        out = np.full((rows, N), np.nan, np.float32) if residual is None or draw.integers(2) else residual.copy()
        given = residual if residual is None or np.isnan(out).all() else out  # in place, where the result begins as it
        quant_matmul(
            x, weight, quantize=quantised, activation_scales=scales, bias=bias, function=function, residual=given,
            out=out,
        )  # fmt: skip
        sums = left @ dense.T + (0 if bias is None else bias.astype(np.float64))
        expected = FUNCTIONS[function](sums) + (0 if residual is None else residual)
        # Sums in float32: an error in proportion to the sum of magnitudes.  nf4 beside bytes is rounded to bytes itself.
        bound = np.abs(left) @ np.abs(dense).T
        if format == "nf4" and quantised == "int8":
            assert source.scales is not None
            largest = np.abs(source.expanded(source.scales) * source.tensor_scale)
            largest = largest if source.multipliers is None else largest * np.abs(source.expanded(source.multipliers))
            bound = bound + 0.003 / 2e-6 * np.abs(left) @ largest.T
        if source.zeros is not None:
            bound = bound + np.abs(left) @ (np.abs(dense) + np.abs(source.format.decode(source.codes))).T
        assert (np.abs(out - expected) <= 1e-5 + 2e-6 * bound + 4e-6 * np.abs(expected)).all()


@pytest.mark.parametrize("format", ["float16", "bfloat16", "float32", "e8m0"])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_weights_without_groups(format: str, act: str) -> None:
    draw = np.random.default_rng(len(format + act))
    N, K, of = int(draw.integers(1, 90)), int(draw.integers(1, 200)), number_format(format)
    codes = draw.integers(120, 131, (N, K)).astype(np.uint8) if format == "e8m0" else draw.standard_normal((N, K))
    source = QuantizedWeight(codes.astype(of.carrier), format)
    weight, bias = PackedWeight.pack(source), draw.standard_normal(N).astype(np.float32)
    assert choose(weight.facts, Request(act, "float32", bias="float32"), resolve("cpu")[1])[0].name == "panels"
    for rows in (0, 1, 7, 40):
        x = (draw.standard_normal((rows, K)) * (40 if act == "int8" else 1)).clip(-127, 127)
        x = x.astype(np.dtype(getattr(ml_dtypes, act, act)))
        out = np.full((rows, N), np.nan, np.float32)
        quant_matmul(x, weight, bias=bias, function="relu", out=out)
        left, dense = x.astype(np.float64), source.dequantize().astype(np.float64)
        bound = np.abs(left) @ np.abs(dense).T
        assert (np.abs(out - np.maximum(left @ dense.T + bias, 0)) <= 1e-5 + 2e-6 * bound).all()


@pytest.mark.parametrize("case", range(32))
def test_whole_results(case: int) -> None:
    """Sums of bytes by integers without a scale are exact however long; others are rounded, and kept within the type."""
    draw = np.random.default_rng(case)
    format, out = str(draw.choice(FORMATS[:8])), np.dtype(draw.choice(["int32", "int32", "int8", "uint8", "int16"]))
    N, K, rows = int(draw.integers(1, 99)), 64 * int(draw.integers(1, 40)), [1, 5, 40, 0][case % 4]
    scaled, zeros = case % 3 == 0, np.full((1, 1), draw.integers(0, 9), np.float32) if draw.integers(2) else None
    if scaled:
        source = quantize(draw.standard_normal((N, K)).astype(np.float32), format, group=32)
    else:
        codes = draw.integers(0, 1 << number_format(format).bits, (N, K)).astype(np.uint8)
        source = QuantizedWeight(codes, format, zeros=zeros)
    weight, x = PackedWeight.pack(source), draw.integers(-127, 128, (rows, K)).astype(np.int8)
    assert choose(weight.facts, Request("int8", out.name), resolve("cpu")[1])[0].name == "panels"
    found = quant_matmul(x, weight, out_dtype=out.name).astype(np.float64)
    sums, range_ = x.astype(np.float64) @ source.dequantize().astype(np.float64).T, np.iinfo(out)
    error = np.abs(found - sums.clip(range_.min, range_.max))
    assert (error <= (2e-6 * np.abs(x).astype(np.float64) @ np.abs(source.dequantize()).T + 0.5 if scaled else 0)).all()


def test_what_would_be_rounded_is_left_to_others() -> None:
    """Halves are summed as whole numbers by the general tier, and by float32 where the weight has scales anyway."""
    plain = PackedWeight.pack(QuantizedWeight(np.zeros((4, 64), np.uint8), "e2m1"))
    scaled = PackedWeight.pack(quantize(np.ones((4, 64), np.float32), "e2m1", group=32))
    dense = PackedWeight.pack(QuantizedWeight(np.zeros((4, 64), np.float16), "float16"))
    reason = "not panels: int32 results of e2m1 without a scale, which sums in float32 would round"
    assert reason in explain(plain.facts, Request("int8", "int32"), "cpu")
    for one in (scaled, dense):
        assert explain(one.facts, Request("int8", "int32"), "cpu").startswith("panels")


@pytest.mark.parametrize("case", range(24))
def test_functions_of_pairs_end_the_kernel(case: int) -> None:
    """Half as many columns, from the sums that the call without a function gives."""
    draw = np.random.default_rng(case)
    N, K, rows = 2 * int(draw.integers(1, 120)), 96, [1, 3, 40, 0][case % 4]
    source = quantize(draw.standard_normal((N, K)).astype(np.float32), str(draw.choice(FORMATS)), group=32)
    weight, quantised = PackedWeight.pack(source), draw.choice([None, "int8"])
    x = draw.standard_normal((rows, K)).astype(np.float32)
    bias = draw.standard_normal(N).astype(draw.choice(["float32", "float16"])) if draw.integers(2) else None
    residual = draw.standard_normal((rows, N // 2)).astype(np.float32) if draw.integers(2) else None
    given = {"quantize": quantised, "bias": bias}
    gate, up = quant_matmul(x, weight, **given).astype(np.float64).reshape(rows, N // 2, 2).transpose(2, 0, 1)
    gate, up = np.minimum(gate, 7), up.clip(-7, 7)
    expected = gate / (1 + np.exp(-1.702 * gate)) * (up + 1) + (0 if residual is None else residual)
    out = np.full((rows, N // 2), np.nan, np.float32)
    quant_matmul(x, weight, **given, function="clamped_swiglu", residual=residual, out=out)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_other_tiers_name_what_they_do_not_do() -> None:
    weight = PackedWeight.pack(quantize(np.ones((6, 64), np.float32), "int4"))
    x = np.zeros((1, 64), np.float64)
    with pytest.raises(Unsupported, match="swiglu behind products of this weight by float64"):
        quant_matmul(x, weight, function="swiglu")
    assert grouped_matmul(x, [weight], [1], function="swiglu").shape == (1, 3)
    odd = PackedWeight.pack(quantize(np.ones((5, 64), np.float32), "int4", group=32))
    with pytest.raises(WrongArgumentShape, match="swiglu takes pairs of columns, but the weights have 5 rows"):
        quant_matmul(x, odd, function="swiglu")
