// Products with 2:4 sparse operands: mma.sp with every selector, wgmma.sp from shared memory and from registers.
#include "tilewright_cuda.cuh"
#include "tilewright_wgmma_sparse_n64_f32_bf16_bf16.cuh"
#include "tilewright_wgmma_sparse_n64_f32_e4m3_e4m3.cuh"
#include "tilewright_wgmma_sparse_n64_f32_e5m2_e5m2.cuh"
#include "tilewright_wgmma_sparse_n64_f32_f16_f16.cuh"
#include "tilewright_wgmma_sparse_n64_f32_tf32_tf32.cuh"
#include "tilewright_wgmma_sparse_n64_s32_s8_s8.cuh"
#include "tilewright_wgmma_sparse_n64_s32_u8_u8.cuh"

// d += a b on one warp; `places_x` has for each lane the positions of its elements in the matrix x, `metadata` a word for each lane.
#define MMA_SPARSE(NAME, FUNCTION, SELECTOR, D, A, N)                                                                        \
  TW_KERNEL(32, 1) NAME(const A* a, const A* b, D* d, const uint32_t* metadata, const int* places_a, const int* places_b,    \
                        const int* places_d) {                                                                               \
    tw::Fragment<A, N> fragment_a, fragment_b;                                                                               \
    tw::Fragment<D, 4> fragment_d;                                                                                           \
    _Pragma("unroll") for (int i = 0; i < N; ++i) fragment_a[i] = a[places_a[threadIdx.x * N + i]];                          \
    _Pragma("unroll") for (int i = 0; i < N; ++i) fragment_b[i] = b[places_b[threadIdx.x * N + i]];                          \
    _Pragma("unroll") for (int i = 0; i < 4; ++i) fragment_d[i] = d[places_d[threadIdx.x * 4 + i]];                          \
    tw::FUNCTION<SELECTOR>(fragment_d, fragment_a, fragment_b, metadata[threadIdx.x]);                                       \
    _Pragma("unroll") for (int i = 0; i < 4; ++i) d[places_d[threadIdx.x * 4 + i]] = fragment_d[i];                          \
  }
MMA_SPARSE(mma_f16_k16_0, mma_sparse_m16n8k16, 0, float, tw::half, 4)
MMA_SPARSE(mma_f16_k16_1, mma_sparse_m16n8k16, 1, float, tw::half, 4)
MMA_SPARSE(mma_f16_k16_2, mma_sparse_m16n8k16, 2, float, tw::half, 4)
MMA_SPARSE(mma_f16_k16_3, mma_sparse_m16n8k16, 3, float, tw::half, 4)
MMA_SPARSE(mma_f16_k32_0, mma_sparse_m16n8k32, 0, float, tw::half, 8)
MMA_SPARSE(mma_f16_k32_1, mma_sparse_m16n8k32, 1, float, tw::half, 8)
MMA_SPARSE(mma_bf16_k32_0, mma_sparse_m16n8k32, 0, float, tw::bfloat16, 8)
MMA_SPARSE(mma_bf16_k32_1, mma_sparse_m16n8k32, 1, float, tw::bfloat16, 8)
MMA_SPARSE(mma_s8_k32_0, mma_sparse_m16n8k32, 0, int32_t, int8_t, 8)
MMA_SPARSE(mma_s8_k32_1, mma_sparse_m16n8k32, 1, int32_t, int8_t, 8)
MMA_SPARSE(mma_s8_k64_0, mma_sparse_m16n8k64, 0, int32_t, int8_t, 16)
MMA_SPARSE(mma_u8_k64_0, mma_sparse_m16n8k64, 0, int32_t, uint8_t, 16)
MMA_SPARSE(mma_tf32_k16_0, mma_sparse_m16n8k16, 0, float, tw::tfloat32, 4)
MMA_SPARSE(mma_tf32_k16_1, mma_sparse_m16n8k16, 1, float, tw::tfloat32, 4)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
MMA_SPARSE(mma_e5m2_k64_0, mma_sparse_m16n8k64, 0, float, tw::float8_e5m2, 16)
MMA_SPARSE(mma_e4m3_k64_0, mma_sparse_m16n8k64, 0, float, tw::float8_e4m3, 16)
#endif

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int STEPS = 4;

TW_DEVICE uint32_t stage(unsigned char* shared, const uint8_t* a, int a_bytes, const uint8_t* b, int b_bytes) {
  for (int i = threadIdx.x; i < a_bytes; i += blockDim.x) shared[i] = a[i];
  unsigned char* second = shared + (a_bytes + 1023) / 1024 * 1024;
  for (int i = threadIdx.x; i < b_bytes; i += blockDim.x) second[i] = b[i];
  tw::fence_proxy_async_shared();
  tw::sync_threads();
  return tw::shared_address(shared);
}

