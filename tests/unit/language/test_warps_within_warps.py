"""Conditions within conditions on warps: a warpgroup that sets its registers, and whose warps then part ways."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir import Role, find

ROUNDS = 3


def summing(registers: bool, last: int) -> T.PrimFunc:
    """One warp loads A and one B, by threads; the others of their warpgroup up to number `last` store what the first
    warpgroup adds."""
    storing = last - 192

    @T.prim_func
    def program(
        A: T.Tensor((ROUNDS * 16, 24), "float32"),
        B: T.Tensor((ROUNDS * 16, 24), "float32"),
        C: T.Tensor((ROUNDS * 16, 24), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((16, 24), "float32")
            b = T.alloc_shared((16, 24), "float32")
            c = T.alloc_shared((16, 24), "float32")
            ready = T.alloc_barrier(64)
            free = T.alloc_barrier(128)
            done = T.alloc_barrier(128)
            stored = T.alloc_barrier(storing)
            tx = T.get_thread_binding()
            if tx < 128:
                if registers:
                    T.set_max_nreg(240, 1)
                for k in T.serial(ROUNDS):
                    T.barrier_wait(ready, k % 2)
                    T.barrier_wait(stored, (k + 1) % 2)
                    for i, j in T.Parallel(16, 24):
                        c[i, j] = a[i, j] + 2 * b[i, j]
                    T.barrier_arrive(free)
                    T.barrier_arrive(done)
            else:
                if registers:
                    T.set_max_nreg(24, 0)
                if tx < 160:
                    for k in T.serial(ROUNDS):
                        T.barrier_wait(free, (k + 1) % 2)
                        first = k * 16
                        for i, j in T.Parallel(16, 24):
                            a[i, j] = A[first + i, j]
                        T.barrier_arrive(ready)
                elif tx < 192:
                    for k in T.serial(ROUNDS):
                        T.barrier_wait(free, (k + 1) % 2)
                        for i, j in T.Parallel(16, 24):
                            b[i, j] = B[k * 16 + i, j]
                        T.barrier_arrive(ready)
                elif tx < last:
                    for k in T.serial(ROUNDS):
                        T.barrier_wait(done, k % 2)
                        own = T.alloc_fragment((16, 24), "float32")
                        T.copy(c, own)
                        T.copy(own, C[k * 16, 0])
                        T.barrier_arrive(stored)

    return program


@pytest.mark.parametrize(
    "registers, last, warps", [(False, 256, [4, 1, 1, 2]), (True, 256, [4, 1, 1, 2]), (True, 224, [4, 1, 1, 1, 1])]
)
def test_warps_part_ways_within_their_warpgroup(registers: bool, last: int, warps: list[int]) -> None:
    """It was refused: only some threads of a role came to what its threads do together."""
    program = summing(registers, last)
    roles = list(find(program.function.body, Role))
    assert [role.warps for role in roles] == warps
    assert [role.registers for role in roles] == ([240] + [24] * (len(warps) - 1) if registers else [None] * len(warps))
    kernel = tilewright.compile(program, target="cuda -arch=sm_90a")
    a, b = np.random.default_rng(0).standard_normal((2, ROUNDS * 16, 24)).astype(np.float32)
    for run in (
        kernel.interpret,
        *(lambda *x, s=s: kernel.emulate(*x, schedule=s) for s in ("late", "early", "random")),
    ):
        c = np.full_like(a, np.nan)
        run(a, b, c)
        assert np.array_equal(c, a + 2 * b)
