// Number types that Metal has no words for, and conversions as the intermediate representation defines them.
//
// Every conversion rounds once, to nearest even.  To a float without infinities it saturates, NaN stays NaN.  From a float to an
// integer it truncates and saturates, NaN gives 0.  All of it is done with integers: the device takes subnormal floats for zeros.
#define TW_DEVICE inline

namespace tw {

// Codes are types of their own, so that functions tell them apart, and scalars, which may be copied between memories.
enum class float8_e4m3 : uint8_t {};
enum class float8_e5m2 : uint8_t {};
enum class float8_e8m0 : uint8_t {};   // a power of two: 2^(code - 127), 0xFF is NaN
enum class float4_e2m1 : uint8_t {};   // one code in the low four bits
enum class tfloat32 : uint32_t {};     // the bits of a float whose 13 low ones nobody uses

TW_DEVICE uint32_t float_bits(float x) { return as_type<uint32_t>(x); }
TW_DEVICE float bits_float(uint32_t x) { return as_type<float>(x); }

// ---- codes of a sign, exponent bits and MANTISSA bits ------------------------------------------------------------------
// A finite code without its sign as a float.
template <int MANTISSA, int BIAS> TW_DEVICE float small_to_float(uint32_t code) {
  const float subnormal = float(code) * bits_float(uint32_t(1 - BIAS - MANTISSA + 127) << 23);
  const float normal = bits_float((code << (23 - MANTISSA)) + (uint32_t(127 - BIAS) << 23));
  return code < (1u << MANTISSA) ? subnormal : normal;
}
// The code nearest to a float whose bits, without the sign, are `magnitude`; what is too large gives a code above those that there are.
template <int MANTISSA, int BIAS> TW_DEVICE uint32_t float_to_small(uint32_t magnitude) {
  const int exponent = int(magnitude >> 23) - 127;
  const bool subnormal = exponent < 1 - BIAS;
  const uint32_t significand = (magnitude & 0x7FFFFFu) | (magnitude >> 23 ? 0x800000u : 0u);
  const int shift = subnormal ? metal::min(24 - MANTISSA - BIAS - exponent, 25) : 23 - MANTISSA;
  const uint32_t kept = subnormal ? significand : magnitude;
  const uint32_t rounded = (kept + (1u << (shift - 1)) - 1u + (kept >> shift & 1u)) >> shift;
  return subnormal ? rounded : rounded - (uint32_t(127 - BIAS) << MANTISSA);
}

TW_DEVICE float to_float(float8_e4m3 x) {
  const uint32_t code = uint32_t(x) & 0x7Fu;
  const float magnitude = code == 0x7Fu ? bits_float(0x7FC00000u) : small_to_float<3, 7>(code);
  return bits_float(float_bits(magnitude) | (uint32_t(x) & 0x80u) << 24);
}
TW_DEVICE float to_float(float8_e5m2 x) {
  const uint32_t code = uint32_t(x) & 0x7Fu;
  const float special = bits_float(code == 0x7Cu ? 0x7F800000u : 0x7FC00000u);
  return bits_float(float_bits(code >= 0x7Cu ? special : small_to_float<2, 15>(code)) | (uint32_t(x) & 0x80u) << 24);
}
TW_DEVICE float to_float(float4_e2m1 x) {
  return bits_float(float_bits(small_to_float<1, 1>(uint32_t(x) & 7u)) | (uint32_t(x) & 8u) << 28);
}
TW_DEVICE float to_float(float8_e8m0 x) {
  return bits_float(uint32_t(x) == 0xFFu ? 0x7FC00000u : uint32_t(x) ? uint32_t(uint32_t(x)) << 23 : 0x00400000u);
}
TW_DEVICE float to_float(tfloat32 x) { return bits_float(uint32_t(x)); }
TW_DEVICE float to_float(half x) { return float(x); }
TW_DEVICE float to_float(bfloat x) { return float(x); }
TW_DEVICE float to_float(float x) { return x; }

TW_DEVICE void from_float(thread float8_e4m3& to, float x) {
  const uint32_t bits = float_bits(x), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t code = magnitude > 0x7F800000u ? 0x7Fu : metal::min(float_to_small<3, 7>(magnitude), 0x7Eu);
  to = float8_e4m3(code | (bits >> 24 & 0x80u));
}
TW_DEVICE void from_float(thread float8_e5m2& to, float x) {
  const uint32_t bits = float_bits(x), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t code = magnitude > 0x7F800000u ? 0x7Fu : metal::min(float_to_small<2, 15>(magnitude), 0x7Cu);
  to = float8_e5m2(code | (bits >> 24 & 0x80u));
}
TW_DEVICE void from_float(thread float4_e2m1& to, float x) {
  const uint32_t bits = float_bits(x), magnitude = bits & 0x7FFFFFFFu;
  to = float4_e2m1 (metal::min(float_to_small<1, 1>(magnitude), 7u) | (bits >> 28 & 8u));
}
TW_DEVICE void from_float(thread float8_e8m0& to, float x) {   // to the nearest power of two, ties to the even code
  const uint32_t magnitude = float_bits(x) & 0x7FFFFFFFu, code = magnitude >> 23, rest = magnitude & 0x7FFFFFu;
  const bool none = magnitude > 0x7F800000u || (magnitude && float_bits(x) >> 31);
  const uint32_t middle = code ? 0x400000u : 0x600000u;   // code 0 is 2^-127, a subnormal float
  const uint32_t rounded = code + (rest > middle || (rest == middle && (code & 1u)));
  to = float8_e8m0(none ? 0xFFu : metal::min(rounded, 0xFEu));
}
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
template <> struct kind_of<float8_e4m3> { static constant constexpr Kind value = SMALL; };
template <> struct kind_of<float8_e5m2> { static constant constexpr Kind value = SMALL; };
template <> struct kind_of<float8_e8m0> { static constant constexpr Kind value = SMALL; };
template <> struct kind_of<float4_e2m1> { static constant constexpr Kind value = SMALL; };
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
TW_ARITHMETIC(float8_e4m3)
TW_ARITHMETIC(float8_e5m2)
TW_ARITHMETIC(float8_e8m0)
TW_ARITHMETIC(float4_e2m1)
TW_ARITHMETIC(tfloat32)
#undef TW_ARITHMETIC

}  // namespace tw
