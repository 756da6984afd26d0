// Every name of the vocabulary, used once, so that each architecture's assembler sees each instruction it should accept.
#include "tilewright_cuda.cuh"
#include "tilewright_debug.cuh"
#if __CUDA_ARCH_FEAT_SM90_ALL
#include "tilewright_wgmma_n128_f16_f16_f16.cuh"
#include "tilewright_wgmma_n64_f16_e5m2_e4m3.cuh"
#include "tilewright_wgmma_n64_f32_bf16_bf16.cuh"
#include "tilewright_wgmma_ss3_n64_f32_bf16_bf16.cuh"
#include "tilewright_wgmma_rs2_n128_f16_f16_f16.cuh"
#include "tilewright_wgmma_ss2_n8_f32_e4m3_e5m2.cuh"
#include "tilewright_wgmma_sparse_n64_f32_bf16_bf16.cuh"
#include "tilewright_wgmma_n48_s32_u8_s8.cuh"
#include "tilewright_wgmma_n24_f32_tf32_tf32.cuh"
#include "tilewright_wgmma_n8_f32_e4m3_e5m2.cuh"
#endif

template <class T, int N> TW_DEVICE void fill(tw::Fragment<T, N>& f, const void* p) {
#pragma unroll
  for (int i = 0; i < N; ++i) f[i] = static_cast<const T*>(p)[threadIdx.x * N + i];
}
template <class T, int N> TW_DEVICE void keep(const tw::Fragment<T, N>& f, void* p) {
#pragma unroll
  for (int i = 0; i < N; ++i) static_cast<T*>(p)[threadIdx.x * N + i] = f[i];
}

#define PRODUCT(FUNCTION, D, ND, A, NA, B, NB) \
  {                                            \
    tw::Fragment<D, ND> d;                         \
    tw::Fragment<A, NA> a;                         \
    tw::Fragment<B, NB> b;                         \
    fill(d, p);                                \
    fill(a, p);                                \
    fill(b, p);                                \
    tw::FUNCTION(d, a, b);                         \
    keep(d, q);                                \
  }

