/* What generated C for the cpu target is written in: number types, conversions, vector types and math.
 *
 * Values of narrow float types travel as their bits (bf16 is a uint16_t); arithmetic on them is done in float
 * and rounded once.  Everything that exists for scalars exists for vectors of 4, 8, 16, ... lanes too: both
 * come from tilewright_lanes.h, so a loop's scalar tail computes exactly what its vector body does. */
#ifndef TILEWRIGHT_CPU_H
#define TILEWRIGHT_CPU_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TW_INLINE static inline __attribute__((always_inline, unused))
#define TW_JOIN2(a, b) a##b
#define TW_JOIN(a, b) TW_JOIN2(a, b)
#define TW_UP_TO_2 0, 1
#define TW_UP_TO_4 TW_UP_TO_2, 2, 3
#define TW_UP_TO_8 TW_UP_TO_4, 4, 5, 6, 7
#define TW_UP_TO_16 TW_UP_TO_8, 8, 9, 10, 11, 12, 13, 14, 15
#define TW_UP_TO_32 TW_UP_TO_16, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
#define TW_UP_TO_64                                                                            \
  TW_UP_TO_32, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, \
      58, 59, 60, 61, 62, 63

/* Asks for a line of memory that will be read soon, in the nearest cache or one behind it; the address may lie beyond the end. */
#define tw_prefetch(address) __builtin_prefetch(address)
#define tw_prefetch_far(address) __builtin_prefetch(address, 0, 2)

/* The first bytes of a vector of `size` bytes, from memory and back; the rest of the vector is 0, the rest of the memory is
 * left alone.  Masks of bytes suit elements of every size, AVX2's those of four bytes; others copy by halves. */
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#define TW_COPY_PART(part)                                                                     \
  if (bytes & part) { memcpy(to, from, part); to += part; from += part; }
