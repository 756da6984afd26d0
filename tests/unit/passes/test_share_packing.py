"""Tiles that many blocks fill alike are filled once, in a kernel before; others stay where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.ir import Function, If, Kernel, walk
from tilewright.kernels.matmul import linear, matmul
from tilewright.ops import Copy, Gemm
from tilewright.passes.context import Context
from tilewright.passes.tile.gemms.select_instructions import select_instructions
from tilewright.passes.tile.processors.forward_operands import SOURCES
from tilewright.passes.tile.processors.share_packing import share_packing
from tilewright.targets.cpu.arch import arch

RNG = np.random.default_rng(5)


def packed_once(function: Function, context: Context) -> Function:
    return share_packing(select_instructions(function, context), context)


def shared(dtype: str, N: int, K: int, **options: Any) -> Function:
    a, b = np.zeros((8, K), np.float32), np.zeros((K, N), np.float32)
    sums = "int32" if dtype == "int8" else "float32"
    program = matmul.trace(a, b, dtype=dtype, accumulate=sums, out=sums, **options)
    return packed_once(program.function, Context(arch({"arch": "avx512-vnni"})))


def kernels(function: Function) -> int:
    return sum(isinstance(node, Kernel) for node in walk(function.body))


def test_both_operands_where_the_grid_has_rows_and_columns():
    function = shared("float32", 512, 256)
    assert kernels(function) == 5  # a; where there are several rows of blocks b and the product, else the product
    assert any(isinstance(node, If) for node in walk(function.body))


def test_one_column_of_blocks_shares_only_the_right_operand():
    assert kernels(shared("float32", 128, 256)) == 3


def test_shifted_rows_are_copied_by_each_block():
    assert kernels(shared("int8", 512, 1024)) == 3


def test_packed_weights_are_left_alone():
    function = linear.trace(512, 256).function
    made = packed_once(function, Context(arch({"arch": "avx512-vnni"})))
    copies = [node for node in walk(made.body) if isinstance(node, Copy)]
    assert kernels(made) == 3  # the product of few rows, the copies of many, their product
    assert [copy.source.buffer.name for copy in copies] == ["A", "W", "c", "A", "W", "c"]


def test_a_grid_without_neighbours_is_left_alone():
    context = Context(arch({"arch": "avx512-vnni"}))
    function = select_instructions(linear.trace(96, 256).function, context)
    assert share_packing(function, context) is function


def test_gemms_know_where_the_tensors_in_shared_tiles_end():
    context = Context(arch({"arch": "avx512-vnni"}))
    a, b = np.zeros((8, 250), np.float32), np.zeros((250, 500), np.float32)
    made = packed_once(matmul.trace(a, b, dtype="float32", accumulate="float32", out="float32").function, context)
    gemms = [node for node in walk(made.body) if isinstance(node, Gemm)]
    sources = context.facts[SOURCES]
    assert {(sources[gemm.a].buffer.name, sources[gemm.b].buffer.name) for gemm in gemms if gemm.b in sources} == {
        ("A", "B")
    }


@pytest.mark.parametrize("transpose_B", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "float32", "bfloat16"])
def test_products_of_every_number_of_rows_of_blocks(dtype: str, transpose_B: bool):
    N, K = 150, 333
    carrier = np.float32 if dtype == "bfloat16" else np.dtype(dtype)
    b = RNG.integers(-8, 8, (N, K) if transpose_B else (K, N)).astype(carrier)
    options = {"block_M": 64, "block_N": 48, "block_K": 64, "transpose_B": transpose_B}
    sums = "int32" if dtype == "int8" else "float32"
    for M in (1, 63, 64, 65, 200):
        a = RNG.integers(-8, 8, (M, K)).astype(carrier)
        exact = a.astype(np.int64) @ (b.T if transpose_B else b).astype(np.int64)
        if dtype == "bfloat16":
            import ml_dtypes

            given = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
        else:
            given = a, b
        found = matmul(*given, dtype=dtype, accumulate=sums, out=sums, **options)
        assert np.array_equal(found, exact), M
