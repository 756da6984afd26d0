"""Apple's GPUs as data: what each family has, its matrix instructions with the places of every element, and chips by
their data sheets.

Sources: Apple's Metal feature set tables (limits), the layout of ``simdgroup_matrix`` as the public kernels of MLX use
it, data sheets for memory, and public measurements of the rates of a core. Nothing of it was measured by this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.dtypes import DType
from tilewright.layout import REGISTER, THREAD, Layout, repeat
from tilewright.machine.arch import Arch
from tilewright.machine.instructions import GLOBAL, REGISTERS, SHARED, CopyInstruction, MatrixInstruction
from tilewright.machine.rates import Rates
from tilewright.machine.types import BF16, E4M3, E5M2, F16, F32

LANES = 32
"""Threads of a simdgroup."""

PLACES = Layout.of(
    [(2, THREAD, 2), (2, THREAD, 4), (2, THREAD, 16)], [(2, REGISTER, 1), (2, THREAD, 1), (2, THREAD, 8)]
)
"""Elements of an 8 x 8 matrix: lane l has row ``(l / 4 & 4) + l / 2 % 4``, columns ``(l / 4 & 2) * 2 + l % 2 * 2`` and
the next one."""

COOPERATIVE_PLACES = Layout.of(
    [(2, THREAD, 2), (2, THREAD, 4), (2, THREAD, 16), (2, REGISTER, 4)],
    [(4, REGISTER, 1), (2, THREAD, 1), (2, THREAD, 8)],
)
"""A 16 x 16 part of Metal 4's cooperative tensors: eight elements a lane."""

_LANES_A_CYCLE, _SHIFTED_A_CYCLE = 128, 32
"""Sums, masks and multiplications of a core in a cycle, of halves as of floats; shifts and products of integers
(measured by others on M1)."""

_MULTIPLIED_A_CYCLE = 2 * 102
"""Products and sums of matrices a cycle and core: 80% of what the 128 lanes do (measured by others on M1)."""


def _product(function: str, types: tuple[DType, DType, DType], rate: int) -> MatrixInstruction:
    return MatrixInstruction.of_registers(function, LANES, (8, 8, 8), types, (PLACES, PLACES, PLACES), rate)


def _cooperative() -> tuple[MatrixInstruction, ...]:
    """Products of Metal 4's cooperative tensors, ``mpp::tensor_ops::matmul2d`` of 16 x 32 x 16 by a simdgroup."""
    wide = repeat(COOPERATIVE_PLACES, 1, 2, REGISTER)
    name, fragments = "cooperative_matmul2d", (COOPERATIVE_PLACES, wide, wide)
    types = ((kind, kind, F32) for kind in (F16, BF16))
    return tuple(MatrixInstruction.of_registers(name, LANES, (16, 32, 16), one, fragments) for one in types)


def _products() -> tuple[MatrixInstruction, ...]:
    """Fastest first; 8-bit floats are converted to halves, which represent all of them."""
    own = [(F16, F16, F32), (BF16, BF16, F32), (F32, F32, F32), (F16, F16, F16)]
    found = [_product("simdgroup_product", types, _MULTIPLIED_A_CYCLE) for types in own]
    small = [(a, b, F32) for a in (E4M3, E5M2) for b in (E4M3, E5M2)]
    found += [_product("simdgroup_product_through_half", types, _MULTIPLIED_A_CYCLE // 2) for types in small]
    return tuple(found)


_MATRIX_STORE = "simdgroup_store"
_ELEMENTS = (F16, BF16, F32)

_COPIES = (
    *(
        CopyInstruction(
            _MATRIX_STORE, REGISTERS, memory, threads=LANES, matrix=PLACES, strided=True, elements=_ELEMENTS
        )
        for memory in (GLOBAL, SHARED)
    ),
    CopyInstruction("load_global", GLOBAL, REGISTERS, (16, 8, 4, 2, 1)),
    CopyInstruction("store_global", REGISTERS, GLOBAL, (16, 8, 4, 2, 1)),
    CopyInstruction("load", SHARED, REGISTERS, (16, 8, 4, 2, 1)),
    CopyInstruction("load", GLOBAL, REGISTERS, (16, 8, 4, 2, 1)),
    CopyInstruction("store", REGISTERS, SHARED, (16, 8, 4, 2, 1)),
)


@dataclass(frozen=True, slots=True)
class AppleArch(Arch):
    """A family of Apple's GPUs, or one chip of it.

    Attributes
    ----------
    family : Apple's number.
    instruction_bytes : of a core's instruction cache (measured by others on M1); loops that are written out fit it.
    """

    family: int = 7
    instruction_bytes: int = 12 << 10

    __hash__ = Arch.__hash__


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip: its family, cores, clock in GHz, memory in GB/s, from data sheets."""

    family: int
    cores: int
    gigahertz: float
    gigabytes_a_second: float


CHIPS: Mapping[str, Chip] = {
    "m1": Chip(7, 8, 1.28, 68), "m1-pro": Chip(7, 16, 1.30, 200), "m1-max": Chip(7, 32, 1.30, 400),
    "m1-ultra": Chip(7, 64, 1.30, 800),
    "m2": Chip(8, 10, 1.40, 100), "m2-pro": Chip(8, 19, 1.40, 200), "m2-max": Chip(8, 38, 1.40, 400),
    "m2-ultra": Chip(8, 76, 1.40, 800),
    "m3": Chip(9, 10, 1.60, 100), "m3-max": Chip(9, 40, 1.60, 400), "m3-ultra": Chip(9, 80, 1.60, 819),
    "m4": Chip(9, 10, 1.58, 120), "m4-pro": Chip(9, 20, 1.58, 273), "m4-max": Chip(9, 40, 1.58, 546),
    "m5": Chip(10, 10, 1.60, 153),
}  # fmt: skip

_FEATURES = frozenset({"threads", "shuffle", "atomics", "atomic_extremes", "dp4a"})


def _arch(name: str, chip: Chip) -> AppleArch:
    cycles, moved = chip.gigahertz * 1e9, chip.gigabytes_a_second * 1e9
    rates = Rates(_LANES_A_CYCLE, _SHIFTED_A_CYCLE, cycles, moved, shared_units=True)
    return AppleArch(
        "metal",
        name,
        _FEATURES,
        warp_size=LANES,
        vector_bytes=16,
        spans=(128, 64, 32),
        shared_bytes=32 << 10,
        max_threads=1024,
        registers=128,
        cores=chip.cores,
        l1_bytes=8 << 10,
        l2_bytes=8 << 20,
        matrix_instructions=_products(),
        copy_instructions=_COPIES,
        untried_instructions=_cooperative() if chip.family >= 10 else (),
        family=chip.family,
        rates=rates,
    )


FAMILIES: Mapping[str, AppleArch] = {
    f"apple{family}": _arch(f"apple{family}", CHIPS[chip])
    for family, chip in ((7, "m1"), (8, "m2"), (9, "m4"), (10, "m5"))
}
"""Each family with the sizes of its smallest chip of a Mac."""


def of_chip(name: str) -> AppleArch:
    """The machine that a chip's name stands for.  Raises KeyError."""
    return _arch(f"apple{CHIPS[name].family}", CHIPS[name])
