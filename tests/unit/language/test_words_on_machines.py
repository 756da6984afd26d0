"""A word's example runs on every machine that its page lists, with the interpreter's numbers; what machines lack is said in other words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from test_language_pages import EXAMPLES, FOREIGN, WORDS, lines_of
from word_examples import MACHINES, arguments, traced

import tilewright
import tilewright.language as T
from docs import language_pages

ALONE = {"CUDASourceCodeKernel"}
"""Is a text for one machine."""


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in FOREIGN | ALONE and "call_" not in name])
def test_the_example_runs(name: str, machine: str) -> None:
    if machine not in language_pages.machines(name):
        return
    made = traced(name, lines_of(WORDS[name]), blocks=1)
    given, expected = arguments(made), arguments(made)
    kernel = tilewright.compile(made, target=MACHINES[machine])
    kernel.interpret(*expected)
    (kernel if machine == "CPU" else kernel.emulate)(*given)
    for found, right in zip(given, expected, strict=True):
        if isinstance(found, np.ndarray):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def voted(A: Any) -> Any:
    A: T.Tensor((96,), "int32")
    O = T.empty((3, 4, 96), "int32")
    with T.Kernel(4, threads=(32, 3), cluster_dims=2) as bx:
        x, y, _ = T.get_thread_bindings()
        i = y * 32 + x
        rank = T.block_rank_in_cluster()
        T.fence_proxy_async()
        for k in T.serial(3):
            few = T.alloc_var("int32", init=T.syncthreads_count(A[i] > 40 + bx))
            if T.syncthreads_or(A[i] == 95 - k):
                few = few + 1000
            if T.syncthreads_and(A[i] >= k):
                few = few + 2000
            O[k, bx, i] = few * 10 + rank
    return O


@pytest.mark.parametrize("machine", MACHINES)
def test_votes_of_a_block_and_its_rank_in_a_cluster(machine: str) -> None:
    """Texts for Apple's machines called functions that their vocabulary has not; processors refused."""
    given = np.arange(96, dtype=np.int32)
    kernel = tilewright.jit(target=MACHINES[machine])(voted).compile(given)
    found = kernel(given) if machine == "CPU" else kernel.emulate(given)
    for k in range(3):
        for bx in range(4):
            votes = 96 - 41 - bx + 1000 + 2000 * (k == 0)
            assert (found[k, bx] == votes * 10 + bx % 2).all()


def told_to_the_next_lane(A: Any) -> Any:
    A: T.Tensor((64,), "int32")
    O = T.empty((64,), "int32")
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        s = T.alloc_shared((64,), "int32")
        s[tx] = A[tx]
        T.sync_warp()
        O[tx] = s[tx // 32 * 32 + (tx + 1) % 32]
    return O


@pytest.mark.parametrize("machine", MACHINES)
def test_lanes_that_meet(machine: str) -> None:
    """On processors the text called a function that is not there."""
    given = np.arange(64, dtype=np.int32)
    kernel = tilewright.jit(target=MACHINES[machine])(told_to_the_next_lane).compile(given)
    found = kernel(given) if machine == "CPU" else kernel.emulate(given)
    np.testing.assert_array_equal(found, given // 32 * 32 + (given + 1) % 32)
