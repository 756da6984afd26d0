"""Two GPUs in one process: the right device and stream whatever is current, layers moved, captured, compiled and called by threads."""

import contextlib
import ctypes
import threading

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from tilewright.errors import WrongArgumentDevice  # noqa: E402
from tilewright.matmul import PackedExperts, PackedWeight, grouped_matmul, quant_matmul  # noqa: E402
from tilewright.nn import Linear  # noqa: E402
from tilewright.quant import QuantizedWeight, quantize  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402
from tilewright.targets.cuda.driver import require_driver  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(detect() is None or torch.cuda.device_count() < 2, reason="no two GPUs here"),
]

N, K = 256, 512
RNG = np.random.default_rng(0)


def ordered():
    made = quantize(RNG.standard_normal((N, K)), "uint4", group=128, zeros="group", scale_dtype="float16")
    order = RNG.permutation(np.arange(K) // 128).astype(np.int32)
    return QuantizedWeight(made.codes, made.format, made.scales, made.zeros, block=made.block, g_idx=order)


LAYERS = {
    "W4A16": lambda: Linear.from_quantized(quantize(RNG.standard_normal((N, K)), "int4", group=128)),
    "W8A8": lambda: Linear.from_quantized(quantize(RNG.standard_normal((N, K)), "int8", group=None), activations="int8"),
    "W4 e4m3": lambda: Linear.from_quantized(quantize(RNG.standard_normal((N, K)), "int4", group=128), activations="e4m3"),
    "act-order": lambda: Linear.from_quantized(ordered(), torch.randn(N).half()),
    "act-order int8": lambda: Linear.from_quantized(ordered(), activations="int8"),
    "general": lambda: Linear.from_quantized(quantize(RNG.standard_normal((N, K)), "int4", group=10)),
}  # fmt: skip


def activations(rows, device):
    draw = torch.Generator().manual_seed(rows)  # of its own: threads ask too
    return torch.randn(rows, K, dtype=torch.float16, generator=draw).to(device)


@pytest.fixture(params=LAYERS)
def layer(request):
    return LAYERS[request.param]()


@torch.no_grad()
def test_the_tensors_device_counts_not_the_current_one(layer):
    here = layer.to("cuda:0")
    expected = {rows: here(activations(rows, "cuda:0")).cpu() for rows in (1, 20, 200)}
    there = layer.to("cuda:1")
    for current in (0, 1, 0):
        with torch.cuda.device(current):
            for rows, result in expected.items():
                for _ in range(3):
                    found = there(activations(rows, "cuda:1"))
                    assert found.device == torch.device("cuda:1") and torch.equal(found.cpu(), result)
    for _ in range(2):  # and back again
        back = layer.to("cuda:0")
        assert all(torch.equal(back(activations(rows, "cuda:0")).cpu(), result) for rows, result in expected.items())


@torch.no_grad()
def test_activations_on_the_other_device(layer):
    layer.to("cuda:1")
    for _ in range(3):
        with pytest.raises(WrongArgumentDevice, match="the weight is on cuda:1, the activations are on cuda:0"):
            layer(activations(4, "cuda:0"))
        layer(activations(4, "cuda:1"))


@contextlib.contextmanager
def held(stream):
    """A stream that goes no further while the block runs, however long others keep the GPU; but for 60 seconds at most, since
    what waits for it would do so for ever.  Gives whether it is held still."""
    go = torch.zeros(1, dtype=torch.int32).pin_memory()
    late = threading.Timer(60.0, go.fill_, (1,))
    with torch.cuda.stream(stream):
        address, one = ctypes.c_uint64(go.data_ptr()), ctypes.c_uint32(1)
        waits = require_driver("a test").library.cuStreamWaitValue32_v2
        assert waits(ctypes.c_void_p(stream.cuda_stream), address, one, ctypes.c_uint(0)) == 0
    late.start()
    try:
        yield lambda: not go.item()
    finally:
        late.cancel()
        go.fill_(1)
        stream.synchronize()


@torch.no_grad()
def test_streams_of_the_other_device(layer):
    """Work waits for nothing but its own stream: one that is held keeps only its own result back."""
    layer.to("cuda:1")
    x = activations(16, "cuda:1")
    expected = layer(x).clone()
    busy, free = torch.cuda.Stream("cuda:1"), torch.cuda.Stream("cuda:1")
    late = torch.zeros_like(x)
    torch.cuda.synchronize("cuda:1")
    with held(busy) as is_held:
        with torch.cuda.stream(busy):
            late.copy_(x)
            after = layer(late)
        with torch.cuda.stream(free):
            meanwhile = layer(x)
        free.synchronize()
        assert is_held(), "the free stream waited for the busy one"
        assert not busy.query()
        assert torch.equal(meanwhile, expected)
    assert torch.equal(after, expected)


@torch.no_grad()
def test_a_graph_of_the_whole_layer_on_the_other_device(layer):
    layer.to("cuda:1")
    for rows in (1, 40):
        with torch.cuda.device(1):
            x = activations(rows, "cuda:1")
            graph = torch.cuda.CUDAGraph()
            layer(x)
            with torch.cuda.graph(
                graph, stream=torch.cuda.Stream(1)
            ):  # torch keeps the first one it makes, for all devices
                captured = layer(x)
        x.copy_(2 * x)
        graph.replay()
        torch.cuda.synchronize("cuda:1")
        assert torch.equal(captured, layer(x))


@torch.no_grad()
def test_replicas_called_by_threads(layer):
    """As DataParallel does it: a copy of the layer for each device, each in a thread of its own, many calls at once."""
    import copy

    layers = {device: copy.deepcopy(layer).to(device) for device in ("cuda:0", "cuda:1")}
    expected = layers["cuda:0"](activations(7, "cuda:0")).cpu()
    wrong = []

    def work(device):
        try:
            with torch.cuda.device(device), torch.no_grad():
                for _ in range(50):
                    for rows in (7, 33):
                        layers[device](activations(rows, device))
                    if not torch.equal(layers[device](activations(7, device)).cpu(), expected):
                        wrong.append(f"{device} differs")
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(device,)) for device in layers for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_data_parallel():
    model = torch.nn.Sequential(LAYERS["W4A16"](), torch.nn.ReLU()).to("cuda:0")
    x = activations(64, "cuda:0")
    with torch.no_grad():
        found = torch.nn.DataParallel(model, device_ids=[0, 1])(x)
        assert torch.equal(found, torch.cat([model(half) for half in x.split(32)]))


