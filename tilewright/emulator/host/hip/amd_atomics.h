// Atomic updates, by the core's.
#pragma once

#define __HIP_MEMORY_SCOPE_AGENT 4

namespace tw {
namespace machine {

template <class T> struct atomic_type;
template <> struct atomic_type<int32_t> { static constexpr uint32_t value = TW_AT_S32; };
template <> struct atomic_type<uint32_t> { static constexpr uint32_t value = TW_AT_U32; };
template <> struct atomic_type<int64_t> { static constexpr uint32_t value = TW_AT_S64; };
template <> struct atomic_type<uint64_t> { static constexpr uint32_t value = TW_AT_U64; };
template <> struct atomic_type<float> { static constexpr uint32_t value = TW_AT_F32; };
template <> struct atomic_type<double> { static constexpr uint32_t value = TW_AT_F64; };

// Bits are the same in words without sign.
template <class T> TW_DEVICE T update(uint32_t how, T* p, T x, ::TwSite site) {
  constexpr uint32_t kind = atomic_type<T>::value;
  const bool bitwise = how >= TW_ATOMIC_AND;
  const uint32_t type = bitwise && kind == TW_AT_S32 ? uint32_t(TW_AT_U32) : bitwise && kind == TW_AT_S64 ? uint32_t(TW_AT_U64) : kind;
  T old;
  ::tw_atomic(how, type, TW_RELAXED, p, &x, nullptr, &old, 1, site);
  return old;
}
TW_DEVICE bool compare_exchange(uint32_t* p, uint32_t& expected, uint32_t desired, ::TwSite site) {
  const uint32_t wanted = expected;
  ::tw_atomic(TW_ATOMIC_COMPARE, TW_AT_U32, TW_RELAXED, p, &desired, &wanted, &expected, 1, site);
  return expected == wanted;
}
template <class T> TW_DEVICE T atomic_read(const T* p, int order, ::TwSite site) {
  if (order == __ATOMIC_RELAXED && sizeof(T) == 4) return T(update(TW_ATOMIC_ADD, reinterpret_cast<uint32_t*>(const_cast<T*>(p)), 0u, site));
  if (order == __ATOMIC_RELAXED && sizeof(T) == 8) return T(update(TW_ATOMIC_ADD, reinterpret_cast<uint64_t*>(const_cast<T*>(p)), uint64_t(0), site));
  T x;
  ::tw_load_acquire(&x, p, sizeof(T), site);
  return x;
}
template <class T> TW_DEVICE void atomic_write(T* p, T x, int order, ::TwSite site) {
  if (order == __ATOMIC_RELAXED && sizeof(T) == 4) update(TW_ATOMIC_EXCHANGE, reinterpret_cast<uint32_t*>(p), uint32_t(x), site);
  else if (order == __ATOMIC_RELAXED && sizeof(T) == 8) update(TW_ATOMIC_EXCHANGE, reinterpret_cast<uint64_t*>(p), uint64_t(x), site);
  else ::tw_store_release(p, &x, sizeof(T), site);
}
// Two neighbours, each by itself.
template <class PAIR> TW_DEVICE void add_pair(uint32_t type, void* p, PAIR x, ::TwSite site) { ::tw_atomic(TW_ATOMIC_ADD, type, TW_RELAXED, p, &x, nullptr, nullptr, 2, site); }

}  // namespace machine
}  // namespace tw

#define __hip_atomic_fetch_add(p, x, order, scope) ::tw::machine::update(TW_ATOMIC_ADD, p, x, site)
#define __hip_atomic_fetch_min(p, x, order, scope) ::tw::machine::update(TW_ATOMIC_MIN, p, x, site)
#define __hip_atomic_fetch_max(p, x, order, scope) ::tw::machine::update(TW_ATOMIC_MAX, p, x, site)
#define __hip_atomic_fetch_and(p, x, order, scope) ::tw::machine::update(TW_ATOMIC_AND, p, x, site)
#define __hip_atomic_fetch_or(p, x, order, scope) ::tw::machine::update(TW_ATOMIC_OR, p, x, site)
#define __hip_atomic_fetch_xor(p, x, order, scope) ::tw::machine::update(TW_ATOMIC_XOR, p, x, site)
#define __hip_atomic_exchange(p, x, order, scope) ::tw::machine::update(TW_ATOMIC_EXCHANGE, p, x, site)
#define __hip_atomic_compare_exchange_strong(p, expected, desired, order, other_order, scope) ::tw::machine::compare_exchange(p, *(expected), desired, site)
#define __hip_atomic_load(p, order, scope) ::tw::machine::atomic_read(p, order, site)
#define __hip_atomic_store(p, x, order, scope) ::tw::machine::atomic_write(p, x, order, site)
#define __builtin_amdgcn_global_atomic_fadd_v2f16(p, x) ::tw::machine::add_pair(TW_AT_F16, p, x, site)
#define __builtin_amdgcn_global_atomic_fadd_v2bf16(p, x) ::tw::machine::add_pair(TW_AT_BF16, p, x, site)
#define TW_SET_BITS(byte, mask, bits) ::tw_set_bits(byte, mask, bits, site)
#define TW_COUNT_THREADS(condition) int(::tw_sync_threads_count(condition, 0, site))