// A [64][K / 2], K-major, and B [64][K]; `registers` takes A from registers.
template <class D, class A, int SELECTOR, tw::Major MAJOR>
TW_DEVICE void product(bool registers, const uint8_t* a, int a_bytes, uint64_t field_a, const int* steps_a, const uint8_t* b, int b_bytes,
                       uint64_t field_b, const int* steps_b, const A* values, const int* places_a, const uint32_t* metadata, D* out,
                       const int* places, unsigned char* smem) {
  const uint32_t at_a = stage(smem, a, a_bytes, b, b_bytes), at_b = at_a + (a_bytes + 1023) / 1024 * 1024;
  constexpr int NA = 16 / sizeof(A);
  tw::Fragment<A, NA> fragment[STEPS];
  tw::Fragment<uint32_t, 1> word[STEPS];
  tw::Fragment<D, 32> d;
#pragma unroll
  for (int i = 0; i < 32; ++i) d[i] = D{};
#pragma unroll
  for (int k = 0; k < STEPS; ++k)
#pragma unroll
    for (int i = 0; i < NA; ++i) fragment[k][i] = values[places_a[(k * 128 + threadIdx.x) * NA + i]];
#pragma unroll
  for (int k = 0; k < STEPS; ++k) word[k][0] = metadata[k * 128 + threadIdx.x];
  tw::wgmma_fence();
  if (registers) {
#pragma unroll
    for (int k = 0; k < STEPS; ++k)
      tw::wgmma_sparse_rs<64, A, SELECTOR, MAJOR>(d, fragment[k], tw::wgmma_advance(field_b | (at_b & 0x3FFFF) >> 4, steps_b[k]),
                                           word[k], true);
  } else {
#pragma unroll
    for (int k = 0; k < STEPS; ++k)
      tw::wgmma_sparse_ss<64, A, A, SELECTOR, MAJOR>(d, tw::wgmma_advance(field_a | (at_a & 0x3FFFF) >> 4, steps_a[k]),
                                              tw::wgmma_advance(field_b | (at_b & 0x3FFFF) >> 4, steps_b[k]),
                                              word[k], true);
  }
  tw::wgmma_commit();
  tw::wgmma_wait<0>();
#pragma unroll
  for (int k = 0; k < STEPS; ++k) tw::sparse_hold(word[k]);
  tw::hold_registers(d);
#pragma unroll
  for (int i = 0; i < 32; ++i) out[places[threadIdx.x * 32 + i]] = d[i];
}
#define WGMMA_SPARSE(NAME, REGISTERS, D, A, SELECTOR, MAJOR)                                                                    \
  TW_KERNEL(128, 1) NAME(const uint8_t* a, int a_bytes, uint64_t field_a, const int* steps_a, const uint8_t* b, int b_bytes,     \
                         uint64_t field_b, const int* steps_b, const A* values, const int* places_a, const uint32_t* metadata,   \
                         D* out, const int* places) {                                                                            \
    TW_DYNAMIC_SHARED(smem);                                                                                                     \
    product<D, A, SELECTOR, tw::MAJOR>(REGISTERS, a, a_bytes, field_a, steps_a, b, b_bytes, field_b, steps_b, values, places_a,  \
                                       metadata, out, places, smem);                                                                               \
  }
WGMMA_SPARSE(ss_f16_0, false, float, tw::half, 0, K_MAJOR)
WGMMA_SPARSE(ss_f16_1, false, float, tw::half, 1, K_MAJOR)
WGMMA_SPARSE(rs_f16_0, true, float, tw::half, 0, K_MAJOR)
WGMMA_SPARSE(rs_f16_1, true, float, tw::half, 1, K_MAJOR)
WGMMA_SPARSE(ss_bf16_0, false, float, tw::bfloat16, 0, K_MAJOR)
WGMMA_SPARSE(ss_mn_f16_0, false, float, tw::half, 0, MN_MAJOR)
WGMMA_SPARSE(rs_mn_f16_1, true, float, tw::half, 1, MN_MAJOR)
WGMMA_SPARSE(ss_tf32_0, false, float, tw::tfloat32, 0, K_MAJOR)
WGMMA_SPARSE(ss_tf32_1, false, float, tw::tfloat32, 1, K_MAJOR)
WGMMA_SPARSE(rs_tf32_0, true, float, tw::tfloat32, 0, K_MAJOR)
WGMMA_SPARSE(ss_u8_0, false, int32_t, uint8_t, 0, K_MAJOR)
WGMMA_SPARSE(ss_e5m2_0, false, float, tw::float8_e5m2, 0, K_MAJOR)
WGMMA_SPARSE(rs_e4m3_0, true, float, tw::float8_e4m3, 0, K_MAJOR)
WGMMA_SPARSE(ss_s8_0, false, int32_t, int8_t, 0, K_MAJOR)
WGMMA_SPARSE(rs_s8_0, true, int32_t, int8_t, 0, K_MAJOR)
WGMMA_SPARSE(ss_e4m3_0, false, float, tw::float8_e4m3, 0, K_MAJOR)
#endif
