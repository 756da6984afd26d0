"""What tests of time ask, so that other processes, other threads and other tests' garbage do not answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from tilewright.collection import no_collection

TRIES = 6
"""A busy machine makes some of so many runs slower; what is slow itself is slow in all of them."""

PATIENCE = 300.0
"""Seconds for what others do, which take them all where it never happens."""


def takes(seconds: float, work: Callable[[], object]) -> bool:
    """Whether a run takes at most so many of this thread's processor seconds; one that does ends the tries."""
    with no_collection():
        return any(_spent(work) <= seconds for _ in range(TRIES))


def least(work: Callable[[], object], tries: int = TRIES) -> float:
    """Processor seconds of the quickest run."""
    with no_collection():
        return min(_spent(work) for _ in range(tries))


def _spent(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def awaited(condition: Callable[[], object]) -> bool:
    """Whether what others do has come about, as soon as it has."""
    end = time.monotonic() + PATIENCE
    while not (come := bool(condition())) and time.monotonic() < end:
        time.sleep(0.02)
    return come
