// How kernels, memory and places are written, for a vocabulary on this machine's CPU: what those of all makers have in common.
//
// Functions that the core must know about end in a parameter that is never written: the caller's place in the author's file.
#pragma once
#include "interface.h"
#include "tilewright_integers.cuh"

#define TW_DEVICE inline __attribute__((always_inline, unused))
#define __device__
#define __host__
#define __forceinline__ inline
#define TW_RESTRICT __restrict__
#define TW_KERNEL(threads, min_blocks) extern "C" void
#define TW_RETURN return ::tw_leave()
#define TW_SITE ::TwSite site = ::TwSite::here()
#define TW_GET_BITS(byte, mask) ::tw_get_bits(byte, mask, site)

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
