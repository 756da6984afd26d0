// The CUDA vocabulary on this machine's CPU: every name of docs/cuda_vocabulary.md, by calls into the emulator's core.
#pragma once
#include "vocabulary.h"

#define TW_WARP_SIZE 32   // lanes that run together: the launch reads it here
#define TW_GRID_CONSTANT
#define TW_DYNAMIC_SHARED(name) unsigned char* const name = ::tw_dynamic_shared()

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
#include "tilewright_builtins.cuh"
