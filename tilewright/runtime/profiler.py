"""Timing kernels: medians of repeated calls after a warm-up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir import Buffer, Var, evaluate, size_variables
from tilewright.ir.arguments import storage_shape


def do_bench(function: Callable[[], object], *, warmup: float = 25.0, rep: float = 100.0) -> float:
    """Median time of ``function()`` in milliseconds; see `samples`."""
    return statistics.median(samples(function, warmup=warmup, rep=rep))


def samples(function: Callable[[], object], *, warmup: float = 25.0, rep: float = 100.0) -> list[float]:
    """Times of single calls of ``function()``, in milliseconds.

    Parameters
    ----------
    warmup, rep : how long to warm up and to measure, in milliseconds; at least three calls are measured.
    """
    function()
    end = time.perf_counter() + warmup / 1e3
    while time.perf_counter() < end:
        function()
    found: list[float] = []
    end = time.perf_counter() + rep / 1e3
    while len(found) < 3 or time.perf_counter() < end:
        started = time.perf_counter()
        function()
        found.append((time.perf_counter() - started) * 1e3)
    return found


@dataclass(slots=True)
class Profiler:
    """Times one kernel on random arguments.

    Attributes
    ----------
    kernel : what to time.
    sizes : a value for every dynamic size, by name.
    seed : of the random arguments.
    """

    kernel: Any
    sizes: dict[str, int] = field(default_factory=dict)
    seed: int = 0

    def arguments(self) -> list[Any]:
        """Random inputs: floats from the normal distribution, integers from their whole range."""
        function = self.kernel.function
        values = {var: self.sizes.get(var.name, 1024) for var in size_variables(function)}
        rng = np.random.default_rng(self.seed)
        return [self._random(param, values, rng) for param in function.inputs]

    def _random(self, param: Buffer | Var, values: dict[Var, int], rng: np.random.Generator) -> object:
        if isinstance(param, Var):
            return self.sizes.get(param.name, 1)
        shape = storage_shape(tuple(evaluate(extent, values) for extent in param.shape), param.dtype)
        if param.dtype.is_packed:
            return rng.integers(0, 256, shape, dtype=np.uint8)
        if param.dtype.kind == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        if param.dtype.is_integer:
            low, high = int(param.dtype.minimum), int(param.dtype.maximum)
            return rng.integers(low, high, shape, dtype=param.dtype.numpy, endpoint=True)
        return rng.standard_normal(shape).astype(param.dtype.numpy)

    def do_bench(
        self, function: Callable[..., object] | None = None, *, warmup: float = 25.0, rep: float = 100.0
    ) -> float:
        """Median time of a call in milliseconds, of the kernel or of another function of the same arguments."""
        arguments = self.arguments()
        called = function or self.kernel
        return do_bench(lambda: called(*arguments), warmup=warmup, rep=rep)
