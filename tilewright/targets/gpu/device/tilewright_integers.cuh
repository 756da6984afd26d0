// Whole numbers of known widths, where no header of a compiler's names them.
#pragma once

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <stdint.h>
#elif !defined(__HIPCC_RTC__)   // hiprtc puts HIP's own header in front of every text
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
#ifdef __CUDACC_RTC__
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
#endif
#endif
