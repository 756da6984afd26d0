/* Math functions for the current number of lanes (see tilewright_lanes.h).
 *
 * Largest error in units of the last place of a float, against float64 over samples of all floats
 * (tests/unit/cpu/test_cpu_math.py): exp 1.1, exp2 1.0, log 0.9, log2 1.1, tanh 1.4, sigmoid 2.8, erf 1.5,
 * rsqrt 1.5; sqrt and the roundings are exact.  The rest call the C library a lane. */

/* a * b + c, rounded once. */
#if LANES == 1
TW_INLINE f32 tw_fma_f32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
TW_INLINE f64 tw_fma_f64(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#elif defined(__clang__) && __has_builtin(__builtin_elementwise_fma)
TW_INLINE V(f32) FN(fma_f32)(V(f32) a, V(f32) b, V(f32) c) { return __builtin_elementwise_fma(a, b, c); }
TW_INLINE V(f64) FN(fma_f64)(V(f64) a, V(f64) b, V(f64) c) { return __builtin_elementwise_fma(a, b, c); }
#else
TW_INLINE V(f32) FN(fma_f32)(V(f32) a, V(f32) b, V(f32) c) {
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
#elif LANES == 8 && defined(__FMA__) && !defined(__clang__)
  return __builtin_ia32_vfmaddps256(a, b, c);
#elif LANES == 4 && defined(__FMA__) && !defined(__clang__)
  return __builtin_ia32_vfmaddps(a, b, c);
#elif LANES == 4 && defined(__aarch64__)
  __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
  return c;
#else
  V(f32) r;
  TW_EACH_LANE(TW_LANE(r), __builtin_fmaf(TW_LANE(a), TW_LANE(b), TW_LANE(c)))
  return r;
#endif
}
TW_INLINE V(f64) FN(fma_f64)(V(f64) a, V(f64) b, V(f64) c) {
#if LANES == 8 && defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
#elif LANES == 4 && defined(__FMA__) && !defined(__clang__)
  return __builtin_ia32_vfmaddpd256(a, b, c);
#else
  V(f64) r;
  TW_EACH_LANE(TW_LANE(r), __builtin_fma(TW_LANE(a), TW_LANE(b), TW_LANE(c)))
  return r;
#endif
}
#endif
/* The same of numbers whose product is exact, rounded to odd: the rounding to their own type is then the only one. */
#if LANES == 1
TW_INLINE f32 tw_fma_odd_f32(f32 a, f32 b, f32 c) {
  const f32 product = a * b, sum = __builtin_fmaf(a, b, c), back = sum - product;
  const f32 lost = (product - (sum - back)) + (c - back);
  u32 bits;
  __builtin_memcpy(&bits, &sum, sizeof bits);
  if ((lost < 0 || lost > 0) && !(bits & 1)) bits += (lost > 0) == (sum > 0) ? 1u : -1u;
  f32 odd;
  __builtin_memcpy(&odd, &bits, sizeof odd);
  return odd;
}
#else
TW_INLINE V(f32) FN(fma_odd_f32)(V(f32) a, V(f32) b, V(f32) c) {
  V(f32) r;
  TW_EACH_LANE(TW_LANE(r), tw_fma_odd_f32(TW_LANE(a), TW_LANE(b), TW_LANE(c)))
  return r;
}
#endif

/* Inside polynomials a fused step is an accuracy and a speed, not a meaning. */
#if defined(__FMA__) || defined(__aarch64__)
#define TW_STEP(a, b, c) FN(fma_f32)(a, b, c)
#else
#define TW_STEP(a, b, c) ((a) * (b) + (c))
#endif
#define TW_F(value) SPLAT(value, f32)

/* One instruction where the machine has it, else the C library a lane. */
#if LANES == 16 && defined(__AVX512F__)
#define TW_ROUND(x, mode, scalar) V(f32) r; __asm__("vrndscaleps $" #mode ", %1, %0" : "=v"(r) : "v"(x)); return r;
#define TW_SQRT(x) V(f32) r; __asm__("vsqrtps %1, %0" : "=v"(r) : "v"(x)); return r;
#elif (LANES == 8 || LANES == 4) && defined(__AVX__)
#define TW_ROUND(x, mode, scalar) V(f32) r; __asm__("vroundps $" #mode ", %1, %0" : "=x"(r) : "x"(x)); return r;
#define TW_SQRT(x) V(f32) r; __asm__("vsqrtps %1, %0" : "=x"(r) : "x"(x)); return r;
#else
#define TW_ROUND(x, mode, scalar) V(f32) r; TW_EACH_LANE(TW_LANE(r), scalar(TW_LANE(x))) return r;
#define TW_SQRT(x) V(f32) r; TW_EACH_LANE(TW_LANE(r), __builtin_sqrtf(TW_LANE(x))) return r;
#endif
TW_INLINE V(f32) FN(round_f32)(V(f32) x) { TW_ROUND(x, 8, __builtin_rintf) }
TW_INLINE V(f32) FN(floor_f32)(V(f32) x) { TW_ROUND(x, 9, __builtin_floorf) }
TW_INLINE V(f32) FN(ceil_f32)(V(f32) x) { TW_ROUND(x, 10, __builtin_ceilf) }
TW_INLINE V(f32) FN(trunc_f32)(V(f32) x) { TW_ROUND(x, 11, __builtin_truncf) }
TW_INLINE V(f32) FN(sqrt_f32)(V(f32) x) { TW_SQRT(x) }
#if !(LANES == 16 && defined(__AVX512F__))
TW_INLINE V(i8) FN(i8_rounded_f32)(V(f32) x) { return FN(i8_from_f32)(FN(round_f32)(x)); }
#endif
#undef TW_ROUND
#undef TW_SQRT
TW_INLINE V(f32) FN(rsqrt_f32)(V(f32) x) { return TW_F(1) / FN(sqrt_f32)(x); }
TW_INLINE V(f32) FN(abs_f32)(V(f32) x) { return FN(float_u32)(FN(bits_f32)(x) & 0x7fffffff); }
TW_INLINE V(f64) FN(abs_f64)(V(f64) x) { return FN(double_u64)(FN(bits_f64)(x) & 0x7fffffffffffffff); }

/* The nearest whole number, of two the even one. */
#if LANES == 16 && defined(__AVX512F__)
TW_INLINE V(i32) FN(i32_rounded_f32)(V(f32) x) { return (V(i32))_mm512_cvtps_epi32((__m512)x); }
#elif LANES == 8 && defined(__AVX__)
TW_INLINE V(i32) FN(i32_rounded_f32)(V(f32) x) { return (V(i32))_mm256_cvtps_epi32((__m256)x); }
#elif LANES == 4 && defined(__SSE2__)
TW_INLINE V(i32) FN(i32_rounded_f32)(V(f32) x) { return (V(i32))_mm_cvtps_epi32((__m128)x); }
#elif LANES == 4 && defined(__aarch64__)
TW_INLINE V(i32) FN(i32_rounded_f32)(V(f32) x) { V(i32) r; __asm__("fcvtns %0.4s, %1.4s" : "=w"(r) : "w"(x)); return r; }
#else
TW_INLINE V(i32) FN(i32_rounded_f32)(V(f32) x) { V(i32) r; TW_EACH_LANE(TW_LANE(r), (i32)__builtin_lrintf(TW_LANE(x))) return r; }
#endif

/* What is added to a number below 2**22 in magnitude is rounded to a whole one, whose last bits are those of the sum. */
#define TW_WHOLE 0x1.8p23f
/* x within bounds; NaN stays. */
#define TW_BOUNDED(x, low, high) FN(greater_f32)(TW_F(low), FN(lesser_f32)(TW_F(high), x))

/* p * 2**n for p in [1/2, 2) and a whole n in [-152, 129], rounded once where the result is subnormal.  A product that is
 * subnormal takes Intel's processors 150 to 290 cycles, and the powers of large negative numbers are: there it is made 2**149 times
 * as large, and the whole number nearest to it is the result's bits. */
TW_INLINE V(f32) FN(scale)(V(f32) p, V(f32) n) {
#if LANES == 16 && defined(__AVX512F__)
  __mmask16 small = _mm512_cmp_ps_mask((__m512)n, (__m512)TW_F(-125), _CMP_LT_OQ);
  __m512 r = _mm512_scalef_ps((__m512)p, _mm512_mask_add_ps((__m512)n, small, (__m512)n, (__m512)TW_F(149)));
  return (V(f32))_mm512_mask_cvtps_epi32(_mm512_castps_si512(r), small, r);
#else
  V(f32) exponent = n + SELECT(n < TW_F(-125), TW_F(TW_WHOLE + 126 + 149), TW_F(TW_WHOLE + 126), f32);
  V(f32) r = (p + p) * FN(float_u32)(FN(bits_f32)(exponent) << 23);
  return SELECT(n < TW_F(-125), FN(float_u32)((V(u32))FN(i32_rounded_f32)(r)), r, f32);
#endif
}

TW_INLINE V(f32) FN(exp2_f32)(V(f32) x) {
  V(f32) bounded = TW_BOUNDED(x, -151, 129);
  V(f32) n = bounded + TW_F(TW_WHOLE) - TW_F(TW_WHOLE), f = bounded - n;
  V(f32) q = TW_STEP(f, TW_F(0x1.41fbbap-13f), TW_F(0x1.5f3e54p-10f));
  q = TW_STEP(f, q, TW_F(0x1.3b2d4cp-7f));
  q = TW_STEP(f, q, TW_F(0x1.c6aee8p-5f));
  q = TW_STEP(f, q, TW_F(0x1.ebfbdcp-3f));
  q = TW_STEP(f, q, TW_F(0x1.62e430p-1f));
  return FN(scale)(TW_STEP(f, q, TW_F(1)), n);
}

TW_INLINE V(f32) FN(fast_exp2_f32)(V(f32) x) { return FN(exp2_f32)(x); }

TW_INLINE V(f32) FN(exp_f32)(V(f32) x) {
  V(f32) bounded = TW_BOUNDED(x, -105, 89);
  V(f32) n = TW_STEP(bounded, TW_F(0x1.715476p+0f), TW_F(TW_WHOLE)) - TW_F(TW_WHOLE);
  V(f32) r = TW_STEP(n, TW_F(-0x1.62e400p-1f), bounded);
  r = TW_STEP(n, TW_F(-0x1.7f7d1cp-20f), r);
  V(f32) q = TW_STEP(r, TW_F(0x1.6a2430p-10f), TW_F(0x1.1239e4p-7f));
  q = TW_STEP(r, q, TW_F(0x1.5558f2p-5f));
  q = TW_STEP(r, q, TW_F(0x1.555492p-3f));
  q = TW_STEP(r, q, TW_F(0x1.fffffcp-2f));
  return FN(scale)(TW_STEP(r * r, q, r) + TW_F(1), n);
}

/* x = m * 2**e with m in [sqrt(1/2), sqrt(2)); gives e, and m - 1. */
#define TW_SPLIT_LOG(x)                                                                        \
  V(f32) normal = SELECT(x < TW_F(0x1p-126f), x * TW_F(0x1p24f), x, f32);                      \
  V(f32) lowered = SELECT(x < TW_F(0x1p-126f), TW_F(24), TW_F(0), f32);                        \
  V(u32) offset = FN(bits_f32)(normal) - 0x3f3504f3;                                           \
  V(i32) exponent = CONVERT(offset, i32) >> 23;                                                \
  V(f32) e = CONVERT(exponent, f32) - lowered;                                                 \
  V(f32) f = FN(float_u32)((offset & 0x7fffff) + 0x3f3504f3) - TW_F(1);                        \
  V(f32) q = TW_STEP(f, TW_F(-0x1.38b4ccp-4f), TW_F(0x1.055b46p-3f));                          \
  q = TW_STEP(f, q, TW_F(-0x1.0d8552p-3f));                                                    \
  q = TW_STEP(f, q, TW_F(0x1.22da22p-3f));                                                     \
  q = TW_STEP(f, q, TW_F(-0x1.547244p-3f));                                                    \
  q = TW_STEP(f, q, TW_F(0x1.99a008p-3f));                                                     \
  q = TW_STEP(f, q, TW_F(-0x1.000228p-2f));                                                    \
  q = TW_STEP(f, q, TW_F(0x1.555554p-2f));                                                     \
  V(f32) tail = TW_STEP(f * f, f * q, f * f * TW_F(-0.5f));

/* The logarithms of 0, infinity, NaN and negative numbers. */
#define TW_LOG_SPECIAL(x, r)                                                                   \
  r = SELECT(x == TW_F(0), TW_F(-INFINITY), r, f32);                                           \
  r = SELECT(x == TW_F(INFINITY), x, r, f32);                                                  \
  return SELECT(x >= TW_F(0), r, TW_F(NAN), f32);

TW_INLINE V(f32) FN(log_f32)(V(f32) x) {
  TW_SPLIT_LOG(x)
  V(f32) r = TW_STEP(e, TW_F(0x1.62e400p-1f), f + TW_STEP(e, TW_F(0x1.7f7d1cp-20f), tail));
  TW_LOG_SPECIAL(x, r)
}
TW_INLINE V(f32) FN(log2_f32)(V(f32) x) {
  TW_SPLIT_LOG(x)
  /* 1/ln 2 in two parts, so that the product keeps its low bits. */
  V(f32) high = FN(float_u32)(FN(bits_f32)(f) & 0xfffff000), low = f - high + tail;
  V(f32) r = TW_STEP(low, TW_F(0x1.715476p+0f), (high + low) * TW_F(0x1.4ae0cp-26f));
  r = TW_STEP(high, TW_F(0x1.715476p+0f), r) + e;
  TW_LOG_SPECIAL(x, r)
}
#undef TW_SPLIT_LOG
#undef TW_LOG_SPECIAL

TW_INLINE V(f32) FN(tanh_f32)(V(f32) x) {
  V(f32) a = FN(abs_f32)(x), y = x * x;
  V(f32) q = TW_STEP(y, TW_F(-0x1.647ab8p-8f), TW_F(0x1.4e3348p-6f));
  q = TW_STEP(y, q, TW_F(-0x1.b79fc4p-5f));
  q = TW_STEP(y, q, TW_F(0x1.110270p-3f));
  q = TW_STEP(y, q, TW_F(-0x1.55551cp-2f));
  V(f32) small = TW_STEP(a * y, q, a);
  V(f32) large = TW_F(1) - TW_F(2) / (FN(exp_f32)(a + a) + TW_F(1));
  V(u32) sign = FN(bits_f32)(x) & 0x80000000;
  return FN(float_u32)(FN(bits_f32)(SELECT(a < TW_F(0.65625f), small, large, f32)) | sign);
}

TW_INLINE V(f32) FN(erf_f32)(V(f32) x) {
  V(f32) a = FN(abs_f32)(x), y = x * x;
  V(f32) p = TW_STEP(y, TW_F(0x1.496a28p-14f), TW_F(-0x1.a3f6fcp-11f));
  p = TW_STEP(y, p, TW_F(0x1.5405b2p-8f));
  p = TW_STEP(y, p, TW_F(-0x1.b7f90cp-6f));
  p = TW_STEP(y, p, TW_F(0x1.ce2cf8p-4f));
  p = TW_STEP(y, p, TW_F(-0x1.81273ep-2f));
  p = TW_STEP(y, p, TW_F(0x1.06eba8p-3f));
  V(f32) b = SELECT(a > TW_F(4.1f), TW_F(4.1f), a, f32);
  V(f32) q = TW_STEP(b, TW_F(-0x1.9d85a6p-13f), TW_F(0x1.908178p-9f));
  q = TW_STEP(b, q, TW_F(-0x1.6cfd02p-6f));
  q = TW_STEP(b, q, TW_F(0x1.aa2324p-4f));
  q = TW_STEP(b, q, TW_F(0x1.462cb0p-1f));
  q = TW_STEP(b, q, TW_F(0x1.20b432p+0f));
  q = TW_STEP(b, q, TW_F(0x1.743778p-13f));
  V(f32) large = TW_F(1) - FN(exp_f32)(-q);
  V(u32) sign = FN(bits_f32)(x) & 0x80000000;
  V(f32) outer = FN(float_u32)(FN(bits_f32)(large) | sign);
  V(f32) r = SELECT(a < TW_F(1), TW_STEP(x, p, x), outer, f32);
  return SELECT(x == x, r, x, f32);
}

/* The C library a lane. */
#define TW_LIBRARY(name, function)                                                              \
  TW_INLINE V(f32) FN(name##_f32)(V(f32) x) { V(f32) r; TW_EACH_LANE(TW_LANE(r), function##f(TW_LANE(x))) return r; } \
  TW_INLINE V(f64) FN(name##_f64)(V(f64) x) { V(f64) r; TW_EACH_LANE(TW_LANE(r), function(TW_LANE(x))) return r; }
#define TW_LIBRARY_F64(name, expression)                                                        \
  TW_INLINE V(f64) FN(name##_f64)(V(f64) v) { V(f64) r; TW_EACH_LANE(TW_LANE(r), ({ f64 x = TW_LANE(v); expression; })) return r; }
#define TW_LIBRARY_2(name, function)                                                            \
  TW_INLINE V(f32) FN(name##_f32)(V(f32) x, V(f32) y) { V(f32) r; TW_EACH_LANE(TW_LANE(r), function##f(TW_LANE(x), TW_LANE(y))) return r; } \
  TW_INLINE V(f64) FN(name##_f64)(V(f64) x, V(f64) y) { V(f64) r; TW_EACH_LANE(TW_LANE(r), function(TW_LANE(x), TW_LANE(y))) return r; }
TW_LIBRARY(log10, log10)
TW_LIBRARY(log1p, log1p)
TW_LIBRARY(sin, sin)
TW_LIBRARY(cos, cos)
TW_LIBRARY(tan, tan)
TW_LIBRARY(sinh, sinh)
TW_LIBRARY(cosh, cosh)
TW_LIBRARY(atan, atan)
TW_LIBRARY_2(atan2, atan2)
TW_LIBRARY_2(pow, pow)
TW_LIBRARY_2(fmod, fmod)
TW_LIBRARY_F64(exp, exp(x))
TW_LIBRARY_F64(exp2, exp2(x))
TW_LIBRARY_F64(fast_exp2, exp2(x))
TW_LIBRARY_F64(exp10, pow(10.0, x))
TW_LIBRARY_F64(log, log(x))
TW_LIBRARY_F64(log2, log2(x))
TW_LIBRARY_F64(tanh, tanh(x))
TW_LIBRARY_F64(erf, erf(x))
TW_LIBRARY_F64(sqrt, sqrt(x))
TW_LIBRARY_F64(rsqrt, 1.0 / sqrt(x))
TW_LIBRARY_F64(round, rint(x))
TW_LIBRARY_F64(floor, floor(x))
TW_LIBRARY_F64(ceil, ceil(x))
TW_LIBRARY_F64(trunc, trunc(x))
TW_INLINE V(f32) FN(exp10_f32)(V(f32) v) { V(f32) r; TW_EACH_LANE(TW_LANE(r), (f32)pow(10.0, TW_LANE(v))) return r; }
#undef TW_LIBRARY
#undef TW_LIBRARY_F64
#undef TW_LIBRARY_2
#undef TW_BOUNDED
#undef TW_WHOLE
#undef TW_STEP
#undef TW_F
#undef TW_EACH_LANE
#undef TW_LANE
