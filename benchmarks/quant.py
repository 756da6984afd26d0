"""Matrix products with low-bit weights on a Hopper GPU, beside Humming's and torch's kernels, the hand-written model's text and torch's
dense product.

    PYTHONPATH=.:tests/gpu python benchmarks/quant.py [--weights int4,mxfp4,...] [--cases 28672x8192x1,...] [--rounds 30]

Microseconds, medians.  *bench*: events around one launch, the L2 cache flushed before it; *graph*: a launch out of a CUDA
graph of 16 that go round copies of the weights too large for the cache, torch's too.  Results are compared with the product of the
decoded weights in float32, and bit by bit with those of a second launch.  ``--act-order`` times calls of `quant_matmul` instead,
of an int4 weight with its columns in order and in another one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from peers import HUMMING, TINYGEMM_GROUPS, Humming, Tinygemm

import tilewright
from tilewright.formats import number_format
from tilewright.ir.dtypes import ALL
from tilewright.kernels.hopper_quant import FACTORIES, candidates
from tilewright.kernels.hopper_quant_wgmma import wgmma_quant_matmul
from tilewright.machine import E2M1, SIGNS, FragmentRecords
from tilewright.matmul import PackedWeight, quant_matmul

CASES = "28672x8192x1,28672x8192x8,28672x8192x16,8192x28672x1,8192x28672x8,8192x28672x16,4096x4096x1,4096x4096x8,4096x4096x16"
HALF, BRAIN = ALL["float16"], ALL["bfloat16"]
NF4 = tuple(float(HALF.numpy.type(value)) for value in number_format("nf4").values)
WEIGHTS = {
    "int4": FragmentRecords(4, HALF, HALF),
    "int4-g32": FragmentRecords(4, HALF, HALF, group=32),
    "int4-bf16": FragmentRecords(4, BRAIN, BRAIN),
    "int2": FragmentRecords(2, HALF, HALF),
    "int1": FragmentRecords(1, HALF, HALF, values=SIGNS),
    "int8": FragmentRecords(8, HALF, HALF),
    "mxfp4": FragmentRecords(4, BRAIN, ALL["float8_e8m0fnu"], group=32, values=E2M1),
    "nvfp4": FragmentRecords(4, HALF, HALF, group=16, values=E2M1),
    "nf4": FragmentRecords(4, HALF, HALF, group=64, values=NF4),
    "e4m3": FragmentRecords(8, HALF, HALF, floating=(3, 7)),
}
"""Orders of weights by the names of their formats; int3 lies as int4 does, int5 to int7 as int8."""

FLUSH_BYTES, ROTATED_BYTES, LAUNCHES = 256 << 20, 300 << 20, 16

HUMMING_NAMES = {(SIGNS, None, 128): "uint1", (E2M1, None, 32): "float4e2m1"}
"""Humming's names of codes that are looked up, by what `FragmentRecords` says of them."""

SPIN_CYCLES = 400_000
"""Of idling on the GPU before a launch that is timed, while the host prepares it."""


def packed(form: FragmentRecords, codes: Any, scales: Any) -> Any:
    """Records of codes [N, K] and scales [N, K / group] on the GPU, as `FragmentRecords.pack` makes them."""
    rows, columns = codes.shape
    down, across, words = form.shape(rows, columns)
    records = torch.zeros(down, across, words * 4, dtype=torch.uint8, device="cuda")
    for name, array in (("codes", codes), *((("scales", scales),) if form.scale else ())):
        layout = form.codes() if name == "codes" else form.lines()
        width = 128 if name == "codes" else form.sets
        padded = torch.zeros(down * form.rows, across * width, dtype=array.dtype, device="cuda")
        padded[:rows, : array.shape[1]] = array
        blocks = padded.reshape(down, form.rows, across, width).permute(0, 2, 1, 3).reshape(down, across, -1)
        order = torch.from_numpy(np.argsort(layout.permutation().reshape(-1))).cuda()
        ordered = blocks[..., order].contiguous()
        if name == "codes":
            share = 8 // form.bits
            fields = ordered.reshape(down, across, -1, share)
            ordered = sum((fields[..., i] << (i * form.bits) for i in range(1, share)), fields[..., 0])
        start = form.offset(name)
        raw = ordered.contiguous().view(torch.uint8)
        records[..., start : start + raw.shape[-1]] = raw
    return records.view(torch.uint32)


