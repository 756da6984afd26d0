"""Row sums by a reducer that several loops fill."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@tilelang.jit(out_idx=[-1])
def row_sums(M, K, step):
    @T.prim_func
    def main(A: T.Tensor((M, K), T.float32), B: T.Tensor((M,), T.float32)):
        with T.Kernel(1, threads=128):
            acc, result = T.alloc_reducer((M,), T.float32, op="sum"), T.alloc_fragment((M,), T.float32)
            T.reducer_init(acc)
            for part in T.serial(K // step):
                for i, k in T.Parallel(M, step):
                    T.reducer_update(acc[i], A[i, part * step + k])
            T.finalize_reducer(acc, result)
            T.copy(result, B)

    return main


a = torch.randint(-9, 9, (16, 64), device=device).float()
assert torch.equal(row_sums(16, 64, 16)(a), a.sum(1))
