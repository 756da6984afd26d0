"""`DotInstruction`: how an ordinary processor multiplies matrices, as data.

Such an instruction holds one column of the product in each lane of its accumulator and adds, in every lane,
a short dot product over k: ``accumulator[lane] += sum over i of vector[lane * depth + i] * broadcast[i]``.
The right operand is a vector with `depth` consecutive elements of k for each lane, the left one `depth`
elements that all lanes share.  A fused multiply-add is the case of depth 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.dtypes import DType
from tilewright.machine.instructions import REGISTERS

MULTIPLY_ADD = "multiply_add"
"""The function of an instruction of depth 1: ``accumulator + vector * broadcast``, fused for floats."""


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """One instruction, or a short sequence that acts as one.

    Attributes
    ----------
    function : the intrinsic that names it: ``function(accumulator, vector, broadcast)``.
    accumulator, vector, broadcast : scalar types of the three operands.
    depth : elements of k that one lane takes at once.
    lanes : columns of the product in one accumulator.
    uops : slots of the vector units that one costs.
    latency : cycles from an accumulator to the next use of it.
    largest : greatest value of the vector operand for which the result is exact; None: every value.
    """

    function: str
    accumulator: DType
    vector: DType
    broadcast: DType
    depth: int
    lanes: int
    uops: float = 1.0
    latency: int = 4
    largest: int | None = None

    def __post_init__(self) -> None:
        if self.depth < 1 or self.lanes < 1 or self.uops <= 0:
            raise ValueError(f"impossible instruction: {self}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """One row of the left operand by a column in each lane."""
        return 1, self.lanes, self.depth

    @property
    def types(self) -> tuple[DType, DType, DType]:
        """Of what all lanes share, of the vector and of the accumulator."""
        return self.broadcast, self.vector, self.accumulator

    @property
    def rate(self) -> float:
        """Products and sums in a slot of the vector units."""
        return 2 * self.depth * self.lanes / self.uops

    @property
    def place(self) -> str:
        """Where the accumulator lies."""
        return REGISTERS

    @property
    def operands(self) -> tuple[str, str]:
        """Where the operands lie."""
        return self.place, self.place

    @property
    def vector_bytes(self) -> int:
        """Bytes of the vector operand."""
        return self.lanes * self.depth * self.vector.storage_bytes


@dataclass(frozen=True, slots=True)
class OperandPlan:
    """How a gemm's operands meet a `DotInstruction`.

    Attributes
    ----------
    instruction : the instruction.
    offset : what is added to every element of b to bring it into the range of `instruction.vector`
        (offset binary); the product then carries ``offset * sum over k of a``, which is taken off again.
    left_offset : the same for a and `instruction.broadcast`, where the sum is over b.
    chunk : elements of k after which a total is scaled and added to c; 0 where no gemm is meant.
    """

    instruction: DotInstruction
    offset: int = 0
    left_offset: int = 0
    chunk: int = 0

    def __str__(self) -> str:
        shifted = ", shifted rows" if self.left_offset else ", a shifted b" if self.offset else ""
        how = f"{self.instruction.accumulator} on vectors of {self.instruction.lanes} columns{shifted}"
        return f"{self.instruction.function} in {how}"


def match_operands(instruction: DotInstruction, a: DType, b: DType) -> OperandPlan | None:
    """How `instruction` multiplies an `a` by a `b`, or None where it cannot.

    Floats are converted to the instruction's types, exactly or not at all; integers of 8 bits and fewer
    must match the broadcast side's signedness and may be shifted on the vector side.
    """
    vector, broadcast = instruction.vector, instruction.broadcast
    if vector.is_float:
        fits = (to.contains(of) and (of == to or of.bits < to.bits) for of, to in ((a, broadcast), (b, vector)))
        return OperandPlan(instruction) if all(fits) else None
    if not (a.is_integer and b.is_integer) or not broadcast.contains(a):
        return None
    largest = int(vector.maximum) if instruction.largest is None else instruction.largest
    for offset in (0, 1 << (b.bits - 1), -(1 << (b.bits - 1))):
        if vector.minimum <= b.minimum + offset and b.maximum + offset <= largest:
            return OperandPlan(instruction, offset)
    return None


def match_left_offset(instruction: DotInstruction, a: DType, b: DType) -> OperandPlan | None:
    """How `instruction` multiplies once signed bytes of a are shifted into its unsigned range, or None."""
    shifted = (
        a.kind == "int" and a.bits == 8 and instruction.broadcast.kind == "uint" and instruction.broadcast.bits == 8
    )
    if not shifted or not b.is_integer or instruction.largest is not None or not instruction.vector.contains(b):
        return None
    return OperandPlan(instruction, left_offset=128)