def bench(run: Callable[[int], Any], rounds: int) -> float:
    """Median microseconds of one launch, the cache flushed before it."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    times = []
    for _ in range(rounds):
        flush.zero_()
        torch.cuda._sleep(SPIN_CYCLES)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(0)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def in_graph(run: Callable[[int], Any], rounds: int) -> float:
    """Median microseconds of a launch out of a graph of `LAUNCHES`."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for launch in range(LAUNCHES):
                run(launch)
        times = []
        for _ in range(rounds):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / LAUNCHES)
    return statistics.median(times)


def warm_up() -> None:
    """Keep the GPU busy until its clock is what it is under work."""
    a = torch.randn(4096, 4096, device="cuda").half()
    for _ in range(200):
        a = torch.mm(a, a).clamp(-1, 1)
    torch.cuda.synchronize()


def report(name: str, run: Callable[[int], Any], expected: Any, options: argparse.Namespace) -> None:
    """One line: the error, and both times."""
    first = run(0).clone()
    repeats = torch.equal(first, run(0))
    error = (first.float() - expected).abs().max().item() / expected.abs().max().item()
    wrong = "" if error < (4e-3 if first.dtype == torch.float16 else 3e-2) else "  WRONG"
    wrong += "" if repeats else "  other bits in another launch"
    warm_up()
    timed = bench(run, options.rounds), in_graph(run, max(options.rounds // 4, 5))
    print(f"  {name:44}{timed[0]:8.1f} {timed[1]:8.1f}   {error:.1e}{wrong}", flush=True)


def case(name: str, n: int, k: int, m: int, options: argparse.Namespace) -> None:
    """One weight and shape: ours, with the choices asked for, the model's text where it has it, and torch."""
    torch.manual_seed(0)
    form = WEIGHTS[name]
    dtype = getattr(torch, str(form.operand))
    offset = 0 if form.numbers is not None else 1 << (form.bits - 1)
    codes = torch.randint(0, 1 << form.bits, (n, k), device="cuda", dtype=torch.uint8)
    numbers = (
        codes.float() - offset if form.numbers is None else torch.tensor(form.numbers, device="cuda")[codes.long()]
    )
    if form.scale == form.operand:
        # As large as `matmul.tiers.records` makes them, so that codes can be scaled by one operation.
        most = 2.0 ** (16 - form.bits) if form.is_liftable() and dtype == torch.float16 else 0.03
        scales = stored = ((torch.rand(n, k // form.group, device="cuda") * 0.66 + 0.33) * most).to(dtype)
    else:
        exponents = torch.randint(-8, -4, (n, k // form.group), device="cuda")
        scales, stored = torch.exp2(exponents.float()), (exponents + 127).to(torch.uint8)
    a = (torch.randn(m, k, device="cuda") * 2.0**-8).to(dtype)
    weights = numbers.float() * scales.float().repeat_interleave(form.group, 1)
    dense, exact = weights.to(dtype), a.float() @ weights.T
    words = packed(form, codes, stored)
    copies = [words.clone() for _ in range(max(1, ROTATED_BYTES // (words.numel() * 4)))]
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    print(f"{name} {n}x{k} M={m}", flush=True)
    sizes = next(candidates(n, k, m, form))
    best = FACTORIES[sizes.pop("kernel")]
    if best is wgmma_quant_matmul and not sizes["promoted"]:
        sizes = {**sizes, "lifted": form.is_liftable(offset)}
    others = [
        (
            {key: value for key, value in one.items() if key != "kernel"},
            FACTORIES[one.get("kernel", "skinny" if "warps" in one else "wgmma")],
        )
        for one in options.choices
    ]
    for choice, factory in [(sizes, best), *others]:
        try:
            kernel = factory(n, k, form, out=str(form.operand), offset=offset, **choice)

            def run(launch: int, kernel: Any = kernel) -> Any:
                kernel(copies[launch % len(copies)], a, out)
                return out

            report(" ".join(f"{key}{value}" for key, value in choice.items()), run, exact, options)
        except tilewright.TilewrightError as error:
            print(f"  {choice}: {type(error).__name__}: {str(error).splitlines()[0]}")
    if k == 8192 and m <= 8 and name == "int4":
        from models import W4A16

        model = W4A16(dependent=True)
        report("model", lambda launch: (model(copies[launch % len(copies)], a, out), out)[1], exact, options)
    for peer, run, expected in peers(form, codes, stored, weights, a, out):
        report(peer, run, expected, options)
    rotated = [dense.clone() for _ in range(max(1, ROTATED_BYTES // dense.nbytes))]
    report(f"torch {form.operand}", lambda launch: torch.mm(a, rotated[launch % len(rotated)].T), exact, options)


def peers(
    form: FragmentRecords, codes: Any, scales: Any, weights: Any, a: Any, out: Any
) -> Iterator[tuple[str, Callable[[int], Any], Any]]:
    """Products by the other libraries that know the format: a name, a call, and what it should give."""
    unit = 1.0
    if form.scale == form.operand:
        # Those of `case` are as large as ours take them.
        unit = 2.0 ** -math.ceil(math.log2(scales.max().item()))
        scales = scales * unit
    else:
        scales = scales.view(torch.float8_e8m0fnu)
    copies = max(1, ROTATED_BYTES // (codes.numel() * form.bits // 8))
    name = HUMMING_NAMES.get((form.values, form.floating, form.group))
    if form.values is None and form.floating is None:
        name = f"uint{form.bits}"
    if HUMMING and name is not None:
        expected = a.float() @ weights.T * unit
        if form.values == SIGNS:
            # There the codes stand for -1 and 0.
            expected = a.float() @ ((codes.float() - 1) * scales.float().repeat_interleave(form.group, 1)).T
        started = time.perf_counter()
        try:
            humming = Humming(name, codes, scales, a.dtype, a.dtype, copies)
            humming(a, out)
            torch.cuda.synchronize()
            first = f"humming ({time.perf_counter() - started:.1f} s to its first result)"
            yield first, lambda launch: (humming(a, out, launch=launch), out)[1], expected
        except (AssertionError, RuntimeError, ValueError) as error:
            print(f"  humming: {type(error).__name__}: {str(error)[:200]}")
    if name == "uint4" and a.dtype == torch.bfloat16 and form.group in TINYGEMM_GROUPS:
        tinygemm = Tinygemm(codes, scales, copies)
        yield "tinygemm", lambda launch: tinygemm(a, launch), a.float() @ weights.T * unit


def act_order(n: int, k: int, m: int, options: argparse.Namespace) -> None:
    """Calls with an int4 weight in groups of 128 columns, and with one whose groups are columns anywhere."""
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
    scales = (torch.rand(n, k // 128, device="cuda") * 0.02 + 0.01).half()
    groups = (torch.randperm(k) // 128).to(torch.int32).cuda()
    x, out = torch.randn(m, k, device="cuda").half(), torch.empty(m, n, device="cuda", dtype=torch.float16)
    print(f"int4 {n}x{k} M={m}", flush=True)
    for name, more in (("columns in order", {}), ("act-order", {"g_idx": groups})):
        weight = PackedWeight("int4", (n, k), {"codes": codes, "scales": scales, **more}, block=(1, 128))

        def run(_: int, weight: PackedWeight = weight) -> Any:
            return quant_matmul(x, weight, out=out)

        run(0)
        warm_up()
        print(f"  {name:44}{bench(run, options.rounds):8.1f} {in_graph(run, 5):8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--weights", default="int4", help=", ".join(WEIGHTS))
    parser.add_argument("--act-order", action="store_true")
    parser.add_argument("--choices", default="[]", help="further sizes and their ``kernel``, a Python list of dicts")
    options = parser.parse_args()
    options.choices = eval(options.choices)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds: bench, graph; relative error")
    for text in options.cases.split(","):
        n, k, m = map(int, text.split("x"))
        if options.act_order:
            act_order(n, k, m, options)
            continue
        for name in options.weights.split(","):
            case(name, n, k, m, options)


if __name__ == "__main__":
    main()
