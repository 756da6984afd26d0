"""Our own mathematical functions for AMD's GPUs against longer arithmetic, and conversions against the IR's rounding, in the emulator."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.emulator import run
from tilewright.ir.dtypes import ALL
from tilewright.ops.rounding import cast_array
from tilewright.targets.hip.emulation import HIP

LONG = np.longdouble
COUNT = 4096


def launched(text: str, arrays: list[np.ndarray], threads: int = COUNT, header: str = "gfx942") -> None:
    """Run a kernel called ``values``, one thread an element."""
    source = f'#include "tilewright_{header}.h"\n{text}'
    found = run(
        source, "values", arrays, grid=(threads // 256,), block=(256,), shared_bytes=0, registers=0, vocabulary=HIP
    )
    assert not found.reports, found.reports[0]


def spread(low: float, high: float, dtype: type, logarithmic: bool = False, signed: bool = True) -> np.ndarray:
    """Arguments over a range, with zeros, infinities, NaN and ones among them."""
    random = np.random.default_rng(5)
    values = 2.0 ** random.uniform(low, high, COUNT) if logarithmic else random.uniform(low, high, COUNT)
    if logarithmic and signed:
        values *= random.choice([-1.0, 1.0], COUNT)
    values[:8] = (
        [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 0.5, 2.0]
        if signed
        else [0.0, 1.0, 4.0, np.inf, 0.5, np.nan, 2.0, 3.0]
    )
    return values.astype(dtype)


def units(found: np.ndarray, exact: np.ndarray) -> float:
    """The largest error in units of the last place of the result's type; what is not finite has to be the same."""
    found_wide = found.astype(LONG)
    with np.errstate(all="ignore"):
        rounded = exact.astype(found.dtype)
        special = ~np.isfinite(rounded) | ~np.isfinite(found)
        same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        # The largest number and infinity are neighbours.
        edge = np.abs(exact) >= np.finfo(found.dtype).max * (1 - LONG(2) ** -20)
        assert (same | ~special | edge).all(), (found[special & ~same][:4], rounded[special & ~same][:4])
        ulp = np.spacing(np.abs(rounded).astype(found.dtype)).astype(LONG)
        errors = np.where(special, 0, np.abs(found_wide - exact) / ulp)
    return float(errors.max())


def erf_of(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(float(one)) for one in x], LONG)


