"""8-bit activations by low-bit weights on Hopper: every kind of scale and zero finds the kernel, and its result is the product's."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tilewright.matmul import PackedWeight
from tilewright.matmul.product import Product
from tilewright.matmul.tiers.bytes import byte_coding_of, plan_of, words
from tilewright.quant import QuantizedWeight, quantize

N, K, M = 70, 160, 9
TARGET = "cuda -arch=sm_90a"
RNG = np.random.default_rng(0)


def grouped(name: str, **rest: object) -> QuantizedWeight:
    return quantize(RNG.standard_normal((N, K)), name, **rest)  # type: ignore[arg-type]


def changed(name: str) -> QuantizedWeight:
    """A weight with zeros, and one thing about it changed."""
    of = grouped("uint4", group=32, zeros="group")
    assert of.scales is not None and of.zeros is not None
    if name == "rescale":
        return QuantizedWeight(of.codes, of.format, of.scales, of.zeros * of.scales, "rescale", of.block)
    if name == "fractions":
        return QuantizedWeight(of.codes, of.format, of.scales, of.zeros + np.float32(0.25), "original", of.block)
    if name == "act-order":
        order = RNG.permutation(np.arange(K) // 32).astype(np.int32)
        return QuantizedWeight(of.codes, of.format, of.scales, of.zeros, block=of.block, g_idx=order)
    multipliers = RNG.integers(1, 12, of.scales.shape).astype(np.int8)
    zeros = np.full_like(of.zeros, 8) if name == "two levels" else of.zeros
    first = RNG.random((N, 1)).astype(np.float32)
    return QuantizedWeight(of.codes, of.format, first, zeros, block=of.block, multipliers=multipliers)


def every(name: str) -> QuantizedWeight:
    """A weight of all values without any scale."""
    bits = int(name[-1])
    return QuantizedWeight(RNG.integers(0, 1 << bits, (N, K)).astype(np.uint8), name)


WEIGHTS: dict[str, Callable[[], QuantizedWeight]] = {
    "groups of 32": lambda: grouped("int4", group=32),
    "groups of 96, three bits": lambda: grouped("int3", group=96),
    "zeros of groups": lambda: grouped("uint4", group=64, zeros="group"),
    "unsigned": lambda: every("uint4"),
    "zeros of scaled weights": lambda: changed("rescale"),
    "zeros that are no whole numbers": lambda: changed("fractions"),
    "two levels": lambda: changed("two levels"),
    "two levels and zeros": lambda: changed("two levels, zeros"),
    "act-order": lambda: changed("act-order"),
    "ternary": lambda: grouped("ternary", block=(0, 0)),
    "signs": lambda: grouped("int1", group=32),
    "one bit": lambda: every("uint1"),
    "six bits": lambda: grouped("int6", group=None),
    "bytes with zeros": lambda: grouped("uint8", group=32, zeros="group"),
    "blocks": lambda: grouped("int8", block=(64, 64)),
    "e4m3": lambda: grouped("e4m3", group=32),
    "mxfp4": lambda: grouped("mxfp4"),
    "e3m0": lambda: grouped("e3m0", group=64),
}

FLOAT = "float8_e4m3fn"
QUICK = [("zeros of groups", "int8"), ("two levels", "int8"), ("mxfp4", FLOAT)]
ELSEWHERE = {
    *((name, kind) for name in ("e4m3", "mxfp4", "e3m0") for kind in ("int8", "uint8")), ("six bits", FLOAT),
    ("bytes with zeros", FLOAT), ("blocks", FLOAT),
}  # fmt: skip
"""What is no number of the activations' type."""


def multiplied(name: str, activations: str) -> None:
    """A call with scales of tokens and a bias, against float64."""
    weight = WEIGHTS[name]()
    if activations == FLOAT:
        x = RNG.standard_normal((M, K)).astype(ml_dtypes.float8_e4m3fn)
    else:
        limits = np.iinfo(activations)
        x = RNG.integers(limits.min, limits.max + 1, (M, K)).astype(activations)
    scales, bias = RNG.random((M, 1)).astype(np.float32), RNG.standard_normal(N).astype(np.float32)
    out = np.full((M, N), np.nan, np.float32)
    packed = PackedWeight.pack(weight)
    made = Product.of(x, packed, target=TARGET, activation_scales=scales, bias=bias, out=out)
    assert made.prepared.tier.endswith("bytes") != ((name, activations) in ELSEWHERE)
    made.emulate()
    given, dense = x.astype(np.float64) * scales, weight.dequantize()
    size = np.abs(given) @ np.abs(dense).T + np.abs(bias)
    if name == "zeros of scaled weights":  # sums of codes and of zeros are larger than their difference
        assert weight.zeros is not None
        size = size + 2 * np.abs(given) @ np.repeat(np.abs(weight.zeros), 32, axis=1).T
    # Sums of 8-bit floats keep 14 bits from one instruction of 32 columns to the next.
    unit = K / 32 * 2.0**-13 if activations == FLOAT else 16 * 2.0**-24
    assert (np.abs(out - given @ dense.T - bias) <= unit * size).all()


@pytest.mark.parametrize(("name", "activations"), QUICK)
def test_products_are_those_of_float64(name: str, activations: str) -> None:
    multiplied(name, activations)


@pytest.mark.proof
@pytest.mark.parametrize("activations", ["int8", "uint8", FLOAT])
@pytest.mark.parametrize("name", WEIGHTS)
def test_every_weight_by_every_activation(name: str, activations: str) -> None:
    multiplied(name, activations)


def test_activations_are_quantised_for_it() -> None:
    weight = grouped("int4", group=32)
    x = RNG.standard_normal((M, K)).astype(np.float16)
    out = np.full((M, N), np.nan, np.float32)
    made = Product.of(x, PackedWeight.pack(weight), target=TARGET, quantize="int8", out=out)
    assert made.prepared.tier == "quantised activations, bytes"
    made.emulate()
    largest = np.abs(x.astype(np.float64)).max(axis=1, keepdims=True)
    error = np.abs(out - x.astype(np.float64) @ weight.dequantize().T)
    assert (error <= largest / 127 * np.abs(weight.dequantize()).sum(axis=1)).all()


def test_unscaled_integers_are_exact() -> None:
    weight = every("uint2")
    x = RNG.integers(-128, 128, (M, K)).astype(np.int8)
    made = Product.of(x, PackedWeight.pack(weight), target=TARGET, out=np.full((M, N), 77, np.int32))
    assert made.prepared.tier == "bytes"
    np.testing.assert_array_equal(made.emulate(), x.astype(np.int64) @ weight.dequantize().astype(np.int64).T)


@pytest.mark.parametrize("name", WEIGHTS)
def test_torch_packs_the_same_words(name: str) -> None:
    torch = pytest.importorskip("torch")
    packed = PackedWeight.pack(WEIGHTS[name]())
    for activations in ("int8", FLOAT):
        coding = byte_coding_of(packed.format, activations)
        if coding is not None:
            plan = plan_of(packed, coding)
            example = torch.zeros(1)
            found = words(packed.to("cpu"), plan, coding, example).view(torch.int32).numpy().view(np.uint32)
            np.testing.assert_array_equal(found, words(packed, plan, coding, np.zeros(1)))
