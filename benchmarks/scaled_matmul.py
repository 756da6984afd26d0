"""Products of 8-bit floats with scales beside `torch._scaled_mm` at 14 shapes of weights, and those of one row beside a plain read.

    PYTHONPATH=. python benchmarks/scaled_matmul.py [--part rows,large] [--kinds rows,tensor,blocks] [--rounds 12] [--seconds 500] [--count 14] [--turns 3] [--sweep]

*large*: 300, 777 and 2300 rows in turn, by the library's own function.  Ours with promoted sums beside the peer's default, ours with fast accumulation beside the
peer's; each with the weight as ``[N, K]`` (what the peer takes) and as ``[K, N]``.  Times are paced as in `gemm.py`: medians of single
launches, the second-level cache flushed before each.  Results are compared with float64 sums of some rows first.

*rows*: microseconds of a launch out of a CUDA graph of 16 that go round copies of the weight too large for the cache, for one row and for
a kernel that does nothing but read as many bytes; the last column is how fast ours reads beside it.  With ``--sweep`` every way to
divide the product is timed, beside the one that the kernel chooses.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from gemm import Run, Runs, timed
from gemm_shapes import WEIGHTS
from quant import LAUNCHES, ROTATED_BYTES, in_graph

import tilewright
import tilewright.language as T
from tilewright.kernels.few_rows_matmul import HEIGHTS, SPLITS, few_rows_matmul
from tilewright.matmul.fp8 import Call, kernel_for
from tilewright.targets.registry import resolve

E4M3 = "float8_e4m3fn"
ROWS, ONE_ROW, PROCESSES = (300, 777, 2300), ((4096, 4096), (28672, 8192)), 14
SHAPES = WEIGHTS[:14]
TOLERANCE = {"promoted": lambda K: 2.0**-8 + 5e-4, "fast": lambda K: 2.0**-8 + 1e-6 * K}
"""The largest error beside the largest result, that of results of bfloat16 included."""

PAUSE = 0.004


@tilewright.jit
def plain_read(words: int, threads: int = 512, each: int = 8, early: bool = False) -> Any:
    """A kernel that reads as many words, 16 bytes an access, and writes next to nothing; `early`: it is launched while the one before ends."""
    block = threads * each * 4

    @T.prim_func
    def plain_read(X: T.Tensor((words,), "int32"), Y: T.Tensor((-(-words // block),), "int32")):
        with T.Kernel(T.ceildiv(words, block), threads=threads) as b:
            found = T.alloc_fragment((block,), "int32")
            total = T.alloc_fragment((1,), "int32")
            if early:
                T.pdl_sync()
                T.pdl_trigger()
            T.copy(X[b * block], found)
            T.reduce(found, total, "bitxor", dim=0)
            Y[b] = total[0]

    return plain_read


def ways(sweep: bool, steps: int) -> list[dict[str, int]]:
    """The kernel's own choice, and with `sweep` every strip, number of parts of K and depth of ring that fit."""
    own: list[dict[str, int]] = [{}]
    if not sweep:
        return own
    return own + [
        {"height": height, "splits": splits, "stages": stages}
        for height in HEIGHTS for splits in SPLITS for stages in (4, 6, 8, 12, 16)
        if steps // splits >= stages and height * stages <= 1536
    ]  # fmt: skip


def few_rows(N: int, K: int, transpose_B: bool, way: dict[str, int]) -> Any:
    arch = resolve("cuda")[1]
    return few_rows_matmul.for_target(
        arch, N, K, E4M3, "bfloat16", 8, scaled=True, promote=True, transpose_B=transpose_B, **way
    )


