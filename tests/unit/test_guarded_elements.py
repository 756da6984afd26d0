"""Random expressions of elements that exist, or were written, only where conditions before them hold: no machine may read another one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T

ROWS, COLUMNS = 12, 32
TARGETS = (
    "cpu",
    "cuda -arch=sm_80",
    "cuda -arch=sm_90a",
    "hip -arch=gfx942",
    "hip -arch=gfx1100",
    "metal -arch=apple7",
)
Element = Callable[[Any, Any, Any, Any], Any]
"""What a tile, the wanted rows, and an iteration's row and column make."""


def element(draw: random.Random, depth: int) -> Element:
    """A number of an iteration: its own element, or one that conditions guard, of its neighbours or of a row that memory names."""
    kind = draw.choice(("own", "neighbour", "neighbour", "gathered", "sum", "choice")) if depth else "own"
    if kind == "own":
        return lambda tile, rows, i, j: tile[i, j]
    rest = element(draw, depth - 1)
    if kind == "sum":
        other = element(draw, depth - 1)
        return lambda tile, rows, i, j: other(tile, rows, i, j) + rest(tile, rows, i, j)
    asked = condition(draw, depth)
    if kind == "choice":
        other = element(draw, depth - 1)
        return lambda *at: T.if_then_else(asked(*at), other(*at), rest(*at))
    down, right = draw.randint(-2, 2), draw.choice((0, 0, -1, 1, 4))
    if kind == "neighbour":
        return lambda tile, rows, i, j: T.if_then_else(
            inside(i + down, j + right) & asked(tile, rows, i, j), tile[i + down, j + right], rest(tile, rows, i, j)
        )
    by_column = draw.random() < 0.3
    return lambda tile, rows, i, j: T.if_then_else(
        (rows[j if by_column else i] >= 0) & (rows[j if by_column else i] < ROWS),
        tile[rows[j if by_column else i], j], rest(tile, rows, i, j),
    )  # fmt: skip


def condition(draw: random.Random, depth: int) -> Element:
    """What may differ from column to column, or is the same in a row; it may read guarded elements itself."""
    kind = draw.choice(("column", "row", "both", "data", "guarded"))
    step, at, number = draw.choice((2, 3, 5, 8)), draw.randrange(2), draw.randint(-3, 3)
    if kind == "column":
        return lambda tile, rows, i, j: j % step != at
    if kind == "row":
        return lambda tile, rows, i, j: (i % 2 == at) | (i > step)
    if kind == "both":
        return lambda tile, rows, i, j: i + number < j
    if kind == "data":
        return lambda tile, rows, i, j: tile[i, j] > number
    down = draw.choice((-1, 1))
    return lambda tile, rows, i, j: inside(i + down, j) & (tile[i + down, j] > number)


def inside(i: Any, j: Any) -> Any:
    return (i >= 0) & (i < ROWS) & (j >= 0) & (j < COLUMNS)


def program_of(seed: int) -> tuple[Callable[..., Any], tuple[np.ndarray, np.ndarray]]:
    """A kernel that applies such an expression some times, and its arguments."""
    draw = random.Random(f"guarded {seed}")
    dtype, threads, one_buffer = (
        draw.choice(("int32", "int8", "float16", "int16")),
        draw.choice((32, 64, 96)),
        draw.random() < 0.5,
    )
    value, other, asked = element(draw, 3), element(draw, 2), condition(draw, 2)
    as_branches = draw.random() < 0.5

    def program(A, R):
        A: T.Tensor((ROWS, COLUMNS), dtype)
        R: T.Tensor((COLUMNS,), "int32")
        O = T.empty((ROWS, COLUMNS), dtype)
        with T.Kernel(1, threads=threads):
            tiles = T.alloc_shared((2, ROWS, COLUMNS), dtype)
            rows = T.alloc_shared((COLUMNS,), "int32")
            T.copy(A, tiles[0, :, :])
            T.copy(R, rows)
            for turn in T.serial(3):
                old, new = (turn % 2, 1 - turn % 2) if one_buffer else (0, 1)
                for i, j in T.Parallel(ROWS, COLUMNS):
                    if as_branches:
                        if asked(_Slot(tiles, old), rows, i, j):
                            tiles[new, i, j] = T.cast(value(_Slot(tiles, old), rows, i, j), dtype)
                        else:
                            tiles[new, i, j] = T.cast(other(_Slot(tiles, old), rows, i, j), dtype)
                    else:
                        tiles[new, i, j] = T.cast(value(_Slot(tiles, old), rows, i, j), dtype)
            T.copy(tiles[1, :, :], O)
        return O

    numbers = np.random.default_rng(seed)
    record = tilewright.dtype(dtype).numpy
    return program, (
        numbers.integers(-4, 5, (ROWS, COLUMNS)).astype(record),
        numbers.integers(-3, ROWS + 4, COLUMNS).astype(np.int32),
    )


class _Slot:
    """One of two tiles that lie in one buffer."""

    def __init__(self, tiles: Any, number: Any) -> None:
        self.tiles, self.number = tiles, number

    def __getitem__(self, place: tuple[Any, Any]) -> Any:
        return self.tiles[(self.number, *place)]


@pytest.mark.parametrize("seed", range(24))
def test_what_no_condition_lets_through_is_not_read(seed: int) -> None:
    """The emulator reports reads outside of a tile and of what others are storing to; the interpreter says what is right."""
    function, arguments = program_of(seed)
    expected = None
    for target in (TARGETS[seed % len(TARGETS)], TARGETS[(seed + 1 + seed // len(TARGETS)) % len(TARGETS)]):
        kernel = tilewright.jit(target=target)(function).compile(*arguments)
        if expected is None:
            expected = kernel.interpret(*arguments)
        way = kernel if kernel.target.emulation is None else kernel.emulate
        np.testing.assert_array_equal(way(*arguments), expected)
