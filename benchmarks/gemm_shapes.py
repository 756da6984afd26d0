"""Dense products of random sizes beside cuBLAS: whether tiles are chosen well for shapes that nobody named.

    PYTHONPATH=.:tests/gpu python benchmarks/gemm_shapes.py [--count 40] [--seed 1] [--others 0] [--seconds 200]

Rows are random between 64 and 8192 (two thirds of them multiples of 64), weights those of published language models.  Times
are paced as in `gemm.py`; each line ends with the tiles that `DenseProduct` chose and the cycles of its model, and the last
line has the mean and the worst ratio.  With ``--others`` the model's next choices run too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator

import torch
from gemm import output, timed
from gemm import random as random_matrix

from tilewright.kernels.dense_matmul import dense_matmul
from tilewright.kernels.tile_choice import DenseProduct
from tilewright.kernels.tile_launches import Parts, cycles_of_parts

WEIGHTS = [
    (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 8192), (28672, 8192), (8192, 28672),
    (24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048), (32768, 512), (2112, 7168), (7168, 18432), (5120, 5120),
    (27648, 5120), (5120, 27648), (7168, 5120), (3584, 3584), (18944, 3584), (3584, 18944), (4608, 3584), (2048, 2048),
    (1536, 7168), (3072, 1024), (16384, 2048),
]  # fmt: skip
"""Rows and columns of weights: Llama, DeepSeek, Qwen and others."""

PAUSE = 0.008


def sizes(count: int, seed: int) -> Iterator[tuple[int, int, int]]:
    chance = random.Random(seed)
    for _ in range(count):
        rows = int(2 ** chance.uniform(6.1, 13))
        yield (rows if chance.random() < 0.3 else -(-rows // 64) * 64, *chance.choice(WEIGHTS))


def told(parts: Parts, M: int, K: int) -> str:
    """Parts in words, with what the model says of them."""
    words = []
    for columns, one in parts:
        words.append(f"{columns}: {one.block_M}x{one.block_N} {one.cluster} K/{one.splits} {one.stages} slots")
    return "; ".join(words) + f" ({cycles_of_parts(parts, M, K):.0f} cycles)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--others", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=200)
    options = parser.parse_args()
    deadline, ratios = time.time() + options.seconds, []
    for M, N, K in sizes(options.count, options.seed):
        if time.time() > deadline:
            print("out of time")
            break
        a, b = (random_matrix(size, K, torch.bfloat16) for size in (M, N))
        runs = {"cublas": lambda a=a, b=b: torch.mm(a, b.T)}
        expected = runs["cublas"]().float()
        tried = [parts for parts, _ in zip(DenseProduct(N, K).candidates(M), range(1 + options.others))]
        for parts in tried:
            run = output(dense_matmul(N, K, "bfloat16", None, "bfloat16", tiles=parts), M, N, torch.bfloat16, a, b)
            found, again = run().clone(), run()
            assert torch.equal(found, again), (M, N, K, parts)
            assert (found.float() - expected).abs().max() <= 1e-2 * expected.abs().max(), (M, N, K, parts)
            runs[told(parts, M, K)] = run
        times = timed(runs, 5, PAUSE)
        ratios.append(times["cublas"] / times[told(tried[0], M, K)])
        print(f"{M} x {N} x {K}: {ratios[-1]:.3f}")
        for name, seconds in times.items():
            print(f"    {seconds * 1e6:8.1f} us  {name}", flush=True)
    mean = statistics.geometric_mean(ratios)
    below = sum(ratio < 1 for ratio in ratios)
    print(
        f"{len(ratios)} products: cuBLAS's time over ours {mean:.3f} on average, at least {min(ratios):.3f}, {below} below 1"
    )


if __name__ == "__main__":
    main()