def one_row(N: int, K: int, rounds: int, sweep: bool) -> None:
    """Both ways the weight may lie, torch's product, and a plain read."""
    copies = min(LAUNCHES, -(-ROTATED_BYTES // (N * K)))
    weights = [torch.randn(N, K, device="cuda").to(torch.float8_e4m3fn) for _ in range(copies)]
    across = [one.T.contiguous() for one in weights]
    a = torch.randn(1, K, device="cuda").to(torch.float8_e4m3fn)
    scale_a, scale_b = torch.rand(1, device="cuda") + 0.5, torch.rand(N, device="cuda") + 0.5
    expected = (a.double() @ weights[0].double().T) * scale_a.double() * scale_b.double()
    c = torch.empty(1, N, device="cuda", dtype=torch.bfloat16)
    runs: dict[str, Any] = {}
    sink = torch.empty(-(-N * K // 4 // (512 * 8 * 4)), device="cuda", dtype=torch.int32)
    for name, early in {"plain read": False, "plain read, launched early": True}.items():
        read = plain_read(N * K // 4, early=early)
        runs[name] = lambda i, read=read: read(weights[i % copies].view(torch.int32).reshape(-1), sink)
    runs["torch.amax of int64"] = lambda i: weights[i % copies].view(torch.int64).amax()
    for name, transpose_B in {"[N, K]": True, "[K, N]": False}.items():
        operands = weights if transpose_B else across
        for way in ways(sweep, K // 128):
            kernel = few_rows(N, K, transpose_B, way)
            run = lambda i, kernel=kernel, of=operands: (kernel(a, scale_a, of[i % copies], scale_b, c), c)[1]  # noqa: E731
            error = ((run(0).double() - expected).abs().max() / expected.abs().max()).item()
            good = error < TOLERANCE["promoted"](K)
            runs[f"{name} {way or ''}{'' if good else f' WRONG by {error:.2g}'}"] = run
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
    reading = min(time for name, time in times.items() if name in ("plain read", "torch.amax of int64"))
    print(f"\n1 x {N} x {K}, {copies} copies")
    for name, spent in times.items():
        print(f"  {name:54}{spent:8.2f} us {N * K / spent / 1e6:8.2f} TB/s {reading / spent:7.3f}", flush=True)


def product(a: Any, scale_a: Any, b: Any, scale_b: Any, transpose_B: bool, fast: bool) -> Run:
    """The library's own function, which chooses the kernel."""
    return lambda: tilewright.fp8_scaled_matmul(
        a, scale_a, b, scale_b, transpose_B=transpose_B, fast=fast, out_dtype=torch.bfloat16
    )


def compile_few_rows(N: int, K: int, transpose_B: bool, way: dict[str, int]) -> None:
    few_rows(N, K, transpose_B, way).path  # noqa: B018


def compile_large(kind: str, M: int, N: int, K: int) -> None:
    """What the library's function takes for a case."""
    scales = {
        "rows": (("lines", 0, 1), ("lines", 0, 1)), "tensor": (("tensor", 0, 1), ("tensor", 0, 1)),
        "blocks": (("groups", 128, 1), ("groups", 128, 128)),
    }[kind]  # fmt: skip
    for transpose_B, fast in ((True, False), (True, True), (False, False), (False, True))[
        :: 4 if kind == "blocks" else 1
    ]:
        call = Call(M, N, K, E4M3, E4M3, "bfloat16", *scales, transpose_B, False, fast)
        kernel_for(call, resolve("cuda")[1])[0].path  # noqa: B018


def call(work: Callable[[], None]) -> None:
    work()


def prepare(works: list[Callable[[], None]]) -> None:
    """Compile kernels into the cache, side by side."""
    begun = time.time()
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        list(pool.map(call, works))
    print(f"{len(works)} compiled in {time.time() - begun:.0f} s", flush=True)


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
        peer = lambda: torch._scaled_mm(a, b.T, scale_a=scale_a.T, scale_b=scale_b.T, out_dtype=torch.bfloat16)  # noqa: E731
        ours = product(a, scale_a.T, b, scale_b, True, False)
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
            found[way][name] = product(
                a, scale_a[:, None] if by_row else scale_a, b if transpose_B else across, scale_b, transpose_B, fast
            )
    return found, (picked, expected)


def products(options: argparse.Namespace) -> None:
    deadline, ratios = time.time() + options.seconds, defaultdict(list)
    cases = [
        (ROWS[(index + turn) % 3], *shape)
        for turn in range(options.turns)
        for index, shape in enumerate(SHAPES[: options.count])
    ]
    kinds = options.kinds.split(",")
    prepare([partial(compile_large, kind, *case) for case in cases for kind in kinds])
    for M, N, K in cases:
        for kind in kinds:
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
                    if error < TOLERANCE[way](K):
                        good[name] = run
                    else:
                        print(f"{M} x {N} x {K} {kind} {way} {name}: wrong by {error:.3g}")
                if not good:
                    continue
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
    parser.add_argument("--turns", type=int, default=3, help="numbers of rows of each shape, of 3")
    parser.add_argument("--sweep", action="store_true", help="every way to divide a product of one row")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if "rows" in options.part.split(","):
        if options.sweep:
            prepare([
                partial(compile_few_rows, N, K, transpose_B, way)
                for N, K in ONE_ROW for transpose_B in (True, False) for way in ways(True, K // 128)
            ])  # fmt: skip
        for N, K in ONE_ROW:
            one_row(N, K, options.rounds, options.sweep)
    if "large" in options.part.split(","):
        products(options)


if __name__ == "__main__":
    main()
