"""Fragments that are filled part by part, at places that other threads hold: nothing reads registers that nobody wrote."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret

ROWS, COLUMNS = 16, 16
WAYS = ("copy", "elements", "guarded", "turns", "transposed")


def moved(parts: list[tuple[str, int, int, int]], columns: int, way_out: str):
    """A kernel that moves each part, (how, from row, to row, rows), from one fragment to another that nobody filled first."""

    @T.prim_func
    def main(X: T.Tensor((ROWS, columns), "float32"), Y: T.Tensor((ROWS, columns), "float32")):
        with T.Kernel(1, threads=64):
            s, t = T.alloc_fragment((ROWS, columns), "float32"), T.alloc_fragment((ROWS, columns), "float32")
            T.copy(X, s)
            for how, start, to, rows in parts:
                if how == "copy":
                    T.copy(s[start : start + rows, :], t[to : to + rows, :])
                elif how == "elements":
                    for i, j in T.grid(rows, columns):
                        t[to + i, j] = s[start + i, j]
                elif how == "guarded":
                    for i, j in T.Parallel(ROWS, columns):
                        if i < rows:
                            t[to + i, columns - 1 - j] = s[start + i, columns - 1 - j]
                elif how == "turns":
                    for i in T.serial(rows):
                        for j in T.Parallel(columns):
                            t[to + i, j] = s[start + i, j]
                else:
                    for j, i in T.Parallel(columns, rows):
                        t[to + i, j] = s[start + i, j]
            if way_out == "whole":
                T.copy(t, Y)
            else:
                for _, _, to, rows in parts:
                    T.copy(t[to : to + rows, :], Y[to : to + rows, :])

    return main


def drawn(seed: int) -> tuple[list[tuple[str, int, int, int]], str]:
    """Parts that cover the rows of the destination, or, where it leaves part by part, most of them."""
    draw = random.Random(seed)
    cuts = sorted(draw.sample(range(1, ROWS), draw.choice([1, 2, 3])))
    spans = list(zip([0, *cuts], [*cuts, ROWS]))
    sources = spans[::-1]
    parts, start = [], dict.fromkeys(spans, 0)
    at = 0
    for first, last in sources:
        start[first, last] = at
        at += last - first
    for first, last in draw.sample(spans, len(spans)):
        parts.append((draw.choice(WAYS), start[first, last], first, last - first))
    way_out = draw.choice(["whole", "parts"])
    return (parts[:-1] or parts if way_out == "parts" else parts), way_out


@pytest.mark.parametrize("seed", range(8))
def test_parts_of_fragments_that_nobody_filled_first(seed):
    parts, way_out = drawn(seed)
    program = moved(parts, COLUMNS, way_out)
    x = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    expected = np.full_like(x, 7)
    for _, start, to, rows in parts:
        expected[to : to + rows] = x[start : start + rows]
    found = np.full_like(x, 7)
    interpret(program.function, [x, found])
    assert (found == expected).all()
    for target in ("cpu", "cuda -arch=sm_90a"):
        kernel, found = tilewright.compile(program, target=target), np.full_like(x, 7)
        (kernel if target == "cpu" else kernel.emulate)(x, found)
        assert (found == expected).all(), (parts, way_out)


def test_an_accumulator_that_is_overwritten_first_is_not_cleared_twice():
    @T.prim_func
    def main(X: T.Tensor((16, 16), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=64):
            t = T.alloc_fragment((16, 16), "float32")
            T.copy(X, t)
            for i, j in T.Parallel(16, 16):
                Y[i, j] = t[15 - i, j]

    kernel = tilewright.compile(main, target="cuda -arch=sm_80")
    assert "through shared memory" in kernel.explain() or "t_shared" in kernel.show_program("infer_layouts")
    assert " = 0.0" not in kernel.show_program("infer_layouts")
