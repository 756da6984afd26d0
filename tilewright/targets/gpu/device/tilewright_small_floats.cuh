// convert<To>(value) and arithmetic of small floats: plain C++, for the device and for the emulator.
//
// Each has four functions of its own: to_float (exact), rounded<To> (to a small float, one rounding to nearest even),
// truncated<To> (a float to an integer, saturating), and arithmetic of half and bfloat16.
#pragma once

namespace tw {

template <class To, class From> TW_DEVICE To convert(From x) {
  if constexpr (same_type<To, From>::value) {
    return x;
  } else if constexpr (is_small_float<To>::value) {
    return rounded<To>(x);
  } else if constexpr (is_small_float<From>::value) {
    return convert<To>(to_float(x));                               // exact, so the second conversion rounds alone
  } else if constexpr (is_wide_float<From>::value && same_type<To, bool>::value) {
    return x != From(0);
  } else if constexpr (is_wide_float<From>::value && !is_wide_float<To>::value) {
    return truncated<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// ---- arithmetic of small floats: each operation rounds to its own type --------------------------------------------------
// Twice the mantissa and two bits more than the type has are enough for a float's rounding to change nothing.
#define TW_COMPARISONS(T)                                                                                        \
  TW_DEVICE bool operator==(T a, T b) { return to_float(a) == to_float(b); }                                     \
  TW_DEVICE bool operator!=(T a, T b) { return to_float(a) != to_float(b); }                                     \
  TW_DEVICE bool operator<(T a, T b) { return to_float(a) < to_float(b); }                                       \
  TW_DEVICE bool operator<=(T a, T b) { return to_float(a) <= to_float(b); }                                     \
  TW_DEVICE bool operator>(T a, T b) { return to_float(a) > to_float(b); }                                       \
  TW_DEVICE bool operator>=(T a, T b) { return to_float(a) >= to_float(b); }
// The product of two is exact in a double, and its sum with a third is rounded to odd: the rounding behind it is the only one.
template <class T> TW_DEVICE T fused(T a, T b, T c) {
  const double product = double(to_float(a)) * double(to_float(b)), added = double(to_float(c)), sum = product + added;
  const double back = sum - product, lost = (product - (sum - back)) + (added - back);
  const uint64_t bits = bit_cast<uint64_t>(sum);
  const bool moves = (lost < 0.0 || lost > 0.0) && (bits & 1) == 0;
  return convert<T>(bit_cast<double>(moves ? (lost > 0.0) == (sum > 0.0) ? bits + 1 : bits - 1 : bits));
}
#define TW_ARITHMETIC(T)                                                                                         \
  TW_DEVICE T fma(T a, T b, T c) { return fused(a, b, c); }                                                      \
  TW_DEVICE T operator+(T a, T b) { return convert<T>(to_float(a) + to_float(b)); }                              \
  TW_DEVICE T operator-(T a, T b) { return convert<T>(to_float(a) - to_float(b)); }                              \
  TW_DEVICE T operator*(T a, T b) { return convert<T>(to_float(a) * to_float(b)); }                              \
  TW_DEVICE T operator/(T a, T b) { return convert<T>(to_float(a) / to_float(b)); }                              \
  TW_DEVICE T operator-(T a) { return convert<T>(-to_float(a)); }
TW_COMPARISONS(half)
TW_COMPARISONS(bfloat16)
TW_COMPARISONS(tfloat32)
TW_ARITHMETIC(tfloat32)
#define TW_FORMAT(NAME, ...) TW_COMPARISONS(NAME) TW_ARITHMETIC(NAME)
TW_FORMATS(TW_FORMAT)
#undef TW_FORMAT

}  // namespace tw
