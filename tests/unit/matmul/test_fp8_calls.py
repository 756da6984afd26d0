"""Random calls of `fp8_scaled_matmul`: sizes, types, scales and strides of every kind, on every machine, against float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tilewright import fp8_scaled_matmul
from tilewright.ir.dtypes import ALL
from tilewright.matmul.arrays import with_rows_at

SEEDS = 200
OPERANDS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
SCALES = ("float32", "float16", "bfloat16", "float8_e8m0fnu")
TARGETS = (None, "cuda -arch=sm_80", "cuda -arch=sm_89", "cuda -arch=sm_90a -cores=4", "hip -arch=gfx942", "metal")
ROUNDING = {"float32": 2.0**-23, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LARGEST_HALF = 65504.0
CODES = (0x7C, 0x7E, 0x7F, 0x80, 0xFC, 0xFE, 0xFF)
"""Infinities, NaN, negative zero and the largest numbers of one type or another."""


@dataclass
class RandomCall:
    """A call that may have any size, and what it gives.

    Attributes
    ----------
    wide : the operands with their scales, float64.
    """

    arguments: list[Any]
    options: dict[str, Any]
    wide: list[np.ndarray]
    said: str = field(default="")

    @property
    def fast(self) -> bool:
        return bool(self.options.get("fast"))


def scale_of(
    draw: np.random.Generator, kind: str, lines: int, K: int, dtype: str, groups: int, each: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scales of a kind, and for each element of the operand."""
    shape = {"tensor": (1,), "lines": (lines, 1), "groups": (-(-lines // each), groups)}[kind]
    numbers = np.exp2(draw.integers(-2, 3, shape)) if dtype == "float8_e8m0fnu" else draw.random(shape) + 0.5
    scale = numbers.astype(ALL[dtype].numpy)
    wide = scale.astype(np.float64)
    if kind == "groups":
        wide = np.repeat(np.repeat(wide, each, 0)[:lines], K // groups, 1)
    return scale, np.broadcast_to(wide, (lines, K))


def random_call(seed: int) -> RandomCall:
    draw = np.random.default_rng(seed)
    M, N = (int(draw.choice([0, 1, 2, 3, 5, 17, 33, 64, 65, 70, 130])) for _ in "MN")
    K = int(draw.choice([0, 1, 2, 3, 5, 16, 17, 31, 32, 48, 64, 96, 127, 128, 129, 144, 160, 180, 256, 272, 512]))
    types = [str(draw.choice(OPERANDS)) for _ in "ab"]
    if draw.random() < 0.5:
        types[1] = types[0]
    dtype = str(draw.choice(SCALES))
    divisors = [one for one in range(1, K + 1) if K % one == 0 and one <= 64]
    kinds = [str(draw.choice(["tensor", "lines", "groups"] if K else ["tensor", "lines"])) for _ in "ab"]
    groups = int(draw.choice(divisors)) if divisors else 1
    if kinds[1] == "groups" and draw.random() < 0.3 and groups > 1:
        N = groups  # a line of scales for blocks looks as one for each column does
    each = int(draw.choice([1, 24, 32, 96, 100, max(K // groups, 1)])) if kinds[1] == "groups" else 1
    if kinds[1] == "groups" and kinds[0] != "groups" and -(-N // each) == 1 and groups == N:
        each = 1  # nothing says that these are of blocks
    operands = [draw.standard_normal((lines, K)).astype(ALL[name].numpy) for lines, name in zip((M, N), types)]
    if operands[0].size and draw.random() < 0.25:
        operands[0].view(np.uint8).flat[draw.integers(operands[0].size)] = draw.choice(CODES)
    scales = [scale_of(draw, kind, lines, K, dtype, groups, run) for kind, lines, run in zip(kinds, (M, N), (1, each))]
    transposed = bool(draw.random() < 0.5)
    b = operands[1] if transposed else operands[1].T
    given = [operands[0], scales[0][0], b if draw.random() < 0.5 else np.ascontiguousarray(b), scales[1][0]]
    if kinds[1] == "lines" and draw.random() < 0.5:
        given[3] = given[3].reshape(-1)
    given = [np.asfortranarray(one) if draw.random() < 0.2 else one for one in given]
    options: dict[str, Any] = {
        "transpose_B": transposed, "out_dtype": str(draw.choice(list(ROUNDING))), "target": TARGETS[draw.integers(len(TARGETS))],
        "block_N": each if kinds[1] == "groups" else None, **[{}, {}, {"exact": True}, {"fast": True}][draw.integers(4)],
    }  # fmt: skip
    with np.errstate(all="ignore"):
        wide = [values.astype(np.float64) * factors for values, (_, factors) in zip(operands, scales)]
    said = f"{M} x {N} x {K}, {types}, {kinds} of {dtype}, {groups} groups, {each} columns a block, {options}"
    return RandomCall(given, options, wide, said)


@pytest.mark.filterwarnings("ignore::tilewright.errors.TilewrightWarning")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_calls(seed: int) -> None:
    call = random_call(seed)
    found = fp8_scaled_matmul(*call.arguments, **call.options)
    out = call.options["out_dtype"]
    with np.errstate(all="ignore"):
        exact, size = call.wide[0] @ call.wide[1].T, np.abs(call.wide[0]) @ np.abs(call.wide[1]).T
    assert found.shape == exact.shape and found.dtype == ALL[out].numpy, call.said
    # Sums of Hopper's matrix unit have 14 bits, those of its whole K with fast=True.
    bound = size * (2.0**-10 if call.fast else 2.0**-11) + ROUNDING[out] * np.abs(exact) + 2.0**-24
    finite = np.isfinite(exact) & ((out != "float16") | (np.abs(exact) < LARGEST_HALF * 0.99))
    with np.errstate(invalid="ignore"):
        right = (np.abs(found.astype(np.float64) - exact) <= bound) | ~finite
    assert right.all(), call.said
    assert np.array_equal(np.isnan(found) & finite, np.isnan(exact) & finite), call.said
    assert not np.isfinite(found.astype(np.float64)[~np.isfinite(exact)]).any(), call.said


def test_rows_that_the_copy_engine_takes() -> None:
    """A matrix whose rows begin at multiples of 16 bytes is passed as it lies; others are copied into a wider one."""
    whole = np.arange(32, dtype=np.float32).reshape(4, 8)
    for array in (whole, whole[:, :7], np.asfortranarray(whole.T).T):
        assert with_rows_at(16, array) is array
    for array in (whole[:, :7].copy(), whole.T, np.asfortranarray(whole), whole[:1, :5].copy()):
        found = with_rows_at(16, array)
        assert found.strides[1] == 4 and found.strides[0] % 16 == 0 and np.array_equal(found, array)
