"""The rates of the GPU at hand, measured: memory's, the clock under products, what a launch costs.

Each is the time of a kernel of ours by which the model of speed (`kernels.roofline`) would be right: a copy of a tensor
that no cache holds, a product that the matrix unit bounds, and one that is nothing but a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.errors import Unsupported
from tilewright.kernels.dense_matmul import dense_matmul
from tilewright.kernels.elementwise import elementwise
from tilewright.kernels.roofline import Speed, speed_of
from tilewright.kernels.tile_choice import DenseProduct
from tilewright.kernels.tile_launches import Parts, cycles_of_parts
from tilewright.libraries import torch
from tilewright.machine import Arch, Rates
from tilewright.runtime.kernel import Kernel
from tilewright.tuning import time_call

COPIED = 64 << 20
"""Elements of float32 that are copied."""

PLAIN = 0.9
"""The share of a data sheet's rate of memory that a plain copy reaches."""

BOUND, SMALL = (4096, 8192, 4096), (1, 128, 128)
"""Rows, columns and depth of a product that the matrix unit bounds, and of one that is over at once."""

DTYPE = "bfloat16"

Measure = Callable[[Any, tuple[Any, ...]], float]
"""Seconds of a kernel with its arguments."""


def calibrated(arch: Arch, measure: Measure | None = None) -> Rates:
    """The rates of a machine with what was measured in the place of what its record says; takes some seconds. Where
    `measure` is None launches on the device are, apart from one another, which needs torch. Raises Unsupported for a
    machine without rates."""
    if arch.rates is None or not arch.has_threads:
        raise Unsupported(f"calibrating {arch.target} {arch.name}", ("a GPU that tilewright knows the rates of",))
    measure = measure or _on_device
    copy = elementwise(lambda x: x, [(COPIED,)], ["float32"], "float32", target=arch)
    rates = replace(arch.rates, bytes=8 * COPIED / measure(copy, ((COPIED,),)) / PLAIN)
    if not arch.starts_products:  # products of other machines have no model of their own
        return rates
    # Memory's bytes a cycle follow from the clock: once more with what was found.
    for _ in range(3):
        speed = speed_of(replace(arch, rates=rates))
        parts = _parts(BOUND, speed)
        seconds = measure(_product(arch, BOUND, parts), _shapes(BOUND))
        rates = replace(rates, cycles=cycles_of_parts(parts, BOUND[0], BOUND[2], speed) / seconds)
    return replace(rates, launch=_launch(arch, speed_of(replace(arch, rates=rates)), measure))


def _launch(arch: Arch, speed: Speed, measure: Measure) -> float:
    """Cycles of a launch: those of a product that has hardly anything else."""
    parts = _parts(SMALL, speed)
    beside = cycles_of_parts(parts, SMALL[0], SMALL[2], speed) - speed.rates.launch
    return max(1.0, measure(_product(arch, SMALL, parts), _shapes(SMALL)) * speed.rates.cycles - beside)


def _parts(size: tuple[int, int, int], speed: Speed) -> Parts:
    M, N, K = size
    return DenseProduct(N, K, DTYPE, speed).fastest_parts(M)


def _product(arch: Arch, size: tuple[int, int, int], parts: Parts) -> Kernel:
    _, N, K = size
    return dense_matmul.for_target(arch, N, K, DTYPE, out=DTYPE, tiles=parts)


def _shapes(size: tuple[int, int, int]) -> tuple[tuple[int, ...], ...]:
    M, N, K = size
    return (M, K), (N, K), (M, N)


def _on_device(kernel: Kernel, shapes: tuple[tuple[int, ...], ...]) -> float:
    """Seconds of a launch with random numbers; zeros are multiplied with less power."""
    kind = torch.float32 if len(shapes) == 1 else torch.bfloat16
    tensors = [torch.randn(*shape, device="cuda").to(kind) for shape in shapes]
    return time_call(lambda: kernel(*tensors), "cuda") * 1e-3
