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
TW_DOT_ASSEMBLY_BOTH("{vex} vpdpbusd", 8)
TW_DOT_ASSEMBLY_BOTH("{vex} vpdpbusd", 4)
#elif defined(__AVX2__)
/* Codes of at most 127: the sum of two products stays below 2^15, so nothing saturates. */
TW_INLINE tw_sums8 tw_dot4_u4_s8_i32x8(tw_sums8 c, tw_unsigned8 v, tw_signed8 b) {
  __m256i pairs = _mm256_maddubs_epi16((__m256i)v, (__m256i)b);
  return c + (tw_sums8)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
/* All values: even and odd bytes apart, as 16-bit numbers. */
TW_INLINE tw_sums8 tw_dot4_u8_s8_i32x8(tw_sums8 c, tw_unsigned8 v, tw_signed8 b) {
  __m256i low = _mm256_and_si256((__m256i)v, _mm256_set1_epi16(255)), high = _mm256_srli_epi16((__m256i)v, 8);
  __m256i even = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)b, 8), 8), odd = _mm256_srai_epi16((__m256i)b, 8);
  return c + (tw_sums8)_mm256_madd_epi16(low, even) + (tw_sums8)_mm256_madd_epi16(high, odd);
}
TW_INLINE tw_sums8 tw_dot4_s8_u8_i32x8(tw_sums8 c, tw_signed8 v, tw_unsigned8 b) {
  return tw_dot4_u8_s8_i32x8(c, (tw_unsigned8)b, (tw_signed8)v);
}
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

/* Asks for a line of memory that will be read soon; the address may lie beyond the end. */
#define tw_prefetch(address) __builtin_prefetch(address)

#endif
