"""What happens to a layer in a program: gradients, transforms, tracers, devices without memory, state dicts that lack something."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from busy import PATIENCE

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.errors import CannotQuantize, Unsupported, WrongArgumentKind  # noqa: E402
from tilewright.matmul import PackedWeight, handles, quant_matmul  # noqa: E402
from tilewright.nn import Linear  # noqa: E402

K, N = 64, 24
torch.manual_seed(0)
FLOAT = torch.nn.Linear(K, N)
X = torch.randn(5, K)


def layer(**options: Any) -> Linear:
    made = Linear.from_float(FLOAT, "int4", group=32)
    return Linear.from_quantized(made.weight.unpack(), FLOAT.bias, **options) if options else made


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("function", [None, "silu", "gelu_tanh"])
def test_gradients_of_activations_and_bias(compiled: bool, function: str | None) -> None:
    made = layer(function=function) if function else layer()
    dense, bias = made.dequantize(), torch.nn.Parameter(made.bias.clone())
    del made.bias
    made.bias = bias
    call = torch.compile(made, fullgraph=True, backend="aot_eager") if compiled else made
    x, y, own = X.clone().requires_grad_(), X.clone().requires_grad_(), bias.detach().clone().requires_grad_()
    call(x).square().sum().backward()
    expected = torch.nn.functional.linear(y, dense, own)
    if function == "silu":
        expected = torch.nn.functional.silu(expected)
    elif function:
        expected = torch.nn.functional.gelu(expected, approximate="tanh")
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(bias.grad, own.grad, rtol=1e-4, atol=1e-4)


def test_a_bias_is_a_parameter_that_may_be_trained_at_any_time() -> None:
    """Known calls give no gradients, and add the numbers that are there: a bias that was asked for gradients after two calls got none."""
    made = layer()
    assert [name for name, _ in made.named_parameters()] == ["bias"] and not made.bias.requires_grad
    before = [made(X) for _ in range(3)][-1]
    made.bias.data = made.bias.data + 1  # as peft and FSDP do, other memory
    for _ in range(3):
        near(made(X), before + 1)
    made.bias.requires_grad_()
    made(X).sum().backward()
    near(made.bias.grad, torch.full((N,), float(len(X))))
    with torch.no_grad():
        made.bias -= 1
        for _ in range(3):
            near(made(X), before)
    made.bias = torch.zeros(N)
    near(made(X), before - FLOAT.bias)
    assert isinstance(made.bias, torch.nn.Parameter) and made.to(torch.bfloat16).bias.dtype == torch.bfloat16
    without = Linear(K, N, group_size=32)
    without.load_state_dict(layer().state_dict())
    near(without(X), before)


def test_vmap_is_one_call_and_other_transforms_are_refused() -> None:
    made = layer()
    near(torch.vmap(made)(X.reshape(5, 1, K)), made(X).reshape(5, 1, N))
    near(torch.vmap(made, in_dims=1)(X.T.contiguous()), made(X))
    with torch.autograd.forward_ad.dual_level():
        with pytest.raises(Unsupported, match="forward-mode gradients of a layer are not supported"):
            made(torch.autograd.forward_ad.make_dual(X, X))
        near(made(X), torch.nn.functional.linear(X, made.dequantize(), made.bias))
    for transform in (lambda: torch.func.grad(lambda x: made(x).sum())(X), lambda: torch.func.jvp(made, (X,), (X,))):
        with pytest.raises(Unsupported, match=r"torch\.func\.grad, vjp and jvp of a layer are not supported"):
            transform()


@torch.no_grad()
def test_a_traced_call_computes() -> None:
    made = layer()
    for _ in range(3):  # known calls too
        made(X)
    near(torch.vmap(made)(X.reshape(5, 1, K)), made(X).reshape(5, 1, N))
    traced = torch.jit.trace(made, X)
    near(traced(2 * X), made(2 * X))


def test_a_script_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"quantised layers in torch\.jit\.script are not supported"):
        torch.jit.script(torch.nn.Sequential(layer()))


def test_a_weight_answers_as_the_matrix() -> None:
    """What programs ask of ``layer.weight`` without computing with it, or to compute with its numbers."""
    made = layer()
    weight, dense = made.weight, torch.nn.Parameter(made.dequantize(), requires_grad=False)
    for name in ("shape", "ndim", "device", "requires_grad", "grad"):
        assert getattr(weight, name) == getattr(dense, name), name
    for name in ("dim", "numel", "size"):
        assert getattr(weight, name)() == getattr(dense, name)(), name
    assert weight.size(0) == weight.size(-2) == N and weight.device.type == "cpu"
    for numbers in (weight.data, weight.detach(), weight.float(), weight.T.T, weight.t().T):
        assert torch.equal(numbers, dense)
    weight.requires_grad = False
    assert weight.requires_grad_(False) is weight
    with pytest.raises(CannotQuantize, match="codes have no gradient"):
        weight.requires_grad_()


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_call_computes_for_any_number_of_rows(strict: bool) -> None:
    made = layer()
    exported = torch.export.export(
        torch.nn.Sequential(made), (X,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},), strict=strict
    )
    near(exported.run_decompositions().module()(X[:3]), made(X[:3]))
    near(made(X), torch.nn.functional.linear(X, made.dequantize(), made.bias))  # which export leaves as it was


@pytest.mark.parametrize("kind", ["real", "fake", "symbolic"])
def test_a_trace_by_a_mode_computes(kind: str) -> None:
    """A mode follows tensors that are like any others."""
    from torch.fx.experimental.proxy_tensor import make_fx

    made = layer()
    with torch.no_grad():
        for _ in range(3):  # known calls too
            made(X)
        traced = make_fx(made, tracing_mode=kind, _allow_non_fake_inputs=True)(X)
        near(traced(2 * X), made(2 * X))


@pytest.mark.parametrize("strict", [False, True])
def test_a_layer_alone_is_exported(strict: bool) -> None:
    for made in (layer(), layer().to(torch.float64)):
        x = X.to(made.bias.dtype)
        near(torch.export.export(made, (x,), strict=strict).module()(2 * x), made(2 * x))


def test_a_symbolic_trace_has_the_layer_as_a_leaf() -> None:
    model = torch.nn.Sequential(layer(), torch.nn.ReLU())
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    near(traced(X), model(X))


def test_gradients_of_gradients() -> None:
    made = layer()
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    for at, call in ((x, made), (y, lambda y: torch.nn.functional.linear(y, made.dequantize(), made.bias))):
        (slope,) = torch.autograd.grad(call(at).pow(3).sum(), at, create_graph=True)
        slope.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-2)


def test_fake_tensors_have_a_shape() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    made = layer()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = made(mode.from_tensor(X.half()))
    assert found.shape == (5, N) and found.dtype == torch.float16


def test_a_layer_without_memory_gets_it_when_it_is_loaded() -> None:
    source = layer()
    with torch.device("meta"):
        made = Linear(K, N, bias=True, W_dtype="int4", group_size=32)
    assert {buffer.device.type for buffer in made.buffers()} == {"meta"}
    shaped = made(torch.empty(3, K, device="meta", dtype=torch.bfloat16))
    assert shaped.is_meta and shaped.shape == (3, N)
    made.to_empty(device="cpu").load_state_dict(source.state_dict())
    near(made(X), source(X))
    other = Linear(K, N, bias=True, W_dtype="int4", group_size=32, device="meta")
    other.load_state_dict(source.state_dict(), assign=True)
    near(other(X), source(X))


def test_tensors_whose_memory_does_not_hold_their_numbers() -> None:
    """Replayed calls read the memory of the tensor whose sign is turned, or of none."""
    made = Linear.from_float(torch.nn.Linear(K, N, bias=False), "int4", group=8)
    expected = made(X)
    for _ in range(3):
        made(X)
    near(made(torch._neg_view(X)), -expected)
    assert not made(torch._efficientzerotensor(X.shape)).any()
    near(quant_matmul(torch._neg_view(X), made.weight), -expected)
    with pytest.raises(WrongArgumentKind, match=r"the activations are a torch\.sparse_coo tensor"):
        made(X.to_sparse())


def test_a_state_dict_without_the_layer_leaves_it_alone() -> None:
    """What is loaded beside a quantised model, adapters for example, took its scales away."""
    layer = torch.nn.Sequential(Linear.from_float(torch.nn.Linear(24, 9), "uint4", group=8, zeros="group"))
    x = torch.randn(3, 24)
    expected = layer(x)
    found = layer.load_state_dict({}, strict=False)
    assert "0.qweight" in found.missing_keys and "0.scales" in found.missing_keys
    assert torch.equal(layer(x), expected)
    layer.load_state_dict({"0.bias": layer[0].bias + 1}, strict=False)
    torch.testing.assert_close(layer(x), expected + 1)


def test_a_bias_that_is_not_there_is_missing() -> None:
    layer, other = (Linear.from_float(torch.nn.Linear(24, 9, bias=bias), "int4", group=8) for bias in (True, False))
    with pytest.raises(RuntimeError, match=r'Missing key.*"bias"'):
        layer.load_state_dict(other.state_dict())
    assert layer.load_state_dict(other.state_dict(), strict=False).missing_keys == ["bias"]
    assert layer.bias is not None


def test_a_state_dict_that_lacks_scales_says_so() -> None:
    state = layer().state_dict()
    del state["scales"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "scales"'):
        layer().load_state_dict(state)
    dense = Linear(K, N, W_dtype="int4", with_scaling=False).state_dict()
    assert "scales" not in dense
    layer().load_state_dict(dense | {"bias": torch.zeros(N)})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.zeros((2, K), np.float32), "an ndarray was given for the activations"),
        ([1.0] * K, "a list was given for the activations"),
        (torch.zeros(2, K).to_sparse(), r"the activations are a torch\.sparse_coo tensor"),
    ],
)
def test_what_is_no_tensor_is_told(wrong: Any, words: str) -> None:
    with pytest.raises(WrongArgumentKind, match=words):
        layer()(wrong)


def test_torchs_own_functions_meet_a_packed_weight() -> None:
    made = layer()
    near(torch.nn.functional.linear(X, made.weight, made.bias), made(X))
    with pytest.raises(WrongArgumentKind, match="a packed weight was given to matmul, which takes tensors of numbers"):
        torch.matmul(X, made.weight)


def test_the_result_is_written_where_gradients_are_off_too() -> None:
    made, out = layer(), torch.empty(5, N)
    with torch.no_grad():
        assert made(X, out) is out
    near(out, made(X))


def test_layers_that_are_alike_share_one_compiled_graph() -> None:
    """As programs compile the repeated blocks of a model: a graph for each of them would pass torch's limit at the ninth."""
    made, graphs = torch.nn.Sequential(*(torch.nn.Sequential(layer(), torch.nn.ReLU()) for _ in range(12))), []
    for number, block in enumerate(made):
        block[0].bias = torch.full((N,), float(number))
    expected = [block(X) for block in made]

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    for block, own in zip(made, expected):
        block.compile(fullgraph=True, backend=backend)
        near(block(X), own)
    assert len(graphs) == 1


