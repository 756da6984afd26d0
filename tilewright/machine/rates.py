"""`Rates`: what a machine does in a cycle, of which times are made that kinds of work take beside one another."""

from __future__ import annotations

from dataclasses import dataclass

SHARES = ((1, 1.0), (2, 1.0), (4, 0.91), (8, 0.85))
"""Blocks of a cluster, and the share of the cores that as many clusters as can be there at once fill: measured on an
H200, whose groups of cores they do not divide evenly."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Work of one core in one cycle, and of all of them in a second.

    Attributes
    ----------
    lanes : simple operations: sums, masks, multiplications with sums of float32.
    shifts : shifts, multiplications of integers, conversions between integers and floats.
    cycles : in a second.
    bytes : that all cores together move from and to memory in a second.
    shared_units : whether the lanes' own units multiply matrices, so that these take the time of other work.
    products : operations on matrices in a cycle by the type of both operands, where they are not the instructions' own.
    shared : bytes that a core's shared memory takes or gives.
    cache, port : bytes that the second-level cache gives all cores together, and one at most.
    launch : cycles before the first product of a launch and behind its last.
    clusters : `SHARES` of this machine.
    source : where the numbers are from.
    """

    lanes: float
    shifts: float
    cycles: float
    bytes: float
    shared_units: bool = False
    products: tuple[tuple[str, float], ...] = ()
    shared: float = 128
    cache: float = 5120
    port: float = 64
    launch: float = 11400
    clusters: tuple[tuple[int, float], ...] = SHARES
    source: str = "data sheet"

    def seconds(self, cores: int, moved: float, *, lanes: float = 0, shifts: float = 0, others: float = 0) -> float:
        """The least time for so much work in turn, where memory is moved beside; `others` are cycles.

        Examples
        --------
        >>> Rates(lanes=128, shifts=32, cycles=1e9, bytes=100e9).seconds(10, 1e9, lanes=1e9)
        0.01
        """
        cycles = lanes / self.lanes + shifts / self.shifts + others
        return max(cycles / (cores * self.cycles), moved / self.bytes)
