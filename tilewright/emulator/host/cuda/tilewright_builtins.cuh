// Functions and types that CUDA's compilers know without a header, by CUDA's own names, for texts and calls of authors.
#pragma once

#define TW_LIBRARY(NAME) extern "C" double NAME(double); extern "C" float NAME##f(float);
TW_LIBRARY(asin) TW_LIBRARY(acos) TW_LIBRARY(asinh) TW_LIBRARY(acosh) TW_LIBRARY(atanh) TW_LIBRARY(expm1) TW_LIBRARY(cbrt) TW_LIBRARY(erfc)
TW_LIBRARY(round) TW_LIBRARY(nearbyint) TW_LIBRARY(logb) TW_LIBRARY(tgamma) TW_LIBRARY(lgamma)
#undef TW_LIBRARY
#define TW_LIBRARY(NAME) extern "C" double NAME(double, double); extern "C" float NAME##f(float, float);
TW_LIBRARY(hypot) TW_LIBRARY(copysign) TW_LIBRARY(fdim) TW_LIBRARY(remainder) TW_LIBRARY(nextafter)
#undef TW_LIBRARY
extern "C" {
double ldexp(double, int); float ldexpf(float, int); double scalbn(double, int); float scalbnf(float, int); int ilogb(double); int ilogbf(float);
double frexp(double, int*); float frexpf(float, int*); double modf(double, double*); float modff(float, float*);
long lrint(double); long lrintf(float); long lround(double); long lroundf(float);
long long llrint(double); long long llrintf(float); long long llround(double); long long llroundf(float);
}
#define TW_COMPUTED(NAME, FORMULA) TW_DEVICE double NAME(double x) { return FORMULA; } TW_DEVICE float NAME##f(float given) { const double x = given; return float(FORMULA); }
TW_COMPUTED(rcbrt, 1 / cbrt(x)) TW_COMPUTED(normcdf, 0.5 * erfc(-x * 0.70710678118654752440))
#undef TW_COMPUTED
#define TW_NORM(NAME, FORMULA, ...)                                                                                              \
  TW_DEVICE double NAME(__VA_ARGS__) { return ::sqrt(FORMULA); } TW_DEVICE double r##NAME(__VA_ARGS__) { return 1 / ::sqrt(FORMULA); } \
  TW_DEVICE float NAME##f(__VA_ARGS__) { return float(::sqrt(FORMULA)); } TW_DEVICE float r##NAME##f(__VA_ARGS__) { return float(1 / ::sqrt(FORMULA)); }
TW_NORM(norm3d, x * x + y * y + z * z, double x, double y, double z)
TW_NORM(norm4d, x * x + y * y + z * z + w * w, double x, double y, double z, double w)
#undef TW_NORM
TW_DEVICE void sincosf(float x, float* sine, float* cosine) { *sine = float(::sin(double(x))); *cosine = float(::cos(double(x))); }
TW_DEVICE void sincos(double x, double* sine, double* cosine) { *sine = ::sin(x); *cosine = ::cos(x); }
TW_DEVICE float rsqrtf(float x) { return tw::rsqrt(x); }
TW_DEVICE double rsqrt(double x) { return tw::rsqrt(x); }
TW_DEVICE float exp10f(float x) { return tw::exp10(x); }
TW_DEVICE float sinpif(float x) { return float(sin(3.14159265358979323846 * fmod(double(x), 2.0))); }
TW_DEVICE float cospif(float x) { return float(cos(3.14159265358979323846 * fmod(double(x), 2.0))); }
TW_DEVICE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
TW_DEVICE float __expf(float x) { return tw::fast_exp2(x * 1.44269504f); }
TW_DEVICE float __exp10f(float x) { return tw::fast_exp2(x * 3.32192809f); }
TW_DEVICE float __log2f(float x) { return tw::fast_log2(x); }
TW_DEVICE float __logf(float x) { return tw::fast_log2(x) * 0.693147181f; }
TW_DEVICE float __log10f(float x) { return tw::fast_log2(x) * 0.301029996f; }
TW_DEVICE float __sinf(float x) { return tw::fast_sin(x); }
TW_DEVICE float __cosf(float x) { return tw::fast_cos(x); }
TW_DEVICE float __tanf(float x) { return tw::fast_sin(x) / tw::fast_cos(x); }
TW_DEVICE float __tanhf(float x) { return tw::fast_tanh(x); }
TW_DEVICE float __powf(float x, float y) { return tw::fast_exp2(y * tw::fast_log2(x)); }
TW_DEVICE float __fdividef(float x, float y) { return x / y; }
TW_DEVICE float __frsqrt_rn(float x) { return tw::rsqrt(x); }

