"""Roles of warps and words of lanes, as far as a machine has them."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

from tilelang.utils.target import check_cuda_availability


@T.prim_func
def lanes(A: T.Tensor((128,), "int32"), B: T.Tensor((128,), "int32")):
    with T.Kernel(1, threads=128):
        thread = T.get_thread_binding()
        B[thread] = T.get_warp_idx(32) * 100 + T.shfl_xor(A[thread], 1)


a = torch.arange(128, dtype=torch.int32, device=device)
wanted = a // 32 * 100 + (a ^ 1)
if check_cuda_availability():
    found = tilelang.compile(lanes, out_idx=[1], target="cuda")(a)
else:
    found = torch.zeros_like(a)
    tilelang.compile(lanes, target="cuda -arch=sm_90").emulate(a.numpy(), found.numpy())
assert torch.equal(found, wanted)
