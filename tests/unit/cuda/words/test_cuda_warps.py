"""Words for the threads of a warp: interpreted, emulated and in machine code."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import DivergentThreads

LANES = np.arange(32)


def kernel_of(word, dtype="int32"):
    """Y[i] = word(X[i]) in the threads of two warps."""

    @T.prim_func
    def warps(X: T.Tensor((64,), dtype), Y: T.Tensor((64,), dtype)):
        with T.Kernel(1, threads=64):
            thread = T.get_thread_binding()
            Y[thread] = T.cast(word(X[thread]), dtype)

    return tilewright.compile(warps, target="cuda -arch=sm_80")


def of_warps(x, function):
    return np.concatenate([function(x[:32]), function(x[32:])])


CASES = {
    "shfl_sync": (lambda v: T.shfl_sync(v, 5), lambda w: np.full(32, w[5]), "SHFL.IDX"),
    "shfl_xor": (lambda v: T.shfl_xor(v, 6), lambda w: w[LANES ^ 6], "SHFL.BFLY"),
    "shfl_up": (lambda v: T.shfl_up(v, 3), lambda w: w[np.where(LANES < 3, LANES, LANES - 3)], "SHFL.UP"),
    "shfl_down": (lambda v: T.shfl_down(v, 3), lambda w: w[np.where(LANES > 28, LANES, LANES + 3)], "SHFL.DOWN"),
    "groups of eight": (
        lambda v: T.shfl_sync(v, 11, 8) + T.shfl_xor(v, 9, width=8) + T.shfl_up(v, 3, width=8) + T.shfl_down(v, 3, width=8),
        lambda w: (
            w[LANES // 8 * 8 + 3] + w[np.where(LANES // 8 % 2, LANES ^ 9, LANES)] + w[np.where(LANES % 8 < 3, LANES, LANES - 3)] + w[np.where(LANES % 8 > 4, LANES, LANES + 3)]
        ), "SHFL.IDX",
    ),
    "a lane of one's own": (
        lambda v: T.shfl_sync(v, T.get_lane_idx() * 7 % 32), lambda w: w[LANES * 7 % 32], "SHFL.IDX"
    ),
    "ballot_sync": (
        lambda v: T.ballot_sync(v > 0), lambda w: np.full(32, sum(int(x > 0) << i for i, x in enumerate(w)), np.int64), "VOTE"
    ),
    "match_any_sync": (
        lambda v: T.match_any_sync(v % 3),
        lambda w: np.array([sum(int(x % 3 == y % 3) << i for i, x in enumerate(w)) for y in w], np.int64), "MATCH.ANY"
    ),
    "match_all_sync": (
        lambda v: T.match_all_sync(v < 1000) - T.match_all_sync(v), lambda w: np.full(32, 0xFFFFFFFF), "MATCH.ALL"
    ),
    "any_sync": (lambda v: T.any_sync(v > 90), lambda w: np.full(32, (w > 90).any()), "VOTE"),
    "all_sync": (lambda v: T.all_sync(v > -101), lambda w: np.full(32, (w > -101).all()), "VOTE"),
    "warp_reduce_sum": (T.warp_reduce_sum, lambda w: np.full(32, w.sum()), "REDUX"),
    "warp_reduce_max": (T.warp_reduce_max, lambda w: np.full(32, w.max()), "REDUX"),
    "warp_reduce_min": (T.warp_reduce_min, lambda w: np.full(32, w.min()), "REDUX"),
    "warp_reduce_bitand": (T.warp_reduce_bitand, lambda w: np.full(32, np.bitwise_and.reduce(w)), "REDUX"),
    "warp_reduce_bitor": (T.warp_reduce_bitor, lambda w: np.full(32, np.bitwise_or.reduce(w)), "REDUX"),
    "indices": (lambda v: T.get_lane_idx() + 100 * T.get_warp_idx() + v, lambda w: w + LANES, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_words(name):
    word, reference, instruction = CASES[name]
    kernel = kernel_of(word)
    x = np.random.default_rng(0).integers(-100, 100, 64).astype(np.int32)
    expected = of_warps(x, reference).astype(np.int64)
    if name == "indices":
        expected[32:] += 100
    for run in (kernel.interpret, kernel.emulate):
        y = np.full(64, 7, np.int32)
        run(x, y)
        assert np.array_equal(y, expected.astype(np.uint32).astype(np.int32) if name != "indices" else expected), run
    if instruction:
        assert instruction in kernel.sass()


def asked(kind, lane, by, width):
    """The lane that PTX names for ``shfl.sync``: its pages say ``segmask``, ``maxLane`` and which comparison leaves the own value."""
    segmask = 32 - width & 31
    low, top = lane & segmask, (lane & segmask) | (31 & ~segmask)
    other = {"up": lane - by, "down": lane + by, "xor": lane ^ by, "sync": low | (by & ~segmask & 31)}[kind]
    return np.where(other >= low if kind == "up" else other <= top, other, lane)


@pytest.mark.parametrize("kind", ["up", "down", "xor", "sync"])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_groups_of_lanes_are_those_of_the_instruction(kind, width):
    """An exclusive or that leaves its group gave the own value, where the instruction reads groups before it."""
    distances = (0, 1, 3, 5, 9, 20)
    word = getattr(T, f"shfl_{kind}")

    @T.prim_func
    def program(X: T.Tensor((32,), "int32"), Y: T.Tensor((len(distances), 32), "int32")):
        with T.Kernel(1, threads=32):
            thread = T.get_thread_binding()
            for i, by in enumerate(distances):
                Y[i, thread] = word(X[thread], by, width=width)

    kernel = tilewright.compile(program, target="cuda -arch=sm_80")
    x = np.random.default_rng(0).permutation(32).astype(np.int32)
    for run in (kernel.interpret, kernel.emulate):
        y = np.full((len(distances), 32), -1, np.int32)
        run(x, y)
        for row, by in zip(y, distances, strict=True):
            assert np.array_equal(row, x[asked(kind, LANES, by, width)]), by


def test_a_warp_that_does_not_meet_is_an_error():
    @T.prim_func
    def divergent(X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            thread = T.get_thread_binding()
            if thread < 40:
                Y[thread] = T.shfl_xor(X[thread], 16)

    kernel = tilewright.compile(divergent, target="cuda -arch=sm_80")
    with pytest.raises(DivergentThreads, match="reads a thread that does not take part"):
        kernel.interpret(np.zeros(64, np.int32), np.zeros(64, np.int32))
