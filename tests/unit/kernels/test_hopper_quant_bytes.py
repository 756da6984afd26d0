"""The kernel for 8-bit activations on Hopper: interpreted, emulated, and against float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.ir.dtypes import ALL
from tilewright.kernels.epilogue import Epilogue
from tilewright.kernels.hopper_quant_bytes import byte_quant_matmul
from tilewright.kernels.hopper_quant_bytes_choice import byte_quant_candidates
from tilewright.kernels.hopper_quant_bytes_plan import PIECE
from tilewright.kernels.hopper_quant_bytes_results import PADDING
from tilewright.kernels.hopper_quant_wgmma_choice import SHARED_BYTES
from tilewright.kernels.running_sums import can_run, start_of_run
from tilewright.machine import COLUMNS, FragmentRecords

TARGET = "cuda -arch=sm_90a"
INT8, E4M3, HALF, WIDE = (ALL[name] for name in ("int8", "float8_e4m3fn", "float16", "float32"))

SMALL = {"tokens": 32, "part": 32, "records": 2}
CASES: dict[str, tuple[FragmentRecords, tuple[int, int, int], dict[str, Any]]] = {
    "columns and rows that end within tiles": (FragmentRecords(4, INT8, HALF), (150, 1008, 20), {"tokens": 16, "part": 16, "records": 2}),
    "scales of channels, two parts of tokens": (FragmentRecords(4, INT8), (150, 1008, 20), {**SMALL, "part": 16, "by_channel": True}),
    "two bits, K over a cluster": (FragmentRecords(2, INT8), (150, 1024, 20), {**SMALL, "by_channel": True, "cluster": 2, "stages": 5}),
    "zeros of groups of 64": (FragmentRecords(4, INT8, WIDE, INT8, 64), (150, 512, 20), {**SMALL, "zeros": "codes", "tiles": 2}),
    "scales of two levels": (FragmentRecords(4, INT8, INT8, INT8), (150, 512, 20), {**SMALL, "zeros": "codes", "tiles": 2, "by_channel": True}),
    "e4m3": (FragmentRecords(4, E4M3, HALF), (150, 512, 20), {**SMALL, "activations": "float8_e4m3fn"}),
    "zeros of any size": (FragmentRecords(4, INT8, HALF, WIDE), (150, 512, 20), {**SMALL, "zeros": "original"}),
    "zeros of scaled weights, e5m2, groups of 32": (FragmentRecords(2, E4M3, HALF, WIDE, 32), (150, 512, 20), {**SMALL, "zeros": "rescale", "activations": "float8_e5m2"}),
    "two parts of tokens": (FragmentRecords(4, INT8, HALF), (150, 1008, 40), {"tokens": 64, "part": 32, "records": 2}),
    "zeros, unsigned activations, two tiles": (FragmentRecords(4, INT8, HALF, WIDE, 64), (150, 496, 20), {**SMALL, "zeros": "original", "tiles": 2, "records": 1, "stages": 6, "activations": "uint8"}),
    "bytes, blocks that send one another activations": (FragmentRecords(8, INT8, HALF), (150, 512, 20), {**SMALL, "records": 1, "sharing": 2}),
    "one copy after the other with both sets of registers": (FragmentRecords(8, INT8, ladder=True), (144, 640, 20), {**SMALL, "records": 1, "by_channel": True, "sharing": 2, "by_tokens": True}),
    "rows of A that are no power of two, sent to one another": (FragmentRecords(4, INT8), (300, 640, 100), {"tokens": 48, "part": 48, "records": 1, "by_channel": True, "sharing": 2}),
    "blocks that stay share tiles, in turns": (FragmentRecords(4, INT8, HALF), (500, 1008, 70), {**SMALL, "turns": True, "blocks": 5}),
    "sums that run on": (FragmentRecords(4, INT8, HALF), (150, 5000, 40), {**SMALL, "running": True}),
    "a range that reaches into three tiles": (FragmentRecords(4, INT8, HALF), (840, 1280, 30), {**SMALL, "blocks": 5}),
    "sums that run on, in turns, blocks that stay": (FragmentRecords(4, INT8, HALF), (200, 4096, 70), {**SMALL, "running": True, "turns": True, "blocks": 4, "sharing": 2}),
    "blocks that stay, in pairs, zeros of any size": (FragmentRecords(4, INT8, HALF, WIDE), (500, 1024, 70), {**SMALL, "part": 16, "zeros": "original", "sharing": 2, "blocks": 6}),
    "blocks that stay, scales of channels": (FragmentRecords(4, INT8), (500, 1008, 70), {**SMALL, "by_channel": True, "sharing": 2, "blocks": 6}),
    "boxes of blocks that stay, in turns, tiles shared": (FragmentRecords(4, INT8, HALF), (504, 1008, 70), {**SMALL, "turns": True, "blocks": 5, "out": "float16"}),
    "boxes of pairs, two parts of tokens, whole tiles": (FragmentRecords(4, E4M3, HALF), (504, 1024, 200), {"tokens": 64, "part": 32, "records": 2, "activations": "float8_e4m3fn", "sharing": 2, "blocks": 4, "out": "float16"}),
    "boxes of sums that run on": (FragmentRecords(4, INT8, HALF), (200, 2048, 100), {**SMALL, "part": 48, "tokens": 48, "running": True, "turns": True, "blocks": 2, "out": "float16"}),
    "boxes of everything but a residual": (FragmentRecords(4, INT8), (496, 1008, 70), {**SMALL, "by_channel": True, "blocks": 3, "epilogue": Epilogue(bias="float16", function="relu"), "out": "float16"}),
    "an odd number of products of a copy": (FragmentRecords(8, INT8, HALF), (504, 640, 70), {**SMALL, "records": 1, "tiles": 2, "blocks": 3, "out": "float16"}),
    "sums that leave in pieces of two heights": (FragmentRecords(4, E4M3, HALF), (150, 512, 100), {"tokens": 72, "part": 72, "records": 2, "activations": "float8_e4m3fn"}),
    "40 rows, K over a cluster": (FragmentRecords(4, E4M3, HALF), (150, 1024, 70), {"tokens": 40, "part": 40, "records": 2, "activations": "float8_e4m3fn", "cluster": 2, "stages": 5}),
    "48 rows of blocks that stay, two tiles": (FragmentRecords(2, INT8, HALF), (600, 1024, 100), {"tokens": 48, "part": 48, "records": 2, "tiles": 2, "blocks": 3, "out": "float16"}),
    "88 rows of blocks that stay, which leave in pieces": (FragmentRecords(4, E4M3, HALF), (300, 1024, 100), {"tokens": 88, "part": 88, "records": 2, "blocks": 3, "activations": "float8_e4m3fn", "out": "float16"}),
    "columns that end before the last records": (FragmentRecords(4, E4M3, HALF), (300, 1152, 40), {**SMALL, "activations": "float8_e4m3fn", "blocks": 3, "out": "float16"}),
    "overlaps of products": (FragmentRecords(4, INT8, HALF), (150, 1152, 40), {**SMALL, "tiles": 2, "overlaps": True}),
    "boxes of pairs whose products overlap, groups of 64": (FragmentRecords(4, E4M3, HALF, None, 64), (504, 1024, 100), {"tokens": 64, "part": 32, "records": 2, "activations": "float8_e4m3fn", "sharing": 2, "blocks": 4, "overlaps": True, "out": "float16"}),
    "copies of single columns, two tiles": (FragmentRecords(4, INT8, HALF), (300, 512, 20), {"tokens": 24, "part": 24, "records": 1, "tiles": 2, "overlaps": True, "out": "float16"}),
    "boxes of pairs that take their rows in one product": (FragmentRecords(2, INT8, HALF), (504, 1152, 150), {"tokens": 144, "part": 144, "records": 2, "sharing": 2, "blocks": 4, "out": "float16"}),
    "everything behind the sum": (FragmentRecords(4, INT8, HALF), (70, 512, 20), {**SMALL, "epilogue": Epilogue(bias="float16", function="relu", residual=True)}),
}  # fmt: skip


class Problem:
    """Operands of a case, the exact product, and the sum of the magnitudes of its terms."""

    def __init__(self, form: FragmentRecords, shape: tuple[int, int, int], options: dict[str, Any]) -> None:
        N, K, M = shape
        rng = np.random.default_rng(N + K + M)
        half, zeros = 1 << form.bits - 1, options.get("zeros")
        numbers = rng.integers(-half, half, (N, K))
        groups = (N, -(-K // form.group))
        parts = {"codes": form.encode(numbers)}

        def each(values: np.ndarray) -> np.ndarray:
            return np.repeat(values.astype(np.float64), form.group, axis=1)[:, :K]

        weight = numbers.astype(np.float64)
        two_levels = form.scale is INT8
        if form.zero is not None:
            whole = rng.integers(-half, half, groups) // (4 if two_levels else 1)
            parts["zeros"] = whole if zeros == "codes" else (rng.random(groups) * half).astype(np.float32)
            weight = weight - (each(parts["zeros"]) if zeros != "rescale" else 0.0)
        if form.scale is not None:
            scales = rng.integers(1, 9, groups) if two_levels else rng.random(groups) * 0.1
            parts["scales"] = scales.astype(form.scale.numpy)
            weight = weight * each(parts["scales"])
        if zeros == "rescale":
            weight = weight - each(parts["zeros"])
        kind = ALL[options.get("activations", "int8")]
        a = rng.standard_normal((M, K)).astype(kind.numpy)
        if kind.is_integer:
            a = rng.integers(int(kind.minimum), int(kind.maximum) + 1, (M, K)).astype(kind.numpy)
        of_rows = rng.random(M).astype(np.float32)
        of_columns = rng.random(N if options.get("by_channel") else 1).astype(np.float32)
        bias = rng.standard_normal(N).astype(np.float16) if "epilogue" in options else np.zeros(1, np.float32)
        residual = rng.standard_normal((M, N) if "epilogue" in options else (1, 1)).astype(np.float32)
        factor = of_rows[:, None].astype(np.float64) * (of_columns if options.get("by_channel") else 1.0)
        self.exact = (a.astype(np.float64) @ weight.T) * factor
        self.size = (np.abs(a.astype(np.float64)) @ np.abs(weight).T) * factor
        if "epilogue" in options:
            residual = residual if options["epilogue"].residual else np.zeros((1, 1), np.float32)
            self.exact = np.maximum(self.exact + bias, 0.0) + residual
            self.size = self.size + np.abs(bias) + np.abs(residual)
        self.lost = np.zeros((M, N))
        if options.get(
            "running"
        ):  # each total is as large as a run's bits times what scales differ by, and rounds once a group
            spread = np.ptp(parts["scales"].astype(np.float64), axis=1)
            self.lost = groups[1] * 2.0**-24 * 2 * start_of_run(form, 0, "int8") * spread * of_rows[:, None]
        self.c = np.full((M, N), np.nan, options.get("out", "float32"))
        if self.c.dtype == np.float16:  # stored once
            self.lost += np.abs(self.exact) * 2.0**-11 + 2.0**-25
        self.arguments = (form.pack(parts), a, of_rows, of_columns, bias, residual.astype(self.c.dtype), self.c)

    def check(self, unit: float) -> None:
        assert (np.abs(self.c - self.exact) <= unit * self.size + self.lost).all()


def made(name: str) -> tuple[Any, Problem]:
    form, shape, options = CASES[name]
    program = byte_quant_matmul.trace(*shape[:2], form, **{"out": "float32", **options})
    return tilewright.compile(program, target=TARGET), Problem(form, shape, options)


@pytest.mark.parametrize("name", CASES)
def test_interpreted_as_exact(name: str) -> None:
    kernel, problem = made(name)
    kernel.interpret(*problem.arguments)
    problem.check(16 * 2.0**-24)


@pytest.mark.parametrize("name", [*(name for name in CASES if name.startswith("boxes")), "columns and rows that end within tiles", "two parts of tokens", "overlaps of products", "one copy after the other with both sets of registers"])  # fmt: skip
def test_emulated_as_exact(name: str) -> None:
    kernel, problem = made(name)
    kernel.emulate(*problem.arguments)
    problem.check(unit_of(name))


@pytest.mark.proof
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("schedule", ["early", "late", "random"])
def test_every_case_emulated(name: str, schedule: str) -> None:
    kernel, problem = made(name)
    kernel.emulate(*problem.arguments, schedule=schedule, seed=1)
    problem.check(unit_of(name))


def unit_of(name: str) -> float:
    """What a sum of a matrix unit may be off: those of floats keep 14 bits from one instruction of 32 columns to the next."""
    return 4 * 2.0**-13 if CASES[name][0].operand.is_float else 16 * 2.0**-24


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_integers_are_exact(bits: int) -> None:
    N, K, M = 64, 512, 9
    rng = np.random.default_rng(bits)
    half = 1 << bits - 1
    numbers = rng.integers(-half, half, (N, K))
    a = rng.integers(-128, 128, (M, K)).astype(np.int8)
    form = FragmentRecords(bits, INT8)
    program = byte_quant_matmul.trace(N, K, form, out="int32", of_rows=None, tokens=16, part=16, records=2)
    one, c = np.ones(1, np.float32), np.full((M, N), 77, np.int32)
    words = form.pack({"codes": form.encode(numbers)})
    tilewright.compile(program, target=TARGET).emulate(words, a, one, one, one, np.zeros((1, 1), np.int32), c)
    np.testing.assert_array_equal(c, a.astype(np.int64) @ numbers.T)


@pytest.mark.parametrize("operand", [INT8, E4M3], ids=str)
def test_every_code_stands_for_its_number(operand: Any) -> None:
    for bits in (1, 2, 4):
        form = FragmentRecords(bits, operand)
        numbers = np.arange(-(1 << bits - 1), 1 << bits - 1)
        codes = form.encode(numbers)
        assert sorted(codes) == list(range(1 << bits))
        np.testing.assert_array_equal(form.decode(codes), numbers)


CHOSEN = [
    FragmentRecords(4, INT8, HALF), FragmentRecords(4, INT8, WIDE, INT8, 32), FragmentRecords(8, INT8, WIDE, WIDE, 32),
    FragmentRecords(2, INT8), FragmentRecords(1, E4M3, HALF), FragmentRecords(8, E4M3, WIDE, None, 64),
]  # fmt: skip


@pytest.mark.parametrize("form", CHOSEN, ids=str)
def test_choices_fit_a_multiprocessor_and_cover_the_columns(form: FragmentRecords) -> None:
    promoted = form.scale is not None
    for N, K in ((28672, 8192), (8192, 28672), (4096, 4096), (1000, 704), (33, 64)):
        _, across, words = form.shape(N, K)
        for M in (1, 16, 17, 64, 100, 200, 256, 4096, 1 << 30):
            sizes = byte_quant_candidates(N, K, form, promoted, promoted and can_run(form, 0, "int8")).choice(M)
            slab = 64 * sizes["warpgroups"]
            rows = slab * sizes["tiles"]
            of_a = sizes["stages"] * sizes["tokens"] * COLUMNS
            of_w = sizes["weight_stages"] * rows // form.rows * sizes["records"] * words * 4
            assert min(sizes["stages"], sizes["weight_stages"]) >= 2 and of_a + of_w < SHARED_BYTES - 1024
            leaving = 4 * math.gcd(sizes["part"], PIECE) * (slab + PADDING)
            assert leaving + of_a + of_w < SHARED_BYTES - 1024 if sizes["blocks"] else leaving < max(of_a, of_w)
            assert across % sizes["records"] == 0
            assert sizes["tokens"] % sizes["part"] == 0 and slab % form.rows == 0


def test_two_blocks_bring_whole_shares_of_what_both_multiply() -> None:
    """A block's share of a part of A is a multiple of eight rows: zeros of any size have parts of a quarter of a tile."""
    for zero in (None, WIDE):
        candidates = byte_quant_candidates(8192, 4096, FragmentRecords(4, INT8, HALF, zero), True)
        assert all(one["part"] % (8 * one["sharing"]) == 0 for one in candidates.of)
        assert any(one["sharing"] == 2 and one["blocks"] for one in candidates.of)


