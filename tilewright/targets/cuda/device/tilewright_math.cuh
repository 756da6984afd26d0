// Functions of numbers that are instructions or functions of the device alone; tilewright_functions.cuh has the others.
#pragma once

namespace tw {

TW_DEVICE float exp10(float x) { return ::exp10f(x); }
TW_DEVICE double exp10(double x) { return ::exp10(x); }
TW_DEVICE float rsqrt(float x) { return ::rsqrtf(x); }
TW_DEVICE double rsqrt(double x) { return ::rsqrt(x); }
TW_DEVICE int32_t popcount(uint32_t x) { return __popc(x); }
TW_DEVICE int32_t popcount(uint64_t x) { return __popcll(x); }
TW_DEVICE int32_t popcount(int32_t x) { return __popc(uint32_t(x)); }
TW_DEVICE int32_t popcount(int64_t x) { return __popcll(uint64_t(x)); }

// One instruction each, about 2 units in the last place (tanh: 2^-11 relative).
TW_DEVICE float fast_exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
TW_DEVICE float fast_log2(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
TW_DEVICE float fast_sin(float x) { float y; asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
TW_DEVICE float fast_cos(float x) { float y; asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
TW_DEVICE float fast_tanh(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
TW_DEVICE float fast_rcp(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
TW_DEVICE float fast_rsqrt(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

}  // namespace tw

#include "tilewright_functions.cuh"
