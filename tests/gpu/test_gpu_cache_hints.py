"""Copies by cp.async with a hint to the L2 cache, whole and with ends, of every width that the instruction has."""

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.targets.cuda.arch import detect

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(detect() is None, reason="no GPU here")]

ROWS = 100


def copied(columns: int, eviction: str, width: int):
    """Tiles of 64 rows through shared memory; the last one has an end, and so has a row of `columns`."""

    @T.prim_func
    def main(A: T.Tensor((ROWS, columns), "float16"), C: T.Tensor((ROWS, columns), "float16")):
        with T.Kernel(T.ceildiv(columns, width), T.ceildiv(ROWS, 64), threads=64) as (bx, by):
            tile = T.alloc_shared((64, width), "float16")
            T.copy(A[by * 64, bx * width], tile, eviction_policy=eviction, prefer_instruction="cp_async")
            T.copy(tile, C[by * 64, bx * width])

    return main


@pytest.mark.parametrize("architecture", ["sm_80", detect().name if detect() else ""])
@pytest.mark.parametrize("eviction", ["evict_first", "evict_last", "evict_normal"])
@pytest.mark.parametrize("columns, piece", [(64, 16), (200, 16), (84, 8), (90, 4)])
def test_hints(columns, piece, eviction, architecture):
    kernel = tilewright.compile(copied(columns, eviction, 64), target=f"cuda -arch={architecture}")
    assert re.search(rf"cp_async_zfill_hint<{piece}>", kernel.get_kernel_source())
    a = torch.from_numpy(np.random.default_rng(0).standard_normal((ROWS, columns)).astype(np.float16)).cuda()
    c = torch.full_like(a, float("nan"))
    kernel(a, c)
    assert torch.equal(a, c)
