"""What a reduction leaves has one layout, whichever tile of the loop around it is the largest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.layout import REGISTER, THREAD, Layout
from tilewright.layout.digits import parse_digits
from tilewright.machine.amd import ARCHITECTURES as AMD
from tilewright.machine.apple import FAMILIES as APPLE
from tilewright.passes.tile.layouts.layout_flow import spread_over_copies
from tilewright.targets.cuda.arch import ARCHITECTURES as NVIDIA

TARGETS = ("cuda -arch=sm_80", "cuda -arch=sm_90a", "hip -arch=gfx942", "hip -arch=gfx1100", "metal -arch=apple7")


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_two_products_without_instructions(target: str, width: int) -> None:
    """The wider product's rows gave the maxima their layout, and the narrower one's reduction was refused."""

    def program(A, B, V):
        A: T.Tensor((6, 24), "float32")
        B: T.Tensor((24, 20), "float32")
        V: T.Tensor((20, width), "float32")
        O = T.empty((6, width), "float32")
        with T.Kernel(1, threads=128):
            a, b, v, p = (T.alloc_shared(shape, "float32") for shape in ((6, 24), (24, 20), (20, width), (6, 20)))
            s, o = T.alloc_fragment((6, 20), "float32"), T.alloc_fragment((6, width), "float32")
            top, before = T.alloc_fragment((6,), "float32"), T.alloc_fragment((6,), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(V, v)
            T.clear(o)
            T.fill(top, -100)
            for _ in T.serial(2):
                T.clear(s)
                T.gemm(a, b, s)
                T.copy(top, before)
                T.reduce_max(s, top, dim=1, clear=False)
                for i, j in T.Parallel(6, 20):
                    s[i, j] = s[i, j] - top[i]
                T.copy(s, p)
                for i, j in T.Parallel(6, width):
                    o[i, j] = o[i, j] + top[i] - before[i]
                T.gemm(p, v, o)
            T.copy(o, O)
        return O

    rng = np.random.default_rng(width)
    given = [rng.integers(-3, 4, shape).astype("float32") for shape in ((6, 24), (24, 20), (20, width))]
    kernel = tilewright.jit(target=target)(program).compile(*given)
    scores = given[0] @ given[1]
    rows = scores.max(1, keepdims=True)
    assert (kernel.emulate(*given) == 2 * ((scores - rows) @ given[2]) + rows + 100).all()


def test_columns_are_counted_by_the_copies_of_a_row_and_then_by_registers_in_sequence() -> None:
    rows = Layout((parse_digits("2:r1 8:t4"),), parse_digits("4:t1"))
    spread = spread_over_copies(rows, (0,), 1, (16, 12))
    assert spread is not None and spread.digits[1] == parse_digits("4:t1 3:r2")
    assert (spread.extent(THREAD), spread.extent(REGISTER)) == (32, 6)
    assert spread_over_copies(rows, (0,), 1, (16, 6)) is None


@pytest.mark.parametrize("kind", ["max", "sum"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("target", TARGETS)
def test_two_tiles_of_one_total(target: str, dtype: str, kind: str) -> None:
    """Their lines lie in different threads: what one of them leaves is handed over."""

    def program(A, B):
        A: T.Tensor((6, 20), "float32")
        B: T.Tensor((6, 200), "float32")
        O = T.empty((6,), dtype)
        with T.Kernel(1, threads=128):
            a, b = T.alloc_fragment((6, 20), "float32"), T.alloc_fragment((6, 200), "float32")
            total = T.alloc_fragment((6,), dtype)
            T.copy(A, a)
            T.copy(B, b)
            reduce = T.reduce_max if kind == "max" else T.reduce_sum
            reduce(a, total, dim=1)
            reduce(b, total, dim=1, clear=False)
            reduce(a, total, dim=1, clear=False)
            T.copy(total, O)
        return O

    rng = np.random.default_rng(7)
    given = [rng.integers(-9, 10, shape).astype("float32") for shape in ((6, 20), (6, 200))]
    kernel = tilewright.jit(target=target)(program).compile(*given)
    every = np.concatenate([given[0], given[1], given[0]], 1)
    assert (kernel.emulate(*given) == (every.max(1) if kind == "max" else every.sum(1))).all()


EVERYWHERE = [
    *(f"cuda -arch={one}" for one in NVIDIA), *(f"hip -arch={one}" for one in AMD),
    *(f"metal -arch={one}" for one in APPLE), "cpu -arch=native",
]  # fmt: skip


def _as_expected(program: Callable[..., Any], target: str, given: np.ndarray, expected: np.ndarray) -> None:
    """The program agrees with numpy in the interpreter, and in the emulator or on this CPU."""
    kernel = tilewright.jit(target=target)(program).compile(given)
    np.testing.assert_array_equal(kernel.interpret(given), expected)
    np.testing.assert_array_equal((kernel.emulate if kernel.target.emulation else kernel)(given), expected)


@pytest.mark.parametrize("read", ["loop", "threads", "wide loop"])
@pytest.mark.parametrize("target", EVERYWHERE)
def test_rows_of_a_tile_that_only_parts_are_written_of(target: str, read: str) -> None:
    """No loop said where the tile lies, so nothing said where its maxima do, and what handed them over was set apart
    again and again."""

    def program(A):
        A: T.Tensor((16, 16), "float32")
        O = T.empty((16, 48) if read == "wide loop" else (16,), "float32")
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            tile, top = T.alloc_fragment((16, 16), "float32"), T.alloc_fragment((16,), "float32")
            T.copy(A[0:8, :], tile[8:16, :])
            T.copy(A[8:16, :], tile[0:8, :])
            T.reduce_max(tile, top, dim=1)
            if read == "loop":
                for i in T.Parallel(16):
                    top[i] = top[i] * 2
                T.copy(top, O)
            elif read == "threads":
                with T.If(tx < 16), T.Then():
                    O[tx] = top[15 - tx]
            else:
                for i, j in T.Parallel(16, 48):
                    O[i, j] = top[i] + j
        return O

    given = np.random.default_rng(3).integers(-9, 10, (16, 16)).astype("float32")
    top = np.roll(given, 8, 0).max(1)
    by_reader = {"loop": top * 2, "threads": top[::-1], "wide loop": top[:, None] + np.arange(48, dtype=np.float32)}
    _as_expected(program, target, given, by_reader[read])


@pytest.mark.parametrize("target", EVERYWHERE)
def test_reductions_in_a_circle(target: str) -> None:
    """Each of two tiles is what the other leaves, and neither is written whole by a loop."""

    def program(A):
        A: T.Tensor((16, 16), "float32")
        O = T.empty((16, 1), "float32")
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((16, 16), "float32")
            one, other = T.alloc_fragment((16, 1), "float32"), T.alloc_fragment((16, 1), "float32")
            T.copy(A[0:8, :], tile[8:16, :])
            T.copy(A[8:16, :], tile[0:8, :])
            T.fill(one[0:8, :], 1)
            T.fill(one[8:16, :], 2)
            T.reduce_sum(one, other, dim=1)
            T.reduce_sum(other, one, dim=1)
            T.reduce_max(tile, other, dim=1, clear=False)
            T.reduce_max(other, one, dim=1, clear=False)
            for i, j in T.Parallel(16, 1):
                O[i, j] = one[i, j] * 4 + other[i, j]
        return O

    given = np.random.default_rng(3).integers(-9, 10, (16, 16)).astype("float32")
    top = np.maximum(np.roll(given, 8, 0).max(1, keepdims=True), np.repeat([1, 2], 8)[:, None])
    _as_expected(program, target, given, (5 * top).astype(np.float32))
