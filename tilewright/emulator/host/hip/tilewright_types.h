// Short vectors, and fragments whose registers the emulator follows: those of every vocabulary.
#pragma once

struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };

#include "fragments.h"
