"""Words of single warps give the interpreter's numbers on every maker's GPU, whatever the number of lanes that run together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret

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
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "int64", "float8_e4m3fn"])
def test_the_sum_of_what_runs_together(dtype: str, target: str) -> None:
    """A warp's, or a wave's of 64 lanes; the interpreter asks the machine, and by itself it speaks of 32."""

    @T.prim_func
    def program(X: T.Tensor((2, 64), dtype), Y: T.Tensor((2, 64), dtype)):
        with T.Kernel(1, threads=(64, 2)):
            x, y = T.get_thread_binding(0), T.get_thread_binding(1)
            Y[y, x] = T.simdgroup_reduce_sum(X[y, x])

    record = tilewright.dtype(dtype)
    values = np.random.default_rng(0).integers(-2, 3, (2, 64)).astype(record.numpy)
    kernel = tilewright.compile(program, target=target)
    lanes = kernel.arch.warp_size
    wide = values.astype(np.float64).reshape(-1, lanes)
    expected = np.repeat(wide.sum(1), lanes).reshape(2, 64).astype(record.numpy)
    for way in (kernel.interpret, kernel.emulate):
        found = np.zeros((2, 64), record.numpy)
        way(values, found)
        np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
    alone = np.zeros((2, 64), record.numpy)
    interpret(program.function, [values, alone])
    of_warps = values.astype(np.float64).reshape(-1, 32).sum(1).astype(record.numpy)
    np.testing.assert_array_equal(alone.reshape(-1, 32)[:, 0].astype(np.float64), of_warps.astype(np.float64))
    if target.startswith("metal") and dtype in ("float32", "int32"):
        assert "simd_sum" in kernel.get_kernel_source()


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
