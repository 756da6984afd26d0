"""NVIDIA architectures as data: what each has, how much of it, and how many blocks of a kernel fit.

Numbers are those of the programming guide and of cuda_occupancy.h; ``detect`` asks the driver for what
differs between devices of one architecture.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.machine import Arch, AsyncCopy, RoleRegisters, Signals
from tilewright.machine.nvidia import DEVICES, as_measured, device_of
from tilewright.targets.base import arch_of, known_name
from tilewright.targets.cuda.driver import Attribute, Driver, find_driver
from tilewright.targets.cuda.instructions import (
    ENGINE,
    SPANS,
    copy_instructions,
    matrix_instructions,
    sparse_instructions,
)

RESERVED_SHARED = 1024
"""Bytes of shared memory that the system keeps of every block."""

_ENGINE_FROM = 90
"""The compute capability that brought clusters, a copy engine that signals barriers, and dependent launches."""

_REGISTER_UNIT = 256
"""Registers are handed to warps in multiples of this."""

_PARTITIONS = 4
"""Schedulers of a multiprocessor, each with its own quarter of the registers."""

_AMPERE = frozenset({
    "threads", "shuffle", "redux", "dp4a", "mma_sync",
    "atomics", "atomics_64", "atomic_extremes", "cooperative_launch", "quad_exchange", "block_votes",
})  # fmt: skip
_ADA = _AMPERE | {"mma_fp8"}
_HOPPER = _AMPERE | {"stmatrix", "vector_atomics"}
_BLACKWELL = _HOPPER | {"access_32_bytes"}


@dataclass(frozen=True, slots=True)
class CudaArch(Arch):
    """An NVIDIA architecture.

    Attributes
    ----------
    compute : compute capability times ten.
    shared_per_multiprocessor : bytes; a block also costs `RESERVED_SHARED`.
    warps_per_multiprocessor, blocks_per_multiprocessor : residency limits.
    registers_per_multiprocessor : 32-bit registers.
    barrier_pool : named barriers of a multiprocessor that its blocks share; 0 where each block has its own 16.
    """

    compute: int = 80
    shared_per_multiprocessor: int = 0
    warps_per_multiprocessor: int = 64
    blocks_per_multiprocessor: int = 32
    registers_per_multiprocessor: int = 65536
    barrier_pool: int = 0

    __hash__ = Arch.__hash__

    def launch_registers(self, threads: int, min_blocks: int = 1) -> int:
        """Registers a thread may have so that `min_blocks` blocks of `threads` fit a multiprocessor."""
        warps = -(-threads // self.warp_size) * min_blocks
        per_partition = -(-warps // _PARTITIONS)
        share = self.registers_per_multiprocessor // _PARTITIONS // per_partition
        return min(self.registers, share // _REGISTER_UNIT * _REGISTER_UNIT // self.warp_size)

    def first_with(self, able: Callable[[Arch], object]) -> str | None:
        """The first architecture of which something is so."""
        return next((name for name, arch in ARCHITECTURES.items() if able(arch)), None)

    def block_shared_bytes(self, min_blocks: int = 1) -> int:
        """Shared memory that a block may have so that `min_blocks` fit a multiprocessor."""
        return self.shared_per_multiprocessor // min_blocks - RESERVED_SHARED

    def occupancy(self, threads: int, registers: int, shared_bytes: int, barriers: int = 1) -> int:
        """Blocks of a kernel that a multiprocessor holds at once; 0 where not even one fits.

        Parameters
        ----------
        registers : of a thread.
        shared_bytes : static and dynamic, of a block.
        barriers : one more than the highest named barrier in use.
        """
        warps = -(-threads // self.warp_size)
        if threads > self.max_threads or shared_bytes > self.shared_bytes or registers > self.registers:
            return 0
        of_warp = _round_up(max(registers, 1) * self.warp_size, _REGISTER_UNIT)
        by_registers = self.registers_per_multiprocessor // _PARTITIONS // of_warp * _PARTITIONS // warps
        if of_warp * _round_up(warps, _PARTITIONS) > self.registers_per_multiprocessor:
            by_registers = 0
        by_shared = self.shared_per_multiprocessor // _round_up(shared_bytes + RESERVED_SHARED, 128)
        by_warps = self.warps_per_multiprocessor // warps
        limits = [by_registers, by_shared, by_warps, self.blocks_per_multiprocessor]
        if self.barrier_pool:
            limits.append(self.barrier_pool // max(barriers, 1))
        return min(limits)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _arch(name: str, compute: int, features: frozenset[str], **facts: Any) -> CudaArch:
    shared, engine = facts.pop("shared_per_multiprocessor"), compute >= _ENGINE_FROM
    return CudaArch(
        "cuda",
        name,
        features,
        warp_size=32,
        spans=SPANS,
        vector_bytes=32 if "access_32_bytes" in features else 16,
        shared_bytes=shared - RESERVED_SHARED,
        max_threads=1024,
        registers=255,
        compute=compute,
        async_copy=AsyncCopy((16, 8, 4)),
        copy_engine=ENGINE if engine else None,
        signals=Signals(counts_bytes=engine, follows_copies=True),
        named_barriers=True,
        clusters=engine,
        dependent_launch=engine,
        role_registers=ROLES if name.endswith("a") else None,
        shared_per_multiprocessor=shared,
        l1_bytes=facts.pop("l1_bytes", shared),
        **facts,
    )


_KB, _MB = 1 << 10, 1 << 20
_LARGE_HOPPER = {"shared_per_multiprocessor": 228 * _KB, "barrier_pool": 64}
_H200 = {**_LARGE_HOPPER, "cores": 132, "l2_bytes": 50 * _MB}
_B200 = {**_LARGE_HOPPER, "cores": 148, "l2_bytes": 126 * _MB}
_SMALL = {"shared_per_multiprocessor": 100 * _KB, "warps_per_multiprocessor": 48}
_RTX = {**_SMALL, "blocks_per_multiprocessor": 24, "cores": 188, "l2_bytes": 128 * _MB, "barrier_pool": 24}
ROLES = RoleRegisters(step=8, loads=(None, 40, 32), computes=80, most=240)
"""How what setmaxnreg, of the names that end in ``a``, takes from producers is shared out."""

ARCHITECTURES: Mapping[str, CudaArch] = {
    arch.name: arch
    for arch in (
        _arch("sm_80", 80, _AMPERE, shared_per_multiprocessor=164 * _KB, cores=108, l2_bytes=40 * _MB),
        _arch("sm_86", 86, _AMPERE, **_SMALL, blocks_per_multiprocessor=16, cores=84, l2_bytes=6 * _MB),
        _arch("sm_89", 89, _ADA, **_SMALL, blocks_per_multiprocessor=24, cores=142, l2_bytes=96 * _MB),
        _arch("sm_90", 90, _HOPPER, **_H200),
        _arch("sm_90a", 90, _HOPPER | {"wgmma"}, **_H200),
        _arch("sm_100", 100, _BLACKWELL, **_B200),
        _arch("sm_100a", 100, _BLACKWELL, **_B200),
        _arch("sm_103a", 103, _BLACKWELL, **_B200),
        _arch("sm_120", 120, _BLACKWELL | {"mma_fp8"}, **_RTX),
        _arch("sm_120a", 120, _BLACKWELL | {"mma_fp8"}, **_RTX),
    )
}
"""Every architecture by its compiler's name; a name that ends in ``a`` has what only that one generation has."""


