"""Products with quantised weights on Apple's machines, through the library's entries, against float64."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "matmul"))
from front_end import complaints
from products import close, product, random_weight

import tilewright
from tilewright.formats import FORMATS
from tilewright.kernels.masked_matmul import is_masked, pieces, run_of
from tilewright.machine.apple import FAMILIES, of_chip
from tilewright.matmul.config import MatmulConfig
from tilewright.matmul.operator import Matmul
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.product import Product
from tilewright.matmul.tiers import masked
from tilewright.quant import QuantizedWeight

METAL = "metal -arch=apple7"

MASKED = sorted(name for name, of in FORMATS.items() if is_masked(of))

KINDS: dict[str, Any] = {
    "one scale a row": lambda rng, N, K: {"scales": scales(rng, N, 1)},
    "groups": lambda rng, N, K: {"scales": scales(rng, N, -(-K // 32)), "block": (1, 32)},
    "short groups": lambda rng, N, K: {"scales": scales(rng, N, -(-K // 16)), "block": (1, 16)},
    "zeros": lambda rng, N, K: {
        "scales": scales(rng, N, -(-K // 32)), "block": (1, 32),
        "zeros": rng.integers(0, 4, (N, -(-K // 32))).astype(np.float32) + np.float32(0.5),
    },
    "rescale": lambda rng, N, K: {
        "scales": scales(rng, N, -(-K // 32)), "block": (1, 32), "zeros_mode": "rescale", "tensor_scale": 1.25,
        "zeros": rng.standard_normal((N, -(-K // 32))).astype(np.float32),
    },
}  # fmt: skip


def scales(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.random(shape) + 0.5).astype(np.float16)


def tier_of(x: np.ndarray, weight: QuantizedWeight, target: str = METAL, **options: Any) -> str:
    return Product.of(x, PackedWeight.pack(weight), target=target, **options).prepared.tier


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_are_where_masks_look_for_them(bits: int) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, run_of(bits))
    row = sum(int(code) << at * bits for at, code in enumerate(codes))
    for at, code in enumerate(codes):
        parts = [(row >> 32 * word & 0xFFFFFFFF & mask) * factor for word, mask, factor in pieces(bits, at)]
        assert sum(parts) == code


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MASKED)
def test_few_rows_of_every_format(name: str, kind: str, rows: int) -> None:
    """Sizes that divide nothing: rows that begin at any byte, a last lane with a part of a run."""
    rng = np.random.default_rng(rows)
    N, K = 37, {1: 600, 3: 523, 9: 272}[rows]
    weight = random_weight(rng, name, (N, K), **KINDS[kind](rng, N, K))
    x = rng.standard_normal((rows, K)).astype(np.float16)
    assert tier_of(x, weight, out_dtype="float32") == "masked"
    found = product(x, weight, METAL)
    # A zero point is subtracted from sums: what they may be off by is that of the codes without it.
    plain = np.abs(weight.to_dense()) + np.abs(largest_step(weight))
    exact, size = x.astype(np.float64) @ weight.to_dense().T, np.abs(x.astype(np.float64)) @ plain.T
    assert (np.abs(found - exact) <= (K + 8) * 2.0**-24 * size).all()


def largest_step(weight: QuantizedWeight) -> float:
    """The largest product of a code, as a lane multiplies it, and its scale."""
    largest = (
        1 << weight.format.bits if weight.format.kind in ("int", "uint") else np.nanmax(np.abs(weight.format.table))
    )
    return float(largest * 2 * np.abs(weight.scales.astype(np.float64)).max() * weight.tensor_scale + 4)


def test_schemes_epilogues_and_other_activations() -> None:
    rng = np.random.default_rng(5)
    for scheme, kind in (("mxfp4", "bfloat16"), ("nvfp4", "float32"), ("w4a16", "bfloat16")):
        weight = tilewright.quantize(rng.standard_normal((24, 160), dtype=np.float32), scheme)
        x = rng.standard_normal((2, 160)).astype(tilewright.dtype(kind).numpy)
        bias = rng.standard_normal(24).astype(np.float32)
        residual = rng.standard_normal((2, 24)).astype(np.float32)
        assert tier_of(x, weight) == "masked"
        found = product(x, weight, METAL, bias=bias, function="relu", residual=residual)
        expected = np.maximum(x.astype(np.float64) @ weight.to_dense().T + bias, 0) + residual
        assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4", "mxfp8"])
def test_activations_of_eight_bits(scheme: str, kind: str, rows: int) -> None:
    """Small floats by small floats by powers of two (e8m0) or e4m3, one and few rows by lanes."""
    rng = np.random.default_rng(rows)
    weight = tilewright.quantize(rng.standard_normal((40, 160), dtype=np.float32), scheme)
    x = rng.standard_normal((rows, 160)).astype(tilewright.dtype(kind).numpy)
    assert rows == 70 or tier_of(x, weight, out_dtype="float32") == "masked"
    exact = x.astype(np.float64) @ weight.to_dense().T
    size = np.abs(x.astype(np.float64)) @ np.abs(weight.to_dense()).T
    assert (np.abs(product(x, weight, METAL) - exact) <= 168 * 2.0**-24 * size).all()


@pytest.mark.parametrize("size", [-122, -110, -99, 0, 60, 75, 79, 80, 100])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["uint1", "int3", "uint4", "uint8", "e2m1", "e4m3", "e5m2"])
def test_activations_of_any_size(name: str, kind: str, size: int) -> None:
    """The device takes subnormal floats for zeros: powers of two that codes' places ask for must not make any, nor infinities."""
    rng = np.random.default_rng(abs(size))
    factors = np.full((8, 1), 2.0 ** (20 if size < -90 else -20), np.float32)
    weight = random_weight(rng, name, (8, 256), scales=factors)
    x = (rng.integers(1, 4, (2, 256)) * rng.choice([-1, 1], (2, 256)) * 2.0**size).astype(tilewright.dtype(kind).numpy)
    assert tier_of(x, weight, out_dtype="float32") == "masked"
    exact = x.astype(np.float64) @ weight.to_dense().astype(np.float64).T
    bound = np.abs(x.astype(np.float64)) @ np.abs(weight.to_dense().astype(np.float64) + 2 * largest_step(weight)).T
    assert (np.abs(product(x, weight, METAL) - exact) <= 264 * 2.0**-24 * bound).all()


