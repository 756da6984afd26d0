"""The formats by name: a new one is one entry here.

Codes of signed integers are two's complement, as everywhere in tilewright; producers of offset binary (BitBLAS,
symmetric GPTQ) differ by the sign bit alone. Floats of at most 8 bits follow the OCP standards: ``e4m3`` has NaN and no
infinities ("fn"), ``e5m2`` is IEEE's, the narrower ones have neither.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator

from tilewright.errors import UnknownFormat
from tilewright.formats.number import Format
from tilewright.ir import DType, dtypes

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of a normal distribution, scaled to [-1, 1] (Dettmers et al., "QLoRA", 2023, appendix E)."""

BNB_FP4 = (
    0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25,
    -0.0, -0.0052083334885537624, -0.6666666865348816, -1.0, -0.3333333432674408, -0.5, -0.1666666716337204, -0.25,
)  # fmt: skip
"""The fp4 of bitsandbytes, in float32 as it writes them: no codes of e2m1, and the least number is a twelfth of a
sixteenth."""

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The list of ggml's IQ4_NL and IQ4_XS."""


def integers(bits: int, signed: bool) -> tuple[float, ...]:
    """Two's complement, or the plain numbers."""
    half = 1 << (bits - 1) if signed else 1 << bits
    return tuple(float(code - (1 << bits) if code >= half else code) for code in range(1 << bits))


def floats(exponent: int, mantissa: int, style: str = "finite", bias: int | None = None) -> tuple[float, ...]:
    """A sign, `exponent` bits, `mantissa` bits, with subnormals.

    Parameters
    ----------
    style : ``"finite"``: every code is a number; ``"fn"``: all ones is NaN; ``"ieee"``: the largest exponent holds
        infinities and NaNs; ``"fnuz"``: the code of minus zero is the one NaN.
    bias : of the exponent; ``2**(exponent - 1) - 1`` by default.
    """
    bias = (1 << (exponent - 1)) - 1 if bias is None else bias
    values = []
    for code in range(1 << (1 + exponent + mantissa)):
        power, fraction = code >> mantissa & ((1 << exponent) - 1), code & ((1 << mantissa) - 1)
        sign = -1.0 if code >> (exponent + mantissa) else 1.0
        full, ones = power == (1 << exponent) - 1, fraction == (1 << mantissa) - 1
        if style == "ieee" and full:
            values.append(sign * math.inf if fraction == 0 else math.nan)
        elif (style == "fn" and full and ones) or (style == "fnuz" and sign < 0 and power == fraction == 0):
            values.append(math.nan)
        else:
            significand = fraction / (1 << mantissa) + (power > 0)
            values.append(sign * math.ldexp(significand, max(power, 1) - bias))
    return tuple(values)


def powers(bits: int = 8, bias: int = 127) -> tuple[float, ...]:
    """Powers of two without sign or zero, the last code NaN: the scales of the MX formats."""
    return (*(math.ldexp(1.0, code - bias) for code in range((1 << bits) - 1)), math.nan)


def _both_signs(*magnitudes: int) -> tuple[float, ...]:
    """Ascending."""
    return (*(-float(size) for size in reversed(magnitudes)), *map(float, magnitudes))


