"""The matmul library on the GPU that is here: formats, tiers, streams, captured graphs and compiled ones."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from tilewright.errors import TilewrightError, WrongArgumentDevice  # noqa: E402
from tilewright.matmul import PackedWeight, quant_matmul  # noqa: E402
from tilewright.matmul.product import Product  # noqa: E402
from tilewright.matmul.tiers.dispatch import candidates  # noqa: E402
from tilewright.nn import Linear  # noqa: E402
from tilewright.quant import quantize  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(detect() is None, reason="no GPU here")]

N, K = 320, 512
CASES = {
    "W4A16": ("int4", {"group": 128, "scale_dtype": "float16"}, "float16", None),
    "W4A16 zeros": ("uint4", {"group": 64, "zeros": "group", "scale_dtype": "bfloat16"}, "bfloat16", None),
    "W8A16": ("int8", {"group": None, "scale_dtype": "float16"}, "float16", None),
    "W1A16": ("int1", {"group": 128, "scale_dtype": "float16"}, "float16", None),
    "float32 scales": ("int4", {"group": 128}, "float16", None),
    "W3A16": ("int3", {"group": 32}, "float16", None),
    "W2A16": ("int2", {"group": 128, "scale_dtype": "float16"}, "float16", None),
    "mxfp4": ("mxfp4", {}, "bfloat16", None),
    "nvfp4": ("nvfp4", {}, "float16", None),
    "nf4": ("nf4", {"group": 64}, "float16", None),
    "e4m3 blocks": ("fp8_block", {}, "bfloat16", None),
    "W8A8": ("int8", {"group": None}, "float16", "int8"),
    "W4A8": ("int4", {"group": 128}, "float16", "int8"),
    "W2A8": ("ternary", {"block": (0, 0)}, "bfloat16", "int8"),
    "e4m3 e4m3": ("e4m3", {"group": None}, "bfloat16", "float8_e4m3fn"),
    "W4A8 zeros": ("uint4", {"group": 64, "zeros": "group"}, "bfloat16", "int8"),
    "W4 e4m3": ("int4", {"group": 128}, "bfloat16", "float8_e4m3fn"),
}


def made(case):
    name, options, activations, quantised = CASES[case]
    rng = np.random.default_rng(0)
    weight = quantize(rng.standard_normal((N, K)) * 0.05, name, **options)
    return PackedWeight.pack(weight, "cuda"), getattr(torch, activations), quantised


@pytest.mark.parametrize("rows", [1, 7, 16, 65, 300])
@pytest.mark.parametrize("case", CASES)
def test_products(case, rows):
    weight, dtype, quantised = made(case)
    torch.manual_seed(rows)
    x = torch.randn(rows, K, device="cuda", dtype=dtype)
    out = torch.full((rows, N), torch.nan, device="cuda", dtype=torch.float32)
    quant_matmul(x, weight, quantize=quantised, out=out)
    given = x.double()
    if quantised:
        limit = 127.0 if quantised == "int8" else torch.finfo(getattr(torch, quantised)).max
        largest = x.double().abs().amax(-1, keepdim=True)
        # Torch divides numbers by tensors by way of a reciprocal, which rounds twice; doubles do not.
        scaled = x.float() * (limit / largest).float()
        codes = scaled.round() if quantised == "int8" else scaled.to(getattr(torch, quantised)).float()
        given = codes.double() * (largest / limit).float().double()
    dense = torch.from_numpy(weight.to_dense()).cuda()
    exact, size = given @ dense.T, given.abs() @ dense.abs().T
    # One rounding of each weight to the operand's type and sums in float32; inside wgmma, sums of 8-bit floats keep 14
    # bits from one instruction of 32 columns to the next.
    units = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
    depth = {"e4m3 e4m3": K, "W4 e4m3": 128}.get(case)
    unit = depth / 32 * 2.0**-14 if depth else 0.0 if quantised else units[dtype]
    assert ((out.double() - exact).abs() <= (unit + (K + 4) * 2.0**-24) * size).all()


@pytest.mark.parametrize("rows", [1, 64, 129])
def test_integers_are_exact(rows):
    rng = np.random.default_rng(rows)
    for name in ("int8", "int4", "int2"):
        weight = quantize(rng.standard_normal((N, K)), name, group=None)
        weight = PackedWeight(
            "int4" if name == "int4" else name, (N, K), {"codes": PackedWeight.pack(weight).arrays["codes"]}
        )
        x = torch.randint(-128, 128, (rows, K), dtype=torch.int8, device="cuda")
        found = quant_matmul(x, weight.to("cuda"), out_dtype="int32")
        assert torch.equal(found.cpu().long(), x.cpu().long() @ torch.from_numpy(weight.to_dense()).long().T)


def test_two_streams_and_a_captured_graph():
    layer = Linear.from_float(torch.nn.Linear(K, N).cuda().half(), "int4", group=128)
    x = torch.randn(16, K, device="cuda", dtype=torch.float16)
    expected = layer(x)
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            y = layer(x)
        torch.cuda.synchronize()
        assert torch.equal(y, expected)
    graph, static = torch.cuda.CUDAGraph(), x.clone()
    with torch.cuda.graph(graph):
        captured = layer(static)
    static.copy_(2 * x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, layer(2 * x))


def test_a_compiled_model():
    model = torch.nn.Sequential(
        Linear.from_float(torch.nn.Linear(K, N).cuda().half(), "int4", group=128), torch.nn.ReLU()
    )
    x = torch.randn(4, K, device="cuda", dtype=torch.float16)
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))


@pytest.mark.parametrize(
    "case", ["W4A16", "W4A16 zeros", "W1A16", "W3A16", "mxfp4", "nf4", "W4A8", "W2A8", "W4A8 zeros"]
)
@torch.no_grad()
def test_codes_are_held_once(case):
    weight, dtype, quantised = made(case)
    plain, before = weight.codes.clone(), weight.nbytes
    layer = Linear.from_quantized(weight.unpack(), activations=quantised, device="cuda")
    x = torch.randn(5, K, device="cuda", dtype=dtype)
    expected = quant_matmul(x, weight, quantize=quantised)
    assert (
        weight.layout.startswith("fragments1") and weight.nbytes <= before * 1.6 + 4096
    )  # rows and columns are padded
    assert torch.equal(weight.codes, plain) and torch.equal(layer(x), expected)
    assert layer.qweight.dtype == torch.uint32
    state = layer.state_dict()
    assert torch.equal(state["qweight"], plain)
    other = Linear(
        K,
        N,
        W_dtype=layer.W_dtype,
        A_dtype=quantised.replace("fn", "").replace("float8_", "") if quantised else "float16",
    )
    other.load_state_dict(state)
    assert torch.equal(other.cuda()(x), expected)
    moved = layer.cpu().cuda()
    assert torch.equal(moved(x), expected) and torch.equal(moved.state_dict()["qweight"], plain)
    wide = quant_matmul(x.float(), weight)  # the general kernel reads plain codes
    exact = x.double() @ torch.from_numpy(weight.to_dense()).cuda().T
    assert ((wide.double() - exact).abs() <= 1e-5 * exact.abs().max()).all()


def test_a_call_of_a_new_kind_while_a_graph_is_captured_is_refused_in_words():
    layer = Linear.from_float(torch.nn.Linear(K, N).cuda().half(), "int4", group=128)
    x = torch.randn(16, K, device="cuda", dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    message = "a call of a kind that has not run before, while a graph is captured"
    with pytest.raises(TilewrightError, match=message), torch.cuda.graph(graph):
        layer(x)
    torch.cuda.synchronize()
    layer(x)


@pytest.mark.parametrize("part", range(4))  # building candidates takes minutes: processes share them
@pytest.mark.parametrize("rows", [1, 40, 300])
@pytest.mark.parametrize("case", ["W4A16", "W8A8", "W4A8", "e4m3 blocks"])
def test_every_candidate_gives_the_result(case, rows, part):
    weight, dtype, quantised = made(case)
    x = torch.randn(rows, K, device="cuda", dtype=dtype)
    product = Product.of(x, weight, quantize=quantised, out_dtype="float32")
    expected = product.run()
    found = candidates(weight, product.request, product.machine)
    assert len(found) >= 3
    for options in found[1 + part :: 4]:
        try:
            other = Product.of(x, weight, quantize=quantised, out_dtype="float32", chosen=options).run()
        except TilewrightError:
            continue  # what cannot be built is no candidate; tuning says why
        assert (other - expected).abs().max() <= 4e-3 * expected.abs().max(), options


def test_a_weight_on_the_wrong_device():
    weight = PackedWeight.pack(quantize(np.ones((N, K)), "int4"))
    with pytest.raises(WrongArgumentDevice, match="the weight is on cpu, the activations are on cuda:0"):
        quant_matmul(torch.zeros(1, K, device="cuda", dtype=torch.float16), weight)