TW_KERNEL(128, 1) matrices(const void* p, void* q) {
  PRODUCT(mma_m16n8k16, float, 4, tw::half, 8, tw::half, 4);
  PRODUCT(mma_m16n8k16, float, 4, tw::bfloat16, 8, tw::bfloat16, 4);
  PRODUCT(mma_m16n8k16, tw::half, 4, tw::half, 8, tw::half, 4);
  PRODUCT(mma_m16n8k16, int32_t, 4, int8_t, 8, int8_t, 4);
  PRODUCT(mma_m16n8k16, int32_t, 4, uint8_t, 8, uint8_t, 4);
  PRODUCT(mma_m16n8k16, int32_t, 4, int8_t, 8, uint8_t, 4);
  PRODUCT(mma_m16n8k16, int32_t, 4, uint8_t, 8, int8_t, 4);
  PRODUCT(mma_m16n8k8, float, 4, tw::half, 4, tw::half, 2);
  PRODUCT(mma_m16n8k8, float, 4, tw::bfloat16, 4, tw::bfloat16, 2);
  PRODUCT(mma_m16n8k8, float, 4, tw::tfloat32, 4, tw::tfloat32, 2);
  PRODUCT(mma_m16n8k8, float, 4, float, 4, float, 2);
  PRODUCT(mma_m16n8k4, float, 4, tw::tfloat32, 2, tw::tfloat32, 1);
  PRODUCT(mma_m16n8k4, float, 4, float, 2, float, 1);
  PRODUCT(mma_m16n8k32, int32_t, 4, int8_t, 16, int8_t, 8);
  PRODUCT(mma_m16n8k32, int32_t, 4, uint8_t, 16, uint8_t, 8);
  PRODUCT(mma_m16n8k32, int32_t, 4, int8_t, 16, uint8_t, 8);
  PRODUCT(mma_m16n8k32, int32_t, 4, uint8_t, 16, int8_t, 8);
  PRODUCT(mma_m8n8k4, double, 2, double, 1, double, 1);
  PRODUCT(mma_m16n8k32_through_half, float, 4, tw::float8_e4m3, 16, tw::float8_e5m2, 8);
  PRODUCT(mma_m16n8k32_through_half, tw::half, 4, tw::float8_e5m2, 16, tw::float8_e4m3, 8);
  PRODUCT(mma_m16n8k16_through_half, float, 4, tw::float8_e5m2, 8, tw::float8_e4m3, 4);
  PRODUCT(mma_m16n8k16_through_half, tw::half, 4, tw::float8_e4m3, 8, tw::float8_e5m2, 4);
#if __CUDA_ARCH__ >= 890
  PRODUCT(mma_m16n8k32, float, 4, tw::float8_e4m3, 16, tw::float8_e4m3, 8);
  PRODUCT(mma_m16n8k32, float, 4, tw::float8_e5m2, 16, tw::float8_e5m2, 8);
  PRODUCT(mma_m16n8k32, float, 4, tw::float8_e4m3, 16, tw::float8_e5m2, 8);
  PRODUCT(mma_m16n8k32, float, 4, tw::float8_e5m2, 16, tw::float8_e4m3, 8);
  PRODUCT(mma_m16n8k32, tw::half, 4, tw::float8_e4m3, 16, tw::float8_e4m3, 8);
  PRODUCT(mma_m16n8k32, tw::half, 4, tw::float8_e5m2, 16, tw::float8_e5m2, 8);
#endif
#if __CUDA_ARCH__ >= 900
  PRODUCT(mma_m16n8k8, double, 4, double, 4, double, 2);
#endif
  TW_DYNAMIC_SHARED(smem);
  const uint32_t s = tw::shared_address(smem) + 16 * threadIdx.x;
  tw::Fragment<tw::half, 2> one;
  tw::Fragment<int8_t, 8> two;
  tw::Fragment<float, 8> four;
  tw::set_word(one, 0, tw::get_word(one, 0) ^ tw::bit_cast<uint32_t>(1.0f)); tw::viewed_as<uint32_t, 1>(tw::viewed_as<uint16_t, 2>(one))[0] ^= 1;
  tw::ldmatrix_x1(one, s); keep(one, q); tw::ldmatrix_x1_trans(one, s); keep(one, q);
  tw::ldmatrix_x2(two, s); keep(two, q); tw::ldmatrix_x2_trans(two, s); keep(two, q);
  tw::ldmatrix_x4(tw::slice<4>(four, 4), s); tw::ldmatrix_x4_trans(tw::slice<4>(four, 0), s); keep(four, q);
#if __CUDA_ARCH__ >= 900
  tw::stmatrix_x1(s, one); tw::stmatrix_x1_trans(s, one); tw::stmatrix_x2(s, two); tw::stmatrix_x2_trans(s, two);
  tw::stmatrix_x4(s, tw::slice<4>(four, 0)); tw::stmatrix_x4_trans(s, tw::slice<4>(four, 4));
#endif
}

