// C^T[N, M] = W X^T with W int4 (values 0..15 minus 8) decoded straight into the A registers of wgmma; X by TMA.  One warpgroup, N tile 64, M tile 64.
// W is packed so that word (row, k / 8) holds k = 0 4 1 5 2 6 3 7 from its low bits; one word decodes to k = 0, 1 | 2, 3 | 4, 5 | 6, 7.
#include "tilewright_cuda.cuh"
#include "tilewright_wgmma_n64_f32_f16_f16.cuh"
using namespace tw;

constexpr int BK = 64, STAGES = 2, X_BYTES = 64 * 128, W_WORDS = 64 * BK / 8, STAGE_BYTES = X_BYTES + W_WORDS * 4;

TW_KERNEL(128, 1) decode_wgmma(const uint32_t* W, const TW_GRID_CONSTANT TensorMap map_x, float* C, int M, int K) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t ring = shared_address(smem), full = ring + STAGES * STAGE_BYTES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int n0 = blockIdx.x * 64, m0 = blockIdx.y * 64, steps = K / BK;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) mbarrier_init(full + 8 * s, 1);
    fence_mbarrier_init();
  }
  sync_threads();
  auto fetch = [&](int step) {
    const int s = step % STAGES;
    const uint32_t stage = ring + s * STAGE_BYTES;
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(full + 8 * s, X_BYTES);
      tma_load(stage, map_x, full + 8 * s, step * BK, m0);
    }
    for (int i = 0; i < W_WORDS / 4 / 128; ++i) {
      const int index = threadIdx.x + 128 * i, row = index / (BK / 32), part = index % (BK / 32);
      cp_async<16>(stage + X_BYTES + index * 16, W + ((int64_t)(n0 + row) * K + step * BK) / 8 + part * 4);
    }
    cp_async_commit();
  };
  fetch(0);
  Fragment<float, 32> acc;
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      fetch(step + 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    sync_threads();
    const int s = step % STAGES;
    mbarrier_wait(full + 8 * s, step / STAGES & 1);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(smem + s * STAGE_BYTES + X_BYTES);
    Fragment<half, 8> a[4];
    for (int kk = 0; kk < 4; ++kk)
      for (int r = 0; r < 4; ++r) {
        // Register r: row g + 8 (r & 1), k = 2t, 2t + 1 of the eight at 16 kk + 8 (r >> 1).
        const uint32_t word = words[(16 * warp + g + 8 * (r & 1)) * (BK / 8) + 2 * kk + (r >> 1)];
        const uint32_t pair = t == 0 ? decode_u4_f16x2<0>(word, 8) : t == 1 ? decode_u4_f16x2<1>(word, 8) : t == 2 ? decode_u4_f16x2<2>(word, 8) : decode_u4_f16x2<3>(word, 8);
        set_word(a[kk], r, pair);
      }
    wgmma_fence();
    const uint64_t x = wgmma_descriptor(ring + s * STAGE_BYTES, SWIZZLE_128B, 16, 1024);
    for (int kk = 0; kk < 4; ++kk) wgmma_rs<64, half>(acc, a[kk], wgmma_advance(x, 32 * kk), (step | kk) != 0);
    wgmma_commit();
    wgmma_wait<0>();
    sync_threads();
  }
  for (int i = 0; i < 32; ++i) {
    const int row = n0 + 16 * warp + g + 8 * (i >> 1 & 1), column = m0 + 8 * (i >> 2) + 2 * t + (i & 1);
    if (column < M) C[(int64_t)column * (gridDim.x * 64) + row] = acc[i];
  }
}
