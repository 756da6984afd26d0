"""``tilewright demo``: the main job, multiplying by a quantised weight, measured beside NumPy and torch."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tilewright.cli import demo_gpu
from tilewright.cli.contestants import FORMATS, Contestant, Prepare, quantized
from tilewright.cli.terminal import Terminal
from tilewright.kernels.matmul import linear
from tilewright.libraries import torch
from tilewright.machine.arch import Arch
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.options import options, override
from tilewright.progress import Progress
from tilewright.quant import QuantizedWeight
from tilewright.targets.registry import resolve

Multiply = Callable[[np.ndarray, np.ndarray], object]
"""Activations, and where their product is to be."""


HEADER = ("M", "format", "activations", "weight MiB", "error", "ms", "GOP/s", "x first")


def run_demo(given: argparse.Namespace, terminal: Terminal) -> int:
    """Quantise, compile, multiply, measure; print the table."""
    wanted = demo_gpu.measured_on(given.target)
    arch = resolve(wanted)[1]
    on_gpu = arch.has_threads
    generator = np.random.default_rng(0)
    weight = (generator.standard_normal((given.n, given.k)) * 0.02).astype(np.float32)
    rows: list[list[str]] = []
    with override(target=wanted), Progress(2 * len(FORMATS) + 1 + len(given.rows)) as progress:
        if on_gpu:
            contestants = list(demo_gpu.contestants(weight, given.group, progress))
        else:
            codes = quantized(weight, given.group, progress, "int8", multiplied)
            contestants = [*peers(weight), packed_float(weight, progress), *codes]
        for m in given.rows:
            progress.step(f"measuring with {m} rows")
            activations = generator.standard_normal((m, given.k)).astype(np.float32)
            rows += measure(contestants, activations, given.milliseconds)
    threads = options().num_threads or arch.cores
    title = f"C[M, {given.n}] = A[M, {given.k}] W[{given.n}, {given.k}]ᵀ, the weight in groups of {given.group}"
    terminal.write(terminal.paint(title, "bold"))
    where = "" if on_gpu else f", {threads} {'thread' if threads == 1 else 'threads'}"
    terminal.write(f"{describe(arch)}{where}\n")
    terminal.table(HEADER, rows, best="ms", within="M")
    terminal.write("\nerror: relative, of the whole product, against float64 with the same (quantised) weight")
    return 0


def describe(arch: Arch) -> str:
    """A machine in a few words: its family, the width of its vectors, what multiplies small integers and halves."""
    worth = ("amx_int8", "vnni", "avxvnni", "i8mm", "dotprod", "amx_bf16", "bf16", "wgmma")
    features = [feature for feature in worth if arch.has(feature)]
    family = arch.name.split("-")[0]
    return ", ".join([f"{arch.target} ({family}", f"{8 * arch.vector_bytes}-bit vectors", *features]) + ")"


# Contestants


def peers(weight: np.ndarray) -> Iterator[Contestant]:
    """NumPy, and torch where it is installed, on the weight in float32."""
    megabytes, transposed = weight.nbytes / (1 << 20), weight.T
    yield Contestant("NumPy", "float32", weight, megabytes, lambda a: lambda: a @ transposed)
    if importlib.util.find_spec("torch") is not None:
        held = torch.from_numpy(weight)

        def prepare(a: np.ndarray) -> Callable[[], object]:
            tensor = torch.from_numpy(a)
            return lambda: torch.nn.functional.linear(tensor, held)

        yield Contestant("torch", "float32", weight, megabytes, prepare)


def packed_float(weight: np.ndarray, progress: Progress) -> Contestant:
    """This library's own product with the weight in float32."""
    progress.step("float32: compiling")
    kernel = linear(*weight.shape)
    packed = kernel.pack(W=weight)
    prepare = _prepared(lambda a, c: kernel(a, packed, c), len(weight))
    return Contestant("float32", "float32", weight, weight.nbytes / (1 << 20), prepare)


def multiplied(weight: QuantizedWeight) -> Prepare:
    """The product that everybody calls, with activations quantised to int8 in the same call."""
    packed = PackedWeight.pack(weight)
    return _prepared(lambda a, c: quant_matmul(a, packed, quantize="int8", out=c), weight.shape[0])


def _prepared(product: Multiply, columns: int) -> Prepare:
    def prepare(a: np.ndarray) -> Callable[[], np.ndarray]:
        c = np.empty((a.shape[0], columns), np.float32)

        def multiply() -> np.ndarray:
            product(a, c)
            return c

        multiply()  # compiles
        return multiply

    return prepare


# Measuring


def measure(contestants: Sequence[Contestant], a: np.ndarray, milliseconds: float) -> Iterator[list[str]]:
    """One line of the table for each contestant's product with `a`."""
    calls = [contestant.prepare(a) for contestant in contestants]
    times = median_times(calls, milliseconds)
    for contestant, call, ms in zip(contestants, calls, times, strict=True):
        error = relative_error(np.asarray(call()), a.astype(np.float64) @ contestant.weight.astype(np.float64).T)
        rate = 2 * a.shape[0] * contestant.weight.size / ms / 1e6
        yield [
            str(a.shape[0]),
            contestant.label,
            contestant.activations,
            f"{contestant.megabytes:.1f}",
            f"{error:.1e}",
            f"{ms:.3f}",
            f"{rate:.1f}",
            f"{times[0] / ms:.2f}",
        ]


def median_times(calls: Sequence[Callable[[], object]], milliseconds: float) -> list[float]:
    """Median milliseconds of each call.

    The calls take turns, at least three each, so that all of them meet the same moods of a shared machine.
    """
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + milliseconds * len(calls) / 1e3
    while len(samples[0]) < 3 or time.perf_counter() < end:
        for call, taken in zip(calls, samples, strict=True):
            started = time.perf_counter()
            call()
            taken.append((time.perf_counter() - started) * 1e3)
    return [statistics.median(taken) for taken in samples]


def relative_error(found: np.ndarray, exact: np.ndarray) -> float:
    """Norm of the difference over the norm of the exact product."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
