/* Types and functions for one number of lanes; include it with LANES defined, once a number.
 *
 * LANES == 1 gives the scalar functions (tw_exp_f32), any other the vector ones (tw_exp_f32x16).  A
 * comparison of vectors gives a mask: a signed integer vector of the operands' width, 0 or -1 a lane. */

#undef V
#undef FN
#undef SELECT
#undef CONVERT
#undef SPLAT

#if LANES == 1

#define V(type) type
#define FN(name) TW_JOIN(tw_, name)
#define SELECT(mask, then, otherwise, type) ((mask) ? (then) : (otherwise))
#define CONVERT(value, type) ((type)(value))
#define SPLAT(value, type) ((type)(value))
TW_INLINE u32 tw_bits_f32(f32 x) { u32 r; memcpy(&r, &x, 4); return r; }
TW_INLINE f32 tw_float_u32(u32 x) { f32 r; memcpy(&r, &x, 4); return r; }
TW_INLINE u64 tw_bits_f64(f64 x) { u64 r; memcpy(&r, &x, 8); return r; }
TW_INLINE f64 tw_double_u64(u64 x) { f64 r; memcpy(&r, &x, 8); return r; }
#define TW_EACH_LANE(result, expression) { const int lane = 0; (void)lane; result = expression; }
#define TW_LANE(x) (x)

#else

#define TW_TYPE(type) TW_JOIN(type, TW_JOIN(x, LANES))
#define V(type) TW_TYPE(type)
#define FN(name) TW_JOIN(TW_JOIN(tw_, name), TW_JOIN(x, LANES))
#define CONVERT(value, type) __builtin_convertvector(value, V(type))
#define SPLAT(value, type) ((type)(value) - (V(type)){})
#define SELECT(mask, then, otherwise, type)                                                    \
  ({ __typeof__(mask) select_mask = (mask);                                                    \
     (V(type))((select_mask & (__typeof__(mask))(V(type))(then)) |                             \
               (~select_mask & (__typeof__(mask))(V(type))(otherwise))); })

#define TW_VECTOR_TYPE(type)                                                                   \
  typedef type V(type) __attribute__((vector_size(sizeof(type) * LANES)));                     \
  typedef type TW_JOIN(V(type), _u) __attribute__((vector_size(sizeof(type) * LANES), aligned(sizeof(type)), may_alias)); \
  TW_INLINE V(type) TW_JOIN(tw_load_, V(type))(const void *p) { return *(const TW_JOIN(V(type), _u) *)p; } \
  TW_INLINE void TW_JOIN(tw_store_, V(type))(void *p, V(type) x) { *(TW_JOIN(V(type), _u) *)p = x; } \
  TW_INLINE void TW_JOIN(tw_stream_, V(type))(void *p, V(type) x, bool large) {                \
    if (!large || !tw_stream_bytes(p, &x, sizeof x)) TW_JOIN(tw_store_, V(type))(p, x);        \
  }                                                                                            \
  TW_INLINE void TW_JOIN(tw_stream_2_, V(type))(void *to, V(type) a, V(type) b, bool large) {   \
    char *p = to;                                                                              \
    if (large && tw_stream_two(p, &a, &b, sizeof a)) return;                                   \
    TW_JOIN(tw_store_, V(type))(p, a);                                                         \
    TW_JOIN(tw_store_, V(type))(p + sizeof a, b);                                              \
  }                                                                                            \
  TW_INLINE void TW_JOIN(tw_stream_4_, V(type))(void *to, V(type) a, V(type) b, V(type) c, V(type) d, bool large) { \
    char *p = to;                                                                              \
    if (large && tw_stream_four(p, &a, &b, &c, &d, sizeof a)) return;                          \
    TW_JOIN(tw_store_, V(type))(p, a);                                                         \
    TW_JOIN(tw_store_, V(type))(p + sizeof a, b);                                              \
    TW_JOIN(tw_store_, V(type))(p + 2 * sizeof a, c);                                          \
    TW_JOIN(tw_store_, V(type))(p + 3 * sizeof a, d);                                          \
  }                                                                                            \
  TW_INLINE V(type) TW_JOIN(tw_load_first_, V(type))(const void *p, int64_t count) {           \
    V(type) x = {};                                                                            \
    tw_move_first(&x, p, count * sizeof(type), sizeof x, sizeof(type), true);                  \
    return x;                                                                                  \
  }                                                                                            \
  TW_INLINE void TW_JOIN(tw_store_first_, V(type))(void *p, V(type) x, int64_t count) {        \
    tw_move_first(p, &x, count * sizeof(type), sizeof x, sizeof(type), false);                 \
  }                                                                                            \
  TW_INLINE V(type) TW_JOIN(tw_splat_, V(type))(type x) { return SPLAT(x, type); }
