"""`TileInstruction`: a processor's matrix unit, as data.

Such a unit has a few registers that hold tiles, rows of up to 64 bytes each, and multiplies two of them::

    accumulator[i][j] += sum over w, d of left[i][w * depth + d] * right[w][j * depth + d]

A row of the right tile is what a `DotInstruction` takes as its vector operand: `depth` consecutive elements of k for
every column. So both read the same panels (`layout.panels`), and a tile is `words` loads of one, which follow each
other in memory. A row of the left tile is a run of k in one row of the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.dtypes import DType
from tilewright.machine.arch import Arch
from tilewright.machine.dot import DotInstruction, OperandPlan, match_operands
from tilewright.machine.instructions import REGISTERS

TILES = "tiles"
"""The registers of a matrix unit, as a place."""


@dataclass(frozen=True, slots=True)
class TileInstruction(DotInstruction):
    """One instruction of a matrix unit, for tiles of at most `rows` rows, `lanes` columns and `words` words of k.

    Attributes
    ----------
    rows : of an accumulator and of a left tile, at most.
    words : runs of `depth` elements of k in a row of a left tile, at most: rows of a right tile.
    tiles : registers.
    """

    rows: int = 16
    words: int = 16
    tiles: int = 8

    @property
    def shape(self) -> tuple[int, int, int]:
        """Its tiles, where they are full."""
        return self.rows, self.lanes, self.words * self.depth

    @property
    def rate(self) -> float:
        """Products and sums of a row of a left tile: the unit takes one a cycle."""
        return 2.0 * self.words * self.depth * self.lanes

    @property
    def place(self) -> str:
        """Where the accumulator lies, and both operands."""
        return TILES


@dataclass(frozen=True, slots=True)
class TilePlan(OperandPlan):
    """A product by the matrix unit.

    Attributes
    ----------
    words : of k, `instruction.depth` elements each, that one instruction takes; they divide a chunk.
    """

    words: int = 0

    def __str__(self) -> str:
        return f"{self.instruction.function} on tiles of {self.words * self.instruction.depth} along k"


def dot_instructions(arch: Arch) -> tuple[DotInstruction, ...]:
    """The dot products of vectors that a machine has, best first."""
    return tuple(one for one in arch.products(DotInstruction) if one.place == REGISTERS)


def first_match(a: DType, b: DType, arch: Arch) -> OperandPlan | None:
    """The machine's best way to multiply an `a` by a `b` in vectors, whatever the gemm."""
    return next((plan for i in dot_instructions(arch) if (plan := match_operands(i, a, b)) is not None), None)


def has_tiles(arch: Arch, dtype: DType) -> bool:
    """Whether the matrix unit of a machine multiplies matrices of a type."""
    return any(i.vector == dtype == i.broadcast for i in arch.products(TileInstruction))
