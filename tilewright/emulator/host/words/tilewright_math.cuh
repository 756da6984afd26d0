// Functions of numbers that the device has as instructions, from this machine's mathematical library.
#pragma once

#define TW_LIBRARY(NAME) extern "C" double NAME(double); extern "C" float NAME##f(float);
TW_LIBRARY(exp) TW_LIBRARY(exp2) TW_LIBRARY(log) TW_LIBRARY(log2) TW_LIBRARY(log10) TW_LIBRARY(log1p) TW_LIBRARY(sqrt) TW_LIBRARY(sin) TW_LIBRARY(cos)
TW_LIBRARY(tan) TW_LIBRARY(sinh) TW_LIBRARY(cosh) TW_LIBRARY(tanh) TW_LIBRARY(atan) TW_LIBRARY(erf) TW_LIBRARY(floor) TW_LIBRARY(ceil)
TW_LIBRARY(trunc) TW_LIBRARY(rint) TW_LIBRARY(fabs)
#undef TW_LIBRARY
#define TW_LIBRARY(NAME) extern "C" double NAME(double, double); extern "C" float NAME##f(float, float);
TW_LIBRARY(pow) TW_LIBRARY(atan2) TW_LIBRARY(fmod)
#undef TW_LIBRARY
inline double fmin(double a, double b) { return ::tw_lesser(a, b); }
inline float fminf(float a, float b) { return ::tw_lesser(a, b); }
inline double fmax(double a, double b) { return ::tw_greater(a, b); }
inline float fmaxf(float a, float b) { return ::tw_greater(a, b); }
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);

namespace tw {

TW_DEVICE double exp10(double x) { return ::pow(10.0, x); }
TW_DEVICE float exp10(float x) { return float(::pow(10.0, double(x))); }
TW_DEVICE double rsqrt(double x) { return 1.0 / ::sqrt(x); }
TW_DEVICE float rsqrt(float x) { return float(1.0 / ::sqrt(double(x))); }
TW_DEVICE int32_t popcount(uint32_t x) { return __builtin_popcount(x); }
TW_DEVICE int32_t popcount(uint64_t x) { return __builtin_popcountll(x); }
TW_DEVICE int32_t popcount(int32_t x) { return __builtin_popcount(uint32_t(x)); }
TW_DEVICE int32_t popcount(int64_t x) { return __builtin_popcountll(uint64_t(x)); }

// Exact to the last place here; the device's are about 2 units off.  Subnormal arguments and results are flushed, as there.
TW_DEVICE float flush(float x) { return ::fabsf(x) < 1.17549435e-38f ? bits_float(float_bits(x) & 0x80000000u) : x; }
TW_DEVICE float fast_exp2(float x) { return flush(::exp2f(flush(x))); }
TW_DEVICE float fast_log2(float x) { return flush(::log2f(flush(x))); }
TW_DEVICE float fast_sin(float x) { return flush(::sinf(flush(x))); }
TW_DEVICE float fast_cos(float x) { return flush(::cosf(flush(x))); }
TW_DEVICE float fast_tanh(float x) { return ::tanhf(x); }
TW_DEVICE float fast_rcp(float x) { return flush(1.0f / flush(x)); }
TW_DEVICE float fast_rsqrt(float x) { return flush(rsqrt(flush(x))); }

}  // namespace tw

#include "tilewright_functions.cuh"   // the device's own file
