"""Products of a few rows with quantised weights on AMD's machines: values, and that memory is what bounds them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hip_programs import EVERY, WAVES

sys.path.insert(0, str(Path(__file__).parents[1] / "matmul"))
sys.path.insert(0, str(Path(__file__).parents[1] / "metal"))
from products import product, random_weight
from test_metal_quantised import KINDS, MASKED, largest_step, scales, tier_of

from tilewright.formats import FORMATS
from tilewright.kernels.masked_matmul import run_of
from tilewright.machine.amd import ARCHITECTURES
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.product import Product
from tilewright.matmul.tiers import masked
from tilewright.quant import QuantizedWeight


def close_to(found: np.ndarray, x: np.ndarray, weight: QuantizedWeight) -> bool:
    """Within what sums in float32 may be off by; zero points are subtracted from sums of codes without them."""
    plain = np.abs(weight.to_dense()) + np.abs(largest_step(weight))
    exact, size = x.astype(np.float64) @ weight.to_dense().T, np.abs(x.astype(np.float64)) @ plain.T
    return bool((np.abs(found - exact) <= (x.shape[1] + 8) * 2.0**-24 * size).all())


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("arch", WAVES)
def test_few_rows_of_every_format(arch, name, kind, rows):
    rng = np.random.default_rng(rows)
    N, K = 37, {1: 600, 3: 523, 9: 272}[rows]
    weight = random_weight(rng, name, (N, K), **KINDS[kind](rng, N, K))
    x = rng.standard_normal((rows, K)).astype(np.float16)
    target = f"hip -arch={arch}"
    assert tier_of(x, weight, target, out_dtype="float32") == "masked"
    assert close_to(product(x, weight, target), x, weight)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("arch", WAVES)
def test_k_divided_among_warps(arch, parts, monkeypatch):
    """Parts that K does not fill, rows that blocks do not fill: what warps found is added up."""
    monkeypatch.setattr(masked, "PARTS", (parts,))
    rng = np.random.default_rng(parts)
    weight = random_weight(rng, "int4", (21, 1120), scales=scales(rng, 21, 35), block=(1, 32))
    x = rng.standard_normal((3, 1120)).astype(np.float16)
    assert close_to(product(x, weight, f"hip -arch={arch}"), x, weight)


BEYOND = {"gfx90a": 1.02, "gfx942": 1.02, "gfx950": 1.6}
"""How much longer than reading, at the rate of the data sheet, the work on 4-bit codes takes on units with much memory for
their lanes."""


@pytest.mark.parametrize("name", ["int4", "uint4", "int8", "e2m1"])
@pytest.mark.parametrize("arch", EVERY)
def test_memory_bounds_one_row(arch, name):
    """What the machine code does takes no longer than reading the weight, enough of which is on its way at once."""
    machine = ARCHITECTURES[arch]
    N, K, bits = 4096, 4096, FORMATS[name].bits
    rng = np.random.default_rng(1)
    weight = PackedWeight.pack(random_weight(rng, name, (N, K), scales=scales(rng, N, K // 128), block=(1, 128)))
    made = Product.of(np.zeros((1, K), np.float16), weight, target=f"hip -arch={arch}").prepared
    assert made.tier == "masked"
    (resources,) = made.kernel.resources().values()
    assert resources["scratch_bytes"] == 0
    way = min(masked.divisions(weight.facts), key=lambda one: masked.seconds(weight.facts, 1, machine, one))
    warps, turn = way["warps"] * way["parts"], 32 * run_of(bits)
    assert f"TW_KERNEL({32 * warps}, " in made.kernel.get_kernel_source()
    blocks = N // (way["each"] * way["warps"])
    executed = vector_instructions(made.kernel.sass(), K // (turn * way["parts"]))
    cycles = blocks * 32 * warps * executed / 64 / machine.cores  # a core executes 64 lanes a cycle
    reading = N * K * bits / 8 / machine.rates.bytes
    beyond = BEYOND.get(arch, 1.0) if bits == 4 else 1.0
    assert cycles / machine.rates.cycles <= reading * beyond, (cycles / machine.rates.cycles, reading)
    assert blocks * warps * way["each"] * turn * bits / 8 >= min(1e-6 * machine.rates.bytes, N * K * bits / 8)


def vector_instructions(code: str, turns: int) -> int:
    """Vector instructions that a wave executes, where what is repeated has so many turns."""
    lines = code.split("\n")
    labels = {line.strip()[:-1]: number for number, line in enumerate(lines) if re.match(r"\.?\w+:$", line.strip())}
    count = sum(line.strip().startswith("v_") for line in lines)
    for number, line in enumerate(lines):
        branch = re.match(r"\s*s_cbranch\w+\s+(\S+)", line)
        if branch and labels.get(branch[1], number) < number:
            count += (turns - 1) * sum(one.strip().startswith("v_") for one in lines[labels[branch[1]] : number])
    return count


@pytest.mark.parametrize("rows", [1, 16, 64, 300])
@pytest.mark.parametrize("name", ["int4", "uint1", "int3", "int8", "nf4", "e2m1", "e4m3"])
@pytest.mark.parametrize("arch", EVERY)
def test_tiles_that_the_model_chooses_spill_nothing(arch, name, rows):
    rng = np.random.default_rng(rows)
    weight = PackedWeight.pack(random_weight(rng, name, (512, 512), scales=scales(rng, 512, 8), block=(1, 64)))
    made = Product.of(np.zeros((rows, 512), np.float16), weight, target=f"hip -arch={arch}").prepared
    for resources in made.kernel.resources().values():
        assert (resources["scratch_bytes"], resources["vector_spills"]) == (0, 0), resources
