// What instructions on numbers do: 16-bit floats by integer arithmetic on the bits of a double, bytes of words, rough functions.
#pragma once

namespace tw {
namespace machine {

typedef int Int2 __attribute__((vector_size(8)));
typedef int Int4 __attribute__((vector_size(16)));
typedef int Int8 __attribute__((vector_size(32)));
typedef float Float2 __attribute__((vector_size(8)));
typedef float Float4 __attribute__((vector_size(16)));
typedef float Float8 __attribute__((vector_size(32)));
typedef double Double4 __attribute__((vector_size(32)));
typedef short Short4 __attribute__((vector_size(8)));
typedef short Short8 __attribute__((vector_size(16)));
typedef short Short16 __attribute__((vector_size(32)));
struct Pair { uint16_t bits[2]; };
struct ShortPair { int16_t bits[2]; };
typedef Pair GlobalPair;
typedef ShortPair GlobalShortPair;
struct Half4 { uint16_t bits[4]; };
struct Half8 { uint16_t bits[8]; };
struct Half16 { uint16_t bits[16]; };
struct Bfloat8 { uint16_t bits[8]; };

template <class To, class From> TW_DEVICE To bits_as(const From& value) {
  static_assert(sizeof(To) == sizeof(From), "types of one size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(To));
  return result;
}

TW_DEVICE float float_of_half(uint16_t code) {
  const uint32_t field = code >> 10 & 0x1F, fraction = code & 0x3FF, sign = uint32_t(code & 0x8000) << 16;
  if (field == 0x1F) return bits_as<float>(sign | 0x7F800000u | fraction << 13);
  const float magnitude = field ? bits_as<float>((field + 112) << 23 | fraction << 13) : float(fraction) * 0x1p-24f;
  return bits_as<float>(bits_as<uint32_t>(magnitude) | sign);
}
// One rounding to nearest even, of a double.
TW_DEVICE uint16_t half_of_double(double x) {
  const uint64_t bits = bits_as<uint64_t>(x);
  const uint16_t sign = uint16_t(bits >> 48 & 0x8000);
  const int exponent = int(bits >> 52 & 0x7FF) - 1023;
  if (x != x) return uint16_t(sign | 0x7E00);
  if (exponent < -30) return sign;
  if (exponent > 20) return uint16_t(sign | 0x7C00);
  const uint64_t significand = (bits & 0xFFFFFFFFFFFFFull) | 1ull << 52;
  const int drop = exponent < -14 ? 42 - 14 - exponent : 42;
  const uint64_t kept = significand >> drop, rest = significand & ((1ull << drop) - 1), middle = 1ull << (drop - 1);
  const uint64_t rounded = kept + (rest > middle || (rest == middle && (kept & 1)));
  const uint64_t code = exponent < -14 ? rounded : (uint64_t(exponent + 15) << 10) + rounded - 1024;
  return uint16_t(sign | (code > 0x7C00 ? 0x7C00 : code));
}
TW_DEVICE uint16_t half_of_float(float x) { return half_of_double(x); }

template <class F> TW_DEVICE uint32_t each_half(uint32_t u, uint32_t v, F function) {
  const uint32_t low = half_of_double(function(float_of_half(uint16_t(u)), float_of_half(uint16_t(v))));
  return low | uint32_t(half_of_double(function(float_of_half(uint16_t(u >> 16)), float_of_half(uint16_t(v >> 16))))) << 16;
}
TW_DEVICE uint32_t add_pairs(uint32_t u, uint32_t v) { return each_half(u, v, [](double a, double b) { return a + b; }); }
TW_DEVICE uint32_t subtract_pairs(uint32_t u, uint32_t v) { return each_half(u, v, [](double a, double b) { return a - b; }); }
TW_DEVICE uint32_t multiply_pairs(uint32_t u, uint32_t v) { return each_half(u, v, [](double a, double b) { return a * b; }); }
TW_DEVICE uint32_t larger_pairs(uint32_t u, uint32_t v) { return each_half(u, v, [](double a, double b) { return a != a || b > a ? b : a; }); }
TW_DEVICE uint32_t smaller_pairs(uint32_t u, uint32_t v) { return each_half(u, v, [](double a, double b) { return a != a || b < a ? b : a; }); }
TW_DEVICE uint32_t fused_pairs(uint32_t u, uint32_t v, uint32_t w) {
  const auto one = [](uint32_t a, uint32_t b, uint32_t c) {
    return uint32_t(half_of_double(double(float_of_half(uint16_t(a))) * double(float_of_half(uint16_t(b))) + double(float_of_half(uint16_t(c)))));
  };
  return one(u, v, w) | one(u >> 16, v >> 16, w >> 16) << 16;
}

TW_DEVICE uint32_t shared_address(const void* pointer, ::TwSite site) { return ::tw_shared_address(pointer, site); }

// v_perm_b32: bytes 0 to 3 of the selector's numbers are `low`'s, 4 to 7 `high`'s, 12 is zero.
TW_DEVICE uint32_t perm(uint32_t high, uint32_t low, uint32_t selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t which = selector >> 8 * i & 0xFFu;
    const uint32_t byte = which < 8 ? uint32_t(bytes >> 8 * which) & 0xFFu : which < 12 ? (bytes >> (16 * (which - 8) + 15) & 1 ? 0xFFu : 0u) : which == 12 ? 0u : 0xFFu;
    result |= byte << 8 * i;
  }
  return result;
}
template <class A, class B> TW_DEVICE uint32_t dot4(uint32_t a, uint32_t b, uint32_t sum) {
  for (int i = 0; i < 4; ++i) sum += uint32_t(int32_t(A(a >> 8 * i)) * int32_t(B(b >> 8 * i)));
  return sum;
}
TW_DEVICE int32_t sudot4(bool signed_a, int32_t a, bool signed_b, int32_t b, int32_t sum) {
  const uint32_t x = uint32_t(a), y = uint32_t(b), z = uint32_t(sum);
  return int32_t(signed_a ? signed_b ? dot4<int8_t, int8_t>(x, y, z) : dot4<int8_t, uint8_t>(x, y, z)
                          : signed_b ? dot4<uint8_t, int8_t>(x, y, z) : dot4<uint8_t, uint8_t>(x, y, z));
}

// 8-bit floats ("V_CVT_F32_FP8", "V_CVT_PK_FP8_F32" of the CDNA 3 and RDNA 4 instruction sets): AMD's own have a bias that is one larger, and
// NaN where others have minus zero.
#if defined(TW_GFX942)
constexpr bool OWN_EIGHTS = true;
#else
constexpr bool OWN_EIGHTS = false;
#endif
TW_DEVICE double scaled(double x, int power) {
  for (; power > 0; --power) x *= 2;
  for (; power < 0; ++power) x /= 2;
  return x;
}
template <int MANTISSA> TW_DEVICE float float_of_eight(uint32_t word, int byte) {
  const uint32_t code = word >> 8 * byte & 0xFF, field = (code & 0x7F) >> MANTISSA, fraction = code & ((1 << MANTISSA) - 1);
  const int bias = (MANTISSA == 3 ? 7 : 15) + OWN_EIGHTS, last = MANTISSA == 3 ? 15 : 31;
  const float nan = bits_as<float>(0x7FC00000u), sign = code & 0x80 ? -1.0f : 1.0f;
  if (OWN_EIGHTS && code == 0x80) return nan;
  if (!OWN_EIGHTS && MANTISSA == 3 && (code & 0x7F) == 0x7F) return nan;
  if (!OWN_EIGHTS && MANTISSA == 2 && int(field) == last) return fraction ? nan : sign * bits_as<float>(0x7F800000u);
  const double significand = field ? double(fraction | 1u << MANTISSA) : double(fraction);
  return sign * float(scaled(significand, int(field ? field : 1) - bias - MANTISSA));
}
// Numbers up to the largest alone: the device's headers ask for no others.
template <int MANTISSA> TW_DEVICE uint32_t eight_of_float(float x, ::TwSite site) {
  const int bias = (MANTISSA == 3 ? 7 : 15) + OWN_EIGHTS;
  const uint32_t sign = bits_as<uint32_t>(x) >> 24 & 0x80;
  const double size = x < 0 ? -double(x) : double(x);
  int exponent = 1 - bias;
  while (scaled(2, exponent) <= size) ++exponent;
  const double steps = scaled(size, MANTISSA - exponent);
  uint64_t whole = uint64_t(steps);
  whole += steps - double(whole) > 0.5 || (steps - double(whole) == 0.5 && (whole & 1));
  const uint32_t code = uint32_t(exponent + bias - 1 << MANTISSA) + uint32_t(whole);
  if (x != x || code > (OWN_EIGHTS ? 0x7Fu : MANTISSA == 3 ? 0x7Eu : 0x7Bu)) ::tw_assertion_failed("a number that 8 bits do not hold", site);
  return OWN_EIGHTS && code == 0 ? 0 : code | sign;
}
template <int MANTISSA> TW_DEVICE int32_t eights_of_floats(float a, float b, int32_t old, bool high, ::TwSite site) {
  const uint32_t pair = eight_of_float<MANTISSA>(a, site) | eight_of_float<MANTISSA>(b, site) << 8;
  return int32_t(high ? (uint32_t(old) & 0xFFFFu) | pair << 16 : (uint32_t(old) & 0xFFFF0000u) | pair);
}
TW_DEVICE float middle(float a, float b, float c) { return a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b); }

// Exact to the last place here, about one unit off on the device.  Subnormal arguments and results of exp2 and log2 are flushed, as there.
TW_DEVICE float flush(float x) { return (bits_as<uint32_t>(x) & 0x7F800000u) == 0 ? bits_as<float>(bits_as<uint32_t>(x) & 0x80000000u) : x; }

}  // namespace machine
}  // namespace tw

