"""Copy engines like Hopper's with other limits: boxes are as long, and tiles lie as the machine's record says.

Stores of accumulators took the family's spans in place of the machine's, and boxes were as long as Hopper's engine takes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import cuda_gemm
import numpy as np
import pytest

from tilewright.ir import TensorMap, find
from tilewright.machine.arch import Arch
from tilewright.targets.base import TARGETS
from tilewright.targets.cuda.arch import arch as cuda_arch

HOPPER = cuda_arch({"arch": "sm_90a"})


@contextlib.contextmanager
def machine(arch: Arch) -> Iterator[None]:
    known = TARGETS["cuda"]
    TARGETS["cuda"] = replace(known, arch=lambda options: arch)
    try:
        yield
    finally:
        TARGETS["cuda"] = known


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("spans", [(64,), (64, 32), (32,), (128,), ()])
@pytest.mark.parametrize("box", [256, 64, 32])
def test_products_on_engines_with_other_limits(dtype: str, spans: tuple[int, ...], box: int) -> None:
    assert HOPPER.copy_engine is not None
    sums = {"dtype": dtype, **({"accumulator": "int32", "out": "int32"} if dtype == "int8" else {})}
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 208)).astype(dtype) for rows in (130, 136))
    engine = replace(HOPPER.copy_engine, box=box)
    with machine(replace(HOPPER, spans=spans, copy_engine=engine)):
        kernel = cuda_gemm.on("sm_90a", cuda_gemm.matmul).compile(a, b, **sums, block=(128, 128, 128), threads=256)
    boxes = [node.box for node in find(kernel.program.final, TensorMap)]
    assert all(extent <= box for one in boxes for extent in one), boxes
    assert boxes or not spans or box < 256
    assert np.array_equal(kernel.emulate(a, b), a.astype(np.float64) @ b.astype(np.float64).T)
