// Atomic updates of global and shared memory (relaxed, device-wide), packed and vector forms, and accesses that order others.
#pragma once

namespace tw {

#define TW_UPDATE(FUNCTION, p, x) __hip_atomic_fetch_##FUNCTION(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)

// Each returns the old value.
#define TW_ATOMIC(NAME, FUNCTION, T) TW_DEVICE T NAME(T* p, T x, TW_SITE) { TW_AT(site); return TW_UPDATE(FUNCTION, p, x); }
#define TW_ATOMIC_INTEGERS(NAME, FUNCTION) \
  TW_ATOMIC(NAME, FUNCTION, int32_t)       \
  TW_ATOMIC(NAME, FUNCTION, uint32_t)      \
  TW_ATOMIC(NAME, FUNCTION, int64_t)       \
  TW_ATOMIC(NAME, FUNCTION, uint64_t)
TW_ATOMIC_INTEGERS(atomic_add, add)
TW_ATOMIC_INTEGERS(atomic_min, min)
TW_ATOMIC_INTEGERS(atomic_max, max)
TW_ATOMIC_INTEGERS(atomic_and, and)
TW_ATOMIC_INTEGERS(atomic_or, or)
TW_ATOMIC_INTEGERS(atomic_xor, xor)
TW_ATOMIC(atomic_add, add, float)
TW_ATOMIC(atomic_add, add, double)
#undef TW_ATOMIC_INTEGERS
#undef TW_ATOMIC
#define TW_EXCHANGE(T) TW_DEVICE T atomic_exchange(T* p, T x, TW_SITE) { TW_AT(site); return __hip_atomic_exchange(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
TW_EXCHANGE(int32_t)
TW_EXCHANGE(uint32_t)
TW_EXCHANGE(int64_t)
TW_EXCHANGE(uint64_t)
#undef TW_EXCHANGE
TW_DEVICE uint32_t atomic_cas(uint32_t* p, uint32_t expected, uint32_t desired, TW_SITE) {
  TW_AT(site);
  __hip_atomic_compare_exchange_strong(p, &expected, desired, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}

// Floats are ordered as signed integers where positive, as reversed unsigned ones where negative; -0 counts below +0, NaN is not kept.
TW_DEVICE float atomic_max(float* p, float x, TW_SITE) {
  return x != x ? atomic_add(p, 0.0f, site)
         : float_bits(x) >> 31 ? bits_float(atomic_min(reinterpret_cast<uint32_t*>(p), float_bits(x), site))
                               : bits_float(uint32_t(atomic_max(reinterpret_cast<int32_t*>(p), int32_t(float_bits(x)), site)));
}
TW_DEVICE float atomic_min(float* p, float x, TW_SITE) {
  return x != x ? atomic_add(p, 0.0f, site)
         : float_bits(x) >> 31 ? bits_float(atomic_max(reinterpret_cast<uint32_t*>(p), float_bits(x), site))
                               : bits_float(uint32_t(atomic_min(reinterpret_cast<int32_t*>(p), int32_t(float_bits(x)), site)));
}

// A half word: the word around it is exchanged until nobody came between.
#ifndef TW_HALF_OF_WORD   // the emulator is told which bytes of the word are looked at
#define TW_HALF_OF_WORD(p)
#endif
template <class T> TW_DEVICE T add_in_word(T* p, T x, TwSite site) {
  TW_HALF_OF_WORD(p)
  const uint32_t within = uint32_t(reinterpret_cast<uint64_t>(p)) & 2u;   // a step back keeps the pointer's memory, which a mask would not
  uint32_t* const word = reinterpret_cast<uint32_t*>(reinterpret_cast<uint8_t*>(p) - within);
  const uint32_t shift = within * 8;
  uint32_t seen = atomic_or(word, 0u, site), expected;
  do {
    expected = seen;
    const uint16_t sum = (T{uint16_t(expected >> shift)} + x).bits;
    seen = atomic_cas(word, expected, (expected & ~(0xFFFFu << shift)) | uint32_t(sum) << shift, site);
  } while (seen != expected);
  return T{uint16_t(seen >> shift)};
}
TW_DEVICE half atomic_add(half* p, half x, TW_SITE) { return add_in_word(p, x, site); }
TW_DEVICE bfloat16 atomic_add(bfloat16* p, bfloat16 x, TW_SITE) { return add_in_word(p, x, site); }

// Whole elements of 2, 4 or 8 bytes, read and written at once.
template <int BYTES> struct AtomicWord;
template <> struct AtomicWord<2> { typedef uint16_t TW_ANY type; };
template <> struct AtomicWord<4> { typedef uint32_t TW_ANY type; };
template <> struct AtomicWord<8> { typedef uint64_t TW_ANY type; };
template <class T> TW_DEVICE T atomic_load(const T* p, TW_SITE) {
  TW_AT(site);
  typedef typename AtomicWord<sizeof(T)>::type Word;
  return bit_cast<T>(Word(__hip_atomic_load(reinterpret_cast<const Word*>(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)));
}
template <class T> TW_DEVICE T atomic_store(T* p, T x, TW_SITE) {
  TW_AT(site);
  typedef typename AtomicWord<sizeof(T)>::type Word;
  __hip_atomic_store(reinterpret_cast<Word*>(p), bit_cast<Word>(x), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  return x;
}

// Sums of neighbours in global memory, each element atomic by itself, nothing returned.
template <class T, int N> TW_DEVICE void atomic_add_vector(T* p, const Vector<T, N>& x, TW_SITE) {
#pragma unroll
  for (int i = 0; i < N; ++i) atomic_add(p + i, x[i], site);
}
#if defined(TW_GFX90A) || defined(TW_GFX942) || defined(TW_GFX950) || defined(TW_GFX1201)
TW_DEVICE void atomic_add_vector(half* p, const Vector<half, 2>& x, TW_SITE) {
  TW_AT(site);
  __builtin_amdgcn_global_atomic_fadd_v2f16((machine::GlobalPair*)p, bit_cast<machine::Pair>(x));
}
#endif
#if defined(TW_GFX942) || defined(TW_GFX950) || defined(TW_GFX1201)
TW_DEVICE void atomic_add_vector(bfloat16* p, const Vector<bfloat16, 2>& x, TW_SITE) {
  TW_AT(site);
  __builtin_amdgcn_global_atomic_fadd_v2bf16((machine::GlobalShortPair*)p, bit_cast<machine::ShortPair>(x));
}
#endif
template <int N, class T, int SIZE> TW_DEVICE void atomic_add_fragment(T* p, const Fragment<T, SIZE>& fragment, int offset, TW_SITE) {
  Vector<T, N> vector;
#pragma unroll
  for (int i = 0; i < N; ++i) vector[i] = fragment[offset + i];
  atomic_add_vector(p, vector, site);
}

// One element of BITS < 8 bits, whoever writes the others of its byte at the same time: only its own bits of the word change.
template <int BITS, class T> TW_DEVICE void set_packed(uint8_t* p, int64_t index, T value, TW_SITE) {
  TW_AT(site);
  const uint32_t shift = uint32_t(index % (8 / BITS)) * BITS;
  TW_SET_BITS(p + index / (8 / BITS), Code<BITS>::mask << shift, Code<BITS>::of(value) << shift);
}

// Flags between blocks: what was written before the release is seen after the acquire that reads it.
TW_DEVICE uint32_t load_acquire(const uint32_t* p, TW_SITE) { TW_AT(site); return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT); }
TW_DEVICE void store_release(uint32_t* p, uint32_t x, TW_SITE) { TW_AT(site); __hip_atomic_store(p, x, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT); }

// Every block of a cooperative launch waits for every other.  `counter` is a word of global memory that was zero before its first use:
// each meeting of the blocks turns its highest bit over and leaves the others as they were, so it needs no care between launches.
TW_DEVICE void grid_sync(uint32_t* counter, TW_SITE) {
  sync_threads(site);
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    const TwIndex grid = gridDim, block = blockIdx;
    const uint32_t blocks = grid.x * grid.y * grid.z;
    const bool first = block.x == 0 && block.y == 0 && block.z == 0;
    fence_device(site);
    const uint32_t before = atomic_add(counter, first ? 0x80000000u - (blocks - 1) : 1u, site);
    while (((before ^ load_acquire(counter, site)) & 0x80000000u) == 0) __builtin_amdgcn_s_sleep(2);
    fence_device(site);
  }
  sync_threads(site);
}
#undef TW_UPDATE

}  // namespace tw
