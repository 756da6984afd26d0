// The built-ins of clang for AMD's GPUs on this machine's CPU, by calls into the emulator's core: the device's own headers stand above.
//
// A built-in that the core must know about takes `site` from the function around it: the caller's place in the author's file.
#pragma once
#include "vocabulary.h"

#define TW_SHARED(name, bytes) unsigned char* const name = ::tw_dynamic_shared()
#define TW_AT(site) ((void)site)
#define TW_KEPT(word) ((void)(word))
#define TW_SETTLED(word) ((void)(word))
#define TW_THERE(lanes) const uint64_t there = lanes; (void)there
#define TW_READ(value, place) ::tw_load(&(value), place, sizeof(value), site)
#define TW_WRITE(place, value) ::tw_store(place, &(value), sizeof(value), site)
#define TW_READ_WITHIN(value, place, inside) \
  if (inside) TW_READ(value, place); else __builtin_memset(&(value), 0, sizeof(value))
static const uint32_t tw_zeros[4] = {};
#define TW_GLOBAL
#define TW_FAILED(message) ::tw_assertion_failed(message, site)

typedef TwDim TwIndex;

extern "C" {
float exp2f(float);
float log2f(float);
double sin(double);
double cos(double);
double sqrt(double);
}

#include "amd_numbers.h"
#include "amd_lanes.h"
#include "amd_buffers.h"
#include "amd_atomics.h"
#include "amd_products.h"
