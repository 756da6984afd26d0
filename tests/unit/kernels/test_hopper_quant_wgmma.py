"""The kernel for more rows on Hopper: interpreted, emulated, and against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.ir.dtypes import ALL
from tilewright.kernels.hopper_quant_wgmma import wgmma_quant_matmul
from tilewright.kernels.hopper_quant_wgmma_choice import wgmma_quant_candidates
from tilewright.machine.fragment_records import FragmentRecords

TARGET = "cuda -arch=sm_90a"
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

CASES = {
    "columns and rows that end within tiles": ((4, "float16", 128, None), (150, 1000, 20), {"tokens": 16, "tiles": 1, "records": 2}),
    "tiles shared along K": ((4, "float16", 128, None), (200, 1900, 16), {"tokens": 16, "tiles": 1, "records": 2, "blocks": 5}),
    "sums of groups are scaled": ((4, "float16", 128, None), (150, 1000, 20), {"tokens": 16, "tiles": 1, "records": 2, "promoted": True}),
    "the same, tiles shared along K, activations of two groups in a slot": (
        (4, "bfloat16", 128, None), (200, 1900, 16),
        {"tokens": 16, "tiles": 1, "records": 2, "halves": 4, "stages": 2, "blocks": 5, "promoted": True},
    ),
    "a row of records is padded in memory": ((4, "float16", 128, None), (100, 600, 20), {"tokens": 16, "tiles": 1, "records": 2, "blocks": 2}),
    "the same, longer copies": ((4, "float16", 128, None), (100, 1100, 20), {"tokens": 16, "tiles": 1, "records": 4, "blocks": 2}),
    "a range that reaches into three tiles": ((4, "float16", 128, None), (840, 640, 16), {"tokens": 16, "tiles": 1, "records": 1, "halves": 1, "blocks": 5}),
    "fewer blocks share a tile than there are": ((4, "float16", 128, None), (200, 1900, 16), {"tokens": 16, "tiles": 1, "records": 1, "halves": 1, "blocks": 12}),
    "zeros, groups of 32": ((4, "float16", 32, "original"), (128, 512, 9), {"tokens": 16, "tiles": 1, "records": 4}),
    "zeros that are scaled, bfloat16": ((4, "bfloat16", 64, "rescale"), (128, 512, 9), {"tokens": 16, "tiles": 1, "records": 1}),
    "bytes as bfloat16": ((8, "bfloat16", 128, None), (128, 512, 9), {"tokens": 16, "tiles": 1, "records": 1}),
    "blocks that send one another activations": ((4, "float16", 128, None), (200, 256, 20), {"tokens": 32, "tiles": 1, "records": 1, "halves": 1, "sharing": 2}),
    "rows of A that are no power of two, sent to one another": ((4, "float16", 128, None), (200, 512, 150), {"tokens": 80, "tiles": 1, "records": 1, "halves": 1, "sharing": 2, "blocks": 6}),
    "whole tiles and shared ones, in pairs of blocks and bands": ((4, "float16", 128, None), (600, 512, 40), {"tokens": 32, "tiles": 1, "records": 1, "halves": 1, "sharing": 2, "band": 2, "blocks": 8}),
    "scaled by one operation": ((4, "float16", 128, None), (150, 1000, 20), {"tokens": 16, "tiles": 1, "records": 2, "lifted": True}),
    "the same, bfloat16": ((4, "bfloat16", 64, None), (150, 1000, 20), {"tokens": 16, "tiles": 1, "records": 2, "lifted": True}),
    "the same, two bits, records of 32 rows": ((2, "float16", 128, None), (256, 512, 9), {"tokens": 16, "tiles": 2, "records": 1, "lifted": True}),
    "the same, bytes as bfloat16": ((8, "bfloat16", 128, None), (128, 512, 9), {"tokens": 16, "tiles": 1, "records": 1, "lifted": True}),
    "the same, bytes": ((8, "float16", 32, None), (128, 512, 9), {"tokens": 16, "tiles": 1, "records": 1, "lifted": True}),
    "two bits, records of 32 rows": ((2, "float16", 128, None), (256, 512, 9), {"tokens": 16, "tiles": 2, "records": 1}),
    "sums leave in pieces of two heights": ((4, "float16", 128, None), (300, 512, 120), {"tokens": 104, "tiles": 2, "records": 2, "stages": 2, "weight_stages": 2, "blocks": 2}),
    "of more rows than pairs of blocks share": ((4, "float16", 128, None), (136, 512, 150), {"tokens": 136, "tiles": 1, "records": 1, "halves": 1, "blocks": 2, "lifted": True}),
    "sums leave in boxes": ((4, "float16", 128, None), (200, 256, 150), {"tokens": 144, "tiles": 1, "records": 1, "halves": 1, "blocks": 3}),
    "the same, an odd number of eights": ((4, "float16", 128, None), (136, 512, 301), {"tokens": 152, "tiles": 1, "records": 1, "halves": 1, "blocks": 2, "lifted": True}),
    "the same, scaled by one operation": ((4, "float16", 128, None), (136, 512, 301), {"tokens": 160, "tiles": 1, "records": 1, "halves": 1, "blocks": 2, "lifted": True}),
}  # fmt: skip
BOXES = ["sums leave in boxes", "the same, an odd number of eights", "the same, scaled by one operation"]


def problem(shape: Any, form: FragmentRecords, zeros_mode: str | None, lifted: bool) -> tuple[np.ndarray, ...]:
    """Records, activations, the exact product, and the bound on its error: weights are rounded to the operand's type."""
    N, K, M = shape
    rng = np.random.default_rng(N + K + M)
    dtype = form.operand.numpy
    codes = rng.integers(0, 1 << form.bits, (N, K)).astype(np.uint8)
    groups = (N, -(-K // form.group))
    scales = (rng.random(groups) * 0.1).astype(dtype)
    if lifted:  # from the largest that float16 has room for to the least whose largest codes lose no bits
        scales = (2.0 ** (16 - form.bits) * (rng.random(groups) * (1 - 2.0**-7) + 2.0**-7)).astype(dtype)
    zeros = rng.integers(0, 1 << form.bits, groups).astype(dtype)
    a = (rng.standard_normal((M, K)) * (2.0**-6 if lifted else 1)).astype(dtype)

    def each(values: np.ndarray) -> np.ndarray:
        return np.repeat(values.astype(np.float64), form.group, axis=1)[:, :K]

    less = {
        None: np.full((N, K), 2.0 ** (form.bits - 1)) * each(scales),
        "rescale": each(zeros),
        "original": each(zeros) * each(scales),
    }
    weights = codes * each(scales) - less[zeros_mode]
    exact = a.astype(np.float64) @ weights.T
    rounded = np.abs(weights) + 2 * np.abs(less[zeros_mode]) * (zeros_mode is not None)
    epsilon = EPSILON[str(form.operand)]
    bound = np.abs(exact) * epsilon + np.abs(a.astype(np.float64)) @ rounded.T * (epsilon + K * 2.0**-22)
    return form.pack({"codes": codes, "scales": scales, "zeros": zeros}), a, exact, bound


def run(name: str) -> tuple[Any, tuple[np.ndarray, ...], np.ndarray]:
    (bits, operand, group, zeros_mode), shape, sizes = CASES[name]
    dtype = ALL[operand]
    form = FragmentRecords(bits, dtype, dtype, dtype if zeros_mode else None, group)
    offset = 0 if zeros_mode else 1 << (bits - 1)
    program = wgmma_quant_matmul.trace(*shape[:2], form, out=operand, offset=offset, zeros_mode=zeros_mode, **sizes)
    poisoned = np.full((shape[2], shape[0]), np.nan, dtype.numpy)
    return (
        tilewright.compile(program, target=TARGET),
        problem(shape, form, zeros_mode, sizes.get("lifted", False)),
        poisoned,
    )


@pytest.mark.parametrize("name", CASES)
def test_interpreted_as_exact(name: str) -> None:
    kernel, (words, a, exact, bound), c = run(name)
    kernel.interpret(words, a, c)
    assert (np.abs(c.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("schedule", ["late", "random"])
@pytest.mark.parametrize("name", BOXES)
def test_sums_leave_in_boxes(name: str, schedule: str) -> None:
    kernel, (words, a, exact, bound), c = run(name)
    assert "tma_store" in kernel.get_kernel_source()
    kernel.emulate(words, a, c, schedule=schedule)
    assert (np.abs(c.astype(np.float64) - exact) <= bound).all()


@pytest.mark.proof
@pytest.mark.parametrize(
    "name",
    [
        "tiles shared along K",
        "a row of records is padded in memory",
        "fewer blocks share a tile than there are",
        "rows of A that are no power of two, sent to one another",
        "zeros, groups of 32",
        "whole tiles and shared ones, in pairs of blocks and bands",
        "scaled by one operation",
        "the same, two bits, records of 32 rows",
        "the same, bytes as bfloat16",
    ],
)
def test_emulated_as_interpreted(name: str) -> None:
    kernel, (words, a, exact, bound), c = run(name)
    kernel.emulate(words, a, c)
    assert (np.abs(c.astype(np.float64) - exact) <= bound).all()


LIFTED = [(4, "float16"), (4, "bfloat16"), (2, "float16"), (8, "float16"), (8, "bfloat16")]


def weights_alone(bits: int, operand: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """A program of lifted codes, its operands, and its result: rows of A that are 1 in one column give weights as they come out of registers."""
    dtype = ALL[operand]
    form = FragmentRecords(bits, dtype, dtype)
    N, K, M = 128, 512, 16
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (N, K)).astype(np.uint8)
    least = 2.0 ** (-4 - bits) if operand == "float16" else 2.0**-90
    scales = (2.0 ** (16 - bits) * np.exp2(rng.uniform(np.log2(least), 0, (N, K // 128)))).astype(dtype.numpy)
    columns = rng.permutation(K)[:M]
    a = (np.arange(K) == columns[:, None]).astype(dtype.numpy)
    program = wgmma_quant_matmul.trace(
        N, K, form, tokens=16, tiles=max(1, 2 // bits), records=1, out=operand, offset=1 << bits - 1, lifted=True
    )
    weights = (codes - 2.0 ** (bits - 1)) * np.repeat(scales.astype(np.float64), 128, axis=1)
    lifted = (weights * form.lifted_unit).astype(dtype.numpy).astype(np.float64)
    expected = (lifted / form.lifted_unit).astype(dtype.numpy)[:, columns].T
    return program, form.pack({"codes": codes, "scales": scales}), a, expected


@pytest.mark.proof
@pytest.mark.parametrize(("bits", "operand"), LIFTED)
def test_codes_scaled_by_one_operation_are_rounded_once(bits: int, operand: str) -> None:
    program, words, a, expected = weights_alone(bits, operand)
    c = np.full_like(expected, np.nan)
    tilewright.compile(program, target=TARGET).emulate(words, a, c)
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize(("N", "K", "M"), [(28672, 8192, 32), (28672, 8192, 2048)])
def test_text_is_asynchronous_and_keeps_its_registers(N: int, K: int, M: int) -> None:
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    choice = wgmma_quant_candidates(N, K, form).choice(M)
    kernel = tilewright.compile(wgmma_quant_matmul.trace(N, K, form, **choice), target=TARGET)
    text = kernel.get_kernel_source()
    assert "tw::wgmma_rs<" in text and "tw::bulk_load_hint(" in text and "tw::tma_load" in text
    assert "thread = tx & 127;" in text  # what the device's compiler folds conditions on rows with
    resources = kernel.resources()["some_rows_kernel"]
    assert resources["spill_store_bytes"] == 0


RUNS = {
    "tiles of three heights": ([0, 5, 64, 65, 130, 32, 33, 300, 1], {"tokens": 128, "lower": (96, 64, 32)}),
    "of two, and shared ones": ([16, 17, 0, 40, 3], {"tokens": 32, "lower": (16,), "blocks": 5}),
    "rows that leave in pieces of 48": ([90, 0, 97, 30], {"tokens": 96, "lower": (64, 32), "stages": 2}),
    "runs without rows": ([0, 0, 0], {"tokens": 64, "lower": (32,)}),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs_end_in_tiles_of_their_height(name: str) -> None:
    check_runs(name, "interpret")


@pytest.mark.proof
@pytest.mark.parametrize("name", RUNS)
def test_emulated_runs_end_in_tiles_of_their_height(name: str) -> None:
    check_runs(name, "emulate")


def check_runs(name: str, how: str) -> None:
    """Experts' products, each run against float64."""
    sizes, options = RUNS[name]
    N, K, M, experts = 160, 384, sum(sizes) + 2, len(sizes)
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    rng = np.random.default_rng(M)
    a = rng.standard_normal((M, K)).astype(np.float16)
    words, weights = [], []
    for _ in sizes:
        codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
        scales = (rng.random((N, K // 128)) * 0.1).astype(np.float16)
        words.append(form.pack({"codes": codes, "scales": scales}))
        weights.append((codes - 8.0) * np.repeat(scales.astype(np.float64), 128, axis=1))
    program = wgmma_quant_matmul.trace(N, K, form, experts=experts, tiles=1, records=1, **options)
    kernel = tilewright.compile(program, target=TARGET)
    found = np.full((M, N), np.nan, np.float16)
    factor, bias = np.ones(experts, np.float32), np.zeros((1, 1), np.float32)
    getattr(kernel, how)(np.concatenate(words), a, factor, bias, np.array(sizes, np.int32), found)
    start = 0
    for size, weight in zip(sizes, weights, strict=True):
        rows = a[start : start + size].astype(np.float64)
        bound = np.abs(rows @ weight.T) * 2.0**-11 + np.abs(rows) @ np.abs(weight).T * (2.0**-11 + K * 2.0**-22)
        assert np.all(np.abs(found[start : start + size] - rows @ weight.T) <= bound)
        start += size
    assert np.isnan(found[start:]).all()
