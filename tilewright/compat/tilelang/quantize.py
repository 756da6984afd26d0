"""``tilelang.quantize``: numbers of few bits out of the words that hold them, as arithmetic on elements.

Each maker takes the type of the words, ``("uint", 8)``, and gives a function ``convert(nbit, word, place, dtype=...)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright.language as T
from tilewright.compat.bitblas.quantization.utils import gen_quant4, general_compress, interleave_weight
from tilewright.formats import WORD_ORDERS
from tilewright.language.dtypes import NumberType
from tilewright.language.proxies import Value
from tilewright.specialization import InvalidUse

__all__ = ["gen_quant4", "general_compress", "get_lop3_intrin_group", "get_mxfp_intrin_group", "interleave_weight"]

Convert = Callable[..., Value]


def _cast(value: Value, dtype: object) -> Any:
    return T.cast(value, dtype)


def _code(storage: str, nbit: int, word: Any, place: Any) -> Value:
    """The bits at a place of a word, as an unsigned integer of 32 bits."""
    if str(word.dtype) != storage:
        raise InvalidUse(f"words are {word.dtype}, not {storage}", hint="say how they are stored, or view them so")
    bits = _cast(word, "uint32")
    return (bits >> _cast(place * nbit, "uint32")) & _cast((1 << nbit) - 1, "uint32")


def _maker(of: Callable[..., Value], meaning: str) -> Callable[..., Convert]:
    def make(storage_type: str = "uint", storage_nbit: int = 8) -> Convert:
        storage = f"{storage_type}{storage_nbit}"

        def convert(nbit: int, val: Value, pos: Value, *more: Value, dtype: object = None) -> Value:
            *between, wanted = more if dtype is None else (*more, dtype)
            return of(_code(storage, nbit, val, pos), nbit, wanted, *between)

        return convert

    make.__doc__ = f"A function that gives {meaning} of a word."
    return make


def _signed(code: Any, nbit: int, dtype: object) -> Value:
    top = _cast(code, "int32") << (32 - nbit)
    return _cast(top >> (32 - nbit), dtype)


def _fp4(code: Any, nbit: int, dtype: object) -> Value:
    """A sign and three bits of exponent: 0, and powers of two from 2**-6 to 1, as TileLang's function has it."""
    if nbit != 4:
        raise InvalidUse(f"floats of {nbit} bits are not read by this function", hint="of 4 bits, or T.decode")
    exponent = _cast(code & _cast(7, "uint32"), "int32")
    power = T.reinterpret("float32", (exponent + 120) << 23)
    size: Value = T.if_then_else(exponent == 0, T.float32(0.0), power)
    return _cast(T.if_then_else((code >> 3) == 0, size, -size), dtype)


def _twos(code: Value, nbit: int, dtype: object) -> Value:
    return _cast(_cast(code, "int32") - (1 << (nbit - 1)), dtype)


_tir_packed_to_unsigned_convert = _maker(lambda code, nbit, dtype: _cast(code, dtype), "unsigned integers")
_tir_packed_to_signed_convert = _maker(_twos, "integers stored with ``2**(nbit - 1)`` added")
_tir_packed_int_to_int_convert = _maker(_signed, "integers in two's complement")
_tir_packed_to_fp4_to_f16 = _maker(_fp4, "floats of a sign and three bits of exponent")
_tir_packed_to_unsigned_convert_with_zeros = _maker(
    lambda code, nbit, dtype, zero: _cast(_cast(code, "int32") - _cast(zero, "int32"), dtype), "differences to zeros"
)


def _tir_u8_to_f8_e4m3_to_f16(nbit: int, val: Value, dtype: object) -> Value:
    """The float of type e4m3 whose bits a byte has."""
    return _cast(T.reinterpret("float8_e4m3fn", _cast(val, "uint8")), dtype)


