"""Products of different types on matrix units: the same numbers as in the interpreter, on every GPU."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import ALL

TARGETS = ["cuda -arch=sm_80", "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7"]
PAIRS = [
    ("float16", "float8_e4m3fn"), ("float16", "bfloat16"), ("bfloat16", "float8_e4m3fn"), ("float8_e5m2", "float16"),
    ("int8", "float16"), ("uint8", "bfloat16"), ("float32", "float16"), ("float8_e4m3fnuz", "float8_e4m3fnuz"),
    ("float6_e3m2fn", "float8_e5m2fnuz"), ("float8_e4m3b11fnuz", "bfloat16"), ("float8_e8m0fnu", "float8_e4m3fn"),
]  # fmt: skip


def program(
    types: tuple[str, str], size: tuple[int, int, int], tile: tuple[int, int, int], transpose_B: bool, scope: str
):
    (M, N, K), (BM, BN, BK) = size, tile

    @T.prim_func
    def product(
        A: T.Tensor((M, K), types[0]), B: T.Tensor((N, K) if transpose_B else (K, N), types[1]), C: T.Tensor((M, N), "float32")
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            a = T.alloc_fragment((BM, BK), types[0]) if scope == "fragment" else T.alloc_shared((BM, BK), types[0])
            b = T.alloc_shared((BN, BK) if transpose_B else (BK, BN), types[1])
            c = T.alloc_fragment((BM, BN), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
                T.copy(A[by * BM, k * BK], a)
                if transpose_B:
                    T.copy(B[bx * BN, k * BK], b)
                else:
                    T.copy(B[k * BK, bx * BN], b)
                T.gemm(a, b, c, transpose_B=transpose_B)
            T.copy(c, C[by * BM, bx * BN])

    return product


def operand(shape: tuple[int, ...], name: str) -> np.ndarray:
    record, rng = ALL[name], np.random.default_rng(sum(shape))
    if record.is_integer:
        return rng.integers(record.minimum, record.maximum + 1, shape).astype(record.numpy)
    values = rng.standard_normal(shape)
    return (
        np.exp2(rng.integers(-5, 5, shape)).astype(record.numpy) if record.minimum > 0 else values.astype(record.numpy)
    )


@pytest.mark.parametrize(
    ("size", "tile", "transpose_B", "scope"),
    [
        ((50, 40, 100), (32, 32, 32), False, "shared"), ((70, 60, 96), (64, 64, 32), True, "shared"),
        ((48, 33, 70), (32, 32, 32), False, "fragment"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("types", PAIRS, ids=" by ".join)
def test_products(types, target, size, tile, transpose_B, scope):
    (M, N, K) = size
    a, b = operand((M, K), types[0]), operand((N, K) if transpose_B else (K, N), types[1])
    found = np.full((M, N), np.nan, np.float32)
    kernel = tilewright.compile(program(types, size, tile, transpose_B, scope), target=target)
    kernel.emulate(a, b, found)
    right = b.astype(np.float64)
    exact = a.astype(np.float64) @ (right.T if transpose_B else right)
    assert np.abs(found - exact).max() <= K * 2.0**-24 * np.abs(exact).max()
    in_float32 = {"float16", "bfloat16"} == set(types) or "float32" in types
    scalar = in_float32 and target.startswith("cuda")  # which multiplies no float32 without rounding it
    assert ("scalar products" in kernel.explain()) == scalar


def test_a_product_whose_wide_tiles_have_no_room_stays_as_it_was():
    kernel = tilewright.compile(
        program(("float16", "bfloat16"), (64,) * 3, (64,) * 3, True, "shared"), target="metal -arch=apple7"
    )
    a, b = operand((64, 64), "float16"), operand((64, 64), "bfloat16")
    found = np.full((64, 64), np.nan, np.float32)
    kernel.emulate(a, b, found)
    np.testing.assert_allclose(found, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-4, atol=1e-4)
    assert "scalar products" in kernel.explain()


def test_what_holds_what():
    names = ("float16", "bfloat16", "float32")
    held = {
        name: [wide for wide in names if ALL[wide].contains(ALL[name])]
        for name in ("float8_e5m2", "uint8", "int16", "int32")
    }
    assert held == {"float8_e5m2": list(names), "uint8": list(names), "int16": ["float32"], "int32": []}
    for name in (name for name, one in ALL.items() if one.is_float and one.bits <= 8):
        values = np.arange(1 << ALL[name].code_bits).astype(np.uint8).view(ALL[name].numpy).astype(np.float64)
        with np.errstate(over="ignore"):
            for wide in ("float16", "bfloat16"):
                kept = values.astype(ALL[wide].numpy).astype(np.float64)
                assert ALL[wide].contains(ALL[name]) == np.array_equal(kept, values, equal_nan=True), (wide, name)
