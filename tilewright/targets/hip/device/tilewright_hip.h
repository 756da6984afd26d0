// The device vocabulary of emitted HIP text: plain C++ above the built-ins of clang, without a library of ROCm.
//
// docs/cuda_vocabulary.md has the meaning of each name.  Only the two headers of machine/ know that this is a device: the emulator has
// others of these names, which say what the built-ins do and follow registers, and compiles all others as they are.
#pragma once

#include "tilewright_platform.h"
#include "tilewright_types.h"
#include "tilewright_convert.h"
#include "tilewright_packed.h"
#include "tilewright_decode.cuh"
#include "tilewright_math.h"
#include "tilewright_warp.h"
#include "tilewright_barrier.h"
#include "tilewright_memory.h"
#include "tilewright_atomic.h"
#include "tilewright_matrix.h"
