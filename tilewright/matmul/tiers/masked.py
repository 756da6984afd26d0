"""The tier of a few rows on machines of AMD and Apple: integer codes, e2m1 and 8-bit floats are masked where they
lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from tilewright.ir import FLOAT16, WARP, dtype
from tilewright.kernels.masked_matmul import is_masked, masked_matmul, rows_unit, run_of
from tilewright.kernels.recipe import Request, WeightFacts
from tilewright.machine import Arch
from tilewright.matmul.arrays import viewed
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers.base import Machine, Prepared
from tilewright.matmul.tiers.general import General, GeneralCall
from tilewright.runtime.tensors import Array
from tilewright.specialization import JITFactory
from tilewright.tuning import Candidate

ROWS = (1, 2, 4, 8)
"""Rows of A that a block may work on."""

WARPS = 2

PARTS = (1, 2, 4, 8)
"""Warps among which K may be divided."""

ON_ITS_WAY = 1e-6
"""Seconds of memory's rate whose bytes must be on their way at once."""

INSTRUCTIONS = 1000
"""Instructions of one iteration of the loop, at most: what a cache of 12 KB holds."""

REGISTERS = 96
"""Of a lane, for its run of the rows of A."""

ACTIVATIONS = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")

NARROW = {"lanes": 6.0, "shifts": 3.0}
"""What a lane spends on making a float of an activation of eight bits."""

DECODING = {"lanes": 4.0, "shifts": 3.0}
"""What the general kernel spends on an element of each of its tiles of codes."""


class MaskedCall(GeneralCall):
    """The same tensors as for the general kernel, codes as words of what rows are multiples of."""

    program: ClassVar[JITFactory] = masked_matmul

    def _codes(self, codes: Array) -> Array:
        unit = rows_unit(self.recipe)
        return viewed(codes, dtype(f"uint{8 * unit}"))


class Masked(General):
    """Each lane multiplies a run of codes of a row of the weight by the rows of A, out of registers."""

    name = "masked"
    version = 1
    machines = "GPUs whose rates are known"
    call = MaskedCall

    def runs_on(self, arch: Arch) -> bool:
        return arch.has_threads and arch.rates is not None

    def reasons(self, facts: WeightFacts, request: Request, arch: Arch) -> Iterator[tuple[bool, str]]:
        of = facts.format
        yield from (
            (arch.has("mma_sync"), f"tensor cores of {arch.name} decode in registers"),
            (not is_masked(of), f"codes of {of} are looked up in a table"),
            (request.activations not in ACTIVATIONS, f"activations of {request.activations}"),
            (request.activation_scales != "none", "scales of activations"),
            (
                facts.gather or facts.divisors or bool(facts.slots or facts.tiles[1]),
                "columns or codes in another order",
            ),
            (facts.scale is not None and facts.scale.dtype == "float64", "scales of float64"),
            (facts.zero_point is not None and facts.zero_point.dtype == "float64", "zeros of float64"),
        )
        slower = not faster(facts, request.rows, arch, request.activations)
        yield slower, f"{request.rows or 'any number of'} rows are multiplied faster by matrix instructions"

    def candidates(self, weight: PackedWeight, request: Request, machine: Machine) -> Iterator[Candidate]:
        yield from sorted(
            divisions(weight.facts),
            key=lambda way: seconds(weight.facts, request.rows, machine.arch, way, request.activations),
        )

    def prepare(
        self, weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate
    ) -> Prepared:
        by_bytes = machine.arch.has("bytes_to_floats")
        return super().prepare(weight, request, machine, example, {**options, "by_bytes": by_bytes})


def divisions(facts: WeightFacts) -> list[Candidate]:
    """Divisions of the work whose loop fits the caches and registers of a core."""
    run = run_of(facts.format.bits)
    return [
        {"rows": rows, "each": each, "warps": WARPS, "parts": parts}
        for rows in ROWS
        for each in (8, 4, 2, 1)
        for parts in PARTS
        if (run * each * (rows + 3) <= INSTRUCTIONS and run * rows <= REGISTERS) or rows == each == 1
    ]


def seconds(facts: WeightFacts, rows: int, arch: Arch, way: Candidate, activations: str = "float16") -> float:
    """How long a product takes at least; work of idle cores is lost, and so is that of rows that are not there."""
    assert arch.rates is not None
    N, K, across = facts.N, facts.K, way["each"] * way["warps"]
    blocks = -(-N // across) * -(-rows // way["rows"])
    elements = blocks * across * K
    loaded = blocks * way["rows"] * K * way["warps"]  # activations, scaled by each warp for itself
    waves = -(-blocks // arch.cores) * arch.cores / blocks
    of_masks = elements * (1 + way["rows"]) + 3 * loaded
    moved = N * K * facts.format.bits / 8
    step = WARP * run_of(facts.format.bits)
    begun = blocks * across * min(way["parts"] * step, K) * facts.format.bits / 8  # where all blocks run at once
    missing = max(1.0, min(ON_ITS_WAY * arch.rates.bytes, moved) / begun)
    idle = -(-K // (step * way["parts"])) * way["parts"] / -(-K // step)  # parts of K that there are not
    decoded = {kind: count * loaded if activations.startswith("float8") else 0.0 for kind, count in NARROW.items()}
    lanes, shifts = (of_masks + decoded["lanes"]) * waves * idle, (elements + decoded["shifts"]) * waves * idle
    return arch.rates.seconds(arch.cores, moved * missing, lanes=lanes, shifts=shifts)


def seconds_in_tiles(facts: WeightFacts, rows: int, arch: Arch) -> float:
    """How long the general kernel takes at least: a few rows have tiles of 16."""
    assert arch.rates is not None
    height, width = (16 if rows <= 16 else 64), 64
    down, across = -(-rows // height), -(-facts.N // width)
    elements = down * across * width * facts.K
    waves = -(-down * across // arch.cores) * arch.cores / (down * across)
    work = {kind: elements * count * waves for kind, count in DECODING.items()}
    moved = facts.N * facts.K * facts.format.bits / 8
    cycles = 2 * elements * height * waves / arch.product_rate(FLOAT16, FLOAT16)
    return arch.rates.seconds(arch.cores, moved, others=cycles, **work)


def faster(facts: WeightFacts, rows: int, arch: Arch, activations: str = "float16") -> bool:
    """Whether so many rows are multiplied faster than by matrix instructions."""
    best = min(seconds(facts, rows, arch, way, activations) for way in divisions(facts)) if rows else None
    return best is not None and best <= seconds_in_tiles(facts, rows, arch)
