// Two warpgroups take turns with named barriers: even rounds append to a list in shared memory, odd ones fold it; the result depends on the order.
#include "tilewright_cuda.cuh"
using namespace tw;

TW_KERNEL(256, 1) ping_pong(const uint32_t* X, uint32_t* Y, int rounds) {
  TW_DYNAMIC_SHARED(smem);
  uint32_t* list = reinterpret_cast<uint32_t*>(smem);
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  if (group == 0) {
    list[thread] = 1;
    for (int i = 0; i < rounds; ++i) {
      list[thread] = list[thread] * 1664525u + X[i * 128 + thread];
      named_barrier_arrive(1, 256);
      named_barrier_sync(2, 256);
    }
    Y[blockIdx.x * 128 + thread] = list[thread];
  } else {
    for (int i = 0; i < rounds; ++i) {
      named_barrier_sync(1, 256);
      const uint32_t other = list[127 - thread];
      named_barrier_sync(3, 128);
      list[thread] ^= other >> 3;
      named_barrier_arrive(2, 256);
    }
  }
}
