// Mathematical functions (6.5), integer functions (6.6) and comparisons of the library, from this machine's.
#pragma once

extern "C" {
float expf(float); float exp2f(float); float logf(float); float log2f(float); float log10f(float); float sqrtf(float); float sinf(float);
float cosf(float); float tanf(float); float sinhf(float); float coshf(float); float tanhf(float); float atanf(float); float floorf(float);
float ceilf(float); float truncf(float); float rintf(float); float atan2f(float, float); float powf(float, float); float fmodf(float, float);
float ldexpf(float, int); double pow(double, double); double sqrt(double); double fma(double, double, double); float fmaf(float, float, float);
}

namespace metal {

inline int min(int a, int b) { return b < a ? b : a; }
inline uint min(uint a, uint b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline uint max(uint a, uint b) { return a < b ? b : a; }
inline ulong clz(ulong x) { return x ? ulong(__builtin_clzl(x)) : 64; }
inline uint popcount(uint x) { return uint(__builtin_popcount(x)); }
inline float ldexp(float x, int k) { return ::ldexpf(x, k); }
inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
// A product of two halves is exact in a double, and so is the sum but for a last place that no half sees.
inline half fma(half a, half b, half c) {
  const double sum = double(float(a)) * double(float(b)) + double(float(c));
  const float near = float(sum);                             // rounded to odd, so that rounding again is rounding once
  const uint32_t bits = as_type<uint32_t>(near);
  const bool above = double(near) > sum, exact = double(near) == sum || sum != sum;
  const float toward = above != (bits >> 31) ? as_type<float>(bits - 1) : near;
  return half(exact ? near : as_type<float>(as_type<uint32_t>(toward) | 1u));
}

namespace precise {
inline float exp(float x) { return ::expf(x); }
inline float exp2(float x) { return ::exp2f(x); }
inline float exp10(float x) { return float(::pow(10.0, double(x))); }
inline float log(float x) { return ::logf(x); }
inline float log2(float x) { return ::log2f(x); }
inline float log10(float x) { return ::log10f(x); }
inline float sqrt(float x) { return ::sqrtf(x); }
inline float rsqrt(float x) { return float(1.0 / ::sqrt(double(x))); }
inline float sin(float x) { return ::sinf(x); }
inline float cos(float x) { return ::cosf(x); }
inline float tan(float x) { return ::tanf(x); }
inline float sinh(float x) { return ::sinhf(x); }
inline float cosh(float x) { return ::coshf(x); }
inline float tanh(float x) { return ::tanhf(x); }
inline float atan(float x) { return ::atanf(x); }
inline float atan2(float y, float x) { return ::atan2f(y, x); }
inline float pow(float x, float y) { return ::powf(x, y); }
inline float fmod(float x, float y) { return ::fmodf(x, y); }
inline float floor(float x) { return ::floorf(x); }
inline float ceil(float x) { return ::ceilf(x); }
inline float trunc(float x) { return ::truncf(x); }
inline float rint(float x) { return ::rintf(x); }
}  // namespace precise

namespace fast {
// Subnormal numbers are zeros there.
inline float exp2(float x) {
  const float y = ::exp2f(x);
  return y < 1.17549435e-38f ? 0.0f : y;
}
}  // namespace fast

}  // namespace metal