TW_VECTOR_TYPE(f32)
TW_VECTOR_TYPE(f64)
TW_VECTOR_TYPE(i8)
TW_VECTOR_TYPE(i16)
TW_VECTOR_TYPE(i32)
TW_VECTOR_TYPE(i64)
TW_VECTOR_TYPE(u8)
TW_VECTOR_TYPE(u16)
TW_VECTOR_TYPE(u32)
TW_VECTOR_TYPE(u64)

TW_INLINE V(u32) FN(bits_f32)(V(f32) x) { return (V(u32))x; }
TW_INLINE V(f32) FN(float_u32)(V(u32) x) { return (V(f32))x; }
TW_INLINE V(u64) FN(bits_f64)(V(f64) x) { return (V(u64))x; }
TW_INLINE V(f64) FN(double_u64)(V(u64) x) { return (V(f64))x; }
#define TW_EACH_LANE(result, expression) for (int lane = 0; lane < LANES; lane++) result = expression;
#define TW_LANE(x) (x)[lane]

/* A select keeps the lane width of its mask: 8, 16, 32 or 64 bits. */
#define TW_SELECT_FUNCTION(type, mask)                                                         \
  TW_INLINE V(type) TW_JOIN(tw_select_, V(type))(V(mask) m, V(type) a, V(type) b) { return SELECT(m, a, b, type); }
TW_SELECT_FUNCTION(f32, i32)
TW_SELECT_FUNCTION(f64, i64)
TW_SELECT_FUNCTION(i8, i8)
TW_SELECT_FUNCTION(i16, i16)
TW_SELECT_FUNCTION(i32, i32)
TW_SELECT_FUNCTION(i64, i64)
TW_SELECT_FUNCTION(u8, i8)
TW_SELECT_FUNCTION(u16, i16)
TW_SELECT_FUNCTION(u32, i32)
TW_SELECT_FUNCTION(u64, i64)

/* 0, 1, 2, ... and reductions over the lanes (pairwise, so that the depth of a sum is log2 of the lanes). */
TW_INLINE V(i32) FN(lane_index_i32)(void) { V(i32) r; for (int lane = 0; lane < LANES; lane++) r[lane] = lane; return r; }
TW_INLINE V(i64) FN(lane_index_i64)(void) { V(i64) r; for (int lane = 0; lane < LANES; lane++) r[lane] = lane; return r; }

/* Every lane with the one whose number differs in one bit.  GCC shuffles registers; Clang sees that the loop does. */
#if defined(__clang__)
#define TW_NEIGHBOUR(x, bit, type, index)                                                      \
  ({ V(type) moved; for (int lane = 0; lane < LANES; lane++) moved[lane] = (x)[lane ^ (bit)]; moved; })
