"""How lines of memory are asked for before a product reads them: how far ahead of it, and into which cache.

A core has few places for lines on their way to its first-level cache. Requests that stop in the second one wait in a
longer queue where the machine has it (`far_requests`), and leave the places to the loads themselves, unless there are
as many places in both (`wide_first_level`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import INT32, Buffer, Call, Evaluate, Extent, Region, Statement, expr
from tilewright.machine.arch import Arch


@dataclass(frozen=True, slots=True)
class Requests:
    """How a stream from main memory is asked for.

    Attributes
    ----------
    function : the intrinsic of one request.
    distance : bytes from what is read to what is asked for; longer than the way from memory takes.
    """

    function: str
    distance: int

    def line(self, buffer: Buffer, *indices: Extent) -> Statement:
        """The request for the line of one element, which need not exist."""
        return ask(buffer, *indices, function=self.function)


NEAR = Requests("prefetch", 1024)
FAR = Requests("prefetch_far", 2048)
NEAR_EARLY = Requests("prefetch", 2048)


def requests_of(arch: Arch) -> Requests:
    """How this machine is best asked for streams."""
    if arch.has("wide_first_level"):
        return NEAR_EARLY
    return FAR if arch.has("far_requests") else NEAR


def ask(buffer: Buffer, *indices: Extent, function: str = "prefetch") -> Statement:
    """The request for the line of an element."""
    place = Region(buffer, tuple(map(expr, indices)), (1,) * len(indices))
    return Evaluate(Call(INT32, function, (place,)))
