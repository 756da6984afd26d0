"""`PanelLayout`: where the elements of a matrix lie when dot-product instructions read it as their vector operand.

A right operand is cut into panels of as many columns as an accumulator has lanes.  Within a panel, one load
after the other follows along k, and a load holds, for every lane, `run` bytes' worth of consecutive k; codes
of fewer than eight bits share the bytes, so that a shift and a mask of the whole load gives the operand of the
next step::

    position of (n, k) = [n / lanes][k / (run * share)][n % lanes][k % run][k / run % share]

Panels that are read at once may lie side by side, load by load, so that memory is read in one piece and not in as many
as there are panels::

    position of (n, k) = [n / (lanes * beside)][k / (run * share)][n / lanes % beside][n % lanes][k % run][k / run % share]

Columns and k are padded to whole loads, columns to whole groups of panels, k to a multiple of some loads where matrix
units take so many at once.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.ir import Expr, Extent, index_binary, register_record


@register_record
@dataclass(frozen=True, slots=True)
class PanelLayout:
    """The order of one operand.

    Attributes
    ----------
    columns, depth : logical size along n and along k.
    transposed : whether the logical matrix is (n, k) rather than (k, n).
    lanes : columns of a panel.
    run : consecutive elements of k that one lane holds in one step.
    share : steps whose elements share a load (codes in a byte), 1 for types of eight bits and more.
    together : loads of a panel are a multiple of this; what lies behind k holds zeros.
    beside : panels side by side.
    """

    columns: int
    depth: int
    transposed: bool
    lanes: int
    run: int = 1
    share: int = 1
    together: int = 1
    beside: int = 1

    def __str__(self) -> str:
        order, padded = "nk" if self.transposed else "kn", f", {self.together} together" if self.together > 1 else ""
        padded += f", {self.beside} beside" if self.beside > 1 else ""
        sizes = f"{order} {self.columns}x{self.depth}"
        return f"panels1[{sizes}: {self.lanes} lanes, run {self.run}, share {self.share}{padded}]"

    @property
    def panels(self) -> int:
        return -(-self.columns // self.lanes)

    @property
    def step(self) -> int:
        """Elements of k in one load."""
        return self.run * self.share

    @property
    def loads(self) -> int:
        """Loads in a panel."""
        return -(-self.depth // (self.step * self.together)) * self.together

    @property
    def load_size(self) -> int:
        """Elements in one load."""
        return self.lanes * self.step

    @property
    def size(self) -> int:
        """Elements in all, padding included."""
        return -(-self.panels // self.beside) * self.beside * self.loads * self.load_size

    def position(self, row: Expr, column: Expr) -> Expr:
        """Position of the element at (row, column) of the logical matrix, as an expression."""
        n, k = (row, column) if self.transposed else (column, row)

        def part(value: Expr, divisor: int, modulus: int | None = None) -> Expr:
            quotient = index_binary("floordiv", value, divisor)
            return quotient if modulus is None else index_binary("floormod", quotient, modulus)

        digits = [
            (self.first(part(n, self.lanes), part(k, self.step)), self.load_size),
            (index_binary("floormod", n, self.lanes), self.step),
            (index_binary("floormod", k, self.run), self.share),
        ]
        if self.share > 1:
            digits.append((part(k, self.run, self.share), 1))
        total: Expr | None = None
        for digit, stride in digits:
            term = index_binary("mul", digit, stride)
            total = term if total is None else index_binary("add", total, term)
        assert total is not None
        return total

    def first(self, panel: Extent, load: Extent) -> Expr:
        """How many loads lie before one of a panel."""
        group, within = panel, None
        if self.beside > 1:
            group, within = index_binary("floordiv", panel, self.beside), index_binary("floormod", panel, self.beside)
        found = index_binary("add", index_binary("mul", group, self.loads), load)
        return found if within is None else index_binary("add", index_binary("mul", found, self.beside), within)

    def permutation(self) -> np.ndarray:
        """Position of every logical element, an int64 array of the logical matrix's shape."""
        n, k = np.arange(self.columns, dtype=np.int64)[:, None], np.arange(self.depth, dtype=np.int64)[None, :]
        panel = n // self.lanes
        place = (panel // self.beside * self.loads + k // self.step) * self.beside + panel % self.beside
        place = (place * self.lanes + n % self.lanes) * self.run + k % self.run
        place = place * self.share + k // self.run % self.share
        return place if self.transposed else place.T
