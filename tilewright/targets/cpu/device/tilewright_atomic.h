/* Atomic updates of one element of memory, included where a kernel has some. */
#ifndef TILEWRIGHT_ATOMIC_H
#define TILEWRIGHT_ATOMIC_H

/* The old value comes back.  Floats go by compare-and-exchange of their bits.  "own" is for memory of one block: no other
 * operating-system thread sees it, and an atomic instruction takes ten times as long as a sum. */
#define TW_ATOMIC_SWAP(kind, T, bits_type, ARGUMENT, TO_BITS, FROM_BITS, COMBINED)       \
  TW_INLINE ARGUMENT tw_atomic_##kind##_##T(T *p, ARGUMENT value) {                     \
    bits_type *place = (bits_type *)p, before = __atomic_load_n(place, __ATOMIC_RELAXED); \
    for (;;) {                                                                           \
      ARGUMENT old = FROM_BITS(before);                                                 \
      (void)old;                                                                         \
      if (__atomic_compare_exchange_n(place, &before, TO_BITS(COMBINED), true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return old; \
    }                                                                                    \
  }                                                                                      \
  TW_OWN(kind, T, ARGUMENT, COMBINED)
#define TW_OWN(kind, T, ARGUMENT, COMBINED)                                              \
  TW_INLINE ARGUMENT tw_own_##kind##_##T(T *p, ARGUMENT value) {                        \
    const ARGUMENT old = *p;                                                             \
    *p = COMBINED;                                                                       \
    return old;                                                                          \
  }
#define TW_SAME(x) (x)
#define TW_ATOMIC_INTEGER(T)                                                             \
  TW_OWN(add, T, T, old + value)                                     \
  TW_OWN(and, T, T, old & value)                                                         \
  TW_OWN(or, T, T, old | value)                                                          \
  TW_OWN(xor, T, T, old ^ value)                                                         \
  TW_INLINE T tw_atomic_add_##T(T *p, T value) { return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST); } \
  TW_INLINE T tw_atomic_and_##T(T *p, T value) { return __atomic_fetch_and(p, value, __ATOMIC_SEQ_CST); } \
  TW_INLINE T tw_atomic_or_##T(T *p, T value) { return __atomic_fetch_or(p, value, __ATOMIC_SEQ_CST); } \
  TW_INLINE T tw_atomic_xor_##T(T *p, T value) { return __atomic_fetch_xor(p, value, __ATOMIC_SEQ_CST); } \
  TW_ATOMIC_SWAP(max, T, T, T, TW_SAME, TW_SAME, old > value ? old : value)              \
  TW_ATOMIC_SWAP(min, T, T, T, TW_SAME, TW_SAME, old < value ? old : value)              \
  TW_ATOMIC_MOVES(T)
#define TW_ATOMIC_MOVES(T)                                                               \
  TW_OWN(exchange, T, T, value)                                                          \
  TW_INLINE T tw_atomic_exchange_##T(T *p, T value) { T old; __atomic_exchange(p, &value, &old, __ATOMIC_SEQ_CST); return old; } \
  TW_INLINE T tw_atomic_load_##T(const T *p) { T value; __atomic_load(p, &value, __ATOMIC_SEQ_CST); return value; } \
  TW_INLINE T tw_atomic_store_##T(T *p, T value) { __atomic_store(p, &value, __ATOMIC_SEQ_CST); return value; }
TW_ATOMIC_INTEGER(i8)
TW_ATOMIC_INTEGER(i16)
TW_ATOMIC_INTEGER(i32)
TW_ATOMIC_INTEGER(i64)
TW_ATOMIC_INTEGER(u8)
TW_ATOMIC_INTEGER(u16)
TW_ATOMIC_INTEGER(u32)
TW_ATOMIC_INTEGER(u64)
#define TW_ATOMIC_FLOAT(T, bits_type, WIDE, TO_BITS, FROM_BITS)                          \
  TW_ATOMIC_SWAP(add, T, bits_type, WIDE, TO_BITS, FROM_BITS, old + value)               \
  TW_ATOMIC_SWAP(max, T, bits_type, WIDE, TO_BITS, FROM_BITS, (old > value || value != value) ? old : value) \
  TW_ATOMIC_SWAP(min, T, bits_type, WIDE, TO_BITS, FROM_BITS, (old < value || value != value) ? old : value)
TW_ATOMIC_FLOAT(f32, u32, f32, tw_bits_f32, tw_float_u32)
TW_ATOMIC_FLOAT(f64, u64, f64, tw_bits_f64, tw_double_u64)
TW_ATOMIC_MOVES(f32)
TW_ATOMIC_MOVES(f64)
#define TW_ATOMIC_NARROW(T)                                                              \
  TW_ATOMIC_SWAP(add, T, u16, u16, TW_SAME, TW_SAME, tw_##T##_from_f32(tw_f32_from_##T(old) + tw_f32_from_##T(value))) \
  TW_ATOMIC_SWAP(max, T, u16, u16, TW_SAME, TW_SAME, tw_##T##_from_f32(tw_max_f32(tw_f32_from_##T(old), tw_f32_from_##T(value)))) \
  TW_ATOMIC_SWAP(min, T, u16, u16, TW_SAME, TW_SAME, tw_##T##_from_f32(tw_min_f32(tw_f32_from_##T(old), tw_f32_from_##T(value)))) \
  TW_ATOMIC_MOVES(T)
TW_ATOMIC_NARROW(f16)
TW_ATOMIC_NARROW(bf16)

#endif
