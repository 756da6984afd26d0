"""Timing one call honestly: medians, and on a GPU events around each launch with the second-level cache flushed
before."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

from tilewright.runtime.profiler import samples

FLUSH_BYTES = 256 << 20
"""More than any second-level cache holds."""


def time_call(function: Callable[[], object], device: str = "cpu", rounds: int = 20) -> float:
    """Median milliseconds of ``function()``; see `call_times`."""
    return statistics.median(call_times(function, device, rounds))


def call_times(function: Callable[[], object], device: str = "cpu", rounds: int = 20) -> list[float]:
    """Milliseconds of single calls of ``function()`` on ``"cpu"`` or a device of torch, of which so many `rounds` are
    measured on a GPU."""
    if device == "cpu":
        return samples(function, warmup=10.0, rep=50.0)
    torch = sys.modules["torch"]
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    function()
    times = []
    for _ in range(rounds):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times
