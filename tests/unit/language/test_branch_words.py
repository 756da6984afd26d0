"""`T.If`, `T.Then` and `T.Else`: the branches of an ``if``, in loops and around them."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.printer import print_program
from tilewright.language.loops import MisplacedBranch


@T.prim_func
def words(A: T.Tensor((8, 8), "float32"), n: T.int32):
    with T.Kernel(1, threads=32), T.If(n > 3):
        with T.Then():
            for i, j in T.Parallel(8, 8):
                with T.If(A[i, j] <= 0 and i > j):
                    with T.Then():
                        A[i, j] = 5.0
                    with T.Else(), T.If(i == j), T.Then():
                        A[i, j] = 0.0
        with T.Else():
            T.fill(A, 1.0)


@T.prim_func
def python(A: T.Tensor((8, 8), "float32"), n: T.int32):
    with T.Kernel(1, threads=32):
        if n > 3:
            for i, j in T.Parallel(8, 8):
                if A[i, j] <= 0 and i > j:
                    A[i, j] = 5.0
                else:
                    if i == j:
                        A[i, j] = 0.0
        else:
            T.fill(A, 1.0)


def test_they_are_branches_of_python() -> None:
    assert print_program(words.function).replace("words", "python") == print_program(python.function)
    a = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    rows, columns = np.indices((8, 8))
    kernel = tilewright.compile(words, target="cpu")
    for n, expected in (
        (4, np.where((a <= 0) & (rows > columns), 5, np.where(rows == columns, 0, a))),
        (3, np.ones_like(a)),
    ):
        found = a.copy()
        kernel(found, n)
        assert np.array_equal(found, expected)


def alone(A):
    with T.Then():
        A[0, 0] = 1.0


def twice(A):
    with T.If(A[0, 0] > 0):
        for value in (1.0, 2.0):
            with T.Then():
                A[0, 0] = value


def beside(A):
    with T.If(A[0, 0] > 0):
        with T.Then():
            A[0, 0] = 1.0
        A[0, 1] = 2.0


def otherwise_alone(A):
    with T.If(A[0, 0] > 0), T.Else():
        A[0, 0] = 1.0


@pytest.mark.parametrize(
    "body, message",
    [
        (alone, "T.Then does not stand in `with T.If`"),
        (twice, "T.Then stands there twice"),
        (beside, "of `with T.If`, something stands beside its branches"),
        (otherwise_alone, "of `with T.If`, it has no T.Then"),
    ],
)
def test_misplaced_branches(body, message) -> None:
    part = T.macro(body)
    with pytest.raises(MisplacedBranch, match=message):

        @T.prim_func
        def program(A: T.Tensor((8, 8), "float32")):
            with T.Kernel(1, threads=32):
                part(A)

        _ = program.function
