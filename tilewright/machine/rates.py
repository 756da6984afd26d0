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
    products : multiplications with sums by matrix instructions.
    cycles : in a second.
    bytes : that all cores together move from and to memory in a second.
    """

    lanes: float
    shifts: float
    products: float
    cycles: float
    bytes: float

    def seconds(self, cores: int, moved: float, *, lanes: float = 0, shifts: float = 0, products: float = 0) -> float:
        """The least time for so much work: that of its slowest kind, where memory is moved beside.

        Examples
        --------
        >>> Rates(lanes=128, shifts=32, products=102, cycles=1e9, bytes=100e9).seconds(10, 1e9, lanes=1e9)
        0.01
        """
        cycles = lanes / self.lanes + shifts / self.shifts + products / self.products
        return max(cycles / (cores * self.cycles), moved / self.bytes)
