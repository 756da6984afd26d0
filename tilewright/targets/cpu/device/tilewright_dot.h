/* Dot products over short runs of k, one column of the product in each lane (targets/cpu/instructions.py).
 *
 * tw_dot4_V_B_i32xN(c, v, b): c[lane] += sum over i < 4 of v[4 lane + i] * b[4 lane + i], exact, wrapping at 32
 * bits; V is the type of v, B that of b.  u4 stands for codes of at most 127, whose products of pairs fit 16
 * bits.  Where an instruction exists it is written as assembly: GCC 12 copies the accumulators of its
 * intrinsics from register to register in every iteration. */
#ifndef TILEWRIGHT_DOT_H
#define TILEWRIGHT_DOT_H

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define TW_DOT_TYPES(lanes, bytes)                                                 \
  typedef int32_t tw_sums##lanes __attribute__((vector_size(bytes)));              \
  typedef float tw_float_sums##lanes __attribute__((vector_size(bytes)));          \
  typedef uint8_t tw_unsigned##lanes __attribute__((vector_size(bytes)));          \
  typedef int8_t tw_signed##lanes __attribute__((vector_size(bytes)));             \
  typedef uint16_t tw_halves##lanes __attribute__((vector_size(bytes)));
TW_DOT_TYPES(4, 16)
TW_DOT_TYPES(8, 32)
TW_DOT_TYPES(16, 64)

/* c += v . b by one instruction; the unsigned operand comes first in it. */
#define TW_DOT_ASSEMBLY(name, instruction, lanes, V, B, first, second)                         \
  TW_INLINE tw_sums##lanes tw_##name##_i32x##lanes(tw_sums##lanes c, V##lanes v, B##lanes b) { \
    __asm__(instruction " %2, %1, %0" : "+v"(c) : "v"(first), "v"(second));                    \
    return c;                                                                                  \
  }
#define TW_DOT_ASSEMBLY_BOTH(instruction, lanes)                                               \
  TW_DOT_ASSEMBLY(dot4_u8_s8, instruction, lanes, tw_unsigned, tw_signed, v, b)                \
  TW_DOT_ASSEMBLY(dot4_s8_u8, instruction, lanes, tw_signed, tw_unsigned, b, v)

#if defined(__AVX512VNNI__)
TW_DOT_ASSEMBLY_BOTH("vpdpbusd", 16)
#if defined(__AVX512VL__)
TW_DOT_ASSEMBLY_BOTH("vpdpbusd", 8)
TW_DOT_ASSEMBLY_BOTH("vpdpbusd", 4)
#endif
#elif defined(__AVXVNNI__)
TW_DOT_ASSEMBLY_BOTH("%{vex%} vpdpbusd", 8)
TW_DOT_ASSEMBLY_BOTH("%{vex%} vpdpbusd", 4)
#elif defined(__x86_64__)
/* dot4_u4_s8: codes of at most 127; the sum of two products stays below 2^15, so nothing saturates.
 * dot4_u8_s8: all values; even and odd bytes apart, as 16-bit numbers. */
#define TW_DOT_OF_CODES(lanes, R, P)                                                                 \
  TW_INLINE tw_sums##lanes tw_dot4_u4_s8_i32x##lanes(tw_sums##lanes c, tw_unsigned##lanes v, tw_signed##lanes b) { \
    return c + (tw_sums##lanes)P(madd_epi16)(P(maddubs_epi16)((R)v, (R)b), P(set1_epi16)(1));        \
  }
#define TW_DOT_BY_PAIRS(lanes, R, P, L)                                                              \
  TW_INLINE tw_sums##lanes tw_dot4_u8_s8_i32x##lanes(tw_sums##lanes c, tw_unsigned##lanes v, tw_signed##lanes b) { \
    R low = L(and)((R)v, P(set1_epi16)(255)), high = P(srli_epi16)((R)v, 8);                         \
    R even = P(srai_epi16)(P(slli_epi16)((R)b, 8), 8), odd = P(srai_epi16)((R)b, 8);                 \
    return c + (tw_sums##lanes)P(madd_epi16)(low, even) + (tw_sums##lanes)P(madd_epi16)(high, odd);  \
  }                                                                                                  \
  TW_INLINE tw_sums##lanes tw_dot4_s8_u8_i32x##lanes(tw_sums##lanes c, tw_signed##lanes v, tw_unsigned##lanes b) { \
    return tw_dot4_u8_s8_i32x##lanes(c, (tw_unsigned##lanes)b, (tw_signed##lanes)v);                 \
  }
