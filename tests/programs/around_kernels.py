"""What stands around kernels: lowering, sources, parameters, environment, tests of machines."""

import tilelang
import tilelang.language as T
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

import tilelang.testing
from tilelang.contrib import nvcc
from tilelang.engine.param import KernelParam
from tilelang.env import env
from tilelang.utils.target import determine_target
from tilelang.utils.tensor import get_tensor_supply, torch_assert_close

tilelang.testing.set_random_seed(0)


@T.prim_func
def double(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = A[i] * 2


artifact = tilelang.lower(double, target=determine_target("auto", return_object=True))
assert "double" in artifact.kernel_source and isinstance(artifact.params[0], KernelParam)
kernel = tilelang.compile(double, out_idx=[1])
a = get_tensor_supply(tilelang.TensorSupplyType.Uniform)(kernel.params[0])
assert (
    torch_assert_close(kernel(a), a * 2)
    and kernel.params[0].dtype == "float32"
    and kernel.params[0].torch_dtype() is torch.float32
)
assert nvcc.parse_compute_version("9.0") == (9, 0) and env.TILELANG_CACHE_DIR


@tilelang.testing.requires_cuda
def test_on_a_gpu():
    pass
