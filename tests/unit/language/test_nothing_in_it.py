"""Tensors and tiles without elements, which stand for those that a kernel leaves out."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import TilewrightError


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80", "hip -arch=gfx942", "metal -arch=apple7"])
@pytest.mark.parametrize("counted", [False, True])
def test_what_is_left_out_has_no_elements(target: str, counted: bool) -> None:
    """Their indices were out of range, and such tiles refused."""

    @T.prim_func
    def program(
        A: T.Tensor((64,), "float32"), Count: T.Tensor((3 if counted else 0,), "int32"), B: T.Tensor((64,), "float32")
    ):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((64 if counted else 0,), "float32")
            own = T.alloc_fragment((64 if counted else 0, 2), "float32")
            last = T.if_then_else(counted, Count[2], 50)
            if counted:
                T.copy(A, tile)
                T.clear(own)
            for i in T.Parallel(64):
                B[i] = T.if_then_else(i < last, (tile[i] if counted else A[i]) * 2, 0)

    kernel = tilewright.compile(program, target=target)
    a = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    count = np.array([0, 0, 20] if counted else [], np.int32)
    for run in (kernel if target == "cpu" else kernel.emulate, kernel.interpret):
        b = np.full_like(a, np.nan)
        run(a, count, b)
        assert np.array_equal(b, np.where(np.arange(64) < (20 if counted else 50), a * 2, 0))


def test_no_extent_is_negative() -> None:
    with pytest.raises(TilewrightError, match=r"an extent of T\.alloc_shared is -1") as caught:

        @T.prim_func
        def program(A: T.Tensor((64,), "float32")):
            with T.Kernel(1):
                T.alloc_shared((64, -1), "float32")

    assert "T.alloc_shared((64, -1)" in str(caught.value)


@pytest.mark.parametrize("use", ["T.copy(A, tile)", "T.clear(tile)", "tile[0] = 1", "A[0] = tile[3]"])
def test_it_is_a_mistake_to_use_it(use: str, tmp_path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(
        "import tilewright.language as T\n@T.prim_func\ndef program(A: T.Tensor((64,), 'float32')):\n"
        f"    with T.Kernel(1):\n        tile = T.alloc_shared((0,), 'float32')\n        {use}\n"
    )
    with pytest.raises(TilewrightError) as caught:
        exec(compile(file.read_text(), str(file), "exec"), {"__name__": "kernel"})
    assert use in str(caught.value) and "kernel.py:6" in str(caught.value), str(caught.value)
