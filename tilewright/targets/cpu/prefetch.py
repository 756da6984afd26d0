"""Software prefetching of what a product reads: how far ahead, and into which cache.

A core has few line fill buffers for its first-level cache. Prefetches into the second-level cache wait in a longer
queue where the machine has one (`far_requests`), and leave those buffers to the loads, unless both have as many
(`wide_first_level`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import INT32, Buffer, Call, Evaluate, Extent, Region, Statement, expr
from tilewright.machine.arch import Arch


@dataclass(frozen=True, slots=True)
class Prefetch:
    """How a stream from main memory is prefetched.

    Attributes
    ----------
    function : the intrinsic of one prefetch.
    distance : bytes from what is read to what is prefetched: more than arrive within the latency of memory.
    """

    function: str
    distance: int

    def line(self, buffer: Buffer, *indices: Extent) -> Statement:
        """Prefetch the line of one element, which need not exist."""
        place = Region(buffer, tuple(map(expr, indices)), (1,) * len(indices))
        return Evaluate(Call(INT32, self.function, (place,)))


FIRST_LEVEL = Prefetch("prefetch", 1024)
SECOND_LEVEL = Prefetch("prefetch_far", 2048)
FIRST_LEVEL_EARLY = Prefetch("prefetch", 2048)


def prefetch_of(arch: Arch) -> Prefetch:
    """What suits a machine."""
    if arch.has("wide_first_level"):
        return FIRST_LEVEL_EARLY
    return SECOND_LEVEL if arch.has("far_requests") else FIRST_LEVEL
