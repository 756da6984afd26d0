"""Gradients of products of tensors, of raw weights and packed ones: against those of torch's own functions, in float64."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from tilewright.errors import Unsupported
from tilewright.matmul import Matmul, MatmulConfig, PackedWeight, quant_matmul
from tilewright.quant import quantize

N, K, M = 19, 40, 5
RNG = torch.Generator().manual_seed(0)


def randn(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, generator=RNG).requires_grad_(grad)


@pytest.mark.parametrize("layout", ["nt", "tn"])
@pytest.mark.parametrize("function", [None, "gelu_tanh"])
def test_raw_weights(layout: str, function: str | None) -> None:
    """The weight may be gone when the gradient is asked for."""
    config = MatmulConfig(
        N=N, K=K, A_dtype="float32", W_dtype="uint4", out_dtype="float32", layout=layout, with_scaling=True, with_zeros=True,
        group_size=16, with_bias=True, with_residual=True, function=function,
    )  # fmt: skip
    operator = Matmul(config, target="cpu")
    codes = torch.randint(0, 16, (N, K), generator=RNG)
    scale, zeros = randn(N, 3).abs() + 0.5, randn(N, 3) * 4
    A, bias, residual = (
        randn(*((K, M) if layout[0] == "t" else (M, K)), grad=True),
        randn(N, grad=True),
        randn(M, N, grad=True),
    )
    packed = operator.transform_weight(codes.T if layout[1] == "n" else codes)
    found = operator(A, packed, scale, zeros, bias, residual=residual)
    del packed
    gc.collect()
    spread = lambda groups: groups.double().repeat_interleave(16, 1)[:, :K]  # noqa: E731
    dense = (codes.double() - spread(zeros)) * spread(scale)
    wide = [tensor.detach().double().requires_grad_() for tensor in (A, bias, residual)]
    sums = (wide[0].T if layout[0] == "t" else wide[0]) @ dense.T + wide[1]
    expected = (sums if function is None else torch.nn.functional.gelu(sums, approximate="tanh")) + wide[2]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-3)
    weights = randn(M, N)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for tensor, other in zip((A, bias, residual), wide):
        torch.testing.assert_close(tensor.grad.double(), other.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("scales", ["tensor", "token", "group"])
def test_scales_of_activations_are_in_the_gradient(scales: str, compiled: bool) -> None:
    packed = PackedWeight.pack(quantize(np.random.default_rng(0).standard_normal((N, K)), "int4", group=8)).to("cpu")
    shape: Any = {"tensor": (1,), "token": (M, 1), "group": (M, 3)}[scales]
    x, factors = randn(M, K, grad=True), randn(*shape).abs()

    def product(x: torch.Tensor) -> torch.Tensor:
        group = 16 if scales == "group" else None
        return quant_matmul(x, packed, activation_scales=factors, activation_group=group)

    run = torch.compile(product, backend="aot_eager", fullgraph=True) if compiled else product
    weights = randn(M, N)
    (run(x) * weights).sum().backward()
    spread = factors.repeat_interleave(16, 1)[:, :K] if scales == "group" else factors
    expected = (weights.double() @ torch.from_numpy(packed.to_dense())) * spread.double()
    torch.testing.assert_close(x.grad.double(), expected, rtol=1e-5, atol=1e-4)


def test_groups_of_activations_are_those_that_are_said() -> None:
    """Four scales for 100 columns are of 25, unless another number is said; where nothing comes out even they must be."""
    packed = PackedWeight.pack(quantize(np.random.default_rng(0).standard_normal((N, 100)), "int4", group=None))
    x, factors = np.random.default_rng(1).standard_normal((M, 100)).astype(np.float32), np.float32([[1, 2, 4, 8]] * M)
    for group in (25, 30, 32):
        spread = np.repeat(factors, group, 1)[:, :100]
        found = quant_matmul(x, packed, activation_scales=factors, activation_group=None if group == 25 else group)
        np.testing.assert_allclose(found, (x * spread).astype(float) @ packed.to_dense().T, atol=1e-3)
    with pytest.raises(
        Exception, match=r"100 elements in groups of 16\n.*with activation_group where that does not come"
    ):
        quant_matmul(x, packed, activation_scales=factors, activation_group=16)
    sevens = PackedWeight.pack(quantize(np.random.default_rng(0).standard_normal((N, 26)), "int4", group=7))
    found = quant_matmul(x[:, :26], sevens, activation_scales=factors)
    np.testing.assert_allclose(
        found, (x[:, :26] * np.repeat(factors, 7, 1)[:, :26]).astype(float) @ sevens.to_dense().T, atol=1e-3
    )
    config = MatmulConfig(N=N, K=100, A_dtype="float32", W_dtype="int4", out_dtype="float32", a_scale=30)
    operator = Matmul(config, target="cpu")
    weight = torch.randint(-8, 8, (N, 100), generator=RNG)
    found = operator(torch.from_numpy(x), operator.transform_weight(weight), a_scale=torch.from_numpy(factors))
    expected = (x * np.repeat(factors, 30, 1)[:, :100]) @ weight.numpy().astype(np.float64).T
    np.testing.assert_allclose(found, expected, atol=1e-2)


def plain() -> tuple[Matmul, torch.Tensor, torch.Tensor]:
    """An operator, its raw weight, and the weight's numbers."""
    operator = Matmul(MatmulConfig(N=N, K=K, A_dtype="float32", W_dtype="int4", out_dtype="float32"), target="cpu")
    weight = torch.randint(-8, 8, (N, K), generator=RNG)
    return operator, operator.transform_weight(weight), weight.float()


def test_an_operator_in_compiled_mapped_and_pickled_programs() -> None:
    operator, raw, dense = plain()
    x, weights = randn(M, K, grad=True), randn(M, N)
    compiled = torch.compile(lambda x: (operator(x, raw) * weights).sum(), backend="aot_eager")
    compiled(x).backward()
    torch.testing.assert_close(x.grad, weights @ dense, rtol=1e-5, atol=1e-4)
    x = x.detach()
    torch.testing.assert_close(torch.vmap(lambda x: operator(x, raw))(x), x @ dense.T, rtol=1e-5, atol=1e-3)
    copied = pickle.loads(pickle.dumps(operator))
    assert torch.equal(copied(x, raw), operator(x, raw))


def test_gradients_by_transforms_and_forwards_are_refused() -> None:
    """An operator without a rule for tangents gives 0 for them."""
    operator, raw, dense = plain()
    packed = PackedWeight.pack(quantize(dense.numpy(), "int4", group=None)).to("cpu")
    x = randn(M, K)
    for product in (lambda x: operator(x, raw), lambda x: quant_matmul(x, packed)):
        for transform in (lambda: torch.func.jvp(product, (x,), (x,)), lambda: torch.func.jacrev(product)(x)):  # noqa: B023
            with pytest.raises(Unsupported, match=r"torch\.func\.grad, vjp and jvp of a product are not supported"):
                transform()
        with (
            torch.autograd.forward_ad.dual_level(),
            pytest.raises(Unsupported, match="forward-mode gradients of a product are not supported"),
        ):
            product(torch.autograd.forward_ad.make_dual(x, x))
