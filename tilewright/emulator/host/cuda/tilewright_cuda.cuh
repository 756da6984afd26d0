// The CUDA vocabulary on this machine's CPU: every name of docs/cuda_vocabulary.md, by calls into the emulator's core.
//
// Functions that the core must know about end in a parameter that is never written: the caller's place in the author's file.
#pragma once
#include "interface.h"

#define TW_WARP_SIZE 32   // lanes that run together: the launch reads it here

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };

#define TW_DEVICE inline __attribute__((always_inline, unused))
#define __device__
#define __host__
#define __forceinline__ inline
#define TW_RESTRICT __restrict__
#define TW_GRID_CONSTANT
#define TW_KERNEL(threads, min_blocks) extern "C" void
#define TW_RETURN return ::tw_leave()
#define TW_DYNAMIC_SHARED(name) unsigned char* const name = ::tw_dynamic_shared()
#define TW_SITE ::TwSite site = ::TwSite::here()

#define threadIdx (::tw_thread()->thread_index)
#define blockIdx (::tw_thread()->block_index)
#define blockDim (::tw_thread()->block_dim)
#define gridDim (::tw_thread()->grid_dim)

extern "C" {
void* memcpy(void*, const void*, tw_size);
void* memset(void*, int, tw_size);
}
template <class T> TW_DEVICE T min(T a, T b) { return b < a ? b : a; }
template <class T> TW_DEVICE T max(T a, T b) { return a < b ? b : a; }

#include "tilewright_types.cuh"
#include "tilewright_convert.cuh"
#include "tilewright_packed.cuh"
#include "tilewright_decode.cuh"   // the device's own file
#include "tilewright_math.cuh"
#include "tilewright_warp.cuh"
#include "tilewright_barrier.cuh"
#include "tilewright_signals.cuh"
#include "tilewright_memory.cuh"
#include "tilewright_async.cuh"
#include "tilewright_tma.cuh"
#include "tilewright_atomic.cuh"
#include "tilewright_matrix.cuh"
#include "tilewright_wgmma.cuh"
