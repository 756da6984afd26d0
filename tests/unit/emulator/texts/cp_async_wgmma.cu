// C[M, N] (int32) = A[M, K] B[N, K]^T of int8 through wgmma, operands brought by cp.async that arrives on mbarriers: a producer warpgroup, a consumer.
#include "tilewright_cuda.cuh"
#include "tilewright_wgmma_n64_s32_s8_s8.cuh"
using namespace tw;

constexpr int BK = 128, STAGES = 2, TILE = 64 * BK, STAGE_BYTES = 2 * TILE;

TW_KERNEL(256, 1) cp_async_wgmma(const int8_t* A, const int8_t* B, int32_t* C, int N, int K) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t ring = shared_address(smem), full = ring + STAGES * STAGE_BYTES, ready = full + 8 * STAGES, empty = ready + 8 * STAGES;
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, steps = K / BK;
  const int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 128);
      mbarrier_init(ready + 8 * s, 128);
      mbarrier_init(empty + 8 * s, 1);
    }
    fence_mbarrier_init();
  }
  sync_threads();
  if (warpgroup == 0) {
    for (int step = 0; step < steps + 1; ++step) {
      if (step < steps) {
        const int s = step % STAGES;
        mbarrier_wait(empty + 8 * s, (step / STAGES & 1) ^ 1);
        for (int i = 0; i < TILE / 16 / 128; ++i) {
          const int index = thread + 128 * i, row = index / 8, chunk = index % 8;
          const uint32_t place = row * 128 + ((chunk ^ (row & 7)) << 4);
          cp_async<16>(ring + s * STAGE_BYTES + place, A + (int64_t)(row0 + row) * K + step * BK + chunk * 16);
          cp_async<16>(ring + s * STAGE_BYTES + TILE + place, B + (int64_t)(col0 + row) * K + step * BK + chunk * 16);
        }
        cp_async_mbarrier_arrive_noinc(full + 8 * s);
      }
      if (step > 0) {
        // What has landed as ordinary memory is handed to the matrix units by its writer.
        const int s = (step - 1) % STAGES;
        mbarrier_wait(full + 8 * s, (step - 1) / STAGES & 1);
        fence_proxy_async_shared();
        mbarrier_arrive(ready + 8 * s);
      }
    }
  } else {
    Fragment<int32_t, 32> acc;
    for (int step = 0; step < steps; ++step) {
      const int s = step % STAGES;
      mbarrier_wait(ready + 8 * s, step / STAGES & 1);
      const uint64_t a = wgmma_descriptor(ring + s * STAGE_BYTES, SWIZZLE_128B, 16, 1024), b = wgmma_descriptor(ring + s * STAGE_BYTES + TILE, SWIZZLE_128B, 16, 1024);
      wgmma_fence();
      for (int kk = 0; kk < 4; ++kk) wgmma_ss<64, int8_t, int8_t>(acc, wgmma_advance(a, 32 * kk), wgmma_advance(b, 32 * kk), (step | kk) != 0);
      wgmma_commit();
      wgmma_wait<0>();
      if (thread == 0) mbarrier_arrive(empty + 8 * s);
    }
    const int warp = thread / 32, lane = thread % 32;
    for (int i = 0; i < 32; ++i)
      C[(int64_t)(row0 + 16 * warp + lane / 4 + 8 * (i >> 1 & 1)) * N + col0 + 8 * (i >> 2) + 2 * (lane % 4) + (i & 1)] = acc[i];
  }
}
