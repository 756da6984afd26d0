"""The library's kernels on the GPU that is here, against float64 and exact integers."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cuda" / "programs"))

from cuda_gemm import matmul  # noqa: E402

import tilewright  # noqa: E402
import tilewright.language as T  # noqa: E402
from tilewright.kernels.attention import flash_attention  # noqa: E402
from tilewright.kernels.elementwise import elementwise  # noqa: E402
from tilewright.kernels.rms_norm import rms_norm  # noqa: E402
from tilewright.kernels.softmax import softmax  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(detect() is None, reason="no GPU here")]

gemm = tilewright.jit(matmul)
gemm_sm80 = tilewright.jit(matmul, target="cuda -arch=sm_80")


def random(*shape, dtype=torch.float16):
    torch.manual_seed(1)
    if not dtype.is_floating_point:
        return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int32).to(dtype)
    return torch.randn(shape, device="cuda").to(dtype)


@pytest.mark.parametrize("jitted", [gemm, gemm_sm80], ids=["own architecture", "sm_80"])
@pytest.mark.parametrize("transpose_A, transpose_B", [(False, True), (False, False), (True, True), (True, False)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("m, n, k", [(512, 512, 512), (131, 520, 264), (77, 33, 19)])
def test_matmul(jitted, dtype, transpose_A, transpose_B, m, n, k):
    kind = getattr(torch, dtype)
    a = random(*((k, m) if transpose_A else (m, k)), dtype=kind)
    b = random(*((n, k) if transpose_B else (k, n)), dtype=kind)
    accumulator = "int32" if dtype == "int8" else "float32"
    c = jitted(
        a, b, dtype=dtype, accumulator=accumulator, out=accumulator, transpose_A=transpose_A, transpose_B=transpose_B
    )
    wide_a, wide_b = (a.T if transpose_A else a).double(), (b.T if transpose_B else b).double()
    exact = wide_a @ wide_b
    if dtype == "int8":
        assert torch.equal(c, exact.to(torch.int32))
    else:
        assert ((c.double() - exact).abs() <= (k + 2) * 2.0**-24 * (wide_a.abs() @ wide_b.abs())).all()


@pytest.mark.parametrize("columns", [5000, 4096, 333])
def test_softmax_and_norm(columns):
    x, weight = random(333, columns, dtype=torch.float32), random(columns, dtype=torch.float32)
    assert torch.allclose(softmax(x).double(), torch.softmax(x.double(), 1), rtol=1e-5, atol=1e-12)
    expected = x.double() * (x.double().square().mean(1, keepdim=True) + 1e-6).rsqrt() * weight
    assert torch.allclose(rms_norm(x, weight).double(), expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch, rows, dim", [(2, 500, 64), (16, 1000, 64), (16, 900, 128), (4, 333, 256)])
def test_attention(causal, batch, rows, dim):
    q, k, v = (random(batch, heads, rows, dim) for heads in (8, 4, 4))
    k_all, v_all = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k_all.double(), v_all.double(), is_causal=causal
    )
    result = flash_attention(q, k, v, causal=causal, dtype="float16")
    assert (result.double() - expected).abs().max() <= 4 * 2.0**-11 * v.abs().max()


def test_elementwise_in_the_current_stream():
    kernel = elementwise(lambda a, b: a * b + 1, [(1000, 1), (3001,)], ["float32"] * 2, "float32")
    a, b = random(1000, 1, dtype=torch.float32), random(3001, dtype=torch.float32)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        result = kernel(a, b)
    stream.synchronize()
    assert torch.equal(result, a * b + 1)


def test_kernels_are_captured_into_graphs():
    x = random(64, 1000, dtype=torch.float32)
    softmax(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = softmax(x)
    x.copy_(random(64, 1000, dtype=torch.float32) * 2)
    graph.replay()
    assert torch.allclose(result.double(), torch.softmax(x.double(), 1), rtol=1e-5, atol=1e-12)


def test_outputs_of_calls_without_tensors_are_the_gpus():
    @T.prim_func
    def numbers(O: T.Tensor((300,), "float32"), first: T.int32):
        with T.Kernel(3, threads=128) as block:
            for i in T.Parallel(100):
                O[block * 100 + i] = T.cast(first + block * 100 + i, "float32")

    kernel = tilewright.compile(numbers, out_idx=[0], target="cuda")
    for first in (3, 3, 8):
        made = kernel(first)
        assert made.is_cuda and torch.equal(made, torch.arange(first, first + 300, device="cuda", dtype=torch.float32))
