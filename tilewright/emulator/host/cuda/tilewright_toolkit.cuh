// The device's header of this name for the emulator: CUDA's names of small floats stand for the vocabulary's, without CUDA's functions.
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
