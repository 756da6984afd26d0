// The device's header of this name for the emulator: CUDA's names of small floats stand for the vocabulary's, and CUDA's functions of
// single ones compute with them.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
using __half = tw::half;
using half = tw::half;
using half_t = tw::half;
using __nv_bfloat16 = tw::bfloat16;
using nv_bfloat16 = tw::bfloat16;
using bfloat16_t = tw::bfloat16;
using __nv_fp8_e4m3 = tw::float8_e4m3;
using fp8_e4_t = tw::float8_e4m3;
using __nv_fp8_e5m2 = tw::float8_e5m2;
using fp8_e5_t = tw::float8_e5m2;

namespace tw {
template <class T> TW_DEVICE T in_toolkit(T value) { return value; }
}  // namespace tw

namespace tw {
// A number next to the exact one, in a direction: the nearest one, or its neighbour.
template <class T> TW_DEVICE T small(double x, Rounding how) {
  const T near = convert<T>(x);
  const double value = to_float(near);
  const bool down = how == Rounding::rd || (how == Rounding::rz && x > 0);
  if (how == Rounding::rn || value != value || value == x || (value < x) == down) return near;
  const uint16_t bits = bit_cast<uint16_t>(near);
  if (value == 0) return bit_cast<T>(uint16_t(down ? 0x8001 : 0x0001));
  return bit_cast<T>(uint16_t((value > 0) == down ? bits - 1 : bits + 1));
}
}  // namespace tw
#define TW_DIRECTED(T, NAME, HOW)                                                                             \
  TW_DEVICE T __float2##NAME##_##HOW(float x) { return tw::small<T>(x, tw::Rounding::HOW); }                  \
  TW_DEVICE T __int2##NAME##_##HOW(int x) { return tw::small<T>(x, tw::Rounding::HOW); }                      \
  TW_DEVICE T __uint2##NAME##_##HOW(unsigned x) { return tw::small<T>(x, tw::Rounding::HOW); }                \
  TW_DEVICE int __##NAME##2int_##HOW(T x) { return __float2int_##HOW(tw::to_float(x)); }                      \
  TW_DEVICE unsigned __##NAME##2uint_##HOW(T x) { return __float2uint_##HOW(tw::to_float(x)); }
#define TW_COMPARED(T, NAME, OP) TW_DEVICE bool __h##NAME(T x, T y) { return tw::to_float(x) OP tw::to_float(y); }
#define TW_COMPUTED(T, NAME, FORMULA) TW_DEVICE T NAME(T of) { const double x = tw::to_float(of); return tw::convert<T>(FORMULA); }
#define TW_SMALL(T, NAME)                                                                                     \
  TW_DIRECTED(T, NAME, rn) TW_DIRECTED(T, NAME, rz) TW_DIRECTED(T, NAME, ru) TW_DIRECTED(T, NAME, rd)         \
  TW_DEVICE T __float2##NAME(float x) { return tw::convert<T>(x); }                                           \
  TW_DEVICE T __double2##NAME(double x) { return tw::convert<T>(x); }                                         \
  TW_DEVICE short __##NAME##_as_short(T x) { return tw::bit_cast<short>(x); }                                 \
  TW_DEVICE unsigned short __##NAME##_as_ushort(T x) { return tw::bit_cast<unsigned short>(x); }              \
  TW_DEVICE T __short_as_##NAME(short x) { return tw::bit_cast<T>(x); }                                       \
  TW_DEVICE T __ushort_as_##NAME(unsigned short x) { return tw::bit_cast<T>(x); }                             \
  TW_DEVICE T __hadd(T x, T y) { return tw::convert<T>(double(tw::to_float(x)) + tw::to_float(y)); }          \
  TW_DEVICE T __hsub(T x, T y) { return tw::convert<T>(double(tw::to_float(x)) - tw::to_float(y)); }          \
  TW_DEVICE T __hmul(T x, T y) { return tw::convert<T>(double(tw::to_float(x)) * tw::to_float(y)); }          \
  TW_DEVICE T __hdiv(T x, T y) { return tw::convert<T>(double(tw::to_float(x)) / tw::to_float(y)); }          \
  TW_DEVICE T __hfma(T x, T y, T z) { return tw::fma(x, y, z); }                                              \
  TW_DEVICE T __hmin(T x, T y) { return tw::smaller(x, y); }                                                  \
  TW_DEVICE T __hmax(T x, T y) { return tw::larger(x, y); }                                                   \
  TW_DEVICE T __hneg(T x) { return tw::bit_cast<T>(uint16_t(tw::bit_cast<uint16_t>(x) ^ 0x8000)); }           \
  TW_DEVICE T __habs(T x) { return tw::bit_cast<T>(uint16_t(tw::bit_cast<uint16_t>(x) & 0x7FFF)); }           \
  TW_DEVICE bool __hisnan(T x) { return tw::to_float(x) != tw::to_float(x); }                                 \
  TW_COMPARED(T, eq, ==) TW_COMPARED(T, ne, !=) TW_COMPARED(T, lt, <) TW_COMPARED(T, le, <=) TW_COMPARED(T, gt, >) TW_COMPARED(T, ge, >=) \
  TW_COMPUTED(T, hexp, ::exp(x)) TW_COMPUTED(T, hexp2, ::exp2(x)) TW_COMPUTED(T, hlog, ::log(x)) TW_COMPUTED(T, hlog2, ::log2(x)) \
  TW_COMPUTED(T, hlog10, ::log10(x)) TW_COMPUTED(T, hsqrt, ::sqrt(x)) TW_COMPUTED(T, hrsqrt, 1 / ::sqrt(x)) TW_COMPUTED(T, hrcp, 1 / x) \
  TW_COMPUTED(T, hsin, ::sin(x)) TW_COMPUTED(T, hcos, ::cos(x)) TW_COMPUTED(T, htanh, ::tanh(x)) TW_COMPUTED(T, hfloor, ::floor(x)) \
  TW_COMPUTED(T, hceil, ::ceil(x)) TW_COMPUTED(T, htrunc, ::trunc(x)) TW_COMPUTED(T, hrint, ::rint(x))
TW_SMALL(half, half) TW_SMALL(__nv_bfloat16, bfloat16)
#undef TW_SMALL
#undef TW_COMPUTED
#undef TW_COMPARED
#undef TW_DIRECTED
TW_DEVICE float __half2float(half x) { return tw::to_float(x); }
TW_DEVICE float __bfloat162float(__nv_bfloat16 x) { return tw::to_float(x); }
