"""Kernels that mention thread indices, on a machine where a block is one thread."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest
from cpu_programs import check, compiled, program

from tilewright.errors import TilewrightError
from tilewright.ir import INT32, Const, For, Let, Var, find, kernels, substitute
from tilewright.passes.context import Context
from tilewright.passes.lower.lower_threads import DivergentBarrier, lower_threads
from tilewright.runtime.kernel import Kernel
from tilewright.targets.cpu.arch import host
from tilewright.targets.cuda.arch import arch as cuda
from tilewright.targets.cuda.target import CUDA

rng = np.random.default_rng(0)


def block(body: str, params: str, threads: int | str = 32) -> str:
    shape = f"tx: {threads}, ty: 1, tz: 1" if isinstance(threads, int) else threads
    head = f"def f{params}:\n    with kernel(blocks={{bx: 1}}, threads={{{shape}}}):\n"
    return head + textwrap.indent(textwrap.dedent(body).strip(), " " * 8)


def check_block(body: str, *arguments: Any, params: str, threads: int | str = 32) -> tuple[np.ndarray, ...]:
    return check(block(body, params, threads), *arguments)


def test_each_thread_does_its_element() -> None:
    text = """
    def f(X: float32[n], Y: float32[n], *, n: int32) -> Y:
        with kernel(blocks={bx: (n + 15) // 16}, threads={tx: 16, ty: 1, tz: 1}):
            i: int32 = bx * 16 + tx
            if i < n:
                Y[i] = X[n - 1 - i] + X[i]
    """
    check(text, rng.standard_normal(50).astype(np.float32))


def test_three_thread_indices() -> None:
    (y,) = check_block(
        "Y[tz, ty, tx] = tx + 10 * ty + 100 * tz", params="(Y: int32[2, 3, 4]) -> Y", threads="tx: 4, ty: 3, tz: 2"
    )
    z, w, v = np.indices((2, 3, 4))
    np.testing.assert_array_equal(y, v + 10 * w + 100 * z)


def test_private_memory_across_a_barrier() -> None:
    body = """
    mine = local(int32[4])
    total = scalar(int32[1], initial=tx)
    tile = shared(int32[32])
    for k in range(4):
        mine[k] = tx * k
    tile[tx] = tx * 3
    other: int32 = 31 - tx
    sync_threads()
    total[0] = total[0] + tile[other]
    for k in range(4):
        total[0] = total[0] + mine[k]
    sync_threads()
    Y[tx] = total[0] + other
    """
    (y,) = check_block(body, params="(Y: int32[32]) -> Y")
    t = np.arange(32)
    np.testing.assert_array_equal(y, t + (31 - t) * 3 + 6 * t + 31 - t)


THROUGH_SHARED_TILES = {
    "written, then read": ("tile[tx] = X[tx]", "Y[tx] = tile[31 - tx]"),
    "read, then written": ("tile[tx] = X[tx]", "a: int32 = tile[31 - tx]", "tile[tx] = a", "Y[tx] = tile[tx]"),
    "in a loop": (
        "tile[tx] = X[tx]",
        "for k in range(5):",
        "    a: int32 = tile[(tx + 1) % 32]",
        "    tile[tx] = a + k",
        "Y[tx] = tile[tx]",
    ),
    "by some": ("tile[tx] = X[tx]", "if tx % 3 == 1:", "    tile[tx] = tile[31 - tx] * 0 - tx", "Y[tx] = tile[31 - tx]"),
    "behind a loop of each": (
        "tile[tx] = 0",
        "for k in range(tx, 32, 16):",
        "    tile[k] = X[k] + 1",
        "Y[tx] = tile[(tx + 7) % 32]",
    ),
    "within a branch": (
        "tile[tx] = X[tx]",
        "if tx % 3 == X[0] % 3:",
        "    most = scalar(int32[1], initial=tile[31 - tx])",
        "    b: int32 = tile[(tx + 9) % 32] - 5",
        "    tile[tx] = most[0] + 1",
        "    if tx > 4:",
        "        c: int32 = tile[(tx + 3) % 32]",
        "        tile[tx] = c * 2 + b",
        "    most[0] = most[0] + tile[(tx + 6) % 32] + b",
        "    tile[tx] = most[0]",
        "Y[tx] = tile[31 - tx]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", THROUGH_SHARED_TILES.values(), ids=THROUGH_SHARED_TILES)
def test_threads_hand_values_on_through_shared_memory_as_on_a_gpu(body: tuple[str, ...]) -> None:
    """The compiler places the barriers that shared tiles need on every machine: without them each thread ran to its
    end before the next one began, and read what nobody had written yet."""
    lines = "\n".join(("tile = shared(int32[32])", *body))
    given, params = rng.integers(0, 99, 32, np.int32), "(X: int32[32], Y: int32[32]) -> Y"
    (found,) = check_block(lines, given, params=params)
    emulated = Kernel(program(block(lines, params)), CUDA, cuda({"arch": "sm_90a"})).emulate(given)
    np.testing.assert_array_equal(emulated, found)


def test_a_value_read_before_a_barrier_is_kept() -> None:
    body = """
    tile = shared(int32[32])
    tile[tx] = tx
    sync_threads()
    seen: int32 = tile[(tx + 1) % 32]
    sync_threads()
    tile[tx] = 100
    sync_threads()
    Y[tx] = seen + tile[tx]
    """
    check_block(body, params="(Y: int32[32]) -> Y")


def test_a_tree_reduction_through_shared_memory() -> None:
    body = """
    tile = shared(int32[64])
    tile[tx] = X[tx]
    sync_threads()
    step = scalar(int32[1], initial=32)
    while step[0] > 0:
        if tx < step[0]:
            tile[tx] = tile[tx] + tile[tx + step[0]]
        sync_threads()
        step[0] = step[0] // 2
    if tx == 0:
        Y[0] = tile[0]
    """
    x = rng.integers(0, 1000, 64).astype(np.int32)
    (y,) = check_block(body, x, params="(X: int32[64], Y: int32[1]) -> Y", threads=64)
    assert y[0] == x.sum()


def test_divergent_loops_breaks_and_returns() -> None:
    body = """
    count = scalar(int32[1], initial=0)
    for k in range(10):
        if k > tx:
            break
        if k % 2 == tx % 2:
            continue
        count[0] = count[0] + 1
    n = scalar(int32[1], initial=tx)
    while n[0] > 20:
        n[0] = n[0] - 7
    for k in range(tx, tx + 2):
        n[0] = n[0] + k
    Y[tx] = 0
    if tx >= 30:
        return
    Y[tx] = count[0] + 1000 * n[0]
    """
    check_block(body, params="(Y: int32[32]) -> Y")


def test_threads_that_returned_stay_away() -> None:
    body = """
    tile = shared(int32[32])
    tile[tx] = tx
    Y[tx] = -1
    for k in range(100):
        if k * tx > 200:
            return
    sync_threads()
    tile[tx] = tile[tx] * 2
    sync_threads()
    Y[tx] = tile[tx]
    """
    (y,) = check_block(body, params="(Y: int32[32]) -> Y")
    np.testing.assert_array_equal(y, [2 * t if 99 * t <= 200 else -1 for t in range(32)])


def test_when_every_thread_returned_the_block_is_done() -> None:
    text = """
    def f(Y: int32[4]):
        with kernel(blocks={bx: 4}, threads={tx: 8, ty: 1, tz: 1}):
            if bx * 8 + tx >= 16:
                return
            Y[bx] = 1
    """
    y = np.zeros(4, np.int32)
    compiled(text)(y)
    np.testing.assert_array_equal(y, [1, 1, 0, 0])


def test_tile_operators_beside_threads() -> None:
    body = """
    tile = shared(float32[64])
    copy(source=X, destination=tile)
    tile[tx] = tile[tx] * 2.0
    for i in parallel(64):
        tile[i] = tile[i] + 1.0
    Y[tx] = tile[63 - tx]
    """
    check_block(
        body, rng.standard_normal(64).astype(np.float32), params="(X: float32[64], Y: float32[64]) -> Y", threads=64
    )


def test_tile_operators_under_a_thread_condition_run_once() -> None:
    body = """
    tile = shared(int32[8])
    fill(destination=tile, value=int32(0))
    if tx < 4:
        for i in parallel(8):
            tile[i] = tile[i] + i
    copy(source=tile, destination=Y)
    """
    (y,) = check_block(body, params="(Y: int32[8]) -> Y")
    np.testing.assert_array_equal(y, np.arange(8))


def test_tile_operators_on_local_arrays_run_in_each_thread() -> None:
    body = """
    mine = local(float32[4])
    copy(source=X[tx, :], destination=mine)
    most = local(float32[1])
    reduce(source=mine, destination=most, kind="max")
    Y[tx] = most[0]
    """
    check_block(
        body, rng.standard_normal((32, 4)).astype(np.float32), params="(X: float32[32, 4], Y: float32[32]) -> Y"
    )


def test_vectorized_loops_of_threads() -> None:
    body = """
    mine = local(float32[4])
    for v in vectorize(4):
        mine[v] = X[tx * 4 + v]
    for v in vectorize(4):
        Y[tx * 4 + v] = mine[v] * 2.0
    """
    check_block(body, rng.standard_normal(128).astype(np.float32), params="(X: float32[128], Y: float32[128]) -> Y")


def test_atomics_of_threads() -> None:
    text = """
    def f(X: int32[n], H: int32[8], *, n: int32):
        with kernel(blocks={bx: (n + 31) // 32}, threads={tx: 32, ty: 1, tz: 1}):
            if bx * 32 + tx < n:
                atomic_add(H[X[bx * 32 + tx] : +1], 1, "relaxed")
    """
    x, h = rng.integers(0, 8, 5000).astype(np.int32), np.zeros(8, np.int32)
    compiled(text)(x, h)
    np.testing.assert_array_equal(h, np.bincount(x, minlength=8))


@pytest.mark.parametrize("body", ["{}", "if n > 2:\n    {}", "for k in range(n):\n    {}"])
def test_every_thread_adds_though_none_says_its_number(body: str) -> None:
    words = block(body.format('atomic_add(H[0 : +1], 1, "relaxed")'), "(H: int32[1], n: int32)", threads=64)
    h = np.zeros(1, np.int32)
    compiled(words)(h, 3)
    assert h[0] == (192 if "for" in body else 64)


def test_votes_over_tiles() -> None:
    body = """
    t = shared(int32[8])
    copy(source=X, destination=t)
    Y[0] = int32(any_of(t[0 : +8], dtype=bool))
    Y[1] = int32(all_of(t[0 : +8], dtype=bool))
    """
    kernel = compiled(block(body, "(X: int32[8], Y: int32[2]) -> Y"))
    for values in ([0] * 8, [1] * 8, [0] * 7 + [3]):
        np.testing.assert_array_equal(kernel(np.array(values, np.int32)), [any(values), all(values)])


def test_a_barrier_that_not_all_threads_reach() -> None:
    function = program(block("if tx < 4:\n    sync_threads()\n    Y[tx] = 1", "(Y: int32[8])"))
    with pytest.raises(DivergentBarrier) as caught:
        lower_threads(function, Context(host()))
    assert caught.value.span is not None and caught.value.span.line == 3


@pytest.mark.parametrize("otherwise", [False, True])
def test_a_barrier_under_a_condition_that_all_threads_answer_alike(otherwise: bool) -> None:
    body = """
    tile = shared(int32[32])
    tile[tx] = tx
    if n > 2:
        sync_threads()
        Y[tx] = tile[31 - tx]
    """
    body = textwrap.dedent(body) + "else:\n    Y[tx] = tile[tx]\n" * otherwise
    kernel, y = compiled(block(body, "(Y: int32[32], n: int32)")), np.full(32, -1, np.int32)
    kernel(y, 2)
    np.testing.assert_array_equal(y, np.arange(32) if otherwise else np.full(32, -1))
    kernel(y, 3)
    np.testing.assert_array_equal(y, np.arange(32)[::-1])


def test_a_parallel_loop_that_mentions_a_thread() -> None:
    function = program(block("for i in parallel(8):\n    Y[i] = tx", "(Y: int32[8])"))
    with pytest.raises(TilewrightError, match=r"T\.Parallel is work of the whole block"):
        lower_threads(function, Context(host()))


def test_kernels_without_threads_are_left_alone() -> None:
    function = program(block("for i in parallel(8):\n    Y[i] = i", "(Y: int32[8])"))
    (before,), (after,) = kernels(function), kernels(lower_threads(function, Context(host())))
    assert after.body is before.body and after.threads == (1, 1, 1)  # of which one does the work


def test_a_name_that_another_loop_uses_and_that_is_made_of_a_name_of_its_own_loop() -> None:
    body = """
    part: int32 = tx * 3
    whole: int32 = part + 1
    Z[0] = 5
    Y[tx] = whole
    """
    y, z = check_block(body, params="(Y: int32[8], Z: int32[1]) -> (Y, Z)", threads=8)
    np.testing.assert_array_equal(y, np.arange(8) * 3 + 1)
    assert z[0] == 5


def test_names_of_one_word_keep_their_order() -> None:
    """What a loop over threads computes again stands in the order in which it is asked for, not as addresses happen to
    lie."""
    names = [f"n{number}" for number in range(1, 7)]
    body = [
        *(f"{name}: int32 = tx + {name[1:]}" for name in names),
        *("tile = shared(int32[64])", "tile[tx] = A[tx]", "sync_threads()"),
        f"B[tx] = tile[63 - tx] + {' + '.join(reversed(names))}",
    ]
    function = program(block("\n".join(body), "(A: int32[64], B: int32[64]) -> B", 64))
    alike = {let.var: Var(INT32, "n") for let in find(function.body, Let)}
    made = lower_threads(function.with_body(substitute(function.body, alike)), Context(host()))
    last = list(find(made.body, For))[-1]
    assert [node.value for let in find(last, Let) for node in find(let.value, Const)] == [6, 5, 4, 3, 2, 1]
