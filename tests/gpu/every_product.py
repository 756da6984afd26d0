"""Products of every kind for the tests of the machine at hand: formats, schemes of scales and zeros, types of activations.

A `Case` is one of each.  Cases cover all pairs of format and scheme, of format and activations and of scheme and activations.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tilewright.formats import FORMATS, Format, number_format
from tilewright.ir.dtypes import dtype, pack
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.quant import QuantizedWeight
from tilewright.targets.cuda.arch import detect

DEVICE = "cuda" if detect() else "cpu"
"""Where the tests run."""

N, K = 72, 288
"""Small, and off every tile; K is four and a half records of the copy engine's rows."""

CODED = [entry.name for entry in FORMATS.values() if not entry.is_dense and entry.name != "e8m0"] + [
    "e3m2",
    "e2m3",
    "e1m2",
    "e3m0",
]

ACTIVATIONS = (
    "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int4", "uint4", "int2", "uint2", "float8_e4m3fn",
    "float8_e5m2", "float16 to int8", "bfloat16 to float8_e4m3fn", "float32 to int8",
)  # fmt: skip
"""As they are passed, or what they are and what the call quantises them to."""

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def codes_of(of: Format, rng: np.random.Generator, columns: int = K) -> np.ndarray:
    """Codes in which all with a finite value occur."""
    used = np.array([c for c in range(1 << of.bits) if c not in of.unused and np.isfinite(of.values[c])], np.uint8)
    codes = rng.choice(used, (N, columns))
    codes.reshape(-1)[: len(used)] = used
    return codes


def scales_of(rng: np.random.Generator, shape: tuple[int, int], kind: str = "float16") -> np.ndarray:
    """Positive scales from 2**-7 to 2**-5."""
    if kind == "float8_e8m0fnu":
        return np.exp2(rng.integers(-7, -4, shape)).astype(ml_dtypes.float8_e8m0fnu)
    return (2.0 ** rng.uniform(-7, -5, shape)).astype(dtype(kind).numpy)


Maker = Callable[[Format, np.random.Generator], dict[str, Any]]


