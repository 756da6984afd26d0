"""Lane layouts of AMD's matrix instructions against what AMD's calculator prints, every element of each.

`amd_layouts.json.gz` was printed by AMD's matrix instruction calculator, revision 2ef91896 (May 2025): for each element of A, B and D
its places ``[register, lane, first bit]``, several where lanes hold copies.  It does not know gfx950.
"""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.layout import REGISTER, THREAD, Layout, permuted
from tilewright.machine.amd import ARCHITECTURES
from tilewright.machine.amd_products import PRODUCTS, WaveProduct, instructions_of

CALCULATOR = json.loads(gzip.decompress((Path(__file__).parent / "amd_layouts.json.gz").read_bytes()))
KNOWN = {f"{one.generation} {one.name}": one for one in PRODUCTS}


def places(layout: Layout, bits: int) -> dict[tuple[int, int], list[list[int]]]:
    """Register of 32 bits, lane and first bit of each element; of 64 bits the calculator names the upper register."""
    found: dict[tuple[int, int], list[list[int]]] = {}
    offsets = [0]
    for one in layout.replicas:
        offsets = [at + one.stride * copy for at in offsets for copy in range(one.extent)]
    for row, column in itertools.product(*map(range, layout.shape)):
        bit = layout.offset(REGISTER, row, column) * bits
        lane = layout.offset(THREAD, row, column)
        register = (bit + bits - 1) // 32
        found[row, column] = [[register, lane + copy, bit % 32] for copy in offsets]
    return found


@pytest.mark.parametrize("name", sorted(CALCULATOR))
def test_every_element_is_where_the_calculator_has_it(name):
    printed, one = CALCULATOR[name], KNOWN[name]
    assert (one.m, one.n, one.k) == (printed["m"], printed["n"], printed["k"])
    assert one.cycles == printed["cycles"]
    assert 2 * one.m * one.n * one.k == printed["operations"]
    whole_unit = 1 if one.lanes == 64 else 2  # the calculator counts pairs of RDNA's cores
    assert one.rate * whole_unit == printed["operations_a_cycle_and_unit"]
    operands = [("B", one.right, one.b.bits), ("D", one.result, one.padded or one.d.bits)]
    if one.sparse:
        check_kept(one, printed["A"])
    else:
        operands.insert(0, ("A", one.left, one.a.bits))
    for side, layout, bits in operands:
        for (row, column), found in places(layout, bits).items():
            assert sorted(found) == sorted(printed[side][row][column]), (side, row, column)


