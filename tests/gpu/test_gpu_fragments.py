"""Hopper's tier for 16-bit activations on the GPU: weights of every kind, every number of rows, activations in any place."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "kernels"))
from test_hopper_quant_wgmma import LIFTED, weights_alone  # noqa: E402

import tilewright  # noqa: E402
from tilewright.matmul import PackedWeight, quant_matmul  # noqa: E402
from tilewright.quant import QuantizedWeight, quantize  # noqa: E402
from tilewright.targets.cuda.arch import detect  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(detect() is None, reason="no GPU here")]

N, K = 300, 1000
RNG = np.random.default_rng(0)


def made(name, **options):
    return quantize(np.random.default_rng(1).standard_normal((N, K)) * 0.05, name, **options)


def with_zeros(name, mode, fraction=0.0, group=128):
    codes = made(name, group=None, zeros="group" if name.startswith("uint") else "none").codes
    groups = (N, -(-K // group))
    scales = (RNG.random(groups) * 0.05 + 0.01).astype(np.float16)
    zeros = RNG.integers(0, 4, groups).astype(np.float32) + np.float32(fraction)
    points = zeros * scales.astype(np.float32) if mode == "rescale" else zeros
    return QuantizedWeight(codes, name, scales, points, mode, (1, group))


def ordered(name, group, **options):
    of = made(name, group=group, scale_dtype="float16", **options)
    order = RNG.permutation(np.arange(K) // group).astype(np.int32)
    return QuantizedWeight(of.codes, of.format, of.scales, of.zeros, block=of.block, g_idx=order)


WEIGHTS = {
    "int4 g128": (lambda: made("int4", group=128, scale_dtype="float16"), "float16"),
    "int4 g32": (lambda: made("int4", group=32, scale_dtype="bfloat16"), "bfloat16"),
    "int4 g64 float32 scales": (lambda: made("int4", group=64), "float16"),
    "int4 channels": (lambda: made("int4", group=None), "bfloat16"),
    "int8": (lambda: made("int8", group=None), "bfloat16"),
    "e4m3 blocks": (lambda: made("fp8_block"), "bfloat16"),
    "e5m2": (lambda: made("e5m2", group=128), "float16"),
    "mxfp4": (lambda: made("mxfp4"), "bfloat16"),
    "mxfp4 half": (lambda: made("mxfp4"), "float16"),
    "mxfp6": (lambda: made("mxfp6_e2m3"), "bfloat16"),
    "nvfp4": (lambda: made("nvfp4"), "float16"),
    "nvfp4 bfloat16": (lambda: made("nvfp4"), "bfloat16"),
    "nf4": (lambda: made("nf4", group=64), "float16"),
    "nf4 bfloat16": (lambda: made("nf4", group=64), "bfloat16"),
    "int1": (lambda: made("int1", group=128), "float16"),
    "int1 bfloat16 g32": (lambda: made("int1", group=32), "bfloat16"),
    "uint1": (lambda: with_zeros("uint1", "original", 0.5), "float16"),
    "int2": (lambda: made("int2", group=128, scale_dtype="float16"), "float16"),
    "int3": (lambda: made("int3", group=64), "float16"),
    "uint5 zeros": (lambda: made("uint5", group=128, zeros="group"), "float16"),
    "int6": (lambda: made("int6", group=128), "bfloat16"),
    "zeros": (lambda: with_zeros("uint4", "original"), "float16"),
    "zeros of signed codes": (lambda: with_zeros("int4", "original", group=64), "bfloat16"),
    "fractional zeros": (lambda: with_zeros("uint4", "original", 0.25), "float16"),
    "rescaled zeros": (lambda: with_zeros("uint4", "rescale"), "float16"),
    "rescaled zeros of signed codes": (lambda: with_zeros("int8", "rescale"), "float16"),
    "act-order": (lambda: ordered("uint4", 128, zeros="group"), "float16"),
    "act-order int2": (lambda: ordered("int2", 64), "bfloat16"),
    "divisors": (lambda: made("int8", group=None, divisors=RNG.uniform(0.5, 4.0, K)), "float16"),
}
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.fixture(scope="module", params=WEIGHTS)
def packed(request):
    make, activations = WEIGHTS[request.param]
    weight = make()
    dense = torch.from_numpy(weight.to_dense()).cuda()
    less = 0.0
    if weight.zeros is not None:
        plain = QuantizedWeight(weight.codes, weight.format, weight.scales, block=weight.block, g_idx=weight.g_idx)
        less = dense - torch.from_numpy(plain.to_dense()).cuda()
    size = dense.abs() + 2 * abs(less)
    return PackedWeight.pack(weight, "cuda"), activations, dense, size


def holds(found, x, packed):
    """What a code stands for, its scale and their product are rounded to the operand's type; sums are float32."""
    _, activations, dense, size = packed
    exact = x.double() @ dense.T
    bound = (x.double().abs() @ size.T) * (3 * UNIT[activations] + K * 2.0**-15)
    assert ((found.double() - exact).abs() <= bound).all()
    # Errors are random: in the mean they are far below the bound.
    error, scale = (found.double() - exact).square().mean().sqrt(), exact.square().mean().sqrt()
    assert error <= 4 * UNIT[activations] * scale


