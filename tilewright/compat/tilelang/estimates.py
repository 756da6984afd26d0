"""``tilelang.tools.Analyzer``: what a program computes and moves, counted on what its author wrote."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tilewright.arith import Analyzer as Arithmetic
from tilewright.compat.tilelang.carver import Device
from tilewright.ir import Extent, For, Kernel, Load, Parallel, Pipelined, Store, children, index_binary, root
from tilewright.kernels.roofline import speed_of
from tilewright.ops import Copy, Gemm
from tilewright.specialization import InvalidUse


@dataclass(frozen=True)
class AnalysisResult:
    """What a program does, and how long a machine takes for it at least.

    Loops whose number of iterations depends on the block count with the most iterations.

    Attributes
    ----------
    total_flops : multiplications and additions of its products.
    total_global_bytes : that it reads from and writes to tensors.
    estimated_time : seconds, the longer of what products and what memory take.
    expected_tflops, expected_bandwidth_GBps : rates that this time amounts to.
    """

    total_flops: int
    total_global_bytes: int
    estimated_time: float
    expected_tflops: float
    expected_bandwidth_GBps: float


class Analyzer:
    """Counts the products and the traffic of a program."""

    def __init__(self, fn: Any, device: Device) -> None:
        self.function, self.device = getattr(fn, "function", fn), device
        self.total_flops = self.total_global_bytes = 0
        self._arithmetic = Arithmetic()

    def ir_pass(self) -> Analyzer:
        """Count."""
        self._count(self.function.body, 1)
        return self

    def calculate(self) -> AnalysisResult:
        """How long the machine takes for what was counted."""
        speed = speed_of(self.device.machine)
        rate = dict(speed.products).get(2) or speed.products[0][1]
        products = self.total_flops / (2 * rate * speed.cores * speed.rates.cycles)
        seconds = max(products, self.total_global_bytes / speed.rates.bytes)
        flops, moved = ((one / seconds if seconds else 0.0) for one in (self.total_flops, self.total_global_bytes))
        return AnalysisResult(self.total_flops, self.total_global_bytes, seconds, flops / 1e12, moved / 1e9)

    @classmethod
    def analysis(cls, fn: object, device: Device) -> AnalysisResult:
        """Count the work of a `T.prim_func` whose sizes are numbers, and say how long a machine, ``CUDA("cuda")`` for
        example, takes for it."""
        return cls(fn, device).ir_pass().calculate()

    def _size(self, extent: Extent, what: str) -> int:
        """The most that an extent may be."""
        found = self._arithmetic.bounds(extent)[1]
        if found is None:
            raise InvalidUse(
                f"the work of {what} depends on what is known when it runs", hint="give the program's sizes as numbers"
            )
        return max(0, found)

    def _count(self, node: object, times: int) -> None:
        if isinstance(node, Kernel):
            sizes = [self._size(extent, "a grid") for extent in node.grid]
            for var, size in zip(node.block_vars, sizes, strict=True):
                self._arithmetic.bind_extent(var, size)
            times *= math.prod(sizes)
        elif isinstance(node, (For, Pipelined)):
            iterations = self._size(index_binary("sub", node.stop, node.start), f"the loop over {node.var.name}")
            step = self._size(node.step, "a step") if isinstance(node, For) else 1
            times *= -(-iterations // max(1, step))
        elif isinstance(node, Parallel):
            times *= math.prod(self._size(extent, "a parallel loop") for extent in node.extents)
        elif isinstance(node, Gemm):
            rows, deep = node.a.extents[-2:] if not node.transpose_a else node.a.extents[-2:][::-1]
            columns = node.b.extents[-2 if node.transpose_b else -1]
            sizes = [self._size(extent, "a product") for extent in (rows, columns, deep)]
            self.total_flops += 2 * math.prod(sizes) * times
        elif isinstance(node, Copy):
            for region in (node.source, node.destination):
                if root(region.buffer).scope == "global":
                    elements = math.prod(self._size(extent, "a copy") for extent in region.extents)
                    self.total_global_bytes += region.dtype.nbytes(elements) * times
        elif isinstance(node, (Load, Store)) and root(node.buffer).scope == "global":
            self.total_global_bytes += node.buffer.dtype.nbytes(1) * times
        for child in children(node):
            self._count(child, times)