def test_compiled_graphs_follow_a_weight_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made, other = layer(), layer()
    other.scales = 2 * other.scales
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    near(compiled(X), made(X))
    made.load_state_dict(other.state_dict())
    near(compiled(X), other(X))
    made.load_state_dict(layer().state_dict(), assign=True)
    near(compiled(X), layer()(X))
    made.scales = other.scales
    near(compiled(X), other(X))
    # A graph of the GPU would read the old weight's memory: it is told by an address that it has not met.
    address = made.handle.data_ptr()
    made.scales = other.scales
    assert made.handle.data_ptr() == address
    monkeypatch.setattr(handles, "is_capturing", lambda array: True)
    met = set()
    for _ in range(5):
        near(compiled(X), other(X))
        assert made.handle.data_ptr() not in met
        met.add(made.handle.data_ptr())
        made.load_state_dict(other.state_dict())


@pytest.mark.proof
def test_a_saved_program_meets_no_other_layer(tmp_path: Path) -> None:
    """In another process as many layers may have been made before; its own are not there."""
    exported, path = torch.export.export(torch.nn.Sequential(layer()), (X,)), tmp_path / "program.pt2"
    torch.export.save(exported, path)
    text = f"""
import torch
from tilewright.errors import WeightIsGone
from tilewright.nn import Linear
alike = [Linear({K}, {N}, bias=True, group_size=32) for _ in range(400)]
try:
    torch.export.load({str(path)!r}).module()(torch.ones(5, {K}))
except WeightIsGone:
    print("none of its own")
"""
    answer = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE)
    assert "none of its own" in answer.stdout, answer.stderr


