// Atomic updates of global and shared memory, packed and vector forms, and accesses that order others.
#pragma once

namespace tw {

template <class T> struct atomic_type;
template <> struct atomic_type<int32_t> { static constexpr uint32_t value = TW_AT_S32; };
template <> struct atomic_type<uint32_t> { static constexpr uint32_t value = TW_AT_U32; };
template <> struct atomic_type<int64_t> { static constexpr uint32_t value = TW_AT_S64; };
template <> struct atomic_type<uint64_t> { static constexpr uint32_t value = TW_AT_U64; };
template <> struct atomic_type<float> { static constexpr uint32_t value = TW_AT_F32; };
template <> struct atomic_type<double> { static constexpr uint32_t value = TW_AT_F64; };
template <> struct atomic_type<half> { static constexpr uint32_t value = TW_AT_F16; };
template <> struct atomic_type<bfloat16> { static constexpr uint32_t value = TW_AT_BF16; };

template <class T> TW_DEVICE T atomic_any(uint32_t how, T* p, T x, TwSite site) {
  T old;
  ::tw_atomic(how, atomic_type<T>::value, TW_RELAXED, p, &x, nullptr, &old, 1, site);
  return old;
}
#define TW_ATOMIC(NAME, HOW, T) TW_DEVICE T NAME(T* p, T x, TW_SITE) { return atomic_any<T>(HOW, p, x, site); }
TW_ATOMIC(atomic_add, TW_ATOMIC_ADD, int32_t)
TW_ATOMIC(atomic_add, TW_ATOMIC_ADD, uint32_t)
TW_ATOMIC(atomic_add, TW_ATOMIC_ADD, int64_t)
TW_ATOMIC(atomic_add, TW_ATOMIC_ADD, uint64_t)
TW_ATOMIC(atomic_add, TW_ATOMIC_ADD, float)
TW_ATOMIC(atomic_add, TW_ATOMIC_ADD, double)
TW_ATOMIC(atomic_add, TW_ATOMIC_ADD, half)
TW_ATOMIC(atomic_add, TW_ATOMIC_ADD, bfloat16)
TW_ATOMIC(atomic_min, TW_ATOMIC_MIN, int32_t)
TW_ATOMIC(atomic_min, TW_ATOMIC_MIN, uint32_t)
TW_ATOMIC(atomic_min, TW_ATOMIC_MIN, int64_t)
TW_ATOMIC(atomic_min, TW_ATOMIC_MIN, uint64_t)
TW_ATOMIC(atomic_min, TW_ATOMIC_MIN, float)
TW_ATOMIC(atomic_max, TW_ATOMIC_MAX, int32_t)
TW_ATOMIC(atomic_max, TW_ATOMIC_MAX, uint32_t)
TW_ATOMIC(atomic_max, TW_ATOMIC_MAX, int64_t)
TW_ATOMIC(atomic_max, TW_ATOMIC_MAX, uint64_t)
TW_ATOMIC(atomic_max, TW_ATOMIC_MAX, float)
TW_ATOMIC(atomic_min, TW_ATOMIC_MIN, double)
TW_ATOMIC(atomic_min, TW_ATOMIC_MIN, half)
TW_ATOMIC(atomic_min, TW_ATOMIC_MIN, bfloat16)
TW_ATOMIC(atomic_max, TW_ATOMIC_MAX, double)
TW_ATOMIC(atomic_max, TW_ATOMIC_MAX, half)
TW_ATOMIC(atomic_max, TW_ATOMIC_MAX, bfloat16)
#undef TW_ATOMIC
#define TW_ATOMIC_BITS(NAME, HOW, T, BITS) \
  TW_DEVICE T NAME(T* p, T x, TW_SITE) { return T(atomic_any<BITS>(HOW, reinterpret_cast<BITS*>(p), BITS(x), site)); }
#define TW_ATOMIC(NAME, HOW)                    \
  TW_ATOMIC_BITS(NAME, HOW, int32_t, uint32_t)  \
  TW_ATOMIC_BITS(NAME, HOW, uint32_t, uint32_t) \
  TW_ATOMIC_BITS(NAME, HOW, int64_t, uint64_t)  \
  TW_ATOMIC_BITS(NAME, HOW, uint64_t, uint64_t)
TW_ATOMIC(atomic_and, TW_ATOMIC_AND)
TW_ATOMIC(atomic_or, TW_ATOMIC_OR)
TW_ATOMIC(atomic_xor, TW_ATOMIC_XOR)
TW_ATOMIC(atomic_exchange, TW_ATOMIC_EXCHANGE)
#undef TW_ATOMIC
#undef TW_ATOMIC_BITS
TW_DEVICE uint32_t atomic_cas(uint32_t* p, uint32_t expected, uint32_t desired, TW_SITE) {
  uint32_t old;
  ::tw_atomic(TW_ATOMIC_COMPARE, TW_AT_U32, TW_RELAXED, p, &desired, &expected, &old, 1, site);
  return old;
}
template <class T> TW_DEVICE T atomic_load(const T* p, TW_SITE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 2, "an atomic load reads 2, 4 or 8 bytes");
  if constexpr (sizeof(T) == 4) return bit_cast<T>(atomic_any<uint32_t>(TW_ATOMIC_ADD, reinterpret_cast<uint32_t*>(const_cast<T*>(p)), 0, site));
  else if constexpr (sizeof(T) == 8) return bit_cast<T>(atomic_any<uint64_t>(TW_ATOMIC_ADD, reinterpret_cast<uint64_t*>(const_cast<T*>(p)), 0, site));
  T x;
  ::tw_load_acquire(&x, p, sizeof(T), site);
  return x;
}
template <class T> TW_DEVICE T atomic_store(T* p, T x, TW_SITE) {
  if constexpr (sizeof(T) == 4) atomic_any<uint32_t>(TW_ATOMIC_EXCHANGE, reinterpret_cast<uint32_t*>(p), bit_cast<uint32_t>(x), site);
  else if constexpr (sizeof(T) == 8) atomic_any<uint64_t>(TW_ATOMIC_EXCHANGE, reinterpret_cast<uint64_t*>(p), bit_cast<uint64_t>(x), site);
  else ::tw_store_release(p, &x, sizeof(T), site);
  return x;
}
template <class T, int N> TW_DEVICE void atomic_add_vector(T* p, const Vector<T, N>& x, TW_SITE) {
  ::tw_atomic(TW_ATOMIC_ADD, atomic_type<T>::value, TW_RELAXED, p, &x, nullptr, nullptr, N, site);
}