#define TW_OF_128(name) _mm_##name
#define TW_BITS_OF_128(name) _mm_##name##_si128
TW_DOT_BY_PAIRS(4, __m128i, TW_OF_128, TW_BITS_OF_128)
#if defined(__SSSE3__)
TW_DOT_OF_CODES(4, __m128i, TW_OF_128)
#endif
#if defined(__AVX2__)
#define TW_OF_256(name) _mm256_##name
#define TW_BITS_OF_256(name) _mm256_##name##_si256
TW_DOT_BY_PAIRS(8, __m256i, TW_OF_256, TW_BITS_OF_256)
TW_DOT_OF_CODES(8, __m256i, TW_OF_256)
#endif
#if defined(__AVX512BW__)
#define TW_OF_512(name) _mm512_##name
#define TW_BITS_OF_512(name) _mm512_##name##_si512
TW_DOT_BY_PAIRS(16, __m512i, TW_OF_512, TW_BITS_OF_512)
TW_DOT_OF_CODES(16, __m512i, TW_OF_512)
#endif
#endif

#if defined(__AVX512BF16__)
TW_INLINE tw_float_sums16 tw_dot2_bf16_f32x16(tw_float_sums16 c, tw_halves16 v, tw_halves16 b) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(v), "v"(b));
  return c;
}
#endif

#if defined(__ARM_FEATURE_DOTPROD)
TW_INLINE tw_sums4 tw_dot4_s8_s8_i32x4(tw_sums4 c, tw_signed4 v, tw_signed4 b) {
  return (tw_sums4)vdotq_s32((int32x4_t)c, (int8x16_t)v, (int8x16_t)b);
}
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
TW_INLINE tw_sums4 tw_dot4_u8_s8_i32x4(tw_sums4 c, tw_unsigned4 v, tw_signed4 b) {
  return (tw_sums4)vusdotq_s32((int32x4_t)c, (uint8x16_t)v, (int8x16_t)b);
}
TW_INLINE tw_sums4 tw_dot4_s8_u8_i32x4(tw_sums4 c, tw_signed4 v, tw_unsigned4 b) {
  return (tw_sums4)vusdotq_s32((int32x4_t)c, (uint8x16_t)b, (int8x16_t)v);
}
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
TW_INLINE tw_float_sums4 tw_dot2_bf16_f32x4(tw_float_sums4 c, tw_halves4 v, tw_halves4 b) {
  return (tw_float_sums4)vbfdotq_f32((float32x4_t)c, (bfloat16x8_t)v, (bfloat16x8_t)b);
}
#endif

/* Bytes of a table of sixteen (two words, the first ones in the low bytes of the first) by their number. */
#define TW_LOOK_UP(lanes, BODY)                                                                \
  typedef uint8_t tw_bytes##lanes __attribute__((vector_size(lanes)));                         \
  TW_INLINE tw_bytes##lanes tw_look_up_u8x##lanes(tw_bytes##lanes codes, uint64_t low, uint64_t high) { BODY }
#define TW_LOOK_UP_ONE_BY_ONE(lanes)                                                           \
  TW_LOOK_UP(lanes, tw_bytes##lanes r;                                                         \
             for (int lane = 0; lane < lanes; lane++) r[lane] = (codes[lane] < 8 ? low : high) >> codes[lane] % 8 * 8; \
             return r;)
