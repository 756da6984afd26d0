// What compute-sanitizer follows and what it does not: pairs of kernels that hand data over, or meet, in two ways that PTX orders alike.
#include "tilewright_cuda.cuh"
using namespace tw;

// Cells that 128 threads write and 128 others read, by a barrier of transactions on which `arrivals` arrive.
TW_DEVICE void hand_over(int* Y, unsigned char* smem, int arrivals, bool by_a_lane) {
  int* cell = reinterpret_cast<int*>(smem);
  const uint32_t full = shared_address(smem) + 1024;
  if (threadIdx.x == 0) {
    mbarrier_init(full, arrivals);
    fence_mbarrier_init();
  }
  sync_threads();
  if (threadIdx.x < 128) {
    cell[threadIdx.x] = threadIdx.x;
    if (by_a_lane) sync_warp();
    if (!by_a_lane || threadIdx.x % 32 == 0) mbarrier_arrive(full);
  } else {
    mbarrier_wait(full, 0);
    Y[threadIdx.x - 128] = cell[255 - threadIdx.x];
  }
}

TW_KERNEL(256, 1) handed_by_all_lanes(int* Y) {
  TW_DYNAMIC_SHARED(smem);
  hand_over(Y, smem, 128, false);
}

TW_KERNEL(256, 1) handed_by_a_lane(int* Y) {
  TW_DYNAMIC_SHARED(smem);
  hand_over(Y, smem, 4, true);
}

TW_KERNEL(256, 1) handed_by_a_named_barrier(int* Y) {
  TW_DYNAMIC_SHARED(smem);
  int* cell = reinterpret_cast<int*>(smem);
  if (threadIdx.x < 128) {
    cell[threadIdx.x] = threadIdx.x;
    named_barrier_arrive(3, 256);
  } else {
    named_barrier_sync(3, 256);
    Y[threadIdx.x - 128] = cell[255 - threadIdx.x];
  }
}

TW_KERNEL(256, 1) handed_to_and_fro(int* Y) {
  TW_DYNAMIC_SHARED(smem);
  int* cell = reinterpret_cast<int*>(smem);
  const int thread = threadIdx.x % 128;
  if (threadIdx.x < 128) {
    cell[thread] = 127 - thread;
    for (int i = 0; i < 3; ++i) {
      cell[thread] += 1;
      named_barrier_arrive(3, 256);
      named_barrier_sync(4, 256);
    }
    Y[thread] = cell[thread];
  } else {
    for (int i = 0; i < 3; ++i) {
      named_barrier_sync(3, 256);
      cell[thread] -= 1;
      named_barrier_arrive(4, 256);
    }
  }
}

TW_KERNEL(256, 1) met_in_one_place(int* Y) {
  named_barrier_sync(3, 256);
  Y[threadIdx.x] = threadIdx.x;
}

TW_KERNEL(256, 1) met_in_two_places(int* Y) {
  if (threadIdx.x < 128) {
    Y[threadIdx.x] = 1;
    named_barrier_sync(3, 256);
    Y[threadIdx.x] = threadIdx.x;
  } else {
    named_barrier_sync(3, 256);
    Y[threadIdx.x] = threadIdx.x;
    atomic_add(Y + threadIdx.x, 0);
  }
}
