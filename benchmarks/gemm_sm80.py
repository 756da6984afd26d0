"""bf16 matmul through mma.sync and cp.async pipelines, tile by tile, beside torch in the same run.

    python benchmarks/gemm_sm80.py [--sizes 4096,8192] [--arch sm_80] [--rounds 7]

The goal is 370 TFLOP/s at 8192^3 on an H200.  Random normal data; contestants take turns within a round, each timed
over several launches by events, and the median over the rounds counts.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

import tilewright
import tilewright.language as T

CONFIGURATIONS = [
    ((128, 128, 32), 128, 3), ((128, 128, 32), 128, 4), ((128, 128, 64), 128, 3), ((128, 128, 32), 256, 4),
    ((128, 256, 32), 256, 3), ((128, 256, 32), 256, 4), ((256, 128, 32), 256, 3), ((256, 128, 32), 256, 4),
    ((128, 256, 64), 256, 3), ((256, 128, 64), 256, 3),
]  # fmt: skip
"""Tile (m, n, k), threads, stages."""

GROUPS = (1, 8)
"""Rows of tiles that are walked together, for the L2 cache."""


def matmul(A, B, block=(128, 128, 32), threads=128, num_stages=3, group=8):
    """``A @ B.T``; blocks take tiles in groups of rows."""
    M, N, K = T.const("M, N, K")
    block_M, block_N, block_K = block
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), "bfloat16")
    columns = T.ceildiv(N, block_N)
    with T.Kernel(columns * T.ceildiv(M, block_M), threads=threads) as number:
        band = number // (group * columns)
        row = band * group + number % group
        column = number % (group * columns) // group
        a = T.alloc_shared((block_M, block_K), "bfloat16")
        b = T.alloc_shared((block_N, block_K), "bfloat16")
        c = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[row * block_M, k * block_K], a)
            T.copy(B[column * block_N, k * block_K], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[row * block_M, column * block_N])
    return C


def milliseconds(function: Callable[[], object], launches: int = 5) -> float:
    """Time of one launch, of several in a row."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(launches):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / launches


def contestants(a: torch.Tensor, b: torch.Tensor, architecture: str) -> dict[str, Callable[[], object]]:
    """What is compared, by name; each has run once and is right."""
    found: dict[str, Callable[[], object]] = {"torch": lambda: a @ b.T}
    expected = a @ b.T
    jitted = tilewright.jit(matmul, target=f"cuda -arch={architecture}")
    for block, threads, stages in CONFIGURATIONS:
        for group in GROUPS:
            if (a.shape[0] // block[0]) % group:
                continue
            name = f"{block} {threads} threads {stages} stages, groups of {group}"
            try:
                kernel = jitted.compile(a, b, block=block, threads=threads, num_stages=stages, group=group)
                torch.testing.assert_close(kernel(a, b), expected, rtol=2e-2, atol=2e-1)
            except tilewright.TilewrightError as error:
                print(f"{name}: {type(error).__name__}: {error.message}")
                continue
            found[name] = lambda kernel=kernel: kernel(a, b)
    return found


def compare(size: int, architecture: str, rounds: int) -> None:
    """One table, the fastest first."""
    a, b = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
    running = contestants(a, b, architecture)
    samples: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, function in running.items():
            samples[name].append(milliseconds(function))
    print(f"bf16 {size}^3, {architecture}")
    for name, times in sorted(samples.items(), key=lambda one: statistics.median(one[1])):
        print(f"  {2 * size**3 / 1e9 / statistics.median(times):6.0f} TFLOP/s  {name}")


def main() -> None:
    """Compare at every size asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="4096,8192")
    parser.add_argument("--arch", default="sm_80")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    for size in options.sizes.split(","):
        compare(int(size), options.arch, options.rounds)


if __name__ == "__main__":
    main()