#define TW_TABLE _mm_set_epi64x(high, low)
#if defined(__AVX512BW__)
TW_LOOK_UP(64, return (tw_bytes64)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(TW_TABLE), (__m512i)codes);)
#else
TW_LOOK_UP_ONE_BY_ONE(64)
#endif
#if defined(__AVX2__)
TW_LOOK_UP(32, return (tw_bytes32)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(TW_TABLE), (__m256i)codes);)
#else
TW_LOOK_UP_ONE_BY_ONE(32)
#endif
#if defined(__SSSE3__)
TW_LOOK_UP(16, return (tw_bytes16)_mm_shuffle_epi8(TW_TABLE, (__m128i)codes);)
#elif defined(__ARM_NEON) && defined(__aarch64__)
TW_LOOK_UP(16, uint8x16_t table = vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high)));
           return (tw_bytes16)vqtbl1q_u8(table, (uint8x16_t)codes);)
#else
TW_LOOK_UP_ONE_BY_ONE(16)
#endif

/* Floats of a table of sixteen by the lowest four bits of each lane. */
#define TW_CHOOSE(lanes, ...)                                                                  \
  typedef uint32_t tw_codes##lanes __attribute__((vector_size(4 * lanes)));                    \
  typedef float tw_chosen##lanes __attribute__((vector_size(4 * lanes)));                      \
  TW_INLINE tw_chosen##lanes tw_choose_f32x##lanes(tw_codes##lanes codes, float a, float b, float c, float d, float e, \
      float f, float g, float h, float i, float j, float k, float l, float m, float n, float o, float p) { __VA_ARGS__ }
#if defined(__AVX512F__)
TW_CHOOSE(16, return (tw_chosen16)_mm512_permutexvar_ps((__m512i)codes,
                  _mm512_setr_ps(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p));)
#endif
#if defined(__AVX2__)
TW_CHOOSE(8, __m256 low = _mm256_permutevar8x32_ps(_mm256_setr_ps(a, b, c, d, e, f, g, h), (__m256i)codes);
             __m256 high = _mm256_permutevar8x32_ps(_mm256_setr_ps(i, j, k, l, m, n, o, p), (__m256i)codes);
             return (tw_chosen8)_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32((__m256i)codes, 28)));)
#endif
TW_CHOOSE(4, const float table[16] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
             tw_chosen4 r;
             for (int lane = 0; lane < 4; lane++) r[lane] = table[codes[lane] & 15];
             return r;)

/* Packing: words of L rows become the L lanes of L consecutive vectors, to[t * L + n] = row n [t]. */
#if defined(__AVX512F__)
/* Sixteen rows of sixteen words: four rounds of exchanges, within pairs, quarters and halves of a register. */
TW_INLINE void tw_transpose16(__m512i *r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}
TW_INLINE void tw_pack_words_i32x16(void *to, const void *from, int64_t stride) {
  __m512i r[16];
  for (int n = 0; n < 16; n++) r[n] = _mm512_loadu_si512((const char *)from + n * stride);
  tw_transpose16(r);
  for (int t = 0; t < 16; t++) _mm512_storeu_si512((char *)to + 64 * t, r[t]);
}
/* The same for pairs of bfloat16, widened to float: 32 vectors. */
TW_INLINE void tw_pack_wide_i32x16(void *to, const void *from, int64_t stride) {
  __m512i r[16];
  for (int n = 0; n < 16; n++) r[n] = _mm512_loadu_si512((const char *)from + n * stride);
  tw_transpose16(r);
  for (int t = 0; t < 16; t++) {
    _mm512_storeu_si512((char *)to + 128 * t, _mm512_slli_epi32(r[t], 16));
    _mm512_storeu_si512((char *)to + 128 * t + 64, _mm512_and_si512(r[t], _mm512_set1_epi32((int)0xffff0000)));
  }
}
#else
#define TW_PACK_WORDS_16_PLAIN
#endif
#define TW_PACK_WORDS(lanes)                                                                   \
  TW_INLINE void tw_pack_words_i32x##lanes(void *to, const void *from, int64_t stride) {            \
    for (int n = 0; n < lanes; n++) {                                                          \
      uint32_t row[lanes];                                                                     \
      memcpy(row, (const char *)from + n * stride, sizeof row);                                \
      for (int t = 0; t < lanes; t++) memcpy((char *)to + 4 * (t * lanes + n), row + t, 4);    \
    }                                                                                          \
  }                                                                                            \
  TW_INLINE void tw_pack_wide_i32x##lanes(void *to, const void *from, int64_t stride) {             \
    for (int n = 0; n < lanes; n++) {                                                          \
      uint16_t row[2 * lanes];                                                                 \
      memcpy(row, (const char *)from + n * stride, sizeof row);                                \
      for (int t = 0; t < 2 * lanes; t++) {                                                    \
        uint32_t wide = (uint32_t)row[t] << 16;                                                \
        memcpy((char *)to + 4 * (t * lanes + n), &wide, 4);                                    \
      }                                                                                        \
    }                                                                                          \
  }
