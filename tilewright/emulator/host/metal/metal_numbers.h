// Scalar types (2.1): half and bfloat, by integer arithmetic on the bits of a float.
#pragma once

template <class To, class From> inline To as_type(From x) {   // 2.20
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of one size");
  To to;
  memcpy(&to, &x, sizeof(To));
  return to;
}

namespace tw_host {
// The nearest code of 5 (8) exponent and 10 (7) mantissa bits to a float, ties to even.
inline uint16_t half_of(float x) {
  const uint32_t bits = as_type<uint32_t>(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return uint16_t(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return uint16_t(sign | 0x7C00u);            // 65520 and more
  if (magnitude < 0x33000001u) return uint16_t(sign);                       // 2^-25 and less
  const int exponent = int(magnitude >> 23) - 127;
  const uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
  const int drop = exponent < -14 ? -1 - exponent : 13;
  const uint32_t kept = significand >> drop, rest = significand & ((1u << drop) - 1), middle = 1u << (drop - 1);
  const uint32_t rounded = kept + (rest > middle || (rest == middle && (kept & 1)));
  return uint16_t(sign | (exponent < -14 ? rounded : rounded + (uint32_t(exponent + 14) << 10)));
}
inline float half_to(uint16_t code) {
  const uint32_t sign = uint32_t(code & 0x8000u) << 16, field = code >> 10 & 31u, fraction = code & 0x3FFu;
  if (field == 31) return as_type<float>(sign | 0x7F800000u | fraction << 13);
  const float magnitude = field ? as_type<float>((field + 112) << 23 | fraction << 13) : float(fraction) * 5.9604644775390625e-8f;
  return as_type<float>(as_type<uint32_t>(magnitude) | sign);
}
inline uint16_t bfloat_of(float x) {
  const uint32_t bits = as_type<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return uint16_t(bits >> 16 | 0x40u);
  return uint16_t((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
}  // namespace tw_host

// Each operation rounds to the type itself: a float has bits enough for its own rounding to change nothing.
#define TW_NUMBER(NAME, OF, TO)                                                           \
  struct NAME {                                                                           \
    uint16_t bits;                                                                        \
    NAME() = default;                                                                     \
    NAME(const NAME& other) : bits(other.bits) {} /* a scalar's accesses, each followed */ \
    NAME& operator=(const NAME& other) { bits = other.bits; return *this; }               \
    explicit NAME(float x) : bits(OF) {}                                                  \
    explicit operator float() const { return TO; }                                        \
  };                                                                                      \
  inline NAME operator+(NAME a, NAME b) { return NAME(float(a) + float(b)); }             \
  inline NAME operator-(NAME a, NAME b) { return NAME(float(a) - float(b)); }             \
  inline NAME operator*(NAME a, NAME b) { return NAME(float(a) * float(b)); }             \
  inline NAME operator/(NAME a, NAME b) { return NAME(float(a) / float(b)); }             \
  inline NAME operator-(NAME a) { a.bits ^= 0x8000u; return a; }                          \
  inline bool operator==(NAME a, NAME b) { return float(a) == float(b); }                 \
  inline bool operator!=(NAME a, NAME b) { return float(a) != float(b); }                 \
  inline bool operator<(NAME a, NAME b) { return float(a) < float(b); }                   \
  inline bool operator<=(NAME a, NAME b) { return float(a) <= float(b); }                 \
  inline bool operator>(NAME a, NAME b) { return float(a) > float(b); }                   \
  inline bool operator>=(NAME a, NAME b) { return float(a) >= float(b); }
TW_NUMBER(half, tw_host::half_of(x), tw_host::half_to(bits))
TW_NUMBER(bfloat, tw_host::bfloat_of(x), as_type<float>(uint32_t(bits) << 16))
#undef TW_NUMBER