TW_KERNEL(128, 1) words(const uint32_t* p, uint32_t* q) {
  const uint32_t a = p[0], b = p[1], c = p[2];
  int at = 0;
  q[at++] = tw::lop3<0xEA>(a, b, c); q[at++] = tw::prmt(a, b, c); q[at++] = tw::add_f16x2(a, b); q[at++] = tw::sub_f16x2(a, b); q[at++] = tw::mul_f16x2(a, b);
  q[at++] = tw::fma_f16x2(a, b, c); q[at++] = tw::fma_bf16x2(a, b, c); q[at++] = tw::add_bf16x2(a, b); q[at++] = tw::sub_bf16x2(a, b); q[at++] = tw::mul_bf16x2(a, b);
  q[at++] = tw::neg_f16x2(a) ^ tw::neg_bf16x2(b); q[at++] = tw::low_twice(a); q[at++] = tw::high_twice(a);
  q[at++] = tw::max_f16x2(a, b); q[at++] = tw::max_bf16x2(a, b); q[at++] = tw::min_f16x2(a, b); q[at++] = tw::min_bf16x2(a, b);
  q[at++] = tw::pack_f16x2(tw::bits_float(a), tw::bits_float(b)); q[at++] = tw::pack_bf16x2(tw::bits_float(a), tw::bits_float(b));
  q[at++] = tw::pack_e4m3x4(tw::low_f16x2(a), tw::high_f16x2(a), tw::low_bf16x2(b), tw::high_bf16x2(b)); q[at++] = tw::pack_s8x4(a, b, c, a);
  q[at++] = tw::dp4a_s8s8(a, b, c); q[at++] = tw::dp4a_u8s8(a, b, c); q[at++] = tw::dp4a_u8u8(a, b, c);
  q[at++] = tw::decode_u4_f16x2<0>(a, 8); q[at++] = tw::decode_u4_f16x2<3>(a, b); q[at++] = tw::decode_u4_bf16x2<2>(a, 8); q[at++] = tw::decode_u4_f16x2_raw<1>(a);
  q[at++] = tw::decode_u4_u8x4<1>(a); q[at++] = tw::decode_s4_s8x4_times16<0>(a); q[at++] = tw::subtract8_s8x4(a); q[at++] = tw::sign_extend4_s8x4(a);
  q[at++] = tw::decode_u2_f16x2<0>(a) ^ tw::decode_u2_f16x2<1>(a) ^ tw::decode_u2_f16x2<6>(a) ^ tw::decode_u2_f16x2<7>(a); q[at++] = tw::decode_u2_u8x4<3>(a);
  q[at++] = tw::decode_u8_f16x2<0>(a); q[at++] = tw::decode_s8_f16x2<1>(a); q[at++] = tw::decode_s8_bf16x2<1>(a);
  q[at++] = tw::decode_e4m3_f16x2(a) ^ tw::decode_e4m3_bf16x2(a) ^ tw::decode_e5m2_f16x2(a) ^ tw::decode_e5m2_bf16x2(a) ^ tw::decode_e2m1_f16x2(a) ^ tw::decode_e2m1_bf16x2(a);
  q[at++] = tw::shuffle(a, 3) + tw::shuffle_xor(b, 1) + tw::shuffle_up(c, 2) + tw::shuffle_down(c, 2, tw::ALL_LANES, 16);
  reinterpret_cast<double*>(q)[40] = tw::shuffle_xor(double(a), 4);
  reinterpret_cast<tw::half*>(q)[90] = tw::shuffle(tw::half{uint16_t(a)}, 4);
  q[at++] = tw::ballot(a > b) + tw::any(a > b) + tw::all(a > c);
  q[at++] = tw::redux_add(a) + tw::redux_min(a) + tw::redux_max(a) + tw::redux_and(a) + tw::redux_or(a) + tw::redux_xor(a) + tw::redux_add(int(a)) + tw::redux_min(int(a)) + tw::redux_max(int(a));
  q[at++] = tw::warp_add(a) + tw::warp_min(int(a)) + tw::warp_max(a) + tw::warp_and(a) + tw::warp_or(int(a)) + tw::warp_xor(a);
  reinterpret_cast<double*>(q)[41] = tw::warp_add(double(a)) + tw::warp_max(float(a)) + tw::simdgroup_add(float(a)) + tw::warp_and(uint64_t(a));
  q[at++] = tw::elect_one() + tw::warp_uniform(a) + tw::lane_index();
  tw::Fragment<uint32_t, 4> quad;
  fill(quad, p); tw::quad_transpose(quad); keep(quad, q);
}

