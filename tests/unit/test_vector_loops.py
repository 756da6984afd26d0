"""Vector loops whose iterations hand something on, and types of several numbers where one is meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_found_programs import GPUS, numbers

import tilewright
import tilewright.language as T
from tilewright.errors import DependentIterations
from tilewright.language.mistakes import NumberExpected

EVERYWHERE = ("cpu", *GPUS)


def agree(function: Any, target: str, *given: np.ndarray) -> None:
    kernel = tilewright.jit(target=target)(function).compile(*given)
    run = kernel if target == "cpu" else kernel.emulate
    np.testing.assert_equal(run(*given), kernel.interpret(*given))


@pytest.mark.parametrize("target", EVERYWHERE)
@pytest.mark.parametrize("scope", ["shared", "fragment"])
@pytest.mark.parametrize("way", ["sum", "running", "named"])
def test_a_place_that_all_iterations_change_is_changed_in_order(way: str, scope: str, target: str) -> None:
    """A vector loop that was all of a parallel loop's body became a dimension of it: threads changed one element at once, and what
    they added was lost. The interpreter refused it."""

    def program(A):
        A: T.Tensor((64, 8), "int32")
        O = T.empty((64,), "int32")
        with T.Kernel(1, threads=64):
            total = T.alloc_shared((64,), "int32") if scope == "shared" else T.alloc_fragment((64,), "int32")
            T.clear(total)
            for i in T.Parallel(64):
                for v in T.vectorized(8):
                    if way == "sum":
                        total[i] += A[i, v]
                    elif way == "running":
                        total[i] = total[i] * 3 + A[i, v]
                    else:
                        old = total[i]
                        total[i] = T.max(old, A[i, v])
            T.copy(total, O)
        return O

    agree(program, target, numbers(64, 8, dtype="int32"))


@pytest.mark.parametrize("target", EVERYWHERE)
def test_running_maxima_of_each_thread(target: str) -> None:
    """The interpreter took them for writes that conflict."""

    def program(A):
        A: T.Tensor((64, 8), "float32")
        O = T.empty((2, 64), "float32")
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            most, last = T.alloc_local((2,), "float32"), T.alloc_var("float32", init=-100)
            most[1] = -T.infinity("float32")
            for v in T.vectorized(8):
                most[1] = T.max(most[1], A[tx, v])
                last = T.max(last - 1, A[tx, v])
            O[0, tx] = most[1]
            O[1, tx] = last
        return O

    agree(program, target, numbers(64, 8))


def test_iterations_that_read_what_others_change_are_told() -> None:
    def program(A):
        A: T.Tensor((8,), "float32")
        O = T.empty((8,), "float32")
        with T.Kernel(1, threads=32):
            s = T.alloc_local((9,), "float32")
            for v in T.serial(9):
                s[v] = A[v % 8]
            for v in T.vectorized(8):
                s[v + 1] = s[v]
            for v in T.vectorized(8):
                O[v] = s[v + 1]
        return O

    given = numbers(8)
    with pytest.raises(DependentIterations, match=r"an iteration reads s\[1\], and another one changes it"):
        tilewright.jit(target="cpu")(program).compile(given).interpret(given)


def test_a_scalar_is_not_cast_to_several_numbers() -> None:
    """It was an internal error of the verifier."""

    def program(A):
        A: T.Tensor((8,), "float32")
        O = T.empty((8,), "float32")
        with T.Kernel(1, threads=32):
            O[0] = T.cast(A[0], "float16x2")
        return O

    with pytest.raises(NumberExpected) as told:
        tilewright.jit(target="cpu")(program).compile(numbers(8))
    assert told.value.message == "the type of what T.cast converts to is float16x2"
    assert told.value.hint == "expected that of one number, float16"


@pytest.mark.parametrize("target", EVERYWHERE)
@pytest.mark.parametrize("way", ["other branch", "behind it", "of truths", "of a tile", "within another"])
def test_a_condition_is_what_it_was_before_its_branches_change_it(way: str, target: str) -> None:
    """Lanes of a processor's vectors asked it anew for each store, and for the other branch: of numbers that stores before
    these had changed."""

    def program(A):
        A: T.Tensor((33,), "int32")
        O = T.empty((33,), "int32")
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((33,), "int32")
            T.copy(A, tile)
            for i in T.Parallel(33):
                one, other = T.alloc_var("int32", init=A[i]), T.alloc_var("int32", init=7)
                truth = T.alloc_var("bool", init=False)
                if way == "other branch":
                    if one < 1:
                        one = other
                    else:
                        other = one * 3
                elif way == "behind it":
                    if one < 1:
                        one = one + 9
                        other = 100
                elif way == "of truths":
                    truth = one < 1
                    if truth:
                        truth = False
                        other = 5
                    else:
                        other = 6
                elif way == "of a tile":
                    if tile[i] < 1:
                        tile[i] = 4
                        other = 5
                    else:
                        tile[i] = tile[i] - 6
                        other = 6
                elif one < 1:
                    if other + one > 5:
                        one = other
                        other = 3
                    else:
                        other = one * 3
                        one = 8
                else:
                    one = other * 2 - one
                    other = 1
                O[i] = one + other * 100 + tile[i] * 10000
        return O

    given = numbers(33, dtype="int32")
    assert (given < 1).any() and (given >= 1).any()
    agree(program, target, given)
