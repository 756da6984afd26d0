"""AMD's matrix products as data: the instructions of each generation, and the functions that lowering chooses among.

Matrix products are those of waves: MFMA of CDNA (64 lanes), WMMA of RDNA (32 lanes), with the place of every element.
`PRODUCTS` has the instructions as the manuals have them; `instructions_of` what lowering chooses among: functions of
the device vocabulary, each of which executes one of these, or two that take the halves of wider registers, so that a
lane reads 16 bytes of shared memory at once.

The places follow a few formulas. With ``l`` the lane, ``S`` the tile's side and ``g = l // S``, an operand has row (or
column) ``l % S`` and k ``E g + r``, ``E`` elements to a lane. gfx11 has all of k in every lane, twice. Results have one
coordinate ``l % S`` and the other in the registers: in runs of four on CDNA, alternating between the half-waves on
gfx11, in runs of eight on gfx12. Functions of CDNA and gfx12 multiply ``b`` by ``a``, so that a lane's results are
neighbours in a row, and lie as the left operand of a following product does.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from tilewright.ir.dtypes import ALL, DType
from tilewright.layout import REGISTER, THREAD, Digit, Layout, permuted
from tilewright.machine.instructions import MatrixInstruction
from tilewright.machine.types import BF16, E4M3, E5M2, F16, F32, F64, S4, S8, S32, TF32, U8

E4M3_FNUZ, E5M2_FNUZ = ALL["float8_e4m3fnuz"], ALL["float8_e5m2fnuz"]


@dataclass(frozen=True, slots=True)
class WaveProduct:
    """``d[m, n] += a[m, k] * b[k, n]`` by a wave, as one instruction.

    Attributes
    ----------
    name : in AMD's manual.
    generation : of the machine.
    lanes : of the wave.
    left, right, result : where elements lie; registers count elements, one behind the other in the machine's registers.
    padded : bits of a result's register, where it has more than the element.
    cycles : until the unit takes the next one.
    builtin : its name in clang, behind ``__builtin_amdgcn_``.
    sparse : of the left operand two of every four elements along k are there.
    """

    name: str
    generation: str
    lanes: int
    m: int
    n: int
    k: int
    a: DType
    b: DType
    d: DType
    left: Layout
    right: Layout
    result: Layout
    cycles: int
    builtin: str
    sparse: bool = False
    padded: int = 0

    @property
    def rate(self) -> int:
        """Products and sums a cycle and core: CDNA has four units, of which each executes a wave's, RDNA two."""
        return 2 * self.m * self.n * self.k * (4 if self.lanes == 64 else 2) // self.cycles


