"""The matrix and copy instructions of NVIDIA architectures, with the places of every element, best first.

The fragments follow one rule for every element width: with ``g = lane / 4``, ``t = lane % 4`` and ``E = 32 / bits``
elements in a register, A has row ``g + 8 (r & 1)`` and k ``E t + e + 4 E (r >> 1)``, B has n ``g`` and k
``E t + e + 4 E r``, D has row ``g + 8 (i >> 1)`` and n ``2 t + (i & 1)``.
"""

from __future__ import annotations

import functools

from tilewright.ir.dtypes import DType
from tilewright.layout import REGISTER, THREAD, Layout, permuted
from tilewright.machine import GLOBAL, REGISTERS, SHARED, Arch, CopyEngine, CopyInstruction, MatrixInstruction
from tilewright.machine.fragment_records import left_fragment
from tilewright.machine.types import BF16, E4M3, E5M2, F16, F32, F64, S8, S32, TF32, U8

WARP, WARPGROUP = 32, 128

WGMMA_N = tuple(range(256, 0, -8))
WGMMA_N_INTEGER = tuple(n for n in WGMMA_N if n % 16 == 0 or n in (8, 24))

PTX_NAMES = {
    F16: "f16", BF16: "bf16", TF32: "tf32", F32: "f32", F64: "f64", S8: "s8", U8: "u8", S32: "s32", E4M3: "e4m3",
    E5M2: "e5m2",
}  # fmt: skip
"""PTX's name of each element type, for names of generated headers."""


# Fragments ----------------------------------------------------------------------------------------

ENGINE = CopyEngine(rank=5, box=256, unit=16, place=128, multicast=True)
"""Of sm_90 and above."""

SPANS = (128, 64, 32)
"""Bytes of the spans in which it swizzles rows ("tensor swizzling modes" of PTX), so that ldmatrix finds eight of them
in different banks."""


mma_a = left_fragment
"""A operand, 16 rows a warp by k, of elements of so many bits."""


