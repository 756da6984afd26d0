"""Small floats on every target: every code to float32, and float32 to the nearest code, at every number, middle and edge."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.errors import MissingCapability
from tilewright.interpreter import interpret
from tilewright.ir.dtypes import pack

pytestmark = pytest.mark.sampled(10)

TYPES = [
    "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float16",
    "bfloat16",
]  # fmt: skip
TARGETS = [
    "cpu",
    "cuda -arch=sm_80",
    "cuda -arch=sm_90a",
    "hip -arch=gfx942",
    "hip -arch=gfx1100",
    "metal -arch=apple7",
]
LACKING = {
    (name, target) for name in ("float8_e4m3fnuz", "float8_e5m2fnuz") for target in TARGETS
    if target.startswith(("cuda", "metal"))
}  # fmt: skip
"""Types that a device header has no words for yet: refused with a sentence."""


def codes(name: str) -> np.ndarray:
    """Every code of a type; of 16 bits a sample with all exponents."""
    record = tilewright.dtype(name)
    if record.bits == 16:
        return np.arange(0, 1 << 16, 37).astype(np.uint16).view(record.numpy)
    return np.arange(1 << record.bits).astype(np.uint8).view(record.numpy)


def numbers(name: str) -> np.ndarray:
    """Numbers of a type, what lies in the middle between them, their neighbours in float32, and the edges of float32."""
    exact = np.unique(codes(name).astype(np.float64))
    exact = exact[np.isfinite(exact)]
    largest = exact.max()
    middles = np.concatenate([(exact[1:] + exact[:-1]) / 2, [largest * 1.0625, largest * 1.25, largest * 4]])
    with np.errstate(over="ignore"):
        near = np.concatenate([exact, middles]).astype(np.float32)
    near = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
    edges = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, 1.1754944e-38], np.float32
    )
    return np.concatenate([near, -near, edges])


def bits(array: np.ndarray) -> np.ndarray:
    """What tells numbers apart: their bits, those of every NaN alike."""
    found = array.view(f"u{array.dtype.itemsize}").astype(np.int64)
    return np.where(array.astype(np.float64) != array.astype(np.float64), -1, found)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TYPES)
def test_every_conversion(name: str, target: str) -> None:
    """float32 to e8m0 once gave NaN for -0, for what is too large, and another power of two at the least ones."""
    known, given = codes(name), numbers(name)
    n, m = len(known), len(given)
    record = tilewright.dtype(name)

    @T.prim_func
    def program(
        C: T.Tensor((n,), name),
        F: T.Tensor((n,), "float32"),
        X: T.Tensor((m,), "float32"),
        Y: T.Tensor((m,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(n):
                F[i] = T.cast(C[i], "float32")
            for i in T.Parallel(m):
                Y[i] = T.cast(T.cast(X[i], name), "float32")

    packed = pack(known, record) if record.is_packed else known
    if (name, target) in LACKING:
        with pytest.raises(MissingCapability, match=f"no numbers of type {name}"):
            tilewright.compile(program, target=target)
        return
    results = []
    kernel = tilewright.compile(program, target=target)
    for way in (lambda *a: interpret(program.function, list(a)), kernel if target == "cpu" else kernel.emulate):
        first, second = np.full(n, 7, np.float32), np.full(m, 7, np.float32)
        way(packed.copy(), first, given.copy(), second)
        results.append((first, second))
    (exact, rounded), (decoded, encoded) = results
    np.testing.assert_array_equal(bits(decoded), bits(exact))
    wrong = np.flatnonzero(bits(encoded) != bits(rounded))
    assert not wrong.size, [(given[i], encoded[i], rounded[i]) for i in wrong[:4]]
