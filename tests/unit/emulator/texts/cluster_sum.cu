// Y[row] = sum of a row of X that four blocks of a cluster share: each sums its part, writes it to block 0 of the cluster, which adds up.
#include "tilewright_cuda.cuh"
using namespace tw;

constexpr int CLUSTER = 4;

TW_KERNEL(64, 1) cluster_sum(const int* X, int* Y, int columns) {
  TW_DYNAMIC_SHARED(smem);
  int* warp_sums = reinterpret_cast<int*>(smem);
  int* parts = warp_sums + 2;
  const uint32_t rank = cluster_rank();
  const int row = blockIdx.x / CLUSTER, share = columns / CLUSTER;
  int sum = 0;
  for (int i = threadIdx.x; i < share; i += 64) sum += X[row * columns + rank * share + i];
  sum = redux_add(sum);
  if (lane_index() == 0) warp_sums[threadIdx.x / 32] = sum;
  cluster_sync();
  if (threadIdx.x == 0) {
    Vector<int, 1> total;
    total[0] = warp_sums[0] + warp_sums[1];
    store_cluster(mapa(shared_address(parts + rank), 0), total);
  }
  cluster_sync();
  if (rank == 0 && threadIdx.x == 0) {
    int all = 0;
    for (int i = 0; i < CLUSTER; ++i) all += parts[i];
    Y[row] = all;
  }
  cluster_sync();
}