@functools.cache
def mma_b(bits: int, k: int) -> Layout:
    """B operand, k by 8."""
    packed = 32 // bits
    depth = ((packed, REGISTER, 1), (4, THREAD, 1), (k // (4 * packed), REGISTER, packed))
    return Layout.of(depth, ((8, THREAD, 4),))


@functools.cache
def mma_d(n: int = 8, warps: int = 1) -> Layout:
    """Accumulator, 16 rows a warp by n: m16n8 tiles side by side, as many as n has."""
    rows = [(8, THREAD, 4), (2, REGISTER, 2)] + ([(warps, THREAD, WARP)] if warps > 1 else [])
    return Layout.of(rows, ((2, REGISTER, 1), (4, THREAD, 1), (n // 8, REGISTER, 4)))


F64_A4 = Layout.of(((8, THREAD, 4),), ((4, THREAD, 1),))
F64_B4 = Layout.of(((4, THREAD, 1),), ((8, THREAD, 4),))
F64_D8 = Layout.of(((8, THREAD, 4),), ((2, REGISTER, 1), (4, THREAD, 1)))
F64_A8 = Layout.of(((8, THREAD, 4), (2, REGISTER, 1)), ((4, THREAD, 1), (2, REGISTER, 2)))
F64_B8 = Layout.of(((4, THREAD, 1), (2, REGISTER, 1)), ((8, THREAD, 4),))

MATRIX_8X8 = Layout.of(((8, THREAD, 4),), ((2, REGISTER, 1), (4, THREAD, 1)))
"""One register of ldmatrix and stmatrix: 8 rows of eight 16-bit elements."""

MATRIX_8X8_TRANSPOSED = permuted(MATRIX_8X8, (1, 0))


# Matrix instructions ------------------------------------------------------------------------------


def _mma(
    function: str, a: DType, b: DType, accumulator: DType, k: int, rate: int, sparse: bool = False
) -> MatrixInstruction:
    name, fragments = f"mma_{'sparse_' * sparse}{function}", (mma_a(a.bits, k >> sparse), mma_b(b.bits, k), mma_d())
    return MatrixInstruction.of_registers(name, WARP, (16, 8, k), (a, b, accumulator), fragments, rate, sparse)


def _mma_f64(function: str, m: int, k: int, a: Layout, b: Layout, d: Layout, rate: int) -> MatrixInstruction:
    return MatrixInstruction.of_registers(f"mma_{function}", WARP, (m, 8, k), (F64, F64, F64), (a, b, d), rate)


def _wgmma(
    a: DType, b: DType, accumulator: DType, rate: int, from_registers: bool, sparse: bool = False
) -> MatrixInstruction:
    choices = WGMMA_N_INTEGER if a.is_integer else WGMMA_N
    n, kept = choices[0], 256 // a.bits
    name = f"wgmma{'_sparse' * sparse}_{'rs' if from_registers else 'ss'}"
    left, fragment = (REGISTERS, mma_a(a.bits, kept, 4)) if from_registers else (SHARED, None)
    tile, types = (64, n, kept << sparse), (a, b, accumulator)
    majors = ("k", "mn") if a.bits == 16 else ("k",)
    return MatrixInstruction(
        name, WARPGROUP, *tile, *types, left, SHARED, fragment, None, mma_d(n, 4), choices, majors, True, rate, sparse
    )


# Products and sums a cycle and multiprocessor, of 16-bit operands with 32-bit accumulators.
_RATE = {80: 1024, 86: 512, 89: 512, 90: 2048, 100: 2048, 103: 2048, 120: 512}


def _rate(arch: Arch) -> int:
    return _RATE[int(arch.name.strip("sm_a"))]


@functools.cache
def matrix_instructions(arch: Arch) -> tuple[MatrixInstruction, ...]:
    """The matrix instructions of an architecture that its hardware executes natively, fastest first."""
    rate = _rate(arch)
    found: list[MatrixInstruction] = []
    if arch.has("wgmma"):
        for from_registers in (False, True):
            found += _warpgroup_instructions(2 * rate, from_registers, False)
    found += _warp_instructions(arch, rate)
    return tuple(sorted(found, key=lambda instruction: -instruction.rate))


def _warpgroup_instructions(rate: int, from_registers: bool, sparse: bool) -> list[MatrixInstruction]:
    types = [(F16, F16, F32, rate), (F16, F16, F16, rate), (BF16, BF16, F32, rate), (TF32, TF32, F32, rate // 2)]
    types += [(a, b, S32, 2 * rate) for a in (S8, U8) for b in (S8, U8)]
    types += [(a, b, total, 2 * rate) for total in (F32, F16) for a in (E4M3, E5M2) for b in (E4M3, E5M2)]
    return [_wgmma(*one, from_registers, sparse) for one in types]


def _warp_instructions(arch: Arch, rate: int) -> list[MatrixInstruction]:
    found = [
        _mma("m16n8k16", F16, F16, F32, 16, rate), _mma("m16n8k16", BF16, BF16, F32, 16, rate),
        _mma("m16n8k16", F16, F16, F16, 16, rate), _mma("m16n8k8", TF32, TF32, F32, 8, rate // 2),
    ]  # fmt: skip
    found += [_mma("m16n8k32", a, b, S32, 32, 2 * rate) for a in (S8, U8) for b in (S8, U8)]
    # The half-depth forms serve tiles whose k is no multiple of the full one.
    found += [
        _mma("m16n8k8", F16, F16, F32, 8, rate // 2), _mma("m16n8k8", BF16, BF16, F32, 8, rate // 2),
        _mma("m16n8k4", TF32, TF32, F32, 4, rate // 4),
        *(_mma("m16n8k16", a, b, S32, 16, rate) for a in (S8, U8) for b in (S8, U8)),
    ]  # fmt: skip
    if arch.has("mma_fp8"):
        found += [_mma("m16n8k32", a, b, F32, 32, 2 * rate) for a in (E4M3, E5M2) for b in (E4M3, E5M2)]
        found += [_mma("m16n8k32", a, a, F16, 32, 2 * rate) for a in (E4M3, E5M2)]
    # A half holds every fp8 number, so the products are the same where the matrix unit takes halves alone.
    for accumulator in (F32, F16):
        found += [
            _mma(f"m16n8k{k}_through_half", a, b, accumulator, k, rate * k // 32)
            for k in (32, 16)
            for a in (E4M3, E5M2)
            for b in (E4M3, E5M2)
        ]
    if arch.has("stmatrix"):  # the shapes of doubles that arrived with sm_90
        found.append(_mma_f64("m16n8k8", 16, 8, F64_A8, F64_B8, mma_d(), rate // 16))
    found.append(_mma_f64("m8n8k4", 8, 4, F64_A4, F64_B4, F64_D8, rate // 32))
    return found


@functools.cache
def sparse_instructions(arch: Arch) -> tuple[MatrixInstruction, ...]:
    """The instructions for 2:4 sparse left operands that an architecture executes natively, fastest first."""
    rate = 2 * _rate(arch)
    found: list[MatrixInstruction] = []
    if arch.has("wgmma"):
        for from_registers in (False, True):
            found += _warpgroup_instructions(2 * rate, from_registers, True)
    found += [
        _mma("m16n8k32", F16, F16, F32, 32, rate, True), _mma("m16n8k32", BF16, BF16, F32, 32, rate, True),
        _mma("m16n8k16", TF32, TF32, F32, 16, rate // 2, True),
    ]  # fmt: skip
    found += [_mma("m16n8k64", a, b, S32, 64, 2 * rate, True) for a in (S8, U8) for b in (S8, U8)]
    if arch.has("mma_fp8"):
        found += [_mma("m16n8k64", a, b, F32, 64, 2 * rate, True) for a in (E4M3, E5M2) for b in (E4M3, E5M2)]
    return tuple(sorted(found, key=lambda instruction: -instruction.rate))


# Copy instructions --------------------------------------------------------------------------------


@functools.cache
def copy_instructions(arch: Arch) -> tuple[CopyInstruction, ...]:
    """The copies of an architecture, those that cost threads least first."""
    found: list[CopyInstruction] = []
    matrix = functools.partial(CopyInstruction, bytes=(16, 8, 4), threads=WARP)
    found += [
        matrix("load_matrix", SHARED, REGISTERS, matrix=MATRIX_8X8),
        matrix("load_matrix_trans", SHARED, REGISTERS, matrix=MATRIX_8X8_TRANSPOSED),
    ]
    if arch.has("stmatrix"):
        found += [
            matrix("store_matrix", REGISTERS, SHARED, matrix=MATRIX_8X8),
            matrix("store_matrix_trans", REGISTERS, SHARED, matrix=MATRIX_8X8_TRANSPOSED),
        ]
    wide = (32,) if arch.has("access_32_bytes") else ()
    found += [
        CopyInstruction("load_global", GLOBAL, REGISTERS, (*wide, 16, 8, 4, 2, 1)),
        CopyInstruction("store_global", REGISTERS, GLOBAL, (*wide, 16, 8, 4, 2, 1)),
        CopyInstruction("load", SHARED, REGISTERS, (16, 8, 4, 2, 1)),
        CopyInstruction("store", REGISTERS, SHARED, (16, 8, 4, 2, 1)),
    ]
    return tuple(found)
