"""Numbers that a call passes to a kernel in the emulator: of every type, as Python's and as NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T

TARGETS = ["cuda -arch=sm_80", "hip -arch=gfx942", "metal -arch=apple7"]
VALUES = {
    "float16": 1.5, "bfloat16": -2.0, "float8_e4m3fn": 0.5, "float32": 3.25, "float64": 0.125, "bool": True, "int8": -7,
    "uint8": 200, "int16": -300, "int32": -70000, "uint32": 4000000000, "int64": -(1 << 40), "uint64": 1 << 63,
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", VALUES)
def test_numbers_arrive_whole(dtype: str, target: str) -> None:
    """A whole number for a float was passed by its bits, a float16 was refused."""
    if dtype == "float64" and target.startswith("metal"):
        pytest.skip("Metal has no doubles")

    @T.prim_func
    def program(s: getattr(T, dtype), Y: T.Tensor((4,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                Y[i] = s

    kernel, kind = tilewright.compile(program, target=target), np.dtype(tilewright.dtype(dtype).numpy)
    given = [VALUES[dtype], kind.type(VALUES[dtype])]
    given += [1] if tilewright.dtype(dtype).is_float else []
    for value in given:
        found = np.zeros(4, kind)
        kernel.emulate(value, found)
        assert (found == kind.type(value)).all()
