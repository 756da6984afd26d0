// C[M, N] (half) = A[M, K] B[N, K]^T: cp.async ring of three stages, ldmatrix, mma.sync, guards at every edge.  Tile 64 x 64 x 32, 128 threads.
#include "tilewright_cuda.cuh"
using namespace tw;

constexpr int BM = 64, BN = 64, BK = 32, STAGES = 3;

// 16-byte chunk `chunk` (of 4) of row `row`: rows of 64 bytes, chunks permuted so that eight rows hit eight places of a 128-byte line.
TW_DEVICE uint32_t place(uint32_t tile, int row, int chunk) { return tile + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4); }

TW_DEVICE void load_tile(uint32_t tile, const half* source, int first_row, int rows, int first_k, int K) {
  for (int i = 0; i < 2; ++i) {
    const int index = threadIdx.x + 128 * i, row = index / 4, chunk = index % 4;
    const int k = first_k + chunk * 8;
    const int left = first_row + row < rows ? K - k : 0;
    const uint32_t valid = left <= 0 ? 0 : left >= 8 ? 16 : left * 2;
    cp_async_zfill<16>(place(tile, row, chunk), valid ? source + (int64_t)(first_row + row) * K + k : source, valid);
  }
}

TW_KERNEL(128, 1) cp_async_gemm(const half* TW_RESTRICT A, const half* TW_RESTRICT B, half* TW_RESTRICT C, int M, int N, int K) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t tiles_a = shared_address(smem), tiles_b = tiles_a + STAGES * BM * 64;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, steps = (K + BK - 1) / BK;
  Fragment<float, 4> acc[2][4];
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.0f;
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) {
      load_tile(tiles_a + s * BM * 64, A, row0, M, s * BK, K);
      load_tile(tiles_b + s * BN * 64, B, col0, N, s * BK, K);
    }
    cp_async_commit();
  }
  const int wm = warp / 2 * 32, wn = warp % 2 * 32;
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    sync_threads();
    const int next = step + STAGES - 1;
    if (next < steps) {
      load_tile(tiles_a + next % STAGES * BM * 64, A, row0, M, next * BK, K);
      load_tile(tiles_b + next % STAGES * BN * 64, B, col0, N, next * BK, K);
    }
    cp_async_commit();
    const uint32_t ta = tiles_a + step % STAGES * BM * 64, tb = tiles_b + step % STAGES * BN * 64;
    for (int kk = 0; kk < 2; ++kk) {
      Fragment<half, 8> a[2], b[2];
      for (int i = 0; i < 2; ++i) ldmatrix_x4(a[i], place(ta, wm + i * 16 + lane % 16, kk * 2 + lane / 16));
      for (int j = 0; j < 2; ++j) ldmatrix_x4(b[j], place(tb, wn + j * 16 + lane % 8 + 8 * (lane / 16), kk * 2 + (lane / 8 & 1)));
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) mma_m16n8k16(acc[i][j], a[i], slice<4>(b[j / 2], j % 2 * 4));
    }
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      for (int e = 0; e < 4; ++e) {
        const int row = row0 + wm + i * 16 + lane / 4 + 8 * (e >> 1), col = col0 + wn + j * 8 + lane % 4 * 2 + (e & 1);
        if (row < M && col < N) C[(int64_t)row * N + col] = convert<half>(acc[i][j][e]);
      }
}
