"""Kernels on one GPU beside torch in the same run: matmul, softmax, norm, element-wise, launch cost.

    python benchmarks/gpu.py

Medians after warm-up, the L2 cache flushed before each launch, random normal data.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "cuda" / "programs"))

from cuda_gemm import matmul

import tilewright
from tilewright.kernels.attention import flash_attention
from tilewright.kernels.elementwise import elementwise
from tilewright.kernels.rms_norm import rms_norm
from tilewright.kernels.softmax import softmax

FLUSH = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def milliseconds(function: Callable[[], object], repeats: int = 15) -> float:
    """Median time of one call by events."""
    for _ in range(3):
        function()
    samples = []
    for _ in range(repeats):
        FLUSH.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end))
    return statistics.median(samples)


def gemms() -> None:
    configurations = [
        ("sm_80", (128, 128, 32), 128, 3), ("sm_80", (128, 128, 64), 256, 3), ("sm_80", (128, 256, 32), 256, 3),
        ("sm_80", (256, 128, 32), 256, 3), ("sm_80", (128, 256, 64), 256, 3), ("sm_90a", (128, 128, 64), 128, 4),
        ("sm_90a", (128, 256, 64), 256, 4), ("sm_90a", (128, 128, 64), 256, 4),
    ]  # fmt: skip
    for size in (4096, 8192):
        a, b = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
        work = 2 * size**3 / 1e9
        print(f"bf16 {size}^3 torch: {work / milliseconds(lambda a=a, b=b: a @ b.T):.0f} TFLOP/s")
        for architecture, block, threads, stages in configurations:
            jitted = tilewright.jit(matmul, target=f"cuda -arch={architecture}")
            try:
                started = time.perf_counter()
                kernel = jitted.compile(
                    a, b, dtype="bfloat16", out="bfloat16", block=block, threads=threads, num_stages=stages
                )
                kernel(a, b)
                cold = time.perf_counter() - started
                spent = milliseconds(lambda k=kernel, a=a, b=b: k(a, b))
                print(
                    f"  {architecture} {block} {threads} threads {stages} stages: {work / spent:.0f} TFLOP/s (first call {cold:.2f} s)"
                )
            except Exception as error:
                print(f"  {architecture} {block} {threads}: {type(error).__name__}: {str(error).splitlines()[0]}")


def bandwidth() -> None:
    x = torch.randn(8192, 8192, device="cuda")
    y = torch.empty_like(x)
    weight = torch.randn(8192, device="cuda")
    moved = 2 * x.numel() * 4 / 1e6
    scale = elementwise(lambda a: a * 2 + 1, [tuple(x.shape)], ["float32"], "float32")
    rows = {
        "copy": lambda: y.copy_(x),
        "element-wise": lambda: scale(x), "torch element-wise": lambda: x * 2 + 1,
        "softmax": lambda: softmax(x), "torch softmax": lambda: torch.softmax(x, 1),
        "rms norm": lambda: rms_norm(x, weight), "torch rms norm": lambda: torch.nn.functional.rms_norm(x, (8192,), weight),
    }  # fmt: skip
    for name, function in rows.items():
        print(f"{name}: {moved / milliseconds(function):.0f} GB/s")


def attention() -> None:
    q, k, v = (torch.randn(4, 32, 4096, 128, device="cuda").half() for _ in range(3))
    work = 4 * 4 * 32 * 4096 * 4096 * 128 / 1e9
    ours = milliseconds(lambda: flash_attention(q, k, v, dtype="float16"))
    peer = milliseconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    print(f"attention 4x32x4096x128: {work / ours:.0f} TFLOP/s, torch {work / peer:.0f}")


def launches() -> None:
    x = torch.randn(256, device="cuda")
    add = elementwise(lambda a, b: a + b, [(256,), (256,)], ["float32"] * 2, "float32")
    for name, function in {"elementwise kernel": lambda: add(x, x), "torch.add": lambda: torch.add(x, x)}.items():
        for _ in range(100):
            function()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(2000):
            function()
        host = (time.perf_counter() - started) / 2000
        torch.cuda.synchronize()
        print(f"{name}: {host * 1e6:.1f} us of host time")


if __name__ == "__main__":
    print(torch.cuda.get_device_name())
    for part in (launches, bandwidth, attention, gemms):
        part()
