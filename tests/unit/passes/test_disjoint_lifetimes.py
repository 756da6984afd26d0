"""Tiles that are declared in loops and conditions, and which of them may lie on the same bytes."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir import Allocate, find, kernels
from tilewright.ir.parser import parse
from tilewright.passes.thread.disjoint_lifetimes import declared_below, disjoint_lifetimes
from tilewright.passes.thread.plan_shared_memory import shared_places

HEAD = '@stage("final")\ndef f(A: float32[64]):\n    with kernel(blocks={m: 1}, threads={tx: 64, ty: 1, tz: 1}):\n'
MEET = "sync_threads(dtype=bool)"
HALF = "named_barrier_sync(1, 64, dtype=bool)"


def use(name, *before):
    """A scope with a tile that threads exchange a value through, behind some statements."""
    lines = [f"{name} = shared(float32[64])", *before, f"{name}[tx] = A[tx]", MEET, f"A[tx] = {name}[tx ^ 1]"]
    return ["with scope():", *indented(lines)]


def indented(lines):
    return [f"    {line}" for line in lines]


def pairs(*lines):
    kernel = kernels(parse(HEAD + "\n".join(" " * 8 + line for line in lines) + "\n"))[0]
    declared = sorted(one.buffer.name for one in find(kernel.body, Allocate))
    assert len(declared_below(kernel)) == len(declared)
    found = {tuple(sorted(one.name for one in pair)) for pair in disjoint_lifetimes(kernel, declared_below(kernel))}
    return {pair for pair in found if len(set(pair)) == 2}


def half(name):
    """Some threads exchange a value through a tile, and meet before and behind it."""
    lines = [f"{name} = shared(float32[64])", f"{name}[tx] = A[tx]", HALF, f"A[tx] = {name}[tx ^ 1]", HALF]
    return ["with scope():", *indented(lines)]


LOOP = "for k in range(4):"
BOTH = {("a", "b")}


@pytest.mark.parametrize(
    "lines, expected",
    [
        (use("a", MEET) + use("b", MEET), BOTH),
        (use("a") + use("b", MEET), BOTH),
        (use("a", MEET) + use("b"), set()),
        ([LOOP, *indented(use("a", MEET) + use("b", MEET))], BOTH),
        # The next iteration's `a` follows on `b` without a meeting.
        ([LOOP, *indented(use("a") + use("b", MEET))], set()),
        ([LOOP, *indented([*use("a"), *use("b", MEET), MEET])], BOTH),
        # One that is needed around the other.
        (["with scope():", *indented(["a = shared(float32[64])", "a[tx] = A[tx]", *use("b", MEET), "A[tx] = a[tx]"])], set()),
        # Only those who come under the condition meet there; the others may still be at `a`.
        ([*use("a", MEET), "if tx < 32:", *indented(use("b", HALF))], set()),
        (["if tx < 32:", *indented(use("a", HALF) + use("b", HALF))], BOTH),
        # That some have met, others do not know (fuzz seed 8000032: a race on every GPU).
        (["if tx < 32:", *indented(half("a")), *use("b")], set()),
        (["if tx < 32:", *indented(half("a")), *use("b", MEET)], BOTH),
        ([LOOP, *indented([*use("a"), MEET, "if tx < 32:", *indented(half("b"))])], set()),
        (["if tx < 32:", *indented([*half("a"), "if A[tx] > 0.0:", "    A[tx] = 0.0", *half("b")])], BOTH),
        # Both ways are taken at once.
        (["if tx < 32:", *indented(use("a", HALF)), "else:", *indented(use("b", HALF))], set()),
        # The first of these threads have left the condition; those who come there later are others.
        ([LOOP, *indented(["if tx == k:", *indented(use("a", HALF) + use("b", HALF))])], set()),
        ([LOOP, *indented(["if tx == k:", *indented(use("a")), "if tx == k:", *indented(use("b", HALF))])], set()),
        # A jump leaves out the meeting at the end of the loop.
        ([LOOP, *indented([*use("a"), "if A[k] > 0.0:", "    continue", *use("b", MEET), MEET])], BOTH),
        ([LOOP, *indented([*use("a"), *use("b", MEET), "if A[k] > 0.0:", "    continue", MEET])], set()),
    ],
)  # fmt: skip
def test_which_tiles_have_disjoint_lifetimes(lines, expected):
    assert pairs(*lines) == expected


def columns(A, M, N):
    """Statistics of rows that both warpgroups hold parts of, in every turn of a loop that loads ahead."""
    A: T.Tensor((M, N * 4), "float16")
    out = T.empty((M, 2), "float32")
    with T.Kernel(1, threads=256):
        tile = T.alloc_shared((M, N), "float16")
        values, most, total = (
            T.alloc_fragment((M, N), "float32"),
            T.alloc_fragment((M,), "float32"),
            T.alloc_fragment((M,), "float32"),
        )
        T.fill(most, -T.infinity("float32"))
        T.fill(total, 0)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * N], tile)
            T.copy(tile, values)
            T.reduce_max(values, most, dim=1, clear=False)
            T.reduce_sum(values, total, dim=1, clear=False)
            T.reduce_sum(values, total, dim=1, clear=False)
        for i in T.Parallel(M):
            out[i, 0] = most[i]
            out[i, 1] = total[i]
    return out


def test_scratches_of_reductions_lie_side_by_side_in_time():
    a = np.random.default_rng(0).integers(-9, 10, (16, 4096)).astype(np.float16)
    kernel = tilewright.jit(columns, target="cuda -arch=sm_90a").compile(a, M=16, N=1024)
    scratches = [one for one in shared_places(kernels(kernel.program.final)[0]) if one[2].endswith("_total_shared")]
    assert len(scratches) > 2 and len({first for first, _, _ in scratches}) == 1
    assert all(end - first <= 16 * 8 * 4 for first, end, _ in scratches)  # each total once a warp, by one of its lanes
    expected = np.stack([a.max(1), 2 * a.astype(np.float64).sum(1)], 1)
    for schedule, seed in (("late", 0), ("random", 3)):
        assert np.array_equal(kernel.emulate(a, schedule=schedule, seed=seed), expected)
