// y[M, N] = x[M, K] ((code[N, K] - 8) scale[N, K / 128])^T, half in and out, 4-bit codes packed in the order of mma fragments, M <= NT.
// Each warp owns G groups of K for the whole launch, keeps its part of x in registers and streams its weights through a private ring.
#include "tilewright_cuda.cuh"

constexpr int NT = 8, WARPS = 16, G = 4, STAGES = 2;
constexpr int GROUP = 128, CODES = 16 * GROUP / 2, BLOCK = CODES + 32, RD = 3;
constexpr int K = WARPS * G * GROUP, NB = NT / 8, CHUNK = G * BLOCK, RW = NT / 2, RG = WARPS / RW;
constexpr int RED = WARPS * STAGES * CHUNK, BARS = RED + RD * WARPS * NB * 128 * 4;

// Sum of the warps' partial tiles i, in a fixed order; RW warps take 32 outputs each.
TW_DEVICE void add_tile(const float* red, uint32_t ready, uint32_t freed, tw::half* y, int i, int tile, int M, int N) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int slot = i % RD, o = (warp % RW) * 32 + lane, n = o >> 4, row = o & 15;
  const float* buf = red + slot * WARPS * NB * 128 + ((n >> 3) * 32 + (row & 7) * 4 + ((n & 7) >> 1)) * 4 + 2 * (row >> 3) + (n & 1);
  tw::mbarrier_wait(ready + 8 * slot, (i / RD) & 1);
  float s = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) s += buf[w * NB * 128];
  if (n < M) y[(int64_t)n * N + tile * 16 + row] = tw::convert<tw::half>(s);
  tw::sync_warp();
  if (lane == 0) tw::mbarrier_arrive(freed + 8 * slot);
}

