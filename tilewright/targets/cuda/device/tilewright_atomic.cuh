// Atomic updates of global and shared memory (relaxed, device-wide), packed and vector forms, and accesses that order others.
#pragma once

namespace tw {

// Each returns the old value.
TW_DEVICE int32_t atomic_add(int32_t* p, int32_t x) { return atomicAdd(p, x); }
TW_DEVICE uint32_t atomic_add(uint32_t* p, uint32_t x) { return atomicAdd(p, x); }
TW_DEVICE int64_t atomic_add(int64_t* p, int64_t x) { return (int64_t)atomicAdd((unsigned long long*)p, (unsigned long long)x); }
TW_DEVICE uint64_t atomic_add(uint64_t* p, uint64_t x) { return atomicAdd((unsigned long long*)p, (unsigned long long)x); }
TW_DEVICE float atomic_add(float* p, float x) { return atomicAdd(p, x); }
TW_DEVICE double atomic_add(double* p, double x) { return atomicAdd(p, x); }
TW_DEVICE half atomic_add(half* p, half x) {
  half old;
  asm volatile("atom.add.noftz.f16 %0, [%1], %2;" : "=h"(old.bits) : "l"(p), "h"(x.bits) : "memory");
  return old;
}
TW_DEVICE bfloat16 atomic_add(bfloat16* p, bfloat16 x) {
#if __CUDA_ARCH__ >= 900
  bfloat16 old;
  asm volatile("atom.add.noftz.bf16 %0, [%1], %2;" : "=h"(old.bits) : "l"(p), "h"(x.bits) : "memory");
  return old;
#else
  uint16_t* address = reinterpret_cast<uint16_t*>(p);
  uint16_t seen = *reinterpret_cast<volatile uint16_t*>(address), expected;
  do {
    expected = seen;
    seen = atomicCAS(address, expected, (bfloat16{expected} + x).bits);
  } while (seen != expected);
  return bfloat16{seen};
#endif
}

#define TW_ATOMIC(NAME, FUNCTION)                                                                                \
  TW_DEVICE int32_t NAME(int32_t* p, int32_t x) { return FUNCTION(p, x); }                                       \
  TW_DEVICE uint32_t NAME(uint32_t* p, uint32_t x) { return FUNCTION(p, x); }                                    \
  TW_DEVICE int64_t NAME(int64_t* p, int64_t x) { return FUNCTION((long long*)p, (long long)x); }                \
  TW_DEVICE uint64_t NAME(uint64_t* p, uint64_t x) { return FUNCTION((unsigned long long*)p, (unsigned long long)x); }
TW_ATOMIC(atomic_min, atomicMin)
TW_ATOMIC(atomic_max, atomicMax)
#undef TW_ATOMIC
// Floats are ordered as signed integers where positive, as reversed unsigned ones where negative; -0 counts below +0, NaN is not kept.
TW_DEVICE float atomic_max(float* p, float x) {
  return x != x ? atomicAdd(p, 0.0f)
         : float_bits(x) >> 31 ? bits_float(atomicMin((unsigned*)p, float_bits(x))) : bits_float(atomicMax((int*)p, float_bits(x)));
}
TW_DEVICE float atomic_min(float* p, float x) {
  return x != x ? atomicAdd(p, 0.0f)
         : float_bits(x) >> 31 ? bits_float(atomicMax((unsigned*)p, float_bits(x))) : bits_float(atomicMin((int*)p, float_bits(x)));
}
// Of other floats no instruction keeps the greater: whoever finds a lesser one there tries to put its own in its place.
#define TW_ATOMIC(NAME, T, WORD, BEFORE)                                          \
  TW_DEVICE T NAME(T* p, T x) {                                                   \
    WORD* const address = reinterpret_cast<WORD*>(p);                             \
    WORD seen = *reinterpret_cast<volatile WORD*>(address), expected;             \
    do {                                                                          \
      expected = seen;                                                            \
      if (!(bit_cast<T>(expected) BEFORE x)) break;                               \
      seen = atomicCAS(address, expected, bit_cast<WORD>(x));                     \
    } while (seen != expected);                                                   \
    return bit_cast<T>(expected);                                                 \
  }
TW_ATOMIC(atomic_max, half, unsigned short, <)
TW_ATOMIC(atomic_min, half, unsigned short, >)
TW_ATOMIC(atomic_max, bfloat16, unsigned short, <)
TW_ATOMIC(atomic_min, bfloat16, unsigned short, >)
TW_ATOMIC(atomic_max, double, unsigned long long, <)
TW_ATOMIC(atomic_min, double, unsigned long long, >)
#undef TW_ATOMIC
#define TW_ATOMIC(NAME, FUNCTION)                                                                                \
  TW_DEVICE int32_t NAME(int32_t* p, int32_t x) { return FUNCTION(p, x); }                                       \
  TW_DEVICE uint32_t NAME(uint32_t* p, uint32_t x) { return FUNCTION(p, x); }                                    \
  TW_DEVICE int64_t NAME(int64_t* p, int64_t x) { return (int64_t)FUNCTION((unsigned long long*)p, (unsigned long long)x); } \
  TW_DEVICE uint64_t NAME(uint64_t* p, uint64_t x) { return FUNCTION((unsigned long long*)p, (unsigned long long)x); }
TW_ATOMIC(atomic_and, atomicAnd)
TW_ATOMIC(atomic_or, atomicOr)
TW_ATOMIC(atomic_xor, atomicXor)
TW_ATOMIC(atomic_exchange, atomicExch)
#undef TW_ATOMIC
TW_DEVICE uint32_t atomic_cas(uint32_t* p, uint32_t expected, uint32_t desired) { return atomicCAS(p, expected, desired); }

// Whole elements of 2, 4 or 8 bytes, read and written at once.
template <int BYTES> struct AtomicWord;
template <> struct AtomicWord<2> { typedef uint16_t type; };
template <> struct AtomicWord<4> { typedef uint32_t type; };
template <> struct AtomicWord<8> { typedef unsigned long long type; };
template <class T> TW_DEVICE T atomic_load(const T* p) {
  return bit_cast<T>(typename AtomicWord<sizeof(T)>::type(*reinterpret_cast<const volatile typename AtomicWord<sizeof(T)>::type*>(p)));
}
template <class T> TW_DEVICE T atomic_store(T* p, T x) {
  *reinterpret_cast<volatile typename AtomicWord<sizeof(T)>::type*>(p) = bit_cast<typename AtomicWord<sizeof(T)>::type>(x);
  return x;
}

// Packed and vector sums into global memory, one access, each element atomic by itself, nothing returned.
TW_DEVICE void atomic_add_vector(half* p, const Vector<half, 2>& x) {
  asm volatile("red.global.add.noftz.f16x2 [%0], %1;" :: "l"(p), "r"(bit_cast<uint32_t>(x)) : "memory");
}
TW_DEVICE void atomic_add_vector(bfloat16* p, const Vector<bfloat16, 2>& x) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.noftz.bf16x2 [%0], %1;" :: "l"(p), "r"(bit_cast<uint32_t>(x)) : "memory");
#else
  atomic_add(p, x[0]);
  atomic_add(p + 1, x[1]);
#endif
}
#define TW_PACKED_ADD(T, SUFFIX)                                                                                                        \
  TW_DEVICE void atomic_add_vector(T* p, const Vector<T, 8>& x) {                                                                       \
    const uint4 w = bit_cast<uint4>(x);                                                                                                 \
    asm volatile("red.global.add.noftz.v4." SUFFIX " [%0], {%1, %2, %3, %4};" :: "l"(p), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w) : "memory"); \
  }
