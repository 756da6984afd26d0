"""AMD's GPUs as data: what each generation has, how much of it, and how fast, with the place each number comes from.

Sizes and rates are those of AMD's data sheets and instruction set manuals ("CDNA 2", "CDNA 3", "RDNA 3", "RDNA 4").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.machine.amd_products import instructions_of
from tilewright.machine.arch import Arch
from tilewright.machine.instructions import GLOBAL, REGISTERS, SHARED, AsyncCopy, CopyInstruction
from tilewright.machine.rates import Rates

_KB, _MB = 1 << 10, 1 << 20

_COMMON = frozenset({
    "threads", "shuffle", "atomics", "atomics_64", "dp4a", "cooperative_launch", "register_staging", "guarded_loads",
    "block_votes", "bytes_to_floats",
})  # fmt: skip

READ_GROUPS = (
    (0, 1, 2, 3, 20, 21, 22, 23),
    (4, 5, 6, 7, 16, 17, 18, 19),
    (8, 9, 10, 11, 28, 29, 30, 31),
    (12, 13, 14, 15, 24, 25, 26, 27),
)
"""Lanes of 32 whose 16-byte reads of shared memory CDNA serves together: the neighbours of a group are not all
neighbours."""


@dataclass(frozen=True, slots=True)
class AmdArch(Arch):
    """A generation of AMD's GPUs, as one chip of it has it.

    Attributes
    ----------
    generation : ``"cdna2"``, ``"cdna3"``, ``"cdna4"``, ``"rdna3"``, ``"rdna4"``.
    simds : units of a core that execute waves, each with its own registers.
    simd_registers : 32-bit registers that a unit has for each lane; its waves share them.
    register_step : they are handed out in multiples of this.
    simd_waves : the most waves of a unit.
    core_shared_bytes : LDS of a core.
    read_groups : lanes whose widest reads of shared memory are served together; empty where it is neighbours.
    """

    generation: str = ""
    simds: int = 4
    simd_registers: int = 512
    register_step: int = 8
    simd_waves: int = 8
    core_shared_bytes: int = 64 << 10
    read_groups: tuple[tuple[int, ...], ...] = ()

    __hash__ = Arch.__hash__

    def launch_registers(self, threads: int, min_blocks: int = 1) -> int:
        """Registers a thread may have so that `min_blocks` blocks of `threads` fit a core."""
        waves = -(-threads // self.warp_size) * min_blocks
        share = self.simd_registers // -(-waves // self.simds)
        return max(min(self.registers, share // self.register_step * self.register_step), self.register_step)

    def block_shared_bytes(self, min_blocks: int = 1) -> int:
        """Shared memory that a block may have so that `min_blocks` fit a core."""
        return min(self.shared_bytes, self.core_shared_bytes // min_blocks)

    def simd_occupancy(self, registers: int) -> int:
        """Waves of so many registers that a unit holds at once."""
        taken = -(-max(registers, 1) // self.register_step) * self.register_step
        return min(self.simd_waves, self.simd_registers // taken)

    def occupancy(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Blocks of a kernel that a core holds at once; 0 where not even one fits."""
        if threads > self.max_threads or shared_bytes > self.shared_bytes or registers > self.registers:
            return 0
        waves = -(-threads // self.warp_size)
        by_waves = self.simd_occupancy(registers) * self.simds // waves
        return min(by_waves, self.core_shared_bytes // shared_bytes) if shared_bytes else by_waves


_COPIES = tuple(CopyInstruction("load", memory, REGISTERS, (16, 8, 4, 2, 1)) for memory in (SHARED, GLOBAL))
"""How operands come into registers: each lane reads its own elements."""


_CDNA = {"warp_size": 64, "registers": 512, "read_groups": READ_GROUPS, "l1_bytes": 32 * _KB}
_RDNA = {
    "warp_size": 32, "registers": 256, "simds": 2, "simd_registers": 1536, "register_step": 24, "simd_waves": 16,
    "l1_bytes": 32 * _KB,
}  # fmt: skip
_OWN = {"cdna": frozenset({"transposed_bytes", "transposed_halves"}),
        "rdna": frozenset({"transposed_bytes", "steps_apart"})}  # fmt: skip


def _arch(
    name: str,
    generation: str,
    *features: str,
    gigabytes: float,
    megahertz: float = 2100,
    lanes: int = 128,
    direct: tuple[int, ...] = (),
    shared_bytes: int = 64 * _KB,
    **facts: Any,
) -> AmdArch:
    dense, sparse = instructions_of(generation)
    family = generation[:4]
    return AmdArch(
        "hip",
        name,
        _COMMON | _OWN[family] | set(features),
        generation=generation,
        vector_bytes=16,
        spans=(128, 64, 32),
        max_threads=1024,
        matrix_instructions=dense,
        sparse_instructions=sparse,
        copy_instructions=_COPIES,
        async_copy=AsyncCopy(direct, 64) if direct else None,
        rates=Rates(lanes, lanes // 2, megahertz * 1e6, gigabytes * 1e9),
        shared_bytes=shared_bytes,
        core_shared_bytes=shared_bytes,
        **{**(_CDNA if family == "cdna" else _RDNA), **facts},
    )


_CHIPS = (
    # One of the two dies of an MI250X, which takes subnormal operands of 16 bits for zeros ("MI200 MFMA behavior
    # specifics", AMD).
    _arch("gfx90a", "cdna2", "normal_operands", direct=(4,), cores=110, lanes=64, l1_bytes=16 * _KB,
          l2_bytes=8 * _MB, megahertz=1700, gigabytes=1638),
    # MI300X; the last level is the Infinity Cache.
    _arch("gfx942", "cdna3", "packed_atomics", direct=(4,), cores=304, l2_bytes=4 * _MB,
          l3_bytes=256 * _MB, gigabytes=5300),
    # MI355X.
    _arch("gfx950", "cdna4", "packed_atomics", direct=(16, 4), cores=256,
          shared_bytes=160 * _KB, l2_bytes=4 * _MB, l3_bytes=256 * _MB, megahertz=2400, gigabytes=8000),
    # RX 7900 XTX.
    _arch("gfx1100", "rdna3", cores=96, l2_bytes=6 * _MB, l3_bytes=96 * _MB, megahertz=2500, gigabytes=960),
    # RX 9070 XT.
    _arch("gfx1201", "rdna4", "packed_atomics", cores=64, l2_bytes=8 * _MB, l3_bytes=64 * _MB,
          megahertz=2970, gigabytes=645),
)  # fmt: skip
ARCHITECTURES: Mapping[str, AmdArch] = {arch.name: arch for arch in _CHIPS}
"""Every architecture by its compiler's name."""