TW_KERNEL(WARPS * 32, 1)
w4a16_few(const uint8_t* TW_RESTRICT wq, const tw::half* TW_RESTRICT x, tw::half* TW_RESTRICT y, int M, int N) {
  TW_DYNAMIC_SHARED(smem);
  float* red = reinterpret_cast<float*>(smem + RED);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int first = blockIdx.x, step = gridDim.x;
  const int ntile = N / 16, mine = first < ntile ? (ntile - first + step - 1) / step : 0;
  const int kg = warp * G;
  unsigned char* chunks = smem + warp * STAGES * CHUNK;
  const uint32_t ring = tw::shared_address(chunks), bars = tw::shared_address(smem) + BARS, bar = bars + warp * STAGES * 8;
  const uint32_t ready = bars + WARPS * STAGES * 8, freed = ready + 8 * RD;
  const uint8_t* source = wq + ((int64_t)first * (K / GROUP) + kg) * BLOCK;
  const int64_t source_step = (int64_t)step * (K / GROUP) * BLOCK;

  if (threadIdx.x == 0)
    for (int s = 0; s < RD; ++s) { tw::mbarrier_init(ready + 8 * s, WARPS); tw::mbarrier_init(freed + 8 * s, RW); }
  if (lane == 0) {
#pragma unroll
    for (int s = 0; s < STAGES; ++s) tw::mbarrier_init(bar + 8 * s, 1);
    tw::fence_mbarrier_init();
#pragma unroll
    for (int s = 0; s < STAGES; ++s)
      if (s < mine) {
        tw::mbarrier_arrive_expect_tx(bar + 8 * s, CHUNK);
        tw::bulk_load_hint(ring + s * CHUNK, source + s * source_step, CHUNK, bar + 8 * s, tw::POLICY_EVICT_FIRST);
      }
  }
  tw::sync_warp();
  tw::griddepcontrol_wait();
  tw::griddepcontrol_launch_dependents();

  // B fragments of x: 16-byte loads, then a transpose inside each quad of lanes.
  tw::Fragment<tw::half, 4> xb[G][8][NB];
  float c8[G][NB][2];
#pragma unroll
  for (int q = 0; q < G; ++q)
#pragma unroll
    for (int nb = 0; nb < NB; ++nb)
#pragma unroll
      for (int i4 = 0; i4 < 4; ++i4) {
        const int n = nb * 8 + g, k = (kg + q) * GROUP + (4 * i4 + t) * 8;
        tw::Fragment<uint32_t, 4> words;
#pragma unroll
        for (int c = 0; c < 4; ++c) words[c] = 0u;
        if (n < M) tw::load_fragment<4>(words, 0, reinterpret_cast<const uint32_t*>(x + (int64_t)n * K + k));
        tw::quad_transpose(words);
#pragma unroll
        for (int c = 0; c < 4; ++c) tw::set_word(xb[q][2 * i4 + (c >> 1)][nb], c & 1, words[c]);
      }
  // The offset of 8: -8 times the sum of x over each group, in the accumulator's layout.
  tw::Fragment<tw::half, 8> ones;
#pragma unroll
  for (int r = 0; r < 4; ++r) tw::set_word(ones, r, 0x3C003C00u);
#pragma unroll
  for (int q = 0; q < G; ++q)
#pragma unroll
    for (int nb = 0; nb < NB; ++nb) {
      tw::Fragment<float, 4> d;
#pragma unroll
      for (int i = 0; i < 4; ++i) d[i] = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) tw::mma_m16n8k16(d, ones, xb[q][j][nb]);
      c8[q][nb][0] = d[0] * (-8.0f / 16777216.0f);
      c8[q][nb][1] = d[1] * (-8.0f / 16777216.0f);
    }
  tw::sync_threads();

  int stage = 0;
  uint32_t phase = 0;
  for (int i = 0; i < mine; ++i) {
    tw::Fragment<float, 4> total[NB];
#pragma unroll
    for (int nb = 0; nb < NB; ++nb)
#pragma unroll
      for (int c = 0; c < 4; ++c) total[nb][c] = 0.0f;
    tw::mbarrier_wait(bar + 8 * stage, phase);
    const unsigned char* chunk = chunks + stage * CHUNK;
#pragma unroll
    for (int q = 0; q < G; ++q) {
      tw::Fragment<uint32_t, 8> w;
      tw::load_fragment<4>(w, 0, reinterpret_cast<const uint32_t*>(chunk + q * BLOCK + lane * 16));
      tw::load_fragment<4>(w, 4, reinterpret_cast<const uint32_t*>(chunk + q * BLOCK + 512 + lane * 16));
      const uint32_t scales = *reinterpret_cast<const uint32_t*>(chunk + q * BLOCK + CODES + 4 * g);
      tw::Fragment<float, 4> acc[NB];
#pragma unroll
      for (int nb = 0; nb < NB; ++nb) {
        acc[nb][0] = c8[q][nb][0];
        acc[nb][1] = c8[q][nb][1];
        acc[nb][2] = 16.0f * c8[q][nb][0];
        acc[nb][3] = 16.0f * c8[q][nb][1];
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        tw::Fragment<tw::half, 8> a;
        tw::set_word(a, 0, tw::decode_u4_f16x2_raw<0>(w[j]));
        tw::set_word(a, 1, tw::decode_u4_f16x2_raw<1>(w[j]));
        tw::set_word(a, 2, tw::decode_u4_f16x2_raw<2>(w[j]));
        tw::set_word(a, 3, tw::decode_u4_f16x2_raw<3>(w[j]));
#pragma unroll
        for (int nb = 0; nb < NB; ++nb) tw::mma_m16n8k16(acc[nb], a, xb[q][j][nb]);
      }
      const float s0 = tw::low_f16x2(scales) * 16777216.0f, s1 = tw::high_f16x2(scales) * 1048576.0f;
#pragma unroll
      for (int nb = 0; nb < NB; ++nb) {
        total[nb][0] = tw::fma(acc[nb][0], s0, total[nb][0]);
        total[nb][1] = tw::fma(acc[nb][1], s0, total[nb][1]);
        total[nb][2] = tw::fma(acc[nb][2], s1, total[nb][2]);
        total[nb][3] = tw::fma(acc[nb][3], s1, total[nb][3]);
      }
    }
    tw::sync_warp();
    if (lane == 0 && i + STAGES < mine) {
      tw::mbarrier_arrive_expect_tx(bar + 8 * stage, CHUNK);
      tw::bulk_load_hint(ring + stage * CHUNK, source + (i + STAGES) * source_step, CHUNK, bar + 8 * stage, tw::POLICY_EVICT_FIRST);
    }
    if (++stage == STAGES) { stage = 0; phase ^= 1; }

    const int slot = i % RD;
    if (i >= RD) tw::mbarrier_wait(freed + 8 * slot, ((i / RD) - 1) & 1);
    float* buf = red + slot * WARPS * NB * 128;
#pragma unroll
    for (int nb = 0; nb < NB; ++nb) tw::store_fragment<4>(buf + ((warp * NB + nb) * 32 + lane) * 4, total[nb], 0);
    tw::sync_warp();
    if (lane == 0) tw::mbarrier_arrive(ready + 8 * slot);
    if (i > 0 && warp / RW == (i - 1) % RG) add_tile(red, ready, freed, y, i - 1, first + (i - 1) * step, M, N);
  }
  if (mine > 0 && warp / RW == (mine - 1) % RG) add_tile(red, ready, freed, y, mine - 1, first + (mine - 1) * step, M, N);
}
