"""Products of a few rows, against exact values."""

import numpy as np
import pytest
from cuda_gemm import operands, product
from test_cuda_dense import on_hopper, run

from tilewright.kernels.few_rows_matmul import FewRowsCandidates, InvalidSplits, TooManyRows, few_rows_matmul
from tilewright.kernels.roofline import HOPPER


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


def division(N, K, dtype="bfloat16", rows=1, transpose_B=True):
    """Rows of the weight in a tile, parts of K and slots of a ring."""
    return tuple(next(FewRowsCandidates(N, K, dtype, HOPPER, transpose_B).ranked(rows)).values())


def test_k_is_split_where_too_little_would_be_on_its_way():
    # Measured on an H200; the rings of 128 blocks of 64 rows hold 8 MB.
    assert division(8192, 8192, rows=64) == (64, 1, 8)
    assert division(4096, 4096) == (64, 2, 8)
    assert division(1024, 8192)[1] >= 4
    assert division(64, 64)[1] == 1  # parts of a step would be nothing


def test_rings_are_shallower_where_all_blocks_then_run_at_once():
    assert division(28672, 8192, rows=16) == (64, 1, 5)  # 448 tiles, four on a multiprocessor


def test_lines_of_a_weight_that_lies_across_are_read_in_full():
    """Measured on an H200: strips of 64 of its bytes take up to 1.15 times as long as those of 128."""
    for N, K in ((4096, 4096), (28672, 8192)):
        assert division(N, K, "float8_e4m3fn", transpose_B=False)[0] == 128
        assert division(N, K, "float8_e4m3fn", transpose_B=True)[0] == 64
        assert division(N, K, transpose_B=False) == division(N, K)  # halves: 64 are a line