#else
#define TW_NEIGHBOUR(x, bit, type, index) __builtin_shuffle(x, (V(index)){TW_JOIN(TW_UP_TO_, LANES)} ^ (index)(bit))
#endif
/* Every other lane of two vectors that follow one another. */
#if defined(__clang__)
#define TW_EVERY_OTHER(a, b, odd, type, index)                                                 \
  ({ V(type) left; for (int lane = 0; lane < LANES; lane++) {                                  \
       const int from = 2 * lane + (odd); left[lane] = from < LANES ? (a)[from % LANES] : (b)[from % LANES]; } left; })
#else
#define TW_EVERY_OTHER(a, b, odd, type, index)                                                 \
  __builtin_shuffle(a, b, (V(index)){TW_JOIN(TW_UP_TO_, LANES)} * (index)2 + (index)(odd))
#endif
#define TW_EVERY_OTHER_FUNCTION(type, index)                                                   \
  TW_INLINE V(type) TW_JOIN(tw_even_lanes_, V(type))(V(type) a, V(type) b) { return TW_EVERY_OTHER(a, b, 0, type, index); } \
  TW_INLINE V(type) TW_JOIN(tw_odd_lanes_, V(type))(V(type) a, V(type) b) { return TW_EVERY_OTHER(a, b, 1, type, index); }
TW_EVERY_OTHER_FUNCTION(f32, i32)
TW_EVERY_OTHER_FUNCTION(f64, i64)
TW_EVERY_OTHER_FUNCTION(i8, u8)
TW_EVERY_OTHER_FUNCTION(i16, i16)
TW_EVERY_OTHER_FUNCTION(i32, i32)
TW_EVERY_OTHER_FUNCTION(i64, i64)
TW_EVERY_OTHER_FUNCTION(u8, u8)
TW_EVERY_OTHER_FUNCTION(u16, i16)
TW_EVERY_OTHER_FUNCTION(u32, i32)
TW_EVERY_OTHER_FUNCTION(u64, i64)

#define TW_LANES_ROUND(bit, type, index, COMBINE)                                              \
  if (LANES > bit) { V(type) a = x, b = TW_NEIGHBOUR(x, bit % LANES, type, index); x = COMBINE; }
#define TW_LANES_REDUCE(name, type, index, COMBINE)                                            \
  TW_INLINE type TW_JOIN(tw_lanes_##name##_, V(type))(V(type) x) {                             \
    TW_LANES_ROUND(32, type, index, COMBINE)                                                   \
    TW_LANES_ROUND(16, type, index, COMBINE)                                                   \
    TW_LANES_ROUND(8, type, index, COMBINE)                                                    \
    TW_LANES_ROUND(4, type, index, COMBINE)                                                    \
    TW_LANES_ROUND(2, type, index, COMBINE)                                                    \
    TW_LANES_ROUND(1, type, index, COMBINE)                                                    \
    return x[0];                                                                               \
  }
#define TW_LANES_REDUCE_INTEGER(type, index)                                                   \
  TW_LANES_REDUCE(add, type, index, a + b)                                                     \
  TW_LANES_REDUCE(mul, type, index, a * b)                                                     \
  TW_LANES_REDUCE(min, type, index, SELECT(a < b, a, b, type))                                 \
  TW_LANES_REDUCE(max, type, index, SELECT(a > b, a, b, type))                                 \
  TW_LANES_REDUCE(and, type, index, a & b)                                                     \
  TW_LANES_REDUCE(or, type, index, a | b)                                                      \
  TW_LANES_REDUCE(xor, type, index, a ^ b)
TW_LANES_REDUCE_INTEGER(i8, i8)
TW_LANES_REDUCE_INTEGER(i16, i16)
TW_LANES_REDUCE_INTEGER(i32, i32)
TW_LANES_REDUCE_INTEGER(i64, i64)
TW_LANES_REDUCE_INTEGER(u8, i8)
TW_LANES_REDUCE_INTEGER(u16, i16)
TW_LANES_REDUCE_INTEGER(u32, i32)
TW_LANES_REDUCE_INTEGER(u64, i64)
#define TW_LANES_REDUCE_FLOAT(type, index)                                                     \
  TW_LANES_REDUCE(add, type, index, a + b)                                                     \
  TW_LANES_REDUCE(mul, type, index, a *b)                                                      \
  TW_LANES_REDUCE(min, type, index, SELECT((a < b) | (b != b), a, b, type))                    \
  TW_LANES_REDUCE(max, type, index, SELECT((a > b) | (b != b), a, b, type))
