// What is special to the device: how kernels, memory and places are written, and operations of 16-bit floats, which have types here.
#pragma once

#if defined(TW_GFX90A) && !defined(__gfx90a__) || defined(TW_GFX942) && !defined(__gfx942__) || defined(TW_GFX950) && !defined(__gfx950__) || \
    defined(TW_GFX1100) && !defined(__gfx1100__) || defined(TW_GFX1201) && !defined(__gfx1201__)
#error "this text was made for another architecture: compile it with --offload-arch= of the header that it includes"
#endif

#include "tilewright_integers.cuh"

// Products and sums are rounded one by one, and types of accesses say nothing of their places, whatever a compiler is told.
#pragma clang fp contract(off)
#define TW_ANY __attribute__((may_alias))

#ifndef __device__
#define __device__ __attribute__((device))
#endif
#define TW_DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define TW_RESTRICT __restrict__
// Head of a kernel of a fixed block size; `min_blocks` blocks shall fit on a core, whose four SIMDs share their waves.
#define TW_KERNEL(threads, min_blocks)                                                        \
  extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) \
  __attribute__((amdgpu_waves_per_eu(((threads + TW_WARP_SIZE - 1) / TW_WARP_SIZE * min_blocks + 3) / 4))) void
#define TW_RETURN return
// The block's shared memory as an array of bytes.
#define TW_SHARED(name, bytes) __attribute__((shared)) __attribute__((aligned(128))) unsigned char name[bytes]
// The same in a function.
#define TW_SMALL_SHARED(name, bytes) static TW_SHARED(name, bytes)

// Where the author's text calls a function: the emulator passes it on, here it is nothing.
struct TwSite {};
#define TW_SITE ::TwSite site = ::TwSite()
#define TW_AT(site) ((void)site)
#define TW_THERE(lanes)   // the machine knows
// A word whose value clang takes as it is.
#define TW_KEPT(word) asm("" : "+v"(word))
// The same, there and then.
#define TW_SETTLED(word) asm volatile("" : "+v"(word))

// One access of the machine.
#define TW_READ(value, place) ((value) = *(place))
#define TW_WRITE(place, value) (*(place) = (value))
// The same of zeros where the place is beyond its tensor.
#define TW_READ_WITHIN(value, place, inside) ((value) = *((inside) ? (place) : reinterpret_cast<decltype(place)>(tw_zeros)))
static __attribute__((device)) __attribute__((aligned(16))) uint32_t tw_zeros[4];
// The bits of a mask in a byte, whoever changes the others.
#define TW_GET_BITS(byte, mask) (uint32_t(*(byte)) & (mask))
#define TW_GLOBAL __attribute__((address_space(1)))
// What a failed assertion does; and how bits of a byte change, whoever changes the others of its word at the same time.
#define TW_FAILED(message) __builtin_trap()
#define TW_SET_BITS(byte, mask, bits)                                                                                   \
  const uint32_t place = uint32_t(reinterpret_cast<uint64_t>(byte));                                                    \
  uint32_t* const word = reinterpret_cast<uint32_t*>((byte) - (place & 3));                                             \
  __hip_atomic_fetch_and(word, ~((mask) << (place & 3) * 8), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);               \
  __hip_atomic_fetch_or(word, (bits) << (place & 3) * 8, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)

struct TwIndex { uint32_t x, y, z; };
TW_DEVICE TwIndex tw_thread_index() {
  return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()};
}
TW_DEVICE TwIndex tw_block_index() {
  return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
}
TW_DEVICE TwIndex tw_block_dim() {
  const auto* sizes = (const __attribute__((address_space(4))) uint16_t*)__builtin_amdgcn_implicitarg_ptr();
  return {sizes[6], sizes[7], sizes[8]};
}
TW_DEVICE TwIndex tw_grid_dim() {
  const auto* counts = (const __attribute__((address_space(4))) uint32_t*)__builtin_amdgcn_implicitarg_ptr();
  return {counts[0], counts[1], counts[2]};
}
#define threadIdx (tw_thread_index())
#define blockIdx (tw_block_index())
#define blockDim (tw_block_dim())
#define gridDim (tw_grid_dim())