def _tir_u8_to_f8_e5m2_to_f16(nbit: int, val: Value, dtype: object) -> Value:
    """The float of type e5m2 whose bits a byte has."""
    return _cast(T.reinterpret("float8_e5m2", _cast(val, "uint8")), dtype)


_SHORT = {"float16": "f16", "int8": "i8s", "int4": "i4s"}
_ZEROS = ("original", "rescale", "quantized")


def get_lop3_intrin_group(
    out_dtype: object,
    source_format: str = "uint",
    source_bit: int = 4,
    storage_dtype: object = "int8",
    with_scaling: bool = False,
    with_zeros: bool = False,
    zeros_mode: str = "original",
    storage_scope: str = "local",
) -> dict[str, str]:
    """A function ``f(codes, out, [scale, [zeros,]] N)`` that decodes N codes as `interleave_weight` puts them.

    Parameters
    ----------
    out_dtype : ``"float16"``, ``"int8"`` or ``"int4"`` (two in a byte).
    source_format : ``"uint"``, or ``"int"``: codes with ``2**(source_bit - 1)`` added; of one bit, -1 and 1.
    source_bit : 1, 2 or 4.
    storage_dtype : of the words.
    with_scaling, with_zeros : whether a scale, and a zero point, are given by their places.
    zeros_mode : ``"original"`` and ``"quantized"``: ``(code - zero) * scale``; ``"rescale"``: ``code * scale - zero``.
    storage_scope : ``"local"``.

    Returns
    -------
    ``func_name`` and ``c_source``.
    """
    target = str(NumberType(out_dtype))
    if (target, source_bit) not in WORD_ORDERS or source_format not in ("int", "uint"):
        known = ", ".join(f"{bits} bits to {of}" for of, bits in WORD_ORDERS)
        raise InvalidUse(
            f"there is no decoding of {source_format}{source_bit} to {target}", hint=f"{known}; int or uint"
        )
    if storage_scope != "local" or (with_zeros and (not with_scaling or source_format == "int")):
        raise InvalidUse(
            "zero points go with a scale and unsigned codes, and words lie in a T.alloc_local",
            hint="pass with_scaling=True with them, source_format='uint' and storage_scope='local'",
        )
    if with_zeros and zeros_mode not in _ZEROS:
        raise InvalidUse(f"there is no zeros_mode {zeros_mode!r}", hint=", ".join(map(repr, _ZEROS)))
    if with_scaling and target != "float16":
        raise InvalidUse(f"a scale makes no {target}", hint="decode to float16, or scale the product")
    name = f"decode_i{source_bit}{'u' if source_format == 'uint' else 's'}_to_{_SHORT[target]}"
    name += "_scale" * with_scaling + f"_zeros_{zeros_mode}" * with_zeros
    middle = 0 if source_format == "uint" else 1 << (source_bit - 1)
    code = "2 * code - 1" if middle and source_bit == 1 else f"code - {middle}" if middle else "code"
    if target != "float16":
        return {"func_name": name, "c_source": _lop3_text(name, target, source_bit, "", _integer(target, code))}
    value = f"float({code})"
    if with_zeros and zeros_mode != "rescale":
        value = f"tw::convert<float>(tw::convert<T2>({value} - tw::convert<float>(*zeros)))"
    if with_scaling:
        value = f"{value} * tw::convert<float>(*scale)"
    if with_zeros and zeros_mode == "rescale":
        value = f"{value} - tw::convert<float>(*zeros)"
    more = ", T3* scale" * with_scaling + ", T4* zeros" * with_zeros
    return {
        "func_name": name,
        "c_source": _lop3_text(name, target, source_bit, more, f"out[i] = tw::convert<T2>({value});"),
    }


def _integer(target: str, code: str) -> str:
    if target == "int8":
        return f"reinterpret_cast<signed char*>(out)[i] = {code};"
    byte = "reinterpret_cast<unsigned char*>(out)[i / 2]"
    return f"{byte} = (i % 2 ? {byte} : 0) | ((({code}) & 15) << (i % 2 * 4));"


