// Conversions, small-float arithmetic, decoding, warp functions, atomics and accesses, element by element over arrays.
#include "tilewright_cuda.cuh"

#define FOR_EACH(i, n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)

#define CONVERT(NAME, TO, FROM) \
  TW_KERNEL(256, 1) NAME(const FROM* from, TO* to, int n) { FOR_EACH(i, n) to[i] = tw::convert<TO>(from[i]); }
#define CONVERT_FROM(FROM, T)                    \
  CONVERT(f16_from_##FROM, tw::half, T)          \
  CONVERT(bf16_from_##FROM, tw::bfloat16, T)     \
  CONVERT(e4m3_from_##FROM, tw::float8_e4m3, T)  \
  CONVERT(e5m2_from_##FROM, tw::float8_e5m2, T)  \
  CONVERT(f32_from_##FROM, float, T)             \
  CONVERT(f64_from_##FROM, double, T)            \
  CONVERT(s8_from_##FROM, int8_t, T)             \
  CONVERT(u8_from_##FROM, uint8_t, T)            \
  CONVERT(s32_from_##FROM, int32_t, T)           \
  CONVERT(u32_from_##FROM, uint32_t, T)          \
  CONVERT(s64_from_##FROM, int64_t, T)
CONVERT_FROM(f16, tw::half)
CONVERT_FROM(bf16, tw::bfloat16)
CONVERT_FROM(e4m3, tw::float8_e4m3)
CONVERT_FROM(e5m2, tw::float8_e5m2)
CONVERT_FROM(f32, float)
CONVERT_FROM(f64, double)
CONVERT_FROM(s32, int32_t)
CONVERT_FROM(s64, int64_t)
CONVERT(tf32_from_f32, tw::tfloat32, float)
CONVERT(e2m1_from_f32, tw::float4_e2m1, float)
CONVERT(f32_from_e2m1, float, tw::float4_e2m1)
CONVERT(f32_from_e8m0, float, tw::float8_e8m0)

// Sum, difference, product and quotient of pairs.
#define ARITHMETIC(NAME, T)                                                     \
  TW_KERNEL(256, 1) NAME(const T* a, const T* b, T* out, int n) {               \
    FOR_EACH(i, n) {                                                            \
      out[4 * i] = a[i] + b[i];                                                 \
      out[4 * i + 1] = a[i] - b[i];                                             \
      out[4 * i + 2] = a[i] * b[i];                                             \
      out[4 * i + 3] = a[i] / b[i];                                             \
    }                                                                           \
  }
ARITHMETIC(arithmetic_f16, tw::half)
ARITHMETIC(arithmetic_bf16, tw::bfloat16)
ARITHMETIC(arithmetic_e4m3, tw::float8_e4m3)
ARITHMETIC(arithmetic_e5m2, tw::float8_e5m2)

// Pairs of halves from words; `out` has N words a word of input.
TW_KERNEL(256, 1) decode_4bit(const uint32_t* words, uint32_t zero, uint32_t* out, int n) {
  FOR_EACH(i, n) {
    const uint32_t w = words[i];
    uint32_t* o = out + 16 * i;
    o[0] = tw::decode_u4_f16x2<0>(w, zero); o[1] = tw::decode_u4_f16x2<1>(w, zero); o[2] = tw::decode_u4_f16x2<2>(w, zero); o[3] = tw::decode_u4_f16x2<3>(w, zero);
    o[4] = tw::decode_u4_bf16x2<0>(w, zero); o[5] = tw::decode_u4_bf16x2<1>(w, zero); o[6] = tw::decode_u4_bf16x2<2>(w, zero); o[7] = tw::decode_u4_bf16x2<3>(w, zero);
    o[8] = tw::decode_u4_u8x4<0>(w); o[9] = tw::decode_u4_u8x4<1>(w); o[10] = tw::subtract8_s8x4(o[8]); o[11] = tw::sign_extend4_s8x4(o[9]);
    o[12] = tw::decode_s4_s8x4_times16<0>(w); o[13] = tw::decode_s4_s8x4_times16<1>(w);
    o[14] = tw::decode_u4_f16x2_raw<0>(w); o[15] = tw::decode_u4_f16x2_raw<3>(w);
  }
}
TW_KERNEL(256, 1) decode_2bit(const uint32_t* words, uint32_t* out, int n) {
  FOR_EACH(i, n) {
    const uint32_t w = words[i];
    uint32_t* o = out + 12 * i;
    o[0] = tw::decode_u2_f16x2<0>(w); o[1] = tw::decode_u2_f16x2<1>(w); o[2] = tw::decode_u2_f16x2<2>(w); o[3] = tw::decode_u2_f16x2<3>(w);
    o[4] = tw::decode_u2_f16x2<4>(w); o[5] = tw::decode_u2_f16x2<5>(w); o[6] = tw::decode_u2_f16x2<6>(w); o[7] = tw::decode_u2_f16x2<7>(w);
    o[8] = tw::decode_u2_u8x4<0>(w); o[9] = tw::decode_u2_u8x4<1>(w); o[10] = tw::decode_u2_u8x4<2>(w); o[11] = tw::decode_u2_u8x4<3>(w);
  }
}
TW_KERNEL(256, 1) decode_8bit(const uint32_t* words, uint32_t* out, int n) {
  FOR_EACH(i, n) {
    const uint32_t w = words[i], high = (w & 0xFF) << 8 | (w >> 8 & 0xFF) << 24;   // two codes, each in the high byte of a half
    uint32_t* o = out + 12 * i;
    o[0] = tw::decode_u8_f16x2<0>(w); o[1] = tw::decode_u8_f16x2<1>(w); o[2] = tw::decode_s8_f16x2<0>(w); o[3] = tw::decode_s8_f16x2<1>(w);
    o[4] = tw::decode_s8_bf16x2<0>(w); o[5] = tw::decode_s8_bf16x2<1>(w); o[6] = tw::decode_e4m3_f16x2(high); o[7] = tw::decode_e4m3_bf16x2(high);
    o[8] = tw::decode_e5m2_f16x2(high); o[9] = tw::decode_e5m2_bf16x2(high); o[10] = tw::decode_e2m1_f16x2(high); o[11] = tw::decode_e2m1_bf16x2(high);
  }
}
TW_KERNEL(256, 1) packed(const uint32_t* a, const uint32_t* b, uint32_t* out, int n) {
  FOR_EACH(i, n) {
    uint32_t* o = out + 8 * i;
    o[0] = tw::lop3<0xEA>(a[i], b[i], a[i] >> 3); o[1] = tw::lop3<0x96>(a[i], b[i], a[i] >> 3); o[2] = tw::prmt(a[i], b[i], 0x6240); o[3] = tw::prmt(a[i], b[i], 0xF159);
    o[4] = tw::dp4a_s8s8(a[i], b[i], 7); o[5] = tw::dp4a_u8s8(a[i], b[i], -7); o[6] = tw::dp4a_u8u8(a[i], b[i], 9);
    o[7] = tw::pack_s8x4(int(a[i]) >> 22, int(b[i]) >> 22, int(a[i] << 8) >> 23, int(b[i] << 8) >> 23);
  }
}
TW_KERNEL(256, 1) integers(const int* a, const int* b, int* out, int n) {
  FOR_EACH(i, n) { out[4 * i] = tw::floordiv(a[i], b[i]); out[4 * i + 1] = tw::floormod(a[i], b[i]); out[4 * i + 2] = tw::minimum(a[i], b[i]); out[4 * i + 3] = tw::popcount(a[i]); }
}
TW_KERNEL(256, 1) extremes(const float* a, const float* b, float* out, int n) {
  FOR_EACH(i, n) { out[2 * i] = tw::minimum(a[i], b[i]); out[2 * i + 1] = tw::maximum(a[i], b[i]); }
}

// One warp.
TW_KERNEL(32, 1) warp(const int* in, int* out, double* wide, int16_t* narrow) {
  const int lane = threadIdx.x, x = in[lane];
  int* o = out + lane;
  o[0] = tw::shuffle(x, (lane * 7) % 32); o[32] = tw::shuffle_xor(x, 5); o[64] = tw::shuffle_up(x, 3); o[96] = tw::shuffle_down(x, 3, tw::ALL_LANES, 8);
  o[128] = tw::ballot(x > 0); o[160] = tw::any(x > 1000) * 2 + tw::all(x < 1000);
  o[192] = tw::redux_add(x); o[224] = tw::redux_min(x); o[256] = tw::redux_max(x); o[288] = tw::redux_max(uint32_t(x));
  o[320] = tw::redux_and(uint32_t(x)); o[352] = tw::redux_or(uint32_t(x)); o[384] = tw::redux_xor(uint32_t(x));
  o[416] = tw::elect_one(); o[448] = tw::warp_uniform(x);
  tw::Fragment<int, 4> row;
  for (int i = 0; i < 4; ++i) row[i] = lane * 4 + i;
  tw::quad_transpose(row);
  for (int i = 0; i < 4; ++i) out[480 + lane * 4 + i] = row[i];
  wide[lane] = tw::shuffle_xor(double(x) + 0.25, 1);
  narrow[lane] = tw::shuffle_down(int16_t(x), 1);
  if (lane < 16) out[608 + lane] = tw::redux_add(x, 0xFFFFu);
}

// All threads add to the same few cells.
TW_KERNEL(256, 1) updates(int* i32, uint32_t* u32, int64_t* s64, float* f32, double* f64, tw::half* f16, tw::bfloat16* bf16) {
  const int t = threadIdx.x;
  tw::atomic_add(i32, t); tw::atomic_min(i32 + 1, 100 - t); tw::atomic_max(i32 + 2, t - 100);
  tw::atomic_add(u32, uint32_t(t)); tw::atomic_and(u32 + 1, ~(1u << t % 8)); tw::atomic_or(u32 + 2, 1u << t % 20); tw::atomic_xor(u32 + 3, 1u << t % 3);
  tw::atomic_cas(u32 + 4, uint32_t(t), uint32_t(t) + 1); if (t == 5) tw::atomic_exchange(u32 + 5, 77u);
  tw::atomic_add(s64, int64_t(t) << 33); tw::atomic_min(s64 + 1, -int64_t(t) << 33);
  tw::atomic_add(f32, 0.5f); tw::atomic_max(f32 + 1, float(t) - 300.5f); tw::atomic_min(f32 + 2, 300.5f - t); tw::atomic_max(f32 + 3, float(t));
  tw::atomic_add(f64, 0.25);
  tw::atomic_add(f16, tw::convert<tw::half>(0.5f)); tw::atomic_add(bf16, tw::convert<tw::bfloat16>(0.5f));
  tw::Vector<tw::half, 2> h; tw::Vector<tw::bfloat16, 2> b; tw::Vector<float, 2> f; tw::Vector<float, 4> g;
  for (int i = 0; i < 2; ++i) { h[i] = tw::convert<tw::half>(1.0f + i); b[i] = tw::convert<tw::bfloat16>(0.5f * i); f[i] = 1.0f + i; }
  for (int i = 0; i < 4; ++i) g[i] = 2.0f * i;
  tw::atomic_add_vector(f16 + 2, h); tw::atomic_add_vector(bf16 + 2, b); tw::atomic_add_vector(f32 + 4, f); tw::atomic_add_vector(f32 + 8, g);
}

// Accesses of every width and hint move the same bytes.
#define MOVE(NAME, T, N)                                                                                               \
  TW_KERNEL(64, 1) NAME(const T* in, T* out) {                                                                         \
    const int at = threadIdx.x * N, all = 64 * N;                                                                      \
    tw::store(out + at, tw::load<N>(in + at));                                                                         \
    tw::store_global<tw::STREAMING>(out + all + at, tw::load_global<N, tw::STREAMING>(in + at));                       \
    tw::store_global<tw::L2_ONLY>(out + 2 * all + at, tw::load_global<N, tw::L2_ONLY>(in + at));                       \
    tw::store_global<tw::EVICT_FIRST>(out + 3 * all + at, tw::load_global<N, tw::EVICT_LAST>(in + at));                \
    tw::Fragment<T, 2 * N> f;                                                                                          \
    tw::load_fragment<N>(f, N, in + at);                                                                               \
    tw::store_fragment<N>(out + 4 * all + at, f, N);                                                                   \
  }
MOVE(move_u8x2, uint8_t, 2)
MOVE(move_f16x2, tw::half, 2)
MOVE(move_f16x4, tw::half, 4)
MOVE(move_f16x8, tw::half, 8)
MOVE(move_f32x4, float, 4)
MOVE(move_f32x8, float, 8)
MOVE(move_f64x2, double, 2)
