// Products and matrix moves with every lane's elements given by tables: a wrong table, or a wrong function, gives a wrong number.
#include "tilewright_cuda.cuh"

template <class T, int N> TW_DEVICE void gather(tw::Fragment<T, N>& fragment, const T* from, const int* places) {
#pragma unroll
  for (int i = 0; i < N; ++i) fragment[i] = from[places[threadIdx.x * N + i]];
}
template <class T, int N> TW_DEVICE void scatter(T* to, const tw::Fragment<T, N>& fragment, const int* places) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[places[threadIdx.x * N + i]] = fragment[i];
}

// d += a b on one warp; `places_x` has for each lane the positions of its elements in the matrix x.
#define MMA(NAME, FUNCTION, D, ND, A, NA, B, NB)                                                                         \
  TW_KERNEL(32, 1) NAME(const A* a, const B* b, D* d, const int* places_a, const int* places_b, const int* places_d) {   \
    tw::Fragment<A, NA> fragment_a;                                                                                      \
    tw::Fragment<B, NB> fragment_b;                                                                                      \
    tw::Fragment<D, ND> fragment_d;                                                                                      \
    gather(fragment_a, a, places_a);                                                                                     \
    gather(fragment_b, b, places_b);                                                                                     \
    gather(fragment_d, const_cast<const D*>(d), places_d);                                                               \
    tw::FUNCTION(fragment_d, fragment_a, fragment_b);                                                                    \
    scatter(d, fragment_d, places_d);                                                                                    \
  }
MMA(mma_m16n8k16_f32_f16_f16, mma_m16n8k16, float, 4, tw::half, 8, tw::half, 4)
MMA(mma_m16n8k16_f32_bf16_bf16, mma_m16n8k16, float, 4, tw::bfloat16, 8, tw::bfloat16, 4)
MMA(mma_m16n8k16_f16_f16_f16, mma_m16n8k16, tw::half, 4, tw::half, 8, tw::half, 4)
MMA(mma_m16n8k8_f32_f16_f16, mma_m16n8k8, float, 4, tw::half, 4, tw::half, 2)
MMA(mma_m16n8k8_f32_bf16_bf16, mma_m16n8k8, float, 4, tw::bfloat16, 4, tw::bfloat16, 2)
MMA(mma_m16n8k8_f32_tf32_tf32, mma_m16n8k8, float, 4, tw::tfloat32, 4, tw::tfloat32, 2)
MMA(mma_m16n8k4_f32_tf32_tf32, mma_m16n8k4, float, 4, tw::tfloat32, 2, tw::tfloat32, 1)
MMA(mma_m16n8k32_s32_s8_s8, mma_m16n8k32, int32_t, 4, int8_t, 16, int8_t, 8)
MMA(mma_m16n8k32_s32_s8_u8, mma_m16n8k32, int32_t, 4, int8_t, 16, uint8_t, 8)
MMA(mma_m16n8k32_s32_u8_s8, mma_m16n8k32, int32_t, 4, uint8_t, 16, int8_t, 8)
MMA(mma_m16n8k32_s32_u8_u8, mma_m16n8k32, int32_t, 4, uint8_t, 16, uint8_t, 8)
MMA(mma_m16n8k16_s32_s8_s8, mma_m16n8k16, int32_t, 4, int8_t, 8, int8_t, 4)
MMA(mma_m16n8k16_s32_s8_u8, mma_m16n8k16, int32_t, 4, int8_t, 8, uint8_t, 4)
MMA(mma_m16n8k16_s32_u8_s8, mma_m16n8k16, int32_t, 4, uint8_t, 8, int8_t, 4)
MMA(mma_m16n8k16_s32_u8_u8, mma_m16n8k16, int32_t, 4, uint8_t, 8, uint8_t, 4)
MMA(mma_m8n8k4_f64_f64_f64, mma_m8n8k4, double, 2, double, 1, double, 1)
MMA(mma_m16n8k32_through_half_f32_e4m3_e4m3, mma_m16n8k32_through_half, float, 4, tw::float8_e4m3, 16, tw::float8_e4m3, 8)
MMA(mma_m16n8k32_through_half_f32_e4m3_e5m2, mma_m16n8k32_through_half, float, 4, tw::float8_e4m3, 16, tw::float8_e5m2, 8)
MMA(mma_m16n8k32_through_half_f32_e5m2_e4m3, mma_m16n8k32_through_half, float, 4, tw::float8_e5m2, 16, tw::float8_e4m3, 8)
MMA(mma_m16n8k32_through_half_f32_e5m2_e5m2, mma_m16n8k32_through_half, float, 4, tw::float8_e5m2, 16, tw::float8_e5m2, 8)
MMA(mma_m16n8k16_through_half_f32_e4m3_e4m3, mma_m16n8k16_through_half, float, 4, tw::float8_e4m3, 8, tw::float8_e4m3, 4)
MMA(mma_m16n8k16_through_half_f32_e4m3_e5m2, mma_m16n8k16_through_half, float, 4, tw::float8_e4m3, 8, tw::float8_e5m2, 4)
MMA(mma_m16n8k16_through_half_f32_e5m2_e4m3, mma_m16n8k16_through_half, float, 4, tw::float8_e5m2, 8, tw::float8_e4m3, 4)
MMA(mma_m16n8k16_through_half_f32_e5m2_e5m2, mma_m16n8k16_through_half, float, 4, tw::float8_e5m2, 8, tw::float8_e5m2, 4)
MMA(mma_m16n8k32_through_half_f16_e4m3_e4m3, mma_m16n8k32_through_half, tw::half, 4, tw::float8_e4m3, 16, tw::float8_e4m3, 8)
MMA(mma_m16n8k32_through_half_f16_e4m3_e5m2, mma_m16n8k32_through_half, tw::half, 4, tw::float8_e4m3, 16, tw::float8_e5m2, 8)
MMA(mma_m16n8k32_through_half_f16_e5m2_e4m3, mma_m16n8k32_through_half, tw::half, 4, tw::float8_e5m2, 16, tw::float8_e4m3, 8)
MMA(mma_m16n8k32_through_half_f16_e5m2_e5m2, mma_m16n8k32_through_half, tw::half, 4, tw::float8_e5m2, 16, tw::float8_e5m2, 8)
MMA(mma_m16n8k16_through_half_f16_e4m3_e4m3, mma_m16n8k16_through_half, tw::half, 4, tw::float8_e4m3, 8, tw::float8_e4m3, 4)
MMA(mma_m16n8k16_through_half_f16_e4m3_e5m2, mma_m16n8k16_through_half, tw::half, 4, tw::float8_e4m3, 8, tw::float8_e5m2, 4)
MMA(mma_m16n8k16_through_half_f16_e5m2_e4m3, mma_m16n8k16_through_half, tw::half, 4, tw::float8_e5m2, 8, tw::float8_e4m3, 4)
MMA(mma_m16n8k16_through_half_f16_e5m2_e5m2, mma_m16n8k16_through_half, tw::half, 4, tw::float8_e5m2, 8, tw::float8_e5m2, 4)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
MMA(mma_m16n8k32_f32_e4m3_e4m3, mma_m16n8k32, float, 4, tw::float8_e4m3, 16, tw::float8_e4m3, 8)
MMA(mma_m16n8k32_f32_e4m3_e5m2, mma_m16n8k32, float, 4, tw::float8_e4m3, 16, tw::float8_e5m2, 8)
MMA(mma_m16n8k32_f32_e5m2_e4m3, mma_m16n8k32, float, 4, tw::float8_e5m2, 16, tw::float8_e4m3, 8)
MMA(mma_m16n8k32_f32_e5m2_e5m2, mma_m16n8k32, float, 4, tw::float8_e5m2, 16, tw::float8_e5m2, 8)
MMA(mma_m16n8k32_f16_e4m3_e4m3, mma_m16n8k32, tw::half, 4, tw::float8_e4m3, 16, tw::float8_e4m3, 8)
MMA(mma_m16n8k32_f16_e5m2_e5m2, mma_m16n8k32, tw::half, 4, tw::float8_e5m2, 16, tw::float8_e5m2, 8)
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
MMA(mma_m16n8k8_f64_f64_f64, mma_m16n8k8, double, 4, double, 4, double, 2)
#endif

