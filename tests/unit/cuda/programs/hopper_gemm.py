"""The Hopper GEMM of the hand-written model, in the language with explicit roles."""

import tilewright
import tilewright.language as T


@tilewright.jit
def roles_matmul(
    A, B, dtype="bfloat16", out="bfloat16", block=(128, 256, 64), stages=4, consumers=2, registers=(40, 232)
):
    M, N, K = T.const("M,N,K")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor((N, K), dtype)
    BM, BN, BK = block
    C = T.empty((M, N), out)
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128 * (consumers + 1)) as (bx, by):
        A_ring = T.alloc_shared((stages, BM, BK), dtype)
        B_ring = T.alloc_shared((stages, BN, BK), dtype)
        ring = T.channel(A_ring, B_ring, writers="producer", readers="consumers")
        steps = T.ceildiv(K, BK)
        with T.roles():
            with T.role("consumers", warps=4 * consumers, registers=registers[1]):
                total = T.alloc_fragment((BM, BN), "float32")
                for k in T.serial(steps):
                    slot = ring.receive(k)
                    T.wgmma_gemm(A_ring[slot, :, :], B_ring[slot, :, :], total, transpose_B=True, clear_accum=k == 0)
                    T.wait_wgmma(1)
                    if k > 0:
                        ring.release(k - 1)
                T.wait_wgmma(0)
                ring.release(steps - 1)
                T.copy(total, C[by * BM, bx * BN])
            with T.role("producer", warps=4, registers=registers[0]):
                for k in T.serial(steps):
                    slot = ring.acquire(k)
                    T.copy(A[by * BM, k * BK], A_ring[slot, :, :])
                    T.copy(B[bx * BN, k * BK], B_ring[slot, :, :])
                    ring.publish(k)
    return C
