// Y[M, N] = softmax of the rows of X: one block of 4 warps a row; warp shuffles, shared memory between warps, ragged N.
#include "tilewright_cuda.cuh"
using namespace tw;

constexpr int WARPS = 4;

TW_DEVICE float reduce_maximum(float x) {
  for (int lanes = 16; lanes; lanes /= 2) x = maximum(x, shuffle_xor(x, lanes));
  return x;
}
TW_DEVICE float reduce_sum(float x) {
  for (int lanes = 16; lanes; lanes /= 2) x += shuffle_xor(x, lanes);
  return x;
}

TW_KERNEL(128, 1) row_softmax(const float* X, float* Y, int N) {
  TW_DYNAMIC_SHARED(smem);
  float* partial = reinterpret_cast<float*>(smem);
  float* row = partial + 2 * WARPS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* x = X + (int64_t)blockIdx.x * N;
  float largest = -1e30f;
  for (int i = threadIdx.x; i < N; i += 128) {
    row[i] = x[i];
    largest = maximum(largest, row[i]);
  }
  largest = reduce_maximum(largest);
  if (lane == 0) partial[warp] = largest;
  sync_threads();
  for (int w = 0; w < WARPS; ++w) largest = maximum(largest, partial[w]);
  float sum = 0.0f;
  for (int i = threadIdx.x; i < N; i += 128) {
    row[i] = fast_exp(row[i] - largest);
    sum += row[i];
  }
  sum = reduce_sum(sum);
  if (lane == 0) partial[WARPS + warp] = sum;
  sync_threads();
  sum = 0.0f;
  for (int w = 0; w < WARPS; ++w) sum += partial[WARPS + w];
  // Written from the other end, so that every thread reads what another one has left.
  for (int i = threadIdx.x; i < N; i += 128) Y[(int64_t)blockIdx.x * N + N - 1 - i] = row[N - 1 - i] / sum;
}
