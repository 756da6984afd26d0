// Conversions between number types, as the intermediate representation defines them, and arithmetic of the small floats.
//
// Every conversion rounds once, to nearest even; what lies beyond the small floats is said in tilewright_formats.cuh.
// From a float to an integer it truncates and saturates, NaN gives 0.
#pragma once

namespace tw {

TW_DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
TW_DEVICE float bits_float(uint32_t x) { return __uint_as_float(x); }

// ---- exact: small float to float -----------------------------------------------------------------------------------
TW_DEVICE float to_float(float x) { return x; }
TW_DEVICE float to_float(tfloat32 x) { return x.value; }
TW_DEVICE float to_float(half x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
TW_DEVICE float to_float(bfloat16 x) { return bits_float(uint32_t(x.bits) << 16); }
// What the machine has instructions for, or a shorter way.
template <> TW_DEVICE float SmallFloat<5, 2, 15, LARGEST_EXPONENT>::decode(uint32_t code) { return to_float(half{uint16_t(code << 8)}); }
template <> TW_DEVICE float SmallFloat<4, 3, 7, ONES_ARE_NAN>::decode(uint32_t code) {
  // The code's exponent and mantissa, moved to where float has its own, are the value times 2^-120; a subnormal code becomes one too.
  const float y = bits_float((code & 0x7Fu) << 20) * 1.329227995784916e36f;
  return bits_float(((code & 0x7Fu) == 0x7Fu ? 0x7FFFFFFFu : float_bits(y)) | (code & 0x80u) << 24);
}
#if __CUDA_ARCH__ >= 890
// They take infinities for large numbers.
template <> TW_DEVICE uint32_t SmallFloat<4, 3, 7, ONES_ARE_NAN>::encode(float x) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return (float_bits(x) & 0x7FFFFFFFu) == 0x7F800000u ? pair | 0x7Fu : pair;
}
template <> TW_DEVICE uint32_t SmallFloat<5, 2, 15, LARGEST_EXPONENT>::encode(float x) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return (float_bits(x) & 0x7FFFFFFFu) == 0x7F800000u ? pair + 1u : pair;
}
#endif
#define TW_FORMAT(NAME, ...) TW_DEVICE float to_float(NAME x) { return SmallFloat<__VA_ARGS__>::decode(x.bits); }
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT

// ---- to float, rounding to odd: a second rounding to fewer bits is then the only one ------------------------------------
TW_DEVICE float odd(float truncated, bool exact) { return exact ? truncated : bits_float(float_bits(truncated) | 1u); }
template <class T> TW_DEVICE float to_float_odd(T x) { return to_float(x); }
TW_DEVICE float to_float_odd(double x) { const float y = __double2float_rz(x); return odd(y, double(y) == x || x != x || double(y) - double(y) != 0.0); }
TW_DEVICE float to_float_odd(int32_t x) { const float y = __int2float_rz(x); return odd(y, __float2int_rz(y) == x); }
TW_DEVICE float to_float_odd(uint32_t x) { const float y = __uint2float_rz(x); return odd(y, __float2uint_rz(y) == x); }
TW_DEVICE float to_float_odd(int64_t x) { const float y = __ll2float_rz(x); return odd(y, (long long)y == x); }
TW_DEVICE float to_float_odd(uint64_t x) { const float y = __ull2float_rz(x); return odd(y, (unsigned long long)y == x); }
TW_DEVICE float to_float_odd(int16_t x) { return x; }
TW_DEVICE float to_float_odd(uint16_t x) { return x; }
TW_DEVICE float to_float_odd(int8_t x) { return x; }
TW_DEVICE float to_float_odd(uint8_t x) { return x; }
TW_DEVICE float to_float_odd(bool x) { return x; }

