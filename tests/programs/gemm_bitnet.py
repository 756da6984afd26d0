"""Weights of two bits by int8 activations: codes spread through dp4a, threads' sums combined; and int4 by int8 on tiles."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[-1])
def gemv(N, K, n_partition=4, reduce_thread=8):
    pack = 16

    @T.prim_func
    def main(A: T.Tensor((1, K), "int8"), B: T.Tensor((N, K // 4), "int8"), C: T.Tensor((1, N), "int32")):
        with T.Kernel(T.ceildiv(N, n_partition), 1, threads=(reduce_thread, n_partition)) as (bx, by):
            a, b, wide = (
                T.alloc_local((pack,), "int8"),
                T.alloc_local((pack // 4,), "int8"),
                T.alloc_local((pack,), "int8"),
            )
            acc, total = T.alloc_local((1,), "int32"), T.alloc_local((1,), "int32")
            kr, ni = T.get_thread_binding(0), T.get_thread_binding(1)
            T.clear(acc)
            for ko in T.serial(T.ceildiv(K, reduce_thread * pack)):
                for v in T.vectorized(pack):
                    a[v] = A[by, ko * (reduce_thread * pack) + kr * pack + v]
                for v in T.vectorized(pack // 4):
                    b[v] = B[bx * n_partition + ni, ko * (reduce_thread * pack // 4) + kr * (pack // 4) + v]
                for v in T.serial(pack):
                    wide[v] = T.cast((b[v // 4] >> T.cast(2 * (v % 4), "int8")) & T.cast(3, "int8"), "int8") - T.cast(
                        2, "int8"
                    )
                for ki in T.serial(pack // 4):
                    T.dp4a(a[ki * 4], wide[ki * 4], acc[0])
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.Cast("int32", 0)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle") if 0 else 0,
            ):
                T.evaluate(T.tvm_thread_allreduce(T.uint32(1), acc[0], True, total[0], kr, dtype="handle"))
            if kr == 0:
                C[by, bx * n_partition + ni] = total[0]

    return main


@tilelang.jit(out_idx=[-1])
def tiles(M, N, K, block=32):
    @T.prim_func
    def main(A: T.Tensor((M, K), "int8"), B: T.Tensor((N, K // 2), "uint8"), C: T.Tensor((M, N), "int32")):
        with T.Kernel(N // block, M // block, threads=64) as (bx, by):
            a, b, wide = (
                T.alloc_shared((block, block), "int8"),
                T.alloc_shared((block, block // 2), "uint8"),
                T.alloc_shared((block, block), "int8"),
            )
            c = T.alloc_fragment((block, block), "int32")
            T.clear(c)
            for k in T.Pipelined(K // block, num_stages=2):
                T.copy(A[by * block, k * block], a)
                T.copy(B[bx * block, k * block // 2], b)
                for i, j in T.Parallel(block, block):
                    shifted = (b[i, j // 2] >> (j % 2 * 4)) & 15
                    wide[i, j] = T.Cast("int8", (T.Cast("int32", shifted) << 28) >> 28)
                T.gemm(a, wide, c, transpose_B=True)
            T.copy(c, C[by * block, bx * block])

    return main


a = torch.randint(-128, 128, (1, 256), device=device, dtype=torch.int8)
codes = torch.randint(0, 4, (12, 256), device=device)
packed = (codes.view(12, 64, 4) << torch.tensor([0, 2, 4, 6], device=device)).sum(-1).to(torch.uint8).view(torch.int8)
if device == "cuda":
    assert torch.equal(gemv(12, 256)(a, packed).double().cpu(), a.double().cpu() @ (codes - 2).double().cpu().T)
a = torch.randint(-128, 128, (32, 64), device=device, dtype=torch.int8)
weights = torch.randint(-8, 8, (64, 64), device=device)
packed = ((weights[:, ::2] & 15) | ((weights[:, 1::2] & 15) << 4)).to(torch.uint8)
assert torch.equal(tiles(32, 64, 64)(a, packed).double().cpu(), a.double().cpu() @ weights.double().cpu().T)
