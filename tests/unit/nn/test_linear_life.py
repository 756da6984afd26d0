"""What happens to a layer in a program: gradients, transforms, tracers, devices without memory, state dicts that lack something."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.errors import Unsupported, WrongArgumentKind  # noqa: E402
from tilewright.nn import Linear  # noqa: E402

pytestmark = pytest.mark.sampled(3)

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


def test_vmap_is_one_call_and_other_transforms_are_refused() -> None:
    made = layer()
    near(torch.vmap(made)(X.reshape(5, 1, K)), made(X).reshape(5, 1, N))
    near(torch.vmap(made, in_dims=1)(X.T.contiguous()), made(X))
    for transform in (lambda: torch.func.grad(lambda x: made(x).sum())(X), lambda: torch.func.jvp(made, (X,), (X,))):
        with pytest.raises(Unsupported, match=r"torch\.func\.grad, vjp and jvp of a layer are not supported"):
            transform()


def test_a_traced_call_computes() -> None:
    made = layer()
    traced = torch.jit.trace(made, X)
    near(traced(2 * X), made(2 * X))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_call_computes_for_any_number_of_rows(strict: bool) -> None:
    made = layer()
    exported = torch.export.export(
        torch.nn.Sequential(made), (X,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},), strict=strict
    )
    near(exported.run_decompositions().module()(X[:3]), made(X[:3]))
    near(made(X), torch.nn.functional.linear(X, made.dequantize(), made.bias))  # which export leaves as it was


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
        (np.zeros((2, K), np.float32), "a ndarray was given for the activations"),
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
