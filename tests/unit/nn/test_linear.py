"""`Linear` in torch: state dicts, copies, casts, autocast, compiled graphs, gradients, and what it refuses."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.errors import CannotQuantize, NotRepresentable, Unsupported, WrongArgumentDevice, WrongArgumentShape  # noqa: E402
from tilewright.matmul import PackedWeight, quant_matmul  # noqa: E402
from tilewright.matmul.product import Product  # noqa: E402
from tilewright.nn import Linear  # noqa: E402
from tilewright.quant import QuantizedWeight, quantize  # noqa: E402

K, N = 96, 40


@pytest.fixture(scope="module")
def float_layer() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(K, N)


@pytest.fixture(scope="module")
def layer(float_layer: torch.nn.Linear) -> Linear:
    return Linear.from_float(float_layer, "int4", group=32)


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 5, K)


def test_a_layer_is_the_product_with_its_dequantised_weight(layer: Linear, x: torch.Tensor) -> None:
    expected = torch.nn.functional.linear(x.double(), layer.dequantize().double(), layer.bias.double())
    assert layer(x).shape == (2, 5, N) and layer(x).dtype == torch.float32
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_state_dict_fills_a_layer_of_another_format(layer: Linear, x: torch.Tensor) -> None:
    other = Linear(K, N, bias=True, W_dtype="nf4")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert set(layer.state_dict()) == {"qweight", "scales", "bias", "weight"}


def test_assigned_buffers_count_from_the_next_call(float_layer: torch.nn.Linear, x: torch.Tensor) -> None:
    layer = Linear.from_float(float_layer, "int4", group=32)
    first, again = layer(x), layer(x)
    assert torch.equal(first, again)
    layer.bias = layer.bias + 1
    torch.testing.assert_close(layer(x), first + 1)
    layer.scales = 2 * layer.scales
    torch.testing.assert_close(layer(x) - layer.bias, 2 * (first - layer.bias + 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["scales", "qweight", "zeros"])
def test_buffers_written_in_place_count_from_the_next_call(name: str) -> None:
    layer = Linear(64, 32, W_dtype="uint4", with_zeros=True, group_size=32)
    layer.qweight.random_(0, 256)
    x = torch.randn(3, 64)
    before = layer(x), layer(x)
    buffer = getattr(layer, name)
    buffer.copy_(torch.randint(0, 100, buffer.shape))
    exact = x.double() @ layer.dequantize().double().T
    assert not torch.equal(before[0], layer(x))
    torch.testing.assert_close(layer(x).double(), exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))


def test_types_of_torch_are_names() -> None:
    layer = Linear(64, 32, W_dtype=torch.int8, out_dtype=torch.float32, scale_dtype="e8m0")
    assert layer.out_dtype == "float32" and layer.W_dtype == "int8" and layer.scales.dtype == torch.float8_e8m0fnu
    x = torch.zeros(2, 64, dtype=torch.float16, requires_grad=True)
    assert layer(x).dtype == torch.float32


@pytest.mark.parametrize("activations", [None, "int8"])
@torch.no_grad()
def test_calls_that_are_known_are_replayed(
    float_layer: torch.nn.Linear, x: torch.Tensor, activations: str | None
) -> None:
    layer = Linear.from_float(float_layer, "int4", group=32, activations=activations)
    fresh = Linear.from_float(float_layer, "int4", group=32, activations=activations)
    kinds = (x, x[0], x[:, 1], torch.randn(3, 2 * K)[:, :K], x.transpose(0, 1), x.half(), x[:0])
    results = [[layer(given) for given in kinds] for _ in range(4)]
    assert layer._calls._known, "calls of the same kind were checked in full each time"
    for given, *found in zip(kinds, *results):
        expected = fresh.forward(given)
        assert all(torch.equal(one, expected) and one.shape == expected.shape for one in found)
    assert len({id(one) for found in results for one in found}) == 4 * len(kinds)  # results are never shared
    layer.bias = None
    assert torch.equal(layer(x), Linear.from_quantized(layer.weight.unpack(), activations=activations)(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with torch.enable_grad():
        assert layer(x.clone().requires_grad_()).requires_grad


@torch.no_grad()
def test_a_call_of_another_kind_by_another_thread_while_a_call_is_checked(
    float_layer: torch.nn.Linear, x: torch.Tensor
) -> None:
    layer = Linear.from_float(float_layer, "int4", group=32, activations="int8")
    rows, more = x[0], torch.cat([x[0], x[0]])
    for given in 3 * [more, rows]:
        expected = layer(given)
    run = layer._calls.run

    def interrupted(given: torch.Tensor) -> Any:
        layer._calls.run = run
        layer(more)
        return run(given)

    layer._calls.run = interrupted
    assert torch.equal(layer(rows), expected)


def test_what_is_computed_anew_for_each_call_is_not_replayed() -> None:
    """A bias in another type than the kernel's is converted by torch, of which a replay would know nothing."""
    linear = torch.nn.Linear(K, N).bfloat16()
    layer = Linear.from_float(linear, "int8", group=None, activations="int8")
    given = torch.randn(3, K, dtype=torch.bfloat16)
    with torch.no_grad():
        first = layer(given)
        assert all(torch.equal(layer(given), first) for _ in range(4))


