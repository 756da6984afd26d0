"""Threads that leave a turn before its end pass by the barriers behind: what they handed over is waited for elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T

TARGETS = ("cpu", "cuda -arch=sm_80", "hip -arch=gfx942", "metal")
TURNS = 8
EXCHANGED = 128


def turned_over(tile: T.Tensor, sums: T.Tensor, factor: int) -> None:
    """Each thread adds what another one has left in the tile."""
    for i in T.Parallel(EXCHANGED):
        sums[i] = sums[i] + tile[EXCHANGED - 1 - i] * factor


over = T.macro(turned_over)


def goes_on(A):
    """Turns that end early hand their tile to the next one."""
    A: T.Tensor((TURNS,), "int32")
    O = T.empty((EXCHANGED,), "int32")
    with T.Kernel(1, threads=EXCHANGED):
        s, u = T.alloc_shared((EXCHANGED,), "int32"), T.alloc_shared((EXCHANGED,), "int32")
        f = T.alloc_fragment((EXCHANGED,), "int32")
        T.clear(f)
        for k in T.serial(TURNS):
            for i in T.Parallel(EXCHANGED):
                s[i] = k * EXCHANGED + i
            over(s, f, 1)
            if A[k] != 0:
                continue
            T.copy(f, u)
            over(u, f, 2)
        T.copy(f, O)
    return O


def ends(A):
    """What a loop's last turn leaves is waited for behind it."""
    A: T.Tensor((TURNS,), "int32")
    O = T.empty((EXCHANGED,), "int32")
    with T.Kernel(1, threads=EXCHANGED):
        s, u = T.alloc_shared((EXCHANGED,), "int32"), T.alloc_shared((EXCHANGED,), "int32")
        f = T.alloc_fragment((EXCHANGED,), "int32")
        T.clear(f)
        for k in T.serial(TURNS):
            for i in T.Parallel(EXCHANGED):
                s[i] = k * EXCHANGED + i
            if A[k] != 0:
                over(s, f, 1)
                break
            T.copy(f, u)
            over(u, f, 2)
        for i in T.Parallel(EXCHANGED):
            s[i] = i
        over(s, f, 3)
        T.copy(f, O)
    return O


def asks_again(A):
    """A condition of a loop that reads a tile is asked after turns that end early, too."""
    A: T.Tensor((TURNS,), "int32")
    O = T.empty((EXCHANGED,), "int32")
    with T.Kernel(1, threads=EXCHANGED):
        s, u = T.alloc_shared((1,), "int32"), T.alloc_shared((EXCHANGED,), "int32")
        f = T.alloc_fragment((EXCHANGED,), "int32")
        turn = T.alloc_var("int32", init=0)
        for i in T.Parallel(EXCHANGED):
            f[i] = i
        T.clear(s)
        while s[0] < TURNS - 2:
            T.copy(f, u)
            over(u, f, 2)
            for i in T.Parallel(1):
                s[i] = s[i] + 1
            turn = turn + 1
            if A[turn % TURNS] != 0:
                continue
            T.copy(f, u)
            over(u, f, 3)
        T.copy(f, O)
    return O


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("program", [goes_on, ends, asks_again], ids=lambda one: one.__name__)
def test_threads_that_leave_a_turn_wait_elsewhere(program, target: str) -> None:
    """Only barriers behind the jump were counted: the next turn, the condition and what stands behind the loop came too early."""
    for flags in ([1, 1, 0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0, 0, 0], [0] * TURNS):
        given = np.array(flags, np.int32)
        kernel = tilewright.jit(program, target=target).compile(given)
        for way in [{}] if target == "cpu" else [{"schedule": one, "seed": 3} for one in ("late", "early", "random")]:
            run = kernel.emulate if way else kernel
            assert np.array_equal(run(given, **way), kernel.interpret(given))