def _lop3_text(name: str, target: str, bits: int, more: str, store: str) -> str:
    order = WORD_ORDERS[target, bits]
    places = ", ".join(str(order.index(element)) for element in range(len(order)))
    types = "".join(f", typename {one}" for one in ("T3", "T4") if f"{one}*" in more)
    return f"""
template <typename T1, typename T2{types}>
__device__ void {name}(T1* codes, T2* out{more}, const int N = {8 if target == "float16" else 16}) {{
  constexpr int places[{len(order)}] = {{{places}}};
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(codes);
  #pragma unroll
  for (int i = 0; i < N; i++) {{
    const int bit = places[i % {len(order)}] * {bits};
    const int code = bytes[i / {len(order)} * 4 + bit / 8] >> (bit % 8) & {(1 << bits) - 1};
    {store}
  }}
}}
"""


MXFP4_TWIDDLED = """
template <typename T1, typename T2>
__device__ void decode_fp4_to_bf16_twiddling(T1* codes, T2* out, const int N = 8) {
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(codes);
  unsigned* pairs = reinterpret_cast<unsigned*>(out);
  #pragma unroll
  for (int i = 0; i < N; i++) {
    const unsigned word = bytes[4 * i] << 24 | bytes[4 * i + 1] << 16 | bytes[4 * i + 2] << 8 | bytes[4 * i + 3];
    // Sign, two bits of exponent and one of mantissa of an element of each half, where a bfloat16 has them.
    const unsigned placed[4] = {
      word & 0x81C081C0u, word << 3 & 0x81C081C0u, word << 6 & 0x81C081C0u,
      (word << 1 & 0x80008000u) | (word >> 3 & 0x01800180u) | (word >> 7 & 0x00400040u)};
    unsigned value[4];
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      // The exponent counts from another number; 0.5, the one without a leading 1, becomes a power of two.
      const unsigned leads = (placed[j] >> 7 | placed[j] >> 8) & 0x00010001u, half = placed[j] >> 6 & 0x00010001u;
      value[j] = placed[j] + (leads | half) * 0x3F00u - (half & ~leads) * 0x40u;
    }
    pairs[4 * i] = value[0] >> 16 | (value[1] & 0xFFFF0000u);
    pairs[4 * i + 1] = value[2] >> 16 | (value[3] & 0xFFFF0000u);
    pairs[4 * i + 2] = (value[0] & 0xFFFFu) | value[1] << 16;
    pairs[4 * i + 3] = (value[2] & 0xFFFFu) | value[3] << 16;
  }
}
"""
"""Four bytes at a time into eight numbers: the first two bytes, read with the first one high, hold the first four."""


def get_mxfp_intrin_group(
    out_dtype: object = "bfloat16",
    source_format: object = "uint",
    source_bit: int = 4,
    storage_dtype: object = "uint8",
    use_twiddling: bool = False,
    target: object = None,
) -> dict[str, str]:
    """A function ``f(codes, out, N)`` that decodes N times eight floats of four bits to bfloat16.

    Parameters
    ----------
    out_dtype, source_bit, use_twiddling : ``"bfloat16"``, 4 and True, the one form that TileLang has for NVIDIA's GPUs.
    source_format, storage_dtype, target : accepted for TileLang's sake.

    Returns
    -------
    ``func_name`` and ``c_source``.
    """
    if str(NumberType(out_dtype)) != "bfloat16" or source_bit != 4 or not use_twiddling:
        raise InvalidUse(
            f"there is no decoding of floats of {source_bit} bits to {out_dtype} with use_twiddling={use_twiddling}",
            hint="to bfloat16 with use_twiddling=True; T.decode takes other orders of codes",
        )
    return {"func_name": "decode_fp4_to_bf16_twiddling", "c_source": MXFP4_TWIDDLED}
