"""Experts in one launch on the GPU, records packed there, activations quantised, layers replayed and captured."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from tilewright.matmul import PackedExperts, PackedWeight, grouped_matmul, quant_bmm  # noqa: E402
from tilewright.matmul.grouped_calls import GroupedCall  # noqa: E402
from tilewright.nn import Linear  # noqa: E402
from tilewright.quant import QuantizedWeight, quantize  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]

N, K, EXPERTS = 320, 512, 8
SIZES = {"few": (3, 0, 1, 8, 2, 0, 5, 1), "ragged": (130, 0, 7, 64, 1, 300, 33, 65), "one": (0, 0, 0, 1000, 0, 0, 0, 0)}
CASES = {
    "bfloat16": (None, torch.bfloat16, None),
    "W8A8": ("int8", torch.bfloat16, "int8"),
    "fp8": ("e4m3", torch.bfloat16, "float8_e4m3fn"),
    "W4A16": ("int4", torch.float16, None),
    "nf4": ("nf4", torch.bfloat16, None),
}


def weight(format):
    values = torch.randn(N, K).double().numpy() / 16
    if format is None:
        return QuantizedWeight(torch.from_numpy(values).bfloat16().float().numpy().astype("bfloat16"), "bfloat16")
    return quantize(values, format, group=None if format in ("int8", "e4m3") else 128, scale_dtype="float16")


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("case", CASES)
def test_runs_of_rows(case, sizes):
    torch.manual_seed(0)
    format, dtype, quantised = CASES[case]
    held = [weight(format) for _ in range(EXPERTS)]
    experts = PackedExperts([PackedWeight.pack(one).to("cuda") for one in held])
    x = torch.randn(sum(sizes), K, device="cuda", dtype=dtype)
    on_device = torch.tensor(sizes, device="cuda")
    assert isinstance(GroupedCall.of(x, experts, on_device, None, quantised, None), GroupedCall)
    found = grouped_matmul(x, experts, on_device, quantize=quantised)
    assert torch.equal(found, grouped_matmul(x, experts, sizes, quantize=quantised))
    of = torch.repeat_interleave(torch.arange(EXPERTS), torch.tensor(sizes))
    dense = torch.from_numpy(np.stack([one.to_dense() for one in held])).cuda()
    exact = torch.cat([x[of == e].double() @ dense[e].T for e in range(EXPERTS)])
    bound = {None: 0.01, "int8": 0.03, "float8_e4m3fn": 0.08}[quantised]
    assert ((found.double() - exact).abs().max() <= bound * exact.abs().max()).all()


@pytest.mark.parametrize("case", CASES)
def test_biases_and_gates(case):
    torch.manual_seed(0)
    format, dtype, quantised = CASES[case]
    held, sizes = [weight(format) for _ in range(EXPERTS)], SIZES["ragged"]
    experts = PackedExperts([PackedWeight.pack(one).to("cuda") for one in held])
    x, bias = (
        torch.randn(sum(sizes), K, device="cuda", dtype=dtype),
        torch.randn(EXPERTS, N, device="cuda", dtype=dtype),
    )
    on_device = torch.tensor(sizes, device="cuda")
    found = grouped_matmul(x, experts, on_device, quantize=quantised, bias=bias, function="clamped_swiglu")
    of = torch.repeat_interleave(torch.arange(EXPERTS), torch.tensor(sizes))
    dense = torch.from_numpy(np.stack([one.to_dense() for one in held])).cuda()
    sums = torch.cat([x[of == e].double() @ dense[e].T + bias[e].double() for e in range(EXPERTS)])
    gate, up = sums[:, ::2].clamp(max=7), sums[:, 1::2].clamp(-7, 7)
    exact = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    bound = {None: 0.01, "int8": 0.03, "float8_e4m3fn": 0.08}[quantised]
    assert (found.double() - exact).abs().max() <= bound * exact.abs().max()


def test_a_batch():
    torch.manual_seed(0)
    held = [weight("int4") for _ in range(3)]
    experts = PackedExperts([PackedWeight.pack(one).to("cuda") for one in held])
    x = torch.randn(3, 5, K, device="cuda", dtype=torch.float16)
    found = quant_bmm(x, experts)
    for one, rows, result in zip(held, x, found):
        exact = rows.double() @ torch.from_numpy(one.to_dense()).cuda().T
        assert (result.double() - exact).abs().max() <= 0.01 * exact.abs().max()


@pytest.mark.parametrize("case", ["W4A16", "W8A8"])
@torch.no_grad()
def test_a_layer_is_replayed_and_captured(case):
    torch.manual_seed(0)
    format, dtype, quantised = CASES[case]
    layer = Linear.from_quantized(weight(format), activations=quantised, device="cuda")
    x = torch.randn(2, 3, K, device="cuda", dtype=dtype)
    first = layer(x)
    assert all(torch.equal(layer(x), first) for _ in range(4))
    assert layer._calls._known
    odd = torch.randn(6 * K + 1, device="cuda", dtype=dtype)[1:].view(2, 3, K)  # not at a multiple of 16 bytes
    assert torch.equal(layer(odd), layer(odd.clone()))
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layer(x)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        captured = layer(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(captured, layer(x))
