"""`Rates`: what a core does in a cycle, of which schedules that weigh one kind of work against another are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """Work of one core in one cycle.

    Attributes
    ----------
    lanes : simple operations: sums, masks, multiplications with sums of float32.
    shifts : shifts, multiplications of integers, conversions between integers and floats.
    cycles : in a second.
    bytes : that all cores together move from and to memory in a second.
    shared_units : whether the lanes' own units multiply matrices, so that these take the time of other work.
    """

    lanes: float
    shifts: float
    cycles: float
    bytes: float
    shared_units: bool = False

    def seconds(self, cores: int, moved: float, *, lanes: float = 0, shifts: float = 0, others: float = 0) -> float:
        """The least time for so much work in turn, where memory is moved beside; `others` are cycles.

        Examples
        --------
        >>> Rates(lanes=128, shifts=32, cycles=1e9, bytes=100e9).seconds(10, 1e9, lanes=1e9)
        0.01
        """
        cycles = lanes / self.lanes + shifts / self.shifts + others
        return max(cycles / (cores * self.cycles), moved / self.bytes)
