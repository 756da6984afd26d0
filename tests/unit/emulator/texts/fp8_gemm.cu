// C[M, N] (float) = A[M, K] B[N, K]^T of e4m3: TMA and wgmma, each 128 of K promoted into a second accumulator.  One warpgroup, tile 64 x 64.
#include "tilewright_cuda.cuh"
#include "tilewright_wgmma_n64_f32_e4m3_e4m3.cuh"
using namespace tw;

constexpr int BK = 128, STAGES = 3, TILE = 64 * BK;

TW_KERNEL(128, 1) fp8_gemm(const TW_GRID_CONSTANT TensorMap map_a, const TW_GRID_CONSTANT TensorMap map_b, float* C, int N, int k_tiles) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t ring = shared_address(smem), full = ring + STAGES * 2 * TILE;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) mbarrier_init(full + 8 * s, 1);
    fence_mbarrier_init();
  }
  sync_threads();
  auto fetch = [&](int k) {
    const int s = k % STAGES;
    mbarrier_arrive_expect_tx(full + 8 * s, 2 * TILE);
    tma_load(ring + s * 2 * TILE, map_a, full + 8 * s, k * BK, row0);
    tma_load(ring + s * 2 * TILE + TILE, map_b, full + 8 * s, k * BK, col0);
  };
  if (threadIdx.x == 0)
    for (int k = 0; k < STAGES - 1 && k < k_tiles; ++k) fetch(k);
  Fragment<float, 32> total, acc;
  for (int i = 0; i < 32; ++i) total[i] = 0.0f;
  for (int k = 0; k < k_tiles; ++k) {
    const int s = k % STAGES;
    mbarrier_wait(full + 8 * s, k / STAGES & 1);
    wgmma_fence();
    for (int kk = 0; kk < 4; ++kk)
      wgmma_ss<64, float8_e4m3, float8_e4m3>(acc, wgmma_advance(wgmma_descriptor(ring + s * 2 * TILE, SWIZZLE_128B, 16, 1024), 32 * kk),
                                             wgmma_advance(wgmma_descriptor(ring + s * 2 * TILE + TILE, SWIZZLE_128B, 16, 1024), 32 * kk), kk != 0);
    wgmma_commit();
    wgmma_wait<0>();
    for (int i = 0; i < 32; ++i) total[i] += acc[i];
    sync_threads();
    if (threadIdx.x == 0 && k + STAGES - 1 < k_tiles) fetch(k + STAGES - 1);
  }
  for (int i = 0; i < 32; ++i)
    C[(int64_t)(row0 + 16 * warp + lane / 4 + 8 * (i >> 1 & 1)) * N + col0 + 8 * (i >> 2) + 2 * (lane % 4) + (i & 1)] = total[i];
}
