// C[M, N] = A[M, K] B[N, K]^T, bfloat16 in and out, float sums: tiles of 128 x 256, four stages, clusters of two along M that share B.
#include "tilewright_cuda.cuh"
#include "tilewright_wgmma_n256_f32_bf16_bf16.cuh"

constexpr int BM = 128, BN = 256, STAGES = 4, CM = 2, CN = 1;