// Results in the four directions of rounding: this machine rounds so while it computes them.
extern "C" int fesetround(int);
namespace tw {
#ifdef __aarch64__
enum class Rounding { rn = 0, ru = 0x400000, rd = 0x800000, rz = 0xC00000 };
#else
enum class Rounding { rn = 0, rd = 0x400, ru = 0x800, rz = 0xC00 };
#endif
template <class T> TW_DEVICE T settled(T x) {  // no compiler computes it elsewhere
  asm volatile("" : "+m"(x) : : "memory");
  return x;
}
template <Rounding HOW, class F, class... T> TW_DEVICE auto rounded(F&& of, T... given) {
  fesetround(int(HOW));
  const auto result = settled(of(settled(given)...));
  fesetround(int(Rounding::rn));
  return result;
}
template <Rounding HOW> TW_DEVICE double whole(double x) {
  return HOW == Rounding::rn ? ::rint(x) : HOW == Rounding::rz ? ::trunc(x) : HOW == Rounding::ru ? ::ceil(x) : ::floor(x);
}
template <class T> TW_DEVICE T from_bits(unsigned long long x) {  // the bit that is shifted out stays: it decides the rounding
  return x >> 63 ? 2 * T((long long)(x >> 1 | (x & 1))) : T((long long)(x));
}
}  // namespace tw
#define TW_OPERATIONS(HOW, T, NAME, SUFFIX)                                                                                \
  TW_DEVICE T __##NAME##add_##HOW(T x, T y) { return tw::rounded<tw::Rounding::HOW>([](T a, T b) { return a + b; }, x, y); } \
  TW_DEVICE T __##NAME##sub_##HOW(T x, T y) { return tw::rounded<tw::Rounding::HOW>([](T a, T b) { return a - b; }, x, y); } \
  TW_DEVICE T __##NAME##mul_##HOW(T x, T y) { return tw::rounded<tw::Rounding::HOW>([](T a, T b) { return a * b; }, x, y); } \
  TW_DEVICE T __##NAME##div_##HOW(T x, T y) { return tw::rounded<tw::Rounding::HOW>([](T a, T b) { return a / b; }, x, y); } \
  TW_DEVICE T __##NAME##rcp_##HOW(T x) { return __##NAME##div_##HOW(1, x); }                                               \
  TW_DEVICE T __##NAME##sqrt_##HOW(T x) { return tw::rounded<tw::Rounding::HOW>([](T a) { return ::sqrt##SUFFIX(a); }, x); } \
  TW_DEVICE T __fma##SUFFIX##_##HOW(T x, T y, T z) { return tw::rounded<tw::Rounding::HOW>([](T a, T b, T c) { return ::fma##SUFFIX(a, b, c); }, x, y, z); }
#define TW_CONVERTED(HOW, T, NAME, FROM, OTHER, ...) \
  TW_DEVICE T __##OTHER##2##NAME##_##HOW(FROM x) { return tw::rounded<tw::Rounding::HOW>([](FROM a) { return __VA_ARGS__; }, x); }
#define TW_WHOLE(HOW, T, NAME, TO, OTHER) \
  TW_DEVICE T __##OTHER##2##NAME##_##HOW(OTHER x) { return tw::convert<TO>(tw::whole<tw::Rounding::HOW>(x)); }
