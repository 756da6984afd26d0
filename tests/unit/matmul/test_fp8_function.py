"""`fp8_scaled_matmul` of arrays and tensors: every kind of scale, both orders, the kernels of several machines, against float64."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from busy import PATIENCE

import tilewright
from tilewright import fp8_scaled_matmul
from tilewright.errors import Unsupported, WrongArgumentDType, WrongArgumentKind, WrongArgumentShape
from tilewright.ir.dtypes import ALL
from tilewright.nn import Linear
from tilewright.quant import QuantizedWeight

E4M3, E5M2, FNUZ = "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"
TARGETS = [None, "cuda -arch=sm_80", "cuda -arch=sm_90a -cores=4"]


def operands(
    M: int, N: int, K: int, kinds: str, transpose_B: bool, types: tuple[str, str] = (E4M3, E4M3), group: int = 32, each: int = 1
) -> tuple[list[np.ndarray], np.ndarray]:  # fmt: skip
    """The arguments, and the exact product."""
    rng = np.random.default_rng(M + N * K)
    a, b = (rng.standard_normal((lines, K)).astype(ALL[name].numpy) for lines, name in zip((M, N), types))
    arguments: list[np.ndarray] = []
    wide = []
    for kind, lines, of_one, values in ((kinds[0], M, 1, a), (kinds[1], N, each, b)):
        shape = {"t": (1,), "l": (lines, 1), "g": (-(-lines // of_one), -(-K // group))}[kind]
        scale = (rng.random(shape) + 0.5).astype(np.float32)
        spread = (
            np.repeat(np.repeat(scale, of_one, 0)[:lines], group, 1)[:, :K] if kind == "g" else scale.reshape(-1, 1)
        )
        arguments += [values, scale.reshape(-1) if kind == "l" and values is b else scale]
        wide.append(values.astype(np.float64) * spread)
    if not transpose_B:
        arguments[2] = np.ascontiguousarray(arguments[2].T)
    return arguments, wide[0] @ wide[1].T


def interpreted(arguments: list[np.ndarray], group: int, each: int, transpose_B: bool) -> np.ndarray:
    """The product of operands with their scales, in float64."""
    a, of_a, b, of_b = (one.astype(np.float64) for one in arguments)
    wide = []
    for values, scale, run in ((a, of_a, 1), (b if transpose_B else b.T, of_b, each)):
        if scale.ndim == 2 and scale.shape[1] > 1:
            scale = np.repeat(np.repeat(scale, run, 0)[: len(values)], group, 1)
        wide.append(values * (scale if scale.ndim == 2 else scale.reshape(-1, 1)))
    return wide[0] @ wide[1].T


CASES: list[tuple[tuple[int, int, int], str, bool, dict[str, Any]]] = [
    ((33, 47, 96), "tt", True, {}), ((70, 80, 144), "ll", False, {}), ((1, 48, 96), "lt", False, {}), ((1, 72, 288), "tl", True, {}),
    ((70, 65, 192), "gg", True, {}), ((70, 65, 128), "gl", False, {}), ((5, 200, 256), "gg", True, {"group": 128, "each": 128}),
    ((3, 17, 19), "ll", False, {}), ((9, 33, 64), "lg", True, {}), ((9, 200, 64), "tg", False, {"each": 100}), ((9, 72, 64), "tg", True, {"each": 24}), ((1, 1, 1), "tt", False, {}), ((0, 8, 32), "tl", True, {}),
    ((4, 0, 32), "tt", False, {}), ((4, 8, 0), "tt", False, {}),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("options", [{}, {"exact": True}, {"fast": True}], ids=str)
@pytest.mark.parametrize(("size", "kinds", "transpose_B", "form"), CASES, ids=str)
def test_products(size, kinds, transpose_B, form, options, target):
    arguments, exact = operands(*size, kinds, transpose_B, **form)
    found = fp8_scaled_matmul(*arguments, transpose_B=transpose_B, block_N=form.get("each"), target=target, **options)
    assert found.dtype == np.float32 and found.shape == exact.shape
    hopper = target is not None and "sm_90a" in target and "exact" not in options
    if not hopper:
        assert (np.abs(found - exact) <= 2e-6 * np.abs(exact).max(initial=0)).all()
        return
    # The matrix unit's sums have 14 bits: of the largest partial sum, which is no larger than what follows.
    arguments[0], arguments[2] = np.abs(arguments[0].astype(np.float32)), np.abs(arguments[2].astype(np.float32))
    sizes = interpreted(arguments, form.get("group", 32), form.get("each", 1), transpose_B)
    assert (np.abs(found - exact) <= (2.0**-11 if "fast" in options else 2.0**-12) * sizes).all()


@pytest.mark.parametrize("types", [(E5M2, E4M3), (FNUZ, FNUZ), (E4M3, "float8_e5m2fnuz")], ids=" by ".join)
@pytest.mark.parametrize("target", TARGETS)
def test_types(types, target):
    arguments, exact = operands(20, 32, 128, "ll", True, types)
    found = fp8_scaled_matmul(*arguments, transpose_B=True, target=target, out_dtype="bfloat16")
    assert np.abs(found.astype(np.float64) - exact).max() <= (2.0**-8 + 4e-4) * np.abs(exact).max()


def tensor(array: np.ndarray) -> torch.Tensor:
    kind = getattr(torch, array.dtype.name)
    return (
        torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(kind)
        if array.dtype.itemsize == 1
        else torch.from_numpy(array)
    )


def test_tensors_of_more_dimensions_and_the_place_where_people_look():
    arguments, exact = operands(12, 40, 64, "ll", True)
    a, of_a, b, of_b = map(tensor, arguments)
    found = tilewright.ops.fp8_scaled_matmul(
        a.reshape(3, 4, 64), of_a.reshape(3, 4, 1), b, of_b, transpose_B=True, out_dtype=torch.float16
    )
    assert found.dtype == torch.float16 and found.shape == (3, 4, 40)
    assert np.abs(found.reshape(12, 40).double().numpy() - exact).max() <= 1e-3 * np.abs(exact).max()


def test_negated_views_of_torch_are_their_numbers():
    arguments, _ = operands(3, 8, 64, "ll", True)
    b, of_b = map(tensor, arguments[2:])
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    found, expected = (fp8_scaled_matmul(one, None, b, of_b, transpose_B=True) for one in (torch._neg_view(x), -x))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("torches", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_scales_that_are_powers_of_two(grouped, torches):
    """e8m0 was said to be taken, and ended as a type that the kernel does not have."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((lines, 96)).astype(ml_dtypes.float8_e4m3fn) for lines in (3, 5))
    shapes = ((3, 3), (5, 3)) if grouped else ((3, 1), (5, 1))
    of_a, of_b = (np.exp2(random.integers(-3, 4, shape)).astype(ml_dtypes.float8_e8m0fnu) for shape in shapes)
    each = 96 // shapes[0][1]
    wide = [codes.astype(float) * np.repeat(scale.astype(float), each, 1) for codes, scale in ((a, of_a), (b, of_b))]
    given = [a, of_a, b, of_b]
    if torches:
        kinds = (torch.float8_e4m3fn, torch.float8_e8m0fnu) * 2
        given = [torch.from_numpy(one.view(np.uint8)).view(kind) for one, kind in zip(given, kinds)]
    found = tilewright.fp8_scaled_matmul(*given, transpose_B=True, block_N=1 if grouped else None)
    assert np.array_equal(np.asarray(found), wide[0] @ wide[1].T)


