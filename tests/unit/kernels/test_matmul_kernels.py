"""The library's products against float64 and exact integers, on sizes off every grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.kernels.matmul import linear, matmul
from tilewright.kernels.quant_matmul import InvalidGroup, quant_matmul
from tilewright.options import InvalidOption


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng, record = np.random.default_rng(seed), tilewright.dtype(dtype)
    if record.is_integer:
        return rng.integers(int(record.minimum), int(record.maximum), shape, endpoint=True).astype(record.numpy)
    return rng.standard_normal(shape).astype(record.numpy)


def close(found: np.ndarray, a: np.ndarray, b: np.ndarray, slack: float = 1.0) -> None:
    """Floats within the rounding of a sum of K products in float32, and of the result's own type."""
    exact, magnitude = a @ b, np.abs(a) @ np.abs(b)
    epsilon = 2.0 ** -(tilewright.dtype(found.dtype).mantissa_bits + 1)
    bound = slack * a.shape[1] * 2.0**-23 * magnitude + epsilon * np.abs(exact)
    assert (np.abs(found.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize(
    ("dtype", "transpose_B", "sizes"),
    [
        ("float32", False, (130, 101, 257)),
        ("bfloat16", True, (3, 70, 40)),
        ("int8", False, (37, 100, 530)),
        ("uint8", True, (2, 33, 64)),
    ],
)
def test_matmul(dtype: str, transpose_B: bool, sizes: tuple[int, int, int]) -> None:
    M, N, K = sizes
    a, b = random((M, K), dtype), random((N, K) if transpose_B else (K, N), dtype, 1)
    integers = tilewright.dtype(dtype).is_integer
    types = {"accumulate": "int32", "out": "int32"} if integers else {}
    found = matmul(a, b, dtype=dtype, transpose_B=transpose_B, **types)
    right = b.T if transpose_B else b
    if integers:
        np.testing.assert_array_equal(found, a.astype(np.int64) @ right.astype(np.int64))
    else:
        close(found, a.astype(np.float64), right.astype(np.float64))


def test_one_linear_kernel_serves_every_number_of_rows() -> None:
    N, K = 50, 90
    kernel = linear(N, K, "int8", "int32", "int32")
    w = random((N, K), "int8", 1)
    packed = kernel.pack(W=w)
    for M in (0, 1, 2, 5, 7, 8, 9, 63, 64, 65, 130):
        a = random((M, K), "int8", M)
        c = np.full((M, N), -1, np.int32)
        kernel(a, packed, c)
        np.testing.assert_array_equal(c, a.astype(np.int64) @ w.T.astype(np.int64))


def quantised(
    M: int, N: int, K: int, weights: str, group: int, zero: float | None, activations: str, arithmetic: str, out: str
) -> None:
    """Run one variant and compare with the product of what it was given, in float64."""
    kernel = quant_matmul(N, K, weights, group, zero, activations, out, arithmetic)
    record = tilewright.dtype(weights)
    w, groups = random((N, K), weights, 1), K // group
    scales = (random((groups, N), "float32", 2) * 0.01).astype(np.float32)
    zeros = np.full((groups, N), zero, np.float32)
    if zero is None:
        zeros = np.random.default_rng(3).integers(0, int(record.maximum), (groups, N)).astype(np.float32)
    a = random((M, K), activations, 4)
    given: list[Any] = [a]
    tokens = np.ones((M, 1))
    if activations == "int8":
        scale = np.random.default_rng(5).random(M, dtype=np.float32)
        given.append(scale)
        tokens = scale[:, None].astype(np.float64)
    wide = a.astype(np.float64)
    if activations != "int8" and arithmetic == "int8":
        floats = a.astype(np.float32)
        largest = np.abs(floats).max(axis=1, keepdims=True)
        wide = np.round(floats * (np.float32(127) / largest)).astype(np.float64)
        tokens = (largest / np.float32(127)).astype(np.float64)
    given += [kernel.pack(W=tilewright.pack(w, record)), scales] + ([zeros] if zero is None else [])
    c = np.zeros((M, N), tilewright.dtype(out).numpy)
    kernel(*given, c)
    codes = w.reshape(N, groups, group).astype(np.float64)
    dense = ((codes - zeros.T[:, :, None]) * scales.T[:, :, None].astype(np.float64)).reshape(N, K)
    # The zero points are taken off at the end, so that what cancels counts as well.
    apart = ((np.abs(codes) + np.abs(zeros.T[:, :, None])) * np.abs(scales.T[:, :, None])).reshape(N, K)
    exact, magnitude = (wide * tokens) @ dense.T, np.abs(wide * tokens) @ apart.T
    epsilon = 2.0 ** -(tilewright.dtype(out).mantissa_bits + 1)
    assert (np.abs(c.astype(np.float64) - exact) <= K * 2.0**-23 * magnitude + epsilon * np.abs(exact)).all()


@pytest.mark.parametrize(
    ("sizes", "weights", "group", "zero", "activations", "arithmetic", "out"),
    [
        ((5, 70, 256), "uint4", 128, 8.0, "float32", "int8", "float32"),
        ((37, 100, 96), "uint2", 32, None, "bfloat16", "int8", "bfloat16"),
        ((3, 33, 96), "int4", 96, 0.0, "int8", "int8", "float32"),
        ((2, 40, 128), "uint4", 64, None, "float32", "float32", "float32"),
        ((35, 40, 128), "uint4", 64, 7.5, "float32", "float32", "float32"),
        ((7, 70, 128), "uint4", 32, 7.5, "bfloat16", "int8", "float32"),
    ],
)
def test_quantised(sizes: tuple[int, int, int], weights: str, group: int, zero: float | None, activations: str, arithmetic: str, out: str) -> None:  # fmt: skip
    quantised(*sizes, weights, group, zero, activations, arithmetic, out)


def test_groups_must_divide() -> None:
    with pytest.raises(InvalidGroup, match="groups of 100 do not divide K = 256"):
        quant_matmul(64, 256, group=100)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("zero", "none", "a number, or None where the kernel takes a tensor of zero points"),
        ("zero", float("nan"), "a number, or None where the kernel takes a tensor of zero points"),
        ("weights", "int16", "an integer type of at most 8 bits"),
        ("activations", "int32", "a float type or 'int8'"),
        ("out", "int4", "a float type, or an integer type of whole bytes"),
        ("arithmetic", "int4", "'int8' or 'float32'"),
        ("codebook", (0, 300, *range(14)), "16 whole numbers, at most 255 apart, multiplied in int8"),
        ("codebook", tuple(range(8)), "16 whole numbers, at most 255 apart, multiplied in int8"),
    ],
)
def test_impossible_options_are_named(option: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        quant_matmul(64, 256, **{option: value})
    assert f"{option} is {value!r}, expected {expected}" in str(caught.value)


FORMATS = [f"{sign}int{bits}" for bits in (1, 2, 4, 8) for sign in ("", "u")]


@pytest.mark.proof
@pytest.mark.parametrize("activations", [("int8", "int8"), ("bfloat16", "int8"), ("float32", "float32")], ids=str)
@pytest.mark.parametrize("weights", FORMATS)
def test_every_width_of_codes(weights: str, activations: tuple[str, str]) -> None:
    zero = 0.0 if weights.startswith("int") else None
    for rows in (3, 45):
        quantised(rows, 50, 192, weights, 64, zero, *activations, "float32")


def test_few_rows_unpack_codes_in_registers_and_many_rows_a_tile_of_them() -> None:
    function = quant_matmul.trace(64, 256, "uint4", 128, 8.0, block_N=96)
    text = tilewright.compile(function, target="cpu -arch=avx512-vnni").get_kernel_source()
    few, many = text.split("static int32_t quant_matmul_block_2(")
    assert "uint8_t weight[" not in few
    assert "uint8_t weight[12288]" in many