def test_a_code_for_no_number_gives_none() -> None:
    codes = np.full((8, 64), 0x38, np.uint8)
    codes[3, 5], codes[4, 6] = 0x7F, 0xFF
    weight = QuantizedWeight(codes, FORMATS["e4m3"], scales=np.ones((8, 1), np.float16))
    found = product(np.ones((1, 64), np.float16), weight, METAL)[0]
    assert np.isnan(found[[3, 4]]).all() and (np.delete(found, [3, 4]) == 64).all()


def test_integers_are_masked_and_never_shifted() -> None:
    rng = np.random.default_rng(0)
    for name in ("uint2", "int3", "int4", "uint5", "int6", "int8"):
        weight = random_weight(rng, name, (32, 512), scales=scales(rng, 32, 4), block=(1, 128))
        made = Product.of(np.zeros((1, 512), np.float16), PackedWeight.pack(weight), target=METAL)
        text = made.prepared.kernel.get_kernel_source()
        assert not complaints(text)
        body = re.sub(r"//.*", "", text[text.index("kernel void") :])
        assert " & " in body and "<<" not in body and ">>" not in body


def test_rates_choose_the_kernel() -> None:
    """A few rows by lanes, many by matrix instructions; bytes bound the first on every chip."""
    facts = PackedWeight.pack(
        random_weight(np.random.default_rng(0), "uint4", (4096, 64), scales=np.ones((4096, 1), np.float16))
    ).facts
    for chip in ("m1", "m2-max", "m4"):
        arch = of_chip(chip)
        assert arch.rates is not None
        assert [masked.faster(facts, rows, arch) for rows in (1, 4, 64, 512)] == [True, True, False, False]
        best = min(masked.seconds(facts, 1, arch, way) for way in masked.divisions(facts))
        assert best == pytest.approx(4096 * 64 / 2 / arch.rates.bytes)


def test_many_rows_are_multiplied_by_matrices() -> None:
    rng = np.random.default_rng(3)
    weight = random_weight(rng, "int4", (256, 160), scales=scales(rng, 256, 5), block=(1, 32))
    x = rng.standard_normal((100, 160)).astype(np.float16)
    assert tier_of(x, weight) == "general"
    close(product(x, weight, METAL), x, weight.to_dense(), "float16")


def test_matmul_and_linear_take_the_target() -> None:
    rng = np.random.default_rng(4)
    config = MatmulConfig(N=48, K=128, A_dtype="float16", W_dtype="int4", with_scaling=True, group_size=32)
    operator = Matmul(config, target=METAL)
    codes = rng.integers(-8, 8, (48, 128)).astype(np.int8)
    factors, x = scales(rng, 48, 4), rng.standard_normal((2, 128)).astype(np.float16)
    found = operator.emulate(x, operator.transform_weight(codes), factors)
    dense = codes * np.repeat(factors.astype(np.float64), 32, axis=1)
    close(found, x, dense, "float16", "float16")
    assert "masked" in operator.explain()
    assert all(arch.rates is not None for arch in FAMILIES.values())


@pytest.mark.parametrize("activations", ["float32", "float8_e4m3fn"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_kernel_of_last_resort_has_room(name: str, activations: str) -> None:
    """Whatever its tiles are of, they fit into what a block shares."""
    if name == "float64":
        return
    config = MatmulConfig(N=48, K=128, A_dtype=activations, W_dtype=name, out_dtype="float32", a_scale="token")
    assert "kernel void" in Matmul(config, target=METAL).kernel.get_kernel_source()


def test_many_rows_of_float32_by_a_table() -> None:
    rng = np.random.default_rng(5)
    weight = random_weight(rng, "nf4", (33, 70), scales=scales(rng, 33, 1))
    x = rng.standard_normal((20, 70)).astype(np.float32)
    close(product(x, weight, METAL), x, weight.to_dense())
