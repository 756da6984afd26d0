"""Resources of a Hopper multiprocessor, for kernels that are made for it."""

from tilewright.ir.dtypes import DType
from tilewright.targets.cuda.arch import ARCHITECTURES
from tilewright.targets.cuda.instructions import WGMMA_N, WGMMA_N_INTEGER

HOPPER_ARCH = ARCHITECTURES["sm_90a"]

SHARED_BYTES = HOPPER_ARCH.shared_bytes
"""Shared memory that a block may have."""

MOST_REGISTERS = 232
"""The most registers of a thread, after ``setmaxnreg``."""


def registers_beside(warps: int, others: int, kept: int) -> int:
    """Registers of a thread of `warps` warps, where threads of `others` warps keep `kept` of a block's registers.

    Examples
    --------
    >>> registers_beside(8, others=4, kept=40)
    232
    """
    together = HOPPER_ARCH.launch_registers(HOPPER_ARCH.warp_size * (warps + others)) * (warps + others)
    return min(MOST_REGISTERS, (together - kept * others) // warps // 8 * 8)


def consumer_registers(warpgroups: int) -> int:
    """Registers of a consumer's thread, where the four warps of producers keep 40."""
    return registers_beside(4 * warpgroups, 4, 40)


def worker_registers(warps: int) -> int | None:
    """Registers of a worker's thread, where four adding warps keep 32; None where workers are no whole warpgroups."""
    return None if warps % 4 else registers_beside(warps, 4, 32)


def heights_of(operand: DType, most: int) -> list[int]:
    """Possible rows of A in one product where they are the columns of the instruction, up to `most`.

    Examples
    --------
    >>> heights_of(ALL["int8"], 48)
    [8, 16, 24, 32, 48]
    """
    return sorted(n for n in (WGMMA_N_INTEGER if operand.is_integer else WGMMA_N) if n <= most)


def in_pieces(rows: int, most: int) -> list[tuple[int, int]]:
    """First rows and heights of the pieces in which sums are stored through shared memory: as few as possible, the
    highest first, multiples of 8, of which a thread holds two.

    Examples
    --------
    >>> in_pieces(104, most=64)
    [(0, 56), (56, 48)]
    """
    count = -(-rows // most)
    height = -(-rows // (8 * count)) * 8
    return [(first, min(height, rows - first)) for first in range(0, rows, height)]
