/* Conversions between number types, for the current number of lanes (see tilewright_lanes.h).
 *
 * To a narrow float: rounded to nearest even, once.  To one of at most eight bits finite numbers saturate, an infinity becomes
 * the format's infinity, else its NaN, else its largest number, and NaN, where there is none, the largest number without a sign.
 * From a float to an integer: truncated and saturated, NaN gives 0. */

/* Integers of 8 and of 16 bits as those of 32.  GCC 12 converts bytes one by one, and words by halves. */
#if LANES == 16 && defined(__AVX512F__)
#define TW_WIDEN(to, from, part, instruction)                                                   \
  TW_INLINE V(to) FN(to##_of_##from)(V(from) x) {                                              \
    part low;                                                                                  \
    memcpy(&low, &x, sizeof low);                                                              \
    return (V(to))_mm512_##instruction(low);                                                   \
  }
TW_WIDEN(u32, u16, __m256i, cvtepu16_epi32)
TW_WIDEN(i32, i16, __m256i, cvtepi16_epi32)
TW_WIDEN(u32, u8, __m128i, cvtepu8_epi32)
TW_WIDEN(i32, i8, __m128i, cvtepi8_epi32)
#elif LANES == 8 && defined(__AVX2__)
#define TW_WIDEN(to, from, instruction)                                                         \
  TW_INLINE V(to) FN(to##_of_##from)(V(from) x) {                                              \
    __m128i low = _mm_setzero_si128();                                                         \
    memcpy(&low, &x, sizeof x);                                                                \
    return (V(to))_mm256_##instruction(low);                                                   \
  }
TW_WIDEN(u32, u16, cvtepu16_epi32)
TW_WIDEN(i32, i16, cvtepi16_epi32)
TW_WIDEN(u32, u8, cvtepu8_epi32)
TW_WIDEN(i32, i8, cvtepi8_epi32)
#else
#define TW_WIDEN(to, from) TW_INLINE V(to) FN(to##_of_##from)(V(from) x) { return CONVERT(x, to); }
TW_WIDEN(u32, u16)
TW_WIDEN(i32, i16)
TW_WIDEN(u32, u8)
TW_WIDEN(i32, i8)
#endif
#undef TW_WIDEN

/* The lesser and the greater of two; b where one is NaN. */
#if LANES == 16 && defined(__AVX512F__)
TW_INLINE V(f32) FN(lesser_f32)(V(f32) a, V(f32) b) { V(f32) r; __asm__("vminps %2, %1, %0" : "=v"(r) : "v"(a), "v"(b)); return r; }
TW_INLINE V(f32) FN(greater_f32)(V(f32) a, V(f32) b) { V(f32) r; __asm__("vmaxps %2, %1, %0" : "=v"(r) : "v"(a), "v"(b)); return r; }
#elif (LANES == 8 || LANES == 4) && defined(__AVX__)
TW_INLINE V(f32) FN(lesser_f32)(V(f32) a, V(f32) b) { V(f32) r; __asm__("vminps %2, %1, %0" : "=x"(r) : "x"(a), "x"(b)); return r; }
TW_INLINE V(f32) FN(greater_f32)(V(f32) a, V(f32) b) { V(f32) r; __asm__("vmaxps %2, %1, %0" : "=x"(r) : "x"(a), "x"(b)); return r; }
#else
TW_INLINE V(f32) FN(lesser_f32)(V(f32) a, V(f32) b) { return SELECT(a < b, a, b, f32); }
TW_INLINE V(f32) FN(greater_f32)(V(f32) a, V(f32) b) { return SELECT(a > b, a, b, f32); }
#endif
TW_INLINE V(f64) FN(lesser_f64)(V(f64) a, V(f64) b) { return SELECT(a < b, a, b, f64); }
TW_INLINE V(f64) FN(greater_f64)(V(f64) a, V(f64) b) { return SELECT(a > b, a, b, f64); }

