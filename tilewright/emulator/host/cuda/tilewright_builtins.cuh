// Functions and types that CUDA's compilers know without a header, by CUDA's own names, for texts and calls of authors.
#pragma once

#define TW_LIBRARY(NAME) extern "C" double NAME(double); extern "C" float NAME##f(float);
TW_LIBRARY(asin) TW_LIBRARY(acos) TW_LIBRARY(asinh) TW_LIBRARY(acosh) TW_LIBRARY(atanh) TW_LIBRARY(expm1) TW_LIBRARY(cbrt) TW_LIBRARY(erfc)
TW_LIBRARY(round) TW_LIBRARY(nearbyint) TW_LIBRARY(logb) TW_LIBRARY(tgamma) TW_LIBRARY(lgamma)
#undef TW_LIBRARY
#define TW_LIBRARY(NAME) extern "C" double NAME(double, double); extern "C" float NAME##f(float, float);
TW_LIBRARY(hypot) TW_LIBRARY(copysign) TW_LIBRARY(fdim) TW_LIBRARY(remainder) TW_LIBRARY(nextafter)
#undef TW_LIBRARY
extern "C" { double ldexp(double, int); float ldexpf(float, int); }
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

// Results in the four directions of rounding.  A double that is the nearest to the exact result, with the sign of what is missing.
namespace tw {
enum class Rounding { rn, rz, ru, rd };
struct Nearest { double value, missing; };
TW_DEVICE Nearest nearest_sum(double a, double b) {
  const double sum = a + b, of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}
TW_DEVICE Nearest nearest_ratio(double a, double b) {
  const double ratio = a / b, rest = ::fma(-ratio, b, a);
  return {ratio, b < 0 ? -rest : rest};
}
TW_DEVICE Nearest nearest_root(double a) { const double root = ::sqrt(a); return {root, ::fma(-root, root, a)}; }
template <Rounding HOW> TW_DEVICE float rounded(Nearest exact) {
  const float near = float(exact.value);
  if (HOW == Rounding::rn || !(exact.missing - exact.missing == 0) || exact.value - exact.value != 0) return near;
  const bool above = double(near) > exact.value || (double(near) == exact.value && exact.missing < 0);
  const bool below = double(near) < exact.value || (double(near) == exact.value && exact.missing > 0);
  const bool down = HOW == Rounding::rd || (HOW == Rounding::rz && exact.value > 0);
  if (above && down) return ::nextafterf(near, -__builtin_inff());
  if (below && !down) return ::nextafterf(near, __builtin_inff());
  return near;
}
template <Rounding HOW> TW_DEVICE double whole(double x) {
  return HOW == Rounding::rn ? ::rint(x) : HOW == Rounding::rz ? ::trunc(x) : HOW == Rounding::ru ? ::ceil(x) : ::floor(x);
}
}  // namespace tw
#define TW_ROUNDED(HOW)                                                                                                          \
  TW_DEVICE float __fadd_##HOW(float x, float y) { return tw::Rounding::HOW == tw::Rounding::rn ? x + y : tw::rounded<tw::Rounding::HOW>(tw::nearest_sum(x, y)); } \
  TW_DEVICE float __fsub_##HOW(float x, float y) { return __fadd_##HOW(x, -y); }                                                  \
  TW_DEVICE float __fmul_##HOW(float x, float y) { return tw::rounded<tw::Rounding::HOW>({double(x) * double(y), 0}); }           \
  TW_DEVICE float __fmaf_##HOW(float x, float y, float z) { return tw::Rounding::HOW == tw::Rounding::rn ? ::fmaf(x, y, z) : tw::rounded<tw::Rounding::HOW>(tw::nearest_sum(double(x) * double(y), z)); } \
  TW_DEVICE float __fdiv_##HOW(float x, float y) { return tw::Rounding::HOW == tw::Rounding::rn ? x / y : tw::rounded<tw::Rounding::HOW>(tw::nearest_ratio(x, y)); } \
  TW_DEVICE float __frcp_##HOW(float x) { return __fdiv_##HOW(1.0f, x); }                                                         \
  TW_DEVICE float __fsqrt_##HOW(float x) { return tw::Rounding::HOW == tw::Rounding::rn ? ::sqrtf(x) : tw::rounded<tw::Rounding::HOW>(tw::nearest_root(x)); } \
  TW_DEVICE float __double2float_##HOW(double x) { return tw::rounded<tw::Rounding::HOW>({x, 0}); }                               \
  TW_DEVICE float __int2float_##HOW(int x) { return __double2float_##HOW(x); }                                                    \
  TW_DEVICE float __uint2float_##HOW(unsigned x) { return __double2float_##HOW(x); }                                              \
  TW_DEVICE int __float2int_##HOW(float x) { return tw::convert<int32_t>(tw::whole<tw::Rounding::HOW>(x)); }                      \
  TW_DEVICE unsigned __float2uint_##HOW(float x) { return tw::convert<uint32_t>(tw::whole<tw::Rounding::HOW>(x)); }               \
  TW_DEVICE long long __float2ll_##HOW(float x) { return tw::convert<int64_t>(tw::whole<tw::Rounding::HOW>(x)); }                 \
  TW_DEVICE unsigned long long __float2ull_##HOW(float x) { return tw::convert<uint64_t>(tw::whole<tw::Rounding::HOW>(x)); }      \
  TW_DEVICE int __double2int_##HOW(double x) { return tw::convert<int32_t>(tw::whole<tw::Rounding::HOW>(x)); }                    \
  TW_DEVICE unsigned __double2uint_##HOW(double x) { return tw::convert<uint32_t>(tw::whole<tw::Rounding::HOW>(x)); }             \
  TW_DEVICE long long __double2ll_##HOW(double x) { return tw::convert<int64_t>(tw::whole<tw::Rounding::HOW>(x)); }
