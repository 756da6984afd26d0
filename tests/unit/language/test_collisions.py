"""Parallel loops whose iterations share what they store to: what is refused, and what is one iteration's, or everyone's, passes."""

import contextlib

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import DependentIterations
from tilewright.language.mistakes import OperatorMismatch
from tilewright.language.mistakes_of_scopes import IterationsCollide, IterationsDepend


def traced(how):
    @T.prim_func
    def program(A: T.Tensor((8, 16), "float32"), B: T.Tensor((16,), "float32"), I: T.Tensor((8, 16), "int32")):
        with T.Kernel(1, threads=32):
            row = T.alloc_fragment((16,), "float32")
            tile = T.alloc_shared((16,), "float32")
            kept = T.alloc_local((1,), "float32")
            total = T.alloc_var("float32", init=0.0)
            T.clear(row)
            T.clear(tile)
            T.clear(kept)
            for i, j in T.Parallel(8, 16):
                if how == "the last one stays":
                    tile[0] = A[i, j]
                elif how == "a product and a sum":
                    B[j] *= 2
                    B[j] += A[i, j]
                elif how == "a scalar":
                    total += A[i, j]
                elif how == "an array of threads":
                    kept[0] = kept[0] + A[i, j]
                elif how == "through a name":
                    value = A[i, j]
                    row[j] = value
                elif how == "one iteration":
                    if i == 0:
                        row[j] += A[i, j]
                elif how == "the same for all":
                    row[j] = total
                elif how == "a value of its own":
                    kept[0] = A[i, j]
                    kept[0] = kept[0] * 2
                elif how == "a list":
                    B[I[i, j]] = A[i, j]
                else:
                    T.atomic_add(B[j], A[i, j])

    return program


@pytest.mark.parametrize(
    "how", ["the last one stays", "a product and a sum", "a scalar", "an array of threads", "through a name"]
)
def test_collisions_are_refused(how):
    with pytest.raises(IterationsCollide):
        traced(how)