TW_INLINE void tw_copy_first(char *to, const char *from, size_t bytes) {
  TW_COPY_PART(64) TW_COPY_PART(32) TW_COPY_PART(16) TW_COPY_PART(8) TW_COPY_PART(4) TW_COPY_PART(2) TW_COPY_PART(1)
}
#if defined(__AVX512BW__) && defined(__AVX512VL__)
#define TW_FIRST_BYTES(R, P)                                                                   \
  if (size == sizeof(R)) {                                                                     \
    uint64_t mask = bytes >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << bytes) - 1;                   \
    if (loads) { R x = P##maskz_loadu_epi8(mask, from); memcpy(to, &x, sizeof x); }            \
    else { R x; memcpy(&x, from, sizeof x); P##mask_storeu_epi8(to, mask, x); }                \
    return;                                                                                    \
  }
#define TW_FIRST_REGISTERS TW_FIRST_BYTES(__m512i, _mm512_) TW_FIRST_BYTES(__m256i, _mm256_) TW_FIRST_BYTES(__m128i, _mm_)
#elif defined(__AVX2__)
#define TW_FIRST_WORDS(R, P)                                                                   \
  if (size == sizeof(R) && element % 4 == 0) {                                                 \
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};                          \
    R mask, x;                                                                                 \
    memcpy(&mask, ones + 8 - bytes / 4, sizeof mask);                                          \
    if (loads) { x = P##maskload_epi32((const int *)from, mask); memcpy(to, &x, sizeof x); }                \
    else { memcpy(&x, from, sizeof x); P##maskstore_epi32((int *)to, mask, x); }                      \
    return;                                                                                    \
  }
#define TW_FIRST_REGISTERS TW_FIRST_WORDS(__m256i, _mm256_) TW_FIRST_WORDS(__m128i, _mm_)
#else
#define TW_FIRST_REGISTERS
#endif
TW_INLINE void tw_move_first(void *to, const void *from, size_t bytes, size_t size, size_t element, bool loads) {
  (void)size, (void)element, (void)loads;
  TW_FIRST_REGISTERS
  tw_copy_first(to, from, bytes);
}

/* Elements from a place on until a line begins, where results are large and elements do not cross lines. */
TW_INLINE int32_t tw_stream_head(const void *place, size_t element, bool large) {
  uintptr_t behind = (uintptr_t)place % 64;
  return large && behind && behind % element == 0 ? (64 - behind) / element : 0;
}

/* Stores past the caches: whole registers where the place is aligned for that, else by 16 bytes, which the processor
 * collects to lines just as well; false where neither is possible.  A thread that has no more blocks puts them in order for
 * the others (tilewright_pool.c). */
#if defined(__x86_64__)
TW_INLINE bool tw_stream_bytes(char *to, const void *from, size_t size) {
  if ((uintptr_t)to % 16 || size % 16) return false;
#if defined(__AVX512F__)
  if ((uintptr_t)to % 64 == 0 && size % 64 == 0) {
    for (size_t at = 0; at < size; at += 64) {
      __m512i part;
      memcpy(&part, (const char *)from + at, sizeof part);
      _mm512_stream_si512((void *)(to + at), part);
    }
    return true;
  }
#endif
  for (size_t at = 0; at < size; at += 16) {
    __m128i part;
    memcpy(&part, (const char *)from + at, sizeof part);
    _mm_stream_si128((__m128i *)(to + at), part);
  }
  return true;
}
#else
#define tw_stream_bytes(to, from, size) false
#endif

/* Two or four vectors that fill a line together, as one store past the caches; false where that is not possible. */
#if defined(__AVX512F__)
TW_INLINE bool tw_stream_two(char *to, const void *a, const void *b, size_t size) {
  if ((uintptr_t)to % 64 || size != 32) return false;
  __m256i low, high;
  memcpy(&low, a, sizeof low);
  memcpy(&high, b, sizeof high);
  _mm512_stream_si512((void *)to, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  return true;
}
TW_INLINE bool tw_stream_four(char *to, const void *a, const void *b, const void *c, const void *d, size_t size) {
  if ((uintptr_t)to % 64 || size != 16) return false;
  __m128i first, second, third, fourth;
  memcpy(&first, a, sizeof first);
  memcpy(&second, b, sizeof second);
  memcpy(&third, c, sizeof third);
  memcpy(&fourth, d, sizeof fourth);
  __m512i line = _mm512_inserti32x4(_mm512_castsi128_si512(first), second, 1);
  _mm512_stream_si512((void *)to, _mm512_inserti32x4(_mm512_inserti32x4(line, third, 2), fourth, 3));
  return true;
}
#else
#define tw_stream_two(to, a, b, size) false
#define tw_stream_four(to, a, b, c, d, size) false
#endif

typedef float f32;
typedef double f64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef uint16_t f16;
typedef uint16_t bf16;
typedef float tf32;
typedef uint8_t e4m3fn;
typedef uint8_t e4m3fnuz;
typedef uint8_t e5m2;
typedef uint8_t e5m2fnuz;
typedef uint8_t e8m0;
typedef uint8_t e2m1;
typedef uint8_t e4m3b11fnuz;
typedef uint8_t e2m3;
typedef uint8_t e3m2;

/* Unaligned access without undefined behaviour. */
#define TW_UNALIGNED __attribute__((may_alias, aligned(1)))

/* What one launch gives to each block, and the pool that runs the blocks (tilewright_pool.c). */
typedef int32_t (*tw_block_function)(const void *arguments, int64_t block, uint8_t *scratch);
typedef int32_t (*tw_parallel_for_function)(int64_t blocks, int64_t scratch_bytes, tw_block_function function,
                                            const void *arguments);

/* Integer division that rounds towards minus infinity.  The least number by -1 wraps to itself, and by 0 both are 0, as NumPy
   says: C leaves both open, and processors stop there. */
#define TW_FLOOR_DIVISION(T, U)                                                         \
  TW_INLINE T tw_floordiv_##T(T a, T b) {                                                \
    if (b == 0 || b == -1) return b == 0 ? 0 : (T)((U)0 - (U)a);                         \
    return a / b - ((a % b != 0) & ((a < 0) != (b < 0)));                                \
  }                                                                                      \
  TW_INLINE T tw_floormod_##T(T a, T b) {                                                \
    if (b == 0 || b == -1) return 0;                                                     \
    T r = a % b;                                                                         \
    return r + (((r != 0) & ((r < 0) != (b < 0))) ? b : 0);                              \
  }
TW_FLOOR_DIVISION(i8, uint8_t)
TW_FLOOR_DIVISION(i16, uint16_t)
TW_FLOOR_DIVISION(i32, uint32_t)
TW_FLOOR_DIVISION(i64, uint64_t)
#define TW_UNSIGNED_DIVISION(T)                                                 \
  TW_INLINE T tw_floordiv_##T(T a, T b) { return b == 0 ? 0 : a / b; }          \
  TW_INLINE T tw_floormod_##T(T a, T b) { return b == 0 ? 0 : a % b; }
TW_UNSIGNED_DIVISION(u8)
TW_UNSIGNED_DIVISION(u16)
TW_UNSIGNED_DIVISION(u32)
TW_UNSIGNED_DIVISION(u64)

#define LANES 1
#include "tilewright_lanes.h"
#undef LANES

/* Elements of fewer than eight bits: element `index` of a packed array, low bits first. */
#define TW_PACKED(name, T, bits, EXTEND)                                                 \
  TW_INLINE T tw_load_##name(const uint8_t *p, int64_t index) {                         \
    uint32_t code = p[index / (8 / bits)] >> (index % (8 / bits) * bits) & ((1 << bits) - 1); \
    return EXTEND;                                                                       \
  }                                                                                      \
  TW_INLINE void tw_store_##name(uint8_t *p, int64_t index, T value) {                  \
    uint32_t shift = index % (8 / bits) * bits, mask = ((1u << bits) - 1) << shift;     \
    uint8_t *byte = p + index / (8 / bits);                                             \
    *byte = (uint8_t)((*byte & ~mask) | ((uint32_t)value << shift & mask));             \
  }
TW_PACKED(u1, u8, 1, (u8)code)
TW_PACKED(u2, u8, 2, (u8)code)
TW_PACKED(u4, u8, 4, (u8)code)
TW_PACKED(i1, i8, 1, (i8)((i8)(code << 7) >> 7))
TW_PACKED(i2, i8, 2, (i8)((i8)(code << 6) >> 6))
TW_PACKED(i4, i8, 4, (i8)((i8)(code << 4) >> 4))
TW_PACKED(e2m1, u8, 4, (u8)code)

#endif
