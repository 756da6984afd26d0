// C[M, N] = A[M, K] B[N, K]^T, bfloat16 in and out, float sums: tiles of 256 x 192, three stages, clusters of two along N that share A.
#include "tilewright_cuda.cuh"
#include "tilewright_wgmma_n192_f32_bf16_bf16.cuh"

constexpr int BM = 256, BN = 192, STAGES = 3, CM = 1, CN = 2;
