"""The kernel for one or two rows on Hopper: interpreted, emulated, and against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.ir.dtypes import ALL
from tilewright.kernels.epilogue import Epilogue
from tilewright.kernels.hopper_quant_slices import sliced_quant_matmul
from tilewright.machine import SIGNS, FragmentRecords

TARGET = "cuda -arch=sm_90a"
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def form_of(bits: int, operand: str) -> FragmentRecords:
    dtype = ALL[operand]
    return FragmentRecords(bits, dtype, dtype, values=SIGNS if bits == 1 else None)


def problem(form: FragmentRecords, N: int, K: int, a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records, the exact product, and the bound on the error of sums: numbers of A are whole ones of their columns' largest."""
    rng = np.random.default_rng(N + K)
    dtype = form.operand.numpy
    codes = rng.integers(0, 1 << form.bits, (N, K)).astype(np.uint8)
    scales = (rng.random((N, -(-K // 128))) * 0.1).astype(dtype)
    numbers = form.numbers[codes] if form.numbers is not None else codes - 2.0 ** (form.bits - 1)
    weights = numbers * np.repeat(scales.astype(np.float64), 128, axis=1)[:, :K]
    wide = a.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = wide @ weights.T
        bound = np.abs(exact) * EPSILON[str(form.operand)] + np.abs(wide) @ np.abs(weights).T * 2.0**-20
    return form.pack({"codes": codes, "scales": scales}), exact, bound


def kernel(N: int, K: int, form: FragmentRecords, **sizes: Any) -> Any:
    offset = 0 if form.is_signs else 1 << form.bits - 1
    program = sliced_quant_matmul.trace(N, K, form, out=str(form.operand), offset=offset, **sizes)
    return tilewright.compile(program, target=TARGET)


CASES = {
    "columns that end within a record": (4, "float16", (72, 1100, 1), {"tokens": 1, "warps": 3, "records": 4, "cluster": 1, "blocks": 2}),
    "two rows, K over a cluster": (2, "float16", (200, 2048, 2), {"warps": 4, "records": 2, "cluster": 2, "blocks": 4}),
    "signs, records of 64 rows": (1, "float16", (72, 1100, 2), {"warps": 3, "records": 4, "cluster": 1, "blocks": 2}),
    "signs as bfloat16": (1, "bfloat16", (100, 512, 1), {"warps": 2, "records": 2, "cluster": 1, "blocks": 1}),
    "one row in pairs of blocks": (1, "float16", (200, 2048, 1), {"tokens": 1, "warps": 4, "records": 2, "cluster": 2, "blocks": 4}),
    "eight records of four bits": (4, "float16", (40, 2048, 1), {"tokens": 1, "warps": 2, "records": 8, "stages": 2, "cluster": 1, "blocks": 2}),
    "four bits as bfloat16": (4, "bfloat16", (40, 512, 2), {"warps": 4, "records": 1, "cluster": 1, "blocks": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_interpreted_as_exact(name: str) -> None:
    bits, operand, (N, K, M), sizes = CASES[name]
    form = form_of(bits, operand)
    a = np.random.default_rng(1).standard_normal((M, K)).astype(ALL[operand].numpy)
    words, exact, bound = problem(form, N, K, a)
    c = np.full((M, N), np.nan, ALL[operand].numpy)
    kernel(N, K, form, **sizes).interpret(words, a, c)
    assert (np.abs(c.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize(
    ("name", "schedule"), [("columns that end within a record", "early"), ("two rows, K over a cluster", "random")]
)
def test_emulated_as_exact(name: str, schedule: str) -> None:
    bits, operand, (N, K, M), sizes = CASES[name]
    form = form_of(bits, operand)
    a = np.random.default_rng(1).standard_normal((M, K)).astype(ALL[operand].numpy)
    words, exact, bound = problem(form, N, K, a)
    c = np.full((M, N), np.nan, ALL[operand].numpy)
    kernel(N, K, form, **sizes).emulate(words, a, c, schedule=schedule, seed=3)
    assert (np.abs(c.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("operand", ["float16", "bfloat16"])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_activations_of_every_size(bits: int, operand: str) -> None:
    """The largest numbers, the least ones, nothing but zeros, and numbers of very different sizes beside one another."""
    form, dtype = form_of(bits, operand), ALL[operand].numpy
    N, K = 64, 512
    rng = np.random.default_rng(bits)
    least = 2.0**-24 if operand == "float16" else 2.0**-70
    most = 1000.0 if operand == "float16" else 2.0**100
    rows = {
        "large": rng.standard_normal(K) * most,
        "least": rng.integers(-3, 4, K) * least,
        "zeros": np.zeros(K),
        "an outlier": np.where(np.arange(K) == 77, 2000.0, rng.standard_normal(K)),
    }
    made = kernel(N, K, form, warps=2, records=2, cluster=1, blocks=1)
    for row in rows.values():
        a = row.astype(dtype)[None]
        words, exact, bound = problem(form, N, K, a)
        c = np.full((1, N), np.nan, dtype)
        made.interpret(words, a, c)
        tiny = 2.0**-24 if operand == "float16" else 0.0  # of the result's type
        assert (np.abs(c.astype(np.float64) - exact) <= bound + tiny).all()


def test_infinities_and_what_is_no_number_come_through() -> None:
    form = form_of(2, "float16")
    N, K = 64, 512
    made = kernel(N, K, form, warps=2, records=2, cluster=1, blocks=1)
    for found in (np.inf, -np.inf, np.nan):
        a = np.random.default_rng(0).standard_normal((2, K)).astype(np.float16)
        a[0, 300] = found
        words, exact, _ = problem(form, N, K, a)
        c = np.zeros((2, N), np.float16)
        with np.errstate(all="ignore"):
            made.interpret(words, a, c)
        np.testing.assert_array_equal(c[0], exact[0].astype(np.float16))  # a code of 0 times infinity is no number
        assert np.isfinite(c[1]).all()


def test_no_rows_at_all() -> None:
    form = form_of(2, "float16")
    words, _, _ = problem(form, 64, 512, np.zeros((0, 512), np.float16))
    c = np.zeros((0, 64), np.float16)
    kernel(64, 512, form, warps=2, records=2, cluster=1, blocks=1).emulate(words, np.zeros((0, 512), np.float16), c)


def test_sums_are_finished_by_the_epilogue() -> None:
    form = form_of(2, "float16")
    N, K = 64, 512
    a = np.random.default_rng(1).standard_normal((2, K)).astype(np.float16)
    words, exact, bound = problem(form, N, K, a)
    bias, residual = np.arange(N, dtype=np.float16), np.full((2, N), 3.0, np.float16)
    made = kernel(N, K, form, warps=2, records=2, cluster=1, blocks=1, epilogue=Epilogue(True, "float16", "relu", True))
    c = np.full((2, N), np.nan, np.float16)
    made.interpret(words, a, np.array([0.5], np.float32), bias, residual, c)
    assert (np.abs(c - (np.maximum(exact * 0.5 + bias, 0) + 3)) <= bound + 0.05).all()


def test_blocks_hand_sums_over_and_leave_without_waiting_for_stores() -> None:
    sizes = CASES["one row in pairs of blocks"][3]
    text = kernel(200, 2048, form_of(2, "float16"), **sizes).get_kernel_source()
    handed, left = "tw::cluster_sync();", "tw::cluster_arrive_relaxed();"
    assert text.count(handed) == text.count(left) == 2  # workers and adders
    assert text.index(handed) < text.index("tw::load_cluster_fragment") < text.index(left)
