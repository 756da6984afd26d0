"""Kernels of a benchmark compiled before it begins, by as many processes as there are cores.

Processes share the disk cache, so what they compile is read in a moment afterwards.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.specialization import JITFactory

CARD = "cuda -arch=sm_90a -cores=132"
"""The H200, said without asking a driver, which processes that are forked may not have been asked before."""

_todo: list[Callable[[], Any]] = []


def on_this_card(factory: Any, schedule: Any = None) -> Any:
    """A factory of the library whose kernels are made for the card without asking which one it is."""
    return JITFactory(factory.function, None, CARD, schedule)


def _build(number: int) -> str | None:
    try:
        _ = _todo[number]().path
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def build_all(made: Sequence[Callable[[], Any]]) -> None:
    """Build what these make; to be called before anything asks the device."""
    begin = time.time()
    _todo[:] = made
    with multiprocessing.get_context("fork").Pool(min(len(made), os.cpu_count() or 1)) as pool:
        failed = [one for one in pool.map(_build, range(len(made)), chunksize=1) if one]
    for one in failed:
        print(f"  not built: {one}")
    print(f"{len(made)} kernels in {time.time() - begin:.0f} s", file=sys.stderr, flush=True)
