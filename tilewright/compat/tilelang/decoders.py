"""``get_lop3_intrin_group`` and ``get_mxfp_intrin_group``: functions in a device's language with which one thread
decodes a few codes, for `T.import_source` and `T.call_extern`.

TileLang has a text for each case.  Here one writer makes them from what they mean: the order of the codes in a word
(`WORD_ORDERS`), and the arithmetic on a code.
"""

from __future__ import annotations

from tilewright.formats import WORD_ORDERS
from tilewright.language.dtypes import NumberType
from tilewright.specialization import InvalidUse

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
