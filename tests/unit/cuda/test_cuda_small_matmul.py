"""Products of a few rows, against exact values."""

import numpy as np
import pytest
from cuda_gemm import operands, product
from test_cuda_dense import on_hopper, run

from tilewright.kernels.few_rows_matmul import InvalidSplits, TooManyRows, choose_splits, choose_stages, few_rows_matmul


@pytest.mark.parametrize(
    "dtype, M, N, K, splits",
    [("int8", 1, 72, 520, 8), ("bfloat16", 13, 136, 200, 1), ("int8", 64, 40, 300, 2), ("float16", 17, 64, 448, 4)],
)
def test_a_few_rows(dtype, M, N, K, splits):
    a, b = operands(M, N, K, dtype)
    kernel = on_hopper(few_rows_matmul, N, K, dtype, rows=M, splits=splits, stages=3)
    exact, size = product(a, b)
    out = "int32" if dtype == "int8" else "float32"
    for schedule in (None, "late"):
        found = run(kernel, (M, N), out, a, b, schedule=schedule)
        assert (np.abs(found - exact) <= (0 if dtype == "int8" else (K + 2) * 2.0**-24 * size)).all()


def test_rows_beyond_an_instruction():
    with pytest.raises(TooManyRows, match="65 rows are more than 64"):
        on_hopper(few_rows_matmul, 64, 64, rows=65)


def test_parts_that_no_cluster_has():
    with pytest.raises(InvalidSplits, match="K is not divided into 3 parts"):
        on_hopper(few_rows_matmul, 64, 64, splits=3)


def test_k_is_split_where_blocks_are_few():
    assert choose_splits(64 * 132, 8192) == 1
    assert choose_splits(64 * 33, 8192) == 4
    assert choose_splits(64, 64) == 1


def test_rings_let_all_blocks_run_at_once():
    assert choose_stages(132, 10 << 10) == 8
    assert choose_stages(4 * 132, 10 << 10) == 5
    assert choose_stages(100 * 132, 10 << 10) == 8
