"""Dense GEMM on a Hopper GPU: the library's kernels beside cuBLAS(Lt), Triton and the hand-written model's text.

    PYTHONPATH=.:tests/gpu python benchmarks/gemm.py [--cases bf16:8192x8192x8192,int8:...] [--rounds 12] [--tiles 128x256,...]

A case is a family and a size M x N x K.  Families: ``bf16`` (A and B row by row along k), ``bf16-nn``, ``bf16-tn``, ``bf16-tt``
(the two letters: A, then B, n where k is that operand's last dimension for A and its first for B), ``int8`` and ``int8-nn`` ... (token
and channel scales; cuBLASLt has none, Humming has both), ``e4m3`` (one scale an operand; orders as for ``int8``), ``e4m3-rows`` (token and channel scales), ``e4m3-blocks``
(scales of 1 x 128 and 128 x 128 blocks), ``bf16-few`` (at most 64 rows), ``tf32``, ``f64``; ``sparse-f16``, ``sparse-bf16``, ``sparse-int8``,
``sparse-e4m3``: A is 2:4 sparse, the first peer our dense kernel on the same A, the second cuSPARSELt.  Triton's product
(`triton_matmul.py`) runs where Triton is installed.

Two columns, as the models' headers explain: *paced*, single launches 15 ms apart with the host's launch hidden, so that
the power limit does not bind (to judge); *sustained*, launches one after the other in turn (to report).  L2 is flushed
before every launch; times are medians.  Results are compared with the peer's on the same operands, and bit by bit with
those of a second launch.  Ratios are to the first peer of the family.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peers import HUMMING, Humming

sys.path.append(str(Path(__file__).parents[1] / "tests" / "unit" / "cuda" / "programs"))

from sparse_matmul import pack_metadata, sparse_matmul, sparse_parts

import tilewright
from tilewright.kernels.dense_matmul import dense_matmul, scaled_matmul
from tilewright.kernels.few_rows_matmul import few_rows_matmul
from tilewright.kernels.tile_choice import DenseProduct, parts_for
from tilewright.kernels.tile_launches import Parts
from tilewright.kernels.tiles import Tiles

CASES = ",".join(
    f"{family}:{size}"
    for family, sizes in {
        "bf16": "8192x8192x8192 4096x28672x8192 4096x4096x4096 2048x2048x2048 1024x28672x8192 1024x8192x8192 "
                "1024x10240x8192 256x28672x8192 256x8192x8192 256x10240x8192",
        "bf16-nn": "8192x8192x8192", "bf16-tn": "8192x8192x8192", "bf16-tt": "8192x8192x8192",
        "int8": "8192x8192x8192 4096x28672x8192 1024x8192x8192 256x28672x8192",
        "int8-nn": "8192x8192x8192", "int8-tn": "8192x8192x8192", "int8-tt": "8192x8192x8192",
        "e4m3": "8192x8192x8192 4096x28672x8192 4096x4096x4096", "e4m3-nn": "8192x8192x8192", "e4m3-tn": "8192x8192x8192",
        "e4m3-tt": "8192x8192x8192", "e4m3-rows": "8192x8192x8192 4096x28672x8192",
        "e4m3-blocks": "4096x7168x16384 64x7168x16384",
        "bf16-few": "1x28672x8192 16x28672x8192 64x28672x8192 1x4096x4096 16x4096x4096 64x4096x4096",
        "tf32": "4096x4096x4096", "sparse-f16": "8192x8192x8192 4096x4096x4096", "sparse-bf16": "8192x8192x8192",
        "sparse-int8": "8192x8192x8192", "sparse-e4m3": "8192x8192x8192",
    }.items()
    for size in sizes.split()
)  # fmt: skip
PAUSE = 0.015
ONLY_VENDOR = False
"""Whether the hand-written models and Triton are left out."""
SPIN_CYCLES = 4_000_000
FLUSH_BYTES = 256 << 20

Run = Callable[[], Any]
Runs = dict[str, Run]
"""Callables by name; each gives C.  Peers come first, the one that ratios are taken to before all others."""


def ours(
    M: int, dtype: str, N: int, K: int, tried: list[Tiles], turned: bool | None = None
) -> dict[str, Tiles | Parts]:  # fmt: skip
    """Tiles by the name of their row: the library's choice, and others asked for."""
    chosen: dict[str, Tiles | Parts] = {"tilewright": DenseProduct(N, K, dtype, swapped=turned).fastest_parts(M)}
    size = torch_type(dtype).itemsize
    for one in tried:
        stages = min(8, (194 << 10) // ((one.block_M + one.block_N) * 128))
        tiles = replace(one, block_K=128 // size, stages=one.stages or stages)
        pair = " ping-pong" * one.ping_pong
        chosen[f"  {one.block_M}x{one.block_N} {one.cluster} {one.splits} {tiles.stages}{pair}"] = tiles
    return chosen


def torch_type(dtype: str) -> torch.dtype:
    return {"tfloat32": torch.float32}.get(dtype) or getattr(torch, dtype)


def random(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.randint(-127, 128, (rows, columns), device="cuda", dtype=dtype)
    return torch.randn(rows, columns, device="cuda", dtype=torch.float32).to(dtype)


def half(M: int, N: int, K: int, tried: list[Tiles], order: str = "nt", dtype: str = "bfloat16") -> Runs:
    """Floats against cuBLAS, in every order of the operands."""
    kind = torch_type(dtype)
    transpose_A, transpose_B = order[0] == "t", order[1] == "t"
    a = random(K, M, kind) if transpose_A else random(M, K, kind)
    b = random(N, K, kind) if transpose_B else random(K, N, kind)
    left, right = a.T if transpose_A else a, b.T if transpose_B else b
    runs: Runs = {"cublas": lambda: torch.mm(left, right)}
    if order == "nt" and dtype == "bfloat16" and not ONLY_VENDOR:
        runs.update(models(a, b) | triton_run(a, b))
    for name, tiles in ours(M, dtype, N, K, tried).items():
        kernel = dense_matmul(N, K, dtype, None, dtype.replace("tfloat", "float"), transpose_A, transpose_B, tiles)
        runs[name] = output(kernel, M, N, kind, a, b)
    return runs


def triton_run(a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> Runs:
    """Triton's product, where Triton is installed."""
    try:
        from triton_matmul import triton_matmul
    except ImportError as error:
        print(f"  triton: {error}")
        return {}
    return {"triton": triton_matmul(a, b, scale)}


def models(a: torch.Tensor, b: torch.Tensor) -> Runs:
    """The hand-written kernels' texts, launched by our own host code."""
    from models import TILES, Gemm

    c = torch.empty(a.shape[0], b.shape[0], device="cuda", dtype=torch.bfloat16)
    made = {f"model {tile.bm}x{tile.bn}": Gemm(tile) for tile in TILES.values()}
    return {name: lambda gemm=gemm: (gemm(a, b, c), c)[1] for name, gemm in made.items()}


def output(kernel: Any, M: int, N: int, dtype: torch.dtype, *arguments: Any) -> Run:
    """A call into an output that stays, as the peers' allocators keep theirs."""
    c = torch.empty(M, N, device="cuda", dtype=dtype)
    return lambda: (kernel(*arguments, c), c)[1]


def integers(M: int, N: int, K: int, tried: list[Tiles], order: str = "nt") -> Runs:
    """int8 with token and channel scales, against cuBLASLt's int32 sums (scaled here for the comparison only).

    Of other orders than nt the second peer is our kernel for nt.
    """
    a, b = random(M, K, torch.int8), random(N, K, torch.int8)
    scales_a, scales_b = (torch.rand(size, device="cuda") * 1e-3 + 1e-3 for size in (M, N))
    runs: Runs = {"cublaslt int32": lambda: torch._int_mm(a, b.T)}
    reference = (runs["cublaslt int32"]().double() * scales_a[:, None].double() * scales_b.double()).to(torch.bfloat16)
    runs["cublaslt int32"].expected = reference
    if order == "nt" and HUMMING and not ONLY_VENDOR:
        codes = (b.int() + 128).to(torch.uint8)
        humming = Humming("uint8", codes, scales_b[:, None].to(torch.bfloat16), torch.int8, torch.bfloat16)
        result = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
        runs["humming"] = lambda: (humming(a, result, scales_a[:, None]), result)[1]
    if order != "nt":
        tiles = DenseProduct(N, K, "int8").fastest_parts(M)
        runs["our nt"] = output(
            scaled_matmul(N, K, "int8", tiles=tiles), M, N, torch.bfloat16, a, b, scales_a, scales_b
        )
    transpose_A, transpose_B = order[0] == "t", order[1] == "t"
    turned = None if transpose_A != transpose_B else not transpose_B
    for name, tiles in ours(M, "int8", N, K, tried, turned).items():
        given = a.T.contiguous() if transpose_A else a, b if transpose_B else b.T.contiguous()
        kernel = scaled_matmul(N, K, "int8", transpose_A=transpose_A, transpose_B=transpose_B, tiles=tiles)
        runs[name] = output(kernel, M, N, torch.bfloat16, *given, scales_a, scales_b)
    return runs


def eights(M: int, N: int, K: int, tried: list[Tiles], rows: bool = False, order: str = "nt") -> Runs:
    """e4m3 with one scale an operand, or token and channel scales, against `_scaled_mm`, which has nt alone."""
    e4m3 = torch.float8_e4m3fn
    a, b = random(M, K, e4m3), random(N, K, e4m3)
    shape_a, shape_b = ((M, 1), (1, N)) if rows else ((), ())
    scale_a, scale_b = (torch.rand(shape, device="cuda") + 0.5 for shape in (shape_a, shape_b))

    def peer(fast: bool) -> Run:
        return lambda: torch._scaled_mm(
            a, b.T, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    runs: Runs = {"scaled_mm": peer(False), "scaled_mm fast": peer(True)}
    if not rows and order == "nt":
        runs.update(triton_run(a, b, (scale_a * scale_b).item()))
    transpose_A, transpose_B = order[0] == "t", order[1] == "t"
    turned = None if transpose_A != transpose_B else not transpose_B
    kinds, types = ("token", "channel") if rows else ("tensor", "tensor"), ("float8_e4m3fn", None, "bfloat16")
    scales = scale_a.reshape(-1), scale_b.reshape(-1)
    if order != "nt":
        kernel = scaled_matmul(N, K, *types, *kinds, tiles=DenseProduct(N, K, types[0]).fastest_parts(M))
        runs["our nt"] = output(kernel, M, N, torch.bfloat16, a, b, *scales)
    for name, tiles in ours(M, types[0], N, K, tried, turned).items():
        given = a.T.contiguous() if transpose_A else a, b if transpose_B else b.T.contiguous()
        kernel = scaled_matmul(N, K, *types, *kinds, False, transpose_A, transpose_B, tiles)
        runs[name] = output(kernel, M, N, torch.bfloat16, *given, *scales)
    return runs


def blocks(M: int, N: int, K: int, tried: list[Tiles]) -> Runs:
    """e4m3 with scales of 1 x 128 and 128 x 128 blocks, promoted sums; the peer is cuBLASLt where it has them."""
    e4m3 = torch.float8_e4m3fn
    a, b = random(M, K, e4m3), random(N, K, e4m3)
    scales_a, scales_b = (torch.rand(shape, device="cuda") + 0.5 for shape in ((K // 128, M), (-(-N // 128), K // 128)))
    wide_a = a.float() * scales_a.T.repeat_interleave(128, 1)
    wide_b = b.float() * scales_b.repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)
    expected = (wide_a @ wide_b.T).to(torch.bfloat16)
    runs: Runs = {"reference": lambda: expected}

    def peer() -> torch.Tensor:
        return torch._scaled_mm(a, b.T, scale_a=scales_a.T, scale_b=scales_b.T, out_dtype=torch.bfloat16)

    try:
        peer()
        runs = {"scaled_mm blocks": peer}
    except RuntimeError as error:
        print(f"  scaled_mm: {str(error).splitlines()[0]}")
    first = next(iter(runs.values()))
    first.expected = expected
    ways: dict[str, Parts] = {
        "tilewright": parts_for(DenseProduct(N, K, "float8_e4m3fn", promoted=True, in_blocks=True), M)
    }
    for tiles in tried:
        stages = tiles.stages or min(8, (194 << 10) // ((tiles.block_M + tiles.block_N) * 128))
        full = Tiles(tiles.block_M, tiles.block_N, 128, stages, tiles.threads, tiles.cluster)
        ways[f"  {tiles.block_M}x{tiles.block_N} {tiles.cluster}"] = ((N, full),)
    for name, parts in ways.items():
        kernel = scaled_matmul(N, K, "float8_e4m3fn", scale_A="group", scale_B="block", tiles=parts)
        runs[name] = output(kernel, M, N, torch.bfloat16, a, b, scales_a, scales_b)
    return runs


def few(M: int, N: int, K: int, tried: list[Tiles]) -> Runs:
    """A few rows of bfloat16; tiles that are tried say rows of the weight, parts of K and stages: ``64x64*4+2``."""
    a, b = random(M, K, torch.bfloat16), random(N, K, torch.bfloat16)
    runs: Runs = {"cublas": lambda: torch.mm(a, b.T)}
    ways = {
        "tilewright": {},
        **{
            f"  {t.block_M} rows, {t.splits} parts, {t.stages} stages": {
                "height": t.block_M,
                "splits": t.splits,
                "stages": t.stages or None,
            }
            for t in tried
        },
    }
    for name, way in ways.items():
        kernel = few_rows_matmul(N, K, "bfloat16", "bfloat16", M, **way)
        runs[name] = output(kernel, M, N, torch.bfloat16, a, b)
    return runs


def sparse(M: int, N: int, K: int, tried: list[Tiles], dtype: str) -> Runs:
    """A 2:4 sparse, random kept values in random places; the result of 8-bit operands is bfloat16 (our dense int8 has scales too)."""
    kind = torch_type(dtype)
    out = dtype if kind.itemsize == 2 else "bfloat16"
    codes = torch.tensor([4, 8, 9, 12, 13, 14], device="cuda", dtype=torch.uint8)
    nibbles = codes[torch.randint(0, 6, (M, K // 4), device="cuda")]
    metadata = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    kept, b = random(M, K // 2, kind), random(N, K, kind)
    wide = torch.zeros(M, K // 4, 4, device="cuda")
    places = torch.stack([nibbles & 3, nibbles >> 2], -1).long()
    a = wide.scatter_(-1, places, kept.float().reshape(M, K // 4, 2)).reshape(M, K).to(kind)
    scales = [torch.ones(size, device="cuda") for size in (M, N)] if dtype == "int8" else []
    dense = scaled_matmul(N, K, dtype) if scales else dense_matmul(N, K, dtype, None, out)
    runs: Runs = {"our dense": output(dense, M, N, torch_type(out), a, b, *scales)}
    try:
        runs["cusparselt"] = cusparselt(a, b, torch_type(out))
    except RuntimeError as error:
        print(f"  cusparselt: {str(error).splitlines()[0]}")
    ways = {"tilewright": sparse_parts(M, N, K, dtype)} | {f"  {t.block_M}x{t.block_N} {t.cluster}": t for t in tried}
    for name, tiles in ways.items():
        if isinstance(tiles, Tiles):
            tiles = Tiles(
                tiles.block_M, tiles.block_N, 128 // kind.itemsize, tiles.stages or 4, tiles.threads, tiles.cluster
            )
        kernel = sparse_matmul(M, K, dtype, out, tiles=tiles)
        runs[name] = output(kernel, M, N, torch_type(out), kept, pack_metadata(metadata, dtype), b)
    return runs


def cusparselt(a: torch.Tensor, b: torch.Tensor, out: torch.dtype) -> Run:
    """The library's product with its best algorithm."""
    compressed = torch._cslt_compress(a)
    types = {} if out == a.dtype else {"out_dtype": out}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = torch._cslt_sparse_mm_search(compressed, b.T, **types)
    return lambda: torch._cslt_sparse_mm(compressed, b.T, alg_id=best, **types)


FAMILIES: dict[str, Callable[[int, int, int, list[Tiles]], Runs]] = {
    "bf16": half,
    **{f"bf16-{order}": lambda *size, order=order: half(*size, order=order) for order in ("nn", "tn", "tt")},
    "tf32": lambda *size: half(*size, dtype="tfloat32"),
    "f64": lambda *size: half(*size, dtype="float64"),
    "int8": integers,
    **{f"int8-{order}": lambda *size, order=order: integers(*size, order=order) for order in ("nn", "tn", "tt")},
    "e4m3": eights,
    **{f"e4m3-{order}": lambda *size, order=order: eights(*size, order=order) for order in ("nn", "tn", "tt")},
    "bf16-few": few,
    "e4m3-blocks": blocks,
    **{
        f"sparse-{name}": lambda *size, dtype=dtype: sparse(*size, dtype=dtype)
        for name, dtype in {"f16": "float16", "bf16": "bfloat16", "int8": "int8", "e4m3": "float8_e4m3fn"}.items()
    },
    "e4m3-rows": lambda *size: eights(*size, rows=True),
}


def timed(runs: Runs, rounds: int, pause: float) -> dict[str, float]:
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


def checked(runs: Runs, tolerance: float) -> Runs:
    """The runs that work; what is wrong with the others is printed.

    Parameters
    ----------
    tolerance : the largest error, beside the largest value of the result.
    """
    peer = next(iter(runs.values()))
    expected = getattr(peer, "expected", None)
    expected = (peer() if expected is None else expected).double()
    good = {}
    for name, run in runs.items():
        try:
            first = run().clone()
            again = run()
        except (tilewright.TilewrightError, RuntimeError) as error:
            print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        error = (first.double() - expected).abs().max().item() / expected.abs().max().item()
        if (run is not peer and not error < tolerance) or not torch.equal(first, again):
            print(f"  {name}: WRONG (relative error {error:.3g}, repeats {torch.equal(first, again)})")
            continue
        good[name] = run
    return good


def asked_tiles(text: str) -> list[Tiles]:
    """Tiles like ``128x256``, ``128x256/1x2`` (blocks along N and M that share loads), ``64x256@128*6`` (threads, stages),
    ``128x256+2`` (parts of K) or ``128x192p`` (two consumers of 128 threads in turn)."""
    found = []
    for word in filter(None, text.split(",")):
        word, _, splits = word.partition("+")
        word, _, stages = word.partition("*")
        word, _, threads = word.partition("@")
        word, _, cluster = word.partition("/")
        in_turn = word.endswith("p")
        block_M, block_N = map(int, word.rstrip("p").split("x"))
        pair = tuple(map(int, cluster.split("x"))) if cluster else None
        threads = int(threads or (128 if in_turn else 256))
        found.append(Tiles(block_M, block_N, 0, int(stages or 0), threads, pair, int(splits or 1), ping_pong=in_turn))
    return found


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tiles", default="")
    parser.add_argument("--only-vendor", action="store_true", help="without the hand-written models and Triton")
    options = parser.parse_args()
    global ONLY_VENDOR
    ONLY_VENDOR = options.only_vendor
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOP/s and ratio to the first peer")
    for case in options.cases.split(","):
        family, size = case.split(":")
        M, N, K = map(int, size.split("x"))
        torch.manual_seed(0)
        tolerance = 2e-2 if "e4m3" in family else 1e-2  # accumulators of 8-bit floats keep 14 bits
        runs = checked(FAMILIES[family](M, N, K, asked_tiles(options.tiles)), tolerance)
        paced, sustained = timed(runs, options.rounds, PAUSE), timed(runs, 2 * options.rounds, 0.0)
        print(f"\n{case:32}{'us':>8} {'paced':>8} {'ratio':>6} {'sustained':>11} {'ratio':>6}")
        peer = next(iter(runs))
        for name in runs:
            rates = [2e-12 * M * N * K / found[name] for found in (paced, sustained)]
            ratios = [found[peer] / found[name] for found in (paced, sustained)]
            print(
                f"  {name:30}{paced[name] * 1e6:8.1f} {rates[0]:8.1f} {ratios[0]:6.3f} {rates[1]:11.1f} {ratios[1]:6.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