@pytest.mark.parametrize(
    ("place", "index", "refused"),
    [
        (lambda i, j: (i + 1, j), lambda i, j: (i, j), True),
        (lambda i, j: (i, j), lambda i, j: (i, j - 2), True),
        (lambda i, j: (2 * i, j), lambda i, j: (2 * i + 4, j), True),
        (lambda i, j: (i, j), lambda i, j: (i, j), False),
        (lambda i, j: (2 * i, j), lambda i, j: (2 * i + 1, j), False),  # no iteration stores to odd rows
        (lambda i, j: (i, j), lambda i, j: (i + 8, j), False),  # as far apart as the loop is long
        (lambda i, j: (i, j), lambda i, j: (15 - i, j), False),  # the two halves
        (lambda i, j: (i, j), lambda i, j: (7 - i, j), True),
        (lambda i, j: (i, j), lambda i, j: ((i + 3) % 8, j), True),
        (lambda i, j: (i, j), lambda i, j: (i // 2 * 2, j), True),
        (lambda i, j: (i + j, 0), lambda i, j: (i + j, 0), True),  # a histogram without atomics
        (lambda i, j: (i, j), lambda i, j: (i ^ 16, j), False),
    ],
)
def test_neighbours_that_depend_on_each_other_are_refused(place, index, refused):
    """On processors they ran in some order, on GPUs at once: each machine had numbers of its own."""

    def function(A: T.Tensor((24, 24), "float32")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(8, 16):
                A[place(i, j + 2)] = A[index(i, j + 2)] * 2

    if refused:
        with pytest.raises(IterationsDepend):
            T.prim_func(function)
    kernel = tilewright.compile(as_run_time_sizes(place, index), target="cpu")
    numbers = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)
    with pytest.raises(DependentIterations) if refused else contextlib.nullcontext():
        kernel.interpret(numbers, 1)


def test_the_last_iterations_of_a_long_loop_are_looked_at_as_the_first_ones_are():
    def turned(A: T.Tensor((1 << 20,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(1 << 20):
                A[i] = A[(1 << 20) - 1 - i]

    with pytest.raises(IterationsDepend):
        T.prim_func(turned)


def as_run_time_sizes(place, index):
    """The same program where nobody can tell before it runs."""

    @T.prim_func
    def program(A: T.Tensor((24, 24), "float32"), one: T.int32):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(8, 16):
                y, x = index(i, j + 2)
                A[place(i, j + 2)] = A[y * one, x * one] * 2

    return program


@pytest.mark.parametrize(
    "how", ["one iteration", "the same for all", "a value of its own", "a list", "atomic additions"]
)
def test_what_does_not_collide_is_traced(how):
    traced(how)


@pytest.mark.parametrize("how", ["two statements", "a sum"])
def test_equal_changes_of_one_element_are_found_where_the_program_runs(how):
    """All of them read the old number and stored one and the same: the interpreter said 1 where processors said 16."""

    @T.prim_func
    def program(I: T.Tensor((8,), "int32"), B: T.Tensor((16,), "int32"), one: T.int32):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(8, 8):
                if how == "two statements":
                    old = B[I[(i + j) % 8]]
                    B[I[(i + j) % 8]] = old + 1
                else:
                    B[i * one + j] += 1

    with pytest.raises(DependentIterations):
        tilewright.compile(program, target="cpu").interpret(np.zeros(8, np.int32), np.zeros(16, np.int32), 1)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda B, I, i, n: B.__setitem__(I[i], B[I[i]] * 2), True),
        (lambda B, I, i, n: B.__setitem__(I[i], B[I[i]] * 2 + 1), True),
        (lambda B, I, i, n: B.__setitem__(i // 4, B[i // 4] * 2 + 1), True),
        (lambda B, I, i, n: B.__setitem__(i % n, B[i % n] * 2), True),
        (lambda B, I, i, n: B.__setitem__(I[i], B[I[i]] + B[i]), True),  # the sums are read besides
        (lambda B, I, i, n: B.__setitem__(I[n] + i, B[I[n] + i] * 2), False),
        (lambda B, I, i, n: B.__setitem__(i // 4 * n + i % 4, B[i // 4 * n + i % 4] * 2), False),
        (lambda B, I, i, n: B.__setitem__(i // 4 * 4 + i % 4, B[i // 4 * 4 + i % 4] * 2), False),
    ],
)
def test_changes_without_an_atomic_are_refused_where_places_may_be_those_of_several(change, refused):
    def function(I: T.Tensor((16,), "int32"), B: T.Tensor((64,), "int32"), n: T.int32):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                change(B, I, i, n)

    with pytest.raises(IterationsDepend, match=r"read.* `old = B\[\.\.\.\]`") if refused else contextlib.nullcontext():
        T.prim_func(function)


@pytest.mark.parametrize(
    ("condition", "refused"),
    [
        (lambda X, i, n: X[i] > 0, True),
        (lambda X, i, n: (X[i] > 0) & (i < 12), True),
        (lambda X, i, n: X[i] != n, True),
        (lambda X, i, n: X[i] == n, False),  # one iteration, as far as anybody knows
        (lambda X, i, n: (i == n) & (X[i] > 0), False),
        (lambda X, i, n: i % 4 == 1, False),
        (lambda X, i, n: i % 2 == 1, True),
    ],
)
def test_what_certainly_has_the_place_of_several_is_refused_under_conditions_that_choose_none(condition, refused):
    """Under `X[i] > 0` all of four iterations multiplied one element, a race that only the interpreter reported."""

    def function(X: T.Tensor((16,), "int32"), B: T.Tensor((4,), "int32"), n: T.int32):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                if condition(X, i, n):
                    B[i // 4] *= 2

    with pytest.raises(IterationsDepend, match="read") if refused else contextlib.nullcontext():
        T.prim_func(function)


@pytest.mark.parametrize(("apart", "first", "refused"), [(4, 0, False), (3, 0, True), (3, 14, True), (3, 15, False)])
def test_loops_within_an_iteration_and_its_conditions_are_looked_at(apart, first, refused):
    """`B[i + k]` passed for places of its own, as did what stands under a condition: each machine had its numbers."""

    def function(B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                if i >= first:
                    for k in T.serial(4):
                        B[i * apart + k] *= 2

    with pytest.raises(IterationsDepend) if refused else contextlib.nullcontext():
        T.prim_func(function)


@pytest.mark.parametrize(
    ("source", "destination", "refused"),
    [
        (lambda s, k: s[0:48, :], lambda s, k: s[16:64, :], True),
        (lambda s, k: s[k : k + 8, 0:4], lambda s, k: s[k + 7 : k + 15, 3:7], True),
        (lambda s, k: s[0:32, :], lambda s, k: s[32:64, :], False),
        (lambda s, k: s[k : k + 8, 0:4], lambda s, k: s[k + 7 : k + 15, 4:8], False),
        (lambda s, k: s[k : k + 8, :], lambda s, k: s[k : k + 8, :], False),
    ],
)
def test_copies_within_a_tile_do_not_overlap(source, destination, refused):
    """Threads moved the elements in no order: a race on GPUs, and another result on processors than the interpreter's."""

    def function(A: T.Tensor((64, 8), "float32"), k: T.int32):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((64, 8), "float32")
            T.copy(A, s)
            T.copy(source(s, k), destination(s, k))

    with pytest.raises(OperatorMismatch, match="overlap in 's'") if refused else contextlib.nullcontext():
        T.prim_func(function)
