"""The tier of tensor cores for 16-bit activations: every format, scale and zero, columns in any order, every epilogue, few rows and many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from products import UNIT, random_weight

from tilewright.formats import FORMATS
from tilewright.ir.dtypes import ALL
from tilewright.kernels.recipe import Request
from tilewright.matmul import PackedWeight
from tilewright.matmul.product import Product, explain
from tilewright.quant import QuantizedWeight, quantize

TARGET = "cuda -arch=sm_90a"
N, K = 70, 200
RNG = np.random.default_rng(0)


def grouped(name: str, **rest: Any) -> QuantizedWeight:
    return quantize(np.random.default_rng(1).standard_normal((N, K)) * 0.05, name, **rest)


def with_zeros(name: str, group: int, mode: str, fraction: float = 0.0) -> QuantizedWeight:
    """Zeros of groups, for signed codes and unsigned ones, whole or not."""
    made = random_weight(RNG, name, (N, K), block=(1, group))
    groups = (N, -(-K // group))
    scales = (RNG.random(groups) * 0.05 + 0.01).astype(np.float16)
    zeros = RNG.integers(0, 4, groups).astype(np.float32) + np.float32(fraction)
    points = zeros * scales.astype(np.float32) if mode == "rescale" else zeros
    return QuantizedWeight(made.codes, made.format, scales, points, mode, (1, group))


def ordered(group: int) -> QuantizedWeight:
    made = grouped("uint4", group=group, zeros="group", scale_dtype="float16")
    order = RNG.permutation(np.arange(K) // group).astype(np.int32)
    return QuantizedWeight(made.codes, made.format, made.scales, made.zeros, block=made.block, g_idx=order)


def with_multipliers() -> QuantizedWeight:
    made = random_weight(RNG, "int4", (N, K), block=(1, 64))
    scales = (RNG.random((N, 1)) * 0.01).astype(np.float32)
    return QuantizedWeight(
        made.codes, made.format, scales, block=(1, 64), multipliers=RNG.integers(1, 16, (N, 4)).astype(np.int8)
    )


# Names, weights, types of activations, and roundings of a weight: of what its code stands for, its scale, their product.
WEIGHTS = {
    "channels": (lambda: grouped("int4", group=None, scale_dtype="float16"), "float16", 1),
    "one scale": (lambda: grouped("ternary", block=(0, 0)), "bfloat16", 2),
    "no scale": (lambda: random_weight(RNG, "int4", (N, K)), "float16", 1),
    "float32 scales": (lambda: grouped("int4", group=128), "float16", 2),
    "half scales, bfloat16": (lambda: grouped("int4", group=64, scale_dtype="float16"), "bfloat16", 2),
    "tiny scales": (lambda: quantize(RNG.standard_normal((N, K)) * 1e-7, "int4", group=32), "float16", 2),
    "large scales": (lambda: quantize(RNG.standard_normal((N, K)) * 1e4, "e5m2", group=None), "float16", 2),
    "groups of 96": (lambda: grouped("int4", group=96, scale_dtype="float16"), "float16", 1),
    "groups of 10": (lambda: grouped("uint3", group=10, zeros="group", scale_dtype="float16"), "float16", 3),
    "blocks": (lambda: grouped("e4m3", block=(48, 64)), "bfloat16", 2),
    "mxfp4": (lambda: grouped("mxfp4"), "bfloat16", 1),
    "mxfp4, half": (lambda: grouped("mxfp4"), "float16", 1),
    "mxfp6": (lambda: grouped("mxfp6_e3m2"), "bfloat16", 1),
    "mxfp8": (lambda: grouped("mxfp8"), "float16", 1),
    "nvfp4": (lambda: grouped("nvfp4"), "float16", 1),
    "nf4": (lambda: grouped("nf4", group=64, scale_dtype="float16"), "float16", 2),
    "signs": (lambda: grouped("int1", group=128, scale_dtype="float16"), "float16", 1),
    "signs, bfloat16": (lambda: grouped("int1", group=32), "bfloat16", 2),
    "bits with zeros": (lambda: with_zeros("uint1", 64, "original"), "float16", 2),
    "two bits": (lambda: grouped("int2", group=128, scale_dtype="float16"), "float16", 1),
    "five bits": (lambda: grouped("int5", group=32, scale_dtype="float16"), "float16", 1),
    "seven bits": (lambda: grouped("uint7", group=64, zeros="group", scale_dtype="float16"), "bfloat16", 3),
    "zeros of signed codes": (lambda: with_zeros("int4", 32, "original"), "float16", 2),
    "zeros that are scaled": (lambda: with_zeros("uint4", 64, "rescale"), "float16", 2),
    "zeros that are scaled, signed codes": (lambda: with_zeros("int8", 128, "rescale"), "float16", 2),
    "zeros of floats": (lambda: with_zeros("e2m1", 64, "original", 0.25), "float16", 2),
    "fractional zeros": (lambda: with_zeros("uint4", 32, "original", 0.25), "float16", 2),
    "one fractional zero": (lambda: QuantizedWeight(
        random_weight(RNG, "uint4", (N, K)).codes, "uint4", zeros=np.full((1, 1), 7.5)), "float16", 2),
    "one zero of signed codes": (lambda: QuantizedWeight(
        random_weight(RNG, "int4", (N, K)).codes, "int4", zeros=np.full((1, 1), 3.0)), "float16", 1),
    "act-order": (lambda: ordered(32), "float16", 2),
    "act-order, short groups": (lambda: ordered(50), "bfloat16", 3),
    "divisors": (lambda: grouped("int8", group=None, divisors=RNG.uniform(0.5, 4.0, K)), "float16", 3),
    "second-level scales": (with_multipliers, "float16", 2),
}  # fmt: skip
QUICK = ("groups of 96", "nvfp4", "zeros of signed codes", "act-order, short groups")
EMULATED = ("mxfp4", "act-order", "signs", "five bits")


def proof_but(cases: Any, quick: Any) -> list[Any]:
    """All cases, those that are not quick only where everything is run."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.proof) for case in cases]


