"""Macros are inlined where they are called; helpers, comprehensions and closures are Python's."""

import numpy as np
import pytest
from traced_text import expect

import tilewright
import tilewright.language as T
from tilewright.language.mistakes import SymbolicCondition


@T.macro
def halved(own, size):
    """A macro of a module's that calls itself."""
    if size:
        for i in T.unroll(size):
            own[i] = own[i] + own[i + size]
        halved(own, size // 2)


class Between:
    """A context manager that records something where it is entered, and where it is left."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __enter__(self):
        self.buffer[1] = 1.0
        return 2

    def __exit__(self, *_):
        self.buffer[3] = 3.0


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a"])
def test_macros_that_call_themselves_and_context_managers_of_authors(target):
    """The first were a KeyError from inside, the second refused."""

    @T.prim_func
    def program(A: T.Tensor((8,), "float32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=1):
            own = T.alloc_local((8,), "float32")
            for i in T.unroll(8):
                own[i] = A[i]
            halved(own, 4)
            B[0] = own[0]
            with Between(B) as place:
                B[place] = 2.0

    kernel = tilewright.compile(program, target=target)
    a, b = np.random.default_rng(0).standard_normal(8).astype(np.float32), np.zeros(4, np.float32)
    (kernel.emulate if kernel.arch.has_threads else kernel)(a, b)
    assert np.allclose(b, [a.sum(), 1, 2, 3], atol=1e-6)


def test_macros_are_inlined_by_value_and_by_reference() -> None:
    @T.macro
    def larger(a, b):
        best = T.alloc_var("float32", a)
        if a < b:
            best = b
        return best

    @T.macro
    def add_to(place: T.Ref, amount):
        place += amount
        amount = amount * 2

    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(1):
            total = T.alloc_var("float32", 0.0)
            amount = larger(A[0], A[1])
            add_to(total, amount)
            add_to(A[3], amount)
            A[2] = total

    expect(
        kernel,
        """
        total = scalar(float32[()], initial=0.0)
        a: float32 = A[0]
        b: float32 = A[1]
        best = scalar(float32[()], initial=a)
        if a < b:
            best[()] = b
        amount: float32 = best[()]
        total[()] = total[()] + amount
        amount_1: float32 = amount * 2.0
        A[3] = A[3] + amount
        amount_2: float32 = amount * 2.0
        A[2] = total[()]
        """,
    )


class Scheduler:
    """A macro as a method."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    @T.macro
    def apply(self, A, index):
        if index > 0:
            A[index] *= self.scale


def test_macros_as_methods_and_in_closures() -> None:
    scheduler = Scheduler(3.0)

    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1):

            @T.macro
            def clear_at(index):
                if n > index:
                    A[index] = 0.0

            scheduler.apply(A, n)
            clear_at(5)

    expect(kernel, "if n > 0:\n    A[n] = A[n] * 3.0\nif n > 5:\n    A[5] = 0.0")


def test_helpers_comprehensions_and_closures_are_python() -> None:
    weights = [1.0, 2.0, 3.0]

    def weighted(A, index):
        return sum(weight * A[index + i] for i, weight in enumerate(weights))

    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32")):
        with T.Kernel(1) as block:
            A[0] = weighted(A, block)
            tiles = {name: T.alloc_shared((4,), "float32") for name in ("left", "right")}
            T.copy(tiles["left"], tiles["right"])

    expect(
        kernel,
        """
        A[0] = 0.0 + 1.0 * A[block] + 2.0 * A[block + 1] + 3.0 * A[block + 2]
        tiles = shared(float32[4])
        tiles_1 = shared(float32[4])
        copy(source=tiles, destination=tiles_1)
        """,
    )


def test_undecorated_helpers_cannot_branch_on_symbols() -> None:
    def sign(x):
        return 1.0 if x > 0 else -1.0

    with pytest.raises(SymbolicCondition):

        @T.prim_func
        def kernel(A: T.Tensor((64,), "float32")):
            with T.Kernel(1):
                A[0] = sign(A[1])
