// Warpgroup products on operand tiles in shared memory whose images, descriptors and steps come from tables; four instructions deep.
#include "tilewright_cuda.cuh"
#include "tilewright_wgmma_n128_f16_f16_f16.cuh"
#include "tilewright_wgmma_n128_f32_f16_f16.cuh"
#include "tilewright_wgmma_n16_s32_u8_s8.cuh"
#include "tilewright_wgmma_n24_f32_tf32_tf32.cuh"
#include "tilewright_wgmma_n256_f32_bf16_bf16.cuh"
#include "tilewright_wgmma_n32_f16_e5m2_e4m3.cuh"
#include "tilewright_wgmma_n48_s32_s8_s8.cuh"
#include "tilewright_wgmma_n64_f32_e4m3_e4m3.cuh"
#include "tilewright_wgmma_n8_f32_bf16_bf16.cuh"
#include "tilewright_wgmma_n96_f32_e4m3_e5m2.cuh"

constexpr int STEPS = 4;

// Both images to 1024-byte aligned shared memory with ordinary stores, then made visible to the matrix units.
TW_DEVICE uint32_t stage(unsigned char* shared, const uint8_t* a, int a_bytes, const uint8_t* b, int b_bytes) {
  for (int i = threadIdx.x; i < a_bytes; i += blockDim.x) shared[i] = a[i];
  unsigned char* second = shared + (a_bytes + 1023) / 1024 * 1024;
  for (int i = threadIdx.x; i < b_bytes; i += blockDim.x) second[i] = b[i];
  tw::fence_proxy_async_shared();
  tw::sync_threads();
  return tw::shared_address(shared);
}

#define SHARED_SHARED(NAME, N, D, A, B, MAJOR_A, MAJOR_B)                                                                       \
  TW_KERNEL(128, 1) NAME(const uint8_t* a, int a_bytes, uint64_t field_a, const int* steps_a, const uint8_t* b, int b_bytes,   \
                         uint64_t field_b, const int* steps_b, D* out, const int* places) {                                     \
    TW_DYNAMIC_SHARED(smem);                                                                                                    \
    const uint32_t at_a = stage(smem, a, a_bytes, b, b_bytes), at_b = at_a + (a_bytes + 1023) / 1024 * 1024;                    \
    uint64_t da[STEPS], db[STEPS];                                                                                              \
    _Pragma("unroll") for (int k = 0; k < STEPS; ++k) {                                                                         \
      da[k] = tw::wgmma_advance(field_a | (at_a & 0x3FFFF) >> 4, steps_a[k]);                                                   \
      db[k] = tw::wgmma_advance(field_b | (at_b & 0x3FFFF) >> 4, steps_b[k]);                                                   \
    }                                                                                                                           \
    tw::Fragment<D, N / 2> d;                                                                                                   \
    tw::wgmma_fence();                                                                                                          \
    _Pragma("unroll") for (int k = 0; k < STEPS; ++k) tw::wgmma_ss<N, A, B, tw::MAJOR_A, tw::MAJOR_B>(d, da[k], db[k], k != 0); \
    tw::wgmma_commit();                                                                                                         \
    tw::wgmma_wait<0>();                                                                                                        \
    tw::hold_registers(d);                                                                                               \
    _Pragma("unroll") for (int i = 0; i < N / 2; ++i) out[places[threadIdx.x * (N / 2) + i]] = d[i];                            \
  }