@pytest.mark.parametrize("kinds, form", [("ll", {}), ("lt", {}), ("lg", {"group": 32, "each": 8})], ids=str)
@pytest.mark.parametrize("transpose_B", [True, False])
def test_activations_that_are_quantised_and_their_gradient(kinds, form, transpose_B):
    arguments, _ = operands(6, 40, 64, kinds, transpose_B, **form)
    b, of_b = map(tensor, arguments[2:])
    x = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16, requires_grad=True)
    y = fp8_scaled_matmul(x, None, b, of_b, transpose_B=transpose_B, block_N=form.get("each"))
    wide = (b if transpose_B else b.T).double()
    spread = of_b.double().reshape(-1, of_b.shape[-1] if kinds[1] == "g" else 1)
    if kinds[1] == "g":
        spread = spread.repeat_interleave(8, 0)[:40].repeat_interleave(32, 1)
    weight = wide * spread
    expected = x.detach().double() @ weight.T
    assert (y - expected).abs().max() <= 0.05 * expected.abs().max()  # three bits of mantissa
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    y.backward(grad)
    exact = grad.double() @ weight
    assert x.grad.dtype == torch.bfloat16 and (x.grad - exact).abs().max() <= 2.0**-7 * exact.abs().max()


@pytest.mark.proof
@pytest.mark.parametrize("kinds, form", [("ll", {}), ("gg", {"group": 128, "each": 128})], ids=str)
def test_compiled_by_torch(kinds, form):
    """As one operator: the whole function in one graph, for any number of rows, with the gradient of what is quantised."""
    (a, of_a, b, of_b), _ = operands(5, 130, 256, kinds, True, **form)
    a, of_a, b, of_b = tensor(a), tensor(of_a), tensor(b), tensor(of_b)

    def twice(a, of_a, b, of_b):
        return tilewright.fp8_scaled_matmul(a, of_a, b, of_b, transpose_B=True, out_dtype="bfloat16") * 2

    compiled = torch.compile(twice, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (5, 2, 1):
        given = a[:rows], of_a[:rows], b, of_b
        assert torch.equal(compiled(*given), twice(*given))
    x = torch.randn(2, 3, 256, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found = []
    for function in (compiled, twice):
        y = function(x, None, b, of_b)
        y.float().sum().backward()
        found.append((y.detach(), x.grad))
        x.grad = None
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    checks = "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
    arguments = x, None, b, of_b, True, None, torch.float32, False, False
    torch.library.opcheck(torch.ops.tilewright.fp8_scaled_matmul, arguments, test_utils=checks)


@pytest.mark.parametrize("block", [(1, 256), (128, 128)], ids=["channels", "blocks"])
def test_a_layer_with_activations_of_8_bits_is_this_product(block):
    """Rows are quantised alike, with a scale each, and sums are those of the same numbers: of checkpoints with 128 x 128 blocks too."""
    draw = np.random.default_rng(3)
    codes = draw.standard_normal((200, 256)).astype(ALL[E4M3].numpy)
    scales = draw.uniform(0.5, 2, (-(-200 // block[0]), 256 // block[1])).astype(np.float32)
    weight = QuantizedWeight(codes.view(np.uint8), "e4m3", scales=scales, block=block)
    layer = Linear.from_quantized(weight, activations="e4m3")
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(0))
    of_b = tensor(scales) if block[0] > 1 else tensor(scales).reshape(-1)
    expected = fp8_scaled_matmul(x, None, tensor(codes), of_b, transpose_B=True, exact=True)
    found = layer(x)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.proof
def test_a_compiled_function_may_be_the_first_that_asks_for_the_product():
    program = """
import torch, tilewright
e4m3 = torch.float8_e4m3fn
f = torch.compile(lambda a, b, s: tilewright.fp8_scaled_matmul(a, s, b, s, transpose_B=True), backend="eager", fullgraph=True)
print(f(torch.ones(2, 32).to(e4m3), torch.ones(3, 32).to(e4m3), torch.ones(1)).tolist())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert found.stdout.strip() == str([[32.0] * 3] * 2), found.stderr


def test_mistakes_are_named():
    (a, of_a, b, of_b), _ = operands(4, 8, 64, "ll", True)
    with pytest.raises(WrongArgumentShape, match=r"b has shape \[8, 64\], but a has K = 64"):
        fp8_scaled_matmul(a, of_a, b, of_b)
    with pytest.raises(WrongArgumentShape, match=r"b_scale has shape \[7\], which is one number, 8 of them"):
        fp8_scaled_matmul(a, of_a, b, of_b[:7], transpose_B=True)
    with pytest.raises(WrongArgumentDType, match="a is float16, expected an 8-bit float"):
        fp8_scaled_matmul(a.astype(np.float16), of_a, b, of_b, transpose_B=True)
    with pytest.raises(WrongArgumentDType, match="a_scale is int32"):
        fp8_scaled_matmul(a, of_a.astype(np.int32), b, of_b, transpose_B=True)
    with pytest.raises(WrongArgumentDType, match="out_dtype is int8"):
        fp8_scaled_matmul(a, of_a, b, of_b, transpose_B=True, out_dtype="int8")
    with pytest.raises(WrongArgumentShape, match="a has no dimensions"):
        fp8_scaled_matmul(tensor(a)[0, 0], tensor(of_a)[0], tensor(b), tensor(of_b), transpose_B=True)
    with pytest.raises(WrongArgumentKind, match="the elements of a are a"):
        fp8_scaled_matmul(torch.ones(4, 64).to_sparse(), None, tensor(b), tensor(of_b), transpose_B=True)
    with pytest.raises(Unsupported, match="exact=True and fast=True together are not supported"):
        fp8_scaled_matmul(a, of_a, b, of_b, transpose_B=True, exact=True, fast=True)
    with pytest.raises(WrongArgumentKind, match="b_scale is None"):
        fp8_scaled_matmul(a, of_a, b, None, transpose_B=True)
    with pytest.raises(WrongArgumentKind, match="a is float8_e4m3fn and has no scale"):
        fp8_scaled_matmul(a, None, b, of_b, transpose_B=True)
    groups = np.ones((4, 2), np.float32), np.ones((8, 4), np.float32)
    with pytest.raises(Unsupported, match="groups of several sizes"):
        fp8_scaled_matmul(a, groups[0], b, groups[1], transpose_B=True)
