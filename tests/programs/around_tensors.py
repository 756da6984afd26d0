"""Tensor objects outside kernels, types and sizes asked for, tests in TileLang's harness, CUDA text as a whole kernel."""

import tilelang
import tilelang.language as T
import tilelang.testing
import torch

tilelang.testing.set_random_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"


def annotations():
    A = T.Tensor((128, 64), "float16")
    B = T.Tensor[[128, 64], T.float16]
    for one in (A, B):
        assert tuple(one.shape) == (128, 64), one.shape
        assert one.dtype == "float16" and one.dtype == T.float16, one.dtype
    n = T.dynamic("n")
    C = T.Tensor((n, 4), T.float32)
    assert C.shape[1] == 4 and C.shape[0].name == "n"
    assert isinstance(n, T.Var) and n.dtype == "int32"
    assert T.float16.bits == 16 and T.dtype("int8").bits == 8 and str(T.bfloat16) == "bfloat16"
    assert {T.float16: 1}["float16"] == 1 and f"{T.float16}" == "float16"
    assert T.float16.as_torch() == torch.float16 and getattr(torch, T.int8) == torch.int8
    assert T.dtype(torch.bfloat16) == T.bfloat16
    assert T.ceildiv(7, 2) == 4 and tilelang.cdiv(7, 2) == 4 and tilelang.next_power_of_2(5) == 8


def program(M, N, dtype):
    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, 16), threads=128) as bx:
            for i, j in T.Parallel(16, N):
                B[bx * 16 + i, j] = A[bx * 16 + i, j] + T.cast(1, dtype)

    return main


@tilelang.testing.requires_cuda
def test_on_cuda():
    kernel = tilelang.compile(program(64, 32, T.float16), out_idx=-1, target="cuda")
    a = torch.randn(64, 32, device="cuda").half()
    tilelang.testing.torch_assert_close(kernel(a), a + 1, rtol=1e-3, atol=1e-3)


def test_anywhere():
    func = program(64, 32, T.float32)
    kernel = tilelang.compile(func, out_idx=[1])
    a = torch.randn(64, 32, device=dev)
    tilelang.testing.torch_assert_close(kernel(a), a + 1, rtol=1e-5, atol=1e-5, max_mismatched_ratio=0.0)
    assert [p.dtype for p in kernel.params] == [torch.float32] * 2 or [str(p.dtype) for p in kernel.params] == [
        "float32"
    ] * 2
    assert [list(map(int, p.shape)) for p in kernel.params] == [[64, 32]] * 2
    if dev == "cuda":
        profiler = kernel.get_profiler()
        profiler.assert_allclose(lambda x: x + 1, rtol=1e-5, atol=1e-5)


SOURCE = r"""
extern "C" __global__ void scaled(const float* __restrict__ a, float* __restrict__ b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) b[i] = 3.0f * a[i];
}
"""


def source_kernel(N, threads=64):
    @T.prim_func
    def main(A: T.Tensor((N,), T.float32), B: T.Tensor((N,), T.float32), n: T.int32):
        T.CUDASourceCodeKernel(T.ceildiv(N, threads), threads=threads, source_code_or_path=SOURCE, entry_name="scaled")

    return main


REAL_SIZES = [("source", lambda: tilelang.compile(source_kernel(1000)))]

if __name__ == "__main__":
    annotations()
    test_anywhere()
    if torch.cuda.is_available():
        test_on_cuda()
        a, b = torch.randn(1000, device=dev), torch.zeros(1000, device=dev)
        tilelang.compile(source_kernel(1000))(a, b, 1000)
        torch.testing.assert_close(b, 3 * a)
    print("ok")
