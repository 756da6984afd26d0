"""Workspaces on the GPU: programs of a stream share memory, a graph has its own and may be replayed beside eager work and other graphs."""

import gc
import time

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from tilewright.nn import Linear  # noqa: E402
from tilewright.quant import quantize  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402
from tilewright.targets.cuda.graph_memory import GRAPHS  # noqa: E402
from tilewright.targets.cuda.workspaces import MEMORY  # noqa: E402

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]

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


def captured_by(call, stream=None):
    """A graph of a call, and the call's result."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = call()
    return graph, result


def idle_from(before):
    """Bytes of graphs that are gone, once the driver has said that more are: a thread of its own tells it."""
    gc.collect()
    torch.cuda.synchronize()
    end = time.monotonic() + 10
    while GRAPHS.idle() <= before and time.monotonic() < end:
        time.sleep(0.01)
    return GRAPHS.idle()


@torch.no_grad()
def test_the_memory_of_a_graph_that_is_gone_serves_the_next(layers):
    x, held = activations(0), []
    expected = [one(x) for one in layers]
    for _ in range(4):
        graph, results = captured_by(lambda: [one(x) for one in layers])
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, results, expected))
        held.append(GRAPHS.held)
        idle = GRAPHS.idle()
        del graph, results
        assert idle_from(idle) > idle
    assert held[0] == held[3] > 0


@torch.no_grad()
def test_a_capture_that_is_given_up_leaves_its_memory(layers):
    x = activations(0)
    expected = layers[0](x)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ZeroDivisionError), torch.cuda.graph(graph):
        layers[0](x)
        idle = GRAPHS.idle()
        raise ZeroDivisionError
    del graph
    assert idle_from(idle) > idle
    assert torch.equal(layers[0](x), expected)


@torch.no_grad()
def test_graphs_that_are_replayed_at_once(layers):
    inputs = [activations(seed) for seed in range(3)]
    expected = [[one(x) for one in layers] for x in inputs]
    graphs = [captured_by(lambda x=x: [one(x) for _ in range(4) for one in layers]) for x in inputs]
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(20):
        for _, results in graphs:
            for result in results:
                result.zero_()
        torch.cuda.synchronize()
        for (graph, _), stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for (_, results), own in zip(graphs, expected):
            assert all(torch.equal(result, own[i % 2]) for i, result in enumerate(results))


@torch.no_grad()
def test_branches_of_one_graph(layers):
    """Three streams in one capture, whose launches run at once."""
    inputs = [activations(seed) for seed in range(3)]
    expected = [[one(x) for one in layers] for x in inputs]

    def forked():
        home, found = torch.cuda.current_stream(), []
        begun = home.record_event()
        for x, stream in zip(inputs, streams):
            stream.wait_event(begun)
            with torch.cuda.stream(stream):
                found.append([one(x) for _ in range(4) for one in layers])
        for stream in streams:
            home.wait_stream(stream)
        return found

    streams = [torch.cuda.Stream() for _ in inputs]
    graph, found = captured_by(forked)
    for _ in range(20):
        for results in found:
            for result in results:
                result.zero_()
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        for results, own in zip(found, expected):
            assert all(torch.equal(result, own[i % 2]) for i, result in enumerate(results))


@torch.no_grad()
def test_a_compiled_graph_finds_its_pool_empty(layers):
    """Nothing of a capture's own lies in the pool that torch goes back to for the next."""
    both = torch.nn.ModuleList(layers)
    compiled = torch.compile(lambda x: [one(x) for one in both], mode="reduce-overhead", fullgraph=True)
    for rows in (ROWS, ROWS, ROWS, ROWS // 2, ROWS // 2, ROWS // 2, ROWS):
        x = activations(rows)[:rows]
        for found, one in zip(compiled(x), layers):
            torch.testing.assert_close(found.clone(), one(x), rtol=1e-2, atol=1e-2)
