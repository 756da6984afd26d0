"""Where memory says which element is meant, or what is stored, it is asked once: before the statement changes it, and again where a later one has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_found_programs import GPUS

import tilewright
import tilewright.language as T

GIVEN = np.array([4, -3, 7, 2, -5, 6, 1, 9], np.int32)


def result(function: Any, target: str) -> np.ndarray:
    """What a program makes of the numbers, on a machine as by the interpreter."""
    kernel = tilewright.jit(target=target)(function).compile(GIVEN)
    made = np.asarray(kernel(GIVEN) if target == "cpu" else kernel.emulate(GIVEN))
    np.testing.assert_array_equal(made, kernel.interpret(GIVEN))
    return made


@pytest.mark.parametrize("target", ["cpu", *GPUS])
def test_a_tile_filled_by_a_number_of_its_own(target: str) -> None:
    """Threads read the number while others wrote over it: a race on every GPU."""

    def program(A):
        A: T.Tensor((8,), "int32")
        O = T.empty((8,), "int32")
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8,), "int32")
            T.copy(A, tile)
            T.fill(tile[2:6], tile[3])
            T.fill(tile[0:2], tile[1] + tile[7])
            T.copy(tile, O)
        return O

    assert result(program, target).tolist() == [6, 6, 2, 2, 2, 2, 1, 9]


@pytest.mark.parametrize("target", ["cpu", *GPUS])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_tile_loaded_from_where_its_own_number_says(dynamic: bool, target: str) -> None:
    """Its first element, once loaded, said where the others come from: other numbers on processors, a race on GPUs."""

    def program(A):
        A: T.Tensor((8,), "int32")
        O = T.empty((8,), "int32")
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8,), "int32")
            count = T.alloc_var("int32", init=A[2] + 1)
            T.copy(A, tile)
            if dynamic:
                T.copy(A[tile[3] : tile[3] + count], tile)
            else:
                T.copy(A[tile[3]], tile)
            T.copy(tile, O)
        return O

    assert result(program, target).tolist() == [7, 2, -5, 6, 1, 9, 0, 0]


@pytest.mark.parametrize("target", ["cpu", *GPUS])
def test_an_element_whose_number_another_statement_changed(target: str) -> None:
    """Processors took `own[at]` for what had been stored at another `at`."""

    def program(A):
        A: T.Tensor((8,), "int32")
        O = T.empty((8,), "int32")
        with T.Kernel(1, threads=32):
            at = T.alloc_var("int32", init=2)
            own = T.alloc_local((8,), "int32")
            for i in T.serial(8):
                own[i] = A[i]
            own[at] += at
            before = own[at]
            at = 3
            own[at] = before + own[at]
            at += own[at]
            own[2] = at
            for i in T.serial(8):
                O[i] = own[i]
        return O

    assert result(program, target).tolist() == [4, -3, 14, 11, -5, 6, 1, 9]
