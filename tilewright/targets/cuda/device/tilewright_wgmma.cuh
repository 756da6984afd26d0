// Warpgroup matrix multiply (sm_90a): 128 threads, d[64 x N] += a[64 x K] * b[K x N], K = 32 bytes of elements.
//
// Operands in shared memory are named by descriptors.  The register lists of one shape and types are in a generated header
// (`tilewright_wgmma_n<N>_<d>_<a>_<b>.cuh`), which the text includes by name; these templates choose among them.
#pragma once

namespace tw {

enum Major { K_MAJOR = 0, MN_MAJOR = 1 };
enum Swizzle { SWIZZLE_NONE = 0, SWIZZLE_128B = 1, SWIZZLE_64B = 2, SWIZZLE_32B = 3 };   // as the descriptor counts them

// Descriptor of an operand tile; `leading` and `stride` in bytes, as in docs/cuda_vocabulary.md.
TW_DEVICE uint64_t wgmma_descriptor(uint32_t address, Swizzle swizzle, uint32_t leading, uint32_t stride) {
  return uint64_t(swizzle) << 62 | uint64_t(stride >> 4) << 32 | uint64_t(leading >> 4) << 16 | uint64_t((address & 0x3FFFF) >> 4);
}
// The descriptor of the tile that begins `bytes` further on: addresses stand in the lower word, and shared memory is too small to leave it.
TW_DEVICE uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor >> 32 << 32 | uint32_t(uint32_t(descriptor) + (bytes >> 4));
}

// Where the tiles of several steps of k begin, in bytes from the descriptor's: one statement issues them all, so that the compiler
// sees the accumulators once (that is most of what they cost it).
template <int... BYTES> struct Steps { static constexpr int count = sizeof...(BYTES), at[] = {BYTES...}; };

template <int STEPS, int N, class D, class A, class B> struct WgmmaSS;   // specialised by the generated headers
template <int STEPS, int N, class D, class A, class B> struct WgmmaRS;

// `accumulate` false overwrites d.  The types of a and b are named, because descriptors have none.
template <int N, class A, class B, Major MAJOR_A = K_MAJOR, Major MAJOR_B = K_MAJOR, class STEPS_A = Steps<0>, class STEPS_B = Steps<0>, class D, int SIZE>
TW_DEVICE void wgmma_ss(Fragment<D, SIZE>& d, uint64_t a, uint64_t b, bool accumulate) {
  static_assert(SIZE == N / 2, "a thread holds N / 2 accumulators");
  WgmmaSS<STEPS_A::count, N, D, A, B>::template issue<MAJOR_A, MAJOR_B, STEPS_A, STEPS_B>(d.data, a, b, accumulate);
}
// a from registers: four words a thread for each step.
template <int N, class B, Major MAJOR_B = K_MAJOR, class STEPS_B = Steps<0>, class D, int SIZE, class A, int SIZE_A>
TW_DEVICE void wgmma_rs(Fragment<D, SIZE>& d, const Fragment<A, SIZE_A>& a, uint64_t b, bool accumulate) {
  static_assert(SIZE == N / 2 && sizeof(A) * SIZE_A == 16 * STEPS_B::count, "N / 2 accumulators, and 16 bytes of a a step, in a thread");
  WgmmaRS<STEPS_B::count, N, D, A, B>::template issue<MAJOR_B, STEPS_B>(d.data, reinterpret_cast<const uint32_t*>(a.data), b, accumulate);
}

// 2:4 sparse: a holds two of every four elements along k (64 bytes of b a step), `metadata` their places: a register that the instruction
// reads when it runs, so that it must keep its value until the wait.
template <int N, class D, class A, class B> struct WgmmaSparse;
template <int N, class A, class B, int SELECTOR = 0, Major MAJOR_B = K_MAJOR, class D, int SIZE>
TW_DEVICE void wgmma_sparse_ss(Fragment<D, SIZE>& d, uint64_t a, uint64_t b, const Fragment<uint32_t, 1>& metadata, bool accumulate) {
  static_assert(SIZE == N / 2, "a thread holds N / 2 accumulators");
  WgmmaSparse<N, D, A, B>::template ss<SELECTOR, MAJOR_B>(d.data, a, b, metadata.data[0], accumulate);
}
template <int N, class B, int SELECTOR = 0, Major MAJOR_B = K_MAJOR, class D, int SIZE, class A, int SIZE_A>
TW_DEVICE void wgmma_sparse_rs(Fragment<D, SIZE>& d, const Fragment<A, SIZE_A>& a, uint64_t b, const Fragment<uint32_t, 1>& metadata, bool accumulate) {
  static_assert(SIZE == N / 2 && sizeof(A) * SIZE_A == 16, "N / 2 accumulators and 16 bytes of a in a thread");
  WgmmaSparse<N, D, A, B>::template rs<SELECTOR, MAJOR_B>(d.data, reinterpret_cast<const uint32_t*>(a.data), b, metadata.data[0], accumulate);
}

// Before the first wgmma that uses registers which other code wrote.
TW_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TW_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// At most PENDING committed groups may still be running.
template <int PENDING> TW_DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory"); }

// Keeps the compiler from touching these registers before (accumulators) or after (operands) this point.
TW_DEVICE void hold_register(float& x) { asm volatile("" : "+f"(x) :: "memory"); }
TW_DEVICE void hold_register(uint32_t& x) { asm volatile("" : "+r"(x) :: "memory"); }
template <class T, int N> TW_DEVICE void hold_registers(Fragment<T, N>& fragment) {
  if constexpr (same_type<T, float>::value) {
#pragma unroll
    for (int i = 0; i < N; ++i) hold_register(fragment.data[i]);
  } else {
#pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / 4); ++i) hold_register(reinterpret_cast<uint32_t*>(fragment.data)[i]);
  }
}

}  // namespace tw