#ifdef NUMBERS  // the one slow part
template <class T> TW_DEVICE void conversions(const void* p, void* q) {
  const T x = static_cast<const T*>(p)[threadIdx.x];
  static_cast<tw::half*>(q)[0] = tw::convert<tw::half>(x); static_cast<tw::bfloat16*>(q)[1] = tw::convert<tw::bfloat16>(x); static_cast<tw::tfloat32*>(q)[2] = tw::convert<tw::tfloat32>(x);
  static_cast<tw::float8_e4m3*>(q)[12] = tw::convert<tw::float8_e4m3>(x); static_cast<tw::float8_e5m2*>(q)[13] = tw::convert<tw::float8_e5m2>(x);
  static_cast<tw::float8_e8m0*>(q)[14] = tw::convert<tw::float8_e8m0>(x); static_cast<tw::float4_e2m1*>(q)[15] = tw::convert<tw::float4_e2m1>(x);
  static_cast<float*>(q)[4] = tw::convert<float>(x); static_cast<double*>(q)[3] = tw::convert<double>(x); static_cast<bool*>(q)[32] = tw::convert<bool>(x);
  static_cast<int8_t*>(q)[33] = tw::convert<int8_t>(x); static_cast<uint8_t*>(q)[34] = tw::convert<uint8_t>(x); static_cast<int16_t*>(q)[18] = tw::convert<int16_t>(x);
  static_cast<uint16_t*>(q)[19] = tw::convert<uint16_t>(x); static_cast<int32_t*>(q)[10] = tw::convert<int32_t>(x); static_cast<uint32_t*>(q)[11] = tw::convert<uint32_t>(x);
  static_cast<int64_t*>(q)[6] = tw::convert<int64_t>(x); static_cast<uint64_t*>(q)[7] = tw::convert<uint64_t>(x);
}
template <class T> TW_DEVICE void arithmetic(const void* p, void* q) {
  const T a = static_cast<const T*>(p)[0], b = static_cast<const T*>(p)[1];
  static_cast<T*>(q)[0] = (a + b) * (a - b) / -b;
  static_cast<bool*>(q)[8] = a == b || a != b || a < b || a <= b || a > b || a >= b;
  static_cast<T*>(q)[16] = tw::minimum(a, b);
  static_cast<T*>(q)[17] = tw::maximum(a, b);
}
TW_KERNEL(128, 1) numbers(const void* p, void* q) {
  conversions<tw::half>(p, q); conversions<tw::bfloat16>(p, q); conversions<tw::tfloat32>(p, q); conversions<tw::float8_e4m3>(p, q); conversions<tw::float8_e5m2>(p, q);
  conversions<tw::float8_e8m0>(p, q); conversions<tw::float8_e4m3fnuz>(p, q); conversions<tw::float6_e3m2>(p, q); conversions<tw::float4_e2m1>(p, q); conversions<float>(p, q); conversions<double>(p, q); conversions<bool>(p, q);
  conversions<int8_t>(p, q); conversions<uint8_t>(p, q); conversions<int16_t>(p, q); conversions<uint16_t>(p, q);
  conversions<int32_t>(p, q); conversions<uint32_t>(p, q); conversions<int64_t>(p, q); conversions<uint64_t>(p, q);
  arithmetic<tw::half>(p, q); arithmetic<tw::bfloat16>(p, q); arithmetic<tw::float8_e4m3>(p, q); arithmetic<tw::float8_e5m2>(p, q);
  arithmetic<tw::float8_e8m0>(p, q); arithmetic<tw::float4_e2m1>(p, q); arithmetic<tw::tfloat32>(p, q); arithmetic<float>(p, q); arithmetic<double>(p, q);
  arithmetic<int32_t>(p, q); arithmetic<int64_t>(p, q);
  static_cast<float*>(q)[5] = tw::to_float(static_cast<const tw::half*>(p)[7]) + tw::bits_float(tw::float_bits(1.0f));
  const float x = static_cast<const float*>(p)[0], y = static_cast<const float*>(p)[1];
  static_cast<float*>(q)[0] = tw::exp(x) + tw::exp2(x) + tw::exp10(x) + tw::log(x) + tw::log2(x) + tw::log10(x) + tw::log1p(x) + tw::sqrt(x) + tw::rsqrt(x) + tw::sin(x) + tw::cos(x) + tw::tan(x) + tw::sinh(x) +
    tw::cosh(x) + tw::tanh(x) + tw::atan(x) + tw::erf(x) + tw::floor(x) + tw::ceil(x) + tw::trunc(x) + tw::round(x) + tw::abs(x) + tw::pow(x, y) + tw::atan2(x, y) + tw::fmod(x, y) + tw::fma(x, y, x) +
    tw::fast_exp2(x) + tw::fast_exp(x) + tw::fast_log2(x) + tw::fast_log(x) + tw::fast_sin(x) + tw::fast_cos(x) + tw::fast_tanh(x) + tw::fast_rcp(x) + tw::fast_rsqrt(x) + tw::fast_div(x, y) +
    tw::isnan(x) + tw::isinf(x) + tw::isfinite(x);
  const double z = static_cast<const double*>(p)[2];
  static_cast<double*>(q)[2] = tw::exp(z) + tw::rsqrt(z) + tw::pow(z, z) + tw::fma(z, z, z) + tw::isnan(z) + tw::isinf(z) + tw::isfinite(z) + tw::atan2(z, z) + tw::fmod(z, z);
  const int i = static_cast<const int*>(p)[1], j = static_cast<const int*>(p)[2];
  static_cast<int*>(q)[3] = tw::floordiv(i, j) + tw::floormod(i, j) + tw::abs(i) + tw::popcount(i) + tw::popcount(uint64_t(i)) + tw::minimum(i, j) + int(tw::floordiv(uint32_t(i), uint32_t(j)));
  static_cast<int64_t*>(q)[3] = tw::floordiv(int64_t(i), int64_t(j)) + tw::floormod(int64_t(i), int64_t(j)) + tw::abs(int64_t(i));
}

