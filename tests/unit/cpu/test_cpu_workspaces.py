"""Workspaces come back to the kernels that need as much, and never to two at once."""

from __future__ import annotations

import ctypes

import pytest

from tilewright.targets.cpu.launcher import _pool

PAGE = 1 << 20


@pytest.fixture
def pool() -> ctypes.CDLL:
    library = _pool()
    library.tilewright_take.restype = ctypes.c_void_p
    library.tilewright_take.argtypes = [ctypes.c_int64]
    library.tilewright_give.argtypes = [ctypes.c_void_p]
    return library


def test_what_was_given_is_taken_again(pool: ctypes.CDLL) -> None:
    first = pool.tilewright_take(37 * PAGE)
    assert first % 64 == 0
    ctypes.memset(first, 1, 37 * PAGE)
    pool.tilewright_give(first)
    smaller = pool.tilewright_take(36 * PAGE + 5)
    assert smaller == first
    other = pool.tilewright_take(36 * PAGE)
    assert other != first
    pool.tilewright_give(smaller)
    pool.tilewright_give(other)


def test_no_more_is_kept_than_fits(pool: ctypes.CDLL) -> None:
    given = [pool.tilewright_take(40 * PAGE) for _ in range(12)]
    assert len(set(given)) == 12
    for memory in given:
        pool.tilewright_give(memory)  # some are freed: 256 MB are kept at most
    pool.tilewright_give(None)
