"""Tensors that one statement changes by atomics and another one reads or writes: threads meet in between, and
between atomics of different kinds, but not between those of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T

TARGETS = ["cuda -arch=sm_80", "cuda -arch=sm_90a", "hip -arch=gfx942", "hip -arch=gfx1100", "metal -arch=apple7"]


def counting(before: str, behind: str, turns: int) -> Any:
    """Adds up `X` in `C`, with another use of `C` ahead of it and behind it, in every turn."""

    @T.prim_func
    def program(X: T.Tensor((200,), "int32"), C: T.Tensor((7,), "int32"), D: T.Tensor((4, 7), "int32")):
        with T.Kernel(1, threads=64):
            for turn in T.serial(turns):
                if before == "read":
                    for i in T.Parallel(7):
                        D[turn, i] = C[6 - i]
                elif before == "written":
                    for i in T.Parallel(7):
                        C[6 - i] = i
                for i in T.Parallel(200):
                    T.atomic_add(C[i % 7], X[i])
                for i in T.Parallel(200):
                    T.atomic_max(C[i % 7], X[i])
                if behind == "read":
                    for i in T.Parallel(7):
                        D[turn, i] = C[(i + 3) % 7]
                elif behind == "written":
                    for i in T.Parallel(7):
                        C[(i + 3) % 7] = i - turn

    return program


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("behind", ["", "read", "written"])
@pytest.mark.parametrize("before", ["", "read", "written"])
@pytest.mark.parametrize("target", TARGETS)
def test_threads_meet_between_atomics_and_others(target: str, before: str, behind: str, turns: int) -> None:
    """Nothing of this had a barrier once: atomics were taken to order themselves among all accesses."""
    kernel = tilewright.compile(counting(before, behind, turns), target=target)
    rng = np.random.default_rng(turns)
    x, c = rng.integers(-9, 10, 200).astype(np.int32), rng.integers(-9, 10, 7).astype(np.int32)
    found, interpreted = [c.copy(), np.zeros((4, 7), np.int32)], [c.copy(), np.zeros((4, 7), np.int32)]
    kernel.emulate(x, *found)
    kernel.interpret(x, *interpreted)
    assert np.array_equal(found[0], interpreted[0]) and np.array_equal(found[1], interpreted[1])


@pytest.mark.parametrize("target", TARGETS)
def test_atomics_of_one_kind_are_not_waited_for(target: str) -> None:
    @T.prim_func
    def program(X: T.Tensor((200,), "int32"), C: T.Tensor((7,), "int32")):
        with T.Kernel(1, threads=64):
            for _ in T.serial(3):
                for i in T.Parallel(200):
                    T.atomic_add(C[i % 7], X[i])
                for i in T.Parallel(100):
                    T.atomic_add(C[i % 5], X[i])

    text = tilewright.compile(program, target=target).get_kernel_source()
    assert "sync_threads()" not in text[text.rindex("program_kernel(") :]