ONE_ARGUMENT = [
    ("exp", np.exp, (-110.0, 92.0), (-760.0, 715.0), {}),
    ("exp2", np.exp2, (-152.0, 130.0), (-1080.0, 1026.0), {}),
    ("exp10", lambda x: LONG(10) ** x, (-46.0, 39.0), (-326.0, 309.5), {}),
    ("log", np.log, (-149.0, 128.0), (-1074.0, 1023.9), {"logarithmic": True, "signed": False}),
    ("log2", np.log2, (-149.0, 128.0), (-1074.0, 1023.9), {"logarithmic": True, "signed": False}),
    ("log10", np.log10, (-149.0, 128.0), (-1074.0, 1023.9), {"logarithmic": True, "signed": False}),
    ("log1p", np.log1p, (-30.0, 30.0), (-60.0, 60.0), {"logarithmic": True, "signed": False}),
    ("sqrt", np.sqrt, (-149.0, 128.0), (-1074.0, 1023.9), {"logarithmic": True, "signed": False}),
    ("rsqrt", lambda x: 1 / np.sqrt(x), (-126.0, 128.0), (-1000.0, 1000.0), {"logarithmic": True, "signed": False}),
    ("sin", np.sin, (-30.0, 127.0), (-60.0, 62.0), {"logarithmic": True}),
    ("cos", np.cos, (-30.0, 127.0), (-60.0, 62.0), {"logarithmic": True}),
    ("tan", np.tan, (-30.0, 60.0), (-60.0, 62.0), {"logarithmic": True}),
    ("sinh", np.sinh, (-20.0, 7.0), (-30.0, 9.6), {"logarithmic": True}),
    ("cosh", np.cosh, (-20.0, 7.0), (-30.0, 9.6), {"logarithmic": True}),
    ("tanh", np.tanh, (-30.0, 5.0), (-60.0, 6.0), {"logarithmic": True}),
    ("atan", np.arctan, (-30.0, 60.0), (-60.0, 200.0), {"logarithmic": True}),
    ("erf", erf_of, (-30.0, 3.0), (-60.0, 3.0), {"logarithmic": True}),
]
BOUNDS = {"tanh": 2.5, "erf": 6.0, "log2": 2.5, "rsqrt": 1.5, "sinh": 2.5, "tan": 2.5}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_one_number(dtype):
    kind = {np.float32: "float", np.float64: "double"}[dtype]
    arguments = [
        spread(*(wide if dtype is np.float64 else narrow), dtype, **options)
        for _, _, narrow, wide, options in ONE_ARGUMENT
    ]
    results = [np.full(COUNT, 7, dtype) for _ in ONE_ARGUMENT]
    names = [name for name, *_ in ONE_ARGUMENT]
    parameters = ", ".join(f"const {kind}* x_{name}, {kind}* y_{name}" for name in names)
    body = "\n".join(f"  y_{name}[i] = tw::{name}(x_{name}[i]);" for name in names)
    text = f"TW_KERNEL(256, 1) values({parameters}) {{\n  const int i = blockIdx.x * 256 + threadIdx.x;\n{body}\n}}\n"
    launched(text, [array for pair in zip(arguments, results) for array in pair])
    worst = {}
    for (name, exact, *_), x, y in zip(ONE_ARGUMENT, arguments, results):
        with np.errstate(all="ignore"):
            worst[name] = units(y, exact(x.astype(LONG)))
    assert {name: error for name, error in worst.items() if error > BOUNDS.get(name, 2.0)} == {}, worst


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 0.51), (np.float64, 4.0)])
def test_functions_of_two_numbers(dtype, bound):
    kind = {np.float32: "float", np.float64: "double"}[dtype]
    random = np.random.default_rng(9)
    x = np.exp2(random.uniform(-20, 20, COUNT)).astype(dtype)
    y = random.uniform(-6, 6, COUNT).astype(dtype)
    x[:6], y[:6] = [0, 0, 1, 2, np.inf, 5], [2, -2, np.nan, 0, -1, np.inf]
    power, remainder, angle = (np.zeros(COUNT, dtype) for _ in range(3))
    text = (
        f"TW_KERNEL(256, 1) values(const {kind}* x, const {kind}* y, {kind}* p, {kind}* r, {kind}* a) {{\n"
        "  const int i = blockIdx.x * 256 + threadIdx.x;\n"
        "  p[i] = tw::pow(x[i], y[i]); r[i] = tw::fmod(x[i], y[i]); a[i] = tw::atan2(y[i], x[i] - 100);\n}\n"
    )
    launched(text, [x, y, power, remainder, angle])
    with np.errstate(all="ignore"):
        assert units(power, np.power(x.astype(LONG), y.astype(LONG))) <= bound
        assert np.array_equal(remainder, np.fmod(x, y), equal_nan=True)
        assert units(angle, np.arctan2(y.astype(LONG), (x - dtype(100)).astype(LONG))) <= max(bound, 2.0)


SPECIAL_POWERS = [
    (0.0, 3.0), (-0.0, 3.0), (-0.0, -3.0), (0.0, -2.0), (-2.0, 3.0), (-2.0, 4.0), (-2.0, 0.5), (-np.inf, 3.0), (-np.inf, -4.0), (np.nan, 0.0), (1.0, np.nan),
    (-1.0, np.inf), (0.5, np.inf), (0.5, -np.inf), (2.0, -np.inf), (-3.0, 1e300), (1e-300, 1.5), (1e300, 1.5), (4.0, 0.5), (-0.0, 2.0),
]  # fmt: skip


