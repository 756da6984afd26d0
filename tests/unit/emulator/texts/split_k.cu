// C[M, N] (int32) = A[M, K] B[N, K]^T of int8, K split between blocks: partial tiles in a workspace, the last block to finish adds them up.
#include "tilewright_cuda.cuh"
using namespace tw;

constexpr int BM = 16, BN = 32;

TW_KERNEL(128, 1) split_k(const int8_t* A, const int8_t* B, int32_t* C, int32_t* workspace, uint32_t* counters, int N, int K, int splits) {
  TW_DYNAMIC_SHARED(smem);
  int8_t* tile_a = reinterpret_cast<int8_t*>(smem);
  int8_t* tile_b = tile_a + BM * 32;
  uint32_t* last = reinterpret_cast<uint32_t*>(tile_b + BN * 32);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tile = blockIdx.x, split = blockIdx.y, row0 = tile / (N / BN) * BM, col0 = tile % (N / BN) * BN;
  Fragment<int32_t, 4> acc;
  for (int e = 0; e < 4; ++e) acc[e] = 0;
  for (int k = split * 32; k < K; k += splits * 32) {
    if (threadIdx.x < 32) {
      const int row = threadIdx.x / 2, part = threadIdx.x % 2 * 16;
      store(tile_a + row * 32 + part, load<16>(A + (row0 + row) * K + k + part));
    } else if (threadIdx.x < 96) {
      const int i = threadIdx.x - 32, row = i / 2, part = i % 2 * 16;
      store(tile_b + row * 32 + part, load<16>(B + (col0 + row) * K + k + part));
    }
    sync_threads();
    Fragment<int8_t, 16> a;
    Fragment<int8_t, 8> b;
    ldmatrix_x4(a, shared_address(tile_a) + lane % 16 * 32 + lane / 16 * 16);
    ldmatrix_x2(b, shared_address(tile_b) + (warp * 8 + lane % 8) * 32 + (lane / 8 & 1) * 16);
    mma_m16n8k32(acc, a, b);
    sync_threads();
  }
  int32_t* mine = workspace + (tile * splits + split) * BM * BN;
  for (int e = 0; e < 4; ++e) mine[(lane / 4 + 8 * (e >> 1)) * BN + warp * 8 + lane % 4 * 2 + (e & 1)] = acc[e];
  fence_device();
  sync_threads();
  if (threadIdx.x == 0) *last = atomic_add(counters + tile, 1u);
  sync_threads();
  if (*last == uint32_t(splits - 1)) {
    fence_device();
    if (threadIdx.x == 0) counters[tile] = 0;
    for (int i = threadIdx.x; i < BM * BN; i += 128) {
      int32_t sum = 0;
      for (int s = 0; s < splits; ++s) sum += workspace[(tile * splits + s) * BM * BN + i];
      C[(row0 + i / BN) * N + col0 + i % BN] = sum;
    }
  }
}
