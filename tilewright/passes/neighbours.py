"""Groups of neighbours along a variable, that one access or one instruction may take together: what values are for each
of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.arith import Analyzer
from tilewright.ir import nodes as ir
from tilewright.ir import substitute, walk


@dataclass(slots=True)
class Neighbours:
    """Groups of `width` neighbours along a variable, one behind the other.

    Attributes
    ----------
    origin : the first of the first group.
    groups : of the first and of the last group the number, where they are known.
    number, lane : which group, and which neighbour of it; what a value does with the variable shows on them.
    """

    analyzer: Analyzer
    var: ir.Var
    width: int
    origin: ir.Expr | None = None
    groups: tuple[ir.Extent | None, ir.Extent | None] = (None, None)
    number: ir.Var = field(init=False)
    lane: ir.Var = field(init=False)

    def __post_init__(self) -> None:
        self.number, self.lane = ir.Var(self.var.dtype, self.var.name), ir.Var(self.var.dtype, "lane")

    def of_lane(self, value: ir.Expr, less: ir.Extent = 0) -> ir.Expr:
        """A value for neighbour `lane` of group `number`, without so much."""
        place = self.number * self.width + self.lane
        made = substitute(value, {self.var: place if self.origin is None else self.origin + place})
        with self.analyzer.scope():
            self.analyzer.bind_extent(self.lane, self.width)
            if self.groups != (None, None):
                self.analyzer.bind(self.number, *self.groups)
            return self.analyzer.simplify(made if isinstance(less, int) else made - less)

    def agree(self, value: ir.Expr) -> bool:
        """Whether a value is the same for all of a group."""
        return self.var not in walk(value) or self.lane not in walk(self.of_lane(value))

    def begin(self, value: ir.Expr) -> ir.Expr | None:
        """What a value is for the first of a group where it grows by one from each to the next; None where it does
        not."""
        first = self.of_lane(value, less=self.lane)
        return None if self.lane in walk(first) else first
