"""What a multiprocessor of a Hopper has, for kernels that are made for one."""

from tilewright.targets.cuda.arch import ARCHITECTURES

HOPPER_ARCH = ARCHITECTURES["sm_90a"]

SHARED_BYTES = HOPPER_ARCH.shared_bytes
"""Shared memory that a block may have."""

MOST_REGISTERS = 232
"""Registers that a thread of one role keeps at most beside others that have few."""


def registers_beside(warps: int, others: int, kept: int) -> int:
    """Registers of a thread of `warps` warps: what a block has when it starts, less the `kept` ones that each thread of
    `others` warps keeps.

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
    """Registers of a worker's thread, where four adders keep 32; warps that make no whole warpgroups have as many as
    any other."""
    return None if warps % 4 else registers_beside(warps, 4, 32)