TW_PACK_WORDS(4)
TW_PACK_WORDS(8)
#ifdef TW_PACK_WORDS_16_PLAIN
TW_PACK_WORDS(16)
#endif

/* Packing: four rows of L bytes become one vector of L runs of four, to[4 n + i] = row i [n]. */
#define TW_INTERLEAVE(lanes)                                                                   \
  TW_INLINE void tw_pack_bytes_i32x##lanes(void *to, const void *from, int64_t stride) {            \
    const uint8_t *row = from;                                                                 \
    uint8_t *packed = to;                                                                      \
    for (int n = 0; n < lanes; n++)                                                            \
      for (int i = 0; i < 4; i++) packed[4 * n + i] = row[i * stride + n];                     \
  }
#if defined(__SSE2__)
TW_INLINE void tw_pack_bytes_i32x16(void *to, const void *from, int64_t stride) {
  __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128((const void *)((const char *)from + stride));
  __m128i c = _mm_loadu_si128((const void *)((const char *)from + 2 * stride));
  __m128i d = _mm_loadu_si128((const void *)((const char *)from + 3 * stride));
  __m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);
  __m128i AB = _mm_unpackhi_epi8(a, b), CD = _mm_unpackhi_epi8(c, d);
  _mm_storeu_si128(to, _mm_unpacklo_epi16(ab, cd));
  _mm_storeu_si128((void *)((char *)to + 16), _mm_unpackhi_epi16(ab, cd));
  _mm_storeu_si128((void *)((char *)to + 32), _mm_unpacklo_epi16(AB, CD));
  _mm_storeu_si128((void *)((char *)to + 48), _mm_unpackhi_epi16(AB, CD));
}
#else
TW_INTERLEAVE(16)
#endif
TW_INTERLEAVE(4)
TW_INTERLEAVE(8)

/* Packing: two rows of L numbers of 16 bits become one vector of L pairs, to[2 n + i] = row i [n]. */
#define TW_PAIR(lanes)                                                                         \
  TW_INLINE void tw_pack_pairs_i32x##lanes(void *to, const void *from, int64_t stride) {            \
    const uint16_t *row = from, *next = (const void *)((const char *)from + stride);           \
    uint16_t *packed = to;                                                                     \
    for (int n = 0; n < lanes; n++) packed[2 * n] = row[n], packed[2 * n + 1] = next[n];       \
  }
#if defined(__AVX512BW__)
TW_INLINE void tw_pack_pairs_i32x16(void *to, const void *from, int64_t stride) {
  __m512i rows = _mm512_castsi256_si512(_mm256_loadu_si256(from));
  rows = _mm512_inserti64x4(rows, _mm256_loadu_si256((const void *)((const char *)from + stride)), 1);
  const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                          23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(places, rows));
}
#else
TW_PAIR(16)
#endif
TW_PAIR(4)
TW_PAIR(8)

/* Sum of the lanes. */
#if defined(__AVX512F__)
TW_INLINE int32_t tw_total_i32x16(tw_sums16 x) { return _mm512_reduce_add_epi32((__m512i)x); }
#else
TW_INLINE int32_t tw_total_i32x16(tw_sums16 x) { int32_t r = 0; for (int i = 0; i < 16; i++) r += x[i]; return r; }
#endif
TW_INLINE int32_t tw_total_i32x8(tw_sums8 x) { int32_t r = 0; for (int i = 0; i < 8; i++) r += x[i]; return r; }
TW_INLINE int32_t tw_total_i32x4(tw_sums4 x) { int32_t r = 0; for (int i = 0; i < 4; i++) r += x[i]; return r; }

#endif
