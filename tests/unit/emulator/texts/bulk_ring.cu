// Sums of columns: a producer warp brings rows of 512 integers through a ring of bulk copies, four consumer warps add them up.
#include "tilewright_cuda.cuh"
using namespace tw;

constexpr int STAGES = 4, ROW = 512;

TW_KERNEL(160, 1) bulk_ring(const int* X, int* Y, int rows) {
  TW_DYNAMIC_SHARED(smem);
  const int* buffer = reinterpret_cast<const int*>(smem);
  const uint32_t ring = shared_address(smem), full = ring + STAGES * ROW * 4, empty = full + 8 * STAGES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 4);
    }
    fence_mbarrier_init();
  }
  sync_threads();
  const int first = blockIdx.x * rows;
  if (warp == 0) {
    if (elect_one())
      for (int i = 0; i < rows; ++i) {
        const int s = i % STAGES, phase = i / STAGES & 1;
        mbarrier_wait(empty + 8 * s, phase ^ 1);
        mbarrier_arrive_expect_tx(full + 8 * s, ROW * 4);
        bulk_load(ring + s * ROW * 4, X + (int64_t)(first + i) * ROW, ROW * 4, full + 8 * s);
      }
  } else {
    int sum[4] = {0, 0, 0, 0};
    for (int i = 0; i < rows; ++i) {
      const int s = i % STAGES, phase = i / STAGES & 1;
      mbarrier_wait(full + 8 * s, phase);
      for (int j = 0; j < 4; ++j) sum[j] += buffer[s * ROW + (warp - 1) * 128 + j * 32 + lane];
      fence_proxy_async_shared();   // an arrival overtakes loads that have not come back
      sync_warp();
      if (lane == 0) mbarrier_arrive(empty + 8 * s);
    }
    for (int j = 0; j < 4; ++j) atomic_add(Y + (warp - 1) * 128 + j * 32 + lane, sum[j]);
  }
}
