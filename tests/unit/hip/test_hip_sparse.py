"""2:4 sparse products on smfmac: interpreted, emulated, and in the machine code."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hip_programs import on
from test_cuda_sparse import SCHEDULES, problem, sparse_matmul

from tilewright.formats.sparse import in_lanes

FORMS = [
    *((arch, dtype, "smfmac_m16n16k32") for arch in ("gfx942", "gfx950") for dtype in ("float16", "bfloat16")),
    *((arch, "int8", "smfmac_m16n16k64") for arch in ("gfx942", "gfx950")),
    *(("gfx942", f"float8_{kind}fnuz", "smfmac_m16n16k64") for kind in ("e4m3", "e5m2")),
    *(("gfx950", dtype, "smfmac_m16n16k64") for dtype in ("float8_e4m3fn", "float8_e5m2")),
]


@pytest.mark.parametrize("order", ["rows", "lanes"])
@pytest.mark.parametrize("transpose_B", [True, False])
@pytest.mark.parametrize(("arch", "dtype", "function"), FORMS)
def test_sparse_products(arch: str, dtype: str, function: str, transpose_B: bool, order: str) -> None:
    size, block = ((128, 64, 256), (64, 32, 128)) if order == "lanes" else ((100, 72, 320), (64, 32, 128))
    kept, metadata, b, expected = problem(*size, dtype, transpose_B)
    if order == "lanes":  # tiles of 16 bytes of metadata, each in the order of lanes
        tiles = metadata.reshape(2, 64, 2, 16).swapaxes(1, 2)
        metadata = np.ascontiguousarray(in_lanes(tiles, 8 if "8" in dtype else 16).swapaxes(1, 2)).reshape(128, 32)
    kernel = on(arch, sparse_matmul).compile(
        kept, metadata, b, dtype=dtype, accumulator="int32" if dtype == "int8" else "float32", block=block,
        transpose_B=transpose_B, order=order,
    )  # fmt: skip
    assert f"sparse gemm: {function} on" in kernel.explain()
    assert np.array_equal(kernel.interpret(kept, metadata, b), expected)
    for schedule, seed in SCHEDULES[:: 2 if transpose_B else 3]:
        assert np.array_equal(kernel.emulate(kept, metadata, b, schedule=schedule, seed=seed), expected)
    assert len(re.findall(r"^\s+v_smfmac_", kernel.ptx(), re.M)) >= 2