#define TW_ROUNDED(HOW)                                                                                                    \
  TW_OPERATIONS(HOW, float, f, f) TW_OPERATIONS(HOW, double, d, )                                                          \
  TW_CONVERTED(HOW, float, float, double, double, float(a)) TW_CONVERTED(HOW, float, float, int, int, float(a))            \
  TW_CONVERTED(HOW, float, float, unsigned, uint, float((long long)(a))) TW_CONVERTED(HOW, float, float, long long, ll, float(a)) \
  TW_CONVERTED(HOW, float, float, unsigned long long, ull, tw::from_bits<float>(a))                                        \
  TW_CONVERTED(HOW, double, double, long long, ll, double(a))                                                              \
  TW_CONVERTED(HOW, double, double, unsigned long long, ull, tw::from_bits<double>(a))                                     \
  TW_WHOLE(HOW, int, int, int32_t, float) TW_WHOLE(HOW, unsigned, uint, uint32_t, float)                                   \
  TW_WHOLE(HOW, long long, ll, int64_t, float) TW_WHOLE(HOW, unsigned long long, ull, uint64_t, float)                     \
  TW_WHOLE(HOW, int, int, int32_t, double) TW_WHOLE(HOW, unsigned, uint, uint32_t, double)                                 \
  TW_WHOLE(HOW, long long, ll, int64_t, double) TW_WHOLE(HOW, unsigned long long, ull, uint64_t, double)
TW_ROUNDED(rn) TW_ROUNDED(rz) TW_ROUNDED(ru) TW_ROUNDED(rd)
#undef TW_ROUNDED
#undef TW_OPERATIONS
#undef TW_CONVERTED
#undef TW_WHOLE
TW_DEVICE double __int2double_rn(int x) { return x; }
TW_DEVICE double __uint2double_rn(unsigned x) { return x; }
TW_DEVICE int __float_as_int(float x) { return tw::bit_cast<int>(x); }
TW_DEVICE unsigned __float_as_uint(float x) { return tw::bit_cast<unsigned>(x); }
TW_DEVICE float __int_as_float(int x) { return tw::bit_cast<float>(x); }
TW_DEVICE float __uint_as_float(unsigned x) { return tw::bit_cast<float>(x); }
TW_DEVICE long long __double_as_longlong(double x) { return tw::bit_cast<long long>(x); }
TW_DEVICE double __longlong_as_double(long long x) { return tw::bit_cast<double>(x); }
TW_DEVICE int __double2hiint(double x) { return int(tw::bit_cast<uint64_t>(x) >> 32); }
TW_DEVICE int __double2loint(double x) { return int(tw::bit_cast<uint64_t>(x)); }
TW_DEVICE double __hiloint2double(int high, int low) { return tw::bit_cast<double>(uint64_t(uint32_t(high)) << 32 | uint32_t(low)); }