/* min and max give the other operand where one is NaN. */
#if LANES == 16 && defined(__AVX512F__)
#define TW_KEEP_NUMBER(instruction)                                                             \
  uint16_t numbers;                                                                             \
  __asm__("vcmpordps %1, %1, %0" : "=Yk"(numbers) : "v"(b));                                   \
  V(f32) r = a;                                                                                \
  __asm__(#instruction " %2, %1, %0 %{%3%}" : "+v"(r) : "v"(a), "v"(b), "Yk"(numbers));        \
  return r;
TW_INLINE V(f32) FN(min_f32)(V(f32) a, V(f32) b) { TW_KEEP_NUMBER(vminps) }
TW_INLINE V(f32) FN(max_f32)(V(f32) a, V(f32) b) { TW_KEEP_NUMBER(vmaxps) }
#undef TW_KEEP_NUMBER
#else
TW_INLINE V(f32) FN(min_f32)(V(f32) a, V(f32) b) { return SELECT(b != b, a, FN(lesser_f32)(a, b), f32); }
TW_INLINE V(f32) FN(max_f32)(V(f32) a, V(f32) b) { return SELECT(b != b, a, FN(greater_f32)(a, b), f32); }
#endif
TW_INLINE V(f64) FN(min_f64)(V(f64) a, V(f64) b) { return SELECT((a < b) | (b != b), a, b, f64); }
TW_INLINE V(f64) FN(max_f64)(V(f64) a, V(f64) b) { return SELECT((a > b) | (b != b), a, b, f64); }
#define TW_MIN_MAX(type)                                                                        \
  TW_INLINE V(type) FN(min_##type)(V(type) a, V(type) b) { return SELECT(a < b, a, b, type); }  \
  TW_INLINE V(type) FN(max_##type)(V(type) a, V(type) b) { return SELECT(a > b, a, b, type); }
TW_MIN_MAX(i8)
TW_MIN_MAX(i16)
TW_MIN_MAX(i32)
TW_MIN_MAX(i64)
TW_MIN_MAX(u8)
TW_MIN_MAX(u16)
TW_MIN_MAX(u32)
TW_MIN_MAX(u64)
#undef TW_MIN_MAX

/* float64 to float32 with the lost bits kept sticky in the last one, so that one more rounding is exact. */
TW_INLINE V(f32) FN(f32_odd_from_f64)(V(f64) x) {
  V(f32) narrow = CONVERT(x, f32);
  V(f64) back = CONVERT(narrow, f64);
  V(u32) bits = FN(bits_f32)(narrow);
  V(u64) inexact = SELECT((back != x) & (x - x == x - x), SPLAT(1, u64), SPLAT(0, u64), u64);
  V(u64) away = SELECT((FN(bits_f64)(back) & INT64_MAX) > (FN(bits_f64)(x) & INT64_MAX), SPLAT(1, u64), SPLAT(0, u64), u64);
  V(u32) sticky = CONVERT(inexact, u32);
  return FN(float_u32)((bits - CONVERT(away, u32) * sticky) | sticky);
}

/* The same from 64-bit integers, by way of a double whose lost bits are sticky. */
TW_INLINE V(f64) FN(f64_odd_from_u64)(V(u64) x) {
  V(u64) low = x & 0x7ff;
  V(u64) kept = SELECT((x >> 53) != 0, (x & ~(u64)0x7ff) | SELECT(low != 0, SPLAT(0x800, u64), SPLAT(0, u64), u64), x, u64);
  return CONVERT(kept, f64);
}
TW_INLINE V(f64) FN(f64_odd_from_i64)(V(i64) x) {
  V(f64) size = FN(f64_odd_from_u64)(SELECT(x < 0, -CONVERT(x, u64), CONVERT(x, u64), u64));
  return SELECT(x < 0, -size, size, f64);
}

/* The code of |x| in a float format with M mantissa bits; LARGEST is the code that overflow gives. */
#define TW_ENCODE(M, BIAS, LARGEST)                                                             \
  V(u32) bits = FN(bits_f32)(x);                                                               \
  V(u32) sign = bits >> 31, magnitude = bits & 0x7fffffff;                                     \
  V(u32) normal = ((magnitude + ((1u << (22 - M)) - 1) + (magnitude >> (23 - M) & 1)) >> (23 - M)) \
                  - ((127u - BIAS) << M);                                                      \
  const u32 magic = (127u + 23 + 1 - BIAS - M) << 23;                                          \
  V(f32) shifted = FN(float_u32)(magnitude) + SPLAT(tw_float_u32(magic), f32);                 \
  V(u32) subnormal = FN(bits_f32)(shifted) - magic;                                            \
  V(u32) code = SELECT(magnitude < ((128u - BIAS) << 23), subnormal, normal, u32);             \
  code = SELECT(code > LARGEST, SPLAT(LARGEST, u32), code, u32);

/* The float of a code without sign, for codes that are finite. */
#define TW_DECODE(M, BIAS)                                                                      \
  const u32 magic = (127u + 23 + 1 - BIAS - M) << 23;                                          \
  V(f32) normal = FN(float_u32)((code << (23 - M)) + ((127u - BIAS) << 23));                   \
  V(f32) subnormal = FN(float_u32)(code | magic) - SPLAT(tw_float_u32(magic), f32);            \
  V(u32) magnitude = FN(bits_f32)(SELECT(code < (1u << M), subnormal, normal, f32));

#if LANES == 1
#define TW_STORE_CODE(value, type) ((type)(value))
#else
#define TW_STORE_CODE(value, type) __builtin_convertvector(value, V(type))
#endif

/* bfloat16: the upper half of a float. */
TW_INLINE V(f32) FN(f32_from_bf16)(V(u16) x) { return FN(float_u32)(FN(u32_of_u16)(x) << 16); }
TW_INLINE V(u16) FN(bf16_from_f32_bits)(V(f32) x) {
  V(u32) bits = FN(bits_f32)(x);
  V(u32) rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  V(u32) nan = bits >> 16 | 0x40;
  return TW_STORE_CODE(SELECT((bits & 0x7fffffff) > 0x7f800000, nan, rounded, u32), u16);
}

#if LANES == 16 && defined(__AVX512BF16__) && defined(__AVX512DQ__)
/* The machine's conversion, which takes numbers too small to be normal for zero. */
TW_INLINE V(u16) FN(bf16_from_f32)(V(f32) x) {
  if (__builtin_expect(_mm512_fpclass_ps_mask((__m512)x, 0x20), 0)) return FN(bf16_from_f32_bits)(x);
  return (V(u16))_mm512_cvtneps_pbh((__m512)x);
}
#else
TW_INLINE V(u16) FN(bf16_from_f32)(V(f32) x) { return FN(bf16_from_f32_bits)(x); }
#endif

/* float16 by bits; the hardware's conversion replaces it below where there is one. */
TW_INLINE V(f32) FN(f32_from_f16_bits)(V(u16) x) {
  V(u32) wide = FN(u32_of_u16)(x), sign = wide >> 15, code = wide & 0x7fff;
  TW_DECODE(10, 15)
  V(u32) special = code << 13 | 0x7f800000;
  return FN(float_u32)(SELECT(code >= 0x7c00, special, magnitude, u32) | sign << 31);
}
TW_INLINE V(u16) FN(f16_from_f32_bits)(V(f32) x) {
  TW_ENCODE(10, 15, 0x7c00u)
  code = SELECT(magnitude > 0x7f800000, magnitude >> 13 & 0x3ff | 0x7e00, code, u32);
  return TW_STORE_CODE(code | sign << 15, u16);
}
#if defined(__F16C__) && (LANES == 8 || LANES == 4 || LANES == 1 || (LANES == 16 && defined(__AVX512F__)))
#if LANES >= 8
TW_INLINE V(f32) FN(f32_from_f16)(V(u16) x) { V(f32) r; __asm__("vcvtph2ps %1, %0" : "=v"(r) : "v"(x)); return r; }
TW_INLINE V(u16) FN(f16_from_f32)(V(f32) x) { V(u16) r; __asm__("vcvtps2ph $0, %1, %0" : "=v"(r) : "v"(x)); return r; }
#else
typedef u16 TW_JOIN(tw_half_register_, LANES) __attribute__((vector_size(16)));
typedef f32 TW_JOIN(tw_float_register_, LANES) __attribute__((vector_size(16)));
TW_INLINE V(f32) FN(f32_from_f16)(V(u16) x) {
  TW_JOIN(tw_half_register_, LANES) half = {0};
  TW_JOIN(tw_float_register_, LANES) wide;
  V(f32) r;
  memcpy(&half, &x, sizeof x);
  __asm__("vcvtph2ps %1, %0" : "=v"(wide) : "v"(half));
  memcpy(&r, &wide, sizeof r);
  return r;
}
TW_INLINE V(u16) FN(f16_from_f32)(V(f32) x) {
  TW_JOIN(tw_half_register_, LANES) half;
  TW_JOIN(tw_float_register_, LANES) wide = {0};
  V(u16) r;
  memcpy(&wide, &x, sizeof x);
  __asm__("vcvtps2ph $0, %1, %0" : "=v"(half) : "v"(wide));
  memcpy(&r, &half, sizeof r);
  return r;
}
#endif
#else
TW_INLINE V(f32) FN(f32_from_f16)(V(u16) x) { return FN(f32_from_f16_bits)(x); }
TW_INLINE V(u16) FN(f16_from_f32)(V(f32) x) { return FN(f16_from_f32_bits)(x); }
#endif

/* tfloat32: a float whose low 13 mantissa bits are zero. */
TW_INLINE V(f32) FN(f32_from_tf32)(V(f32) x) { return x; }
TW_INLINE V(f32) FN(tf32_from_f32)(V(f32) x) {
  V(u32) bits = FN(bits_f32)(x);
  V(u32) rounded = (bits + 0xfff + (bits >> 13 & 1)) & 0xffffe000;
  return FN(float_u32)(SELECT((bits & 0x7f800000) == 0x7f800000, bits, rounded, u32));
}

/* The eight-bit formats. */
#if LANES == 16 && defined(__AVX512BW__) && defined(__AVX512VL__)
/* TW_ENCODE and the sign with masks in their own registers, from which GCC 12 would bring them into vectors. */
TW_INLINE V(u8) FN(code_from_f32)(V(f32) x, int mantissa, u32 bias, int largest, int infinity, int nan) {
  const int shift = 23 - mantissa;
  const __m512i magic = _mm512_set1_epi32((int)((127u + 24 - bias - (u32)mantissa) << 23));
  __m512i bits = (__m512i)x, size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(size, (u32)shift), _mm512_set1_epi32(1));
  __m512i half = _mm512_set1_epi32((int)((1u << (shift - 1)) - 1 - ((127u - bias) << 23)));
  __m512i code = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(size, odd), half), (u32)shift);
  __m512i shifted = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(size), _mm512_castsi512_ps(magic)));
  __mmask16 small = _mm512_cmplt_epu32_mask(size, _mm512_set1_epi32((int)((128u - bias) << 23)));
  code = _mm512_min_epu32(_mm512_mask_sub_epi32(code, small, shifted, magic), _mm512_set1_epi32(largest));
  code = _mm512_mask_mov_epi32(code, _mm512_cmpge_epu32_mask(size, _mm512_set1_epi32(0x7f800000)), _mm512_set1_epi32(infinity));
  if (nan != infinity) code = _mm512_mask_mov_epi32(code, _mm512_cmpgt_epu32_mask(size, _mm512_set1_epi32(0x7f800000)), _mm512_set1_epi32(nan));
  code = _mm512_ternarylogic_epi32(code, _mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80), 0xf8);
  return (V(u8))_mm512_cvtepi32_epi8(code);
}
TW_INLINE V(u8) FN(e4m3fn_from_f32)(V(f32) x) { return FN(code_from_f32)(x, 3, 7, 0x7e, 0x7f, 0x7f); }
TW_INLINE V(u8) FN(e5m2_from_f32)(V(f32) x) { return FN(code_from_f32)(x, 2, 15, 0x7b, 0x7c, 0x7e); }
/* As float16 with exponents 8 too small; what would be the largest number is NaN. */
TW_INLINE V(f32) FN(f32_from_e4m3fn)(V(u8) x) {
  __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16((__m128i)x), 7);
  __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_and_si256(half, _mm256_set1_epi16((short)0xbfff))), _mm512_set1_ps(256));
  __mmask16 nan = _mm512_cmpeq_epi32_mask(_mm512_slli_epi32(_mm512_castps_si512(value), 1), _mm512_set1_epi32(0x43f00000 << 1));
  return (V(f32))_mm512_mask_blend_ps(nan, value, _mm512_set1_ps(NAN));
}
TW_INLINE V(f32) FN(f32_from_e5m2)(V(u8) x) {
  return (V(f32))_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16((__m128i)x), 8));
}
#else
TW_INLINE V(f32) FN(f32_from_e4m3fn)(V(u8) x) {
  V(u32) wide = FN(u32_of_u8)(x), sign = wide >> 7, code = wide & 0x7f;
  TW_DECODE(3, 7)
  return FN(float_u32)(SELECT(code == 0x7f, SPLAT(0x7fc00000, u32), magnitude, u32) | sign << 31);
}
TW_INLINE V(f32) FN(f32_from_e5m2)(V(u8) x) { return FN(f32_from_f16)(CONVERT(x, u16) << 8); }
TW_INLINE V(u8) FN(e4m3fn_from_f32)(V(f32) x) {
  TW_ENCODE(3, 7, 0x7eu)
  code = SELECT(magnitude >= 0x7f800000, SPLAT(0x7f, u32), code, u32);
  return TW_STORE_CODE(code | sign << 7, u8);
}
TW_INLINE V(u8) FN(e5m2_from_f32)(V(f32) x) {
  TW_ENCODE(2, 15, 0x7bu)
  code = SELECT(magnitude >= 0x7f800000, SPLAT(0x7c, u32) + SELECT(magnitude > 0x7f800000, SPLAT(2, u32), SPLAT(0, u32), u32), code, u32);
  return TW_STORE_CODE(code | sign << 7, u8);
}
#endif
#define TW_FNUZ(name, M, BIAS)                                                                  \
  TW_INLINE V(f32) FN(f32_from_##name)(V(u8) x) {                                              \
    V(u32) wide = FN(u32_of_u8)(x), sign = wide >> 7, code = wide & 0x7f;                       \
    TW_DECODE(M, BIAS)                                                                          \
    return FN(float_u32)(SELECT(wide == 0x80, SPLAT(0x7fc00000, u32), magnitude | sign << 31, u32)); \
  }                                                                                             \
  TW_INLINE V(u8) FN(name##_from_f32)(V(f32) x) {                                              \
    TW_ENCODE(M, BIAS, 0x7fu)                                                                   \
    code = SELECT(code == 0, SPLAT(0, u32), code | sign << 7, u32);                            \
    return TW_STORE_CODE(SELECT(magnitude >= 0x7f800000, SPLAT(0x80, u32), code, u32), u8);    \
  }