def arch(options: Mapping[str, str]) -> CudaArch:
    """The architecture for a target's options.

    Parameters
    ----------
    options : ``arch`` names it (``"sm_90a"``); without it, the device present.  ``cores`` sets the number of
        multiprocessors.

    Raises
    ------
    UnknownTarget : no such architecture or option, or none named and no device here.
    """
    found = arch_of("cuda", options, named, detect, "multiprocessors", "sm_90a")
    return with_rates(found) if "cores" in options else found


def with_rates(found: CudaArch, name: str = "") -> CudaArch:
    """An architecture with the cache and the rates of the GPU that has this name, or so many multiprocessors
    (`machine.nvidia`)."""
    device = device_of(found.name, found.cores, name)
    return found if device is None else replace(found, rates=device.rates, l2_bytes=device.l2_bytes)


def named(name: str) -> CudaArch:
    """The architecture of this name, with or without ``sm_``.  Raises UnknownTarget."""
    full = name if name.startswith("sm_") else f"sm_{name}"
    return with_rates(with_instructions(ARCHITECTURES[known_name("cuda", name, ARCHITECTURES, full)]))


def with_instructions(found: CudaArch) -> CudaArch:
    """An architecture with its tables of instructions, best first."""
    return replace(
        found,
        matrix_instructions=matrix_instructions(found),
        sparse_instructions=sparse_instructions(found),
        copy_instructions=copy_instructions(found),
    )


def detect() -> CudaArch | None:
    """The architecture of this machine's first device, with that device's own sizes; None where there is none."""
    driver = find_driver()
    return None if driver is None or driver.device_count() == 0 else _detected(driver)


@functools.cache
def _detected(driver: Driver) -> CudaArch | None:
    major = driver.attribute(0, Attribute.COMPUTE_MAJOR)
    minor = driver.attribute(0, Attribute.COMPUTE_MINOR)
    found = _for_capability(major, minor)
    if found is None:
        return None
    found = replace(found, cores=driver.attribute(0, Attribute.MULTIPROCESSORS))
    name = driver.name(0)
    found = with_rates(with_instructions(found), name)
    found = replace(found, l2_bytes=driver.attribute(0, Attribute.L2_BYTES) or found.l2_bytes)
    if found.rates is None:
        return found
    if any(one.name in name for one in DEVICES):
        return replace(found, rates=as_measured(name, found.rates))
    # A GPU that no record names: its clocks by its own word, the rest as that which is most like it.
    clock, memory, bits = (
        driver.attribute(0, one) for one in (Attribute.CLOCK_KHZ, Attribute.MEMORY_CLOCK_KHZ, Attribute.MEMORY_BUS_BITS)
    )
    rates = found.rates
    if clock and memory:
        rates = replace(rates, cycles=clock * 1e3, bytes=2e3 * memory * bits / 8, source="what the driver says")
    return replace(found, rates=as_measured(name, rates))


def _for_capability(major: int, minor: int) -> CudaArch | None:
    """The best code that runs on a device: its own, else the newest of the same major version that is older."""
    compute = 10 * major + minor
    own = [arch for arch in ARCHITECTURES.values() if arch.compute == compute]
    if own:
        return max(own, key=lambda arch: len(arch.name))
    older = [
        arch
        for arch in ARCHITECTURES.values()
        if arch.compute // 10 == major and arch.compute < compute and not arch.name.endswith("a")
    ]
    return max(older, key=lambda arch: arch.compute, default=None)
