// For texts of authors that speak CUDA's own names (`T.import_source`): the toolkit's small floats, short names of integers, and the
// vocabulary's values and pointers as the toolkit types them.  Needs the toolkit's headers (cuda_fp16.h and its kin).
#pragma once

#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
using half_t = __half;
using bfloat16_t = __nv_bfloat16;
using fp8_e4_t = __nv_fp8_e4m3;
using fp8_e5_t = __nv_fp8_e5m2;

namespace tw {
template <class T> struct ToolkitType { using type = T; };
template <> struct ToolkitType<half> { using type = ::__half; };
template <> struct ToolkitType<bfloat16> { using type = ::__nv_bfloat16; };
template <> struct ToolkitType<float8_e4m3> { using type = ::__nv_fp8_e4m3; };
template <> struct ToolkitType<float8_e5m2> { using type = ::__nv_fp8_e5m2; };
template <class T> using InToolkit = typename ToolkitType<T>::type;

template <class T> TW_DEVICE InToolkit<T>* in_toolkit(T* pointer) { return reinterpret_cast<InToolkit<T>*>(pointer); }
template <class T> TW_DEVICE const InToolkit<T>* in_toolkit(const T* pointer) { return reinterpret_cast<const InToolkit<T>*>(pointer); }
template <class T> TW_DEVICE InToolkit<T> in_toolkit(T value) { return bit_cast<InToolkit<T>>(value); }
}  // namespace tw
