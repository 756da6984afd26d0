"""Conditions that differ from thread to thread, around work that threads share: refused, or right without a report of the emulator.

What a condition is made of (casts, `min`, selections, variables, loads, trip counts, what leaves a loop) is drawn for itself,
and so is the work behind it: the compiler must see through each, or refuse the program with its line.
"""

from __future__ import annotations

import itertools
import random
import warnings

import numpy as np
import pytest
from syntax import program_of
from test_found_programs import AMPERE, NVIDIA

import tilewright
import tilewright.language as T
from tilewright.errors import DivergentWork, EmulationError, TilewrightError

CONDITIONS = {
    "unsigned": 'if T.cast(tx - 3, "uint32") < 5:',
    "narrow": 'if T.cast(tx * 5, "int8") < 40:',
    "wide": 'if T.cast(tx - 21, "int64") < 7:',
    "least": "if T.min(tx, n) < 20:",
    "greatest": "if T.max(tx, 7) > n:",
    "selected": "if T.if_then_else(tx > 9, n, 3) == 3:",
    "variable": "if v < 9:",
    "changed variable": "if w > 11:",
    "loaded": "if A[tx] > 30:",
    "own tile": "if own[0] % 3 == 1:",
    "from a tile": "if s[tx] > 30:",
    "trips": "for r in T.serial(tx % 3):",
    "trips of a variable": "for r in T.serial(v - 1):",
    "while": "while w < 8:\n    w += 4",
    "left": "for r in T.serial(3):\n    if tx + r > 30:\n        break",
    "gone on": "for r in T.serial(2):\n    if tx % 4 == r:\n        continue",
    "block": "if n > 2:",
    "both": "if n > 2 and tx < 40:",
    "nobody": "if tx > 300:",
}
WORK = {
    "dealt": "for i in T.Parallel(29):\n    O[i] = A[i] + 5",
    "shared": "for i in T.Parallel(29):\n    t[i] = A[i] + 5",
    "read": "for i in T.Parallel(29):\n    W[i] = s[i] + 5",
    "copied": "T.copy(A, t)",
    "out": "T.copy(s, W)",
    "fragment": "T.copy(s, f)",
    "own": "T.fill(own, 3)",
    "own loop": "for i in T.Parallel(2):\n    own[i] = tx + i",
    "thread 30's": "if tx == 30:\n    T.copy(A, t)",
    "alone": "W[tx] = s[tx]",
    "barrier": "T.sync_threads()",
    "sum": "T.reduce_sum(f, g)",
}

HEAD = """
def program(A, n: T.int32):
    A: T.Tensor((64,), "int32")
    O, W, Q = T.empty((64,), "int32"), T.empty((64,), "int32"), T.empty((64,), "int32")
    with T.Kernel(1, threads=64) as bx:
        tx = T.get_thread_binding()
        s, t = T.alloc_shared((64,), "int32"), T.alloc_shared((64,), "int32")
        f, g = T.alloc_fragment((64,), "int32"), T.alloc_fragment((1,), "int32")
        own, v, w = T.alloc_local((2,), "int32"), T.alloc_var("int32"), T.alloc_var("int32")
        T.copy(A, s)
        T.copy(A, t)
        T.copy(A, f)
        T.copy(A, O)
        T.copy(A, W)
        T.copy(A, Q)
        T.clear(g)
        own[0] = tx
        own[1] = 1
        v = tx % 3
        w = tx // 2
"""
TAIL = """
        T.copy(t, Q)
    return O, W, Q
"""


def source(condition: str, *works: str) -> str:
    """A program whose threads come to some work under a condition."""
    inside = "\n".join(works).replace("\n", "\n    ")
    body = f"{condition}\n    {inside}"
    return HEAD + "        " + body.replace("\n", "\n        ") + TAIL


PROGRAMS = [(condition, pair) for condition in CONDITIONS for pair in itertools.permutations(WORK, 2)]
DRAWN = random.Random(3).sample(PROGRAMS, 144)
KNOWN = ("unsigned", "narrow", "wide")
"""Conditions of which the compiler knows who fulfils them: behind these it refuses an author's barrier, too."""


def verdict(condition: str, works: tuple[str, ...], target: str) -> str:
    """``refused``, ``right``, or what is wrong."""
    text = source(CONDITIONS.get(condition, condition), *(WORK[one] for one in works))
    name = f"<{condition}: {', '.join(works)}>"
    program = program_of(text, name)
    given = np.arange(64, dtype=np.int32) * 37 % 64, 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kernel = tilewright.jit(target=target)(program).compile(*given)
        except TilewrightError as error:
            assert error.span is not None, error
            return f"refused: {type(error).__name__}"
        for schedule, seed in (("late", 0), ("random", 2)):
            try:
                kernel.emulate(*given, schedule=schedule, seed=seed, seconds=10)
            except EmulationError as error:
                return f"reported: {error}"
    return "right"


