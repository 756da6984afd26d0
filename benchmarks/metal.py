"""Products on a Mac: ours, torch's MPS backend and MLX, on the same tensors, each with its result allocated alike.

    python benchmarks/metal.py [SIZE...] [--dtype float16] [--tile 64 64 32 128] [--components] [--quantised]

Every SIZE is M = N = K, or MxNxK.  With torch, each side writes a result that is there before (``out=``); with MLX each call makes a
new one, since MLX has no other way; results have the type of the operands on all sides.  ``--components`` times the same kernel with a part of its work: only its loads, only its
products, only its stores.  ``--quantised`` times one and few rows by int4 weights beside ``mx.quantized_matmul``.  A time is the
median of REPEATED runs of CALLS calls that are waited for once.  Nobody of this project has run it: `tests/unit/metal` runs its kernels
in the emulator.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilewright
import tilewright.language as T
from tilewright.runtime.kernel import Kernel

CALLS, REPEATED = 20, 7
PARTS = ("whole", "load", "product", "store")
TILE = (64, 64, 32, 128)
"""Rows, columns and depth of a block's tile, and its threads."""


def product(M: int, N: int, K: int, dtype: str, tile: Sequence[int] = TILE, part: str = "whole") -> Any:
    """``C = A B^T`` as a program, or a part of its work: what is left out leaves zeros, or a sum that needs what was loaded."""
    rows, columns, depth, threads = tile
    loads, multiplies = part in ("whole", "load"), part in ("whole", "product")

    @T.prim_func
    def multiplied(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=threads) as (bx, by):
            a, b = T.alloc_shared((rows, depth), dtype), T.alloc_shared((columns, depth), dtype)
            c = T.alloc_fragment((rows, columns), "float32")
            T.use_swizzle(4, order="mlx")
            T.clear(c)
            if not loads:
                T.clear(a)
                T.clear(b)
            for k in T.Pipelined(T.ceildiv(K, depth), num_stages=1):
                if loads:
                    T.copy(A[by * rows, k * depth], a)
                    T.copy(B[bx * columns, k * depth], b)
                if multiplies:
                    T.gemm(a, b, c, transpose_B=True)
                elif loads:
                    for i, j in T.Parallel(rows, columns):
                        if j < depth:
                            c[i, j] += T.cast(a[i, j], "float32") + T.cast(b[j, i % depth], "float32")
            if part in ("whole", "store"):
                T.copy(c, C[by * rows, bx * columns])
            else:
                for i, j in T.Parallel(rows, columns):
                    if (i == 0) & (j == 0):  # one element, so that the work is not left out
                        C[by * rows, bx * columns] = c[i, j]

    return multiplied


