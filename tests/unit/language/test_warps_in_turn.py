"""Conditions on warps one behind the other: what one group of warps left in shared memory is there for the others."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T

TARGETS = ["cpu", "cuda -arch=sm_80", "cuda -arch=sm_90a", "hip -arch=gfx942", "metal -arch=apple7"]


@pytest.mark.parametrize("target", TARGETS)
def test_other_warps_wait_for_those_that_go_on(target: str) -> None:
    """The first warps go on under the second condition, too, and the others read what they left: they were run at once."""

    @T.prim_func
    def program(A: T.Tensor((5, 24), "float32"), B: T.Tensor((24,), "float32"), C: T.Tensor((24,), "float32")):
        with T.Kernel(1, threads=128):
            shared = T.alloc_shared((24,), "float32")
            if T.get_thread_binding() < 64:
                scale = T.alloc_fragment((1,), "float32")
                sums = T.alloc_fragment((24,), "float32")
                scale[0] = 0
                for k in T.serial(5):
                    scale[0] += A[k, 0]
                for j in T.Parallel(24):
                    sums[j] = 0
                    for k in T.serial(5):
                        sums[j] += A[k, j]
                    sums[j] *= scale[0]
                T.copy(sums, shared)
            if T.get_thread_binding() < 64:
                for j in T.Parallel(24):
                    B[j] = shared[23 - j]
            else:
                for j in T.Parallel(24):
                    C[j] = 2 * shared[(j + 1) % 24]

    kernel = tilewright.compile(program, target=target)
    a = np.random.default_rng(0).standard_normal((5, 24)).astype(np.float32)
    wanted = a.sum(0) * a[:, 0].sum()
    for run in (kernel if target == "cpu" else kernel.emulate, kernel.interpret):
        b, c = np.full((2, 24), np.nan, np.float32)
        run(a, b, c)
        assert np.allclose(b, wanted[::-1], 1e-5, 1e-5) and np.allclose(c, 2 * np.roll(wanted, -1), 1e-5, 1e-5)


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a", "hip -arch=gfx942"])
@pytest.mark.parametrize("groups", [(-1,), (0, 1), (1,)])
def test_warpgroups_by_number(groups, target):
    """-1 is all of them, as in TileLang."""

    @T.prim_func
    def program(C: T.Tensor((256,), "int32")):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            C[tx] = 1
            with T.ws(*groups):
                C[tx] = 5

    kernel, found = tilewright.compile(program, target=target), np.zeros(256, np.int32)
    for run in (kernel.interpret, kernel if target == "cpu" else kernel.emulate):
        run(found)
        assert found.tolist() == [5 if groups != (1,) or tx >= 128 else 1 for tx in range(256)]