#endif

template <class T, int N> TW_DEVICE void accesses(const void* p, void* q) {
  const T* source = static_cast<const T*>(p);
  T* target = static_cast<T*>(q);
  tw::store(target, tw::load<N>(source));
  tw::store_global<tw::CACHED>(target, tw::load_global<N, tw::CACHED>(source));
  if constexpr (sizeof(T) * N >= 2) {
    tw::store_global<tw::STREAMING>(target, tw::load_global<N, tw::STREAMING>(source));
    tw::store_global<tw::L2_ONLY>(target, tw::load_global<N, tw::L2_ONLY>(source));
    tw::store_global<tw::EVICT_FIRST>(target, tw::load_global<N, tw::EVICT_FIRST>(source));
    tw::store_global<tw::EVICT_LAST>(target, tw::load_global<N, tw::EVICT_LAST>(source));
  }
  tw::Fragment<T, 2 * N> f;
  tw::load_fragment<N>(f, 0, source); tw::load_fragment<N>(f, N, source + N);
  tw::store_fragment<N>(target, f, N);
}
template <int BITS, class T> TW_DEVICE void narrow(const void* p, void* q) {
  tw::Fragment<T, 32> f;
  tw::load_packed<BITS, 16>(f, 0, static_cast<const uint8_t*>(p)); tw::load_packed<BITS, 8>(f, 16, static_cast<const uint8_t*>(p) + 16);
  tw::store_packed<BITS, 16>(static_cast<uint8_t*>(q), f, 4);
  tw::set_packed<BITS>(static_cast<uint8_t*>(q), 77, f[3]);
  static_cast<uint8_t*>(q)[99] = uint8_t(tw::get_packed<BITS>(static_cast<const uint8_t*>(p), 77));
}
TW_KERNEL(128, 1) memory(const void* p, void* q, uint64_t policy) {
  accesses<tw::half, 8>(p, q); accesses<float, 4>(p, q); accesses<double, 2>(p, q); accesses<int8_t, 16>(p, q); accesses<tw::bfloat16, 1>(p, q);
  narrow<1, int8_t>(p, q); narrow<2, uint8_t>(p, q); narrow<4, tw::float4_e2m1>(p, q);
  accesses<tw::float8_e4m3, 1>(p, q); accesses<uint32_t, 2>(p, q); accesses<tw::half, 16>(p, q); accesses<float, 8>(p, q); accesses<uint8_t, 4>(p, q);
  TW_DYNAMIC_SHARED(smem);
  const uint32_t s = tw::shared_address(smem) + 16 * threadIdx.x, bar = tw::shared_address(smem) + 8192;
  tw::cp_async<16>(s, p); tw::cp_async<16, 64>(s, p); tw::cp_async<16, 128>(s, p); tw::cp_async<16, 256>(s, p); tw::cp_async<8>(s, p); tw::cp_async<4, 128>(s, p);
  tw::cp_async_zfill<16>(s, p, 3); tw::cp_async_zfill<8, 256>(s, p, 0); tw::cp_async_zfill<4>(s, p, 4); tw::cp_async_hint<16>(s, p, policy); tw::cp_async_hint<4>(s, p, policy);
  tw::cp_async_zfill_hint<16>(s, p, 3, policy); tw::cp_async_zfill_hint<8>(s, p, 0, policy);
  tw::cp_async_commit(); tw::cp_async_wait<1>(); tw::cp_async_wait_all();
  tw::mbarrier_init(bar, 128); tw::sync_threads();
  tw::cp_async_mbarrier_arrive_noinc(bar); tw::cp_async_mbarrier_arrive(bar); tw::mbarrier_arrive(bar);
  static_cast<bool*>(q)[0] = tw::mbarrier_test_wait(bar, 0) || tw::mbarrier_try_wait(bar, 0);
  tw::mbarrier_wait(bar, 0); tw::mbarrier_invalidate(bar);
  tw::sync_warp(); static_cast<bool*>(q)[1] = tw::sync_threads_or(p == q); static_cast<int*>(q)[1] = tw::sync_threads_count(tw::sync_threads_and(p == q));
  tw::named_barrier_sync(1, 128); tw::named_barrier_arrive(2, 256);
  tw::fence_block(); tw::fence_device(); tw::fence_system();
  static_cast<uint64_t*>(q)[1] = tw::clock() + tw::global_timer();
  tw::global_pointer<float>(static_cast<const uint64_t*>(p)[5])[0] = tw::global_pointer<const float>(policy)[1];
  static_cast<uint32_t*>(q)[40] = tw::match_any(threadIdx.x) + tw::match_all(policy);
  if (p == q) tw::trap();
  tw::print("%d %g", 1, 0.5f);
  if (p == q) tw::assertion_failed("never", "here", 1, __func__);
}
TW_KERNEL(128, 1) updates(void* q, uint32_t* counter) {
  int32_t* i = static_cast<int32_t*>(q); uint32_t* u = static_cast<uint32_t*>(q); int64_t* l = static_cast<int64_t*>(q); uint64_t* m = static_cast<uint64_t*>(q);
  float* f = static_cast<float*>(q); double* d = static_cast<double*>(q); tw::half* h = static_cast<tw::half*>(q); tw::bfloat16* b = static_cast<tw::bfloat16*>(q);
  i[32] = tw::atomic_add(i, 1) + tw::atomic_min(i, 2) + tw::atomic_max(i, 3);
  u[33] = tw::atomic_add(u, 1u) + tw::atomic_min(u, 2u) + tw::atomic_max(u, 3u) + tw::atomic_and(u, 1u) + tw::atomic_or(u, 1u) + tw::atomic_xor(u, 1u) + tw::atomic_exchange(u, 1u) + tw::atomic_cas(u, 1u, 2u);
  i[34] = tw::atomic_and(i, 1) + tw::atomic_or(i, 1) + tw::atomic_xor(i, 1) + tw::atomic_exchange(i, 1);
  l[21] = tw::atomic_and(l, int64_t(1)) + tw::atomic_or(l, int64_t(1)) + tw::atomic_xor(l, int64_t(1)) + tw::atomic_exchange(l, int64_t(1));
  m[22] = tw::atomic_and(m, uint64_t(1)) + tw::atomic_or(m, uint64_t(1)) + tw::atomic_xor(m, uint64_t(1)) + tw::atomic_exchange(m, uint64_t(1));
  l[20] = tw::atomic_add(l, int64_t(1)) + tw::atomic_min(l, int64_t(2)) + tw::atomic_max(l, int64_t(3));
  m[21] = tw::atomic_add(m, uint64_t(1)) + tw::atomic_min(m, uint64_t(2)) + tw::atomic_max(m, uint64_t(3));
  f[50] = tw::atomic_add(f, 1.0f) + tw::atomic_min(f, 2.0f) + tw::atomic_max(f, 3.0f);
  h[132] = tw::atomic_load(h + 1); f[51] = tw::atomic_load(f) + tw::atomic_store(f + 1, 2.0f); l[22] = tw::atomic_load(l) + tw::atomic_store(l + 1, int64_t(3));
  d[30] = tw::atomic_add(d, 1.0) + tw::atomic_min(d, 2.0) + tw::atomic_max(d, 3.0);
  h[130] = tw::atomic_add(h, tw::half{0x3C00}); b[131] = tw::atomic_add(b, tw::bfloat16{0x3F80});
  h[133] = tw::atomic_min(h, tw::half{0x3C00}) + tw::atomic_max(h, tw::half{0x3C00}); b[134] = tw::atomic_min(b, tw::bfloat16{0x3F80}) + tw::atomic_max(b, tw::bfloat16{0x3F80});
  tw::atomic_add_vector(h, tw::load<2>(h + 8)); tw::atomic_add_vector(b, tw::load<2>(b + 8)); tw::atomic_add_vector(f, tw::load<2>(f + 8)); tw::atomic_add_vector(f, tw::load<4>(f + 8));
  tw::Fragment<float, 8> sums; fill(sums, f); tw::atomic_add_fragment<2>(f, sums, 4); *tw::pointer(sums, 3) = 1.0f; keep(sums, f);
#if __CUDA_ARCH__ >= 900
  tw::atomic_add_vector(h, tw::load<8>(h + 8)); tw::atomic_add_vector(b, tw::load<8>(b + 8));
#endif
  u[40] = tw::load_acquire(u); tw::store_release(u, 3); tw::add_release(u, 4);
  tw::grid_sync(counter);
}

