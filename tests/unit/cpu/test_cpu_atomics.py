"""Atomic updates on processors: in tensors by the machine's instructions, in a block's own tiles without."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir import dtypes

PLACES, CHANGES = 7, 300
KINDS = {"add": np.add, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("tile", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"],
)
def test_every_change_is_in_the_element(dtype: str, kind: str, tile: bool) -> None:
    update = getattr(T, f"atomic_{kind}")

    @T.prim_func
    def program(I: T.Tensor((CHANGES,), "int32"), X: T.Tensor((CHANGES,), dtype), Y: T.Tensor((PLACES,), dtype)):
        with T.Kernel(1, threads=32):
            if tile:
                own = T.alloc_shared((PLACES,), dtype)
                T.copy(Y, own)
                for i in T.Parallel(CHANGES):
                    update(own[I[i]], X[i])
                T.copy(own, Y)
            else:
                for i in T.Parallel(CHANGES):
                    update(Y[I[i]], X[i])

    random = np.random.default_rng(len(dtype) + len(kind))
    numbers = dtypes.dtype(dtype).numpy
    at = random.integers(0, PLACES, CHANGES).astype(np.int32)
    given = random.integers(0 if dtype.startswith("u") else -2, 3, CHANGES).astype(numbers)
    found = random.integers(0, 3, PLACES).astype(numbers)
    due = found.copy()
    KINDS[kind].at(due, at, given)
    kernel = tilewright.compile(program, target="cpu")
    kernel(at, given, found)
    assert np.array_equal(found, due)
    assert ("tw_own_" in kernel.get_kernel_source()) == tile
