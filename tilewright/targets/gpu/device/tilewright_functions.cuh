// Functions of numbers: Python's integer division, minimum and maximum that ignore NaN, and the library's functions.
//
// Plain C++ over the functions of C's mathematical library, for the device and for the emulator; each has fast_exp2, fast_log2 and fast_rcp.
#pragma once

#ifndef TW_C
#define TW_C(function) ::function   // a function of C's library; targets without one define theirs before
#endif

namespace tw {

// Quotient rounded towards minus infinity and its remainder, which has the sign of the divisor.  The least number by -1 wraps to
// itself, and by 0 both are 0, as NumPy says: C++ leaves both open, and processors stop there.
template <class T> TW_DEVICE T floordiv(T a, T b) {
  if (b == 0) return 0;
  if (T(-1) < T(0) && b == T(-1)) return T(0ull - (unsigned long long)a);
  const T quotient = a / b;
  return T(-1) < T(0) && a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}
template <class T> TW_DEVICE T floormod(T a, T b) {
  if (b == 0 || (T(-1) < T(0) && b == T(-1))) return 0;
  const T remainder = a % b;
  return T(-1) < T(0) && remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

template <class T> TW_DEVICE T minimum(T a, T b) { return a != a ? b : b != b ? a : b < a ? b : a; }
template <class T> TW_DEVICE T maximum(T a, T b) { return a != a ? b : b != b ? a : a < b ? b : a; }
TW_DEVICE float minimum(float a, float b) { return TW_C(fminf)(a, b); }
TW_DEVICE float maximum(float a, float b) { return TW_C(fmaxf)(a, b); }
TW_DEVICE double minimum(double a, double b) { return TW_C(fmin)(a, b); }
TW_DEVICE double maximum(double a, double b) { return TW_C(fmax)(a, b); }

#define TW_FUNCTION(NAME, FLOAT, DOUBLE)                  \
  TW_DEVICE float NAME(float x) { return FLOAT(x); }      \
  TW_DEVICE double NAME(double x) { return DOUBLE(x); }
TW_FUNCTION(exp, TW_C(expf), TW_C(exp))
TW_FUNCTION(exp2, TW_C(exp2f), TW_C(exp2))
TW_FUNCTION(log, TW_C(logf), TW_C(log))
TW_FUNCTION(log2, TW_C(log2f), TW_C(log2))
TW_FUNCTION(log10, TW_C(log10f), TW_C(log10))
TW_FUNCTION(log1p, TW_C(log1pf), TW_C(log1p))
TW_FUNCTION(sqrt, TW_C(sqrtf), TW_C(sqrt))
TW_FUNCTION(sin, TW_C(sinf), TW_C(sin))
TW_FUNCTION(cos, TW_C(cosf), TW_C(cos))
TW_FUNCTION(tan, TW_C(tanf), TW_C(tan))
TW_FUNCTION(sinh, TW_C(sinhf), TW_C(sinh))
TW_FUNCTION(cosh, TW_C(coshf), TW_C(cosh))
TW_FUNCTION(tanh, TW_C(tanhf), TW_C(tanh))
TW_FUNCTION(atan, TW_C(atanf), TW_C(atan))
TW_FUNCTION(erf, TW_C(erff), TW_C(erf))
TW_FUNCTION(floor, TW_C(floorf), TW_C(floor))
TW_FUNCTION(ceil, TW_C(ceilf), TW_C(ceil))
TW_FUNCTION(trunc, TW_C(truncf), TW_C(trunc))
TW_FUNCTION(round, TW_C(rintf), TW_C(rint))
TW_FUNCTION(abs, TW_C(fabsf), TW_C(fabs))
#undef TW_FUNCTION
TW_DEVICE float pow(float x, float y) { return TW_C(powf)(x, y); }
TW_DEVICE double pow(double x, double y) { return TW_C(pow)(x, y); }
TW_DEVICE float atan2(float y, float x) { return TW_C(atan2f)(y, x); }
TW_DEVICE double atan2(double y, double x) { return TW_C(atan2)(y, x); }
TW_DEVICE float fmod(float x, float y) { return TW_C(fmodf)(x, y); }
TW_DEVICE double fmod(double x, double y) { return TW_C(fmod)(x, y); }
TW_DEVICE float fma(float a, float b, float c) { return TW_C(fmaf)(a, b, c); }
TW_DEVICE double fma(double a, double b, double c) { return TW_C(fma)(a, b, c); }
TW_DEVICE bool isnan(float x) { return x != x; }
TW_DEVICE bool isnan(double x) { return x != x; }
TW_DEVICE bool isinf(float x) { return TW_C(fabsf)(x) == bits_float(0x7F800000u); }
TW_DEVICE bool isinf(double x) { return x == x && x - x != 0.0; }
TW_DEVICE bool isfinite(float x) { return x - x == 0.0f; }
TW_DEVICE bool isfinite(double x) { return x - x == 0.0; }
TW_DEVICE int32_t abs(int32_t x) { return x < 0 ? int32_t(0u - uint32_t(x)) : x; }
TW_DEVICE int64_t abs(int64_t x) { return x < 0 ? int64_t(0ull - uint64_t(x)) : x; }

TW_DEVICE double fast_exp2(double x) { return TW_C(exp2)(x); }
TW_DEVICE float fast_exp(float x) { return fast_exp2(x * 1.4426950408889634f); }
TW_DEVICE float fast_log(float x) { return fast_log2(x) * 0.6931471805599453f; }
TW_DEVICE float fast_div(float x, float y) { return x * fast_rcp(y); }

}  // namespace tw
