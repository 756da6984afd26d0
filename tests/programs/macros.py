"""Macros, variables, loops with breaks and conditions."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@T.macro
def larger(a, b, result: T.Ref):
    if a > b:
        result = a
    else:
        result = b


@tilelang.jit(out_idx=[1])
def first_large(N, limit):
    @T.prim_func
    def main(A: T.Tensor((N,), T.int32), B: T.Tensor((3,), T.int32)):
        with T.Kernel(1, threads=32):
            most = T.alloc_var(T.int32, 0)
            place = T.alloc_var(T.int32, -1)
            count = T.alloc_var(T.int32)
            T.clear(count)
            for i in T.serial(N):
                larger(most, A[i], most)
                if A[i] > limit:
                    count += 1
                    if place < 0:
                        place = i
            B[0], B[1], B[2] = most, place, count

    return main


a = torch.randint(0, 100, (50,), device=device, dtype=torch.int32)
over = (a > 60).nonzero()
assert first_large(50, 60)(a).tolist() == [int(a.max()), int(over[0]), len(over)]
