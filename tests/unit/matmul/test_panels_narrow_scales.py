"""Scales of panels are held in the type that a checkpoint gives them, and widened where they are multiplied."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import tilewright
from tilewright.kernels.quant_matmul import columns, columns_of_each
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.matmul.tiers.panels import scale_type, zeros_are_bytes
from tilewright.quant import QuantizedWeight, quantize
from tilewright.targets.cpu.arch import arch, host


def weight_of(draw: np.random.Generator, format: str, scales: str, zeros: str, n: int, k: int) -> QuantizedWeight:
    made = quantize(draw.standard_normal((n, k)).astype(np.float32), format, group=32, zeros=zeros)
    assert made.scales is not None
    rounded = np.asarray(made.scales).astype(tilewright.dtype(scales).numpy)
    return QuantizedWeight(made.codes, made.format, rounded, made.zeros, block=made.block)


@pytest.mark.parametrize("arithmetic", ["int8", None])
@pytest.mark.parametrize(("format", "zeros"), [("uint4", "middle"), ("uint4", "group"), ("uint8", "middle")])
@pytest.mark.parametrize("scales", ["float16", "bfloat16"])
def test_products_with_scales_of_sixteen_bits(scales: str, format: str, zeros: str, arithmetic: str | None) -> None:
    draw = np.random.default_rng(3)
    weight = weight_of(draw, format, scales, zeros, 104, 160)  # whole vectors and a tail of both
    packed = PackedWeight.pack(weight)
    assert scale_type(packed.facts, 1.0, host()) == (scales if host().has("f16c") else "bfloat16")
    for rows in (1, 2, 21, 40):
        x = draw.standard_normal((rows, 160)).astype(np.float32)
        expected = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
        error = np.abs(quant_matmul(x, packed, quantize=arithmetic) - expected).max() / np.abs(expected).max()
        assert error < (0.02 if arithmetic else 1e-5)


def test_zeros_are_bytes_where_they_are_whole() -> None:
    draw = np.random.default_rng(5)
    weight = weight_of(draw, "uint4", "float16", "group", 72, 160)
    assert weight.zeros is not None
    shifted = np.asarray(weight.zeros, np.float32)
    x = draw.standard_normal((1, 160)).astype(np.float32)
    for zeros, whole in ((shifted, True), (shifted + 0.5, False), (shifted - 20, False), (shifted + 300, False)):
        other = QuantizedWeight(weight.codes, weight.format, weight.scales, zeros, block=weight.block)
        packed = PackedWeight.pack(other)
        assert zeros_are_bytes(packed) == whole
        expected = x.astype(np.float64) @ other.dequantize().astype(np.float64).T
        error = np.abs(quant_matmul(x, packed) - expected).max() / np.abs(expected).max()
        assert error < 1e-5


def test_scales_are_narrow_only_where_nothing_is_lost() -> None:
    facts = PackedWeight.pack(weight_of(np.random.default_rng(0), "uint4", "float16", "middle", 32, 64)).facts
    assert scale_type(facts, 1.0, arch({"arch": "avx2"})) == "float16"
    assert scale_type(facts, 1.0, arch({"arch": "x86_64"})) == "float32"  # which widens no halves
    assert scale_type(facts, 2.0, host()) == "float32"
    assert scale_type(replace(facts, factor=True), 1.0, host()) == "float32"
    assert facts.scale is not None
    for name, narrow in (("bfloat16", "bfloat16"), ("e8m0", "bfloat16"), ("e4m3", "float16"), ("float32", "float32")):
        of = replace(facts, scale=replace(facts.scale, dtype=name))
        assert scale_type(of, 1.0, arch({"arch": "avx512-vnni"})) == narrow


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 16, 96])
@pytest.mark.parametrize("N", [1, 96, 512, 1280, 2048, 4352, 14336])
def test_blocks_of_few_rows_divide_among_the_cores(N: int, cores: int) -> None:
    """The core with most work has no more than with the widest blocks, and what is small is not divided further."""
    machine = replace(host(), cores=cores)
    most, found = columns(machine), columns_of_each(machine, N, 4096, 0.25)

    def longest(width: int) -> int:
        return math.ceil(math.ceil(N / width) / cores) * width

    assert found <= most and longest(found) <= longest(most)
    assert most < N or columns_of_each(machine, N, 16, 0.25) == most
