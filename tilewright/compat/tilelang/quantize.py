"""``tilelang.quantize``: numbers of few bits out of the words that hold them, as arithmetic on elements.

Each maker takes the type of the words, ``("uint", 8)``, and gives a function ``convert(nbit, word, place, dtype=...)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright.language as T
from tilewright.compat.bitblas.quantization.utils import gen_quant4, general_compress, interleave_weight
from tilewright.compat.tilelang.decoders import get_lop3_intrin_group, get_mxfp_intrin_group
from tilewright.language.proxies import Value
from tilewright.specialization import InvalidUse

__all__ = ["gen_quant4", "general_compress", "get_lop3_intrin_group", "get_mxfp_intrin_group", "interleave_weight"]

Convert = Callable[..., Any]


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
