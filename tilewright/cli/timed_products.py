"""Times of products by quantised weights: run by `tilewright bench`, in its own process or with an older tilewright.

Run as a script, it reads a request in JSON from standard input and writes the samples to standard output. It uses
public names alone, so that it also runs where `PYTHONPATH` leads to another commit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from tilewright.libraries import torch

if TYPE_CHECKING:
    from tilewright.matmul import PackedWeight


class BenchRequest(TypedDict):
    """What to time: products of ``[M, K]`` by a weight ``[N, K]`` in each format."""

    formats: list[str]
    rows: list[int]
    n: int
    k: int
    group: int
    activations: str
    gpu: bool
    milliseconds: float


class Sample(TypedDict):
    """Milliseconds of single calls of one product."""

    format: str
    rows: int
    bytes: int
    milliseconds: list[float]


def timed(request: BenchRequest) -> Iterator[Sample]:
    """Samples of every product, one after the other."""
    from tilewright.matmul import PackedWeight
    from tilewright.quant import quantize

    random = np.random.default_rng(0)
    weight = (random.standard_normal((request["n"], request["k"])) * 0.02).astype(np.float32)
    for name in request["formats"]:
        made = quantize(weight, name, group=min(request["group"], request["k"]))
        packed = PackedWeight.pack(made, "cuda") if request["gpu"] else PackedWeight.pack(made)
        size = int(made.bits_per_element * made.codes.size / 8)
        for rows in request["rows"]:
            x = random.standard_normal((rows, request["k"])).astype(np.float32)
            call = _on_gpu(packed, x, request) if request["gpu"] else _here(packed, x, request)
            yield {"format": name, "rows": rows, "bytes": size, "milliseconds": _samples(call, request["milliseconds"])}


def _here(packed: PackedWeight, x: np.ndarray, request: BenchRequest) -> Callable[[], object]:
    from tilewright.matmul import quant_matmul

    out = np.empty((len(x), request["n"]), np.float32)
    return lambda: quant_matmul(x, packed, quantize=request["activations"] or "int8", out=out)


def _on_gpu(packed: PackedWeight, x: np.ndarray, request: BenchRequest) -> Callable[[], object]:
    from tilewright.matmul import quant_matmul

    a = torch.from_numpy(x).cuda().half()
    out = torch.empty(len(x), request["n"], dtype=torch.float16, device="cuda")
    return captured(lambda: quant_matmul(a, packed, quantize=request["activations"] or None, out=out))


def captured(product: Callable[[], object]) -> Callable[[], object]:
    """A replay of one captured call that waits for its result, as servers run a model's step: what is timed is the
    device's work, not Python's."""
    product()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product()

    def call(holds: object = product) -> None:  # what is replayed reads its memory
        graph.replay()
        torch.cuda.synchronize()

    return call


def _samples(call: Callable[[], object], milliseconds: float) -> list[float]:
    call()  # compiles
    call()
    found: list[float] = []
    end = time.perf_counter() + milliseconds / 1e3
    while len(found) < 5 or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        found.append((time.perf_counter() - started) * 1e3)
    return found


if __name__ == "__main__":
    json.dump(list(timed(json.load(sys.stdin))), sys.stdout)
