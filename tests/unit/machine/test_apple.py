"""Apple's records: where the elements of matrices lie, by the formulas that other people's kernels use, and what nobody takes yet."""

from __future__ import annotations

import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import ALL
from tilewright.layout.layout import Layout
from tilewright.machine.apple import COOPERATIVE_PLACES, FAMILIES, PLACES, of_chip


def places(layout: Layout) -> dict[tuple[int, int], tuple[int, int]]:
    """Lane and register of every element."""
    lanes, registers = layout.table("thread"), layout.table("register")
    rows, columns = layout.shape
    return {(i, j): (int(lanes[i][j]), int(registers[i][j])) for i in range(rows) for j in range(columns)}


def test_matrices_of_simdgroups_lie_as_mlx_says() -> None:
    """The formula of MLX's steel products: a lane's row and first column."""
    expected = {}
    for lane in range(32):
        quad = lane // 4
        row, column = (quad & 4) + lane // 2 % 4, (quad & 2) * 2 + lane % 2 * 2
        expected |= {(row, column + register): (lane, register) for register in range(2)}
    assert places(PLACES) == expected


def test_cooperative_tensors_lie_as_mlx_says() -> None:
    """The formula of MLX's products on M5: eight elements a lane of 16 x 16; operands and results of 32 columns are two of them."""
    expected = {}
    for lane in range(32):
        for i in range(8):
            row = ((lane // 4) & 4 | (lane // 2) & 3) + 8 * (i // 4)
            column = (((lane // 4) & 2) | (lane & 1)) * 4 + i % 4
            expected[row, column] = (lane, i)
    assert places(COOPERATIVE_PLACES) == expected
    (half, bfloat) = FAMILIES["apple10"].untried_instructions
    assert (half.m, half.n, half.k) == (16, 32, 16) and half.a == ALL["float16"] and bfloat.a == ALL["bfloat16"]
    wide = {**expected, **{(i, j + 16): (lane, r + 8) for (i, j), (lane, r) in expected.items()}}
    assert places(half.d_fragment) == places(half.b_fragment) == wide and places(half.a_fragment) == expected


@T.prim_func
def product(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, clear_accum=True)
        T.copy(c, C)


@pytest.mark.parametrize("name", ["apple7", "m4-max", "apple10", "m5"])
def test_explain_says_that_cooperative_tensors_are_unused(name: str) -> None:
    arch = FAMILIES[name] if name in FAMILIES else of_chip(name)
    explained = tilewright.compile(product, target=f"metal -arch={name}").explain()
    said = f"not cooperative_matmul2d: nobody has run it on {arch.name} yet"
    assert (said in explained) == (arch.family >= 10) == bool(arch.untried_instructions)
    assert "gemm: simdgroup_product on 2 x 2 warps" in explained