TW_ROUNDED(rn) TW_ROUNDED(rz) TW_ROUNDED(ru) TW_ROUNDED(rd)
#undef TW_ROUNDED

// The same of doubles: which side of the exact result the nearest one lies on, asked of significands of 0.25 to 1, where nothing is too small.
namespace tw {
TW_DEVICE double significand(double x, int& exponent) { return x == 0 || x - x != 0 ? x : __builtin_frexp(x, &exponent); }
template <Rounding HOW> TW_DEVICE double directed(double near, double missing) {
  const bool down = HOW == Rounding::rd || (HOW == Rounding::rz && (near != 0 ? near > 0 : missing > 0));
  if (HOW == Rounding::rn || (down ? !(missing < 0) : !(missing > 0))) return near;
  return ::nextafter(near, down ? -__builtin_inf() : __builtin_inf());
}
// What is missing where finite operands give more than the greatest number: the result is too large.
TW_DEVICE bool overflown(double result, double x, double y) { return result - result != 0 && result == result && x - x == 0 && y - y == 0; }
template <Rounding HOW> TW_DEVICE double sum(double x, double y) {
  const double near = x + y;
  if (HOW == Rounding::rd && near == 0 && (x != 0 || negative(x) != negative(y))) return -0.0;
  return directed<HOW>(near, overflown(near, x, y) ? -near : nearest_sum(x, y).missing);
}
template <Rounding HOW> TW_DEVICE double product(double x, double y) {
  int of_x = 0, of_y = 0;
  const double near = x * y, a = significand(x, of_x), b = significand(y, of_y), exact = a * b;
  return directed<HOW>(near, overflown(near, x, y) ? -near : (exact - ::ldexp(near, -of_x - of_y)) + ::fma(a, b, -exact));
}
template <Rounding HOW> TW_DEVICE double ratio(double x, double y) {
  int of_x = 0, of_y = 0;
  const double near = x / y, a = significand(x, of_x), b = significand(y, of_y);
  if (y == 0 || y - y != 0) return near;
  const double rest = ::fma(-::ldexp(near, of_y - of_x), b, a);
  return directed<HOW>(near, overflown(near, x, y) ? -near : b < 0 ? -rest : rest);
}
template <Rounding HOW> TW_DEVICE double root(double x) {
  int of_x = 0;
  double a = significand(x, of_x);
  const int half = of_x >> 1;
  a = ::ldexp(a, of_x - 2 * half);
  const double near = ::sqrt(x), found = ::ldexp(near, -half);
  return directed<HOW>(near, x > 0 ? ::fma(-found, found, a) : 0.0);
}
}  // namespace tw
#define TW_ROUNDED(HOW)                                                                                   \
  TW_DEVICE double __dadd_##HOW(double x, double y) { return tw::sum<tw::Rounding::HOW>(x, y); }          \
  TW_DEVICE double __dsub_##HOW(double x, double y) { return tw::sum<tw::Rounding::HOW>(x, -y); }         \
  TW_DEVICE double __dmul_##HOW(double x, double y) { return tw::product<tw::Rounding::HOW>(x, y); }      \
  TW_DEVICE double __ddiv_##HOW(double x, double y) { return tw::ratio<tw::Rounding::HOW>(x, y); }        \
  TW_DEVICE double __drcp_##HOW(double x) { return tw::ratio<tw::Rounding::HOW>(1.0, x); }                \
  TW_DEVICE double __dsqrt_##HOW(double x) { return tw::root<tw::Rounding::HOW>(x); }
TW_ROUNDED(rn) TW_ROUNDED(rz) TW_ROUNDED(ru) TW_ROUNDED(rd)
#undef TW_ROUNDED
TW_DEVICE double __fma_rn(double x, double y, double z) { return ::fma(x, y, z); }
TW_DEVICE double __int2double_rn(int x) { return x; }
TW_DEVICE double __uint2double_rn(unsigned x) { return x; }
TW_DEVICE double __ll2double_rn(long long x) { return double(x); }
TW_DEVICE float __ll2float_rn(long long x) { return float(x); }
TW_DEVICE float __ull2float_rn(unsigned long long x) { return float(x); }
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

// Halves and bytes of a word, each for itself.
namespace tw {
template <class T, class F> TW_DEVICE unsigned each(unsigned x, unsigned y, F&& of) {
  constexpr int BITS = 8 * sizeof(T);
  unsigned result = 0;
  for (int at = 0; at < 32; at += BITS) result |= (unsigned(of(int(T(x >> at)), int(T(y >> at)))) & ((1u << BITS) - 1)) << at;
  return result;
}
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
#undef TW_EACH
#undef TW_COMPARED
#undef TW_BOTH
TW_DEVICE unsigned __vneg2(unsigned x) { return __vsub2(0, x); }
TW_DEVICE unsigned __vneg4(unsigned x) { return __vsub4(0, x); }
TW_DEVICE unsigned __vabs2(unsigned x) { return __vabsdiffs2(x, 0); }
TW_DEVICE unsigned __vabs4(unsigned x) { return __vabsdiffs4(x, 0); }

// Threads of a warp and of the block.
TW_DEVICE void __syncthreads(TW_SITE) { tw::sync_threads(site); }
TW_DEVICE int __syncthreads_and(int x, TW_SITE) { return tw::sync_threads_and(x != 0, site); }
TW_DEVICE int __syncthreads_or(int x, TW_SITE) { return tw::sync_threads_or(x != 0, site); }
TW_DEVICE int __syncthreads_count(int x, TW_SITE) { return tw::sync_threads_count(x != 0, site); }
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
