"""A table of pairs of 4-bit codes in shared memory: one load turns a byte of a weight into a register of its
numbers."""

from __future__ import annotations

import numpy as np

import tilewright.language as T
from tilewright.kernels.values import Tile, Value
from tilewright.machine.fragment_records import FragmentRecords
from tilewright.ops.unpack import TABLE

ROWS, LANES = TABLE
BYTES = 4 * ROWS * LANES


def table_of_pairs(form: FragmentRecords) -> Tile | None:
    """The tile, for `T.unpack`; None where codes of the form are not looked up."""
    return T.alloc_shared((ROWS, LANES), "uint32") if form.is_looked_up else None


def table_bytes(form: FragmentRecords) -> int:
    """Shared memory that the table takes."""
    return BYTES if form.is_looked_up else 0


@T.macro
def fill_pairs(form: FragmentRecords, table: Tile, first: Value, rows: int) -> None:
    """Some rows of the table, by the threads of a role: `first` and `rows` are multiples of 16."""
    for high in list(range(rows // 16)):
        for low, lane in T.Parallel(16, LANES):
            upper = pattern_of(form, first // 16 + high) << 16
            table[first + high * 16 + low, lane] = pattern_of(form, low) | upper


def pattern_of(form: FragmentRecords, code: Value) -> Value:
    """The bits of a code's number in the operand's type, uint32: a choice for each bit of the code, the highest
    first."""
    assert form.numbers is not None
    bits = form.numbers.astype(form.operand.numpy).view(np.uint16)
    return _chosen([int(one) for one in bits], code)


def _chosen(patterns: list[int], code: Value) -> Value:
    if len(patterns) == 1:
        return T.uint32(patterns[0])
    half = len(patterns) // 2
    return T.if_then_else(code // half % 2 == 1, _chosen(patterns[half:], code), _chosen(patterns[:half], code))