def test_copies_and_files(layer: Linear, x: torch.Tensor) -> None:
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), layer(x)) and not torch.equal(twin.handle, layer.handle)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), layer(x))


def test_a_cast_model_keeps_its_scales(float_layer: torch.nn.Linear, x: torch.Tensor) -> None:
    layer = Linear.from_float(float_layer, "mxfp4")
    expected = layer(x)
    layer = layer.to(torch.bfloat16)
    assert layer.scales.dtype == torch.float8_e8m0fnu and layer.bias.dtype == torch.bfloat16
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert (layer(x.bfloat16()).float() - expected).abs().max() < 0.03


def test_autocast(layer: Linear, x: torch.Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_compiled_graphs_call_an_operator(layer: Linear, x: torch.Tensor) -> None:
    compiled = torch.compile(lambda v: torch.relu(layer(v)) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), torch.relu(layer(x)) + 1)
    found = torch.ops.tilewright.quant_matmul(
        x, layer.out_features, layer.handle, None, None, layer.bias, None, None, None, torch.float32
    )
    assert torch.equal(found, layer(x))
    torch.library.opcheck(
        torch.ops.tilewright.quant_matmul,
        (x, layer.out_features, layer.handle, None, None, None, None, None, None, torch.float32),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_gradients_reach_the_activations(layer: Linear, x: torch.Tensor) -> None:
    x = x.clone().requires_grad_()
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.dequantize().sum(0).expand_as(x), rtol=1e-4, atol=1e-4)


def test_outputs_may_be_given(layer: Linear, x: torch.Tensor) -> None:
    out = torch.full((2, 5, N), torch.nan)
    assert layer(x, out) is out and torch.equal(out, layer(x))


def test_a_weight_of_numbers(x: torch.Tensor) -> None:
    layer = Linear(K, N, W_dtype="int4", group_size=32)
    numbers, scales = torch.randint(-8, 8, (N, K), dtype=torch.int8), torch.rand(N, 3).half()
    layer.load_and_transform_weight(numbers, scales)
    expected = numbers.float() * scales.float().repeat_interleave(32, 1)
    assert torch.equal(layer.dequantize(), expected)
    with pytest.raises(NotRepresentable, match=r"the value 8 at index \[0, 0\] is none of int4's"):
        layer.load_and_transform_weight(torch.full((N, K), 8), scales)
    with pytest.raises(CannotQuantize, match="the layer has scales, none were given"):
        layer.load_and_transform_weight(numbers)


