"""Sums of groups in int32 that run on: they enter float32 totals by their bits, with one multiply-add and no
conversion.

A total is the sum over groups of ``scale * own sum``. Where the accumulator is not cleared between groups, that is the
sum of ``(scale - next scale) * sum so far`` (summation by parts). An int32 below 2^24, read as the bits of a float, is
as many times 2^-149; so accumulators start where sums of both signs stay above zero, and what the start adds cancels,
because the differences of scales add up to nothing once the last group's is taken from the run's first. Totals are as
large as the start times what scales differ by, and round so: after `RUN` groups what is left enters as a number and the
next run begins.
"""

from __future__ import annotations

import tilewright.language as T
from tilewright.kernels.values import Tile
from tilewright.machine import COLUMNS, FragmentRecords

RUN = 16
"""Groups of a run: sums of 4 bits by 8 stay below 2^21."""

LINEAR = 1 << 24
"""Integers below it, read as the bits of a float, are as many times 2^-149."""

LIFT = 100
"""Power of two that scales are lifted by, so that products with such floats are none of the least."""

UNIT = 2.0 ** (LIFT - 149)
"""What totals are multiples of."""

MODERATE = 2.0**-70, 2.0**27
"""What scales lie between that neither vanish nor overflow so."""


def start_of_run(form: FragmentRecords, offset: int, activations: str) -> int:
    """More than the magnitude of any sum of a run."""
    half = 1 << form.bits - 1
    most = max(half + offset, abs(half - 1 - offset)) * (256 if activations == "uint8" else 128)
    return RUN * COLUMNS * most


def can_run(form: FragmentRecords, offset: int, activations: str) -> bool:
    """Whether sums of groups may run on: int8 codes without zeros of their own, in groups of 128."""
    small = 2 * start_of_run(form, offset, activations) <= LINEAR
    return small and form.operand.is_integer and form.zero is None and form.sets == 1


@T.macro
def enter(sums: Tile, last: Tile, scale: Tile, total: Tile) -> None:
    """Sums so far, times what the last group's scale is more than the next one's."""
    for i, j in T.Parallel(*total.shape):
        bits = T.reinterpret(sums[i, j], "float32")
        total[i, j] = T.fma(bits, (last[i] - scale[i]) * 2.0**LIFT, total[i, j])


@T.macro
def end_run(sums: Tile, last: Tile, first: Tile, total: Tile, start: int) -> None:
    """What is left of a run enters the total as a number, and the next one begins."""
    for i, j in T.Parallel(*total.shape):
        bits = T.reinterpret(sums[i, j], "float32")
        rest = T.fma(bits, 2.0**LIFT, -start * UNIT)  # exact: a whole number of units
        run = T.fma(bits, (last[i] - first[i]) * 2.0**LIFT, total[i, j])
        total[i, j] = T.fma(rest, first[i], run)
    T.fill(sums, start)