TW_LANES_REDUCE_FLOAT(f32, i32)
TW_LANES_REDUCE_FLOAT(f64, i64)

/* Elements of fewer than eight bits, from a whole byte on: each byte becomes a word of 8 / bits bytes, and
 * shifts put every element into a byte of its own. */
#define TW_PACKED_LANES(name, type, bits, word_type, SPREAD, GATHER, EXTEND)                   \
  TW_INLINE V(type) TW_JOIN(TW_JOIN(tw_load_, name), TW_JOIN(x, LANES))(const uint8_t *p, int64_t index) { \
    typedef u8 bytes __attribute__((vector_size(LANES * bits / 8)));                           \
    typedef word_type words __attribute__((vector_size(LANES)));                               \
    bytes packed;                                                                               \
    memcpy(&packed, p + index / (8 / bits), sizeof packed);                                    \
    words w = __builtin_convertvector(packed, words);                                          \
    V(type) x = (V(type))(SPREAD);                                                              \
    return EXTEND;                                                                              \
  }                                                                                             \
  TW_INLINE void TW_JOIN(TW_JOIN(tw_store_, name), TW_JOIN(x, LANES))(uint8_t *p, int64_t index, V(type) x) { \
    typedef u8 bytes __attribute__((vector_size(LANES * bits / 8)));                           \
    typedef word_type words __attribute__((vector_size(LANES)));                               \
    words w = (words)(x & ((1 << bits) - 1));                                                  \
    bytes packed = __builtin_convertvector((GATHER) & 0xff, bytes);                            \
    memcpy(p + index / (8 / bits), &packed, sizeof packed);                                    \
  }
#if LANES >= 2
#define TW_SPREAD_4 ((w | w << 4) & 0x0f0f)
#define TW_GATHER_4 (w | w >> 4)
TW_PACKED_LANES(u4, u8, 4, u16, TW_SPREAD_4, TW_GATHER_4, x)
TW_PACKED_LANES(i4, i8, 4, u16, TW_SPREAD_4, TW_GATHER_4, (V(i8))((x ^ 8) - 8))
TW_PACKED_LANES(e2m1, u8, 4, u16, TW_SPREAD_4, TW_GATHER_4, x)
#endif
#if LANES >= 4
#define TW_SPREAD_2 ((w | w << 6 | w << 12 | w << 18) & 0x03030303)
#define TW_GATHER_2 (w | w >> 6 | w >> 12 | w >> 18)
TW_PACKED_LANES(u2, u8, 2, u32, TW_SPREAD_2, TW_GATHER_2, x)
TW_PACKED_LANES(i2, i8, 2, u32, TW_SPREAD_2, TW_GATHER_2, (V(i8))((x ^ 2) - 2))
#endif
#if LANES >= 8
#define TW_SPREAD_1 ((w | w << 7 | w << 14 | w << 21 | w << 28 | w << 35 | w << 42 | w << 49) & 0x0101010101010101)
#define TW_GATHER_1 (w | w >> 7 | w >> 14 | w >> 21 | w >> 28 | w >> 35 | w >> 42 | w >> 49)
TW_PACKED_LANES(u1, u8, 1, u64, TW_SPREAD_1, TW_GATHER_1, x)
TW_PACKED_LANES(i1, i8, 1, u64, TW_SPREAD_1, TW_GATHER_1, (V(i8))(-x))
#endif

#endif

#include "tilewright_convert.h"
#include "tilewright_math.h"
