"""How numbers, vectors and functions are spelled in the C of the cpu target: tables and small functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.ir import Call, DType
from tilewright.targets.c_family import Spellings, Text

CODES: Mapping[str, str] = {
    "bool": "bool", "float16": "f16", "bfloat16": "bf16", "tfloat32": "tf32", "float32": "f32", "float64": "f64",
    "float8_e4m3fn": "e4m3fn", "float8_e4m3fnuz": "e4m3fnuz", "float8_e5m2": "e5m2",
    "float8_e5m2fnuz": "e5m2fnuz", "float8_e8m0fnu": "e8m0", "float4_e2m1fn": "e2m1",
    "float8_e4m3b11fnuz": "e4m3b11fnuz",
    "float6_e2m3fn": "e2m3", "float6_e3m2fn": "e3m2",
    **{f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("int", "uint") for bits in (1, 2, 4, 8, 16, 32, 64)},
}  # fmt: skip
"""Short name of each dtype in the names of helper functions (``tw_f32_from_bf16``)."""

C_TYPES: Mapping[str, str] = {
    "bool": "bool", "float32": "float", "float64": "double", "tfloat32": "float",
    **{f"{kind}{bits}": f"{kind}{max(bits, 8)}_t" for kind in ("int", "uint") for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{name: CODES[name] for name in CODES if CODES[name] not in ("f32", "f64", "tf32") and "float" in name},
}  # fmt: skip
"""C type of a scalar value; narrow floats travel as their bits."""


TILE_UNIT = 64
"""Bytes that the memory of a tile larger than that is a multiple of: a line, and the widest vector."""


def code(dtype: DType) -> str:
    """Short name of the scalar type."""
    return CODES[dtype.name]


def carrier(dtype: DType) -> str:
    """Short name of the number that holds a value: ``u16`` for bfloat16, ``i8`` for int4."""
    if dtype.kind == "bool":
        return "u8"
    if dtype.is_float and dtype.name not in ("float32", "float64", "tfloat32"):
        return f"u{max(dtype.bits, 8)}"
    if dtype.name == "tfloat32":
        return "f32"
    return code(dtype) if dtype.bits >= 8 else f"{dtype.kind[0]}8"


def computes_in_float(dtype: DType) -> bool:
    """Whether arithmetic converts to float first: all floats that C does not have."""
    return dtype.is_float and dtype.name not in ("float32", "float64")


def compute_bits(dtype: DType) -> int:
    """Width in which operators work on values of `dtype`."""
    return 32 if computes_in_float(dtype) else max(dtype.bits, 8)


def lanes_suffix(dtype: DType) -> str:
    return "" if dtype.lanes == 1 else f"x{dtype.lanes}"


def helper(name: str, dtype: DType) -> str:
    """The header's function for a type and number of lanes: ``tw_exp_f32x16``."""
    return f"tw_{name}_{carrier(dtype)}{lanes_suffix(dtype)}"


def bits_of(value: float, dtype: DType) -> int:
    """The bits of a literal of a narrow float type."""
    unsigned = np.uint16 if dtype.bits == 16 else np.uint8
    return int(np.asarray(value, np.float32).astype(dtype.numpy).view(unsigned))


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """A function of a device header that kernels may call by name.

    Attributes
    ----------
    spell : C text of a call, given the printer, the node and the printed arguments (a Region prints as a
        pointer to its first element, a text as itself).
    header : file in ``device/`` that defines it, included where it is called; None for the common one.
    """

    spell: Callable[[object, Call, list[Text]], Text]
    header: str | None = None


DEVICE_FUNCTIONS: dict[str, DeviceFunction] = {}
"""Machine functions of the micro-kernels, by the intrinsic's name; filled by `device_function`."""


def device_function(name: str, c_name: str | None = None, header: str | None = None) -> None:
    """Let kernels call the C function `c_name` as intrinsic `name` (registered in `ir.intrinsics` too).

    ``{code}`` and ``{lanes}`` in `c_name` stand for the short name of the result's type and its lanes.
    """
    template = c_name or name

    def spell(printer: object, call: Call, arguments: list[Text]) -> Text:
        text = template.format(code=carrier(call.dtype), lanes=lanes_suffix(call.dtype))
        return Text(f"{text}({', '.join(str(a) for a in arguments)})")

    DEVICE_FUNCTIONS[name] = DeviceFunction(spell, header)


KEYWORDS = frozenset(
    """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while _Bool asm typeof
bool true false NAN INFINITY main given arguments block scratch status done f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 f16
bf16 tf32 e4m3fn e4m3fnuz e5m2 e5m2fnuz e4m3b11fnuz e8m0 e2m3 e3m2 e2m1 LANES V FN SELECT CONVERT SPLAT exp exp2 log
log2 log10 log1p pow sqrt sin cos tan sinh cosh tanh atan atan2 erf floor ceil trunc round rint fmod fabs free malloc
memcpy memset y0 y1 yn j0 j1 jn gamma isnan isinf index abs signal div remainder linux unix
""".split()  # noqa: SIM905
)
"""Names that the author's variables may not take: C's, the header's, and those of the generated code."""

SPELLINGS = Spellings(types=C_TYPES, keywords=KEYWORDS)