TW_FNUZ(e4m3fnuz, 3, 8)
TW_FNUZ(e4m3b11fnuz, 3, 11)
TW_FNUZ(e5m2fnuz, 2, 16)
#undef TW_FNUZ

/* e8m0: a power of two, 2**(code - 127); 255 is NaN. */
TW_INLINE V(f32) FN(f32_from_e8m0)(V(u8) x) {
  V(u32) code = FN(u32_of_u8)(x);
  V(u32) bits = SELECT(code == 0, SPLAT(0x00400000, u32), code << 23, u32);
  return FN(float_u32)(SELECT(code == 255, SPLAT(0x7fc00000, u32), bits, u32));
}
TW_INLINE V(u8) FN(e8m0_from_f32)(V(f32) x) {
  V(u32) bits = FN(bits_f32)(x);
  V(u32) code = (bits + 0x3fffff + (bits >> 23 & 1)) >> 23;
  code = SELECT(bits <= 0x00600000, SPLAT(0, u32), SELECT(code > 254, SPLAT(254, u32), code, u32), u32);
  return TW_STORE_CODE(SELECT((x < 0) | (x - x != 0), SPLAT(255, u32), SELECT(x == 0, SPLAT(0, u32), code, u32), u32), u8);
}

/* Six and four bits, without infinities and NaN. */
#define TW_FINITE(name, BITS, M, BIAS)                                                          \
  TW_INLINE V(f32) FN(f32_from_##name)(V(u8) x) {                                              \
    V(u32) wide = FN(u32_of_u8)(x), sign = wide >> (BITS - 1) & 1, code = wide & ((1u << (BITS - 1)) - 1); \
    TW_DECODE(M, BIAS)                                                                          \
    return FN(float_u32)(magnitude | sign << 31);                                              \
  }                                                                                             \
  TW_INLINE V(u8) FN(name##_from_f32)(V(f32) x) {                                              \
    TW_ENCODE(M, BIAS, ((1u << (BITS - 1)) - 1))                                                \
    return TW_STORE_CODE(SELECT(magnitude > 0x7f800000, code, code | sign << (BITS - 1), u32), u8); \
  }