def test_replicas_are_layers_of_their_own() -> None:
    """As `torch.nn.DataParallel` makes them: a shallow copy, which is given copies of the buffers, and of parameters that are none."""
    made = layer()
    made.bias = torch.nn.Parameter(made.bias)
    with torch.no_grad():
        expected = made(X)
    replica, bias = made._replicate_for_data_parallel(), made.bias.detach().clone().requires_grad_()
    replica.bias = bias
    for name, buffer in made.named_buffers():
        setattr(replica, name, 2 * buffer if name == "scales" else buffer.clone())
    doubled = copy.deepcopy(made)
    doubled.scales = 2 * made.scales
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    replica(x).sum().backward()
    doubled(y).sum().backward()
    near(x.grad, y.grad)
    near(bias.grad, doubled.bias.grad)
    with torch.no_grad():
        for _ in range(3):
            near(replica(X), doubled(X))
            near(made(X), expected)


def test_the_function_is_an_operator_in_compiled_programs() -> None:
    weight, bias, out = layer().weight, torch.randn(N), torch.empty(5, N)

    def program(x: torch.Tensor) -> torch.Tensor:
        quant_matmul(x, weight, out=out)
        return torch.relu(quant_matmul(x, weight, bias=bias, function="silu", residual=out)) + 1

    for call in (program, torch.compile(program, fullgraph=True, backend="aot_eager")):
        near(call(X), program(X))
        near(out, quant_matmul(X, weight))
    whole = torch.compile(lambda x: quant_matmul(x, weight, out_dtype="float32"), fullgraph=True, backend="aot_eager")
    codes = X.to(torch.int8)
    near(whole(codes), quant_matmul(codes, weight, out_dtype="float32"))
    twin = copy.deepcopy(weight)
    near(
        torch.compile(lambda x: quant_matmul(x, twin), fullgraph=True, backend="aot_eager")(X), quant_matmul(X, weight)
    )