def interpreted(made: Product) -> np.ndarray:
    """A product by its kernels' programs."""
    call, then = made.operands, made.prepared
    assert then.tier.endswith("fragments")
    for kernel, arguments in then.launches(call):
        kernel.interpret(*arguments)
    return made.result


def bound(x: np.ndarray, weight: QuantizedWeight, unit: float, roundings: int) -> np.ndarray:
    """Of the error: so many roundings of each weight and of what its zero takes from it, and sums in float32."""
    dense, less = np.abs(weight.to_dense()), 0.0
    if weight.zeros is not None:
        less = np.abs(weight.to_dense() - QuantizedWeight(weight.codes, weight.format, weight.scales, block=weight.block,
                                                          g_idx=weight.g_idx).to_dense())  # fmt: skip
    size = np.abs(x.astype(np.float64)) @ (dense + 2 * less).T
    raw = 512 if weight.zeros is None and weight.format.kind in ("int", "uint") else 2
    return size * (roundings * unit + raw * x.shape[1] * 2.0**-24)


def check(
    weight: QuantizedWeight, activations: str, roundings: int, rows: int, emulate: bool = False, target: str = TARGET
) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, K)).astype(ALL[activations].numpy)
    out = np.full((rows, N), np.nan, np.float32)
    made = Product.of(x, PackedWeight.pack(weight), target=target, out=out)
    found = made.emulate() if emulate else interpreted(made)
    exact = x.astype(np.float64) @ weight.to_dense().T
    assert (np.abs(found.astype(np.float64) - exact) <= bound(x, weight, UNIT[activations], roundings)).all()


@pytest.mark.parametrize("rows", proof_but([3, 20], [20]))
@pytest.mark.parametrize("name", proof_but(WEIGHTS, QUICK))
def test_weights_of_every_kind(name: str, rows: int) -> None:
    make, activations, roundings = WEIGHTS[name]
    check(make(), activations, roundings, rows)


