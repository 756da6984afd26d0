"""What threads have for themselves where warps part ways: values set under a condition on the thread are read behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.language.mistakes import MisplacedRole

NVIDIA = ("cuda -arch=sm_80", "cuda -arch=sm_90a")
GPUS = (*NVIDIA, "hip -arch=gfx942", "metal -arch=apple7")
GIVEN = np.arange(64, dtype=np.int32)
THREAD = np.arange(128)


def found(function: Callable[..., Any], target: str) -> np.ndarray:
    kernel = tilewright.jit(target=target)(function).compile(GIVEN)
    emulated = kernel.emulate(GIVEN)
    np.testing.assert_array_equal(emulated, kernel.interpret(GIVEN))
    return emulated


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("others", [False, True])
def test_a_scalar_that_some_warps_change(others: bool, target: str) -> None:
    """Each role had a copy of its own, and what was behind the roles read the first value."""

    def program(A):
        A: T.Tensor((64,), "int32")
        O = T.empty((128,), "int32")
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "int32")
            c = T.alloc_var("int32", init=1)
            if tx < 64:
                T.copy(A, s)
                c = c + 5
            elif others:
                c = c + 7
            O[tx] = c
        return O

    np.testing.assert_array_equal(found(program, target), np.where(THREAD < 64, 6, 1 + 7 * others))


@pytest.mark.parametrize("target", NVIDIA)
def test_a_scalar_that_some_warps_change_in_a_loop(target: str) -> None:
    """One thread of a role without tiles counted for all of its threads."""

    def program(A):
        A: T.Tensor((64,), "int32")
        O = T.empty((128,), "int32")
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "int32")
            c = T.alloc_var("int32", init=1)
            for k in T.serial(3):
                if tx < 64:
                    T.copy(A, s)
                    c = c + s[tx]
                else:
                    c = c + k
            O[tx] = c
        return O

    np.testing.assert_array_equal(found(program, target), np.where(THREAD < 64, 1 + 3 * THREAD, 4))


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("changed", [False, True])
def test_conditions_behind_it_are_all_threads(changed: bool, target: str) -> None:
    """A statement that mentioned a scalar of the role went into the role, and the other threads did nothing."""

    def program(A):
        A: T.Tensor((64,), "int32")
        O = T.empty((128,), "int32")
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "int32")
            c = T.alloc_var("int32", init=3)
            if tx < 64:
                T.copy(A, s)
                if changed:
                    c = c * 2
                O[tx] = c
            if c > 3:
                O[tx] = c + 10
            else:
                O[tx] = -c
        return O

    expected = np.where((THREAD < 64) & changed, 16, -3)
    np.testing.assert_array_equal(found(program, target), expected)


@pytest.mark.parametrize("target", GPUS)
def test_what_goes_on_with_a_role_stays_behind_what_it_needs(target: str) -> None:
    """Fuzz seed 10060198: the last loop went into the role of the name that both mention, before `factor` was there."""

    def program(A):
        A: T.Tensor((64,), "int32")
        O = T.empty((128,), "int32")
        with T.Kernel(1, threads=128) as bx:
            tx = T.get_thread_binding()
            first = T.alloc_var("int32", init=bx + 2)
            s, other = T.alloc_shared((64,), "int32"), T.alloc_shared((64,), "int32")
            tile = T.alloc_fragment((128,), "int32")
            T.copy(A, other)
            if tx // 32 == 3:
                for i in T.Parallel(64):
                    s[i] = first
            factor = T.alloc_var("int32", init=other[5])
            for i in T.Parallel(128):
                tile[i] = first * factor
            T.copy(tile, O)
        return O

    np.testing.assert_array_equal(found(program, target), np.full(128, 10))


@pytest.mark.parametrize("target", GPUS)
def test_a_fragment_that_some_warps_fill_and_all_read_is_refused(target: str) -> None:
    def program(A):
        A: T.Tensor((64,), "int32")
        O = T.empty((128,), "int32")
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            tile = T.alloc_fragment((64,), "int32")
            if tx < 64:
                T.copy(A, tile)
            if tx >= 64:
                O[tx] = 5
            T.copy(tile, O[0])
        return O

    with pytest.raises(MisplacedRole, match="tile"):
        tilewright.jit(target=target)(program).compile(GIVEN)