def seconds(run: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Of one call: the median of several measurements."""
    for _ in range(3):
        run()
    wait()
    found = []
    for _ in range(REPEATED):
        start = time.perf_counter()
        for _ in range(CALLS):
            run()
        wait()
        found.append((time.perf_counter() - start) / CALLS)
    return statistics.median(found)


def line(name: str, took: float, operations: float) -> str:
    return f"  {name:24s} {took * 1e3:9.3f} ms {operations / took / 1e12:8.2f} TFLOP/s"


def with_torch(sizes: tuple[int, int, int], dtype: str, kernels: dict[str, Kernel]) -> list[str]:
    """Beside ``torch.mm``: both write a result that is there."""
    import torch

    M, N, K = sizes
    a, b = (torch.randn(shape, device="mps").to(getattr(torch, dtype)) for shape in ((M, K), (N, K)))
    ours, theirs = (torch.empty((M, N), device="mps", dtype=a.dtype) for _ in range(2))
    wait, lines = torch.mps.synchronize, []
    for part, kernel in kernels.items():
        lines.append(line(f"ours, {part}", seconds(lambda kernel=kernel: kernel(a, b, ours), wait), 2.0 * M * N * K))
    kernels["whole"](a, b, ours)
    wait()
    expected = (a.float().cpu().double() @ b.float().cpu().double().T).numpy()
    error = abs(ours.cpu().double().numpy() - expected).max() / abs(expected).max()
    lines.append(line("torch.mm", seconds(lambda: torch.mm(a, b.T, out=theirs), wait), 2.0 * M * N * K))
    return [*lines, f"  ours is off by {error:.1e} of the largest result"]


def with_mlx(sizes: tuple[int, int, int], dtype: str, tile: Sequence[int], chip: str) -> list[str]:
    """Beside ``mx.matmul``: both make their result."""
    import mlx.core as mx

    M, N, K = sizes
    kernel = tilewright.compile(product(M, N, K, dtype, tile), out_idx=[-1], target=chip)
    a, b = (mx.random.normal(shape).astype(getattr(mx, dtype)) for shape in ((M, K), (N, K)))
    mx.eval(a, b)
    made = {"ours through MLX": lambda: mx.eval(kernel(a, b)), "mx.matmul": lambda: mx.eval(mx.matmul(a, b.T))}
    return [line(name, seconds(run, mx.synchronize), 2.0 * M * N * K) for name, run in made.items()]


def quantised(N: int, K: int, chip: str) -> list[str]:
    """One and few rows by int4 weights, beside MLX's own; the figure is the weight's bytes a second."""
    import mlx.core as mx
    import numpy as np
    import torch

    weight = np.random.default_rng(0).standard_normal((N, K)).astype(np.float32)
    packed = tilewright.quantize(weight, "int4", group=64)
    layer, (w, scales, biases) = tilewright.Linear(packed).to("mps"), mx.quantize(mx.array(weight), 64, 4)
    lines = []
    for rows in (1, 4, 16):
        x, given = torch.randn((rows, K), device="mps").half(), mx.random.normal((rows, K)).astype(mx.float16)
        mx.eval(given)
        theirs = lambda given=given: mx.eval(  # noqa: E731
            mx.quantized_matmul(given, w, scales, biases, transpose=True, group_size=64, bits=4)
        )
        for name, run, wait in (("ours", lambda x=x: layer(x), torch.mps.synchronize), ("MLX", theirs, mx.synchronize)):
            took = seconds(run, wait)
            lines.append(f"  {rows:2d} rows, {name:5s} {took * 1e6:9.1f} us {N * K / 2 / took / 1e9:8.1f} GB/s")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=["4096"])
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16", "float32"))
    parser.add_argument("--tile", type=int, nargs=4, default=TILE, metavar=("ROWS", "COLUMNS", "DEPTH", "THREADS"))
    parser.add_argument("--components", action="store_true", help="also the loads, the products and the stores alone")
    parser.add_argument("--quantised", action="store_true", help="also int4 weights of 4096 x 4096")
    parser.add_argument("--target", default="metal", help="another chip's records")
    options = parser.parse_args()
    for size in options.sizes:
        parts = [int(one) for one in size.split("x")]
        sizes = (parts[0], parts[-2] if len(parts) == 3 else parts[0], parts[-1])
        names = PARTS if options.components else ("whole",)
        kernels = {
            part: tilewright.compile(product(*sizes, options.dtype, options.tile, part), target=options.target)
            for part in names
        }
        print(f"{sizes[0]} x {sizes[1]} x {sizes[2]}, {options.dtype}")
        print(f"  {kernels['whole'].explain().splitlines()[-1]}")
        try:
            print("\n".join(with_torch(sizes, options.dtype, kernels)))
            print("\n".join(with_mlx(sizes, options.dtype, options.tile, options.target)))
        except (ImportError, RuntimeError, tilewright.errors.TilewrightError) as error:
            print(f"  no Mac with torch and MLX here: {str(error).splitlines()[0]}")
            return 1
    if options.quantised:
        print("int4 weights of 4096 x 4096, groups of 64")
        print("\n".join(quantised(4096, 4096, options.target)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
