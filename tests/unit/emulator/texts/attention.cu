// O = softmax(Q K^T / 8) V for heads of 64: 64 queries a block, four warps of 16, keys and values in tiles of 64 by cp.async, all in mma.sync.
#include "tilewright_cuda.cuh"
using namespace tw;

constexpr int D = 64, TILE = 64 * D * 2;

TW_DEVICE uint32_t place(uint32_t tile, int row, int chunk) { return tile + row * 128 + ((chunk ^ (row & 7)) << 4); }
TW_DEVICE void bring(uint32_t tile, const half* source) {
  for (int i = 0; i < 4; ++i) {
    const int index = threadIdx.x + 128 * i, row = index / 8, chunk = index % 8;
    cp_async<16>(place(tile, row, chunk), source + row * D + chunk * 8);
  }
}

TW_KERNEL(128, 1) attention(const half* Q, const half* K, const half* V, half* O, int length) {
  TW_DYNAMIC_SHARED(smem);
  const uint32_t tile_q = shared_address(smem), tiles_k = tile_q + TILE, tiles_v = tiles_k + 2 * TILE;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = length / 64;
  const int64_t head = (int64_t)blockIdx.y * length * D;
  bring(tile_q, Q + head + (int64_t)blockIdx.x * 64 * D);
  bring(tiles_k, K + head);
  bring(tiles_v, V + head);
  cp_async_commit();
  Fragment<float, 4> out[8];
  float largest[2] = {-1e30f, -1e30f}, sum[2] = {0.0f, 0.0f};
  for (int j = 0; j < 8; ++j)
    for (int e = 0; e < 4; ++e) out[j][e] = 0.0f;
  Fragment<half, 8> q[4];
  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<0>();
    sync_threads();
    const uint32_t tk = tiles_k + tile % 2 * TILE, tv = tiles_v + tile % 2 * TILE;
    if (tile + 1 < tiles) {
      bring(tiles_k + (tile + 1) % 2 * TILE, K + head + (int64_t)(tile + 1) * 64 * D);
      bring(tiles_v + (tile + 1) % 2 * TILE, V + head + (int64_t)(tile + 1) * 64 * D);
    }
    cp_async_commit();
    if (tile == 0)
      for (int kk = 0; kk < 4; ++kk) ldmatrix_x4(q[kk], place(tile_q, warp * 16 + lane % 16, kk * 2 + lane / 16));
    Fragment<float, 4> score[8];
    for (int j = 0; j < 8; ++j)
      for (int e = 0; e < 4; ++e) score[j][e] = 0.0f;
    for (int kk = 0; kk < 4; ++kk)
      for (int j = 0; j < 4; ++j) {
        Fragment<half, 8> k;
        ldmatrix_x4(k, place(tk, j * 16 + lane % 8 + 8 * (lane / 16), kk * 2 + (lane / 8 & 1)));
        mma_m16n8k16(score[2 * j], q[kk], slice<4>(k, 0));
        mma_m16n8k16(score[2 * j + 1], q[kk], slice<4>(k, 4));
      }
    for (int r = 0; r < 2; ++r) {
      float top = largest[r];
      for (int j = 0; j < 8; ++j)
        for (int e = 0; e < 2; ++e) {
          score[j][2 * r + e] *= 0.125f * 1.4426950408889634f;
          top = maximum(top, score[j][2 * r + e]);
        }
      top = maximum(top, shuffle_xor(top, 1));
      top = maximum(top, shuffle_xor(top, 2));
      const float scale = fast_exp2(largest[r] - top);
      largest[r] = top;
      sum[r] *= scale;
      for (int j = 0; j < 8; ++j)
        for (int e = 0; e < 2; ++e) {
          score[j][2 * r + e] = fast_exp2(score[j][2 * r + e] - top);
          sum[r] += score[j][2 * r + e];
          out[j][2 * r + e] *= scale;
        }
    }
    for (int kk = 0; kk < 4; ++kk) {
      Fragment<half, 8> p;
      for (int i = 0; i < 4; ++i) {
        set_word(p, i, pack_f16x2(score[2 * kk + (i >> 1)][2 * (i & 1)], score[2 * kk + (i >> 1)][2 * (i & 1) + 1]));
      }
      for (int j = 0; j < 4; ++j) {
        Fragment<half, 8> v;
        ldmatrix_x4_trans(v, place(tv, kk * 16 + lane % 16, j * 2 + lane / 16));
        mma_m16n8k16(out[2 * j], p, slice<4>(v, 0));
        mma_m16n8k16(out[2 * j + 1], p, slice<4>(v, 4));
      }
    }
  }
  for (int r = 0; r < 2; ++r) {
    sum[r] += shuffle_xor(sum[r], 1);
    sum[r] += shuffle_xor(sum[r], 2);
    for (int j = 0; j < 8; ++j) {
      Vector<half, 2> pair;
      for (int e = 0; e < 2; ++e) pair[e] = convert<half>(out[j][2 * r + e] / sum[r]);
      store(O + head + ((int64_t)blockIdx.x * 64 + warp * 16 + lane / 4 + 8 * r) * D + j * 8 + lane % 4 * 2, pair);
    }
  }
}