def test_powers_of_what_is_special():
    x, y = (np.array([one[side] for one in SPECIAL_POWERS] + [1.0] * (256 - len(SPECIAL_POWERS))) for side in (0, 1))
    found = np.zeros(256)
    launched(
        "TW_KERNEL(256, 1) values(const double* x, const double* y, double* z) { z[threadIdx.x] = tw::pow(x[threadIdx.x], y[threadIdx.x]); }",
        [x, y, found],
        256,
    )
    with np.errstate(all="ignore"):
        wanted = np.power(x, y)
    assert (
        np.array_equal(found, wanted, equal_nan=True)
        and np.array_equal(np.signbit(found[:20]), np.signbit(wanted[:20]))
    ) or [(a, b, c, d) for a, b, c, d in zip(x, y, found, wanted) if not (c == d or (c != c and d != d))] == []


SMALL = {
    "float16": ("tw::half", np.uint16), "bfloat16": ("tw::bfloat16", np.uint16), "float8_e4m3fn": ("tw::float8_e4m3", np.uint8),
    "float8_e5m2": ("tw::float8_e5m2", np.uint8), "float8_e8m0fnu": ("tw::float8_e8m0", np.uint8),
    "float8_e4m3fnuz": ("tw::float8_e4m3fnuz", np.uint8), "float8_e5m2fnuz": ("tw::float8_e5m2fnuz", np.uint8),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SMALL))
def test_small_floats_from_doubles_and_back(name):
    kind, word = SMALL[name]
    record = ALL[name]
    random = np.random.default_rng(3)
    x = np.concatenate([2.0 ** random.uniform(-30, 20, 3000) * random.choice([-1, 1], 3000), random.standard_normal(1088), [0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 61440.0]])  # fmt: skip
    codes = np.zeros(COUNT, word)
    every = np.resize(
        np.arange(1 << 8 * np.dtype(word).itemsize, dtype=np.uint64).astype(word),
        max(COUNT, 1 << 8 * np.dtype(word).itemsize),
    )[:: max(1, (1 << 8 * np.dtype(word).itemsize) // COUNT)][:COUNT].copy()
    back = np.zeros(COUNT, np.float32)
    text = (
        f"TW_KERNEL(256, 1) values(const double* x, {kind}* codes, const {kind}* every, float* back) {{\n"
        f"  const int i = blockIdx.x * 256 + threadIdx.x;\n  codes[i] = tw::convert<{kind}>(x[i]);\n  back[i] = tw::convert<float>(every[i]);\n}}\n"
    )
    launched(text, [x, codes, every, back])
    with np.errstate(all="ignore"):
        wanted = cast_array(x, ALL["float64"], record).view(word)
        nan = np.isnan(cast_array(cast_array(x, ALL["float64"], record), record, ALL["float32"]))
        assert np.array_equal(codes[~nan], wanted[~nan]), [(a, b, c) for a, b, c in zip(x, codes, wanted) if b != c][:4]
        assert np.array_equal(back, cast_array(every.view(record.numpy), record, ALL["float32"]), equal_nan=True)


def test_numbers_to_integers_saturate():
    x = np.array(
        [
            0.0,
            -1.5,
            1.5,
            3e9,
            -3e9,
            np.nan,
            np.inf,
            -np.inf,
            255.9,
            256.0,
            -129.0,
            127.9,
            1e20,
            -1e20,
            4294967295.0,
            2147483647.0,
        ]
        * 16
    )
    kinds = {
        "int8_t": np.int8,
        "uint8_t": np.uint8,
        "int16_t": np.int16,
        "int32_t": np.int32,
        "uint32_t": np.uint32,
        "int64_t": np.int64,
        "uint64_t": np.uint64,
    }
    outs = [np.zeros(256, one) for one in kinds.values()]
    parameters = ", ".join(f"{kind}* y_{kind}" for kind in kinds)
    body = " ".join(f"y_{kind}[threadIdx.x] = tw::convert<{kind}>(x[threadIdx.x]);" for kind in kinds)
    launched(f"TW_KERNEL(256, 1) values(const double* x, {parameters}) {{ {body} }}", [x, *outs], 256)
    for out in outs:
        limits = np.iinfo(out.dtype)
        wanted = [0 if v != v else int(min(max(v, limits.min), limits.max)) for v in x]
        assert out.tolist() == wanted
