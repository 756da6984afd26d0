"""Tensors that a block's threads hand to one another: whatever writes one and whatever then touches it are kept apart, or refused.

The block's work, work that some of its threads divide, and what threads do for themselves, each before each.
"""

from __future__ import annotations

import itertools
import re
import warnings

import numpy as np
import pytest
from syntax import program_of
from test_found_programs import AMD, AMPERE, NVIDIA

import tilewright
from tilewright.errors import DivergentWork, TilewrightWarning

BLOCKS = {
    "copied": "T.copy(A, O)",
    "dealt": "for i in T.Parallel(64):\n    O[i] = A[63 - i]",
    "read": "T.copy(O, t)",
    "dealt read": "for i in T.Parallel(64):\n    W[i] = O[63 - i]",
    "alike": "O[3] = n",
    "some threads'": "if tx < 20:\n    for i in T.Parallel(64):\n        O[i] = A[i] + 1",
    "cast": 'if T.cast(tx - 3, "uint32") < 5:\n    for i in T.Parallel(29):\n        O[i] = A[i] + 2',
    "a warp's": "if tx < 32:\n    for i in T.Parallel(64):\n        O[i] = A[i] + 4",
    "other warp's": "if tx >= 32:\n    for i in T.Parallel(64):\n        W[i] = O[63 - i]",
    "signal": "if tx >= 32:\n    T.atomic_add(Q[tx], 1, memory_order='release')\n    T.copy(O, W)",
    "one copies": "if tx == 40:\n    T.copy(s, O)",
    "counted": "for i in T.Parallel(64):\n    T.atomic_add(O[63 - i], 3)",
}
THREADS = {
    "own": "O[63 - tx] = A[tx]",
    "own read": "W[tx] = O[63 - tx]",
    "asked": "if O[63 - tx] > 30:\n    Q[tx] = 1",
    "one": "if tx == 5:\n    O[0] = 7",
    "own loop": "for r in T.serial(tx % 3):\n    O[63 - tx] = r",
    "own variable": "v = O[63 - tx]\nQ[tx] = v",
    "own while": "while v < O[63 - tx]:\n    v += 16\nQ[tx] = v",
    "of a name": "place = 63 - tx\nO[place] = A[tx]",
    "own counts": "T.atomic_add(O[63 - tx], 3)",
    "both": "O[63 - tx] = O[63 - tx] + 1",
}
WAYS = BLOCKS | THREADS
PAIRS = list(itertools.permutations(WAYS, 2))
AROUND = {
    "in turn": "{first}\n{second}",
    "again": "for k in range(2):\n    {first}\n    {second}",
    "in a branch": "{first}\nif n > 2:\n    {second}",
}
HEAD = """
def program(A, n: T.int32):
    A: T.Tensor((64,), "int32")
    O, W, Q = T.empty((64,), "int32"), T.empty((64,), "int32"), T.empty((64,), "int32")
    with T.Kernel(1, threads=64) as bx:
        tx = T.get_thread_binding()
        s, t = T.alloc_shared((64,), "int32"), T.alloc_shared((64,), "int32")
        v = T.alloc_var("int32", init=0)
        T.copy(A, s)
        T.copy(A, t)
        T.copy(A, O)
        T.copy(A, W)
        T.copy(A, Q)
        T.sync_threads()
        {body}
        T.sync_threads()
        T.copy(t, W)
    return O, W, Q
"""


def program(around: str, first: str, second: str, memory: str = "O") -> object:
    """Two ways to touch a tensor (or a tile), one after the other."""
    body = ""
    for line in AROUND[around].split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        made = line.strip().format(first=WAYS[first], second=WAYS[second])
        made = re.sub(r"\bO\b", memory, made)
        body += "".join(f"{indent}{one}\n" for one in made.split("\n"))
    text = HEAD.format(body=body.strip().replace("\n", "\n        "))
    name = f"<{around}: {first}, {second}>"
    return program_of(text, name)


@pytest.mark.parametrize("target", [NVIDIA, AMPERE, AMD])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("first", WAYS)
def test_what_touches_a_tensor_is_waited_for(first: str, around: str, target: str) -> None:
    """A tensor of which any statement named a thread's element was waited for by none."""
    for _, second in (pair for pair in PAIRS if pair[0] == first):
        check(program(around, first, second), target)


@pytest.mark.parametrize("target", [NVIDIA, AMPERE, AMD])
def test_tiles_that_some_threads_fill_in_a_loop_are_waited_for(target: str) -> None:
    """A loop that only writes a tile had no barriers, though the compiler chose which thread writes which element."""
    for first, second in itertools.permutations(("some threads'", "cast", "one copies"), 2):
        check(program("again", first, second, "t"), target)


def check(made: object, target: str) -> None:
    """Refused for the threads that come, or right without a report."""
    given = np.arange(64, dtype=np.int32) * 37 % 64, 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)
        try:
            kernel = tilewright.jit(target=target)(made).compile(*given)
        except DivergentWork:
            return
        expected = kernel.interpret(*given)
        for schedule, seed in (("late", 0), ("random", 2)):
            found = kernel.emulate(*given, schedule=schedule, seed=seed, seconds=10)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=str(made))
