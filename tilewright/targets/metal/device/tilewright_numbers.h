// Number types that Metal has no words for, and conversions as the intermediate representation defines them.
//
// Every conversion rounds once, to nearest even; what lies beyond the small floats is said in tilewright_formats.cuh.  From a float to an
// integer it truncates and saturates, NaN gives 0.  The device takes subnormal floats for zeros.
#ifndef TW_DEVICE
#define TW_DEVICE inline
#endif
// Types of accesses say nothing of their places: views and vectors reach the same bytes by other types.
#define TW_ANY __attribute__((may_alias))
#include "tilewright_formats.cuh"

namespace tw {

// Codes are types of their own, so that functions tell them apart, and scalars, which may be copied between memories.
#define TW_FORMAT(NAME, ...) enum class NAME : uint8_t {};
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT
enum class tfloat32 : uint32_t {};     // the bits of a float whose 13 low ones nobody uses

TW_DEVICE uint32_t float_bits(float x) { return as_type<uint32_t>(x); }
TW_DEVICE float bits_float(uint32_t x) { return as_type<float>(x); }

#define TW_FORMAT(NAME, ...)                                                                             \
  TW_DEVICE float to_float(NAME x) { return SmallFloat<__VA_ARGS__>::decode(uint32_t(x)); }              \
  TW_DEVICE void from_float(thread NAME& to, float x) { to = NAME(SmallFloat<__VA_ARGS__>::encode(x)); }
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT
TW_DEVICE float to_float(tfloat32 x) { return bits_float(uint32_t(x)); }
TW_DEVICE float to_float(half x) { return float(x); }
TW_DEVICE float to_float(bfloat x) { return float(x); }
TW_DEVICE float to_float(float x) { return x; }

TW_DEVICE void from_float(thread tfloat32& to, float x) {
  const uint32_t bits = float_bits(x);
  const bool finite = (bits & 0x7F800000u) != 0x7F800000u;
  to = tfloat32(finite ? (bits + 0xFFFu + (bits >> 13 & 1u)) & ~0x1FFFu : bits);
}
TW_DEVICE void from_float(thread half& to, float x) { to = half(x); }
TW_DEVICE void from_float(thread bfloat& to, float x) { to = bfloat(x); }

// ---- integers to floats of 24 bits, rounded to odd: a second rounding to fewer bits is then the only one ----------------
template <class T> TW_DEVICE float to_float_odd(T x) { return to_float(float(x)); }
TW_DEVICE float to_float_odd(uint64_t x) {
  const int shift = metal::max(0, 40 - int(metal::clz(x)));
  const uint64_t kept = x >> shift, lost = x ^ (kept << shift);
  return metal::ldexp(float(uint32_t(kept) | uint32_t(lost != 0)), shift);
}
TW_DEVICE float to_float_odd(int64_t x) {
  const float magnitude = to_float_odd(x < 0 ? 0 - uint64_t(x) : uint64_t(x));
  return x < 0 ? -magnitude : magnitude;
}
TW_DEVICE float to_float_odd(uint32_t x) { return to_float_odd(uint64_t(x)); }
TW_DEVICE float to_float_odd(int32_t x) { return to_float_odd(int64_t(x)); }

// ---- convert<To>(x) -----------------------------------------------------------------------------------------------------
enum Kind { INTEGER, SINGLE, SMALL };
template <class T> struct kind_of { static constant constexpr Kind value = INTEGER; };
template <> struct kind_of<float> { static constant constexpr Kind value = SINGLE; };
template <> struct kind_of<half> { static constant constexpr Kind value = SMALL; };
template <> struct kind_of<bfloat> { static constant constexpr Kind value = SMALL; };
#define TW_FORMAT(NAME, ...) template <> struct kind_of<NAME> { static constant constexpr Kind value = SMALL; };
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT
template <> struct kind_of<tfloat32> { static constant constexpr Kind value = SMALL; };

// The least and the first float beyond an integer type's numbers, and those numbers themselves.
template <class T> TW_DEVICE T truncated(float x, float low, float end, T least, T most) {
  return x != x ? T(0) : x <= low ? least : x >= end ? most : T(x);
}
TW_DEVICE void to_integer(thread bool& to, float x) { to = x != 0.0f; }
TW_DEVICE void to_integer(thread int8_t& to, float x) { to = truncated<int8_t>(x, -128.0f, 128.0f, -128, 127); }
TW_DEVICE void to_integer(thread uint8_t& to, float x) { to = truncated<uint8_t>(x, 0.0f, 256.0f, 0, 255); }
TW_DEVICE void to_integer(thread int16_t& to, float x) { to = truncated<int16_t>(x, -32768.0f, 32768.0f, -32768, 32767); }
TW_DEVICE void to_integer(thread uint16_t& to, float x) { to = truncated<uint16_t>(x, 0.0f, 65536.0f, 0, 65535); }
TW_DEVICE void to_integer(thread int32_t& to, float x) {
  to = truncated<int32_t>(x, -2147483648.0f, 2147483648.0f, -2147483647 - 1, 2147483647);
}
TW_DEVICE void to_integer(thread uint32_t& to, float x) { to = truncated<uint32_t>(x, 0.0f, 4294967296.0f, 0u, 0xFFFFFFFFu); }
TW_DEVICE void to_integer(thread int64_t& to, float x) {
  to = truncated<int64_t>(x, -9223372036854775808.0f, 9223372036854775808.0f, int64_t(1ul << 63), int64_t(~0ul >> 1));
}
TW_DEVICE void to_integer(thread uint64_t& to, float x) { to = truncated<uint64_t>(x, 0.0f, 18446744073709551616.0f, 0ul, ~0ul); }

template <class To, class From, Kind TO, Kind FROM> struct Conversion;
template <class To, class From> struct Conversion<To, From, INTEGER, INTEGER> { static To of(From x) { return To(x); } };
template <class To, class From> struct Conversion<To, From, INTEGER, SINGLE> {
  static To of(From x) { To to; to_integer(to, x); return to; }
};
template <class To, class From> struct Conversion<To, From, INTEGER, SMALL> {
  static To of(From x) { To to; to_integer(to, to_float(x)); return to; }
};
template <class To, class From> struct Conversion<To, From, SINGLE, INTEGER> { static To of(From x) { return To(x); } };
template <class To, class From> struct Conversion<To, From, SINGLE, SINGLE> { static To of(From x) { return x; } };
template <class To, class From> struct Conversion<To, From, SINGLE, SMALL> { static To of(From x) { return to_float(x); } };
template <class To, class From> struct Conversion<To, From, SMALL, INTEGER> {
  static To of(From x) { To to; from_float(to, to_float_odd(x)); return to; }
};
template <class To, class From> struct Conversion<To, From, SMALL, SINGLE> {
  static To of(From x) { To to; from_float(to, x); return to; }
};
template <class To, class From> struct Conversion<To, From, SMALL, SMALL> {
  static To of(From x) { To to; from_float(to, to_float(x)); return to; }
};
template <class T> struct Conversion<T, T, SMALL, SMALL> { static T of(T x) { return x; } };
template <class To, class From> TW_DEVICE To convert(From x) {
  return Conversion<To, From, kind_of<To>::value, kind_of<From>::value>::of(x);
}

// ---- arithmetic of the small floats that Metal does not have: each operation rounds to its own type -----------------------
// The product of two is exact in a float, and its sum with a third is rounded to odd: the rounding behind it is the only one.
template <class T> TW_DEVICE T fma(T a, T b, T c) {
  const float product = to_float(a) * to_float(b), added = to_float(c), sum = metal::fma(to_float(a), to_float(b), added);
  const float back = sum - product, lost = (product - (sum - back)) + (added - back);
  const uint32_t bits = float_bits(sum);
  const bool moves = (lost < 0.0f || lost > 0.0f) && (bits & 1u) == 0;
  return convert<T>(bits_float(moves ? (lost > 0.0f) == (sum > 0.0f) ? bits + 1u : bits - 1u : bits));
}
#define TW_ARITHMETIC(T)                                                                    \
  TW_DEVICE T operator+(T a, T b) { return convert<T>(to_float(a) + to_float(b)); }         \
  TW_DEVICE T operator-(T a, T b) { return convert<T>(to_float(a) - to_float(b)); }         \
  TW_DEVICE T operator*(T a, T b) { return convert<T>(to_float(a) * to_float(b)); }         \
  TW_DEVICE T operator/(T a, T b) { return convert<T>(to_float(a) / to_float(b)); }         \
  TW_DEVICE T operator-(T a) { return convert<T>(-to_float(a)); }                           \
  TW_DEVICE bool operator==(T a, T b) { return to_float(a) == to_float(b); }                \
  TW_DEVICE bool operator!=(T a, T b) { return to_float(a) != to_float(b); }                \
  TW_DEVICE bool operator<(T a, T b) { return to_float(a) < to_float(b); }                  \
  TW_DEVICE bool operator<=(T a, T b) { return to_float(a) <= to_float(b); }                \
  TW_DEVICE bool operator>(T a, T b) { return to_float(a) > to_float(b); }                  \
  TW_DEVICE bool operator>=(T a, T b) { return to_float(a) >= to_float(b); }
#define TW_FORMAT(NAME, ...) TW_ARITHMETIC(NAME)
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT
TW_ARITHMETIC(tfloat32)
#undef TW_ARITHMETIC

}  // namespace tw
