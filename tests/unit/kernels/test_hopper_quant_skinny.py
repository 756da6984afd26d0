"""The kernel for a few rows on Hopper: interpreted, emulated, and against float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.ir.dtypes import ALL
from tilewright.kernels.hopper_quant_skinny import skinny_candidates, skinny_quant_matmul
from tilewright.machine import E2M1, FragmentRecords

TARGET = "cuda -arch=sm_90a"
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def problem(N: int, K: int, M: int, form: FragmentRecords) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Records, activations, the exact product, and the bound on the error of sums in float32."""
    rng = np.random.default_rng(N + K + M)
    dtype = form.operand.numpy
    codes = rng.integers(0, 1 << form.bits, (N, K)).astype(np.uint8)
    scales = (rng.random((N, -(-K // form.group))) * 0.1).astype(dtype)
    a = rng.standard_normal((M, K)).astype(dtype)
    offset = 1 << (form.bits - 1)
    wide = np.repeat(scales.astype(np.float64), form.group, axis=1)[:, :K]
    weights = (codes.astype(np.float64) - offset) * wide
    bias = form.raw_bias + offset + (1 << form.bits)
    magnitude = np.abs(a.astype(np.float64)) @ (bias * wide).T
    exact = a.astype(np.float64) @ weights.T
    bound = np.abs(exact) * EPSILON[str(form.operand)] + magnitude * 2.0**-21
    return form.pack({"codes": codes, "scales": scales}), a, exact, bound


def kernel(N: int, K: int, form: FragmentRecords, **sizes: int) -> Any:
    choice = {"out": str(form.operand), "offset": 1 << (form.bits - 1), **sizes}
    return tilewright.compile(skinny_quant_matmul.trace(N, K, form, **choice), target=TARGET)


CASES = [
    ("one row, columns that end within a record", 4, "float16", 128, (72, 1100, 1), {"warps": 3, "records": 4, "blocks": 2}),
    ("sixteen rows, K over a cluster", 4, "float16", 128, (80, 2048, 13), {"tokens": 16, "warps": 4, "records": 2, "cluster": 2, "blocks": 4}),
    ("two bits, records of 32 rows", 2, "float16", 128, (200, 1024, 3), {"warps": 2, "records": 4, "blocks": 2}),
    ("bytes", 8, "float16", 128, (50, 512, 3), {"warps": 2, "records": 2, "blocks": 2}),
    ("one bit as bfloat16, groups of 64", 1, "bfloat16", 64, (100, 256, 3), {"warps": 2, "records": 2, "blocks": 1}),
    ("bfloat16", 4, "bfloat16", 128, (33, 512, 8), {"warps": 1, "records": 4, "blocks": 2}),
    ("groups of 32", 4, "float16", 32, (33, 300, 2), {"warps": 4, "records": 1, "blocks": 2}),
    ("K ends with the first of a worker's records, another worker has none", 4, "float16", 128, (40, 1152, 3), {"warps": 4, "records": 4, "blocks": 2}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("bits", "operand", "group", "shape", "sizes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_interpreted_as_exact(bits: int, operand: str, group: int, shape: Any, sizes: Any) -> None:
    N, K, M = shape
    form = FragmentRecords(bits, ALL[operand], ALL[operand], group=group)
    words, a, exact, bound = problem(N, K, M, form)
    c = np.full((M, N), np.nan, ALL[operand].numpy)
    kernel(N, K, form, **sizes).interpret(words, a, c)
    assert (np.abs(c.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize(("case", "schedule"), [(0, "early"), (1, "random"), (5, "late"), (7, "random")])
def test_emulated_as_exact(case: int, schedule: str) -> None:
    _, bits, operand, group, (N, K, M), sizes = CASES[case]
    form = FragmentRecords(bits, ALL[operand], ALL[operand], group=group)
    words, a, exact, bound = problem(N, K, M, form)
    made = kernel(N, K, form, **sizes)
    c = np.full((M, N), np.nan, ALL[operand].numpy)
    made.emulate(words, a, c, schedule=schedule, seed=3)
    assert (np.abs(c.astype(np.float64) - exact) <= bound).all()


def test_the_text_streams_weights_and_masks_codes() -> None:
    text = kernel(28672, 8192, FragmentRecords(4, ALL["float16"], ALL["float16"])).get_kernel_source()
    assert text.count("tw::bulk_load_hint(") == 3 and "POLICY_EVICT_FIRST" in text  # two ahead, and the one in the loop
    assert text.index("tw::bulk_load_hint(") < text.index("tw::griddepcontrol_wait()")
    assert "tw::load_fragment<4>(words, 0, &ring[" in text
    assert "words[0] >> 8u) & 983055u" in text and "tw::quad_transpose(" in text
    assert "tw::sync_threads()" not in text[text.index("with T.roles()") :]


def test_activations_are_asked_for_before_lanes_exchange_any() -> None:
    """K of 74 records, four to a worker: whoever K ends with waited for each of its loads before the next one (8192 x
    9472 by 8 rows 22.9 us, 20.6 now); of 9464 columns the last ones are looked at one by one."""
    for K in (9472, 9464):
        sizes = {"warps": 10, "cluster": 2, "records": 4}
        text = kernel(8192, K, FragmentRecords(4, ALL["float16"], ALL["float16"]), **sizes).get_kernel_source()
        steps = re.findall(r"load_fragment<4>\(words\w*, 0, &A_|tw::quad_(?=transpose)", text)
        assert re.fullmatch("(LLLLTTTT){6}", "".join("L" if "load" in step else "T" for step in steps))
        assert ("if (thread / 4 < M && " in text) == (K % 128 > 0)


@pytest.mark.parametrize(
    ("N", "K", "M"), [(28672, 8192, 1), (8192, 28672, 8), (4096, 4096, 16), (4096, 14336, 3), (999, 5000, 2)]
)
def test_choices_cover_all_columns(N: int, K: int, M: int) -> None:
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    _, across, _ = form.shape(N, K)
    candidates = skinny_candidates(N, K, M, form)
    assert candidates is not None and len(candidates.of) >= 3
    for way in candidates.of:
        assert way["tokens"] >= M
        assert way["cluster"] * way["warps"] * way["records"] >= -(-K // 128)
        assert across % way["records"] == 0


def test_no_register_spills_where_it_counts() -> None:
    form = FragmentRecords(4, ALL["float16"], ALL["float16"])
    for M in (1, 16):
        candidates = skinny_candidates(28672, 8192, M, form)
        assert candidates is not None
        choice = next(candidates.ranked(M))
        resources = kernel(28672, 8192, form, **choice).resources()["few_rows_kernel"]
        assert resources["spill_store_bytes"] == 0 and resources["stack_bytes"] == 0


NF4 = (-1.0, -0.696, -0.525, -0.395, -0.284, -0.185, -0.091, 0.0, 0.08, 0.161, 0.246, 0.338, 0.441, 0.563, 0.723, 1.0)


def looked_up(
    operand: str, values: tuple[float, ...], scale: str, group: int
) -> tuple[Any, tuple[np.ndarray, ...], Any]:
    """A kernel whose codes stand for values, its arguments, and the exact product."""
    dtype = ALL[operand]
    exact_values = np.array(values).astype(dtype.numpy).astype(np.float64)
    form = FragmentRecords(4, dtype, ALL[scale], group=group, values=tuple(map(float, exact_values)))
    N, K, M = 40, 512, 3
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
    codes[0, :16] = np.arange(16)
    scales = (2.0 ** rng.integers(-4, 3, (N, K // group))).astype(ALL[scale].numpy)
    a = rng.standard_normal((M, K)).astype(dtype.numpy)
    weights = exact_values[codes] * np.repeat(scales.astype(np.float64), group, axis=1)
    made = kernel(N, K, form, offset=0, warps=2, records=2, blocks=2)
    arguments = form.pack({"codes": codes, "scales": scales}), a, np.full((M, N), np.nan, dtype.numpy)
    return made, arguments, (a.astype(np.float64) @ weights.T, np.abs(a.astype(np.float64)) @ np.abs(weights).T)


@pytest.mark.parametrize(
    ("operand", "values", "scale", "group"),
    [("float16", E2M1, "float16", 128), ("bfloat16", E2M1, "float8_e8m0fnu", 32), ("float16", NF4, "float16", 64)],
)
def test_codes_that_stand_for_values(operand: str, values: tuple[float, ...], scale: str, group: int) -> None:
    made, (words, a, c), (exact, magnitude) = looked_up(operand, values, scale, group)
    bound = np.abs(exact) * EPSILON[operand] + magnitude * 2.0**-21
    made.interpret(words, a, c)
    assert (np.abs(c.astype(np.float64) - exact) <= bound).all()
    if values is NF4:
        again = np.full_like(c, np.nan)
        made.emulate(words, a, again)
        assert (np.abs(again.astype(np.float64) - exact) <= bound).all()
