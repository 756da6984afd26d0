// Atomic functions (6.15): relaxed, on words of 32 bits, and sums of floats.
#pragma once

enum memory_order { memory_order_relaxed };
template <class T> struct tw_atomic_of { T value; };
typedef tw_atomic_of<int> atomic_int;
typedef tw_atomic_of<uint> atomic_uint;
typedef tw_atomic_of<float> atomic_float;

namespace metal {

inline tw_u32 tw_type_of(int) { return TW_AT_S32; }
inline tw_u32 tw_type_of(uint) { return TW_AT_U32; }
inline tw_u32 tw_type_of(float) { return TW_AT_F32; }
template <class T> inline T tw_change(tw_u32 how, tw_atomic_of<T>* p, T x, TwSite site) {
  T old;
  ::tw_atomic(how, tw_type_of(x), TW_RELAXED, p, &x, nullptr, &old, 1, site);
  return old;
}
#define TW_CHANGE(NAME, HOW, T) inline T NAME(tw_atomic_of<T>* p, T x, memory_order, TW_SITE) { return tw_change(HOW, p, x, site); }
#define TW_WHOLE(NAME, HOW) TW_CHANGE(NAME, HOW, int) TW_CHANGE(NAME, HOW, uint)
TW_WHOLE(atomic_fetch_add_explicit, TW_ATOMIC_ADD)
TW_CHANGE(atomic_fetch_add_explicit, TW_ATOMIC_ADD, float)
TW_WHOLE(atomic_fetch_min_explicit, TW_ATOMIC_MIN)
TW_WHOLE(atomic_fetch_max_explicit, TW_ATOMIC_MAX)
TW_WHOLE(atomic_fetch_and_explicit, TW_ATOMIC_AND)
TW_WHOLE(atomic_fetch_or_explicit, TW_ATOMIC_OR)
TW_WHOLE(atomic_fetch_xor_explicit, TW_ATOMIC_XOR)
TW_WHOLE(atomic_exchange_explicit, TW_ATOMIC_EXCHANGE)
#undef TW_WHOLE
#undef TW_CHANGE
template <class T> inline T atomic_load_explicit(const tw_atomic_of<T>* p, memory_order, TW_SITE) {
  return tw_change(TW_ATOMIC_OR, reinterpret_cast<tw_atomic_of<uint>*>(const_cast<tw_atomic_of<T>*>(p)), 0u, site);
}
template <class T> inline void atomic_store_explicit(tw_atomic_of<T>* p, T x, memory_order, TW_SITE) {
  tw_change(TW_ATOMIC_EXCHANGE, p, x, site);
}
inline bool atomic_compare_exchange_weak_explicit(atomic_uint* p, uint* expected, uint desired, memory_order, memory_order, TW_SITE) {
  uint old;
  const uint wanted = *expected;
  ::tw_atomic(TW_ATOMIC_COMPARE, TW_AT_U32, TW_RELAXED, p, &desired, &wanted, &old, 1, site);
  *expected = old;
  return old == wanted;
}

// Of a byte some bits, whoever uses the others: the core knows which they are.
inline void tw_change_bits(uchar* byte, uint mask, uint bits, TW_SITE) { ::tw_set_bits(byte, mask, bits, site); }
inline uint tw_read_bits(const uchar* byte, uint mask, TW_SITE) { return ::tw_get_bits(byte, mask, site); }
#define TW_SET_BITS(SPACE, byte, mask, bits) ::metal::tw_change_bits(byte, mask, bits)
#define TW_GET_BITS(byte, mask) ::metal::tw_read_bits(byte, mask)

}  // namespace metal