@pytest.mark.parametrize("rows", [1, 9, 20, 40, 100, 300])
def test_weights_of_every_kind(packed, rows):
    weight, activations, *_ = packed
    torch.manual_seed(rows)
    x = torch.randn(rows, K, device="cuda", dtype=getattr(torch, activations))
    out = torch.full((rows, N), torch.nan, device="cuda", dtype=torch.float32)
    prepared = quant_matmul(x, weight, out=out)
    holds(prepared, x, packed)
    assert all("general" not in one.tier for one in weight.prepared.values())


@pytest.mark.parametrize("name", ["int4 g128", "mxfp4", "act-order"])
def test_every_number_of_rows(name):
    make, activations = WEIGHTS[name]
    weight = PackedWeight.pack(make(), "cuda")
    dense = torch.from_numpy(weight.to_dense()).cuda()
    x = torch.randn(300, K, device="cuda", dtype=getattr(torch, activations))
    exact, size = x.double() @ dense.T, x.double().abs() @ dense.abs().T
    for rows in range(1, 301):
        out = torch.full((rows + 1, N), torch.nan, device="cuda", dtype=x.dtype)
        quant_matmul(x[:rows], weight, out=out[:rows])
        assert ((out[:rows].double() - exact[:rows]).abs() <= 8 * UNIT[activations] * size[:rows]).all(), rows
        assert out[rows].isnan().all()


def test_activations_in_any_place():
    weight = PackedWeight.pack(made("int4", group=128, scale_dtype="float16"), "cuda")
    for rows in (3, 50):
        x = torch.randn(rows, K, device="cuda", dtype=torch.float16)
        expected = quant_matmul(x, weight)
        shifted = torch.empty(rows * K + 1, device="cuda", dtype=torch.float16)[1:].view(rows, K).copy_(x)
        wide = torch.randn(rows, 2 * K, device="cuda", dtype=torch.float16)
        wide[:, ::2] = x
        for other in (shifted, wide[:, ::2], x.T.contiguous().T):
            assert torch.equal(quant_matmul(other, weight), expected)


@pytest.mark.parametrize("rows", [3, 20, 100, 300])
@pytest.mark.parametrize("out", ["float16", "float32", "bfloat16"])
def test_epilogues(rows, out):
    weight = PackedWeight.pack(made("nvfp4"), "cuda")
    dtype = getattr(torch, out)
    x = torch.randn(rows, K, device="cuda", dtype=torch.float16)
    bias, residual = torch.randn(N, device="cuda").half(), torch.randn(rows, N, device="cuda").to(dtype)
    found = quant_matmul(x, weight, bias=bias, function="gelu", residual=residual, out_dtype=out)
    sums = x.double() @ torch.from_numpy(weight.to_dense()).cuda().T + bias.double()
    exact = torch.nn.functional.gelu(sums) + residual.double()
    assert ((found.double() - exact).abs() <= 2.0**-7 * (exact.abs() + 1)).all()
    assert found.dtype == dtype


@pytest.mark.skipif(detect() is None or not detect().has("wgmma"), reason="for Hopper")
@pytest.mark.parametrize(("bits", "operand"), LIFTED)
def test_codes_scaled_by_one_operation_are_rounded_once(bits, operand):
    program, words, a, expected = weights_alone(bits, operand)
    kernel = tilewright.compile(program, target="cuda -arch=sm_90a")
    dtype = getattr(torch, operand)
    moved = torch.from_numpy(a.astype(np.float32)).to("cuda", dtype)
    c = torch.empty(expected.shape, dtype=dtype, device="cuda")
    kernel(torch.from_numpy(words.view(np.int32)).cuda().view(torch.uint32), moved, c)
    np.testing.assert_array_equal(c.float().cpu().numpy(), expected.astype(np.float32))