// `bytes` bytes of `image` go to shared memory; lane l of the warp reads or writes rows at `rows[l]`.
TW_DEVICE void fill_shared(unsigned char* shared, const uint8_t* image, int bytes) {
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) shared[i] = image[i];
  tw::sync_threads();
}
#define LDMATRIX(NAME, N)                                                                                                 \
  TW_KERNEL(32, 1) NAME(const uint8_t* image, int bytes, const int* rows, uint16_t* out) {                                \
    TW_DYNAMIC_SHARED(smem);                                                                                              \
    fill_shared(smem, image, bytes);                                                                                      \
    tw::Fragment<uint16_t, N> fragment;                                                                                   \
    tw::NAME(fragment, tw::shared_address(smem) + rows[threadIdx.x]);                                                     \
    for (int i = 0; i < N; ++i) out[threadIdx.x * N + i] = fragment[i];                                                   \
  }
LDMATRIX(ldmatrix_x1, 2)
LDMATRIX(ldmatrix_x2, 4)
LDMATRIX(ldmatrix_x4, 8)
LDMATRIX(ldmatrix_x1_trans, 2)
LDMATRIX(ldmatrix_x2_trans, 4)
LDMATRIX(ldmatrix_x4_trans, 8)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define STMATRIX(NAME, N)                                                                                                 \
  TW_KERNEL(32, 1) NAME(uint8_t* image, int bytes, const int* rows, const uint16_t* in) {                                 \
    TW_DYNAMIC_SHARED(smem);                                                                                              \
    fill_shared(smem, image, bytes);                                                                                      \
    tw::Fragment<uint16_t, N> fragment;                                                                                   \
    for (int i = 0; i < N; ++i) fragment[i] = in[threadIdx.x * N + i];                                                    \
    tw::NAME(tw::shared_address(smem) + rows[threadIdx.x], fragment);                                                     \
    tw::sync_threads();                                                                                                   \
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) image[i] = smem[i];                                             \
  }
STMATRIX(stmatrix_x1, 2)
STMATRIX(stmatrix_x2, 4)
STMATRIX(stmatrix_x4, 8)
STMATRIX(stmatrix_x1_trans, 2)
STMATRIX(stmatrix_x2_trans, 4)
STMATRIX(stmatrix_x4_trans, 8)
#endif