#ifndef __HIPCC_RTC__
TW_DEVICE void* memcpy(void* to, const void* from, __SIZE_TYPE__ size) { return __builtin_memcpy(to, from, size); }
template <class T> TW_DEVICE T min(T a, T b) { return b < a ? b : a; }
template <class T> TW_DEVICE T max(T a, T b) { return a < b ? b : a; }
#endif

namespace tw {
namespace machine {

TW_DEVICE uint32_t shared_address(const void* pointer, TwSite) { return uint32_t(uint64_t((const __attribute__((address_space(3))) void*)pointer)); }

// What copies from tensors to shared memory take.
typedef __attribute__((address_space(3))) void* SharedPointer;
TW_DEVICE SharedPointer shared_pointer(uint32_t address) { return (SharedPointer)address; }
TW_DEVICE __attribute__((address_space(1))) void* global_pointer(const void* pointer) { return (__attribute__((address_space(1))) void*)const_cast<void*>(pointer); }

// ---- 16-bit floats, by their bits ----------------------------------------------------------------------------------------
typedef _Float16 Pair __attribute__((ext_vector_type(2)));
TW_DEVICE float float_of_half(uint16_t bits) { return float(__builtin_bit_cast(_Float16, bits)); }
TW_DEVICE uint16_t half_of_float(float x) { return __builtin_bit_cast(uint16_t, _Float16(x)); }
#ifdef __gfx950__
#define TW_BFLOAT16_OF_FLOAT(x) __builtin_bit_cast(uint16_t, __bf16(x))   // an instruction, of two at a time
#endif
#define TW_PAIRS(NAME, EXPRESSION)                                                                  \
  TW_DEVICE uint32_t NAME(uint32_t u, uint32_t v) {                                                 \
    const Pair a = __builtin_bit_cast(Pair, u), b = __builtin_bit_cast(Pair, v);                    \
    return __builtin_bit_cast(uint32_t, EXPRESSION);                                                \
  }
TW_PAIRS(add_pairs, a + b)
TW_PAIRS(subtract_pairs, a - b)
TW_PAIRS(multiply_pairs, a * b)
TW_PAIRS(larger_pairs, __builtin_elementwise_max(a, b))
TW_PAIRS(smaller_pairs, __builtin_elementwise_min(a, b))
#undef TW_PAIRS
TW_DEVICE uint32_t fused_pairs(uint32_t u, uint32_t v, uint32_t w) {
  return __builtin_bit_cast(uint32_t, __builtin_elementwise_fma(__builtin_bit_cast(Pair, u), __builtin_bit_cast(Pair, v), __builtin_bit_cast(Pair, w)));
}

// Two 16-bit floats in global memory, and how instructions name those of the other kind.
typedef short ShortPair __attribute__((ext_vector_type(2)));
typedef __attribute__((address_space(1))) Pair GlobalPair;
typedef __attribute__((address_space(1))) ShortPair GlobalShortPair;

// ---- what matrix instructions take ---------------------------------------------------------------------------------------
typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
typedef _Float16 Half8 __attribute__((ext_vector_type(8)));
typedef _Float16 Half16 __attribute__((ext_vector_type(16)));
typedef __bf16 Bfloat8 __attribute__((ext_vector_type(8)));
typedef short Short4 __attribute__((ext_vector_type(4)));
typedef short Short8 __attribute__((ext_vector_type(8)));
typedef short Short16 __attribute__((ext_vector_type(16)));
typedef int Int2 __attribute__((ext_vector_type(2)));
typedef int Int4 __attribute__((ext_vector_type(4)));
typedef int Int8 __attribute__((ext_vector_type(8)));
typedef float Float2 __attribute__((ext_vector_type(2)));
typedef float Float4 __attribute__((ext_vector_type(4)));
typedef float Float8 __attribute__((ext_vector_type(8)));
typedef double Double4 __attribute__((ext_vector_type(4)));

}  // namespace machine
}  // namespace tw