template <int BITS, class T> TW_DEVICE void set_packed(uint8_t* p, int64_t index, T value, TW_SITE) {
  const int shift = int(index % (8 / BITS)) * BITS;
  ::tw_set_bits(p + index / (8 / BITS), Code<BITS>::mask << shift, Code<BITS>::of(value) << shift, site);
}

template <int N, class T, int SIZE> TW_DEVICE void atomic_add_fragment(T* p, const Fragment<T, SIZE>& fragment, int offset, TW_SITE) {
  Vector<T, N> vector;
  for (int i = 0; i < N; ++i) vector[i] = fragment[offset + i];
  atomic_add_vector(p, vector, site);
}

TW_DEVICE uint32_t load_acquire(const uint32_t* p, TW_SITE) {
  uint32_t x;
  ::tw_load_acquire(&x, p, 4, site);
  return x;
}
TW_DEVICE void store_release(uint32_t* p, uint32_t x, TW_SITE) { ::tw_store_release(p, &x, 4, site); }
TW_DEVICE void add_release(uint32_t* p, uint32_t x, TW_SITE) { ::tw_atomic(TW_ATOMIC_ADD, TW_AT_U32, TW_RELEASES, p, &x, nullptr, nullptr, 1, site); }

TW_DEVICE void grid_sync(uint32_t* counter, TW_SITE) {
  const TwThread& mine = *::tw_thread();
  ::tw_sync_threads(site);
  if (mine.thread_index.x == 0 && mine.thread_index.y == 0 && mine.thread_index.z == 0) {
    const uint32_t blocks = mine.grid_dim.x * mine.grid_dim.y * mine.grid_dim.z;
    const bool first = mine.block_index.x == 0 && mine.block_index.y == 0 && mine.block_index.z == 0;
    const uint32_t added = first ? 0x80000000u - (blocks - 1) : 1u;
    uint32_t before;
    ::tw_fence(2, site);
    ::tw_atomic(TW_ATOMIC_ADD, TW_AT_U32, TW_RELEASES, counter, &added, nullptr, &before, 1, site);
    while (((before ^ load_acquire(counter, site)) & 0x80000000u) == 0) {}
    ::tw_fence(2, site);
  }
  ::tw_sync_threads(site);
}

}  // namespace tw
