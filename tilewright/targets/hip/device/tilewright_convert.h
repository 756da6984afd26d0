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
// Eight bits in few instructions.  A float that has the code's exponent and mantissa where it has its own is the value times a power of two,
// subnormal numbers included; a half has an exponent as long as e5m2's.  Where the machine converts by itself, one instruction does.
template <int MANTISSA> TW_DEVICE float spread(uint32_t code, float power, bool none) {
  const float value = bits_float((code & 0x7Fu) << (23 - MANTISSA)) * power;
  return bits_float((none ? 0x7FC00000u : float_bits(value)) | (code & 0x80u) << 24);
}
template <class FORMAT> struct Codes {
  TW_DEVICE static float decode(uint32_t code) { return FORMAT::decode(code); }
  TW_DEVICE static uint32_t encode(float x) { return FORMAT::encode(x); }
};
typedef SmallFloat<4, 3, 7, ONES_ARE_NAN> E4m3;
typedef SmallFloat<5, 2, 15, LARGEST_EXPONENT> E5m2;
typedef SmallFloat<4, 3, 8, MINUS_ZERO_IS_NAN> E4m3Fnuz;
typedef SmallFloat<5, 2, 16, MINUS_ZERO_IS_NAN> E5m2Fnuz;
#define TW_DECODED(FORMAT, VALUE) template <> struct Codes<FORMAT> : FORMAT { TW_DEVICE static float decode(uint32_t code) { return VALUE; } };
// The machine rounds to nearest even, too; what it makes of numbers beyond the largest and of what is no number is not asked.
#define TW_CONVERTED(FORMAT, KIND, LARGEST, NO_NUMBER)                                                               \
  template <> struct Codes<FORMAT> {                                                                                 \
    TW_DEVICE static float decode(uint32_t code) { return __builtin_amdgcn_cvt_f32_##KIND(int32_t(code), 0); }       \
    TW_DEVICE static uint32_t encode(float x) {                                                                      \
      const uint32_t sign = float_bits(x) >> 24 & 0x80u;                                                             \
      const float near = __builtin_amdgcn_fmed3f(x, -LARGEST, LARGEST);                                              \
      const uint32_t none = NO_NUMBER, code = uint32_t(__builtin_amdgcn_cvt_pk_##KIND##_f32(near, near, 0, false)) & 0xFFu; \
      return x - x == 0.0f ? code : none;                                                                            \
    }                                                                                                                \
  };
#if defined(TW_GFX950) || defined(TW_GFX1201)
TW_CONVERTED(E4m3, fp8, 448.0f, 0x7Fu | sign)
TW_CONVERTED(E5m2, bf8, 57344.0f, (x != x ? 0x7Fu : 0x7Cu) | sign)
#else
TW_DECODED(E4m3, spread<3>(code, 0x1p120f, (code & 0x7Fu) == 0x7Fu))
TW_DECODED(E5m2, machine::float_of_half(uint16_t(code << 8)))
#endif
#if defined(TW_GFX942)
TW_CONVERTED(E4m3Fnuz, fp8, 240.0f, (void(sign), 0x80u))
TW_CONVERTED(E5m2Fnuz, bf8, 57344.0f, (void(sign), 0x80u))
#else
TW_DECODED(E4m3Fnuz, spread<3>(code, 0x1p119f, code == 0x80u))
TW_DECODED(E5m2Fnuz, spread<2>(code, 0x1p111f, code == 0x80u))
#endif
#undef TW_CONVERTED
#undef TW_DECODED
#define TW_FORMAT(NAME, ...) TW_DEVICE float to_float(NAME x) { return Codes<SmallFloat<__VA_ARGS__>>::decode(x.bits); }
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT

// ---- to float, rounding to odd: a second rounding to fewer bits is then the only one ------------------------------------
TW_DEVICE float odd(double x) {
  const float y = float(x);
  const bool same = double(y) == x || x != x || x - x != 0.0;
  const bool beyond = __builtin_fabs(double(y)) > __builtin_fabs(x);   // rounding went away from zero: one step back
  const uint32_t bits = float_bits(y), next = (bits - uint32_t(beyond)) | 1u;
  return bits_float(same ? bits : next);
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
#ifdef TW_BFLOAT16_OF_FLOAT
TW_DEVICE void from_float(bfloat16& to, float x) { to.bits = TW_BFLOAT16_OF_FLOAT(x); }
#else
TW_DEVICE void from_float(bfloat16& to, float x) {
  const uint32_t bits = float_bits(x), unordered = bits | 0x7FFF0000u, rounded = bits + 0x7FFFu + (bits >> 16 & 1u);
  to.bits = uint16_t((x != x ? unordered : rounded) >> 16);
}
#endif
TW_DEVICE void from_float(tfloat32& to, float x) {
  const uint32_t bits = float_bits(x);
  to.value = x - x != 0.0f ? x : bits_float((bits + 0xFFFu + (bits >> 13 & 1u)) & ~0x1FFFu);
}
#define TW_FORMAT(NAME, ...) TW_DEVICE void from_float(NAME& to, float x) { to.bits = uint8_t(Codes<SmallFloat<__VA_ARGS__>>::encode(x)); }
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT

// ---- what convert asks for; choices are of values that are there: what is worked out on one side is a branch ------------------------------------------------------------------------------------------
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
  const To inside = To(x), above = x >= limit ? largest : inside;
  const To below = x <= (is_signed ? -limit : From(-1)) ? least : above;
  return x != x ? To(0) : below;
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
TW_DEVICE bfloat16 fma(bfloat16 a, bfloat16 b, bfloat16 c) { return fused(a, b, c); }
TW_DEVICE bfloat16 operator-(bfloat16 a) { return bfloat16{uint16_t(a.bits ^ 0x8000u)}; }
TW_DEVICE bfloat16 operator+(bfloat16 a, bfloat16 b) { return convert<bfloat16>(to_float(a) + to_float(b)); }
TW_DEVICE bfloat16 operator-(bfloat16 a, bfloat16 b) { return convert<bfloat16>(to_float(a) - to_float(b)); }
TW_DEVICE bfloat16 operator*(bfloat16 a, bfloat16 b) { return convert<bfloat16>(to_float(a) * to_float(b)); }
TW_DEVICE bfloat16 operator/(bfloat16 a, bfloat16 b) { return convert<bfloat16>(double(to_float(a)) / double(to_float(b))); }

}  // namespace tw
