// Y[N, M] = X[M, N]^T (float): boxes of 32 x 32 come by TMA in 128-byte swizzle, are turned in shared memory, and leave by TMA; ragged edges.
#include "tilewright_cuda.cuh"
using namespace tw;

TW_KERNEL(128, 1) transpose_tma(const TW_GRID_CONSTANT TensorMap map_x, const TW_GRID_CONSTANT TensorMap map_y) {
  TW_DYNAMIC_SHARED(smem);
  float* in = reinterpret_cast<float*>(smem);
  float* out = in + 32 * 32;
  const uint32_t barrier = shared_address(out + 32 * 32);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  sync_threads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, 32 * 32 * 4);
    tma_load(shared_address(in), map_x, barrier, blockIdx.x * 32, blockIdx.y * 32);
  }
  mbarrier_wait(barrier, 0);
  for (int i = threadIdx.x; i < 32 * 32; i += 128) {
    const int row = i / 32, column = i % 32;
    out[column * 32 + (row / 4 ^ (column & 7)) * 4 + row % 4] = in[row * 32 + (column / 4 ^ (row & 7)) * 4 + column % 4];
  }
  fence_proxy_async_shared();
  sync_threads();
  if (threadIdx.x == 0) {
    tma_store(map_y, shared_address(out), blockIdx.y * 32, blockIdx.x * 32);
    bulk_commit();
    bulk_wait_read<0>();
  }
}
