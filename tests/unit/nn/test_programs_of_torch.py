"""Random programs of torch's functions, layers and products in turn, beside the same program with dense float64 weights: the same numbers and
gradients, and an error where torch has one. What calls remember (known calls, handles, packed forms) must not show."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import gelu, linear, silu  # noqa: E402

import tilewright  # noqa: E402
import tilewright.language as T  # noqa: E402
from tilewright.errors import WeightIsGone  # noqa: E402
from tilewright.matmul import Matmul, MatmulConfig, quant_matmul  # noqa: E402
from tilewright.nn import Linear  # noqa: E402

K, ROWS = 32, 3
FUNCTIONS = {None: lambda y: y, "silu": silu, "gelu": gelu, "relu": torch.relu, "tanh": torch.tanh}
MODES = [contextlib.nullcontext] * 5 + [torch.no_grad] * 2 + [torch.inference_mode, torch.enable_grad]
OPERATOR = Matmul(
    MatmulConfig(
        N=K,
        K=K,
        A_dtype="float32",
        W_dtype="int4",
        with_scaling=True,
        group_size=8,
        out_dtype="float32",
        accum_dtype="float32",
    )
)


class Side:
    """One of the two programs: its layer, or what stands for it, and its tensors."""

    def __init__(self, layer: Linear | None, weight: Any, bias: Any) -> None:
        self.layer, self.weight, self.bias = layer, weight, bias
        self.pool: list[Any] = []
        self.codes = None
        if layer is not None:
            held = layer.weight.unpack()
            self.codes = OPERATOR.transform_weight(torch.from_numpy(held.format.decode(held.codes)).to(torch.int8))

    def own_bias(self) -> Any:
        return self.layer.bias if self.layer is not None else self.bias

    def product(self, way: str, x: Any, bias: Any, residual: Any, function: str | None, out: Any) -> Any:
        """A product in one of the ways that the library has; the layer's own bias where `way` is a layer's."""
        if self.layer is None:
            own = {"layer": self.bias, "called": self.bias, "raw": None, "operator": None}
            weight = self.weight.clone() if way == "raw" else self.weight  # what is made of raw tensors is their copy
            found = linear(x, weight, own.get(way, bias))
            if way == "quant_matmul":
                found = FUNCTIONS[function](found) if residual is None else FUNCTIONS[function](found) + residual
            return found if out is None else out.copy_(found)
        if way == "layer":
            return self.layer(x, out)
        if way == "called":
            found = torch.func.functional_call(self.layer, {"scales": self.layer.scales.clone()}, (x,))
        elif way == "linear":
            found = linear(x, self.layer.weight, bias)
        elif way == "raw":
            return OPERATOR(x, self.codes, self.layer.scales, output=out)
        elif way == "operator":
            found = OPERATOR(x, self.layer.weight)
        else:
            return quant_matmul(x, self.layer.weight, bias=bias, residual=residual, function=function, out=out)
        return found if out is None else out.copy_(found)


def random_change(draw: np.random.Generator) -> Callable[[Side], None]:
    """Something that happens to the layer between calls."""
    kind, factor = draw.integers(9), float(draw.choice([0.5, 0.75, 1.25]))
    numbers = draw.standard_normal(K)

    def change(side: Side) -> None:
        layer = side.layer
        if kind == 0:  # an array that is assigned
            if layer is not None:
                layer.scales = layer.scales * factor
            side.weight = side.weight * factor
        elif kind == 1:  # one that is written to
            with torch.no_grad():
                (side.weight if layer is None else layer.scales).mul_(factor)
        elif kind == 2:
            bias = torch.from_numpy(numbers).to(side.weight.dtype)
            if layer is not None:
                layer.bias = bias
            side.bias = bias
        elif kind == 3:
            with torch.no_grad():
                side.own_bias().add_(factor)
        elif kind == 4:
            side.own_bias().requires_grad_(not side.own_bias().requires_grad)
        elif kind == 5 and layer is not None:
            state = io.BytesIO()
            torch.save({name: one.detach() for name, one in layer.state_dict().items()}, state)
            state.seek(0)
            layer.load_state_dict(torch.load(state), assign=True)
        elif kind == 6 and layer is not None:
            side.layer = copy.deepcopy(layer)
        elif kind == 7 and layer is not None:
            side.layer = pickle.loads(pickle.dumps(layer))
        elif kind == 8 and layer is not None:
            layer.to(torch.float64).to(torch.float32)
        if kind >= 5:  # other tensors with the same numbers: gradients of calls before are those of the ones before
            asks = side.own_bias().requires_grad
            if layer is None:
                side.weight, side.bias = side.weight.clone(), side.bias.detach().clone()
            side.own_bias().requires_grad_(asks)

    return change


def random_step(draw: np.random.Generator, size: int) -> Callable[[Side], None]:
    """One line of a program: what it does with the tensors of either side."""
    kind = draw.integers(12)
    first, second, third = (int(one) for one in draw.integers(size, size=3))
    way = str(draw.choice(["layer", "called", "linear", "raw", "operator", "quant_matmul", "quant_matmul"]))
    function = [*FUNCTIONS][draw.integers(len(FUNCTIONS))]
    with_bias, with_residual, into = (bool(draw.random() < part) for part in (0.4, 0.3, 0.35))
    mode = MODES[draw.integers(len(MODES))]
    view = draw.integers(5)

    def step(side: Side) -> None:
        pool = side.pool
        x = pool[first]
        x = (x, x.flip(0), x.mT.contiguous().mT, x[:1].expand(ROWS, K), torch.cat([x, x], 1)[:, K // 2 : K // 2 + K])[
            view
        ]
        with mode():
            if kind < 6:
                bias = pool[third][0] if with_bias else None
                residual = pool[second] if with_residual else None
                found = side.product(way, x, bias, residual, function, pool[third] if into else None)
                if not into:
                    pool[second] = found
            elif kind == 6:
                pool[second] = pool[first] * pool[third]
            elif kind == 7:
                pool[third].mul_(0.5)
            elif kind == 8:
                pool[second] = torch.tanh(pool[first] + pool[third])
            elif kind == 9:
                pool[second] = pool[first].detach()
            elif kind == 10:
                pool[second] = pool[first].clone()
            elif pool[first].grad_fn is None and not pool[first].is_inference():
                pool[first].requires_grad_()

    return step


def gradients(side: Side, at: int) -> list[Any]:
    """The gradients of a sum over one tensor at all tensors that want some."""
    result = side.pool[at]
    if not result.requires_grad:
        return []
    leaves = [one for one in (*side.pool, side.own_bias()) if one.requires_grad and one.grad_fn is None]
    return list(torch.autograd.grad(result.square().sum(), leaves, retain_graph=True, allow_unused=True))


def attempt(action: Callable[[Side], Any], side: Side) -> tuple[Any, Exception | None]:
    try:
        return action(side), None
    except Exception as error:
        return None, error


def check(seed: int, steps: int = 60) -> int:
    """Run a program on both sides; returns how many steps ran."""
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    layer = Linear.from_float(torch.nn.Linear(K, K), "int4", group=8)
    ours = Side(layer, torch.empty(0), None)
    reference = Side(None, layer.dequantize().double(), layer.bias.detach().double())
    for _ in range(4):
        numbers = torch.randn(ROWS, K)
        ours.pool.append(numbers.clone())
        reference.pool.append(numbers.double())
    for number in range(steps):
        roll = draw.random()
        if roll < 0.15:
            action: Callable[[Side], Any] = random_change(draw)
        elif roll < 0.35:
            at = int(draw.integers(4))
            action = lambda side, at=at: gradients(side, at)  # noqa: E731
        else:
            action = random_step(draw, 4)
        (found, error), (expected, other) = (attempt(action, side) for side in (ours, reference))
        where = f"seed {seed}, step {number}: {error!r}, torch {other!r}"
        # Torch refuses to write to inference tensors elsewhere, kernels do: nobody takes gradients of those.
        assert (error is None) == (other is None) or "inference tensor" in str(other), where
        if other is not None:
            return number
        for one, exact in zip((*ours.pool, *(found or ())), (*reference.pool, *(expected or ())), strict=True):
            assert (one is None) == (exact is None), where
            if one is not None:
                assert one.requires_grad == exact.requires_grad and one.is_inference() == exact.is_inference(), where
                scale = max(1.0, float(exact.detach().abs().max()))
                assert float((one.detach().double() - exact.detach()).abs().max()) <= 2e-4 * scale, where
        if max(float(one.detach().abs().max()) for one in reference.pool) > 1e3:
            return number
    return steps


@pytest.mark.parametrize("seed", range(300))
def test_programs(seed: int) -> None:
    check(seed)


def test_programs_run() -> None:
    """Programs do not end at once."""
    assert sum(check(seed) for seed in range(1000, 1012)) > 200


def test_a_result_may_be_written_to() -> None:
    """As ``torch.nn.ReLU(inplace=True)`` does: what operators give is no view, which torch lets nobody write to."""
    layer = Linear.from_float(torch.nn.Linear(K, K), "int4", group=8)
    x = torch.randn(ROWS, K, requires_grad=True)
    torch.nn.Sequential(layer, torch.nn.ReLU(inplace=True))(x).sum().backward()
    slope = (linear(x, layer.dequantize(), layer.bias) > 0).float() @ layer.dequantize()
    torch.testing.assert_close(x.grad, slope, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        found = layer(x)
    assert not found._is_view() and not quant_matmul(torch.randn(ROWS, K), layer.weight)._is_view()


def test_gradients_are_of_the_weight_that_a_call_had() -> None:
    """`functional_call` puts the layer's own arrays back before gradients are asked for; gradients of gradients, too."""
    layer = Linear.from_float(torch.nn.Linear(K, K), "int4", group=8)
    x = torch.randn(ROWS, K, requires_grad=True)
    found = torch.func.functional_call(layer, {"scales": 2 * layer.scales}, (x,))
    (slope,) = torch.autograd.grad(found.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    doubled = 2 * layer.dequantize()
    torch.testing.assert_close(slope, 2 * linear(x, doubled, layer.bias) @ doubled, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second, (2 * torch.ones(ROWS, K) @ doubled.T @ doubled), rtol=1e-4, atol=1e-4)
    found = layer(x)
    with torch.no_grad():
        layer.scales.mul_(2)
    with pytest.raises(WeightIsGone, match="a gradient was asked for of a product whose weight was written to since"):
        found.sum().backward()


def test_kernels_count_what_they_write() -> None:
    """Torch refuses gradients of overwritten numbers, and a raw weight that a kernel has written is packed again."""

    @tilewright.jit
    def double(A: T.Tensor((K, K // 8), "float32")):
        with T.Kernel(1):
            for i, j in T.Parallel(K, K // 8):
                A[i, j] = 2 * A[i, j]

    x, codes = torch.randn(ROWS, K), torch.randint(-8, 8, (K, K), dtype=torch.int8)
    scales = torch.rand(K, K // 8)
    weight, kept = OPERATOR.transform_weight(codes), torch.ones(K, K // 8, requires_grad=True)
    for count in range(4):
        dense = codes * scales.repeat_interleave(8, 1)
        torch.testing.assert_close(OPERATOR(x, weight, scales), linear(x, dense), rtol=1e-4, atol=1e-4)
        product = (kept * scales).sum()
        double(scales)
        assert scales._version == count + 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_numbers_of_a_view_with_the_sign_turned_are_rounded(dtype: str) -> None:
    numbers = torch.randn(K, K).to(getattr(torch, dtype))
    turned, plain = (tilewright.quantize(one, "int4-g8").to_dense() for one in (torch._neg_view(numbers), -numbers))
    np.testing.assert_array_equal(turned, plain)


def test_autocast_leaves_float64() -> None:
    layer = Linear.from_float(torch.nn.Linear(K, K), "int4", group=8)
    x = torch.randn(ROWS, K, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, linear(x, layer.dequantize().double(), layer.bias.double()), rtol=1e-6, atol=1e-6)


def test_autocast_to_another_type_than_before() -> None:
    """A call is known from a context that cast nothing, since activations were of its type."""
    layer, x = Linear.from_float(torch.nn.Linear(K, K), "int4", group=8), torch.randn(ROWS, K, dtype=torch.bfloat16)
    for dtype in [torch.bfloat16] * 4 + [torch.float16, torch.bfloat16, torch.float16]:
        with torch.autocast("cpu", dtype):
            assert layer(x).dtype == dtype