def check_kept(one: WaveProduct, printed: list) -> None:
    """Of every four elements along k two are kept, side by side: the calculator prints where the pair begins."""
    for row, column in itertools.product(range(one.m), range(one.k)):
        first = one.left.offset(REGISTER, row, column // 4 * 2) * one.a.bits
        expected = [first // 32, one.left.offset(THREAD, row, column // 4 * 2), first % 32]
        assert printed[row][column] == [expected]


@pytest.mark.parametrize("name", sorted(name for name in CALCULATOR if "smfmac" in name))
def test_a_lanes_word_says_where_its_own_elements_stood(name):
    """Of a row's metadata a lane has the bytes of its quarter of k, the first group of four in the low bits."""
    printed, one = CALCULATOR[name]["K"], KNOWN[name]
    for row, column in itertools.product(range(one.m), range(one.k)):
        quarter, within = divmod(column, one.k // 4)
        assert printed[row][column] == [[0, quarter * one.m + row, within // 4 * 4]]


def test_the_calculator_knows_all_but_cdna4_and_mixed_bytes():
    unknown = {name for name in KNOWN if name not in CALCULATOR}
    for name in {name for name in unknown if name.startswith("cdna3 v_smfmac")}:  # lie as those of as many bits do
        alike = KNOWN[
            "cdna3 v_smfmac_i32_16x16x64_i8" if KNOWN[name].a.bits == 8 else "cdna3 v_smfmac_f32_16x16x32_f16"
        ]
        assert (KNOWN[name].left, KNOWN[name].right, KNOWN[name].result) == (alike.left, alike.right, alike.result)
        unknown.remove(name)
    mixed = {name for name in unknown if name.count("fp8") + name.count("bf8") == 2}
    assert all(name.startswith("cdna4") for name in unknown - mixed)
    for name in mixed:  # lie as those of equal bytes do
        alike = name.replace("bf8", "fp8")
        if not name.startswith("cdna4"):
            assert (KNOWN[name].left, KNOWN[name].right, KNOWN[name].result) == (
                KNOWN[alike].left, KNOWN[alike].right, KNOWN[alike].result,
            )  # fmt: skip


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_functions_are_made_of_the_machines_own_instructions(name):
    arch = ARCHITECTURES[name]
    dense = arch.matrix_instructions
    assert len({(one.function, one.a, one.b, one.accumulator) for one in dense}) == len(dense)
    rates = [one.rate for one in dense]
    assert rates == sorted(rates, reverse=True)
    for one in dense:
        assert one.threads == arch.warp_size
        if one.function.endswith(("_through_half", "_through_bfloat16", "_into_half")):
            assert any(
                replace(
                    one, function=other.function, a=other.a, b=other.b, accumulator=other.accumulator, rate=other.rate
                )
                == other
                for other in dense
            )
            continue
        mine = [p for p in PRODUCTS if p.generation == arch.generation and (p.m, p.d) == (16, one.accumulator)]
        fits = [p for p in mine if one.k % p.k == 0 and (p.a.bits, p.b.bits) == (one.a.bits, one.b.bits)]
        assert fits, one.function


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_functions_multiply_as_their_instructions_do(name):
    """Lanes load by a function's fragments, instructions multiply by their own: the sum is that of the matrices."""
    generation = ARCHITECTURES[name].generation
    for one in ARCHITECTURES[name].matrix_instructions:
        if one.function.endswith(("_through_half", "_through_bfloat16", "_into_half")):
            continue
        signless = {"uint8": "int8"}
        kinds = [signless.get(str(kind), str(kind)) for kind in (one.a, one.b)]
        hardware = max(
            (p for p in PRODUCTS if p.generation == generation and p.m == 16 and not p.sparse and one.k % p.k == 0
             and [str(p.a), str(p.b)] == kinds and p.d == one.accumulator),
            key=lambda p: p.k,
        )  # fmt: skip
        random = np.random.default_rng(7)
        a, b = random.integers(-9, 9, (one.m, one.k)), random.integers(-9, 9, (one.k, one.n))
        left, right = spread(a, one.a_fragment), spread(b, one.b_fragment)
        total = np.zeros((one.m, one.n), int)
        for step in range(one.k // hardware.k):
            size = hardware.left.extent(REGISTER)
            part = slice(step * size, (step + 1) * size)
            if one.d_fragment == hardware.result:
                total += gathered(left[:, part], hardware.left) @ gathered(right[:, part], hardware.right)
            else:  # the function exchanges the operands, and gets the result transposed
                assert one.d_fragment == permuted(hardware.result, (1, 0))
                total += (gathered(right[:, part], hardware.left) @ gathered(left[:, part], hardware.right)).T
        assert (total == a @ b).all(), one.function


def spread(matrix: np.ndarray, layout: Layout) -> np.ndarray:
    """Registers of each lane."""
    threads, registers = np.indices((layout.extent(THREAD), layout.extent(REGISTER)))
    numbers = {THREAD: threads, REGISTER: registers}
    return np.broadcast_to(matrix[layout.coordinates(**{p: numbers[p] for p in layout.places})], threads.shape)


def gathered(registers: np.ndarray, layout: Layout) -> np.ndarray:
    rows, columns = np.indices(layout.shape)
    return registers[layout.offset(THREAD, rows, columns), layout.offset(REGISTER, rows, columns)]


def test_doubled_shapes_of_cdna4_run_on_along_k():
    wide = {one.name: one for one in PRODUCTS if one.generation == "cdna4"}
    for name, lanes_k in (
        ("v_mfma_f32_16x16x32_f16", 8),
        ("v_mfma_i32_16x16x64_i8", 16),
        ("v_mfma_f32_32x32x16_bf16", 8),
    ):
        left = wide[name].left
        for lane, register in itertools.product(range(64), range(lanes_k)):
            row, k = left.coordinates(thread=lane, register=register)
            assert (row, k) == (lane % wide[name].m, lane // wide[name].m * lanes_k + register)


def test_results_of_one_product_are_the_left_operand_of_the_next():
    for generation, k in (("cdna2", 16), ("cdna3", 16), ("cdna4", 16), ("rdna4", 16)):
        one = next(
            i
            for i in instructions_of(generation)[0]
            if str(i.a) == "float16" and i.k == k and str(i.accumulator) == "float32"
        )
        assert one.a_fragment == one.d_fragment


def test_occupancy_counts_registers_waves_and_shared_memory():
    gfx942, gfx1100 = ARCHITECTURES["gfx942"], ARCHITECTURES["gfx1100"]
    assert (
        gfx942.occupancy(256, 128, 0) == 4 and gfx942.occupancy(256, 256, 0) == 2 and gfx942.occupancy(256, 512, 0) == 1
    )
    assert gfx942.occupancy(256, 64, 32 << 10) == 2 and gfx942.occupancy(256, 520, 0) == 0
    assert gfx942.launch_registers(256) == 512 and gfx942.launch_registers(256, 2) == 256
    assert gfx942.launch_registers(1024) == 128 and gfx942.launch_registers(64) == 512
    assert (
        gfx1100.launch_registers(256) == 256 and gfx1100.simd_occupancy(256) == 5 and gfx1100.simd_occupancy(96) == 16
    )
    assert gfx1100.occupancy(128, 96, 64 << 10) == 1