@pytest.mark.parametrize("rows", proof_but([2, 17], [2]))
@pytest.mark.parametrize("name", proof_but(EMULATED, ["act-order"]))
def test_the_same_under_the_emulator(name: str, rows: int) -> None:
    make, activations, roundings = WEIGHTS[name]
    check(make(), activations, roundings, rows, emulate=True)


@pytest.mark.parametrize("rows", proof_but([3, 70], [3]))
@pytest.mark.parametrize("name", proof_but(["mxfp4", "act-order", "zeros of signed codes", "nf4"], ["mxfp4"]))
def test_without_warpgroups(name: str, rows: int) -> None:
    make, activations, roundings = WEIGHTS[name]
    check(make(), activations, roundings, rows, emulate=True, target="cuda -arch=sm_86")


@pytest.mark.parametrize(
    "name", proof_but([f.name for f in FORMATS.values() if not f.is_dense and f.name != "e8m0"], ["int8"])
)
def test_every_code_is_decoded(name: str) -> None:
    """Activations that pick one column each: the product is the weight, every code of it, to the bit."""
    weight = random_weight(np.random.default_rng(1), name, (33, 64))
    used = [c for c, v in enumerate(weight.format.values) if c not in weight.format.unused and np.isfinite(v)]
    weight.codes.reshape(-1)[: len(used)] = used
    for activations, rows in (("float16", 64), ("bfloat16", 5)):
        if name == "e5m2fnuz" and activations == "float16":
            continue  # its bias is larger than a half's
        x = np.eye(64, dtype=ALL[activations].numpy)[:rows]
        made = Product.of(x, PackedWeight.pack(weight), target=TARGET, out_dtype="float32")
        wanted = weight.dequantize().astype(ALL[activations].numpy).astype(np.float32)
        np.testing.assert_array_equal(interpreted(made).T, wanted[:, :rows])


@pytest.mark.parametrize("rows", proof_but([3, 20], [20]))
@pytest.mark.parametrize("out", proof_but(["float32", "bfloat16", "float64", "int8"], ["bfloat16"]))
def test_epilogues(out: str, rows: int) -> None:
    weight = PackedWeight.pack(grouped("nvfp4"))
    x = RNG.standard_normal((rows, K)).astype(np.float16)
    bias = RNG.standard_normal(N).astype(np.float16)
    residual = RNG.integers(-8, 8, (rows, N)).astype(ALL[out].numpy)
    result = np.full((rows, N), 77, ALL[out].numpy)
    made = Product.of(x, weight, target=TARGET, bias=bias, function="silu", residual=residual, out=result)
    found = interpreted(made).astype(np.float64)
    sums = x.astype(np.float64) @ weight.to_dense().T + bias.astype(np.float64)
    exact = sums / (1 + np.exp(-sums)) + residual.astype(np.float64)
    bound = (np.abs(x.astype(np.float64)) @ np.abs(weight.to_dense()).T + 16) * 2.0**-10
    unit = {"int8": 0.5, "bfloat16": 2.0**-8 * np.abs(exact)}.get(out, 0.0)
    assert (np.abs(found - np.clip(exact, -128, 127)) <= bound + unit).all()


def test_what_it_does_not_serve() -> None:
    facts = PackedWeight.pack(grouped("int4", group=32)).facts
    assert explain(facts, Request("float16", "float16", bias="float16", function="silu"), TARGET).startswith(
        "fragments"
    )
    assert "not fragments: activations of float32" in explain(facts, Request("float32", "float32"), TARGET)
    assert explain(facts, Request("float16", "float16"), "cuda -arch=sm_80").startswith("fragments")
    assert "for other machines: fragments (NVIDIA's tensor cores), scaled (GPUs)" in explain(
        facts, Request("float64", "float64"), "cpu"
    )