#if __CUDA_ARCH__ >= 900
TW_KERNEL(128, 1) copies(const TW_GRID_CONSTANT tw::TensorMap map, const void* p, void* q, uint64_t policy) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t s = tw::shared_address(smem), bar = s + 8192;
  tw::tma_prefetch_descriptor(map);
  tw::mbarrier_init(bar, 1); tw::fence_mbarrier_init(); tw::cluster_arrive_relaxed(); tw::cluster_wait(); tw::cluster_sync();
  tw::mbarrier_expect_tx(bar, 16); tw::mbarrier_arrive_expect_tx(bar, 16);
  tw::tma_load(s, map, bar, 1); tw::tma_load(s, map, bar, 1, 2); tw::tma_load(s, map, bar, 1, 2, 3); tw::tma_load(s, map, bar, 1, 2, 3, 4); tw::tma_load(s, map, bar, 1, 2, 3, 4, 5);
  tw::tma_load_hint(s, map, bar, policy, 1); tw::tma_load_hint(s, map, bar, tw::POLICY_NORMAL, 1, 2, 3, 4, 5);
  tw::tma_load_multicast(s, map, bar, 3, 1); tw::tma_load_multicast(s, map, bar, 3, 1, 2, 3, 4, 5);
  tw::tma_load_multicast_hint(s, map, bar, 3, tw::POLICY_EVICT_LAST, 1); tw::tma_load_multicast_hint(s, map, bar, 3, policy, 1, 2, 3, 4, 5);
  tw::tma_store(map, s, 1); tw::tma_store(map, s, 1, 2); tw::tma_store(map, s, 1, 2, 3); tw::tma_store(map, s, 1, 2, 3, 4); tw::tma_store(map, s, 1, 2, 3, 4, 5);
  tw::tma_reduce_add(map, s, 1); tw::tma_reduce_add(map, s, 1, 2, 3, 4, 5); tw::tma_prefetch(map, 1); tw::tma_prefetch(map, 1, 2, 3, 4, 5);
  tw::bulk_load(s, p, 64, bar); tw::bulk_load_hint(s, p, 64, bar, tw::POLICY_EVICT_FIRST); tw::bulk_load_multicast(s, p, 64, bar, 3); tw::bulk_prefetch(p, 64);
  tw::bulk_store(q, s, 64); tw::bulk_reduce_add(static_cast<float*>(q), s, 64); tw::bulk_commit(); tw::bulk_wait<1>(); tw::bulk_wait_read<0>();
  const uint32_t peer = tw::mapa(s, tw::cluster_rank() ^ 1), peer_bar = tw::mapa(bar, tw::cluster_size() - 1);
  tw::bulk_copy_cluster(peer, s, 64, peer_bar); tw::store_cluster_async(peer, 3.0f, peer_bar);
  *static_cast<uint32_t*>(q) = tw::table_word(s, 77u, 2);
  tw::Fragment<float, 8> from_peer; tw::load_cluster_fragment<4>(from_peer, 4, peer);
  tw::store_cluster(peer, tw::load_cluster<4, float>(peer)); tw::store_cluster(peer, tw::load_cluster<4, tw::half>(peer)); tw::store_cluster(peer, tw::load_cluster<1, int32_t>(peer));
  tw::mbarrier_arrive_cluster(bar, 1); tw::mbarrier_arrive_cluster_release(bar, 1); tw::mbarrier_arrive_expect_tx_cluster(bar, 1, 16); tw::mbarrier_wait_cluster(bar, 0);
  tw::fence_proxy_async(); tw::fence_proxy_async_shared(); tw::fence_proxy_async_global();
  tw::griddepcontrol_wait(); tw::griddepcontrol_launch_dependents();
  tw::cluster_arrive(); tw::cluster_wait();
}
#endif

