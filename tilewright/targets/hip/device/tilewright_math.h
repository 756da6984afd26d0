// Functions of numbers that are instructions of the device; the others are our own (tilewright_library.h).
#pragma once
#include "tilewright_library.h"

#define TW_C(function) ::tw::library::function

namespace tw {

TW_DEVICE float exp10(float x) { return library::exp10f(x); }
TW_DEVICE double exp10(double x) { return library::exp10(x); }
TW_DEVICE float rsqrt(float x) { return float(1.0 / library::sqrt(double(x))); }
TW_DEVICE double rsqrt(double x) { return 1.0 / library::sqrt(x); }
TW_DEVICE int32_t popcount(uint32_t x) { return __builtin_popcount(x); }
TW_DEVICE int32_t popcount(uint64_t x) { return __builtin_popcountll(x); }
TW_DEVICE int32_t popcount(int32_t x) { return __builtin_popcount(uint32_t(x)); }
TW_DEVICE int32_t popcount(int64_t x) { return __builtin_popcountll(uint64_t(x)); }

// One instruction each, about 1 unit in the last place; sine and cosine of turns, so that their argument is scaled first.
TW_DEVICE float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
TW_DEVICE float fast_log2(float x) { return __builtin_amdgcn_logf(x); }
TW_DEVICE float fast_sin(float x) { return __builtin_amdgcn_sinf(x * 0x1.45f306p-3f); }
TW_DEVICE float fast_cos(float x) { return __builtin_amdgcn_cosf(x * 0x1.45f306p-3f); }
TW_DEVICE float fast_rcp(float x) { return __builtin_amdgcn_rcpf(x); }
TW_DEVICE float fast_rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
TW_DEVICE float fast_tanh(float x) { return 1.0f - 2.0f * fast_rcp(fast_exp2(x * 0x1.715476p+1f) + 1.0f); }

}  // namespace tw

#include "tilewright_functions.cuh"
