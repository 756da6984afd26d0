"""Dense GEMM on a Hopper GPU: kernels of the language beside the hand-written model's text and cuBLAS.

    PYTHONPATH=.:tests/gpu python benchmarks/gemm.py [--sizes 8192x8192x8192,...] [--rounds 12] [--only plain,roles]

Each row is one size and one kernel, bfloat16 in and out, float sums, C = A B^T.  Two columns, as the models' headers
explain: *paced*, single launches 15 ms apart, so that the power limit does not bind (to judge); *sustained*,
launches one after the other in turn (to report).  L2 is flushed before every launch; times are medians.  Results
are compared with cuBLAS's on the same operands, and bit by bit with those of a second launch.

    plain   the ordinary kernel of `tilewright.kernels.matmul`; the compiler makes its roles
    roles   `tilewright.kernels.hopper_matmul`: roles by hand, persistent blocks, clusters of two (``alone``: of one)
    model   tests/gpu/texts/hopper_gemm_*.cu: clusters of two with multicast, persistent
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from models import TILES, Gemm

import tilewright
from tilewright.kernels.hopper_matmul import hopper_matmul
from tilewright.kernels.matmul import matmul

SIZES = "8192x8192x8192,4096x28672x8192,4096x4096x4096,2048x2048x2048"
PAUSE = 0.015
SPIN_CYCLES = 1_000_000
FLUSH_BYTES = 256 << 20

Run = Callable[[], Any]


def plain(block_M: int, block_N: int, stages: int, cluster: tuple[int, int] | None = None) -> Callable[[Any, Any], Any]:
    """The library's kernel with a tile of this size; 128 rows or columns a warpgroup."""

    def run(a: Any, b: Any) -> Any:
        return matmul(
            a, b, dtype="bfloat16", out="bfloat16", transpose_B=True, block_M=block_M, block_N=block_N, block_K=64,
            threads=256, num_stages=stages, cluster=cluster,
        )  # fmt: skip

    return run


def roles(block_M: int, block_N: int, stages: int, cluster: int = 2) -> Callable[[Any, Any], Any]:
    """The kernel with roles by hand; bands of 2048 rows, as the model walks them."""

    def run(a: Any, b: Any) -> Any:
        band = 2048 // (block_M * cluster)
        return hopper_matmul(a, b, block_M=block_M, block_N=block_N, stages=stages, band=band, cluster=cluster)

    return run


KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "plain 128x256": plain(128, 256, 4, (1, 2)),
    "plain 256x128": plain(256, 128, 4),
    "plain 256x192": plain(256, 192, 3),
    "roles 128x256": roles(128, 256, 4),
    "roles 128x256 alone": roles(128, 256, 4, 1),
    "roles 256x128": roles(256, 128, 4),
    "roles 256x192": roles(256, 192, 3),
}


def rivals(a: Any, b: Any, wanted: list[str]) -> dict[str, Run]:
    """Callables by name; each gives C."""
    c = torch.empty(a.shape[0], b.shape[0], device="cuda", dtype=torch.bfloat16)
    runs: dict[str, Run] = {"cublas": lambda: torch.mm(a, b.T)}
    for number, tile in TILES.items():
        gemm = Gemm(tile)
        runs[f"model {tile.bm}x{tile.bn}"] = lambda gemm=gemm: (gemm(a, b, c), c)[1]
        assert number
    runs.update((name, lambda kernel=kernel: kernel(a, b)) for name, kernel in KERNELS.items())
    return {name: run for name, run in runs.items() if name == "cublas" or any(word in name for word in wanted)}


def timed(runs: dict[str, Run], rounds: int, pause: float) -> dict[str, float]:
    """Median seconds of each, in turn, `pause` seconds before each launch."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for index in range(rounds):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            flush.zero_()
            if pause:
                torch.cuda.synchronize()
                time.sleep(pause)
                torch.cuda._sleep(SPIN_CYCLES)  # the host prepares the launch meanwhile
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            runs[name]()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e-3)
    return {name: statistics.median(found) for name, found in times.items()}


def checked(runs: dict[str, Run]) -> dict[str, Run]:
    """The runs that work; what is wrong with the others is printed."""
    expected = runs["cublas"]().float()
    good = {}
    for name, run in runs.items():
        try:
            first = run().clone()
            again = run()
        except tilewright.TilewrightError as error:
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        error = (first.float() - expected).abs().max().item() / expected.abs().max().item()
        if not error < 1e-2 or not torch.equal(first, again):
            print(f"{name}: WRONG (relative error {error:.3g}, repeats {torch.equal(first, again)})")
            continue
        good[name] = run
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", default="plain,roles,model")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOP/s and ratio to cuBLAS")
    torch.manual_seed(0)
    for size in options.sizes.split(","):
        m, n, k = map(int, size.split("x"))
        a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
        runs = checked(rivals(a, b, options.only.split(",")))
        paced, sustained = timed(runs, options.rounds, PAUSE), timed(runs, 4 * options.rounds, 0.0)
        print(f"\n{size:24}{'paced':>8} {'ratio':>6} {'sustained':>11} {'ratio':>6}")
        for name in runs:
            rates = [2e-12 * m * n * k / found[name] for found in (paced, sustained)]
            ratios = [found["cublas"] / found[name] for found in (paced, sustained)]
            print(f"  {name:22}{rates[0]:8.1f} {ratios[0]:6.3f} {rates[1]:11.1f} {ratios[1]:6.3f}")


if __name__ == "__main__":
    main()
