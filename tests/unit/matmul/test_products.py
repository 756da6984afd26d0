"""The product with a packed weight: formats, scales, zeros, act-order and sizes off every tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from products import MACHINES, close, product, random_activations, random_weight

from tilewright.formats import FORMATS, number_format
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.matmul.product import Product
from tilewright.quant import QuantizedWeight, quantize

N, K = 70, 96
RNG = np.random.default_rng(0)
CODED = [entry.name for entry in FORMATS.values() if not entry.is_dense and entry.name != "e8m0"] + [
    "e3m2",
    "e2m3",
    "e1m2",
]
QUICK = ["int1", "int3", "e2m1"]


def every_code(name: str, target: str) -> None:
    """Activations that pick one column each: the product is the weight, every code of it, to the bit."""
    of = number_format(name)
    weight = random_weight(np.random.default_rng(1), name, (33, 96))
    used = [c for c in range(1 << of.bits) if c not in of.unused and np.isfinite(of.values[c])]
    weight.codes.reshape(-1)[: len(used)] = used
    found = product(np.eye(96, dtype=np.float32), weight, target)
    np.testing.assert_array_equal(found.T, weight.dequantize().astype(np.float32))


@pytest.mark.parametrize("name", QUICK)
def test_every_code_is_decoded(name: str) -> None:
    every_code(name, "cpu")


@pytest.mark.proof
@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("name", CODED)
def test_every_code_of_every_format_is_decoded(name: str, target: str) -> None:
    every_code(name, target)


def grouped(name: str, **rest: Any) -> QuantizedWeight:
    return quantize(RNG.standard_normal((N, K)), name, **rest)


def act_order() -> QuantizedWeight:
    made = grouped("uint4", group=32, zeros="group")
    order = RNG.permutation(np.arange(K) // 32).astype(np.int32)
    return QuantizedWeight(made.codes, made.format, made.scales, made.zeros, block=made.block, g_idx=order)


def rescaled() -> QuantizedWeight:
    made = grouped("uint4", group=32, zeros="group")
    return QuantizedWeight(made.codes, made.format, made.scales, made.zeros * made.scales, "rescale", made.block)


def fractional() -> QuantizedWeight:
    made = grouped("uint4", group=32, zeros="group")
    return QuantizedWeight(made.codes, made.format, made.scales, made.zeros + np.float32(0.25), "original", made.block)


WEIGHTS = {
    "channel": lambda: grouped("int8", group=None),
    "group": lambda: grouped("int4", group=32),
    "group of 10": lambda: grouped("uint3", group=10, zeros="group"),
    "tensor": lambda: grouped("ternary", block=(0, 0)),
    "block": lambda: grouped("e4m3", block=(48, 32)),
    "e8m0 scales": lambda: grouped("mxfp4"),
    "e4m3 scales": lambda: grouped("nvfp4"),
    "act-order": act_order,
    "rescale": rescaled,
    "fractional zeros": fractional,
    "divisors": lambda: grouped("int8", group=None, divisors=RNG.uniform(0.5, 4.0, K)),
}


PROOF = ("channel", "tensor", "block", "e4m3 scales", "fractional zeros")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.proof if k in PROOF else ()) for k in WEIGHTS])
def test_scales_and_zeros_of_every_kind(kind: str) -> None:
    weight = WEIGHTS[kind]()
    x = RNG.standard_normal((5, K)).astype(np.float32)
    close(product(x, weight), x, weight.to_dense(), "float32")


@pytest.mark.parametrize("kind", ["group of 10", "act-order", "e4m3 scales"])
def test_the_same_under_the_emulator(kind: str) -> None:
    weight = WEIGHTS[kind]()
    x = RNG.standard_normal((19, K)).astype(np.float16)
    close(product(x, weight, "cuda -arch=sm_80"), x, weight.to_dense(), "float16")


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a"])
@pytest.mark.parametrize("activations", ["int8", "uint4"])
def test_integers_are_exact(activations: str, target: str) -> None:
    weight = random_weight(RNG, "int4", (N, K))
    values, x = random_activations(RNG, activations, (21, K))
    found = product(x, weight, target, out_dtype="int32")
    np.testing.assert_array_equal(found, values.astype(np.int64) @ weight.dequantize().astype(np.int64).T)


def test_any_number_of_rows() -> None:
    weight = PackedWeight.pack(grouped("int4", group=32))
    dense = weight.to_dense()
    x = RNG.standard_normal((300, K)).astype(np.float32)
    for rows in (*range(1, 40), 63, 64, 65, 127, 300):
        out = np.full((rows, N), np.nan, np.float32)
        assert quant_matmul(x[:rows], weight, out=out) is out
        close(out, x[:rows], dense)
    assert quant_matmul(x[:0], weight).shape == (0, N)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("to", [None, "int8", "float8_e4m3fn"])
def test_a_row_with_what_is_no_number_shows_it_and_no_other_row(to: str | None, value: float) -> None:
    """Also where activations are quantised: the codes of NaN would be those of zero."""
    weight = PackedWeight.pack(quantize(RNG.standard_normal((N, K)), "uint4", group=32))
    x = RNG.standard_normal((5, K)).astype(np.float32)
    expected = quant_matmul(x, weight, quantize=to)
    x[3, 41] = value
    found = quant_matmul(x, weight, quantize=to)
    assert not np.isfinite(found[3]).any()
    np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(expected, 3, 0))


def test_leading_dimensions_and_activations_in_any_order() -> None:
    weight = PackedWeight.pack(grouped("int4", group=32))
    x = RNG.standard_normal((K, 2, 3)).astype(np.float32).transpose(1, 2, 0)
    found = quant_matmul(x, weight)
    assert found.shape == (2, 3, N)
    close(found.reshape(6, N), x.reshape(6, K), weight.to_dense())


def test_unpacking_gives_back_what_was_packed() -> None:
    for make in WEIGHTS.values():
        weight = make()
        back = PackedWeight.pack(weight).unpack()
        np.testing.assert_array_equal(back.codes, weight.codes)
        np.testing.assert_array_equal(back.dequantize(), weight.dequantize())
        assert (back.block, back.zeros_mode, back.format) == (weight.block, weight.zeros_mode, weight.format)


def test_weights_of_one_kind_share_their_kernel() -> None:
    """A model's layers, and its experts, are many weights of a few kinds: each kernel is traced, read from disk and loaded once."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    first, second = (
        Product.of(x, PackedWeight.pack(quantize(rng.standard_normal((32, 64)), "int4", group=32))) for _ in range(2)
    )
    assert first.prepared is not second.prepared and first.prepared.kernels == second.prepared.kernels
