"""Layers in torch on the GPU that is here: BitBLAS's bytes as they lie, experts of whole modules, graphs of `torch.compile`, copies."""

import copy
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "nn"))
from hf_experts import HIDDEN, ROUTED, Block  # noqa: E402

import tilewright  # noqa: E402
from tilewright.compat import bitblas  # noqa: E402
from tilewright.matmul.product import Product  # noqa: E402
from tilewright.matmul.tiers import ladder  # noqa: E402
from tilewright.matmul.weight_forms import MatmulCall  # noqa: E402
from tilewright.nn import Experts  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]


@pytest.mark.parametrize("K", [640, 3200])
@pytest.mark.parametrize("M", [1, 33, 300])
def test_propagated_int8_as_it_lies(M, K):
    """The choice for every kind of rows, and what tuning may choose; inference tensors, which nothing may be kept of."""
    config = bitblas.MatmulConfig(
        M=[M], N=1040, K=K, A_dtype="int8", W_dtype="int8", out_dtype="int32", accum_dtype="int32", propagate_b=3
    )
    matmul = bitblas.Matmul(config, enable_tuning=False)
    a = torch.randint(-128, 128, (M, K), dtype=torch.int8, device="cuda")
    w = torch.randint(-128, 128, (1040, K), dtype=torch.int8)
    expected = (a.double() @ w.cuda().double().T).int()
    raw = matmul.transform_weight(w).cuda()
    assert torch.equal(matmul(a, raw), expected)
    with torch.inference_mode():
        assert torch.equal(matmul(a, raw.clone()), expected)
    request = replace(config.request(), rows=M)
    given, operands, made = matmul._checked(MatmulCall(a, raw))
    for chosen in ladder.candidates(config.facts(), request, matmul.arch)[:6]:
        operands.out.fill_(77)
        Product(matmul._prepared(given, a, request, chosen), operands, made, request, matmul.arch).run()
        assert torch.equal(operands.out, expected), chosen


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 128)).cuda().half()


@pytest.mark.parametrize("scheme", ["w4a16-g64", "w8a8"])
def test_graphs_that_torch_compile_captures(scheme):
    """The first call of the layers is the one that torch warms its graph up with, in a pool that must be free again."""
    made = tilewright.quantize(model(), scheme)
    compiled = torch.compile(made, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for rows in (4, 4, 4, 20, 20, 20, 4):
            x = torch.randn(rows, 256, device="cuda", dtype=torch.float16)
            torch.testing.assert_close(compiled(x).clone(), made(x), rtol=1e-2, atol=1e-2)


def test_layers_that_have_run_are_pickled():
    made, x = tilewright.quantize(model(), "w4a16-g64"), torch.randn(4, 256, device="cuda").half()
    with torch.no_grad():
        expected = made(x)
        for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
            assert torch.equal(other(x), expected)


@pytest.mark.parametrize("kind", ROUTED)
def test_experts_of_a_module(kind):
    torch.manual_seed(0)
    block = Block(kind()).eval()
    made = tilewright.quantize(copy.deepcopy(block).cuda(), "w4a16-g16")
    assert isinstance(made.experts, Experts)
    for name in (one for one in ("gate_up_proj", "up_proj", "down_proj") if hasattr(made.experts, one)):
        dense = torch.stack([torch.from_numpy(one.to_dense()) for one in getattr(made.experts, name)]).float()
        own = getattr(block.experts, name)
        own.data = dense if own.shape == dense.shape else dense.transpose(1, 2).contiguous()
    block.up.weight.data = made.up.dequantize().cpu()
    x = torch.randn(7, HIDDEN)
    half = copy.deepcopy(made).half()
    with torch.no_grad():
        expected = block(x)
        for other in (half, copy.deepcopy(half), pickle.loads(pickle.dumps(half))):
            for _ in range(2):
                found = other(x.cuda().half()).float().cpu()
                assert (found - expected).abs().max() <= 0.03 * expected.abs().max()
        other = tilewright.quantize(Block(kind()).eval().cuda(), "w4a16-g16").half()
        other.load_state_dict(half.state_dict())
        assert torch.equal(other(x.cuda().half()), half(x.cuda().half()))
