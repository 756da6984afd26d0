"""Activations in 8 bits, by token, group and tensor, against the same formula in NumPy, bit for bit."""

import numpy as np
import pytest

import tilewright
from tilewright.kernels import activation_quantization as module
from tilewright.kernels.activation_quantization import LARGEST, quantize_activations
from tilewright.options import override

RNG = np.random.default_rng(11)


def activations(shape, dtype="float32"):
    x = (RNG.standard_normal(shape) * 3).astype(tilewright.dtype(dtype).numpy)
    x[0] = 0
    return x


def expected(x, to, group=None, tensor=False, divisors=None):
    """Codes and scales ``[M, groups]`` by NumPy."""
    wide, most = x.astype(np.float32), np.float32(LARGEST[to])
    if divisors is not None:
        wide = wide / divisors
    M, K = wide.shape
    width = group or K
    wide = np.where(np.isnan(wide), np.inf, wide)
    padded = np.pad(wide, ((0, 0), (0, -K % width))).reshape(M, -1, width)
    largest = np.abs(padded).max(-1)
    if tensor:
        largest = np.full_like(largest, largest.max(initial=0))
    inverse = np.divide(most, largest, out=np.zeros_like(largest), where=largest > module.LEAST)
    with np.errstate(invalid="ignore"):
        scaled = (padded * inverse[..., None]).reshape(M, -1)[:, :K]
    scaled = np.nan_to_num(np.rint(scaled)) if to == "int8" else scaled
    codes = scaled.astype(tilewright.dtype(to).numpy)
    return codes, (largest[:1, :1] if tensor else largest) / most


def check(way, x, to, group=None, tensor=False, by_group=False, divisors=None):
    meant, scale = expected(x, to, group, tensor, divisors)
    codes = np.full(x.shape, 3, tilewright.dtype(to).numpy)
    scales = np.full(scale.T.shape if by_group else scale.shape, 7, np.float32)
    way(x, *([] if divisors is None else [divisors]), codes, scales)
    assert np.array_equal(codes.view(np.uint8), meant.view(np.uint8))
    assert np.array_equal(scales.T if by_group else scales, scale)


@pytest.mark.parametrize("shape", [(1, 1), (3, 15), (2, 300), (5, 1023), (4, 4096), (2, 5000)], ids=str)
@pytest.mark.parametrize("to", LARGEST)
def test_tokens(shape, to):
    check(on_cpu(shape[1], "float32", to), activations(shape), to)


def on_cpu(*arguments, **options):
    with override(target="cpu"):
        return quantize_activations(*arguments, **options)


def on_gpu(*arguments, arch="sm_90a", **options):
    with override(target=f"cuda -arch={arch}"):
        return quantize_activations(*arguments, **options)


@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("shape, group", [((5, 256), 64), ((3, 300), 128), ((2, 6000), 32)], ids=str)
def test_groups(shape, group, by_group):
    kernel = on_cpu(shape[1], "bfloat16", "int8", group, by_group=by_group)
    check(kernel, activations(shape, "bfloat16"), "int8", group, by_group=by_group)


@pytest.mark.parametrize("shape", [(1, 7), (40, 96), (3, 5000)], ids=str)
def test_a_tensor(shape):
    check(on_cpu(shape[1], "float32", "float8_e4m3fn", tensor=True), activations(shape), "float8_e4m3fn", tensor=True)


def test_divisors():
    divisors = RNG.uniform(0.5, 2, 300).astype(np.float32)
    x = activations((4, 300))
    check(on_cpu(300, "float32", "int8", divisors=True), x, "int8", divisors=divisors)


def test_tokens_that_no_block_holds(monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 64)
    monkeypatch.setattr(module, "SHARE", 48)
    for kernel in (on_cpu(200, "float32", "int8"), on_gpu(200, "float32", "int8")):
        way = kernel if kernel.target.name == "cpu" else kernel.emulate
        check(way, activations((3, 200)), "int8")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("to, options", [("int8", {}), ("float8_e4m3fn", {"group": 32}), ("int8", {"tensor": True})])
def test_what_is_no_number_shows_in_the_scale(to, options, value):
    x = activations((4, 96))
    x[2, 41] = value
    for kernel in (on_cpu(96, "float32", to, **options), on_gpu(96, "float32", to, **options)):
        check(kernel if kernel.target.name == "cpu" else kernel.emulate, x, to, **options)


def test_magnitudes_whose_inverse_is_no_number_are_zero():
    x = np.full((1, 8), 1e-40, np.float32)
    codes, scales = np.full((1, 8), 3, np.int8), np.full((1, 1), 7, np.float32)
    on_cpu(8, "float32", "int8")(x, codes, scales)
    assert not codes.any()
    assert np.isfinite(scales).all()


@pytest.mark.parametrize(
    "dtype, to, options",
    [
        ("bfloat16", "int8", {}),
        ("float32", "float8_e4m3fn", {}),
        ("float16", "float8_e4m3fn", {"group": 64, "by_group": True}),
        ("bfloat16", "int8", {"group": 80}),
        ("float16", "float8_e5m2", {"tensor": True}),
    ],
)
def test_on_gpus(dtype, to, options):
    x = activations((5, 192), dtype)
    kernel = on_gpu(192, dtype, to, **options)
    for way in (kernel.interpret, kernel.emulate):
        check(way, x, to, **options)


def test_short_tokens_share_a_block_on_gpus():
    kernel = on_gpu(24, "float16", "int8", divisors=True, arch="sm_80")
    divisors = RNG.uniform(0.5, 2, 24).astype(np.float32)
    check(kernel.emulate, activations((50, 24), "float16"), "int8", divisors=divisors)
