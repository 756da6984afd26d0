"""Math functions on vectors and one by one: their error against float64, over samples of all floats."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import platform
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from cpu_programs import AVX2, compiled

from tilewright.machine.arch import Arch
from tilewright.targets.cpu.arch import host, runs_here
from tilewright.targets.registry import resolve


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e / (1 + e), 1 / (1 + e))


BOUNDS: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1.1), "exp2": (np.exp2, 1.0), "log": (np.log, 0.9), "log2": (np.log2, 1.1),
    "tanh": (np.tanh, 1.4), "sigmoid": (sigmoid, 2.8), "erf": (np.vectorize(math.erf), 1.5),
    "sqrt": (np.sqrt, 0.5), "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5), "sin": (np.sin, 1.0), "cos": (np.cos, 1.0),
    "floor": (np.floor, 0.0), "ceil": (np.ceil, 0.0), "round": (np.round, 0.0), "trunc": (np.trunc, 0.0),
    "log1p": (np.log1p, 1.5), "exp10": (lambda x: np.power(10.0, x), 1.0),
}  # fmt: skip
"""Reference and largest error in units of the last place, as device/tilewright_math.h states them."""

EDGES = [
    0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1,
    -1,
    88.7,
    88.73,
    -87.3,
    -103.9,
    -104.1,
    128,
    127.99,
    -149,
    -150,
    1e-40,
    1e-45,
]


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Bit patterns at random, and the ranges that matter more densely."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    near = [rng.standard_normal(count) * 5, 1 + rng.standard_normal(count) * 0.01, rng.random(count) * 200 - 100]
    return np.concatenate([np.array(EDGES), *near]).astype(np.float32), bits


def text() -> str:
    params = ", ".join(f"{name}_of: float32[n]" for name in BOUNDS)
    lines = "\n".join(f"                {name}_of[bx * 4096 + i] = {name}(X[bx * 4096 + i])" for name in BOUNDS)
    return f"""
    def f(X: float32[n], {params}, *, n: int32) -> ({", ".join(f"{name}_of" for name in BOUNDS)}):
        with kernel(blocks={{bx: (n + 4095) // 4096}}, threads={{tx: 1, ty: 1, tz: 1}}):
            for i in parallel(4096):
{lines}
    """


@pytest.mark.parametrize("machine", [host(), AVX2], ids=["host", "avx2"])
def test_error_bounds(machine: Arch) -> None:
    if not runs_here(machine):
        pytest.skip("this CPU cannot run that code")
    x = np.concatenate(samples(1 << 16))
    results = compiled(text(), machine)(x)
    with np.errstate(all="ignore"):
        for (name, (reference, bound)), found in zip(BOUNDS.items(), results, strict=True):
            exact = reference(x.astype(np.float64))
            error = _ulps(found, exact)
            worst = int(np.argmax(error))
            assert error[worst] <= bound, (name, x[worst], found[worst], exact[worst], error[worst])


def _ulps(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in units of the last place of the float nearest to the exact value; 0 for equal infinities and NaNs."""
    nearest = exact.astype(np.float32)
    same = (nearest == found) | (np.isnan(nearest) & np.isnan(found))
    unit = np.where(np.abs(exact) < 2.0**-126, 2.0**-149, np.spacing(np.abs(nearest)).astype(np.float64))
    error = np.abs(found.astype(np.float64) - exact) / unit
    return np.where(same & ~np.isfinite(nearest), 0.0, np.nan_to_num(error, nan=np.inf))


UNDERFLOW = 0x08 if platform.machine() in ("aarch64", "arm64") else 0x10
"""``FE_UNDERFLOW``: the processor has made a result that is too small for a normal float."""


def underflows(kernel: Callable[[np.ndarray], object], value: float) -> bool:
    """Whether an operation of a kernel does, on the thread that asks."""
    libm, x = ctypes.CDLL(ctypes.util.find_library("m")), np.full(16384, value, np.float32)
    kernel(x)
    libm.feclearexcept(UNDERFLOW)
    kernel(x)
    return bool(libm.fetestexcept(UNDERFLOW))


@pytest.mark.parametrize("machine", ["native", "avx512", "avx2", "x86_64"])
def test_small_powers_are_made_without_subnormal_results(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked scores, and subnormal powers of e and of 2, are made by operations whose results are normal: the processor's slow
    path would take 3 to 16 times the time.  It notes by itself when it has gone there."""
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "1")  # each thread has notes of its own
    arch = resolve(f"cpu -arch={machine}")[1]
    if not runs_here(arch):
        pytest.skip(f"this machine is no {machine}")
    program = """
    def f(X: float32[16384], Y: float32[16384], Z: float32[16384]) -> (Y, Z):
        with kernel(blocks={bx: 4}, threads={tx: 1, ty: 1, tz: 1}):
            for i in parallel(4096):
                Y[bx * 4096 + i] = POWERS
                Z[bx * 4096 + i] = exp(X[bx * 4096 + i])
    """
    powers = compiled(program.replace("POWERS", "exp2(X[bx * 4096 + i])"), arch)
    for value in (-np.inf, -87.4, -95.3, -103.2, -126.3, -140.7, -148.6, -151.2):
        assert not underflows(powers, value), value
    product = compiled(program.replace("POWERS", "X[bx * 4096 + i] * float32(1.1754944e-38)"), arch)
    assert underflows(product, 0.7)


def test_a_tail_computes_what_a_vector_does() -> None:
    program = """
    def f(X: float32[n], Y: float32[n], *, n: int32) -> Y:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            for i in parallel(64):
                Y[i] = exp(X[i]) + tanh(X[i]) * log2(abs(X[i]))
    """
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    kernel = compiled(program)
    whole = kernel(x)
    for n in (1, 17, 63):
        np.testing.assert_array_equal(kernel(x[:n]), whole[:n])


def test_double_precision() -> None:
    program = """
    def f(X: float64[100], Y: float64[100]) -> Y:
        with kernel(blocks={bx: 1}, threads={tx: 1, ty: 1, tz: 1}):
            for i in parallel(100):
                Y[i] = exp(X[i]) * tanh(X[i]) + sqrt(abs(X[i])) - fma(X[i], X[i], 1.0)
    """
    x = np.random.default_rng(0).standard_normal(100)
    expected = np.exp(x) * np.tanh(x) + np.sqrt(np.abs(x)) - (x * x + 1)
    np.testing.assert_allclose(compiled(program)(x), expected, rtol=1e-13, atol=1e-14)
