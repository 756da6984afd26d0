"""Numbers: conversions against one rounding written here, bit tricks against plain arithmetic, atomics and warps against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from cuda_runner import Scalar, text

from tilewright.ir.dtypes import ALL, DType
from tilewright.machine.types import BF16, E4M3, E5M2, F16, F32, F64, S8, S32, TF32, U8

Fact = tuple[str, Callable[[Any], None]]
KINDS = {
    "f16": F16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2, "f32": F32, "f64": F64, "s8": S8, "u8": U8, "s32": S32,
    "u32": ALL["uint32"], "s64": ALL["int64"], "tf32": TF32, "e2m1": ALL["float4_e2m1fn"], "e8m0": ALL["float8_e8m0fnu"],
}  # fmt: skip
SOURCES = ("f16", "bf16", "e4m3", "e5m2", "f32", "f64", "s32", "s64")
TARGETS = ("f16", "bf16", "e4m3", "e5m2", "f32", "f64", "s8", "u8", "s32", "u32", "s64")


def facts(arch: Any) -> Iterator[Fact]:
    """Every fact of this file; all architectures confirm them."""
    for source in SOURCES:
        for target in TARGETS:
            yield f"convert {source} to {target}", lambda runner, s=source, t=target: check_conversion(runner, s, t)
    yield "convert f32 to tf32", lambda runner: check_conversion(runner, "f32", "tf32")
    yield "convert f32 to e2m1", lambda runner: check_conversion(runner, "f32", "e2m1")
    yield "convert e2m1 to f32", lambda runner: check_conversion(runner, "e2m1", "f32")
    yield "convert e8m0 to f32", lambda runner: check_conversion(runner, "e8m0", "f32")
    for kind in ("f16", "bf16", "e4m3", "e5m2"):
        yield f"arithmetic of {kind}", lambda runner, k=kind: check_arithmetic(runner, k)
    yield "decode 4 bits", check_decode_4bit
    yield "decode 2 bits", check_decode_2bit
    yield "decode 8 bits", check_decode_8bit
    yield "packed words", check_packed
    yield "integers", check_integers
    yield "minimum and maximum", check_extremes
    yield "warp", check_warp
    yield "atomics", check_atomics
    for name in ("u8x2", "f16x2", "f16x4", "f16x8", "f32x4", "f32x8", "f64x2"):
        yield f"move {name}", lambda runner, n=name: check_move(runner, n)


# Conversions --------------------------------------------------------------------------------------


def rounded(values: np.ndarray, kind: DType) -> np.ndarray:
    """Values (float64 or long double) rounded once to a float format, as the IR converts: to nearest even."""
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.where(np.isfinite(values), values, 0))
        least = 1 - kind.bias
        quantum = np.ldexp(np.ones_like(values), np.maximum(exponent - 1, least) - kind.mantissa_bits)
        result = np.where(np.isfinite(values), np.rint(values / quantum) * quantum, values)
        most = float(kind.maximum)
        beyond = np.inf if kind.bits > 8 else most  # small formats: finite numbers saturate
        result = np.where(np.isfinite(result) & (np.abs(result) > most), np.copysign(beyond, result), result)
        endless = np.inf if kind.infinities else np.nan if kind.nans else most
        return np.where(np.isinf(values), np.copysign(endless, values), result)


def converted(values: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """What the IR says a cast gives, as float64 or int64."""
    wide = values.astype(np.longdouble if source.is_integer else np.float64)
    if target.is_float:
        return rounded(wide, target).astype(np.float64)
    if source.is_integer:
        return values.astype(target.numpy).astype(np.int64)
    low, high = int(target.minimum), int(target.maximum)
    truncated = np.trunc(np.where(np.isnan(wide), 0, wide))
    inside = (truncated >= low) & (truncated < float(high) + (high < 2**53))
    exact = np.where(inside, truncated, 0).astype(np.int64)
    return np.where(inside, exact, np.where(truncated < 0, low, high)).astype(np.int64)


def inputs(name: str) -> np.ndarray:
    """Every code of a small type; for a large one, values near every edge that a target may have."""
    kind = KINDS[name]
    random = np.random.default_rng(8)
    if kind.bits == 16:
        return np.arange(1 << 16, dtype=np.uint16).view(kind.numpy)
    if kind.bits <= 8:
        return np.arange(1 << kind.bits, dtype=np.uint8).view(kind.numpy)
    if kind.is_integer:
        widths = random.integers(1, kind.bits, 20000)
        return (random.integers(-(1 << 62), 1 << 62, 20000) >> (63 - widths)).astype(kind.numpy)
    edges = np.array(
        [0, 448, 464, 57344, 61440, 65504, 65520, 3.3895e38, 127.5, 255.9, 2**31, 2**32, 2**63, 6, 5, 2.0**-9, 2.0**-10]
    )
    near = edges[:, None] * (1 + np.array([-(2.0**-22), 0, 2.0**-22])[None, :])
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    scattered = np.ldexp(random.uniform(-2, 2, 20000), random.integers(-150, 130, 20000))
    # Ties of the short formats, and values just beside them that only a single rounding tells apart.
    ties = np.ldexp(1 + (2 * random.integers(0, 1024, 20000) + 1) * 2.0**-11, random.integers(-20, 20, 20000))
    beside = ties * (1 + random.choice([-1, 1], 20000) * 2.0 ** -(40 if kind is F64 else 23))
    special = np.array([np.nan, np.inf, -np.inf, -0.0])
    with np.errstate(over="ignore"):
        return np.concatenate([near.ravel(), -near.ravel(), halves, scattered, ties, beside, special]).astype(
            kind.numpy
        )


def check_conversion(runner: Any, source: str, target: str) -> None:
    values, kind = inputs(source), KINDS[target]
    carrier = np.dtype(np.float32) if target == "tf32" else kind.numpy
    out = np.zeros(values.shape, carrier)
    arguments = [values.view(np.uint8), out.view(np.uint8), Scalar("i", values.size)]
    runner.run(text("facts_numbers"), f"{target}_from_{source}", 64, 256, arguments)
    got = out.astype(np.float64) if kind.is_float else out.astype(np.int64)
    expected = converted(values, KINDS[source], kind)
    if kind.is_float and target != "e2m1":
        nan = np.isnan(expected)
        assert np.isnan(got[nan]).all() and not np.isnan(got[~nan]).any()
        got, expected, values = got[~nan], expected[~nan], values[~nan]
        assert (np.signbit(got) == np.signbit(expected)).all()
    elif target == "e2m1":
        keep = ~np.isnan(values)
        got, expected, values = got[keep], expected[keep], values[keep]
    wrong = np.flatnonzero(got != expected)
    assert wrong.size == 0, f"{wrong.size} wrong: {values[wrong[:3]]} gives {got[wrong[:3]]}, not {expected[wrong[:3]]}"


def check_arithmetic(runner: Any, name: str) -> None:
    kind, random = KINDS[name], np.random.default_rng(9)
    codes = random.integers(0, 1 << kind.bits, (2, 30000)).astype(f"uint{kind.bits}")
    a, b = codes[0].view(kind.numpy), codes[1].view(kind.numpy)
    out = np.zeros((30000, 4), kind.numpy)
    arguments = [a.view(np.uint8), b.view(np.uint8), out.view(np.uint8), Scalar("i", 30000)]
    runner.run(text("facts_numbers"), f"arithmetic_{name}", 64, 256, arguments)
    x, y, got = a.astype(np.float64), b.astype(np.float64), out.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = np.stack([x + y, x - y, x * y, x / y], axis=1)
    # Quotients are the one operation whose float64 value is itself rounded: far more finely than any of these types.
    expected = rounded(exact, kind)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), (a[~same.all(axis=1)][:3], b[~same.all(axis=1)][:3], got[~same.all(axis=1)][:3])


# Bit tricks ---------------------------------------------------------------------------------------


def pairs(words: np.ndarray, kind: Any) -> np.ndarray:
    """Both halves of words as float64, low first, along a new last axis."""
    return np.ascontiguousarray(words)[..., None].view(np.uint16).view(kind).astype(np.float64)


def lanes(words: np.ndarray, kind: Any) -> np.ndarray:
    return np.ascontiguousarray(words)[..., None].view(kind).astype(np.int64)


def fields(words: np.ndarray, bits: int) -> np.ndarray:
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return (words[:, None] >> shifts & np.uint32((1 << bits) - 1)).astype(np.int64)


def random_words(count: int = 20000) -> np.ndarray:
    return np.random.default_rng(10).integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)


def check_decode_4bit(runner: Any) -> None:
    words = random_words()
    codes = fields(words, 4)
    for zero in (0, 8, 15):
        out = np.zeros((words.size, 16), np.uint32)
        runner.run(
            text("facts_numbers"), "decode_4bit", 64, 256, [words, Scalar("I", zero), out, Scalar("i", words.size)]
        )
        for pair in range(4):
            expected = np.stack([codes[:, pair], codes[:, pair + 4]], axis=1) - zero
            np.testing.assert_array_equal(pairs(out[:, pair], np.float16), expected)
            np.testing.assert_array_equal(pairs(out[:, 4 + pair], ml_dtypes.bfloat16), expected)
        signed = np.where(codes > 7, codes - 16, codes)
        np.testing.assert_array_equal(lanes(out[:, 8], np.uint8), codes[:, 0::2])
        np.testing.assert_array_equal(lanes(out[:, 9], np.uint8), codes[:, 1::2])
        np.testing.assert_array_equal(lanes(out[:, 10], np.int8), codes[:, 0::2] - 8)
        np.testing.assert_array_equal(lanes(out[:, 11], np.int8), signed[:, 1::2])
        np.testing.assert_array_equal(lanes(out[:, 12], np.int8), 16 * signed[:, 0::2])
        np.testing.assert_array_equal(lanes(out[:, 13], np.int8), 16 * signed[:, 1::2])
        np.testing.assert_array_equal(pairs(out[:, 14], np.float16), codes[:, [0, 4]] * 2.0**-24)
        np.testing.assert_array_equal(pairs(out[:, 15], np.float16), codes[:, [3, 7]] * 2.0**-20)


def check_decode_2bit(runner: Any) -> None:
    words = random_words()
    codes, out = fields(words, 2), np.zeros((words.size, 12), np.uint32)
    runner.run(text("facts_numbers"), "decode_2bit", 64, 256, [words, out, Scalar("i", words.size)])
    for pair in range(8):
        np.testing.assert_array_equal(pairs(out[:, pair], np.float16), codes[:, [pair, pair + 8]])
    for part in range(4):
        np.testing.assert_array_equal(lanes(out[:, 8 + part], np.uint8), codes[:, part::4])


def check_decode_8bit(runner: Any) -> None:
    words = (np.arange(1 << 16, dtype=np.uint64) * 65537 % (1 << 32)).astype(np.uint32)
    out = np.zeros((words.size, 12), np.uint32)
    runner.run(text("facts_numbers"), "decode_8bit", 64, 256, [words, out, Scalar("i", words.size)])
    unsigned, signed = lanes(words, np.uint8), lanes(words, np.int8)
    for pair in range(2):
        at = slice(2 * pair, 2 * pair + 2)
        np.testing.assert_array_equal(pairs(out[:, pair], np.float16), unsigned[:, at])
        np.testing.assert_array_equal(pairs(out[:, 2 + pair], np.float16), signed[:, at])
        np.testing.assert_array_equal(pairs(out[:, 4 + pair], ml_dtypes.bfloat16), signed[:, at])
    codes = np.ascontiguousarray(unsigned[:, :2].astype(np.uint8))
    for index, kind in ((6, ml_dtypes.float8_e4m3fn), (8, ml_dtypes.float8_e5m2)):
        values = codes.view(kind).astype(np.float64)
        finite = np.isfinite(values)
        got = pairs(out[:, index], np.float16), pairs(out[:, index + 1], ml_dtypes.bfloat16)
        np.testing.assert_array_equal(got[0][finite], values[finite])
        np.testing.assert_array_equal(got[1][finite], values[finite])
    small = (codes >> 4).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    np.testing.assert_array_equal(pairs(out[:, 10], np.float16), small)
    np.testing.assert_array_equal(pairs(out[:, 11], ml_dtypes.bfloat16), small)


def check_packed(runner: Any) -> None:
    a, b = random_words(), np.roll(random_words(), 1)
    out = np.zeros((a.size, 8), np.uint32)
    runner.run(text("facts_numbers"), "packed", 64, 256, [a, b, out, Scalar("i", a.size)])
    c = a >> np.uint32(3)
    np.testing.assert_array_equal(out[:, 0], a & b | c)
    np.testing.assert_array_equal(out[:, 1], a ^ b ^ c)
    both = np.concatenate([lanes(a, np.uint8), lanes(b, np.uint8)], axis=1)
    np.testing.assert_array_equal(lanes(out[:, 2], np.uint8), both[:, [0, 4, 2, 6]])
    sign = np.where(both > 127, 255, 0)
    mixed = np.stack([sign[:, 1], both[:, 5], both[:, 1], sign[:, 7]], axis=1)
    np.testing.assert_array_equal(lanes(out[:, 3], np.uint8), mixed)
    signed_a, signed_b = lanes(a, np.int8), lanes(b, np.int8)
    unsigned_a, unsigned_b = lanes(a, np.uint8), lanes(b, np.uint8)
    as_int = out.view(np.int32)
    np.testing.assert_array_equal(as_int[:, 4], (signed_a * signed_b).sum(axis=1) + 7)
    np.testing.assert_array_equal(as_int[:, 5], (unsigned_a * signed_b).sum(axis=1) - 7)
    np.testing.assert_array_equal(as_int[:, 6], (unsigned_a * unsigned_b).sum(axis=1) + 9)
    ia, ib = a.view(np.int32), b.view(np.int32)
    low = [(ia << np.int32(8)) >> np.int32(23), (ib << np.int32(8)) >> np.int32(23)]
    four = np.stack([ia >> np.int32(22), ib >> np.int32(22), *low], axis=1)
    np.testing.assert_array_equal(lanes(out[:, 7], np.int8), np.clip(four, -128, 127))


def check_integers(runner: Any) -> None:
    random = np.random.default_rng(11)
    a, b = random.integers(-1000, 1000, (2, 5000)).astype(np.int32)
    b[b == 0] = 7
    out = np.zeros((5000, 4), np.int32)
    runner.run(text("facts_numbers"), "integers", 16, 256, [a, b, out, Scalar("i", 5000)])
    bits = np.array([bin(int(x) & 0xFFFFFFFF).count("1") for x in a])
    np.testing.assert_array_equal(out, np.stack([a // b, a % b, np.minimum(a, b), bits], axis=1))


def check_extremes(runner: Any) -> None:
    values = np.array([np.nan, np.inf, -np.inf, -1, 0, 2.5, 1e-40], np.float32)
    a, b = (np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(values, values))
    out = np.zeros((a.size, 2), np.float32)
    runner.run(text("facts_numbers"), "extremes", 1, 256, [a, b, out, Scalar("i", a.size)])
    np.testing.assert_array_equal(out, np.stack([np.fmin(a, b), np.fmax(a, b)], axis=1))


# Warps, atomics, accesses -------------------------------------------------------------------------


def check_warp(runner: Any) -> None:
    x = np.random.default_rng(12).integers(-500, 500, 32).astype(np.int32)
    out, wide, narrow = np.zeros(624, np.int32), np.zeros(32), np.zeros(32, np.int16)
    runner.run(text("facts_numbers"), "warp", 1, 32, [x, out, wide, narrow])
    lane, u = np.arange(32), x.view(np.uint32)
    down = np.where(lane % 8 + 3 < 8, np.minimum(lane + 3, 31), lane)
    ballot = np.uint32(sum(1 << i for i in range(32) if x[i] > 0)).astype(np.uint32).view(np.int32)
    rows = [
        x[lane * 7 % 32], x[lane ^ 5], x[np.where(lane >= 3, lane - 3, lane)], x[down], ballot, 1, x.sum(), x.min(), x.max(),
        u.max().view(np.int32), np.bitwise_and.reduce(u).view(np.int32), np.bitwise_or.reduce(u).view(np.int32),
        np.bitwise_xor.reduce(u).view(np.int32),
    ]  # fmt: skip
    for index, row in enumerate(rows):
        np.testing.assert_array_equal(out[32 * index : 32 * index + 32], np.broadcast_to(row, 32), err_msg=str(index))
    assert out[416:448].sum() == 1
    assert (out[448:480] == x[0]).all()
    quads = (lane[:, None] // 4 * 4 + np.arange(4)) * 4 + lane[:, None] % 4
    np.testing.assert_array_equal(out[480:608].reshape(32, 4), quads)
    assert (out[608:624] == x[:16].sum()).all()
    np.testing.assert_array_equal(wide, x[lane ^ 1] + 0.25)
    np.testing.assert_array_equal(narrow, x[np.minimum(lane + 1, 31)].astype(np.int16))


def check_atomics(runner: Any) -> None:
    i32, u32, s64 = np.zeros(4, np.int32), np.zeros(8, np.uint32), np.zeros(2, np.int64)
    f32, f64 = np.zeros(12, np.float32), np.zeros(1)
    f16, bf16 = np.zeros(4, np.float16), np.zeros(4, ml_dtypes.bfloat16)
    u32[1], f32[3] = 0xFFFF, -5
    f32[1] = -1000
    runner.run(text("facts_numbers"), "updates", 1, 256, [i32, u32, s64, f32, f64, f16, bf16.view(np.uint16)])
    total = 255 * 128
    np.testing.assert_array_equal(i32[:3], [total, -155, 155])
    toggled = sum((256 // 3 + (bit < 256 % 3)) % 2 << bit for bit in range(3))
    np.testing.assert_array_equal(u32[[0, 1, 2, 3, 5]], [total, 0xFF00, (1 << 20) - 1, toggled, 77])
    assert 1 <= u32[4] <= 256
    np.testing.assert_array_equal(s64, [total << 33, -255 << 33])
    np.testing.assert_array_equal(f32, [128, -45.5, 0, 255, 256, 512, 0, 0, 0, 512, 1024, 1536])
    assert f64[0] == 64
    np.testing.assert_array_equal(f16.astype(float), [128, 0, 256, 512])
    np.testing.assert_array_equal(bf16.astype(float), [128, 0, 0, 128])


def aligned(nbytes: int) -> np.ndarray:
    """So many zero bytes that begin where the widest access may: the emulator takes arrays where they are."""
    memory = np.zeros(nbytes + 32, np.uint8)
    start = -memory.ctypes.data % 32
    return memory[start : start + nbytes]


def check_move(runner: Any, name: str) -> None:
    kind, count = name.split("x")
    nbytes = {"u8": 1, "f16": 2, "f32": 4, "f64": 8}[kind] * int(count) * 64
    source, out = aligned(nbytes), aligned(5 * nbytes).reshape(5, nbytes)
    source[:] = np.random.default_rng(13).integers(0, 256, nbytes)
    runner.run(text("facts_numbers"), f"move_{name}", 1, 64, [source, out])
    np.testing.assert_array_equal(out, np.broadcast_to(source, (5, nbytes)))
