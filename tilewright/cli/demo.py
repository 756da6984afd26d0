"""``tilewright demo``: the main job, multiplying by a quantised weight, measured beside NumPy and torch."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.cli import demo_gpu
from tilewright.cli.contestants import Contestant
from tilewright.cli.terminal import Terminal
from tilewright.kernels.matmul import linear
from tilewright.machine.arch import Arch
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.options import options, override
from tilewright.progress import Progress
from tilewright.quant import quantize
from tilewright.targets.registry import resolve

Multiply = Callable[[np.ndarray, np.ndarray], Any]
"""Activations, and where their product is to be."""


@dataclass(frozen=True, slots=True)
class DemoFormat:
    """One way to hold the weight and to multiply by it.

    Attributes
    ----------
    label : as the table names it.
    codes, zeros : what `quantize` takes.
    activations : the type in which products are taken.
    """

    label: str
    codes: str
    zeros: str
    activations: str


FORMATS = (
    DemoFormat("int4", "int4", "none", "int8"),
    DemoFormat("uint4", "uint4", "middle", "int8"),
    DemoFormat("uint4 + zeros", "uint4", "group", "int8"),
    DemoFormat("int2", "int2", "none", "int8"),
)


HEADER = ("M", "format", "activations", "weight MiB", "error", "ms", "GOP/s", "x first")


def run_demo(given: argparse.Namespace, terminal: Terminal) -> int:
    """Quantise, compile, multiply, measure; print the table."""
    on_gpu = given.target in ("auto", "cuda") and demo_gpu.is_usable()
    wanted = "cuda" if on_gpu else "cpu" if given.target == "auto" else given.target
    arch = resolve(wanted)[1]
    generator = np.random.default_rng(0)
    weight = (generator.standard_normal((given.n, given.k)) * 0.02).astype(np.float32)
    rows: list[list[str]] = []
    with override(target=wanted), Progress(2 * len(FORMATS) + 1 + len(given.rows)) as progress:
        if on_gpu:
            contestants = list(demo_gpu.contestants(weight, given.group, progress))
        else:
            contestants = [*peers(weight), packed_float(weight, progress), *quantized(weight, given.group, progress)]
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
    worth = ("amx_int8", "vnni", "avxvnni", "i8mm", "dotprod", "amx_bf16", "bf16", "wgmma", "tma")
    features = [feature for feature in worth if arch.has(feature)]
    family = arch.name.split("-")[0]
    return ", ".join([f"{arch.target} ({family}", f"{8 * arch.vector_bytes}-bit vectors", *features]) + ")"


# Contestants


def peers(weight: np.ndarray) -> Iterator[Contestant]:
    """NumPy, and torch where it is installed, on the weight in float32."""
    megabytes, transposed = weight.nbytes / (1 << 20), weight.T
    yield Contestant("NumPy", "float32", weight, megabytes, lambda a: lambda: a @ transposed)
    if importlib.util.find_spec("torch") is not None:
        import torch

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


def quantized(weight: np.ndarray, group: int, progress: Progress) -> Iterator[Contestant]:
    """The weight in each of `FORMATS`, quantised, packed, and its kernel compiled."""
    for format in FORMATS:
        progress.step(f"{format.label}: quantising")
        made = quantize(weight, format.codes, group=group, zeros=format.zeros)
        progress.step(f"{format.label}: compiling")
        multiply = _product(PackedWeight.pack(made), format.activations)
        megabytes = made.bits_per_element * made.codes.size / 8 / (1 << 20)
        yield Contestant(
            format.label, format.activations, made.dequantize(), megabytes, _prepared(multiply, len(weight))
        )


def _product(packed: PackedWeight, activations: str) -> Multiply:
    """The product that everybody calls, with activations quantised in the same call."""
    return lambda a, c: quant_matmul(a, packed, quantize=activations, out=c)


def _prepared(product: Multiply, columns: int) -> Callable[[np.ndarray], Callable[[], np.ndarray]]:
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
            str(a.shape[0]), contestant.label, contestant.activations, f"{contestant.megabytes:.1f}",
            f"{error:.1e}", f"{ms:.3f}", f"{rate:.1f}", f"{times[0] / ms:.2f}",
        ]  # fmt: skip


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
