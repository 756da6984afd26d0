// Conversions between number types, as the intermediate representation defines them, and arithmetic of the small floats.
//
// Every conversion rounds once, to nearest even; what lies beyond the small floats is said in tilewright_formats.cuh.
// From a float to an integer it truncates and saturates, NaN gives 0.
#pragma once

namespace tw {

TW_DEVICE uint32_t float_bits(float x) { return bit_cast<uint32_t>(x); }
TW_DEVICE float bits_float(uint32_t x) { return bit_cast<float>(x); }

// ---- exact: small float to float -----------------------------------------------------------------------------------
TW_DEVICE float to_float(float x) { return x; }
TW_DEVICE float to_float(tfloat32 x) { return x.value; }
TW_DEVICE float to_float(half x) { return machine::float_of_half(x.bits); }
TW_DEVICE float to_float(bfloat16 x) { return bits_float(uint32_t(x.bits) << 16); }
#define TW_FORMAT(NAME, ...) TW_DEVICE float to_float(NAME x) { return SmallFloat<__VA_ARGS__>::decode(x.bits); }
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT

// ---- to float, rounding to odd: a second rounding to fewer bits is then the only one ------------------------------------
TW_DEVICE float odd(double x) {
  const float y = float(x);
  if (double(y) == x || x != x || x - x != 0.0) return y;
  const uint32_t bits = float_bits(y);
  const bool beyond = x < 0.0 ? double(y) < x : double(y) > x;   // rounding went away from zero: one step back
  return bits_float((beyond ? bits - 1 : bits) | 1u);
}
// As a double; what is too large for one is rounded to odd.
TW_DEVICE double odd_double(uint64_t x) { return x >> 53 ? double((x >> 11 | uint64_t((x & 0x7FF) != 0)) << 11) : double(x); }
TW_DEVICE double odd_double(int64_t x) { return x < 0 ? -odd_double(uint64_t(0) - uint64_t(x)) : odd_double(uint64_t(x)); }
template <class T> TW_DEVICE float to_float_odd(T x) { return to_float(x); }
TW_DEVICE float to_float_odd(double x) { return odd(x); }
TW_DEVICE float to_float_odd(int32_t x) { return odd(double(x)); }
TW_DEVICE float to_float_odd(uint32_t x) { return odd(double(x)); }
TW_DEVICE float to_float_odd(int64_t x) { return odd(odd_double(x)); }
TW_DEVICE float to_float_odd(uint64_t x) { return odd(odd_double(x)); }
TW_DEVICE float to_float_odd(int16_t x) { return x; }
TW_DEVICE float to_float_odd(uint16_t x) { return x; }
TW_DEVICE float to_float_odd(int8_t x) { return x; }
TW_DEVICE float to_float_odd(uint8_t x) { return x; }
TW_DEVICE float to_float_odd(bool x) { return x; }

// ---- float to small float ------------------------------------------------------------------------------------------
TW_DEVICE void from_float(half& to, float x) { to.bits = machine::half_of_float(x); }
TW_DEVICE void from_float(bfloat16& to, float x) {
  const uint32_t bits = float_bits(x);
  to.bits = uint16_t(x != x ? 0x7FFFu | bits >> 16 & 0x8000u : bits + 0x7FFFu + (bits >> 16 & 1u) >> 16);
}
TW_DEVICE void from_float(tfloat32& to, float x) {
  const uint32_t bits = float_bits(x);
  to.value = x - x != 0.0f ? x : bits_float((bits + 0xFFFu + (bits >> 13 & 1u)) & ~0x1FFFu);
}
#define TW_FORMAT(NAME, ...) TW_DEVICE void from_float(NAME& to, float x) { to.bits = uint8_t(SmallFloat<__VA_ARGS__>::encode(x)); }
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT

// ---- what convert asks for ------------------------------------------------------------------------------------------
template <class To, class From> TW_DEVICE To rounded(From x) {
  To to;
  from_float(to, to_float_odd(x));
  return to;
}
template <class To, class From> TW_DEVICE To truncated(From x) {
  constexpr bool is_signed = To(-1) < To(0);
  constexpr int bits = int(sizeof(To)) * 8 - (is_signed ? 1 : 0);
  constexpr To largest = To(~uint64_t(0) >> (64 - bits)), least = is_signed ? To(-largest - 1) : To(0);
  const From limit = From(2) * From(uint64_t(1) << (bits - 1));
  return x != x ? To(0) : x >= limit ? largest : x <= (is_signed ? -limit : From(-1)) ? least : To(x);
}

}  // namespace tw

#include "tilewright_small_floats.cuh"

namespace tw {

TW_DEVICE half operator+(half a, half b) { return half{uint16_t(machine::add_pairs(a.bits, b.bits))}; }
TW_DEVICE half operator-(half a, half b) { return half{uint16_t(machine::subtract_pairs(a.bits, b.bits))}; }
TW_DEVICE half operator*(half a, half b) { return half{uint16_t(machine::multiply_pairs(a.bits, b.bits))}; }
TW_DEVICE half operator/(half a, half b) { return convert<half>(to_float(a) / to_float(b)); }
TW_DEVICE half operator-(half a) { return half{uint16_t(a.bits ^ 0x8000u)}; }
TW_DEVICE half fma(half a, half b, half c) { return half{uint16_t(machine::fused_pairs(a.bits, b.bits, c.bits))}; }
// The product of two is exact in a float, and their sum rounded to odd is enough for the rounding behind it to be the only one.
TW_DEVICE bfloat16 fma(bfloat16 a, bfloat16 b, bfloat16 c) { return convert<bfloat16>(double(to_float(a)) * double(to_float(b)) + double(to_float(c))); }
TW_DEVICE bfloat16 operator-(bfloat16 a) { return bfloat16{uint16_t(a.bits ^ 0x8000u)}; }
TW_DEVICE bfloat16 operator+(bfloat16 a, bfloat16 b) { return convert<bfloat16>(to_float(a) + to_float(b)); }
TW_DEVICE bfloat16 operator-(bfloat16 a, bfloat16 b) { return convert<bfloat16>(to_float(a) - to_float(b)); }
TW_DEVICE bfloat16 operator*(bfloat16 a, bfloat16 b) { return convert<bfloat16>(to_float(a) * to_float(b)); }
TW_DEVICE bfloat16 operator/(bfloat16 a, bfloat16 b) { return convert<bfloat16>(double(to_float(a)) / double(to_float(b))); }

}  // namespace tw