@pytest.mark.parametrize("number", range(16))
@pytest.mark.parametrize("target", [NVIDIA, AMPERE])
def test_no_barrier_stands_where_only_some_threads_come(number: int, target: str) -> None:
    """A barrier stood under a condition, for work that no thread came to, and the others waited (a hang)."""
    barred = ("divergent-collective", "skipped-barrier", "different-barriers", "deadlock")
    for condition, works in DRAWN[number::16]:
        if "barrier" not in works:
            told = verdict(condition, works, target)
            assert not any(kind in told for kind in barred), told


@pytest.mark.parametrize("target", [NVIDIA, AMPERE, "metal -arch=apple8"])
@pytest.mark.parametrize("condition", KNOWN)
def test_barriers_that_threads_are_known_to_miss_are_refused(condition: str, target: str) -> None:
    """The others waited for ever: nothing but the emulator told."""
    assert verdict(condition, ("barrier", "alone"), target) == "refused: DivergentWork"


def test_the_refusal_shows_the_barrier() -> None:
    def program(A):
        A: T.Tensor((64,), "int32")
        O = T.empty((64,), "int32")
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "int32")
            T.copy(A, s)
            if tx < 20:
                O[tx] = s[tx]
                T.sync_threads()
        return O

    with pytest.raises(
        DivergentWork,
        match=r"T.sync_threads, a barrier of the block, is in divergent code: the other threads would have to wait",
    ) as caught:
        tilewright.jit(target=NVIDIA)(program).compile(np.zeros(64, np.int32))
    assert "T.sync_threads()" in str(caught.value) and "^^^^" in str(caught.value)


@pytest.mark.parametrize("target", [NVIDIA, AMPERE, "hip -arch=gfx942", "metal", "cpu"])
def test_a_barrier_that_others_miss_is_refused_beside_scalar_work_too(target: str) -> None:
    """Programs without a tile operator were not asked, and hung."""

    def program(A: T.Tensor((64,), "int32")):
        O = T.empty((64,), "int32")
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "int32")
            s[tx] = A[tx]
            if tx < 20:
                T.sync_threads()
                O[tx] = s[63 - tx]
        return O

    with pytest.raises(
        TilewrightError,
        match=r"T\.sync_threads, a barrier.*divergent code|move T\.sync_threads\(\), .* out of the condition",
    ):
        tilewright.jit(target=target)(program).compile(np.zeros(64, np.int32))


@pytest.mark.parametrize("target", [NVIDIA, AMPERE, "hip -arch=gfx942", "cpu"])
def test_nobody_waits_for_threads_that_returned(target: str) -> None:
    def program(A: T.Tensor((64,), "int32")):
        O = T.empty((64,), "int32")
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "int32")
            O[tx] = -1
            if tx >= 32:
                T.thread_return()
            s[tx] = A[tx]
            T.sync_threads()
            O[tx] = s[31 - tx]
        return O

    numbers = np.arange(64, dtype=np.int32)
    kernel = tilewright.jit(target=target)(program).compile(numbers)
    found = kernel.emulate(numbers) if kernel.arch.has_threads else kernel(numbers)
    np.testing.assert_array_equal(found, [*range(31, -1, -1), *[-1] * 32])


@pytest.mark.parametrize("target", [NVIDIA, AMPERE])
@pytest.mark.parametrize("condition", KNOWN)
def test_work_that_some_threads_do_waits_for_what_the_block_wrote(condition: str, target: str) -> None:
    """No barrier stood before it: the tensor was taken for one whose elements threads have as their own."""
    assert verdict(condition, ("dealt",), target) == "right"


LEAVING = {
    "loop": "for r in T.serial(4):\n    if A[tx] < r * 9:\n        return",
    "loop of some": "for r in T.serial(4):\n    if tx > 50 + r:\n        return",
    "below": "if A[tx] > 3:\n    if tx > 20:\n        return",
    "otherwise": "if A[tx] > 3:\n    W[tx] = 1\nelse:\n    return",
}


@pytest.mark.parametrize("target", [NVIDIA, AMPERE])
@pytest.mark.parametrize("way", LEAVING)
def test_work_behind_what_some_threads_leave_in_is_refused(way: str, target: str) -> None:
    """Those that had left did not do their part of it: silently wrong, but behind a plain condition."""
    assert verdict(f"{LEAVING[way]}\nif n > 2:", ("copied",), target) == "refused: DivergentWork"


@pytest.mark.parametrize("condition", ["unsigned", "wide"])
def test_what_nobody_does_lets_nobody_wait(condition: str) -> None:
    """Seed 10006140: a copy that no thread comes to had the others meet under the condition around it."""
    assert verdict(condition, ("thread 30's", "shared"), NVIDIA) == "right"
