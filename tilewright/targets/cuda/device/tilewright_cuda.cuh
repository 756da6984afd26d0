// The device vocabulary of emitted CUDA text: every statement of inline assembly stands in these headers, behind a named function.
//
// docs/cuda_vocabulary.md has the meaning of each name.  The emulator supplies a header of the same file name that gives every name
// the same meaning on this machine's CPU, so emitted text uses nothing but C++ without a library, these names, and
// threadIdx, blockIdx, blockDim, gridDim.  No toolkit header is needed: the text compiles with NVRTC alone.
#pragma once

#include "tilewright_integers.cuh"

#define TW_DEVICE __device__ __forceinline__
#define TW_RESTRICT __restrict__
#define TW_GRID_CONSTANT __grid_constant__
// Head of a kernel of a fixed block size; `min_blocks` blocks shall fit on a multiprocessor (setmaxnreg needs it stated).
#define TW_KERNEL(threads, min_blocks) extern "C" __global__ void __launch_bounds__(threads, min_blocks)
// The thread is done; barriers of the block do not wait for it.
#define TW_RETURN return
// Where the author's text calls a function: the emulator passes it on, here it is nothing.
struct TwSite {};
#define TW_SITE ::TwSite site = ::TwSite()
#define TW_GET_BITS(byte, mask) (uint32_t(*(byte)) & (mask))
// The block's dynamic shared memory as an array of bytes, aligned for every swizzle.
#define TW_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

#include "tilewright_types.cuh"
#include "tilewright_convert.cuh"
#include "tilewright_packed.cuh"
#include "tilewright_decode.cuh"
#include "tilewright_math.cuh"
#include "tilewright_warp.cuh"
#include "tilewright_barrier.cuh"
#include "tilewright_memory.cuh"
#include "tilewright_tma.cuh"
#include "tilewright_atomic.cuh"
#include "tilewright_matrix.cuh"
#include "tilewright_wgmma.cuh"
