"""Layers of random shapes through the public entry, beside ONNX Runtime, llama.cpp and plain reading: the cases ``layer`` of `cpu.py`.

A case has as many weights of one shape as make it lie in the caches, one, or outside of them, twice the last-level cache; a call multiplies by
all of them, so that what starts a call of a peer is shared there by all its products, while ours is called for each.  Activations are float32 on
every side, and each side quantises them to 8 bits in the call.  Scales are float16, as in checkpoints and in llama.cpp; ONNX Runtime gets
the same numbers in the type of its activations, which it asks for.  Results are compared with float64 before anything is timed.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from tilewright.formats import number_format
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.quant import QuantizedWeight, quantize

FORMATS = {"int4 g128": ("uint4", 128, None), "int4 g32": ("uint4", 32, "q4_0"), "int4 zeros g32": ("uint4", 32, "q4_K"),
           "int8 g32": ("uint8", 32, "q8_0")}  # fmt: skip
"""By name: the format and group of ours, and llama.cpp's type of as many bits."""
SHAPES, ROWS, SEED = 4, (1, 4, 16), 19
"""How many shapes, in the caches and as many outside, and of which numbers of rows; `cpu.py` has options for both."""


@dataclass(frozen=True)
class Layer:
    """One case: `count` weights [n, k] of a format by m rows."""

    name: str
    m: int
    n: int
    k: int
    outside: bool

    @property
    def title(self) -> str:
        place = "memory" if self.outside else "cache"
        return f"layer {self.name} {self.n}x{self.k} M={self.m} in {place}"

    @property
    def bits(self) -> int:
        return number_format(FORMATS[self.name][0]).bits

    @property
    def bytes(self) -> int:
        """Of a weight, with scales of 2 bytes."""
        return self.n * self.k * self.bits // 8 + 2 * self.n * self.k // FORMATS[self.name][1]

    @property
    def count(self) -> int:
        return 1 if not self.outside else max(2, -(-2 * last_level_cache() // self.bytes))


def last_level_cache() -> int:
    """Bytes of the last-level cache that this machine's first core sees; 64 MB where it does not say, 512 MB at most."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    known = [int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes]
    return min(max(known, default=64 << 20), 512 << 20)


def layers() -> Iterator[Layer]:
    """Shapes drawn between 512 and 8192, in multiples of 256 (which Q4_K asks for), small ones in the caches."""
    for outside in (False, True):
        draw, most = np.random.default_rng([SEED, outside]), 8192 if outside else 3072
        drawn = [256 * draw.integers(2, most // 256 + 1, 2) for _ in range(SHAPES)]
        for (n, k), name, m in itertools.product(drawn, FORMATS, ROWS):
            yield Layer(name, m, int(n), int(k), outside)


def rivals(
    layer: Layer, threads: int, onnx: Callable[..., Callable[[], Any]] | None, directory: Path | None
) -> tuple[Callable[[], Any], dict[str, Callable[[], Any]]]:  # fmt: skip
    """Our product, and those of the peers that there are, by name."""
    draw = np.random.default_rng(layer.n + layer.k)
    format, group, peer = FORMATS[layer.name]
    numbers = draw.standard_normal((layer.n, layer.k)).astype(np.float32)
    x = draw.standard_normal((layer.m, layer.k)).astype(np.float32)
    made = quantize(numbers, format, group=group, zeros="group" if "zeros" in layer.name else "middle")
    middle = np.full((1, 1), 1 << (layer.bits - 1), np.float32)
    assert made.scales is not None
    zeros = made.zeros if "zeros" in layer.name else middle
    weight = QuantizedWeight(made.codes, made.format, made.scales.astype(np.float16), zeros, block=made.block)
    out = np.empty((layer.m, layer.n), np.float32)
    packed = [PackedWeight.pack(weight)]
    quant_matmul(x, packed[0], quantize="int8", out=out)
    packed += [copied(packed[0]) for _ in range(layer.count - 1)]

    def ours() -> np.ndarray:
        for one in packed:
            quant_matmul(x, one, quantize="int8", out=out)
        return out

    peers: dict[str, Callable[[], Any]] = {}
    if onnx is not None and "zeros" not in layer.name:
        scales = np.ascontiguousarray(made.scales.astype(np.float16).astype(np.float32).T)
        peers["ORT"] = onnx(made.codes, scales, layer.bits, group, x, threads, layer.count)
    if directory is not None and peer is not None:
        peers["llama.cpp"] = llama_cpp.product(directory, peer, numbers, x, layer.count, threads)
    check(ours(), x, weight.dequantize(), 0.03)
    for function in peers.values():
        found = function()
        check(found[0] if isinstance(found, list) else found, x, numbers, 0.25 if layer.bits == 4 else 0.03)
    if layer.outside:
        peers["reading"] = reading(layer.bytes * layer.count, threads)
    return ours, peers


def copied(weight: PackedWeight) -> PackedWeight:
    """The weight once more, in memory of its own where kernels read it: what they have made of it is copied, not made again."""
    other = copy.copy(weight)
    other._derived = {key: [one.copy() for one in value] if isinstance(value, list) else value
                      for key, value in weight._derived.items()}  # fmt: skip
    return other


def check(found: np.ndarray, x: np.ndarray, weight: np.ndarray, within: float) -> None:
    """A product is the right one, up to what the rounding of its operands allows."""
    expected = x.astype(np.float64) @ weight.astype(np.float64).T
    error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
    assert error < within, f"a relative error of {error:.3g}"


def reading(total: int, threads: int) -> Callable[[], Any]:
    """Reads as many bytes, by memchr for what is not there: what memory gives to so many threads."""
    parts = [np.ones(max(1, total // threads), np.uint8) for _ in range(threads)]
    find = ctypes.CDLL(None).memchr
    find.argtypes, find.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
    if threads == 1:
        return lambda: find(parts[0].ctypes.data, 0, parts[0].size)
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(lambda part: find(part.ctypes.data, 0, part.size), parts))


def summary(found: list[tuple[Layer, dict[str, float]]], threads: int) -> Iterator[str]:
    """For each peer, place and number of rows: the mean of its time over ours (geometric), and the worst with its case."""
    ratios: dict[tuple[str, bool, int], list[tuple[float, str]]] = {}
    for layer, times in found:
        for peer, seconds in times.items():
            if peer != "tilewright":
                ratio = seconds / times["tilewright"]
                ratios.setdefault((peer, layer.outside, layer.m), []).append((ratio, layer.title))
    for (peer, outside, m), values in sorted(ratios.items()):
        mean = float(np.exp(np.mean([np.log(ratio) for ratio, _ in values])))
        worst, title = min(values)
        place = "memory" if outside else "cache"
        yield f"{peer} over ours, {threads} threads, in {place}, M={m}: mean x{mean:.2f}, worst x{worst:.2f} ({title})"
