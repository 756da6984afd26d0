"""Words of single warps give the interpreter's numbers on every maker's GPU, whatever the number of lanes that run together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T

pytestmark = pytest.mark.sampled(5)

TARGETS = ["cuda -arch=sm_80", "hip -arch=gfx942", "hip -arch=gfx1100", "metal -arch=apple7"]
WORDS: dict[str, Callable[[Any, Any], Any]] = {
    "shfl_xor 16": lambda x, t: T.shfl_xor(x, 16), "shfl_xor 1": lambda x, t: T.shfl_xor(x, 1),
    "shfl_down": lambda x, t: T.shfl_down(x, 3), "shfl_up": lambda x, t: T.shfl_up(x, 5),
    "shfl_sync": lambda x, t: T.shfl_sync(x, 7), "lane": lambda x, t: T.get_lane_idx(), "warp": lambda x, t: T.get_warp_idx(),
    "sum": lambda x, t: T.warp_reduce_sum(x), "max": lambda x, t: T.warp_reduce_max(x),
    "min": lambda x, t: T.warp_reduce_min(x), "any": lambda x, t: T.cast(T.any_sync(x > 190), "int32"),
    "all": lambda x, t: T.cast(T.all_sync(x < 190), "int32"), "ballot": lambda x, t: T.cast(T.ballot(x > 0), "int32"),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("word", WORDS)
def test_words_of_warps(word: str, target: str) -> None:
    """On machines with 64 lanes together they once spoke of 64 threads."""
    made = WORDS[word]

    @T.prim_func
    def program(X: T.Tensor((128,), "int32"), Y: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding()
            Y[t] = made(X[t], t)

    values = np.random.default_rng(0).integers(-200, 200, 128).astype(np.int32)
    kernel, expected, found = (
        tilewright.compile(program, target=target),
        np.zeros(128, np.int32),
        np.zeros(128, np.int32),
    )
    kernel.interpret(values, expected)
    kernel.emulate(values, found)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_one_warp_of_a_wave_by_itself(target: str) -> None:
    """What a wave of 64 lanes does together only half of it comes to."""

    @T.prim_func
    def program(X: T.Tensor((128,), "int32"), Y: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding()
            Y[t] = X[t]
            if t < 32:
                Y[t] = T.warp_reduce_sum(X[t]) + T.cast(T.ballot(X[t] > 0), "int32") + T.shfl_down(X[t], 3)

    values, expected, found = np.arange(128, dtype=np.int32) - 60, np.zeros(128, np.int32), np.zeros(128, np.int32)
    kernel = tilewright.compile(program, target=target)
    kernel.interpret(values, expected)
    kernel.emulate(values, found)
    np.testing.assert_array_equal(found, expected)