// ---- float to small float ------------------------------------------------------------------------------------------
TW_DEVICE void from_float(half& to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
TW_DEVICE void from_float(bfloat16& to, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
TW_DEVICE void from_float(tfloat32& to, float x) {
  const uint32_t bits = float_bits(x);
  to.value = x - x != 0.0f ? x : bits_float((bits + 0xFFFu + (bits >> 13 & 1u)) & ~0x1FFFu);
}
#define TW_FORMAT(NAME, ...) TW_DEVICE void from_float(NAME& to, float x) { to.bits = uint8_t(SmallFloat<__VA_ARGS__>::encode(x)); }
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT

// ---- float to integer ----------------------------------------------------------------------------------------------
TW_DEVICE void to_integer(int32_t& to, float x) { to = __float2int_rz(x); }
TW_DEVICE void to_integer(uint32_t& to, float x) { to = __float2uint_rz(x); }
TW_DEVICE void to_integer(int64_t& to, float x) { to = x != x ? 0 : __float2ll_rz(x); }
TW_DEVICE void to_integer(uint64_t& to, float x) { to = x != x ? 0 : __float2ull_rz(x); }
TW_DEVICE void to_integer(int32_t& to, double x) { to = x != x ? 0 : __double2int_rz(x); }
TW_DEVICE void to_integer(uint32_t& to, double x) { to = x != x ? 0 : __double2uint_rz(x); }
TW_DEVICE void to_integer(int64_t& to, double x) { to = x != x ? 0 : __double2ll_rz(x); }
TW_DEVICE void to_integer(uint64_t& to, double x) { to = x != x ? 0 : __double2ull_rz(x); }
template <class F> TW_DEVICE void to_integer(int16_t& to, F x) { int32_t y; to_integer(y, x); to = int16_t(min(max(y, -32768), 32767)); }
template <class F> TW_DEVICE void to_integer(uint16_t& to, F x) { int32_t y; to_integer(y, x); to = uint16_t(min(max(y, 0), 65535)); }
template <class F> TW_DEVICE void to_integer(int8_t& to, F x) { int32_t y; to_integer(y, x); to = int8_t(min(max(y, -128), 127)); }
template <class F> TW_DEVICE void to_integer(uint8_t& to, F x) { int32_t y; to_integer(y, x); to = uint8_t(min(max(y, 0), 255)); }

// ---- what convert asks for ------------------------------------------------------------------------------------------
template <class To, class From> TW_DEVICE To rounded(From x) {
  To to;
  from_float(to, to_float_odd(x));
  return to;
}
template <class To, class From> TW_DEVICE To truncated(From x) {
  To to;
  to_integer(to, x);
  return to;
}

}  // namespace tw

#include "tilewright_small_floats.cuh"

namespace tw {

// half and bfloat16 have instructions of their own; bfloat16's one is fma, and its tiny quotients need more bits than a float has.
TW_DEVICE half operator+(half a, half b) { half d; asm("add.rn.f16 %0, %1, %2;" : "=h"(d.bits) : "h"(a.bits), "h"(b.bits)); return d; }
TW_DEVICE half operator-(half a, half b) { half d; asm("sub.rn.f16 %0, %1, %2;" : "=h"(d.bits) : "h"(a.bits), "h"(b.bits)); return d; }
TW_DEVICE half operator*(half a, half b) { half d; asm("mul.rn.f16 %0, %1, %2;" : "=h"(d.bits) : "h"(a.bits), "h"(b.bits)); return d; }
TW_DEVICE half operator/(half a, half b) { return convert<half>(to_float(a) / to_float(b)); }
TW_DEVICE half operator-(half a) { return half{uint16_t(a.bits ^ 0x8000u)}; }
TW_DEVICE bfloat16 fma(bfloat16 a, bfloat16 b, bfloat16 c) {
  bfloat16 d;
  asm("fma.rn.bf16 %0, %1, %2, %3;" : "=h"(d.bits) : "h"(a.bits), "h"(b.bits), "h"(c.bits));
  return d;
}
TW_DEVICE half fma(half a, half b, half c) {
  half d;
  asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(d.bits) : "h"(a.bits), "h"(b.bits), "h"(c.bits));
  return d;
}
TW_DEVICE bfloat16 operator-(bfloat16 a) { return bfloat16{uint16_t(a.bits ^ 0x8000u)}; }
TW_DEVICE bfloat16 operator+(bfloat16 a, bfloat16 b) { return fma(a, bfloat16{0x3F80u}, b); }
TW_DEVICE bfloat16 operator-(bfloat16 a, bfloat16 b) { return fma(b, bfloat16{0xBF80u}, a); }
TW_DEVICE bfloat16 operator*(bfloat16 a, bfloat16 b) { return fma(a, b, bfloat16{0x8000u}); }
TW_DEVICE bfloat16 operator/(bfloat16 a, bfloat16 b) { return convert<bfloat16>(double(to_float(a)) / double(to_float(b))); }

}  // namespace tw