#if __CUDA_ARCH_FEAT_SM90_ALL || __CUDA_ARCH_FEAT_SM100_ALL || __CUDA_ARCH_FEAT_SM120_ALL
TW_KERNEL(256, 1) budgets(float* q) {
  if (threadIdx.x < 128) tw::setmaxnreg_dec<40>(); else tw::setmaxnreg_inc<232>();
  q[threadIdx.x] = 1.0f;
}
#endif

#if __CUDA_ARCH_FEAT_SM90_ALL
TW_KERNEL(128, 1) warpgroups(const void* p, void* q, uint32_t leading, uint32_t stride) {
  TW_DYNAMIC_SHARED(smem);
  const uint64_t x = tw::wgmma_descriptor(tw::shared_address(smem), tw::SWIZZLE_128B, leading, stride), y = tw::wgmma_advance(x, 32);
  tw::Fragment<tw::half, 64> h; tw::Fragment<tw::half, 32> e; tw::Fragment<float, 32> b; tw::Fragment<int32_t, 24> i; tw::Fragment<float, 12> t; tw::Fragment<float, 4> m;
  tw::Fragment<tw::half, 8> ah; tw::Fragment<tw::half, 16> ah2; tw::Fragment<tw::float8_e5m2, 16> ae; tw::Fragment<tw::bfloat16, 8> ab; tw::Fragment<uint8_t, 16> ai; tw::Fragment<tw::tfloat32, 4> at; tw::Fragment<tw::float8_e4m3, 16> am;
  fill(h, p); fill(e, p); fill(b, p); fill(i, p); fill(t, p); fill(m, p); fill(ah, p); fill(ah2, p); fill(ae, p); fill(ab, p); fill(ai, p); fill(at, p); fill(am, p);
  tw::hold_registers(h); tw::hold_registers(i); tw::hold_registers(t);
  tw::wgmma_fence();
  tw::wgmma_ss<128, tw::half, tw::half, tw::MN_MAJOR, tw::MN_MAJOR>(h, x, y, true); tw::wgmma_rs<128, tw::half, tw::MN_MAJOR>(h, ah, y, false);
  tw::wgmma_ss<64, tw::float8_e5m2, tw::float8_e4m3>(e, x, y, true); tw::wgmma_rs<64, tw::float8_e4m3>(e, ae, y, true);
  tw::wgmma_ss<64, tw::bfloat16, tw::bfloat16, tw::K_MAJOR, tw::MN_MAJOR>(b, x, y, true); tw::wgmma_rs<64, tw::bfloat16>(b, ab, y, true);
  tw::wgmma_ss<64, tw::bfloat16, tw::bfloat16, tw::MN_MAJOR, tw::K_MAJOR, tw::Steps<0, 2048, 4096>, tw::Steps<0, 32, 64>>(b, x, y, true);
  tw::wgmma_rs<128, tw::half, tw::MN_MAJOR, tw::Steps<0, 4096>>(h, ah2, y, false);
  tw::wgmma_ss<8, tw::float8_e4m3, tw::float8_e5m2, tw::K_MAJOR, tw::K_MAJOR, tw::Steps<0, 32>, tw::Steps<0, 32>>(m, x, y, true);
  tw::wgmma_ss<48, uint8_t, int8_t>(i, x, y, true); tw::wgmma_rs<48, int8_t>(i, ai, y, true);
  tw::wgmma_ss<24, tw::tfloat32, tw::tfloat32>(t, x, y, true); tw::wgmma_rs<24, tw::tfloat32>(t, at, y, true);
  tw::wgmma_ss<8, tw::float8_e4m3, tw::float8_e5m2>(m, x, y, true); tw::wgmma_rs<8, tw::float8_e5m2>(m, am, y, true);
  tw::Fragment<uint32_t, 1> word; word[0] = tw::sparse_places(smem, smem + leading) ^ tw::sparse_places(smem);
  tw::wgmma_sparse_ss<64, tw::bfloat16, tw::bfloat16, 1, tw::MN_MAJOR>(b, x, y, word, true); tw::wgmma_sparse_rs<64, tw::bfloat16>(b, ab, y, word, true);
  tw::wgmma_commit(); tw::wgmma_wait<0>(); tw::sparse_hold(word);
  keep(h, q); keep(e, q); keep(b, q); keep(i, q); keep(t, q); keep(m, q);
}
#endif