// Bits and products.
TW_DEVICE int __popc(unsigned x) { return __builtin_popcount(x); }
TW_DEVICE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
TW_DEVICE int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
TW_DEVICE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)(x)) : 64; }
TW_DEVICE int __ffs(int x) { return __builtin_ffs(x); }
TW_DEVICE int __ffsll(long long x) { return __builtin_ffsll(x); }
TW_DEVICE unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
  return result;
}
TW_DEVICE unsigned long long __brevll(unsigned long long x) { return (unsigned long long)(__brev(unsigned(x))) << 32 | __brev(unsigned(x >> 32)); }
TW_DEVICE int __mulhi(int x, int y) { return int(int64_t(x) * y >> 32); }
TW_DEVICE unsigned __umulhi(unsigned x, unsigned y) { return unsigned(uint64_t(x) * y >> 32); }
TW_DEVICE long long __mul64hi(long long x, long long y) { return (long long)(__int128(x) * y >> 64); }
TW_DEVICE unsigned long long __umul64hi(unsigned long long x, unsigned long long y) { return (unsigned long long)((unsigned __int128)(x) * y >> 64); }
TW_DEVICE int __mul24(int x, int y) { return int((int64_t(int(unsigned(x) << 8) >> 8) * (int(unsigned(y) << 8) >> 8))); }
TW_DEVICE unsigned __umul24(unsigned x, unsigned y) { return (x & 0xFFFFFFu) * (y & 0xFFFFFFu); }
TW_DEVICE unsigned __sad(int x, int y, unsigned z) { return z + (x < y ? unsigned(y) - unsigned(x) : unsigned(x) - unsigned(y)); }
TW_DEVICE unsigned __usad(unsigned x, unsigned y, unsigned z) { return z + (x < y ? y - x : x - y); }
TW_DEVICE int __hadd(int x, int y) { return int((int64_t(x) + y) >> 1); }
TW_DEVICE int __rhadd(int x, int y) { return int((int64_t(x) + y + 1) >> 1); }
TW_DEVICE unsigned __uhadd(unsigned x, unsigned y) { return unsigned((uint64_t(x) + y) >> 1); }
TW_DEVICE unsigned __urhadd(unsigned x, unsigned y) { return unsigned((uint64_t(x) + y + 1) >> 1); }
TW_DEVICE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) { return unsigned((uint64_t(high) << 32 | low) << (by & 31) >> 32); }
TW_DEVICE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) { return unsigned((uint64_t(high) << 32 | low) >> (by & 31)); }
TW_DEVICE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) { return by >= 32 ? low : __funnelshift_l(low, high, by); }
TW_DEVICE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) { return by >= 32 ? high : __funnelshift_r(low, high, by); }
TW_DEVICE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = uint64_t(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= unsigned(both >> (selector >> (4 * i) & 7) * 8 & 255) << (8 * i);
  return result;
}
template <class T, class U> TW_DEVICE int tw_dot_of_bytes(int x, int y, int sum) {
  for (int i = 0; i < 4; ++i) sum = int(unsigned(sum) + unsigned(int(T(unsigned(x) >> (8 * i))) * int(U(unsigned(y) >> (8 * i)))));
  return sum;
}
TW_DEVICE int __dp4a(int x, int y, int sum) { return tw_dot_of_bytes<int8_t, int8_t>(x, y, sum); }
TW_DEVICE unsigned __dp4a(unsigned x, unsigned y, unsigned sum) { return unsigned(tw_dot_of_bytes<uint8_t, uint8_t>(int(x), int(y), int(sum))); }

// Halves of the first word by bytes of the second one, the lower two or the upper two.
#define TW_DP2A(NAME, SHIFT)                                                                                             \
  TW_DEVICE int NAME(int x, int y, int sum) { return int(unsigned(sum) + unsigned(int16_t(x) * int8_t(y >> SHIFT)) + unsigned((x >> 16) * int8_t(y >> (SHIFT + 8)))); } \
  TW_DEVICE unsigned NAME(unsigned x, unsigned y, unsigned sum) { return sum + uint16_t(x) * uint8_t(y >> SHIFT) + (x >> 16) * uint8_t(y >> (SHIFT + 8)); }
TW_DP2A(__dp2a_lo, 0) TW_DP2A(__dp2a_hi, 16)
#undef TW_DP2A

// Halves and bytes of a word, each for itself.
namespace tw {
template <class T, class F> TW_DEVICE unsigned each(unsigned x, unsigned y, F&& of) {
  constexpr int BITS = 8 * sizeof(T);
  unsigned result = 0;
  for (int at = 0; at < 32; at += BITS) result |= (unsigned(of(int(T(x >> at)), int(T(y >> at)))) & ((1u << BITS) - 1)) << at;
  return result;
}
template <class T, class F> TW_DEVICE uint32_t each3(uint32_t x, uint32_t y, uint32_t z, F&& of) {
  constexpr int BITS = 8 * sizeof(T);
  uint64_t result = 0;
  for (int at = 0; at < 32; at += BITS)
    result |= (uint64_t(of(int64_t(T(x >> at)), int64_t(T(y >> at)), int64_t(T(z >> at)))) & ((uint64_t(1) << BITS) - 1)) << at;
  return uint32_t(result);
}
TW_DEVICE int64_t most(int64_t a, int64_t b) { return a < b ? b : a; }
TW_DEVICE int64_t least(int64_t a, int64_t b) { return b < a ? b : a; }
TW_DEVICE int bounded(int x, int least, int most) { return x < least ? least : x > most ? most : x; }
}  // namespace tw
#define TW_EACH(NAME, T, FORMULA) \
  TW_DEVICE unsigned NAME(unsigned x, unsigned y) { return tw::each<T>(x, y, [](int a, int b) { return FORMULA; }); }