@torch.no_grad()
def test_a_compiled_layer_on_the_other_device(layer):
    layer.to("cuda:1")
    x = activations(20, "cuda:1")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), layer(x))
    with torch.autocast("cuda", torch.bfloat16):
        wide = x.float()
        found = layer(wide)
        assert found.dtype == torch.bfloat16 and torch.equal(found, compiled(wide))


@torch.no_grad()
def test_a_pipeline_over_two_devices():
    first, second = (LAYERS["W4A16"]() for _ in range(2))
    second = Linear.from_quantized(quantize(RNG.standard_normal((K, N)), "int4", group=128))
    x = activations(5, "cuda:0")
    alone = second.to("cuda:0")(first.to("cuda:0")(x))
    apart = second.to("cuda:1")(first(x).to("cuda:1"))
    assert torch.equal(apart.cpu(), alone.cpu())


def test_experts_on_the_other_device():
    held = [PackedWeight.pack(quantize(RNG.standard_normal((N, K)), "int4", group=128)) for _ in range(4)]
    x = activations(30, "cuda:0")
    found = {}
    for device in ("cuda:0", "cuda:1"):
        experts = PackedExperts([one.to(device) for one in held])
        sizes = torch.tensor([10, 0, 19, 1], device=device)
        found[device] = grouped_matmul(x.to(device), experts, sizes).cpu()
    assert torch.equal(found["cuda:0"], found["cuda:1"])


def test_one_weight_packed_on_each_device_in_turn():
    weight = PackedWeight.pack(quantize(RNG.standard_normal((N, K)), "int4", group=128))
    x = activations(3, "cpu")
    results = [quant_matmul(x.to(f"cuda:{d}"), weight.to(f"cuda:{d}")).cpu() for d in (0, 1, 0)]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
