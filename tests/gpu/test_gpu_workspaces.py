"""Workspaces on the GPU: programs of a stream share memory, a graph has its own and may be replayed beside eager work."""

import gc

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from tilewright.nn import Linear  # noqa: E402
from tilewright.quant import quantize  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402
from tilewright.targets.cuda.workspaces import MEMORY  # noqa: E402

ARCH = detect()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here"),
]

ROWS = 64
"""So many that tiles of these layers are divided along K: sums are handed over in a workspace."""


def layer(out_features, in_features=8192):
    rng = np.random.default_rng(out_features)
    weight = rng.standard_normal((out_features, in_features)).astype(np.float32)
    return Linear.from_quantized(quantize(weight, "int4", group=128, scale_dtype="float16"), device="cuda")


@pytest.fixture(scope="module")
def layers():
    return layer(3072), layer(1536)


def activations(seed):
    torch.manual_seed(seed)
    return torch.randn(ROWS, 8192, dtype=torch.float16, device="cuda")


@torch.no_grad()
def test_layers_share_the_memory_of_their_stream(layers):
    x, stream = activations(0), torch.cuda.Stream()
    expected = [one(x) for one in layers]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        before = MEMORY.held
        layers[0](x)
        first = MEMORY.held
        found = [[one(x) for one in layers] for _ in range(20)]
    assert first > before
    assert MEMORY.held <= 2 * first - before, "the second layer needs no more than the first, rounded up"
    stream.synchronize()
    assert all(torch.equal(one, other) for each in found for one, other in zip(each, expected))


@torch.no_grad()
def test_a_graph_is_replayed_beside_eager_work_in_the_stream_of_its_capture(layers):
    x, other = activations(0), activations(1)
    expected = [one(x) for one in layers]
    eager = [one(other) for one in layers]
    home, away, graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(home):
        for one in layers:
            one(x)
    home.synchronize()
    with torch.cuda.graph(graph, stream=home):
        captured = [one(x) for _ in range(8) for one in layers]
    wrong = []
    for _ in range(20):
        for result in captured:
            result.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(away):
            graph.replay()
        with torch.cuda.stream(home):
            found = [one(other) for _ in range(8) for one in layers]
        torch.cuda.synchronize()
        wrong += [not torch.equal(result, expected[i % 2]) for i, result in enumerate(captured)]
        wrong += [not torch.equal(result, eager[i % 2]) for i, result in enumerate(found)]
    assert not any(wrong), f"{sum(wrong)} of {len(wrong)} results"


@torch.no_grad()
def test_a_graph_gives_its_workspaces_back(layers):
    x = activations(0)
    layers[0](x)
    stream = torch.cuda.Stream()
    held = []
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            layers[0](x)
        graph.replay()
        torch.cuda.synchronize()
        before = MEMORY.held
        del graph
        gc.collect()
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved())
        assert MEMORY.held == before
    assert held[2] == held[1]


@torch.no_grad()
def test_a_compiled_graph_finds_its_pool_empty(layers):
    """Workspaces of a capture that has ended are given back when garbage is collected."""
    both = torch.nn.ModuleList(layers)
    compiled = torch.compile(lambda x: [one(x) for one in both], mode="reduce-overhead", fullgraph=True)
    for seed in range(5):
        x = activations(seed)
        for found, one in zip(compiled(x), layers):
            torch.testing.assert_close(found.clone(), one(x), rtol=1e-2, atol=1e-2)
    gc.collect()
    assert not MEMORY._captured
