"""Products of 8-bit floats with scales beside `torch._scaled_mm` at 14 shapes of weights, and those of one row beside a plain read.

    PYTHONPATH=. python benchmarks/scaled_matmul.py [--part rows,large] [--kinds rows,tensor,blocks] [--rounds 12] [--seconds 500] [--count 14]

*large*: 300, 777 and 2300 rows in turn.  Ours with promoted sums beside the peer's default, ours with fast accumulation beside the
peer's; each with the weight as ``[N, K]`` (what the peer takes) and as ``[K, N]``.  Times are paced as in `gemm.py`: medians of single
launches, the second-level cache flushed before each.  Results are compared with float64 sums of some rows first.

*rows*: microseconds of a launch out of a CUDA graph of 16 that go round copies of the weight too large for the cache, for one row and for
a kernel that does nothing but read as many bytes; the last column is how fast ours reads beside it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import defaultdict
from typing import Any

import torch
from gemm import Run, Runs, timed
from gemm_shapes import WEIGHTS
from quant import LAUNCHES, ROTATED_BYTES, in_graph

import tilewright
import tilewright.language as T
from tilewright.kernels.block_scaled_matmul import block_scaled_matmul, block_tiles
from tilewright.kernels.dense_matmul import scaled_matmul
from tilewright.kernels.few_rows_matmul import few_rows_matmul
from tilewright.kernels.tile_choice import choose_parts, choose_promoted

E4M3 = "float8_e4m3fn"
ROWS = 300, 777, 2300
SHAPES = WEIGHTS[:14]
TENSOR, FACTOR = "tensor", 0.01
TOLERANCE = {"promoted": 2.0**-8 + 1.5e-4, "fast": 2.0**-8 + 1e-3}
"""The largest error beside the largest result, that of results of bfloat16 included."""

PAUSE = 0.004


@tilewright.jit
def plain_read(words: int, threads: int = 512, each: int = 8) -> Any:
    """A kernel that reads as many words, 16 bytes an access, and writes next to nothing."""
    block = threads * each * 4

    @T.prim_func
    def plain_read(X: T.Tensor((words,), "int32"), Y: T.Tensor((-(-words // block),), "int32")):
        with T.Kernel(T.ceildiv(words, block), threads=threads) as b:
            found = T.alloc_fragment((block,), "int32")
            total = T.alloc_fragment((1,), "int32")
            T.copy(X[b * block], found)
            T.reduce(found, total, "bitxor", dim=0)
            Y[b] = total[0]

    return plain_read


def one_row(N: int, K: int, rounds: int) -> None:
    """Both ways the weight may lie, torch's product, and a plain read."""
    copies = min(LAUNCHES, -(-ROTATED_BYTES // (N * K)))
    weights = [torch.randn(N, K, device="cuda").to(torch.float8_e4m3fn) for _ in range(copies)]
    a = torch.randn(1, K, device="cuda").to(torch.float8_e4m3fn)
    scale_a, scale_b = torch.rand(1, device="cuda") + 0.5, torch.rand(N, device="cuda") + 0.5
    expected = (a.double() @ weights[0].double().T) * scale_a.double() * scale_b.double()
    c = torch.empty(1, N, device="cuda", dtype=torch.bfloat16)
    runs: dict[str, Any] = {}
    read = plain_read(N * K // 4)
    sink = torch.empty(-(-N * K // 4 // (512 * 8 * 4)), device="cuda", dtype=torch.int32)
    runs["plain read"] = lambda i: read(weights[i % copies].view(torch.int32).reshape(-1), sink)
    runs["torch.amax of int64"] = lambda i: weights[i % copies].view(torch.int64).amax()
    for name, options in {"[N, K]": {}, "[K, N]": {"transpose_B": False}}.items():
        for how in (
            {},
            {"height": 64, "splits": 1},
            {"height": 64, "splits": 2},
            {"height": 64, "splits": 4},
            {"height": 128, "splits": 1},
        ):
            kernel = few_rows_matmul(N, K, E4M3, "bfloat16", 1, scaled=True, promote=True, **options, **how)
            turned = [one.T.contiguous() for one in weights] if options else weights
            run = lambda i, kernel=kernel, turned=turned: (kernel(a, scale_a, turned[i % copies], scale_b, c), c)[1]  # noqa: E731
            error = ((run(0).double() - expected).abs().max() / expected.abs().max()).item()
            good = error < TOLERANCE["promoted"]
            runs[f"{name} {how or ''}{'' if good else f' WRONG by {error:.2g}'}"] = run
    wide = torch.rand(1, 1, device="cuda"), scale_b.reshape(1, N)
    runs["scaled_mm"] = lambda i: torch._scaled_mm(
        a, weights[i % copies].T, scale_a=wide[0], scale_b=wide[1], out_dtype=torch.bfloat16
    )
    times = {}
    for name, run in runs.items():
        try:
            times[name] = in_graph(run, rounds)
        except Exception as problem:
            print(f"  {name}: {type(problem).__name__}: {str(problem).splitlines()[0][:120]}")
    reading = min(time for name, time in times.items() if name.startswith(("plain", "torch.amax")))
    print(f"\n1 x {N} x {K}, {copies} copies")
    for name, spent in times.items():
        print(f"  {name:44}{spent:8.2f} us {N * K / spent / 1e6:8.2f} TB/s {reading / spent:7.3f}", flush=True)


def output(kernel: Any, M: int, N: int, *arguments: Any) -> Run:
    kernel.begin()
    c = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    return lambda: (kernel(*arguments, c), c)[1]


def large(M: int, N: int, K: int, kind: str) -> tuple[dict[str, Runs], Any]:
    """Callables by name, the peer first, for each way of adding up; and what some rows of the result should be."""
    a, b = (torch.randn(size, K, device="cuda").to(torch.float8_e4m3fn) for size in (M, N))
    across = b.T.contiguous()
    picked = torch.randint(0, M, (64,), device="cuda")
    if kind == "blocks":
        scale_a, scale_b = (
            torch.rand(shape, device="cuda") + 0.5 for shape in ((-(-K // 128), M), (-(-N // 128), -(-K // 128)))
        )
        wide = b.double() * scale_b.repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)[:, :K].double()
        expected = (a.double() * scale_a.T.repeat_interleave(128, 1)[:, :K].double())[picked] @ wide.T
        kernel = block_scaled_matmul(N, K, tiles=block_tiles(M, N))
        peer = lambda: torch._scaled_mm(a, b.T, scale_a=scale_a.T, scale_b=scale_b.T, out_dtype=torch.bfloat16)  # noqa: E731
        ours = output(kernel, M, N, a, b, scale_a, scale_b)
        return {"promoted": {"scaled_mm": peer, "[N, K]": ours}}, (picked, expected)
    by_row = kind == "rows"
    scale_a, scale_b = (torch.rand(size if by_row else 1, device="cuda") + 0.5 for size in (M, N))
    expected = (a.double()[picked] @ b.double().T) * (
        scale_a.double()[picked, None] * scale_b.double() if by_row else scale_a.double() * scale_b.double()
    )
    peer_scales = (scale_a[:, None], scale_b[None]) if by_row else (scale_a.reshape(()), scale_b.reshape(()))
    found: dict[str, Runs] = {}
    for way in ("promoted", "fast"):
        fast = way == "fast"
        found[way] = {
            "scaled_mm": lambda fast=fast: torch._scaled_mm(
                a, b.T, scale_a=peer_scales[0], scale_b=peer_scales[1], out_dtype=torch.bfloat16, use_fast_accum=fast
            )
        }
        for name, transpose_B in {"[N, K]": True, "[K, N]": False}.items():
            choose = choose_parts if fast else choose_promoted
            parts = choose(M, N, K, E4M3, turned=None if transpose_B else True)
            kernel = scaled_matmul(
                N, K, E4M3, None, "bfloat16", "token" if by_row else TENSOR, "channel" if by_row else TENSOR,
                transpose_B=transpose_B, tiles=parts, promote=not fast,
            )  # fmt: skip
            found[way][name] = output(kernel, M, N, a, b if transpose_B else across, scale_a, scale_b)
    return found, (picked, expected)


def products(options: argparse.Namespace) -> None:
    deadline, ratios = time.time() + options.seconds, defaultdict(list)
    cases = [
        (ROWS[(index + turn) % 3], *shape) for turn in range(3) for index, shape in enumerate(SHAPES[: options.count])
    ]
    for M, N, K in cases:
        for kind in options.kinds.split(","):
            if time.time() > deadline:
                break
            ways, (picked, expected) = large(M, N, K, kind)
            for way, runs in ways.items():
                good: Runs = {}
                for name, run in runs.items():
                    try:
                        error = ((run()[picked].double() - expected).abs().max() / expected.abs().max()).item()
                    except Exception as problem:
                        print(
                            f"{M} x {N} x {K} {kind} {way} {name}: {type(problem).__name__}: {str(problem).splitlines()[0][:120]}"
                        )
                        continue
                    if error < TOLERANCE[way]:
                        good[name] = run
                    else:
                        print(f"{M} x {N} x {K} {kind} {way} {name}: wrong by {error:.3g}")
                times = timed(good, options.rounds, PAUSE)
                line = f"{M:5} x {N:5} x {K:5} {kind:6} {way:8}"
                for name, spent in times.items():
                    ratio = times["scaled_mm"] / spent if "scaled_mm" in times else math.nan
                    line += f"  {name} {spent * 1e6:7.1f} us" + (f" ({ratio:.3f})" if name != "scaled_mm" else "")
                    if name != "scaled_mm" and "scaled_mm" in times:
                        ratios[kind, way, name].append((ratio, f"{M} x {N} x {K}"))
                print(line, flush=True)
            torch.cuda.empty_cache()
    print(
        "\n| scales | sums | weight | cases | scaled_mm's time over ours | worst | at |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for (kind, way, name), found in sorted(ratios.items()):
        mean = statistics.geometric_mean(ratio for ratio, _ in found)
        worst, place = min(found)
        print(f"| {kind} | {way} | {name} | {len(found)} | {mean:.3f} | {worst:.3f} | {place} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", default="rows,large")
    parser.add_argument("--kinds", default="rows,tensor,blocks")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--count", type=int, default=14, help="shapes, of 14")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if "rows" in options.part.split(","):
        for N, K in ((4096, 4096), (28672, 8192)):
            one_row(N, K, options.rounds)
    if "large" in options.part.split(","):
        products(options)


if __name__ == "__main__":
    main()