#define TW_COMPARED(NAME, SIGN, OP)                                                                  \
  TW_EACH(__vcmp##NAME##SIGN##2, TW_HALF_##SIGN, (a OP b) ? -1 : 0) TW_EACH(__vcmp##NAME##SIGN##4, TW_BYTE_##SIGN, (a OP b) ? -1 : 0) \
  TW_EACH(__vset##NAME##SIGN##2, TW_HALF_##SIGN, a OP b) TW_EACH(__vset##NAME##SIGN##4, TW_BYTE_##SIGN, a OP b)
#define TW_HALF_s int16_t
#define TW_HALF_u uint16_t
#define TW_HALF_ uint16_t
#define TW_BYTE_s int8_t
#define TW_BYTE_u uint8_t
#define TW_BYTE_ uint8_t
#define TW_BOTH(NAME, SIGN, FORMULA) TW_EACH(__v##NAME##2, TW_HALF_##SIGN, FORMULA) TW_EACH(__v##NAME##4, TW_BYTE_##SIGN, FORMULA)
TW_BOTH(add, , a + b) TW_BOTH(sub, , a - b) TW_BOTH(mins, s, a < b ? a : b) TW_BOTH(minu, u, a < b ? a : b) TW_BOTH(maxs, s, a < b ? b : a)
TW_BOTH(maxu, u, a < b ? b : a) TW_BOTH(absdiffs, s, a < b ? b - a : a - b) TW_BOTH(absdiffu, u, a < b ? b - a : a - b)
TW_BOTH(avgs, s, (a + b + (a + b >= 0)) >> 1) TW_BOTH(avgu, u, (a + b + 1) >> 1) TW_BOTH(haddu, u, (a + b) >> 1)
TW_EACH(__vaddss2, int16_t, tw::bounded(a + b, -32768, 32767)) TW_EACH(__vaddss4, int8_t, tw::bounded(a + b, -128, 127))
TW_EACH(__vsubss2, int16_t, tw::bounded(a - b, -32768, 32767)) TW_EACH(__vsubss4, int8_t, tw::bounded(a - b, -128, 127))
TW_EACH(__vaddus2, uint16_t, tw::bounded(a + b, 0, 65535)) TW_EACH(__vaddus4, uint8_t, tw::bounded(a + b, 0, 255))
TW_EACH(__vsubus2, uint16_t, tw::bounded(a - b, 0, 65535)) TW_EACH(__vsubus4, uint8_t, tw::bounded(a - b, 0, 255))
TW_COMPARED(eq, , ==) TW_COMPARED(ne, , !=) TW_COMPARED(lt, s, <) TW_COMPARED(lt, u, <) TW_COMPARED(le, s, <=) TW_COMPARED(le, u, <=)
TW_COMPARED(gt, s, >) TW_COMPARED(gt, u, >) TW_COMPARED(ge, s, >=) TW_COMPARED(ge, u, >=)
#undef TW_COMPARED
#undef TW_BOTH
// The greatest and least of words, or of halves of words, of two or three, or of a sum and a third; and not below zero.
#define TW_THREE(NAME, KIND, T, WORD, FORMULA) \
  TW_DEVICE WORD __vi##NAME##_##KIND(WORD x, WORD y, WORD z) { return WORD(tw::each3<T>(x, y, z, [](int64_t a, int64_t b, int64_t c) { return FORMULA; })); }
#define TW_TWO(NAME, KIND, T, WORD, FORMULA) \
  TW_DEVICE WORD __vi##NAME##_##KIND(WORD x, WORD y) { return WORD(tw::each3<T>(x, y, 0, [](int64_t a, int64_t b, int64_t) { return FORMULA; })); }
#define TW_KIND(KIND, T, WORD)                                                                                                  \
  TW_THREE(max3, KIND, T, WORD, tw::most(tw::most(a, b), c)) TW_THREE(min3, KIND, T, WORD, tw::least(tw::least(a, b), c))       \
  TW_THREE(addmax, KIND, T, WORD, tw::most(int64_t(T(a + b)), c)) TW_THREE(addmin, KIND, T, WORD, tw::least(int64_t(T(a + b)), c)) \
  TW_CHOSEN(max, KIND, T, WORD, >=) TW_CHOSEN(min, KIND, T, WORD, <=)
#define TW_RELU(KIND, T, WORD)                                                                                                  \
  TW_THREE(max3, KIND##_relu, T, WORD, tw::most(tw::most(tw::most(a, b), c), 0)) TW_THREE(min3, KIND##_relu, T, WORD, tw::most(tw::least(tw::least(a, b), c), 0)) \
  TW_THREE(addmax, KIND##_relu, T, WORD, tw::most(tw::most(int64_t(T(a + b)), c), 0)) TW_THREE(addmin, KIND##_relu, T, WORD, tw::most(tw::least(int64_t(T(a + b)), c), 0)) \
  TW_TWO(max, KIND##_relu, T, WORD, tw::most(tw::most(a, b), 0)) TW_TWO(min, KIND##_relu, T, WORD, tw::most(tw::least(a, b), 0))
#define TW_CHOSEN(NAME, KIND, T, WORD, OP)                                                                                      \
  TW_DEVICE WORD __vib##NAME##_##KIND(WORD x, WORD y, bool* first) { *first = T(x) OP T(y); return *first ? x : y; }
TW_KIND(s32, int32_t, int) TW_KIND(u32, uint32_t, unsigned) TW_RELU(s32, int32_t, int)
#undef TW_CHOSEN
#define TW_CHOSEN(NAME, KIND, T, WORD, OP)                                                                                      \
  TW_DEVICE unsigned __vib##NAME##_##KIND(unsigned x, unsigned y, bool* high, bool* low) {                                      \
    *high = T(x >> 16) OP T(y >> 16);                                                                                           \
    *low = T(x) OP T(y);                                                                                                        \
    return ((*high ? x : y) & 0xFFFF0000u) | ((*low ? x : y) & 0xFFFFu);                                                        \
  }
TW_KIND(s16x2, int16_t, unsigned) TW_KIND(u16x2, uint16_t, unsigned) TW_RELU(s16x2, int16_t, unsigned)
#undef TW_CHOSEN
#undef TW_RELU
#undef TW_KIND
#undef TW_TWO
#undef TW_THREE
#define TW_SUMMED(NAME, T) \
  TW_DEVICE unsigned NAME(unsigned x, unsigned y) { unsigned sum = 0; tw::each<T>(x, y, [&](int a, int b) { return sum += unsigned(a < b ? b - a : a - b); }); return sum; }
TW_SUMMED(__vsads2, int16_t) TW_SUMMED(__vsads4, int8_t) TW_SUMMED(__vsadu2, uint16_t) TW_SUMMED(__vsadu4, uint8_t)
#undef TW_SUMMED
TW_DEVICE unsigned __vnegss2(unsigned x) { return __vsubss2(0, x); }
TW_DEVICE unsigned __vnegss4(unsigned x) { return __vsubss4(0, x); }
TW_EACH(tw_vabsss2, int16_t, tw::bounded(a < 0 ? -a : a, 0, 32767)) TW_EACH(tw_vabsss4, int8_t, tw::bounded(a < 0 ? -a : a, 0, 127))
#undef TW_EACH
TW_DEVICE unsigned __vabsss2(unsigned x) { return tw_vabsss2(x, 0); }
TW_DEVICE unsigned __vabsss4(unsigned x) { return tw_vabsss4(x, 0); }
TW_DEVICE unsigned __vneg2(unsigned x) { return __vsub2(0, x); }
TW_DEVICE unsigned __vneg4(unsigned x) { return __vsub4(0, x); }
TW_DEVICE unsigned __vabs2(unsigned x) { return __vabsdiffs2(x, 0); }
TW_DEVICE unsigned __vabs4(unsigned x) { return __vabsdiffs4(x, 0); }

// Threads of a warp and of the block.
TW_DEVICE void __syncthreads(TW_SITE) { tw::sync_threads(site); }
TW_DEVICE int __syncthreads_and(int x, TW_SITE) { return tw::sync_threads_and(x != 0, site); }
TW_DEVICE int __syncthreads_or(int x, TW_SITE) { return tw::sync_threads_or(x != 0, site); }
TW_DEVICE int __syncthreads_count(int x, TW_SITE) { return tw::sync_threads_count(x != 0, site); }
TW_DEVICE unsigned __activemask() {  // the warp's threads: those that wait for others elsewhere are not told apart
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned left = blockDim.x * blockDim.y * blockDim.z - thread / tw::WARP * tw::WARP;
  return left < tw::WARP ? (1u << left) - 1 : tw::ALL_LANES;
}
TW_DEVICE void __syncwarp(unsigned mask = tw::ALL_LANES, TW_SITE) { tw::sync_warp(mask, site); }
TW_DEVICE void __threadfence_block(TW_SITE) { tw::fence_block(site); }
TW_DEVICE void __threadfence(TW_SITE) { tw::fence_device(site); }
TW_DEVICE void __threadfence_system(TW_SITE) { tw::fence_system(site); }
TW_DEVICE void __trap(TW_SITE) { tw::trap(site); }
TW_DEVICE void __nanosleep(unsigned) {}
TW_DEVICE long long clock64() { return (long long)(tw::clock()); }
template <class T> TW_DEVICE T __shfl_sync(unsigned mask, T x, int lane, int width = tw::WARP, TW_SITE) { return tw::shuffle(x, lane, mask, width, site); }
template <class T> TW_DEVICE T __shfl_up_sync(unsigned mask, T x, unsigned lanes, int width = tw::WARP, TW_SITE) { return tw::shuffle_up(x, int(lanes), mask, width, site); }
template <class T> TW_DEVICE T __shfl_down_sync(unsigned mask, T x, unsigned lanes, int width = tw::WARP, TW_SITE) { return tw::shuffle_down(x, int(lanes), mask, width, site); }
template <class T> TW_DEVICE T __shfl_xor_sync(unsigned mask, T x, int lanes, int width = tw::WARP, TW_SITE) { return tw::shuffle_xor(x, lanes, mask, width, site); }
TW_DEVICE unsigned __ballot_sync(unsigned mask, int condition, TW_SITE) { return tw::ballot(condition != 0, mask, site); }
TW_DEVICE int __any_sync(unsigned mask, int condition, TW_SITE) { return tw::any(condition != 0, mask, site); }
TW_DEVICE int __all_sync(unsigned mask, int condition, TW_SITE) { return tw::all(condition != 0, mask, site); }
template <class T> TW_DEVICE unsigned __match_any_sync(unsigned mask, T x, TW_SITE) {
  unsigned same = 0;
  for (int lane = 0; lane < tw::WARP; ++lane) {
    if (!(mask >> lane & 1u)) continue;
    const T other = tw::shuffle(x, lane, mask, tw::WARP, site);
    same |= unsigned(__builtin_memcmp(&x, &other, sizeof(T)) == 0) << lane;
  }
  return same;
}
template <class T> TW_DEVICE unsigned __match_all_sync(unsigned mask, T x, int* all, TW_SITE) {
  *all = __match_any_sync(mask, x, site) == mask;
  return *all ? mask : 0;
}
#define TW_REDUCE(NAME) TW_DEVICE unsigned __reduce_##NAME##_sync(unsigned mask, unsigned x, TW_SITE) { return tw::redux_##NAME(x, mask, site); }
TW_REDUCE(add) TW_REDUCE(min) TW_REDUCE(max) TW_REDUCE(and) TW_REDUCE(or) TW_REDUCE(xor)
#undef TW_REDUCE
#define TW_REDUCE(NAME) TW_DEVICE int __reduce_##NAME##_sync(unsigned mask, int x, TW_SITE) { return tw::redux_##NAME(int32_t(x), mask, site); }
TW_REDUCE(add) TW_REDUCE(min) TW_REDUCE(max)
#undef TW_REDUCE

// Memory.
template <class T> TW_DEVICE T __ldg(const T* p) { return *p; }
template <class T> TW_DEVICE T __ldcg(const T* p) { return *p; }
template <class T> TW_DEVICE T __ldcs(const T* p) { return *p; }
template <class T> TW_DEVICE T __ldca(const T* p) { return *p; }
template <class T> TW_DEVICE T __ldcv(const T* p) { return *p; }
template <class T> TW_DEVICE T __ldlu(const T* p) { return *p; }
template <class T> TW_DEVICE void __stwt(T* p, T x) { *p = x; }
template <class T> TW_DEVICE void __stwb(T* p, T x) { *p = x; }
template <class T> TW_DEVICE void __stcg(T* p, T x) { *p = x; }
template <class T> TW_DEVICE void __stcs(T* p, T x) { *p = x; }
namespace tw {
template <class T> struct Same { using type = T; };
template <> struct Same<long long> { using type = int64_t; };
template <> struct Same<unsigned long long> { using type = uint64_t; };
template <class T> struct Given { using type = T; };   // deduced from the pointer alone
}  // namespace tw
#define TW_ATOMIC(NAME, HOW)                                                                                       \
  template <class T> TW_DEVICE T NAME(T* p, typename tw::Given<T>::type x, TW_SITE) {                              \
    using Same = typename tw::Same<T>::type;                                                                       \
    return T(tw::HOW(reinterpret_cast<Same*>(p), Same(x), site));                                                  \
  }
TW_ATOMIC(atomicAdd, atomic_add) TW_ATOMIC(atomicMin, atomic_min) TW_ATOMIC(atomicMax, atomic_max) TW_ATOMIC(atomicAnd, atomic_and)
TW_ATOMIC(atomicOr, atomic_or) TW_ATOMIC(atomicXor, atomic_xor)
#undef TW_ATOMIC
template <class T> TW_DEVICE T atomicSub(T* p, typename tw::Given<T>::type x, TW_SITE) { return atomicAdd(p, T(T(0) - x), site); }
template <class T> TW_DEVICE T atomicExch(T* p, typename tw::Given<T>::type x, TW_SITE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomicExch changes 4 or 8 bytes");
  if constexpr (sizeof(T) == 4) return tw::bit_cast<T>(tw::atomic_exchange(reinterpret_cast<uint32_t*>(p), tw::bit_cast<uint32_t>(x), site));
  else return tw::bit_cast<T>(tw::atomic_exchange(reinterpret_cast<uint64_t*>(p), tw::bit_cast<uint64_t>(x), site));
}
template <class T> TW_DEVICE T atomicCAS(T* p, typename tw::Given<T>::type expected, typename tw::Given<T>::type desired, TW_SITE) {
  static_assert(sizeof(T) == 4, "atomicCAS changes 4 bytes here");
  return tw::bit_cast<T>(tw::atomic_cas(reinterpret_cast<uint32_t*>(p), tw::bit_cast<uint32_t>(expected), tw::bit_cast<uint32_t>(desired), site));
}
TW_DEVICE unsigned atomicInc(unsigned* p, unsigned most, TW_SITE) {
  for (unsigned old = 0, seen;; old = seen)
    if ((seen = atomicCAS(p, old, old >= most ? 0 : old + 1, site)) == old) return old;
}
TW_DEVICE unsigned atomicDec(unsigned* p, unsigned most, TW_SITE) {
  for (unsigned old = 0, seen;; old = seen)
    if ((seen = atomicCAS(p, old, old == 0 || old > most ? most : old - 1, site)) == old) return old;
}

// Vectors; those of uint are there.
#define TW_VECTOR(NAME, T)                                                      \
  struct alignas(2 * sizeof(T)) NAME##2 { T x, y; };                            \
  struct alignas(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) NAME##4 { T x, y, z, w; }; \
  TW_MAKE(NAME, T)
#define TW_MAKE(NAME, T)                                                        \
  struct NAME##3 { T x, y, z; };                                                \
  TW_DEVICE NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                 \
  TW_DEVICE NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }         \
  TW_DEVICE NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
TW_VECTOR(char, signed char) TW_VECTOR(uchar, unsigned char) TW_VECTOR(short, short) TW_VECTOR(ushort, unsigned short) TW_VECTOR(int, int)
TW_VECTOR(longlong, long long) TW_VECTOR(ulonglong, unsigned long long) TW_VECTOR(float, float) TW_VECTOR(double, double)
TW_MAKE(uint, unsigned)
#undef TW_VECTOR
#undef TW_MAKE
