// Dependent launches: each kernel lets the next one begin before it has written anything, and the next one waits for it.
#include "tilewright_cuda.cuh"

// Adds one to every element, late: the dependent launch has been allowed to begin long before.
TW_KERNEL(256, 1) primary(int32_t* values, int32_t n, int32_t nanoseconds) {
  tw::griddepcontrol_wait();
  tw::griddepcontrol_launch_dependents();
  const uint64_t start = tw::global_timer();
  while (tw::global_timer() - start < uint64_t(nanoseconds)) {}
  for (int32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) values[i] = values[i] + 1;
}

// Counts what is not as all primaries so far have left it.
TW_KERNEL(256, 1) secondary(const int32_t* values, int32_t* counts, int32_t n, int32_t added) {
  tw::griddepcontrol_wait();
  tw::griddepcontrol_launch_dependents();
  int32_t wrong = 0;
  for (int32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) wrong += values[i] != i + added;
  if (wrong) tw::atomic_add(&counts[0], wrong);
  if (threadIdx.x == 0) tw::atomic_add(&counts[1], 1);
}
