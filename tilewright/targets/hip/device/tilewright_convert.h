// Conversions between number types, as the intermediate representation defines them, and arithmetic of the small floats.
//
// Every conversion rounds once, to nearest even.  To a float without infinities it saturates, NaN stays NaN.
// From a float to an integer it truncates and saturates, NaN gives 0.
#pragma once

namespace tw {

TW_DEVICE uint32_t float_bits(float x) { return bit_cast<uint32_t>(x); }
TW_DEVICE float bits_float(uint32_t x) { return bit_cast<float>(x); }
TW_DEVICE float magnitude_of(float x) { return bits_float(float_bits(x) & 0x7FFFFFFFu); }

// ---- exact: small float to float -----------------------------------------------------------------------------------
TW_DEVICE float to_float(float x) { return x; }
TW_DEVICE float to_float(tfloat32 x) { return x.value; }
TW_DEVICE float to_float(half x) { return machine::float_of_half(x.bits); }
TW_DEVICE float to_float(bfloat16 x) { return bits_float(uint32_t(x.bits) << 16); }
TW_DEVICE float to_float(float8_e5m2 x) { return to_float(half{uint16_t(x.bits << 8)}); }
TW_DEVICE float to_float(float8_e4m3 x) {
  // The code's exponent and mantissa, moved to where float has its own, are the value times 2^-120; a subnormal code becomes one too.
  const float y = bits_float((x.bits & 0x7Fu) << 20) * 0x1p120f;
  return bits_float(((x.bits & 0x7F) == 0x7F ? 0x7FFFFFFFu : float_bits(y)) | (x.bits & 0x80u) << 24);
}
// AMD's own, alike: `BIAS` is of the exponent, 0x80 is NaN.
template <int MANTISSA, int BIAS> TW_DEVICE float float_of_fnuz(uint32_t code) {
  const float y = bits_float((code & 0x7Fu) << (23 - MANTISSA)) * bits_float(uint32_t(254 - BIAS) << 23);
  return bits_float(code == 0x80u ? 0x7FFFFFFFu : float_bits(y) | (code & 0x80u) << 24);
}
TW_DEVICE float to_float(float8_e4m3fnuz x) { return float_of_fnuz<3, 8>(x.bits); }
TW_DEVICE float to_float(float8_e5m2fnuz x) { return float_of_fnuz<2, 16>(x.bits); }
TW_DEVICE float to_float(float8_e8m0 x) { return bits_float(x.bits == 0xFF ? 0x7FFFFFFFu : x.bits ? uint32_t(x.bits) << 23 : 0x00400000u); }
TW_DEVICE float to_float(float4_e2m1 x) { return to_float(half{uint16_t((x.bits & 7) << 9 | (x.bits & 8) << 12)}) * 16384.0f; }

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
// Round |x| to a format of `mantissa` bits whose least normal exponent is `least`; both fit a float's normal range.
template <int MANTISSA, int LEAST> TW_DEVICE float round_to_format(float magnitude) {
  const int exponent = max(int(float_bits(magnitude) >> 23) - 127, LEAST);
  const float grid = bits_float(uint32_t(exponent - MANTISSA + 127 + 23) << 23);   // adding it leaves multiples of the last place
  return (magnitude + grid) - grid;
}
TW_DEVICE void from_float(float8_e4m3& to, float x) {
  const float bounded = min(round_to_format<3, -6>(min(magnitude_of(x), 448.0f)), 448.0f) * 0x1p-120f;   // the code in place
  to.bits = uint8_t((x != x ? 0x7Fu : float_bits(bounded) >> 20) | float_bits(x) >> 24 & 0x80u);
}
TW_DEVICE void from_float(float8_e5m2& to, float x) {
  const float magnitude = magnitude_of(x);
  uint32_t code = x != x ? 0x7Fu : 0x7Cu;                           // infinity: 61440 and more are nearer to 65536 than to 57344
  if (magnitude < 61440.0f) {
    half rounded;
    from_float(rounded, round_to_format<2, -14>(magnitude));
    code = rounded.bits >> 8;
  }
  to.bits = uint8_t(code | float_bits(x) >> 24 & 0x80u);
}
template <int MANTISSA, int BIAS> TW_DEVICE uint8_t fnuz_of_float(float x, float largest) {
  const float bounded = min(round_to_format<MANTISSA, 1 - BIAS>(min(magnitude_of(x), largest)), largest);
  const uint32_t code = float_bits(bounded * bits_float(uint32_t(BIAS) << 23)) >> (23 - MANTISSA);
  return uint8_t(x != x ? 0x80u : code == 0u ? 0u : code | float_bits(x) >> 24 & 0x80u);
}
TW_DEVICE void from_float(float8_e4m3fnuz& to, float x) { to.bits = fnuz_of_float<3, 8>(x, 240.0f); }
TW_DEVICE void from_float(float8_e5m2fnuz& to, float x) { to.bits = fnuz_of_float<2, 16>(x, 57344.0f); }
TW_DEVICE void from_float(float8_e8m0& to, float x) {               // to the nearest power of two, ties to the larger exponent's even code
  const uint32_t bits = float_bits(x);
  const uint32_t code = bits >> 23 & 0xFFu, mantissa = bits & 0x7FFFFFu;
  const uint32_t middle = code ? 0x400000u : 0x600000u;              // code 0 is a subnormal float
  const uint32_t rounded = code + (mantissa > middle || (mantissa == middle && (code & 1u)));
  to.bits = uint8_t(x != x || x < 0.0f ? 0xFFu : min(rounded, 0xFEu));
}
TW_DEVICE void from_float(float4_e2m1& to, float x) {
  const float magnitude = round_to_format<1, 0>(x != x ? 6.0f : min(magnitude_of(x), 6.0f));
  const uint32_t twice = uint32_t(magnitude * 2.0f);                // 0 1 2 3 4 6 8 12
  const uint32_t code = twice < 4u ? twice : twice == 4u ? 4u : twice == 6u ? 5u : twice == 8u ? 6u : 7u;
  to.bits = uint8_t(code | float_bits(x) >> 28 & 8u);
}

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

TW_COMPARISONS(float8_e4m3fnuz)
TW_COMPARISONS(float8_e5m2fnuz)
TW_ARITHMETIC(float8_e4m3fnuz)
TW_ARITHMETIC(float8_e5m2fnuz)
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
