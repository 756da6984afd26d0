"""Iterations of a parallel loop that change one element of a fragment by what it was: in order where one thread does them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.language.mistakes_of_scopes import IterationsDepend

TARGETS = ("cuda -arch=sm_90a", "cuda -arch=sm_80", "hip -arch=gfx942", "metal -arch=apple7")


def maxima(of_author, part=4):
    """Per block of 8 x 32 the largest magnitude, by way of the largest one of each thread."""

    @T.prim_func
    def program(X: T.Tensor((32, 64), "float32"), O: T.Tensor((4, 2), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((32, 64), "float32")
            each = T.alloc_fragment((4, 2, 8), "float32")
            largest = T.alloc_fragment((4, 2), "float32")
            if of_author:
                held = T.Fragment((32, 64), lambda i, j: (i // 8 * 16 + j // 32 * 8 + j % 32 // 4, i % 8 * 4 + j % 4))
                T.annotate_layout({x: held, each: T.Fragment((4, 2, 8), lambda i, j, k: (i * 16 + j * 8 + k, 0))})
            T.copy(X, x)
            T.clear(each)
            for i, j in T.Parallel(32, 64):
                place = j % 32 // part
                each[i // 8, j // 32, place] = T.max(each[i // 8, j // 32, place], T.abs(x[i, j]))
            T.reduce_max(each, largest, dim=2)
            T.copy(largest, O)

    return program


def arguments():
    return np.random.default_rng(3).standard_normal((32, 64)).astype(np.float32), np.full((4, 2), np.nan, np.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_a_thread_changes_what_it_holds_in_order(target):
    kernel = tilewright.compile(maxima(True), target=target)
    given, expected = arguments(), np.abs(arguments()[0]).reshape(4, 8, 2, 32).max(axis=(1, 3))
    kernel.interpret(*given)
    np.testing.assert_array_equal(given[1], expected)
    for schedule, seed in (("late", 0), ("early", 1), ("random", 2)):
        given = arguments()
        kernel.emulate(*given, schedule=schedule, seed=seed)
        np.testing.assert_array_equal(given[1], expected)


def test_a_processor_goes_through_iterations_in_order():
    given, expected = arguments(), np.abs(arguments()[0]).reshape(4, 8, 2, 32).max(axis=(1, 3))
    tilewright.compile(maxima(False), target="cpu")(*given)
    np.testing.assert_array_equal(given[1], expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("of_author", "part"), [(False, 4), (True, 16)])
def test_several_threads_have_no_order(of_author, part, target):
    """Laid out by itself the loop gives an element to several threads; so does a place that the layout does not mean."""
    with pytest.raises(IterationsDepend, match="one iteration reads an element of 'each'") as refused:
        tilewright.compile(maxima(of_author, part), target=target)
    assert "place] = T.max(each[" in str(refused.value) and "annotate a layout of 'each' by which" in str(refused.value)


@pytest.mark.parametrize("how", ["of a number", "in a choice", "of an iteration", "otherwise"])
def test_conditions_keep_threads_apart_where_the_iteration_decides_them(how):
    """What numbers decided was never asked: threads added to one element at once."""

    @T.prim_func
    def program(X: T.Tensor((32, 64), "float32"), O: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((32, 64), "float32")
            row = T.alloc_fragment((32,), "float32")
            T.copy(X, x)
            T.clear(row)
            for i, j in T.Parallel(32, 64):
                at = (i + j) % 32
                if how == "in a choice":
                    row[at] = T.if_then_else(x[i, j] > 0, row[at] + x[i, j], row[at])
                elif how == "otherwise":
                    if j > 0:
                        x[i, j] = 0
                    else:
                        row[at] = row[at] + x[i, j]
                elif x[i, j] > 0 if how == "of a number" else j == 3:
                    row[at] = row[at] + x[i, j]
            T.copy(row, O)

    if how in ("of a number", "in a choice"):
        with pytest.raises(IterationsDepend, match="an element of 'row'"):
            tilewright.compile(program, target="cuda -arch=sm_90a")
        return
    given, found = np.random.default_rng(5).standard_normal((32, 64)).astype(np.float32), np.zeros(32, np.float32)
    tilewright.compile(program, target="cuda -arch=sm_90a").emulate(given, found)
    np.testing.assert_array_equal(found, given[:, 0] if how == "otherwise" else np.roll(given[:, 3], 3))


@pytest.mark.parametrize("target", TARGETS)
def test_places_that_numbers_decide_may_be_of_several_threads(target):
    @T.prim_func
    def counts(N: T.Tensor((64,), "int32"), O: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=64):
            found = T.alloc_fragment((8,), "int32")
            T.clear(found)
            for i in T.Parallel(64):
                found[N[i]] = found[N[i]] + 1
            T.copy(found, O)

    with pytest.raises(IterationsDepend, match="one iteration reads an element of 'found'"):
        tilewright.compile(counts, target=target)
    given = np.arange(64, dtype=np.int32) % 5, np.zeros(8, np.int32)
    tilewright.compile(counts, target="cpu")(*given)
    np.testing.assert_array_equal(given[1], np.bincount(given[0], minlength=8))
