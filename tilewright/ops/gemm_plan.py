"""How instructions execute a gemm: what `select_instructions` puts into its field ``plan``."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.nodes import Buffer
from tilewright.layout import REGISTER, THREAD, Layout, repeat, replicate
from tilewright.machine.dot import OperandPlan
from tilewright.machine.instructions import MatrixInstruction


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """One gemm on warps that each hold whole instruction tiles.

    Attributes
    ----------
    warps_m, warps_n : how many warps along rows and columns; warp ``w`` has row ``w % warps_m``.
    k : of the gemm's operands.
    words : registers that keep a sparse gemm's metadata while its products run, None where these are waited for at
        once; or what `LoadAhead` brought of an operand that lanes transpose.
    transposed : registers of a left operand that lanes transpose, where its products are not waited for at once.
    copies : groups of ``warps_m * warps_n`` warps that all do the same, where the tile divides among no more.
    across : columns of the accumulator, of which the gemm has the first `n`; warps have rows of their own then.
    """

    instruction: MatrixInstruction
    warps_m: int
    warps_n: int
    m: int
    n: int
    k: int
    copies: int = 1
    words: Buffer | None = None
    transposed: Buffer | None = None
    across: int = 0

    def __str__(self) -> str:
        kind = "warpgroups" if self.instruction.asynchronous else "warps"
        return f"{self.instruction.function} on {self.warps_m} x {self.warps_n} {kind}"

    @property
    def tiles_m(self) -> int:
        """Instruction tiles of a warp along rows."""
        return self.m // (self.warps_m * self.instruction.m)

    @property
    def tiles_n(self) -> int:
        return self.n // (self.warps_n * self.instruction.n)

    @property
    def tiles_k(self) -> int:
        return self.k // self.instruction.k

    @property
    def left_registers(self) -> int:
        """Elements of the left operand that a lane holds, where it holds it at all."""
        fragment = self.instruction.a_fragment
        return 0 if fragment is None else self.tiles_m * self.tiles_k * fragment.extent(REGISTER)

    @property
    def metadata_words(self) -> int:
        """Words of metadata of a lane."""
        return self.tiles_m * -(-self.tiles_k // self.instruction.metadata_steps)

    @property
    def is_part(self) -> bool:
        """Whether the accumulator has columns that are not the gemm's."""
        return self.across not in (0, self.n)

    @property
    def row_registers(self) -> int:
        """Registers of the accumulator for one instruction tile's rows."""
        instruction, tiles = self._across()
        return instruction.d_fragment.extent(REGISTER) * tiles

    def _across(self) -> tuple[MatrixInstruction, int]:
        """The instruction whose tiles cover a warp's part of the accumulator, and how many of them do so along
        columns."""
        if not self.is_part:
            return self.instruction, self.tiles_n
        n = max(n for n in self.instruction.n_choices if self.across % n == 0)
        return self.instruction.sized(n), self.across // n

    def accumulator(self) -> Layout:
        """Layout of c: registers of a warp's tiles row by row."""
        instruction, tiles_n = self._across()
        tile = repeat(repeat(instruction.d_fragment, 1, tiles_n, REGISTER), 0, self.tiles_m, REGISTER)
        tile = repeat(tile, 0, self.warps_m, THREAD, self.instruction.threads)
        tile = repeat(tile, 1, self.warps_n, THREAD, self.instruction.threads * self.warps_m)
        return replicate(tile, self.copies, stride=self.instruction.threads * self.warps_m * self.warps_n)

    def left(self) -> Layout:
        """Layout of a (m, k), or what is kept of it, in registers: whole tiles of k one after the other, row by row."""
        fragment = self.instruction.a_fragment
        assert fragment is not None
        tile = repeat(repeat(fragment, 1, self.tiles_k, REGISTER), 0, self.tiles_m, REGISTER)
        tile = repeat(tile, 0, self.warps_m, THREAD, self.instruction.threads)
        return replicate(tile, self.warps_n * self.copies, stride=self.instruction.threads * self.warps_m)

    def right(self) -> Layout:
        """Layout of b (k, n) in registers."""
        fragment = self.instruction.b_fragment
        assert fragment is not None
        tile = repeat(repeat(fragment, 0, self.tiles_k, REGISTER), 1, self.tiles_n, REGISTER)
        tile = repeat(tile, 1, self.warps_n, THREAD, self.instruction.threads * self.warps_m)
        tile = replicate(tile, self.warps_m, stride=self.instruction.threads)
        return replicate(tile, self.copies, stride=self.instruction.threads * self.warps_m * self.warps_n)


ProductPlan = GemmPlan | OperandPlan
"""Of a machine with threads, or of a processor: both say their `instruction` and, as text, how it is used."""