def _entries() -> Iterator[Format]:
    yield Format("int1", 1, (-1.0, 1.0), "int")
    yield Format("uint1", 1, (0.0, 1.0), "uint", dtypes.dtype("uint1"))
    for bits in range(2, 9):
        for kind in ("int", "uint"):
            name = f"{kind}{bits}"
            yield Format(name, bits, integers(bits, kind == "int"), kind, dtypes.ALL.get(name))
    # The codes of int2 without -2, so that whatever decodes int2 decodes it.
    yield Format("ternary", 2, (0.0, 1.0, math.nan, -1.0), "int", dtypes.dtype("int2"), unused=(2,))
    yield Format("nf4", 4, NF4, "codebook")
    yield Format("fp4_bnb", 4, BNB_FP4, "codebook")
    # What ggml's blocks by tables stand for (`quant.importers.gguf_codebooks`).
    yield Format("iq4", 4, tuple(map(float, IQ4)), "codebook")
    yield Format("iq3", 4, (*_both_signs(4, 12, 20, 28, 36, 44, 52, 62),), "codebook")
    yield Format("iq3s", 4, tuple(float(2 * code - 15) for code in range(16)), "codebook")
    yield Format("iq2", 3, (*_both_signs(8, 25, 43), 0.0, 0.0), "codebook", unused=(6, 7))
    yield Format("iq1", 3, (*_both_signs(1, 7, 9), 0.0, 0.0), "codebook", unused=(6, 7))
    yield Format("e2m1", 4, floats(2, 1), "float", dtypes.dtype("float4_e2m1fn"))
    yield Format("e4m3", 8, floats(4, 3, "fn"), "float", dtypes.dtype("float8_e4m3fn"))
    yield Format("e5m2", 8, floats(5, 2, "ieee"), "float", dtypes.dtype("float8_e5m2"))
    yield Format("e4m3fnuz", 8, floats(4, 3, "fnuz", 8), "float", dtypes.dtype("float8_e4m3fnuz"))
    yield Format("e5m2fnuz", 8, floats(5, 2, "fnuz", 16), "float", dtypes.dtype("float8_e5m2fnuz"))
    yield Format("e8m0", 8, powers(), "float", dtypes.dtype("float8_e8m0fnu"))
    for name in ("float16", "bfloat16", "float32", "float64"):
        yield Format(name, dtypes.dtype(name).bits, (), "float", dtypes.dtype(name))


FORMATS: dict[str, Format] = {entry.name: entry for entry in _entries()}

ALIASES = {
    "fp4": "e2m1", "fp4_e2m1": "e2m1", "float4_e2m1fn": "e2m1", "fp6_e3m2": "e3m2", "fp6_e2m3": "e2m3",
    "fp8": "e4m3", "fp8_e4m3": "e4m3", "float8_e4m3fn": "e4m3", "float8_e4m3": "e4m3", "e4m3fn": "e4m3",
    "e4m3_float8": "e4m3", "fp8_e5m2": "e5m2", "float8_e5m2": "e5m2", "e5m2_float8": "e5m2",
    "float8_e8m0fnu": "e8m0", "half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
    "float": "float32", "double": "float64",
}  # fmt: skip

_FLOAT_NAME = re.compile(r"e([1-7])m([0-6])")


def number_format(name: str | Format | DType) -> Format:
    """The format of a name or an alias; ``"eXmY"`` is a sign, X exponent bits and Y bits of mantissa, all finite.

    Examples
    --------
    >>> number_format("int4").minimum, number_format("e3m2").maximum
    (-8.0, 28.0)

    Raises
    ------
    UnknownFormat : no such format; the message lists near names.
    """
    if isinstance(name, Format):
        return name
    text = name.name if isinstance(name, DType) else str(name).removeprefix("torch.")
    text = ALIASES.get(text, text)
    found = FORMATS.get(text) or _small_float(text)
    if found is None:
        raise UnknownFormat(str(name), sorted(FORMATS))
    return found


@functools.cache
def _small_float(name: str) -> Format | None:
    match = _FLOAT_NAME.fullmatch(name)
    if match is None:
        return None
    exponent, mantissa = int(match[1]), int(match[2])
    bits = 1 + exponent + mantissa
    return Format(name, bits, floats(exponent, mantissa), "float") if bits <= 8 else None


def codebook(name: str, values: tuple[float, ...]) -> Format:
    """A format of one's own: `values` of 2, 4, 8, ... 256 codes.

    Raises
    ------
    UnknownFormat : the name is taken, or the number of values is no power of two up to 256.
    """
    bits = (len(values) - 1).bit_length()
    if name in FORMATS or not 1 <= bits <= 8 or len(values) != 1 << bits:
        raise UnknownFormat(name, sorted(FORMATS))
    return Format(name, bits, tuple(map(float, values)), "codebook")