@functools.cache
def operand(side: int, k: int, lanes: int) -> Layout:
    """The left operand, `side` by `k`: lanes side by side along rows, groups of lanes along k."""
    groups = lanes // side
    return Layout.of([(side, THREAD, 1)], [(k // groups, REGISTER, 1), (groups, THREAD, side)])


@functools.cache
def repeated_operand(k: int) -> Layout:
    """gfx11's: each lane has a whole row, and so has the one sixteen behind it."""
    return Layout.of([(16, THREAD, 1)], [(k, REGISTER, 1)], replicas=(Digit(2, THREAD, 16),))


@functools.cache
def alternating_operand(k: int) -> Layout:
    """gfx12's of 16 bits: the half-waves have runs of four columns in turn."""
    return Layout.of([(16, THREAD, 1)], [(4, REGISTER, 1), (2, THREAD, 16), (k // 8, REGISTER, 4)])


@functools.cache
def result(side: int, run: int, lanes: int = 64) -> Layout:
    """The result, `side` by `side`: columns along lanes, rows in runs of so many registers of each group of lanes."""
    groups = lanes // side
    rows = [(run, REGISTER, 1), (groups, THREAD, side), (side // (run * groups), REGISTER, run)]
    return Layout.of(rows, [(side, THREAD, 1)])


def _mfma(
    generation: str, name: str, side: int, k: int, types: tuple[DType, DType, DType], cycles: int, sparse: bool = False
) -> WaveProduct:
    left, right = operand(side, k // 2 if sparse else k, 64), permuted(operand(side, k, 64), (1, 0))
    kind = "smfmac" if sparse else "mfma"
    layouts = left, right, result(side, 1 if types[2] == F64 else 4)
    builtin = f"{kind}_{_called(name)}"
    return WaveProduct(f"v_{kind}_{name}", generation, 64, side, side, k, *types, *layouts, cycles, builtin, sparse)


def _called(name: str) -> str:
    """clang's name: that of CDNA 2, where the two differ."""
    for end in ("_f16", "_bf16"):
        if name.endswith(("16x16x16" + end, "32x32x8" + end)):
            return name.removesuffix(end) + end[1:] + "_1k" * (end == "_bf16")
    return {"f32_16x16x4_f32": "f32_16x16x4f32", "f64_16x16x4_f64": "f64_16x16x4f64"}.get(name, name)


def _wmma(
    generation: str, name: str, k: int, types: tuple[DType, DType, DType], cycles: int, padded: int = 0
) -> WaveProduct:
    first = generation == "rdna3"
    left = repeated_operand(k) if first else alternating_operand(k) if types[0].bits == 16 else operand(16, k, 32)
    layouts = left, permuted(left, (1, 0)), result(16, 1 if first else 8, 32)
    builtin = f"wmma_{name}_w32" + "_gfx12" * (not first)
    return WaveProduct(f"v_wmma_{name}", generation, 32, 16, 16, k, *types, *layouts, cycles, builtin, padded=padded)


HALVES = (("f16", (F16, F16, F32)), ("bf16", (BF16, BF16, F32)))
"""Types of 16 bits by their names in instructions, with that of the sums."""


def eighths(e4m3: DType, e5m2: DType) -> list[tuple[str, tuple[DType, DType, DType]]]:
    """Those of 8-bit floats, each with each."""
    types = {"fp8": e4m3, "bf8": e5m2}
    return [(f"{left}_{right}", (types[left], types[right], F32)) for left in types for right in types]


def _cdna3(generation: str, e4m3: DType, e5m2: DType) -> list[WaveProduct]:
    """CDNA 3's, which take CDNA 4 as many cycles."""
    small, whole = eighths(e4m3, e5m2), (S8, S8, S32)

    def both(name: str, ks: tuple[int, int], types: tuple[DType, DType, DType]) -> list[WaveProduct]:
        kind = "i32" if types == whole else "f32"
        sides = ((32, ks[0], 32), (16, ks[1], 16))
        return [_mfma(generation, f"{kind}_{m}x{m}x{k}_{name}", m, k, types, cycles) for m, k, cycles in sides]

    def sparse(name: str, k: int, types: tuple[DType, DType, DType]) -> WaveProduct:
        kind = "i32" if types == whole else "f32"
        return _mfma(generation, f"{kind}_16x16x{k}_{name}", 16, k, types, 16, sparse=True)

    return [
        *(one for name, types in HALVES for one in both(name, (8, 16), types)),
        *both("i8", (16, 32), whole),
        *(one for name, types in small for one in both(name, (16, 32), types)[::-1]),
        _mfma(generation, "f32_16x16x4_f32", 16, 4, (F32, F32, F32), 32),
        _mfma(generation, "f64_16x16x4_f64", 16, 4, (F64, F64, F64), 32),
        *(sparse(name, 32, types) for name, types in HALVES),
        sparse("i8", 64, whole),
        *(sparse(name, 64, types) for name, types in small),
    ]


def _wide(name: tuple[str, str], k: int, types: tuple[DType, DType, DType]) -> list[WaveProduct]:
    """CDNA 4's doubled shapes: twice the k of CDNA 3's in as many cycles."""
    kind, end = name
    return [
        _mfma("cdna4", f"{kind}_16x16x{k}_{end}", 16, k, types, 16),
        _mfma("cdna4", f"{kind}_32x32x{k // 2}_{end}", 32, k // 2, types, 32),
    ]


PRODUCTS: tuple[WaveProduct, ...] = (
    *(
        _mfma("cdna2", f"f32_{side}x{side}x{k}{kind}", side, k, (dtype, dtype, F32), cycles)
        for kind, dtype in (("f16", F16), ("bf16_1k", BF16))
        for side, k, cycles in ((32, 8, 64), (16, 16, 32))
    ),
    _mfma("cdna2", "i32_32x32x8i8", 32, 8, (S8, S8, S32), 64),
    _mfma("cdna2", "i32_16x16x16i8", 16, 16, (S8, S8, S32), 32),
    _mfma("cdna2", "f32_16x16x4f32", 16, 4, (F32, F32, F32), 32),
    _mfma("cdna2", "f64_16x16x4f64", 16, 4, (F64, F64, F64), 32),
    *_cdna3("cdna3", E4M3_FNUZ, E5M2_FNUZ),
    _mfma("cdna3", "f32_16x16x8_xf32", 16, 8, (TF32, TF32, F32), 16),
    _mfma("cdna3", "f32_32x32x4_xf32", 32, 4, (TF32, TF32, F32), 32),
    *(one for kind, types in HALVES for one in _wide(("f32", kind), 32, types)),
    *_wide(("i32", "i8"), 64, (S8, S8, S32)),
    *_cdna3("cdna4", E4M3, E5M2),
    *(
        _wmma(generation, f"f32_16x16x16_{kind}", 16, types, cycles)
        for generation, cycles in (("rdna3", 32), ("rdna4", 16))
        for kind, types in HALVES
    ),
    _wmma("rdna3", "f16_16x16x16_f16", 16, (F16, F16, F16), 32, padded=32),
    _wmma("rdna4", "f16_16x16x16_f16", 16, (F16, F16, F16), 16),
    _wmma("rdna3", "i32_16x16x16_iu8", 16, (S8, S8, S32), 32),
    _wmma("rdna4", "i32_16x16x16_iu8", 16, (S8, S8, S32), 8),
    _wmma("rdna3", "i32_16x16x16_iu4", 16, (S4, S4, S32), 16),
    _wmma("rdna4", "i32_16x16x32_iu4", 32, (S4, S4, S32), 8),
    *(_wmma("rdna4", f"f32_16x16x16_{name}", 16, types, 8) for name, types in eighths(E4M3, E5M2)),
)
"""Every instruction that a generation has."""


def _executing(one: WaveProduct, kind: str, k: int, layouts: tuple[Layout, Layout, Layout]) -> MatrixInstruction:
    """A function by its kind and the run of k that it takes."""
    types = one.a, one.b, one.d
    function = f"{kind}_m16n16k{k}"
    return MatrixInstruction.of_registers(function, one.lanes, (16, 16, k), types, layouts, one.rate, one.sparse)


def _function(one: WaveProduct, steps: int) -> MatrixInstruction:
    """The function that executes an instruction `steps` times, on the parts of longer runs of k."""
    k, first = one.k * steps, one.generation == "rdna3"
    left = one.left if first else operand(16, k, one.lanes)  # any order of k will do that both operands have
    kind = {"rdna3": "wmma", "rdna4": "wmma12"}.get(one.generation, "mfma")
    layouts = left, permuted(left, (1, 0)), one.result if first else permuted(one.result, (1, 0))
    return _executing(one, kind, k, layouts)


def _sparse(one: WaveProduct) -> MatrixInstruction:
    """The function of a product whose left operand is sparse: it is the instruction's, so that results lie as there."""
    return _executing(one, "smfmac", one.k, (one.left, one.right, one.result))


def _unsigned(one: MatrixInstruction) -> list[MatrixInstruction]:
    """The same of bytes without sign, where WMMA says of each operand whether it has one."""
    return [replace(one, a=a, b=b) for a, b in ((U8, U8), (S8, U8), (U8, S8))]


def _through_wider(halves: MatrixInstruction, bfloats: MatrixInstruction) -> list[MatrixInstruction]:
    """The same of the OCP's 8-bit floats on a machine that has no products of them: each code becomes a half, exactly;
    with an e5m2, whose least numbers are subnormal halves, what `bfloats` multiplies."""
    found = []
    for a, b in ((a, b) for a in (E4M3, E5M2) for b in (E4M3, E5M2)):
        one = bfloats if E5M2 in (a, b) else halves
        kind = "half" if one.a == F16 else "bfloat16"
        found.append(replace(one, function=f"{one.function}_through_{kind}", a=a, b=b))
    return found


def _into_half(one: MatrixInstruction) -> MatrixInstruction:
    """The same with sums of halves: they are added to as float32, and rounded once a step."""
    return replace(one, function=f"{one.function}_into_half", accumulator=F16, rate=one.rate * 3 // 4)


@functools.cache
def instructions_of(generation: str) -> tuple[tuple[MatrixInstruction, ...], tuple[MatrixInstruction, ...]]:
    """The dense and the sparse functions of a generation, the fastest first, those of long runs of k before short
    ones."""
    found: list[MatrixInstruction] = []
    halves = 16 if generation == "rdna3" else 32
    for one in PRODUCTS:
        if one.generation != generation or one.m != 16 or one.sparse or one.padded or one.a.bits < 8 or one.d == F16:
            continue
        per_lane = one.left.extent(REGISTER) * one.a.bits // 8
        doubles = one.lanes == 64 and per_lane == 8 and one.a.bits <= 16
        found += [_function(one, steps) for steps in ((2, 1) if doubles else (1,))]
    if generation.startswith("rdna"):
        found += [other for made in found if made.a == S8 for other in _unsigned(made)]
    found += [_into_half(made) for made in found if made.a == F16]
    if not any(made.a == E4M3 for made in found):
        half, bfloat = (
            next(made for made in found if (made.a, made.accumulator, made.k) == (kind, F32, halves))
            for kind in (F16, BF16)
        )
        found += _through_wider(half, bfloat if generation == "cdna2" else half)
    best: dict[tuple[str, DType, DType, DType], MatrixInstruction] = {}
    for made in sorted(found, key=lambda made: -made.rate):
        best.setdefault((made.function, made.a, made.b, made.accumulator), made)
    sparse = tuple(_sparse(one) for one in PRODUCTS if one.generation == generation and one.sparse)
    return tuple(sorted(best.values(), key=lambda made: (-made.rate, -made.k))), sparse
