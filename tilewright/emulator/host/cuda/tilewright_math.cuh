// Functions of numbers, from this machine's mathematical library.
#pragma once

#define TW_LIBRARY(NAME) extern "C" double NAME(double); extern "C" float NAME##f(float);
TW_LIBRARY(exp) TW_LIBRARY(exp2) TW_LIBRARY(log) TW_LIBRARY(log2) TW_LIBRARY(log10) TW_LIBRARY(log1p) TW_LIBRARY(sqrt) TW_LIBRARY(sin) TW_LIBRARY(cos)
TW_LIBRARY(tan) TW_LIBRARY(sinh) TW_LIBRARY(cosh) TW_LIBRARY(tanh) TW_LIBRARY(atan) TW_LIBRARY(erf) TW_LIBRARY(floor) TW_LIBRARY(ceil)
TW_LIBRARY(trunc) TW_LIBRARY(rint) TW_LIBRARY(fabs)
#undef TW_LIBRARY
#define TW_LIBRARY(NAME) extern "C" double NAME(double, double); extern "C" float NAME##f(float, float);
TW_LIBRARY(pow) TW_LIBRARY(atan2) TW_LIBRARY(fmod) TW_LIBRARY(fmin) TW_LIBRARY(fmax)
#undef TW_LIBRARY
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);

namespace tw {

template <class T> TW_DEVICE T floordiv(T a, T b) {
  const T quotient = a / b;
  return T(-1) < T(0) && a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}
template <class T> TW_DEVICE T floormod(T a, T b) {
  const T remainder = a % b;
  return T(-1) < T(0) && remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

template <class T> TW_DEVICE T minimum(T a, T b) { return a != a ? b : b != b ? a : b < a ? b : a; }
template <class T> TW_DEVICE T maximum(T a, T b) { return a != a ? b : b != b ? a : a < b ? b : a; }
TW_DEVICE float minimum(float a, float b) { return ::fminf(a, b); }
TW_DEVICE float maximum(float a, float b) { return ::fmaxf(a, b); }
TW_DEVICE double minimum(double a, double b) { return ::fmin(a, b); }
TW_DEVICE double maximum(double a, double b) { return ::fmax(a, b); }

#define TW_FUNCTION(NAME, FLOAT, DOUBLE)                  \
  TW_DEVICE float NAME(float x) { return FLOAT(x); }      \
  TW_DEVICE double NAME(double x) { return DOUBLE(x); }
TW_FUNCTION(exp, ::expf, ::exp)
TW_FUNCTION(exp2, ::exp2f, ::exp2)
TW_FUNCTION(log, ::logf, ::log)
TW_FUNCTION(log2, ::log2f, ::log2)
TW_FUNCTION(log10, ::log10f, ::log10)
TW_FUNCTION(log1p, ::log1pf, ::log1p)
TW_FUNCTION(sqrt, ::sqrtf, ::sqrt)
TW_FUNCTION(sin, ::sinf, ::sin)
TW_FUNCTION(cos, ::cosf, ::cos)
TW_FUNCTION(tan, ::tanf, ::tan)
TW_FUNCTION(sinh, ::sinhf, ::sinh)
TW_FUNCTION(cosh, ::coshf, ::cosh)
TW_FUNCTION(tanh, ::tanhf, ::tanh)
TW_FUNCTION(atan, ::atanf, ::atan)
TW_FUNCTION(erf, ::erff, ::erf)
TW_FUNCTION(floor, ::floorf, ::floor)
TW_FUNCTION(ceil, ::ceilf, ::ceil)
TW_FUNCTION(trunc, ::truncf, ::trunc)
TW_FUNCTION(round, ::rintf, ::rint)
TW_FUNCTION(abs, ::fabsf, ::fabs)
#undef TW_FUNCTION
TW_DEVICE double exp10(double x) { return ::pow(10.0, x); }
TW_DEVICE float exp10(float x) { return float(::pow(10.0, double(x))); }
TW_DEVICE double rsqrt(double x) { return 1.0 / ::sqrt(x); }
TW_DEVICE float rsqrt(float x) { return float(1.0 / ::sqrt(double(x))); }
TW_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + ::expf(-x)); }
TW_DEVICE double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }
TW_DEVICE float pow(float x, float y) { return ::powf(x, y); }
TW_DEVICE double pow(double x, double y) { return ::pow(x, y); }
TW_DEVICE float atan2(float y, float x) { return ::atan2f(y, x); }
TW_DEVICE double atan2(double y, double x) { return ::atan2(y, x); }
TW_DEVICE float fmod(float x, float y) { return ::fmodf(x, y); }
TW_DEVICE double fmod(double x, double y) { return ::fmod(x, y); }
TW_DEVICE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
TW_DEVICE double fma(double a, double b, double c) { return ::fma(a, b, c); }
TW_DEVICE bool isnan(float x) { return x != x; }
TW_DEVICE bool isnan(double x) { return x != x; }
TW_DEVICE bool isinf(float x) { return x == x && x - x != 0.0f; }
TW_DEVICE bool isinf(double x) { return x == x && x - x != 0.0; }
TW_DEVICE bool isfinite(float x) { return x - x == 0.0f; }
TW_DEVICE bool isfinite(double x) { return x - x == 0.0; }
TW_DEVICE int32_t abs(int32_t x) { return x < 0 ? -x : x; }
TW_DEVICE int64_t abs(int64_t x) { return x < 0 ? -x : x; }
TW_DEVICE int32_t popcount(uint32_t x) { return __builtin_popcount(x); }
TW_DEVICE int32_t popcount(uint64_t x) { return __builtin_popcountll(x); }
TW_DEVICE int32_t popcount(int32_t x) { return __builtin_popcount(uint32_t(x)); }
TW_DEVICE int32_t popcount(int64_t x) { return __builtin_popcountll(uint64_t(x)); }

// Exact to the last place here; the device's are about 2 units off.  Subnormal arguments and results are flushed, as there.
TW_DEVICE float flush(float x) { return ::fabsf(x) < 1.17549435e-38f ? bits_float(float_bits(x) & 0x80000000u) : x; }
TW_DEVICE float fast_exp2(float x) { return flush(::exp2f(flush(x))); }
TW_DEVICE double fast_exp2(double x) { return ::exp2(x); }
TW_DEVICE float fast_exp(float x) { return fast_exp2(x * 1.4426950408889634f); }
TW_DEVICE float fast_log2(float x) { return flush(::log2f(flush(x))); }
TW_DEVICE float fast_log(float x) { return fast_log2(x) * 0.6931471805599453f; }
TW_DEVICE float fast_sin(float x) { return flush(::sinf(flush(x))); }
TW_DEVICE float fast_cos(float x) { return flush(::cosf(flush(x))); }
TW_DEVICE float fast_tanh(float x) { return ::tanhf(x); }
TW_DEVICE float fast_rcp(float x) { return flush(1.0f / flush(x)); }
TW_DEVICE float fast_rsqrt(float x) { return flush(rsqrt(flush(x))); }
TW_DEVICE float fast_div(float x, float y) { return x * fast_rcp(y); }

}  // namespace tw
