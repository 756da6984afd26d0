// The built-ins of clang for AMD's GPUs on this machine's CPU, by calls into the emulator's core: the device's own headers stand above.
//
// A built-in that the core must know about takes `site` from the function around it: the caller's place in the author's file.
#pragma once
#include "interface.h"

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;

#define TW_DEVICE inline __attribute__((always_inline, unused))
#define __device__
#define __host__
#define TW_RESTRICT __restrict__
#define TW_KERNEL(threads, min_blocks) extern "C" void
#define TW_RETURN return ::tw_leave()
#define TW_SHARED(name, bytes) unsigned char* const name = ::tw_dynamic_shared()
#define TW_SITE ::TwSite site = ::TwSite::here()
#define TW_AT(site) ((void)site)
#define TW_KEPT(word) ((void)(word))
#define TW_SETTLED(word) ((void)(word))
#define TW_THERE(lanes) const uint64_t there = lanes; (void)there
#define TW_READ(value, place) ::tw_load(&(value), place, sizeof(value), site)
#define TW_GET_BITS(byte, mask) ::tw_get_bits(byte, mask, site)
#define TW_WRITE(place, value) ::tw_store(place, &(value), sizeof(value), site)
#define TW_READ_WITHIN(value, place, inside) \
  if (inside) TW_READ(value, place); else __builtin_memset(&(value), 0, sizeof(value))
static const uint32_t tw_zeros[4] = {};
#define TW_GLOBAL
#define TW_FAILED(message) ::tw_assertion_failed(message, site)

#define threadIdx (::tw_thread()->thread_index)
#define blockIdx (::tw_thread()->block_index)
#define blockDim (::tw_thread()->block_dim)
#define gridDim (::tw_thread()->grid_dim)
typedef TwDim TwIndex;

extern "C" {
void* memcpy(void*, const void*, tw_size);
void* memset(void*, int, tw_size);
float exp2f(float);
float log2f(float);
double sin(double);
double cos(double);
double sqrt(double);
}
template <class T> TW_DEVICE T min(T a, T b) { return b < a ? b : a; }
template <class T> TW_DEVICE T max(T a, T b) { return a < b ? b : a; }

#include "amd_numbers.h"
#include "amd_lanes.h"
#include "amd_buffers.h"
#include "amd_atomics.h"
#include "amd_products.h"
