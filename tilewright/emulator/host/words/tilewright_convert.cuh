// Conversions between number types, those of 16 bits written independently of the device's: by integer arithmetic on the bits of a
// double.  Smaller floats are read and written by the device's own functions.
#pragma once

namespace tw {

TW_DEVICE uint32_t float_bits(float x) { return bit_cast<uint32_t>(x); }
TW_DEVICE float bits_float(uint32_t x) { return bit_cast<float>(x); }

// The finite value of sign-exponent-mantissa code, exact in float.
template <int EXPONENT, int MANTISSA, int BIAS> TW_DEVICE float decode_float(uint32_t code) {
  const uint32_t field = code >> MANTISSA & ((1u << EXPONENT) - 1), fraction = code & ((1u << MANTISSA) - 1);
  const float scale = field ? bits_float(uint32_t(127 + int(field) - BIAS) << 23) : bits_float(uint32_t(128 - BIAS) << 23);
  const float magnitude = (float(fraction) / float(1u << MANTISSA) + (field ? 1.0f : 0.0f)) * scale;
  return code >> (EXPONENT + MANTISSA) & 1 ? -magnitude : magnitude;
}

TW_DEVICE float to_float(float x) { return x; }
TW_DEVICE float to_float(tfloat32 x) { return x.value; }
TW_DEVICE float to_float(bfloat16 x) { return bits_float(uint32_t(x.bits) << 16); }
TW_DEVICE float to_float(half x) {
  if ((x.bits & 0x7C00) == 0x7C00) return bits_float(uint32_t(x.bits & 0x8000) << 16 | 0x7F800000u | uint32_t(x.bits & 0x3FF) << 13);
  return decode_float<5, 10, 15>(x.bits);
}
#define TW_FORMAT(NAME, ...) TW_DEVICE float to_float(NAME x) { return SmallFloat<__VA_ARGS__>::decode(x.bits); }
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT

// The code of |x| with EXPONENT and MANTISSA bits, one rounding to nearest even; large values give a code beyond the largest.
template <int MANTISSA, int BIAS> TW_DEVICE uint32_t encode_magnitude(double x) {
  const uint64_t bits = bit_cast<uint64_t>(x);
  const int exponent = int(bits >> 52 & 0x7FF) - 1023;
  if (exponent < -200) return 0;
  if (exponent > 200) return 0x7FFFFFFFu;
  const uint64_t significand = (bits & 0xFFFFFFFFFFFFFull) | 1ull << 52;
  int drop = 52 - MANTISSA;
  if (exponent < 1 - BIAS) drop += 1 - BIAS - exponent;
  if (drop > 54) return 0;
  const uint64_t kept = significand >> drop, rest = significand & ((1ull << drop) - 1), middle = 1ull << (drop - 1);
  const uint64_t rounded = kept + (rest > middle || (rest == middle && (kept & 1)));
  if (exponent < 1 - BIAS) return uint32_t(rounded);
  return uint32_t((uint64_t(exponent + BIAS) << MANTISSA) + rounded - (1ull << MANTISSA));
}
TW_DEVICE bool negative(double x) { return bit_cast<uint64_t>(x) >> 63; }

TW_DEVICE void from_double(half& to, double x) {
  const uint32_t code = encode_magnitude<10, 15>(x);
  to.bits = uint16_t(x != x ? 0x7FFFu : (code > 0x7C00u ? 0x7C00u : code) | (negative(x) ? 0x8000u : 0u));
}
TW_DEVICE void from_double(bfloat16& to, double x) {
  const uint32_t code = encode_magnitude<7, 127>(x);
  to.bits = uint16_t(x != x ? 0x7FFFu : (code > 0x7F80u ? 0x7F80u : code) | (negative(x) ? 0x8000u : 0u));
}
TW_DEVICE void from_double(tfloat32& to, double x) {
  const uint32_t code = encode_magnitude<10, 127>(x);
  to.value = x != x ? float(x) : bits_float((code > 0x3FC00u ? 0x3FC00u : code) << 13 | (negative(x) ? 0x80000000u : 0u));
}
#define TW_FORMAT(NAME, ...) TW_DEVICE void from_float(NAME& to, float x) { to.bits = uint8_t(SmallFloat<__VA_ARGS__>::encode(x)); }
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT
// By way of a float whose last bit says whether any were lost.
template <class T> TW_DEVICE void from_double(T& to, double x) {
  const float nearest = float(x);
  const uint32_t bits = float_bits(nearest);
  const bool exact = double(nearest) == x || x != x || x - x != 0.0, beyond = x < 0.0 ? double(nearest) < x : double(nearest) > x;
  from_float(to, exact ? nearest : bits_float((beyond ? bits - 1u : bits) | 1u));
}

// As a double; integers too large for one are rounded to odd, so that the next rounding is the only one.
template <class T> TW_DEVICE double to_double(T x) { return double(to_float(x)); }
TW_DEVICE double to_double(double x) { return x; }
TW_DEVICE double to_double(uint64_t x) { return x >> 53 ? double((x >> 11 | uint64_t((x & 0x7FF) != 0)) << 11) : double(x); }
TW_DEVICE double to_double(int64_t x) { return x < 0 ? -to_double(uint64_t(0) - uint64_t(x)) : to_double(uint64_t(x)); }
TW_DEVICE double to_double(int32_t x) { return x; }
TW_DEVICE double to_double(uint32_t x) { return x; }
TW_DEVICE double to_double(int16_t x) { return x; }
TW_DEVICE double to_double(uint16_t x) { return x; }
TW_DEVICE double to_double(int8_t x) { return x; }
TW_DEVICE double to_double(uint8_t x) { return x; }
TW_DEVICE double to_double(bool x) { return x; }

template <class To, class From> TW_DEVICE To rounded(From x) {
  To to;
  from_double(to, to_double(x));
  return to;
}
template <class To> TW_DEVICE To truncated(double x) {
  if (x != x) return 0;
  const bool is_signed = To(-1) < To(0);
  const int bits = int(sizeof(To)) * 8 - (is_signed ? 1 : 0);
  const double limit = bits == 64 ? 18446744073709551616.0 : double(uint64_t(1) << bits);
  const To largest = To(~uint64_t(0) >> (64 - bits)), least = is_signed ? To(-largest - 1) : To(0);
  if (x >= limit) return largest;
  if (is_signed ? x <= -limit : x <= -1.0) return least;
  return To(x);
}

}  // namespace tw

#include "tilewright_small_floats.cuh"   // the device's own file

namespace tw {

TW_ARITHMETIC(half)
TW_ARITHMETIC(bfloat16)

}  // namespace tw