#define __builtin_fmin(a, b) ::tw_lesser<double>(a, b)
#define __builtin_fminf(a, b) ::tw_lesser<float>(a, b)
#define __builtin_fmax(a, b) ::tw_greater<double>(a, b)
#define __builtin_fmaxf(a, b) ::tw_greater<float>(a, b)
#define __builtin_amdgcn_fmed3f(a, b, c) ::tw::machine::middle(a, b, c)
#define __builtin_amdgcn_cvt_f32_fp8(word, byte) ::tw::machine::float_of_eight<3>(uint32_t(word), byte)
#define __builtin_amdgcn_cvt_f32_bf8(word, byte) ::tw::machine::float_of_eight<2>(uint32_t(word), byte)
#define __builtin_amdgcn_cvt_pk_fp8_f32(a, b, old, high) ::tw::machine::eights_of_floats<3>(a, b, old, high, ::TwSite())
#define __builtin_amdgcn_cvt_pk_bf8_f32(a, b, old, high) ::tw::machine::eights_of_floats<2>(a, b, old, high, ::TwSite())
#define __builtin_amdgcn_perm(high, low, selector) ::tw::machine::perm(high, low, selector)
#define __builtin_amdgcn_sdot4(a, b, sum, clamp) ::tw::machine::sudot4(true, a, true, b, sum)
#define __builtin_amdgcn_sudot4(signed_a, a, signed_b, b, sum, clamp) ::tw::machine::sudot4(signed_a, a, signed_b, b, sum)
#define __builtin_amdgcn_udot4(a, b, sum, clamp) ::tw::machine::dot4<uint8_t, uint8_t>(a, b, sum)
#define __builtin_amdgcn_exp2f(x) ::tw::machine::flush(::exp2f(::tw::machine::flush(x)))
#define __builtin_amdgcn_logf(x) ::tw::machine::flush(::log2f(::tw::machine::flush(x)))
#define __builtin_amdgcn_sinf(turns) float(::sin(double(turns) * 6.283185307179586))
#define __builtin_amdgcn_cosf(turns) float(::cos(double(turns) * 6.283185307179586))
#define __builtin_amdgcn_rcpf(x) (1.0f / (x))
#define __builtin_amdgcn_rsqf(x) float(1.0 / ::sqrt(double(x)))