// a from registers: `places_a` has for each step and thread the positions of its elements.
#define REGISTERS_SHARED(NAME, N, D, A, B, MAJOR_B)                                                                             \
  TW_KERNEL(128, 1) NAME(const A* a, const int* places_a, const uint8_t* b, int b_bytes, uint64_t field_b, const int* steps_b, \
                         D* out, const int* places) {                                                                           \
    TW_DYNAMIC_SHARED(smem);                                                                                                    \
    const uint32_t at_b = stage(smem, b, 0, b, b_bytes);                                                                        \
    constexpr int NA = 16 / sizeof(A);                                                                                          \
    tw::Fragment<A, NA> fragment[STEPS];                                                                                        \
    tw::Fragment<D, N / 2> d;                                                                                                   \
    _Pragma("unroll") for (int i = 0; i < N / 2; ++i) d[i] = D{};                                                               \
    _Pragma("unroll") for (int k = 0; k < STEPS; ++k)                                                                           \
      _Pragma("unroll") for (int i = 0; i < NA; ++i) fragment[k][i] = a[places_a[(k * 128 + threadIdx.x) * NA + i]];            \
    tw::wgmma_fence();                                                                                                          \
    _Pragma("unroll") for (int k = 0; k < STEPS; ++k)                                                                           \
      tw::wgmma_rs<N, B, tw::MAJOR_B>(d, fragment[k], tw::wgmma_advance(field_b | (at_b & 0x3FFFF) >> 4, steps_b[k]), true);    \
    tw::wgmma_commit();                                                                                                         \
    tw::wgmma_wait<0>();                                                                                                        \
    tw::hold_registers(d);                                                                                               \
    _Pragma("unroll") for (int i = 0; i < N / 2; ++i) out[places[threadIdx.x * (N / 2) + i]] = d[i];                            \
  }

SHARED_SHARED(ss_n128_f32_f16_f16_k_k, 128, float, tw::half, tw::half, K_MAJOR, K_MAJOR)
SHARED_SHARED(ss_n128_f32_f16_f16_k_mn, 128, float, tw::half, tw::half, K_MAJOR, MN_MAJOR)
SHARED_SHARED(ss_n128_f32_f16_f16_mn_k, 128, float, tw::half, tw::half, MN_MAJOR, K_MAJOR)
SHARED_SHARED(ss_n128_f32_f16_f16_mn_mn, 128, float, tw::half, tw::half, MN_MAJOR, MN_MAJOR)
SHARED_SHARED(ss_n128_f16_f16_f16_k_k, 128, tw::half, tw::half, tw::half, K_MAJOR, K_MAJOR)
SHARED_SHARED(ss_n256_f32_bf16_bf16_k_mn, 256, float, tw::bfloat16, tw::bfloat16, K_MAJOR, MN_MAJOR)
SHARED_SHARED(ss_n8_f32_bf16_bf16_k_k, 8, float, tw::bfloat16, tw::bfloat16, K_MAJOR, K_MAJOR)
SHARED_SHARED(ss_n24_f32_tf32_tf32_k_k, 24, float, tw::tfloat32, tw::tfloat32, K_MAJOR, K_MAJOR)
SHARED_SHARED(ss_n48_s32_s8_s8_k_k, 48, int32_t, int8_t, int8_t, K_MAJOR, K_MAJOR)
SHARED_SHARED(ss_n16_s32_u8_s8_k_k, 16, int32_t, uint8_t, int8_t, K_MAJOR, K_MAJOR)
SHARED_SHARED(ss_n64_f32_e4m3_e4m3_k_k, 64, float, tw::float8_e4m3, tw::float8_e4m3, K_MAJOR, K_MAJOR)
SHARED_SHARED(ss_n96_f32_e4m3_e5m2_k_k, 96, float, tw::float8_e4m3, tw::float8_e5m2, K_MAJOR, K_MAJOR)
SHARED_SHARED(ss_n32_f16_e5m2_e4m3_k_k, 32, tw::half, tw::float8_e5m2, tw::float8_e4m3, K_MAJOR, K_MAJOR)
REGISTERS_SHARED(rs_n128_f32_f16_f16_k, 128, float, tw::half, tw::half, K_MAJOR)
REGISTERS_SHARED(rs_n128_f32_f16_f16_mn, 128, float, tw::half, tw::half, MN_MAJOR)
REGISTERS_SHARED(rs_n8_f32_bf16_bf16_k, 8, float, tw::bfloat16, tw::bfloat16, K_MAJOR)
REGISTERS_SHARED(rs_n24_f32_tf32_tf32_k, 24, float, tw::tfloat32, tw::tfloat32, K_MAJOR)
REGISTERS_SHARED(rs_n16_s32_u8_s8_k, 16, int32_t, uint8_t, int8_t, K_MAJOR)
REGISTERS_SHARED(rs_n64_f32_e4m3_e4m3_k, 64, float, tw::float8_e4m3, tw::float8_e4m3, K_MAJOR)
REGISTERS_SHARED(rs_n32_f16_e5m2_e4m3_k, 32, tw::half, tw::float8_e5m2, tw::float8_e4m3, K_MAJOR)
