"""``tilewright demo``: the main job, multiplying by a quantised weight, measured beside NumPy and torch."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.cli.terminal import Progress, Terminal
from tilewright.kernels.quant_matmul import quant_matmul_int8
from tilewright.machine.arch import Arch
from tilewright.options import options, override
from tilewright.quant import QuantizedWeight, quantize
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.profiler import do_bench
from tilewright.targets.registry import resolve


@dataclass(frozen=True, slots=True)
class Format:
    """One way to hold the weight and to multiply by it.

    Attributes
    ----------
    label : as the table names it.
    codes, zeros : what `quantize` takes.
    activations : in what the products are computed, for the table.
    factory : the kernel's.
    """

    label: str
    codes: str
    zeros: str
    activations: str
    factory: Callable[..., Kernel]


FORMATS = (
    Format("int4", "int4", "none", "int8", quant_matmul_int8),
    Format("uint4", "uint4", "middle", "int8", quant_matmul_int8),
    Format("uint4 + zeros", "uint4", "group", "int8", quant_matmul_int8),
    Format("int2", "int2", "none", "int8", quant_matmul_int8),
)

HEADER = ("M", "format", "activations", "weight MiB", "error", "ms", "GOP/s", "x NumPy")


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes of the demonstration and its random operands."""

    rows: tuple[int, ...]
    weight: np.ndarray
    activations: dict[int, np.ndarray]
    group: int

    @property
    def operations(self) -> int:
        """Multiplications and additions of one row."""
        return 2 * self.weight.size


def run_demo(given: argparse.Namespace, terminal: Terminal) -> int:
    """Quantise, compile, multiply, measure; print the table as it grows."""
    problem = make_problem(given.rows, given.n, given.k, given.group)
    wanted = "cpu" if given.target == "auto" else given.target
    arch = resolve(wanted)[1]
    threads = options().num_threads or arch.cores
    count = len(FORMATS) * (2 + len(problem.rows)) + 2 * len(problem.rows)
    with override(target=wanted), Progress(count) as progress:
        peers = list(measure_peers(problem, progress, given.milliseconds))
        numpy_time = {row.rows: row.milliseconds for row in peers if row.label == "NumPy"}
        rows = peers + [row for format in FORMATS for row in measure(format, problem, given, progress)]
    n, k = problem.weight.shape
    terminal.write(terminal.paint(f"C[M, {n}] = A[M, {k}] W[{n}, {k}]ᵀ, the weight in groups of {given.group}", "bold"))
    terminal.write(f"{describe(arch)}, {threads} {'thread' if threads == 1 else 'threads'}\n")
    shown = [row.cells(problem, numpy_time) for row in sorted(rows, key=lambda row: row.rows)]
    terminal.table(HEADER, shown, best="ms", within="M")
    terminal.write("\nerror: relative, of the whole product, against float64 with the same (quantised) weight")
    return 0


def describe(arch: Arch) -> str:
    """A machine in a few words: its family, the width of its vectors, what multiplies small integers and halves."""
    worth = ("amx_int8", "vnni", "avxvnni", "i8mm", "dotprod", "amx_bf16", "bf16", "wgmma", "tma")
    features = [feature for feature in worth if arch.has(feature)]
    family = arch.name.split("-")[0]
    return ", ".join([f"{arch.target} ({family}", f"{8 * arch.vector_bytes}-bit vectors", *features]) + ")"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    label: str
    activations: str
    rows: int
    megabytes: float
    error: float
    milliseconds: float

    def cells(self, problem: Problem, numpy_time: dict[int, float]) -> list[str]:
        rate = problem.operations * self.rows / self.milliseconds / 1e6
        return [
            str(self.rows), self.label, self.activations, f"{self.megabytes:.1f}", f"{self.error:.1e}",
            f"{self.milliseconds:.3f}", f"{rate:.1f}", f"{numpy_time[self.rows] / self.milliseconds:.2f}",
        ]  # fmt: skip


def make_problem(rows: tuple[int, ...], n: int, k: int, group: int) -> Problem:
    """Random operands, the weight distributed as trained ones are."""
    generator = np.random.default_rng(0)
    weight = (generator.standard_normal((n, k)) * 0.02).astype(np.float32)
    activations = {m: generator.standard_normal((m, k)).astype(np.float32) for m in rows}
    return Problem(tuple(rows), weight, activations, group)


def measure(format: Format, problem: Problem, given: argparse.Namespace, progress: Progress) -> Iterator[Row]:
    """The rows of one format: one for each number of rows of A."""
    n, k = problem.weight.shape
    progress.step(f"{format.label}: quantising")
    weight = quantize(problem.weight, format.codes, group=problem.group, zeros=format.zeros)
    progress.step(f"{format.label}: compiling")
    kernel = format.factory(n, k, weights=format.codes, group=problem.group, zero=weight.zero)
    packed = kernel.pack(W=weight.packed)
    exact_weight = weight.dequantize().astype(np.float64)
    for m in problem.rows:
        progress.step(f"{format.label}: {m} rows")
        a, c = problem.activations[m], np.empty((m, n), np.float32)
        arguments = [a, packed, weight.scales, *([] if weight.zeros is None else [weight.zeros]), c]
        kernel(*arguments)
        exact = a.astype(np.float64) @ exact_weight.T
        time = do_bench(lambda arguments=arguments: kernel(*arguments), rep=given.milliseconds)  # type: ignore[misc]
        yield Row(format.label, format.activations, m, _megabytes(weight), relative_error(c, exact), time)


def _megabytes(weight: QuantizedWeight) -> float:
    return weight.bits_per_element * weight.codes.size / 8 / (1 << 20)


def relative_error(found: np.ndarray, exact: np.ndarray) -> float:
    """Norm of the difference over the norm of the exact product."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def measure_peers(problem: Problem, progress: Progress, milliseconds: float) -> Iterator[Row]:
    """NumPy, and torch where it is installed, on the weight in float32."""
    exact = {m: a.astype(np.float64) @ problem.weight.astype(np.float64).T for m, a in problem.activations.items()}
    megabytes = problem.weight.nbytes / (1 << 20)
    for label, multiply in _peers(problem.weight):
        for m in problem.rows:
            progress.step(f"{label}: {m} rows")
            a = problem.activations[m]
            error = relative_error(np.asarray(multiply(a)), exact[m])
            time = do_bench(lambda a=a, multiply=multiply: multiply(a), rep=milliseconds)  # type: ignore[misc]
            yield Row(label, "float32", m, megabytes, error, time)


def _peers(weight: np.ndarray) -> Iterator[tuple[str, Callable[[np.ndarray], Any]]]:
    transposed = weight.T
    yield "NumPy", lambda a: a @ transposed
    if importlib.util.find_spec("torch") is not None:
        import torch

        held = torch.from_numpy(weight)
        with torch.no_grad():
            yield "torch", lambda a: torch.nn.functional.linear(torch.from_numpy(a), held)