def grouped(group: int, kind: str = "float16") -> Maker:
    """A scale for each row and group of columns."""
    return lambda of, rng: {"scales": scales_of(rng, (N, -(-K // group)), kind), "block": (1, group)}


def zeros(mode: str, group: int, fraction: float = 0.0) -> Maker:
    """Scales and zeros of groups."""

    def make(of: Format, rng: np.random.Generator) -> dict[str, Any]:
        shape = (N, -(-K // group))
        scales, top = scales_of(rng, shape), max(1, min(16, int(of.maximum)))
        points: np.ndarray = rng.integers(0, top, shape, endpoint=True).astype(np.float32) + np.float32(fraction)
        if mode == "quantized":
            points = points.astype(np.uint8)
        if mode == "rescale":
            points = (points * scales).astype(np.float16)
        return {"scales": scales, "zeros": points, "zeros_mode": mode, "block": (1, group)}

    return make


def ordered(of: Format, rng: np.random.Generator) -> dict[str, Any]:
    """Act-order."""
    order = rng.permutation(np.arange(K) // 32).astype(np.int32)
    return {**grouped(32)(of, rng), "g_idx": order}


def two_levels(of: Format, rng: np.random.Generator) -> dict[str, Any]:
    """A float scale a channel, int8 multipliers of groups."""
    multipliers = rng.integers(1, 9, (N, K // 32)).astype(np.int8)
    return {"scales": scales_of(rng, (N, 1), "float32"), "multipliers": multipliers, "block": (1, 32)}


SCHEMES: dict[str, Maker] = {
    "codes": lambda of, rng: {},
    "tensor": lambda of, rng: {"scales": scales_of(rng, (1, 1)), "block": (N, K)},
    "channel": lambda of, rng: {"scales": scales_of(rng, (N, 1), "float32")},
    "g16": grouped(16),
    "g32 bfloat16": grouped(32, "bfloat16"),
    "g128": grouped(128),
    "g10": grouped(10, "float32"),
    "e8m0": grouped(32, "float8_e8m0fnu"),
    "e4m3": lambda of, rng: {**grouped(16, "float8_e4m3fn")(of, rng), "tensor_scale": 0.37},
    "blocks": lambda of, rng: {"scales": scales_of(rng, (1, 3), "float32"), "block": (128, 128)},
    "zeros": zeros("original", 32),
    "fractional zeros": zeros("original", 64, 0.25),
    "rescaled zeros": zeros("rescale", 32),
    "packed zeros": zeros("quantized", 128),
    "act-order": ordered,
    "two levels": two_levels,
    "divisors": lambda of, rng: {**grouped(32)(of, rng), "divisors": rng.uniform(0.5, 2.0, K).astype(np.float32)},
}


@dataclass(frozen=True)
class Case:
    """One kind of product."""

    format: str
    scheme: str
    activations: str

    def __str__(self) -> str:
        return f"{self.format}-{self.scheme}-{self.activations}"

    @property
    def seed(self) -> int:
        return zlib.crc32(str(self).encode())

    @property
    def is_possible(self) -> bool:
        """Whether there is such a thing: packed zeros are of unsigned integers, divisors of floats."""
        of = number_format(self.format)
        floats = "float" in self.activations.split(" ")[0]
        return (self.scheme != "packed zeros" or of.kind == "uint") and (self.scheme != "divisors" or floats)

    @functools.cached_property
    def weight(self) -> QuantizedWeight:
        rng, of = np.random.default_rng(self.seed), number_format(self.format)
        return QuantizedWeight(codes_of(of, rng), of, **SCHEMES[self.scheme](of, rng))

    @property
    def is_whole(self) -> bool:
        """Whether ``(value - zero) * multiplier`` are whole numbers, whose scales enter sums."""
        whole = number_format(self.format).is_integer
        return whole and self.scheme not in ("fractional zeros", "rescaled zeros", "g10")


def pairs() -> Iterator[Case]:
    """Every two of the three meet at least once."""
    schemes = list(SCHEMES)
    for i, name in enumerate(CODED):
        for j, scheme in enumerate(schemes):
            yield Case(name, scheme, ACTIVATIONS[(4 * i + 7 * j) % len(ACTIVATIONS)])
        for j, activations in enumerate(ACTIVATIONS):
            yield Case(name, schemes[(5 * i + 3 * j) % len(schemes)], activations)
    for i, scheme in enumerate(schemes):
        for j, activations in enumerate(ACTIVATIONS):
            yield Case(CODED[(7 * i + 5 * j) % len(CODED)], scheme, activations)


CASES = sorted({case for case in pairs() if case.is_possible}, key=str)


class Given:
    """The operands of a case's calls: up to `rows` activations, and what they are multiplied to, in float64."""

    def __init__(self, case: Case, rows: int) -> None:
        self.case, rng = case, np.random.default_rng(case.seed + 1)
        self.packed = PackedWeight.pack(case.weight, DEVICE)
        self.held, _, self.quantize = case.activations.partition(" to ")
        record = dtype(self.held)
        self.source = self.held if record.is_packed else None
        if record.is_integer:
            values = rng.integers(int(record.minimum), int(record.maximum), (rows, K), endpoint=True)
            stored = pack(values.astype(record.numpy), record) if record.is_packed else values.astype(record.numpy)
        else:
            values = stored = rng.standard_normal((rows, K)).astype(record.numpy)
        self.x = placed(stored)
        wide = torch.from_numpy(values.astype(np.float64)).to(DEVICE)
        dense = torch.from_numpy(case.weight.to_dense()).to(DEVICE)
        self.scales = None
        if record.bits == 8 and case.seed % 3:
            self.scales = placed((2.0 ** rng.uniform(-3, 0, (rows, 1))).astype(np.float32))
            wide = wide * self.scales.double()
        if self.quantize:
            wide, dense = self.quantised(wide)
        self.exact, self.size = wide @ dense.T, wide.abs() @ (dense.abs() + 2 * self.subtracted()).T

    def quantised(self, wide: Any) -> tuple[Any, Any]:
        """What the call makes of the activations, and the weight that these are multiplied by."""
        weight, divisors = self.case.weight, self.case.weight.divisors
        x = wide.float() if divisors is None else wide.float() / torch.from_numpy(divisors).to(DEVICE)
        limit = 127.0 if self.quantize == "int8" else torch.finfo(getattr(torch, self.quantize)).max
        largest = x.double().abs().amax(-1, keepdim=True)
        scaled = x * (limit / largest).float()
        codes = scaled.round() if self.quantize == "int8" else scaled.to(getattr(torch, self.quantize)).float()
        dense = torch.from_numpy(weight.dequantize()).to(DEVICE)
        return codes.double() * (largest / limit).float().double(), dense

    def subtracted(self) -> Any:
        """The part of the weight that zero points are: sums of what cancels are as inexact as its parts."""
        weight = self.case.weight
        if weight.zeros is None:
            return 0.0
        part = weight.expanded(weight.zeros.astype(np.float64))
        scale = weight.expanded(weight.scales.astype(np.float64)) if weight.zeros_mode != "rescale" else 1.0
        return torch.from_numpy(np.abs(part * scale)).to(DEVICE)

    @property
    def error(self) -> float:
        """Of a sum, relative to the sum of its terms' sizes: one or more roundings of each term, and of each addition.

        A term of 16-bit activations is rounded with its code, its scale and their product; sums are float32.  Hopper's sums of 8-bit
        floats keep 14 bits from one instruction of 32 columns to the next.  What is neither whole nor an 8-bit float becomes a
        float16 beside 8-bit activations.
        """
        name = self.quantize or self.held
        sums = (K + 8) * 2.0**-24
        if name in ("float16", "bfloat16"):
            return 3 * UNIT[name] + 2 * sums
        if name == "float64":
            return (K + 8) * 2.0**-53
        if name == "float32":
            return sums
        term = 0.0 if self.case.is_whole else 3 * UNIT["float16"]
        return sums + term + (K / 32 * 2.0**-14 if dtype(name).is_float else 0.0)

    def check(self, found: Any, rows: int) -> None:
        """A result of the first rows is within the bound; exactly the sum where all is whole."""
        exact, size = self.exact[:rows], self.size[:rows]
        if not found.dtype.is_floating_point:
            assert torch.equal(found.double(), exact)
            return
        unit = UNIT[str(found.dtype).removeprefix("torch.")]
        bound = self.error * size + unit * (exact.abs() + size * self.error) + 2.0**-24 * (found.dtype is torch.float16)
        apart = (found.double() - exact).abs()
        assert (apart <= bound).all(), f"{(apart / bound).nan_to_num(torch.inf).max().item():.3g} of the bound"

    def call(self, rows: int, **options: Any) -> Any:
        """The product of the first rows, lying in memory in a way that depends on how many there are."""
        x = somewhere(self.x[:rows], rows) if self.source is None else self.x[:rows]
        return quant_matmul(
            x if self.source is None else (x, self.source), self.packed, quantize=self.quantize or None,
            activation_scales=None if self.scales is None else self.scales[:rows], **options,
        )  # fmt: skip

    def run(self, rows: int) -> None:
        """Two calls, into a poisoned result and into one of the call's own; they agree to the bit."""
        whole = self.case.scheme == "codes" and number_format(self.case.format).is_integer
        whole = whole and dtype(self.held).is_integer and self.scales is None
        wide = "float64" if self.held == "float64" else "int32" if whole else "float32"
        poisoned = torch.full((rows + 1, N), 77, device=DEVICE, dtype=getattr(torch, wide))
        self.call(rows, out=poisoned[:rows])
        assert (poisoned[rows] == 77).all()
        self.check(poisoned[:rows], rows)
        assert torch.equal(self.call(rows, out_dtype=wide), poisoned[:rows])
        if not whole and rows % 2:
            narrow = "float16" if rows % 4 == 3 and self.size.max() < 2.0**15 else "bfloat16"
            self.check(self.call(rows, out_dtype=narrow), rows)


def placed(array: np.ndarray) -> Any:
    """A tensor where the tests run."""
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array).to(DEVICE)
    bits = torch.from_numpy(array.view(np.uint8 if array.itemsize == 1 else np.int16))
    return bits.view(getattr(torch, dtype(array.dtype).name)).to(DEVICE)


def somewhere(x: Any, number: int) -> Any:
    """The same elements: as they are, off 16 bytes, in every other column, or column by column."""
    rows, columns = x.shape
    raw = x.view(torch.uint8) if x.dtype.itemsize == 1 else x
    if number % 4 == 1:
        raw = torch.empty(rows * columns + 1, device=DEVICE, dtype=raw.dtype)[1:].view(rows, columns).copy_(raw)
    elif number % 4 == 2:
        wide = torch.zeros(rows, 2 * columns, device=DEVICE, dtype=raw.dtype)
        wide[:, ::2] = raw
        raw = wide[:, ::2]
    elif number % 4 == 3:
        raw = raw.T.contiguous().T
    return raw.view(x.dtype) if raw.dtype != x.dtype else raw
