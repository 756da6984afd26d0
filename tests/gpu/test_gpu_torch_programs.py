"""What programs of torch do with quantised layers on a GPU: graphs of blocks, of training and of decoding, weights replaced, copies, casts."""

import copy

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.matmul import PackedExperts, PackedWeight, grouped_matmul, quant_matmul  # noqa: E402
from tilewright.nn import ExpertWeights  # noqa: E402
from tilewright.quant import quantize  # noqa: E402
from tilewright.runtime.call_keys import missed  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]

K, N = 256, 512


def dense():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.GELU(), torch.nn.Linear(N, K)).cuda().half()


def model(scheme="w4a16-g64"):
    return tilewright.quantize(dense(), scheme)


def other():
    """A model of the same form and other numbers."""
    made = dense()
    for layer in (made[0], made[2]):
        layer.weight.data.neg_()
    return tilewright.quantize(made, "w4a16-g64")


def activations(rows=8):
    torch.manual_seed(rows)
    return torch.randn(rows, K, device="cuda", dtype=torch.float16)


def near(found, expected, tolerance=1e-2):
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = dense()

    def forward(self, x):
        return x + self.inner(x)


@torch.no_grad()
def test_blocks_that_are_compiled_one_by_one():
    """They share a compiled graph, not the graph of the GPU."""
    made = torch.nn.Sequential(*(Block() for _ in range(3)))
    for number, block in enumerate(made):
        block.inner[2].weight.data.mul_(1 - number)
    made, x = tilewright.quantize(made, "w4a16-g64"), activations()
    expected = made(x)
    for block in made:
        block.compile(fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        near(made(x).clone(), expected)


@torch.no_grad()
def test_a_captured_graph_is_made_anew_when_a_weight_is_replaced():
    made, x = model(), activations()
    compiled = torch.compile(made, fullgraph=True, mode="reduce-overhead")
    for source in (model(), other(), model(), other()):
        made.load_state_dict(source.state_dict())
        expected = made(x)
        near(expected, source(x))
        for _ in range(3):
            near(compiled(x).clone(), expected)


@torch.no_grad()
@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_a_compiled_graph_of_any_number_of_rows(mode):
    made = model("w8a8")
    compiled = torch.compile(made, fullgraph=True, dynamic=True, mode=mode)
    for rows in (8, 9, 1, 300, 17):
        near(compiled(activations(rows)), made(activations(rows)), 3e-2)


class Adapted(torch.nn.Module):
    """A layer with a LoRA adapter beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 4, bias=False).cuda().half()
        self.up = torch.nn.Linear(4, base.out_features, bias=False).cuda().half()

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_adapters_are_trained_in_compiled_graphs(mode):
    made, x = model(), activations()
    net = torch.nn.Sequential(Adapted(made[0]), made[1], Adapted(made[2]))
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]

    def gradients(call):
        for parameter in trained:
            parameter.grad = None
        call(x).float().square().mean().backward()
        return [parameter.grad.clone() for parameter in trained]

    expected, compiled = gradients(net), torch.compile(net, fullgraph=True, mode=mode)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        for found, own in zip(gradients(compiled), expected):
            near(found, own, 3e-2)


def test_gradients_in_graphed_callables():
    made, x = model(), activations().requires_grad_()
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(made), (x,))
    for _ in range(3):
        found = graphed(x)
        near(found, made(x))
        ((slope,), (own,)) = (torch.autograd.grad(y.float().square().sum(), x) for y in (found, made(x)))
        near(slope, own)


@torch.no_grad()
def test_graphs_that_share_a_pool():
    made, pool, graphs = model(), torch.cuda.graph_pool_handle(), []
    for rows in (64, 16, 1):
        x, graph = activations(rows), torch.cuda.CUDAGraph()
        made(x)
        with torch.cuda.graph(graph, pool=pool):
            y = made(x)
        graphs.append((graph, x, y))
    for graph, x, y in graphs * 3:
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, made(x))


@torch.no_grad()
def test_records_of_a_layer_are_known_wherever_they_are_copied():
    """After a call `qweight` holds the order of a kernel: copies of the buffer do too."""
    made, x = model(), activations()
    expected = made(x)
    assert made[0].qweight.dtype == torch.uint32
    buffers = {name: buffer.clone() for name, buffer in made.named_buffers()}
    near(torch.func.functional_call(made, buffers, (x,)), expected)
    replica = made[0]._replicate_for_data_parallel()
    for name, tensor in {**made[0]._buffers, **made[0]._parameters}.items():
        setattr(replica, name, None if tensor is None else tensor.clone())
    near(replica(x), made[0](x))
    near(made(x), expected)


@torch.no_grad()
def test_codes_of_an_assigned_state_are_held_once():
    made = model()
    made.load_state_dict(model().state_dict(), assign=True)
    near(made(activations()), model()(activations()))
    assert made[0].qweight.dtype == torch.uint32


@torch.no_grad()
def test_moves_and_casts_after_calls():
    made, x = model(), activations()
    expected = made(x).float()
    near(made.cpu()(x.cpu().float()).cuda(), expected)
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float16):
        near(made.cuda().to(kind)(x.to(kind)), expected, 5e-2)
    with torch.autocast("cuda", torch.bfloat16):
        found = made.float()(x.float())
        assert found.dtype == torch.bfloat16
        near(torch.compile(made, fullgraph=True)(x.float()), found, 3e-2)


def test_the_functions_are_operators_with_gradients():
    made, x = model(), activations(12)
    weight, y = made[0].weight, x.clone().requires_grad_()
    dense, sizes = made[0].dequantize(), torch.tensor([5, 0, 7], device="cuda", dtype=torch.int32)
    experts = PackedExperts([PackedWeight.pack(weight.unpack(), "cuda") for _ in range(3)])
    for call in (lambda x: quant_matmul(x, weight), lambda x: grouped_matmul(x, experts, sizes)):
        with torch.no_grad():
            expected = call(x)
        near(expected, x.float() @ dense.T, 3e-2)
        for one in (call, torch.compile(call, fullgraph=True)):
            with torch.no_grad():
                for _ in range(3):
                    near(one(x).clone(), expected)
            (slope,) = torch.autograd.grad(one(y).float().sum(), y)
            near(slope, dense.sum(0).expand(12, K), 3e-2)


@torch.no_grad()
def test_experts_in_autocast_and_captured():
    torch.manual_seed(0)
    held = [quantize(torch.randn(N, K), "int4", group=64, scale_dtype="float16") for _ in range(3)]
    experts, sizes = ExpertWeights(held, device="cuda"), torch.tensor([5, 0, 7], device="cuda", dtype=torch.int32)
    x = activations(12)
    expected, graph = experts(x, sizes), torch.cuda.CUDAGraph()
    with torch.autocast("cuda", torch.float16):
        assert torch.equal(experts(x.float(), sizes), expected)
    with torch.cuda.graph(graph):
        found = experts(x, sizes)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_scaled_products_of_8_bits_in_compiled_functions(backend):
    e4m3, draw = torch.float8_e4m3fn, torch.Generator("cuda").manual_seed(0)
    b = torch.randn(N, K, generator=draw, device="cuda").to(e4m3)
    of_b = torch.rand(N, generator=draw, device="cuda") + 0.5

    def function(x, b, of_b):
        return tilewright.fp8_scaled_matmul(x, None, b, of_b, transpose_B=True, out_dtype=torch.bfloat16).relu()

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    x = torch.randn(7, K, generator=draw, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    found = []
    for one in (compiled, function):
        y = one(x, b, of_b)
        y.float().sum().backward()
        found.append((y.detach(), x.grad))
        x.grad = None
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


@pytest.mark.parametrize("kind", ["plain", "bias", "quantised"])
@torch.no_grad()
def test_known_calls_of_the_function(kind):
    """Calls of `quant_matmul` that are known: other tensors at other places, results that are given, one of which lies on x."""
    weight = quantize(dense()[0].weight.detach().float().cpu().numpy(), "int4", group=64)
    packed, fresh = PackedWeight.pack(weight, "cuda"), PackedWeight.pack(weight, "cuda")
    options = {
        "plain": {},
        "bias": {"bias": torch.randn(N, device="cuda", dtype=torch.float16)},
        "quantised": {"quantize": "int8"},
    }[kind]
    for turn in range(6):
        x = torch.randn(3, K, device="cuda", dtype=torch.float16)
        out = torch.empty(3, N, device="cuda", dtype=torch.float16) if turn % 2 else None
        found = quant_matmul(x, packed, out=out, **options)
        fresh.calls.clear()
        assert torch.equal(found, quant_matmul(x, fresh, **options)) and (out is None or found is out)
    odd = torch.randn(3 * K + 1, device="cuda", dtype=torch.float16)[1:].view(3, K)  # not at a multiple of 16 bytes
    assert torch.equal(quant_matmul(odd, packed, **options), quant_matmul(odd.clone(), packed, **options))
    assert any(known.plan is not missed for known in packed.calls._known.values())
