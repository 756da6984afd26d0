"""Layouts that authors write as functions: the same everywhere, or refused."""

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright.language as T
from tilewright import layout as algebra
from tilewright.errors import InvalidLayout
from tilewright.language.mistakes import NumberExpected


@pytest.mark.parametrize(
    ("shape", "function"),
    [
        ((8, 16), lambda i, j: i * 16 + j),
        ((8, 16), lambda i, j: j * 8 + i),
        ((8, 16), lambda i, j: (j // 4, i, j % 4)),
        ((64, 64), lambda i, j: i * 64 + ((j // 8) ^ (i % 8)) * 8 + j % 8),
        ((6, 10), lambda i, j: (i // 3) * 30 + j * 3 + i % 3),
        ((12,), lambda i: (i % 3) * 4 + i // 3),
        ((4, 4), lambda i, j: i * 4 + j if i >= 0 else 0),
    ],
)
def test_layout_agrees_with_the_function_everywhere(shape: tuple[int, ...], function: Any) -> None:
    made = T.Layout(shape, function)
    expected = np.zeros(shape, int)
    ranges: list[int] = []
    for point in np.ndindex(*shape):
        value = function(*map(int, point))
        parts = value if isinstance(value, tuple) else (value,)
        ranges = [max(a, b + 1) for a, b in zip(ranges or [0] * len(parts), parts, strict=True)]
    for point in np.ndindex(*shape):
        value = function(*map(int, point))
        offset = 0
        for part, size in zip(value if isinstance(value, tuple) else (value,), ranges, strict=True):
            offset = offset * size + part
        expected[point] = offset
    np.testing.assert_array_equal(made.table("memory"), expected)


def test_fragment_of_a_matrix_instruction() -> None:
    """Rows of eight, two registers a thread: the accumulator of an 8 by 8 product of a warp."""
    made = T.Fragment((8, 8), lambda i, j: (i * 4 + j // 2, j % 2))
    apart = T.Fragment((8, 8), forward_thread_fn=lambda i, j: i * 4 + j // 2, forward_index_fn=lambda i, j: j % 2)
    counted = T.Fragment((8, 8), forward_thread_fn=lambda i, j: i * 4 + j // 2)
    assert made == apart == counted
    assert made.locate(3, 5) == {"thread": 14, "register": 1}


def test_replicated_fragment() -> None:
    made = T.Fragment((8,), forward_thread_fn=lambda i: i, replicate=4)
    assert made == algebra.Layout.of([(8, "thread", 1)], replicas=made.replicas)
    assert made.replication == 4 and made.extent("thread") == 32


def test_copies_where_the_author_puts_them() -> None:
    made = T.Fragment((8,), forward_thread_fn=lambda i, copy: i * 4 + copy, replicate=4)
    assert made.locate(3) == {"thread": 12}
    assert made.replication == 4 and made.extent("thread") == 32
    with pytest.raises(InvalidLayout):
        T.Fragment((8,), forward_thread_fn=lambda i, copy: i + copy * copy * 8, replicate=4)


@pytest.mark.parametrize("counts, strides", [((4, 2), (64, 1)), ((2, 3, 2), (100, 16, 8)), ((3, 5), (1, 9))])
def test_copies_at_the_distances_of_several_digits(counts: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """As `amax_forward_fn` of DeepSeek's tile-kernels has them: ``copy // 8 * 32 + copy % 8``."""

    def thread(i: int, copy: int) -> int:
        return i * 200 + int(sum(np.unravel_index(copy, counts) * np.array(strides)))

    made = T.Fragment((3,), forward_thread_fn=thread, replicate=int(np.prod(counts)))
    steps = itertools.product(*([digit.stride * at for at in range(digit.extent)] for digit in made.replicas))
    held = {made.locate(i)["thread"] + sum(step) for step in steps for i in range(3)}
    assert held == {thread(i, copy) for i in range(3) for copy in range(int(np.prod(counts)))}


def test_what_is_no_layout_is_refused() -> None:
    with pytest.raises(InvalidLayout):
        T.Layout((8, 8), lambda i, j: i / 2)
    with pytest.raises(InvalidLayout):
        T.Layout((8, 8), lambda i, j: j - i)
    with pytest.raises(NumberExpected):
        T.Fragment((8, 8))