TW_FINITE(e2m3, 6, 3, 1)
TW_FINITE(e3m2, 6, 2, 3)
TW_FINITE(e2m1, 4, 1, 1)
#undef TW_FINITE

/* Float to integer. */
#define TW_SATURATE(type, wide_type, float_type, LOWEST, LIMIT, LOW_VALUE, HIGH_VALUE)          \
  TW_INLINE V(type) FN(type##_from_##float_type)(V(float_type) x) {                            \
    V(float_type) inside = SELECT((x > SPLAT(LOWEST, float_type)) & (x < SPLAT(LIMIT, float_type)), x, SPLAT(0, float_type), float_type); \
    V(wide_type) whole = CONVERT(inside, wide_type);                                           \
    whole = SELECT(x <= SPLAT(LOWEST, float_type), SPLAT(LOW_VALUE, wide_type), whole, wide_type); \
    whole = SELECT(x >= SPLAT(LIMIT, float_type), SPLAT(HIGH_VALUE, wide_type), whole, wide_type); \
    return CONVERT(whole, type);                                                               \
  }
/* Bounds that are floats themselves may be taken first. */
#define TW_SATURATE_NARROW_TYPE(type, wide_type, float_type, LOW_VALUE, HIGH_VALUE)             \
  TW_INLINE V(type) FN(type##_from_##float_type)(V(float_type) x) {                            \
    V(float_type) number = SELECT(x == x, x, SPLAT(0, float_type), float_type);                 \
    number = FN(lesser_##float_type)(number, SPLAT(HIGH_VALUE, float_type));                    \
    return CONVERT(CONVERT(FN(greater_##float_type)(number, SPLAT(LOW_VALUE, float_type)), wide_type), type); \
  }
#define TW_SATURATE_ALL(float_type, wide)                                                       \
  TW_SATURATE_NARROW_TYPE(u8, wide, float_type, 0, UINT8_MAX)                                   \
  TW_SATURATE_NARROW_TYPE(i16, wide, float_type, INT16_MIN, INT16_MAX)                          \
  TW_SATURATE_NARROW_TYPE(u16, wide, float_type, 0, UINT16_MAX)
#if LANES == 16 && defined(__AVX512F__)
/* What is too low for 32 bits becomes their least number. */
#define TW_BYTES_OF(convert)                                                                    \
  __m512i whole = convert((__m512)FN(lesser_f32)(x, SPLAT(INT8_MAX, f32)));                    \
  return (V(i8))_mm512_maskz_cvtsepi32_epi8(_mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_ORD_Q), whole);
TW_INLINE V(i8) FN(i8_from_f32)(V(f32) x) { TW_BYTES_OF(_mm512_cvttps_epi32) }
TW_INLINE V(i8) FN(i8_rounded_f32)(V(f32) x) { TW_BYTES_OF(_mm512_cvtps_epi32) }
#undef TW_BYTES_OF
#else
TW_SATURATE_NARROW_TYPE(i8, i32, f32, INT8_MIN, INT8_MAX)
#endif
TW_SATURATE_NARROW_TYPE(i8, i64, f64, INT8_MIN, INT8_MAX)
TW_SATURATE_ALL(f32, i32)
TW_SATURATE_ALL(f64, i64)
TW_SATURATE(i32, i32, f32, -0x1p31f, 0x1p31f, INT32_MIN, INT32_MAX)
TW_SATURATE(u32, u32, f32, -1, 0x1p32f, 0, UINT32_MAX)
TW_SATURATE(i64, i64, f64, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX)
TW_SATURATE(u64, u64, f64, -1, 0x1p64, 0, UINT64_MAX)
TW_INLINE V(i64) FN(i64_from_f32)(V(f32) x) { return FN(i64_from_f64)(CONVERT(x, f64)); }
TW_INLINE V(u64) FN(u64_from_f32)(V(f32) x) { return FN(u64_from_f64)(CONVERT(x, f64)); }
TW_SATURATE(i32, i64, f64, -2147483649.0, 2147483648.0, INT32_MIN, INT32_MAX)
TW_SATURATE(u32, i64, f64, -1, 4294967296.0, 0, UINT32_MAX)
#define TW_SATURATE_NARROW(name, type, LOW, HIGH)                                               \
  TW_INLINE V(type) FN(name##_from_f32)(V(f32) x) {                                            \
    return FN(min_##type)(FN(max_##type)(FN(type##_from_f32)(x), SPLAT(LOW, type)), SPLAT(HIGH, type)); \
  }                                                                                             \
  TW_INLINE V(type) FN(name##_from_f64)(V(f64) x) {                                            \
    return FN(min_##type)(FN(max_##type)(FN(type##_from_f64)(x), SPLAT(LOW, type)), SPLAT(HIGH, type)); \
  }
TW_SATURATE_NARROW(i4, i8, -8, 7)
TW_SATURATE_NARROW(i2, i8, -2, 1)
TW_SATURATE_NARROW(i1, i8, -1, 0)
TW_SATURATE_NARROW(u4, u8, 0, 15)
TW_SATURATE_NARROW(u2, u8, 0, 3)
TW_SATURATE_NARROW(u1, u8, 0, 1)

/* Integers of fewer than eight bits wrap inside their byte. */
TW_INLINE V(i8) FN(wrap_i4)(V(i8) x) { return (V(i8))((V(i8))(x << 4) >> 4); }
TW_INLINE V(i8) FN(wrap_i2)(V(i8) x) { return (V(i8))((V(i8))(x << 6) >> 6); }
TW_INLINE V(i8) FN(wrap_i1)(V(i8) x) { return (V(i8))((V(i8))(x << 7) >> 7); }
TW_INLINE V(u8) FN(wrap_u4)(V(u8) x) { return x & 15; }
TW_INLINE V(u8) FN(wrap_u2)(V(u8) x) { return x & 3; }
TW_INLINE V(u8) FN(wrap_u1)(V(u8) x) { return x & 1; }

#undef TW_SATURATE
#undef TW_SATURATE_ALL
#undef TW_SATURATE_NARROW_TYPE
#undef TW_SATURATE_NARROW
#undef TW_ENCODE
#undef TW_DECODE
#undef TW_STORE_CODE