def test_graphs_take_handles_where_they_are() -> None:
    """Graphs of the GPU copy what is handed to them and is not marked, and a copy of a handle cannot be read while one is captured."""
    weight, marks = PackedWeight.pack(layer().weight.unpack(), "cpu"), []

    def backend(graph: Any, inputs: Any) -> Any:
        kinds = [node.meta.get("tensor_dict", {}) for node in graph.graph.nodes if node.op == "placeholder"]
        marks.extend(kind.get("_dynamo_static_input_type") for kind in kinds)
        return graph

    torch.compile(lambda x: quant_matmul(x, weight), fullgraph=True, backend=backend)(X)
    assert sorted(map(str, marks)) == ["None", "unguarded"]


def test_the_function_gives_gradients() -> None:
    made, residual = layer(), torch.randn(5, N, requires_grad=True)
    bias = made.bias.clone().requires_grad_()
    x, y, own = X.clone().requires_grad_(), X.clone().requires_grad_(), bias.detach().clone().requires_grad_()
    found = quant_matmul(x, made.weight, bias=bias, function="silu", residual=residual)
    expected = torch.nn.functional.silu(torch.nn.functional.linear(y, made.dequantize(), own)) + residual
    near(found, expected)
    slopes = torch.autograd.grad(found.square().sum(), (x, bias, residual))
    for slope, other in zip(slopes, torch.autograd.grad(expected.square().sum(), (y, own, residual))):
        torch.testing.assert_close(slope, other, rtol=1e-4, atol=1e-4)
    torch.nn.functional.linear(x, made.weight).sum().backward()
    near(x.grad, made.dequantize().sum(0).expand(5, K))
    near(torch.vmap(lambda row: quant_matmul(row, made.weight))(X), quant_matmul(X, made.weight))


def test_the_type_of_a_layers_weight_is_the_models() -> None:
    """Models say ``layer(x.to(layer.weight.dtype))``: the integers of the codes would cut activations off, and did."""
    model = torch.nn.Sequential(torch.nn.Linear(K, N).to(torch.bfloat16))
    assert tilewright.quantize(model, "int8-g32")[0].weight.dtype is torch.bfloat16
    assert model.half()[0].weight.dtype is model[0].weight.dtype is torch.float16
    assert pickle.loads(pickle.dumps(model))[0].weight.dtype is copy.deepcopy(model)[0].weight.dtype is torch.float16
    layer = model.float()[0]
    x = torch.rand(3, K)
    assert torch.equal(layer(x.to(layer.weight.dtype)), layer(x)) and layer(x).abs().max() > 0
    assert Linear(K, N).weight.dtype is torch.float32