TW_PACKED_ADD(half, "f16x2")
TW_PACKED_ADD(bfloat16, "bf16x2")
#undef TW_PACKED_ADD
TW_DEVICE void atomic_add_vector(float* p, const Vector<float, 2>& x) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" :: "l"(p), "f"(x[0]), "f"(x[1]) : "memory");
#else
  atomicAdd(p, x[0]);
  atomicAdd(p + 1, x[1]);
#endif
}
TW_DEVICE void atomic_add_vector(float* p, const Vector<float, 4>& x) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" :: "l"(p), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) atomicAdd(p + i, x[i]);
#endif
}

// One element of BITS < 8 bits, whoever writes the others of its byte at the same time: only its own bits of the word change.
template <int BITS, class T> TW_DEVICE void set_packed(uint8_t* p, int64_t index, T value) {
  const uint64_t address = reinterpret_cast<uint64_t>(p + index / (8 / BITS));
  uint32_t* const word = reinterpret_cast<uint32_t*>(address & ~uint64_t(3));
  const uint32_t shift = uint32_t(address & 3) * 8 + uint32_t(index % (8 / BITS)) * BITS;
  atomicAnd(word, ~(Code<BITS>::mask << shift));
  atomicOr(word, Code<BITS>::of(value) << shift);
}

// The same of elements [offset, offset + N) of a fragment.
template <int N, class T, int SIZE> TW_DEVICE void atomic_add_fragment(T* p, const Fragment<T, SIZE>& fragment, int offset) {
  Vector<T, N> vector;
#pragma unroll
  for (int i = 0; i < N; ++i) vector[i] = fragment[offset + i];
  atomic_add_vector(p, vector);
}

// Flags between blocks: what was written before the release is seen after the acquire that reads it.
TW_DEVICE uint32_t load_acquire(const uint32_t* p) { uint32_t x; asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(p) : "memory"); return x; }
TW_DEVICE void store_release(uint32_t* p, uint32_t x) { asm volatile("st.release.gpu.global.b32 [%0], %1;" :: "l"(p), "r"(x) : "memory"); }
TW_DEVICE void add_release(uint32_t* p, uint32_t x) { asm volatile("red.release.gpu.global.add.u32 [%0], %1;" :: "l"(p), "r"(x) : "memory"); }

// Every block of a cooperative launch waits for every other.  `counter` is a word of global memory that was zero before its first use:
// each meeting of the blocks turns its highest bit over and leaves the others as they were, so it needs no care between launches.
TW_DEVICE void grid_sync(uint32_t* counter) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    const uint32_t blocks = gridDim.x * gridDim.y * gridDim.z;
    const bool first = blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
    __threadfence();
    const uint32_t before = atomicAdd(counter, first ? 0x80000000u - (blocks - 1) : 1u);
    while (((before ^ load_acquire(counter)) & 0x80000000u) == 0) __nanosleep(40);
    __threadfence();
  }
  __syncthreads();
}

}  // namespace tw