def test_the_text_decodes_four_codes_with_a_shift_and_a_mask() -> None:
    form = FragmentRecords(4, INT8, HALF)
    text = tilewright.compile(byte_quant_matmul.trace(256, 1024, form), target=TARGET).get_kernel_source()
    assert "(words[0] << 4u) & 4042322160u" in text and "words[0] & 4042322160u" in text
    assert "named_barrier_arrive" not in text  # each sum is passed over once: turns would cost more than they bring
    assert "s32_s8_s8" in text and "tw::wgmma_rs<" in text and "tw::bulk_load_hint(" in text


@pytest.mark.parametrize("rows", [3, 300])
def test_blocks_without_a_step_come_to_their_end(rows: int) -> None:
    """Kernels take any number of rows: there may be fewer tiles, and fewer steps, than blocks that stay."""
    form = FragmentRecords(4, INT8, ALL["float16"])
    stay = {"warpgroups": 2, "tiles": 1, "records": 2, "cluster": 1, "blocks": 12, "sharing": 2, "turns": True}
    shape = (256, 1024, rows)
    options = {**stay, "tokens": 160, "part": 80, "stages": 8, "weight_stages": 2, "band": 3}
    program = byte_quant_matmul.trace(*shape[:2], form, **{"out": "float32", **options})
    problem = Problem(form, shape, options)
    tilewright.compile(program, target=TARGET).emulate(*problem.arguments)
    problem.check(16 * 2.0**-24)