def test_what_is_refused_is_named(layer: Linear, x: torch.Tensor) -> None:
    with pytest.raises(WrongArgumentShape, match=r"the activations have shape \[2, 95\], but the weight is \[40, 96\]"):
        layer(torch.zeros(2, 95))
    with pytest.raises(Unsupported, match="a Linear with activations of int3"):
        Linear(K, N, A_dtype="int3")
    with pytest.raises(WrongArgumentDevice) as caught:
        quant_matmul(x.to("meta"), layer.weight)
    assert str(caught.value) == (
        "the weight is on cpu, the activations are on meta:0\n  help: move one: the weight.to('meta:0'), for example"
    )
    assert isinstance(layer.weight, PackedWeight)


@pytest.mark.parametrize("seed", range(12))
def test_a_layer_says_which_tier_its_calls_take(seed: int) -> None:
    """Of random formats, groups, zeros, divisors, biases, functions and activations."""
    draw = np.random.default_rng(seed)
    format = str(draw.choice(["uint1", "int3", "uint4", "int8", "e2m1", "nf4", "e3m2", "e4m3", "float32", "float64"]))
    quantise = draw.choice([None, "int8", "float8_e4m3fn"])
    dtype = [torch.float16, torch.float32, torch.float64, torch.float8_e5m2][draw.integers(4)]
    numbers = draw.standard_normal((int(draw.integers(1, 60)), int(draw.integers(1, 90)))).astype(np.float32)
    if format.startswith("float"):
        weight = QuantizedWeight(numbers.astype(format), format)
    else:
        divisors = draw.uniform(0.5, 2, numbers.shape[1]).astype(np.float32) if draw.integers(2) else None
        weight = quantize(numbers, format, group=int(draw.choice([16, 20, 64])), divisors=divisors)
    bias = torch.randn(len(numbers)).to(dtype if draw.integers(2) else torch.float32) if draw.integers(2) else None
    layer = Linear.from_quantized(weight, bias, activations=quantise, function=draw.choice([None, "silu"]))
    first, *reasons = layer.explain(3, dtype).splitlines()
    product = Product.of(
        torch.ones(3, numbers.shape[1]).to(dtype), layer.weight, bias=layer.bias, quantize=layer.quantize,
        function=layer.function,
    )  # fmt: skip
    tier, behind = first.split(" on ")[0], ", behind a kernel that quantises the activations" in first
    assert product.prepared.tier.split(", ")[-1] == tier
    assert product.prepared.tier.startswith("quantised") == behind
    assert any("  not panels" in reason for reason in reasons) == (behind or tier != "panels")


def test_the_reasons_of_a_layer() -> None:
    made = torch.nn.Linear(96, 8)
    layers = {to: Linear.from_float(made, to, group=32, activations="int8") for to in ("int4", "e3m2")}
    machine = "cpu x86_64-sse4_2-popcnt-avx-f16c-fma-avx2-bmi2"
    asked = {"dtype": torch.float32, "target": "cpu -arch=avx2"}
    assert layers["int4"].explain(**asked) == f"panels on {machine}"
    assert layers["e3m2"].explain(**asked).splitlines() == [
        f"panels on {machine}, behind a kernel that quantises the activations to int8",
        "  not panels in one kernel: numbers of e3m2 are no bytes times one factor, and rounded activations meet bytes alone",
    ]
    assert Linear.from_float(made, "int4", group=32).explain(1, torch.float64, "cpu -arch=avx2").splitlines() == [
        f"general on {machine}",
        "  not panels: activations of float64",
        "  for other machines: fragments (NVIDIA's tensor cores), scaled (GPUs), blocks (GPUs), bytes (Hopper), masked "
        "(GPUs whose rates are known)",
    ]
    for activations, tier in ((None, "fragments"), ("int8", "bytes")):
        layer = Linear.from_float(made, "int4", group=32, activations=activations)
        assert layer.explain(target="cuda -arch=sm_90a").startswith(tier)
