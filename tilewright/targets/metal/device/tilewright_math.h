// Functions of numbers, precise: subnormal halves and NaN are kept whatever the compiler is told.
namespace tw {

template <class T> TW_DEVICE T minimum(T a, T b) { return b < a || a != a ? b : a; }
template <class T> TW_DEVICE T maximum(T a, T b) { return a < b || a != a ? b : a; }
template <class T> TW_DEVICE T floordiv(T a, T b) {
  if (b == 0) return 0;
  if (T(-1) < T(0) && b == T(-1)) return T(0ul - uint64_t(a));   // the least number divided by it has no place
  const T quotient = a / b;
  return quotient - T(a % b != 0 && (a < 0) != (b < 0));
}
template <class T> TW_DEVICE T floormod(T a, T b) {
  if (b == 0 || (T(-1) < T(0) && b == T(-1))) return 0;
  const T rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

TW_DEVICE float exp(float x) { return precise::exp(x); }
TW_DEVICE float exp2(float x) { return precise::exp2(x); }
TW_DEVICE float fast_exp2(float x) { return fast::exp2(x); }
TW_DEVICE float exp10(float x) { return precise::exp10(x); }
TW_DEVICE float log(float x) { return precise::log(x); }
TW_DEVICE float log2(float x) { return precise::log2(x); }
TW_DEVICE float log10(float x) { return precise::log10(x); }
TW_DEVICE float sqrt(float x) { return precise::sqrt(x); }
TW_DEVICE float rsqrt(float x) { return precise::rsqrt(x); }
TW_DEVICE float sin(float x) { return precise::sin(x); }
TW_DEVICE float cos(float x) { return precise::cos(x); }
TW_DEVICE float tan(float x) { return precise::tan(x); }
TW_DEVICE float sinh(float x) { return precise::sinh(x); }
TW_DEVICE float cosh(float x) { return precise::cosh(x); }
TW_DEVICE float tanh(float x) { return precise::tanh(x); }
TW_DEVICE float atan(float x) { return precise::atan(x); }
TW_DEVICE float atan2(float y, float x) { return precise::atan2(y, x); }
TW_DEVICE float pow(float x, float y) { return precise::pow(x, y); }
TW_DEVICE float fmod(float x, float y) { return precise::fmod(x, y); }
TW_DEVICE float floor(float x) { return precise::floor(x); }
TW_DEVICE float ceil(float x) { return precise::ceil(x); }
TW_DEVICE float trunc(float x) { return precise::trunc(x); }
TW_DEVICE float round(float x) { return precise::rint(x); }   // halves to even numbers
TW_DEVICE float fma(float a, float b, float c) { return metal::fma(a, b, c); }
TW_DEVICE half fma(half a, half b, half c) { return metal::fma(a, b, c); }
TW_DEVICE float abs(float x) { return bits_float(float_bits(x) & 0x7FFFFFFFu); }
TW_DEVICE int32_t abs(int32_t x) { return x < 0 ? int32_t(0u - uint32_t(x)) : x; }
TW_DEVICE int64_t abs(int64_t x) { return x < 0 ? int64_t(0ul - uint64_t(x)) : x; }
TW_DEVICE bool isnan(float x) { return (float_bits(x) & 0x7FFFFFFFu) > 0x7F800000u; }
TW_DEVICE bool isinf(float x) { return (float_bits(x) & 0x7FFFFFFFu) == 0x7F800000u; }
TW_DEVICE bool isfinite(float x) { return (float_bits(x) & 0x7FFFFFFFu) < 0x7F800000u; }
// log(1 + x), also where 1 + x would round x away.
TW_DEVICE float log1p(float x) {
  const float u = 1.0f + x;
  if (u == 1.0f) return x;
  return float_bits(u) == 0x7F800000u ? u : precise::log(u) * (x / (u - 1.0f));
}
// Polynomials fitted to erf(x) / x in x * x up to 1, and to log(1 - erf(x)) from there to 4: 3 units in the last place at most.
TW_DEVICE float erf(float x) {
  const float a = abs(x), t = a * a;
  if (a <= 1.0f) {
    float p = -9.673590754760213e-06f;
    p = metal::fma(p, t, 0.00011268253894644489f);
    p = metal::fma(p, t, -0.0008484396553867472f);
    p = metal::fma(p, t, 0.00522105341300525f);
    p = metal::fma(p, t, -0.026865438310770602f);
    p = metal::fma(p, t, 0.11283782622068339f);
    p = metal::fma(p, t, -0.3761263847599214f);
    p = metal::fma(p, t, 1.1283791670623609f);
    return x * p;
  }
  float q = -6.582857462643117e-08f;
  const float b = a < 4.0f ? a : 4.0f;
  q = metal::fma(q, b, 3.0952045559001653e-06f);
  q = metal::fma(q, b, -6.0068795051553105e-05f);
  q = metal::fma(q, b, 0.0006733375457810822f);
  q = metal::fma(q, b, -0.005021044745867921f);
  q = metal::fma(q, b, 0.026999497091827588f);
  q = metal::fma(q, b, -0.11090741700355104f);
  q = metal::fma(q, b, -0.6310888680290471f);
  q = metal::fma(q, b, -1.1306044693930166f);
  q = metal::fma(q, b, 0.00040050050229467615f);
  const float magnitude = 1.0f - precise::exp(q);
  return isnan(x) ? x : x < 0.0f ? -magnitude : magnitude;
}

TW_DEVICE int32_t popcount(uint32_t x) { return int32_t(metal::popcount(x)); }
TW_DEVICE int32_t popcount(uint64_t x) { return int32_t(metal::popcount(uint32_t(x)) + metal::popcount(uint32_t(x >> 32))); }

// accumulator + the four byte products of a and b; the suffix names the signedness of a and of b.
TW_DEVICE int32_t byte_of(uint32_t word, int i, bool is_signed) {
  const uint32_t byte = word >> (8 * i) & 0xFFu;
  return is_signed ? int32_t(int8_t(byte)) : int32_t(byte);
}
TW_DEVICE int32_t dp4a(uint32_t a, uint32_t b, int32_t accumulator, bool a_signed, bool b_signed) {
  uint32_t sum = uint32_t(accumulator);   // which wraps
  for (int i = 0; i < 4; ++i) sum += uint32_t(byte_of(a, i, a_signed) * byte_of(b, i, b_signed));
  return int32_t(sum);
}
TW_DEVICE int32_t dp4a_s8s8(uint32_t a, uint32_t b, int32_t accumulator) { return dp4a(a, b, accumulator, true, true); }
TW_DEVICE int32_t dp4a_u8s8(uint32_t a, uint32_t b, int32_t accumulator) { return dp4a(a, b, accumulator, false, true); }
TW_DEVICE uint32_t dp4a_u8u8(uint32_t a, uint32_t b, uint32_t accumulator) { return uint32_t(dp4a(a, b, int32_t(accumulator), false, false)); }
template <int LUT> TW_DEVICE uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t found = 0;
  for (int row = 0; row < 8; ++row)
    if (LUT >> row & 1) found |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
  return found;
}

}  // namespace tw
