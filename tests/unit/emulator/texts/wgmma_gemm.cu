// C[M, N] (bf16) = A[M, K] B[N, K]^T for Hopper: TMA ring, one producer and two consumer warpgroups, clusters of two blocks that share B,
// persistent tiles, accumulators leaving through stmatrix and TMA stores.  The structure of reference/hopper_gemm.cu.
#include "tilewright_cuda.cuh"
#include "tilewright_wgmma_n128_f32_bf16_bf16.cuh"
using namespace tw;

constexpr int BM = 128, BN = 128, BK = 64, STAGES = 3, CLUSTER = 2, CONSUMERS = 2;
constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128, STAGE_BYTES = A_BYTES + B_BYTES, OUT_BYTES = 64 * 128;

TW_KERNEL(384, 1) wgmma_gemm(const TW_GRID_CONSTANT TensorMap map_a, const TW_GRID_CONSTANT TensorMap map_b,
                             const TW_GRID_CONSTANT TensorMap map_c, int k_tiles, int tiles_m, int tiles_n) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t ring = shared_address(smem), out = ring + STAGES * STAGE_BYTES;
  const uint32_t full = out + CONSUMERS * 2 * OUT_BYTES, empty = full + 8 * STAGES;
  const int warpgroup = warp_uniform(threadIdx.x / 128);
  const int rank = cluster_rank();
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, CLUSTER * CONSUMERS);
    }
    fence_mbarrier_init();
  }
  cluster_sync();
  const int first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER, total = tiles_m / CLUSTER * tiles_n;
  if (warpgroup == CONSUMERS) {
    setmaxnreg_dec<40>();
    if (threadIdx.x == 128 * CONSUMERS) {
      int stage = 0;
      uint32_t phase = 0;
      for (int tile = first; tile < total; tile += step) {
        const int row_a = (tile / tiles_n * CLUSTER + rank) * BM, row_b = tile % tiles_n * BN + rank * (BN / CLUSTER);
        for (int k = 0; k < k_tiles; ++k) {
          const uint32_t a = ring + stage * STAGE_BYTES, b = a + A_BYTES + rank * (B_BYTES / CLUSTER);
          mbarrier_wait(empty + 8 * stage, phase ^ 1);
          mbarrier_arrive_expect_tx(full + 8 * stage, STAGE_BYTES);
          tma_load(a, map_a, full + 8 * stage, k * BK, row_a);
          tma_load_multicast(b, map_b, full + 8 * stage, 3, k * BK, row_b);
          if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
      }
    }
    sync_warp();
  } else {
    setmaxnreg_inc<232>();
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int out_row = 16 * warp + lane % 16;
    const uint32_t out_chunk = lane / 16;
    Fragment<float, BN / 2> acc;
    int stage = 0;
    uint32_t phase = 0;
    for (int tile = first; tile < total; tile += step) {
      int previous = 0;
      for (int k = 0; k < k_tiles; ++k) {
        mbarrier_wait(full + 8 * stage, phase);
        const uint32_t a = ring + stage * STAGE_BYTES + warpgroup * 64 * 128, b = ring + stage * STAGE_BYTES + A_BYTES;
        wgmma_fence();
        for (int kk = 0; kk < 4; ++kk)
          wgmma_ss<BN, bfloat16, bfloat16>(acc, wgmma_advance(wgmma_descriptor(a, SWIZZLE_128B, 16, 1024), 32 * kk),
                                           wgmma_advance(wgmma_descriptor(b, SWIZZLE_128B, 16, 1024), 32 * kk), (k | kk) != 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (thread < CLUSTER && k > 0) mbarrier_arrive_cluster(empty + 8 * previous, thread);
        previous = stage;
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
      wgmma_wait<0>();
      if (thread < CLUSTER) mbarrier_arrive_cluster(empty + 8 * previous, thread);
      hold_registers(acc);
      const int row = (tile / tiles_n * CLUSTER + rank) * BM + warpgroup * 64, col = tile % tiles_n * BN;
      for (int c = 0; c < BN / 64; ++c) {
        const uint32_t box = out + (warpgroup * 2 + c % 2) * OUT_BYTES;
        if (thread == 0) bulk_wait_read<1>();
        named_barrier_sync(1 + warpgroup, 128);
        for (int j = 0; j < 4; ++j) {
          Fragment<bfloat16, 8> packed;
          for (int i = 0; i < 8; ++i) packed[i] = convert<bfloat16>(acc[32 * c + 8 * j + i]);
          stmatrix_x4(box + out_row * 128 + (((2 * j + out_chunk) ^ (out_row & 7)) << 4), packed);
        }
        fence_proxy_async_shared();
        named_barrier_sync(1 + warpgroup, 128);
        if (thread == 0) {
          tma_store(map_c, box, col + 64 * c, row);
          bulk_commit();
        }
      }
    }
    if (thread == 0) bulk_wait_read<0>();
    sync_warp();
  }
  cluster_sync();
}
