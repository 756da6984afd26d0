"""Every kernel that the library could take for random products, timed: the log that models of speed are judged by.

    PYTHONPATH=.:benchmarks python benchmarks/candidates.py --log candidates.jsonl [--seed 3] [--shapes 3] [--seconds 220]

A *round* is one shape of each kind with some numbers of rows.  Its kernels are compiled first, by as many processes as there are
cores, then timed alone on the device: paced medians, the L2 cache flushed before each launch.  Each problem appends lines of JSON, one a
candidate, with the options that `Product.of` takes; ``choice`` marks what the library takes by itself.  A later call goes on behind the
last whole problem.  Results are compared with those of the library's choice.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KINDS = ("bfloat16", "int4 by float16", "int4 by int8", "int4 by e4m3", "int2 by int8", "e4m3 by e4m3")
RANGES = ((1, 16), (17, 64), (65, 256), (257, 1024), (1025, 4096), (4097, 8192))
SMALL = (2112, 4608, 6144)
"""Rows of weights that too few tiles cover."""
SPIN_CYCLES, PAUSE, ROUNDS = 500_000, 0.002, 5
PER_PROBLEM = 20

Problem = tuple[str, int, int, int]


def shapes(seed: int, count: int) -> Iterator[list[tuple[str, tuple[int, int], list[int]]]]:
    """Rounds: a shape of each kind and its numbers of rows, in three or six of the ranges."""
    from gemm_shapes import WEIGHTS

    chance = random.Random(seed)
    for number in range(count):
        found = []
        for place, kind in enumerate(KINDS):
            weights = [one for one in WEIGHTS if one[0] * one[1] <= 2e8 and one[1] >= 1024]
            if (number + place) % 3 == 0:
                weights = [(N, K) for N, K in weights if N in SMALL]
            shape = chance.choice(weights)
            spans = RANGES if number == 0 else RANGES[(number + place) % 2 :: 2]
            rows = [round(math.exp(chance.uniform(math.log(low), math.log(high)))) for low, high in spans]
            found.append((kind, shape, rows))
        yield found


def operands(kind: str, M: int, N: int, K: int) -> tuple[Any, Any, dict[str, Any], Callable[[], Any]]:
    """Activations, weight, further arguments and a peer's product."""
    import torch

    from tilewright.matmul import PackedWeight

    torch.manual_seed(N + K)
    a = torch.randn(M, K, device="cuda")
    if kind == "bfloat16":
        x, w = a.bfloat16(), torch.randn(N, K, device="cuda", dtype=torch.bfloat16)
        return x, PackedWeight("bfloat16", (N, K), {"codes": w}), {}, lambda: torch.mm(x, w.T)
    if kind == "e4m3 by e4m3":
        e4m3, of_rows = torch.float8_e4m3fn, a.abs().amax(1, keepdim=True) / 448
        w = torch.randn(N, K, device="cuda")
        of_columns = w.abs().amax(1, keepdim=True) / 448
        x, codes = (a / of_rows).to(e4m3), (w / of_columns).to(e4m3)
        packed = PackedWeight("float8_e4m3fn", (N, K), {"codes": codes.view(torch.uint8), "scales": of_columns})

        def scaled() -> Any:
            return torch._scaled_mm(
                x, codes.T, scale_a=of_rows, scale_b=of_columns.T, out_dtype=torch.bfloat16, use_fast_accum=True
            )

        return x, packed, {"activation_scales": of_rows, "out_dtype": torch.bfloat16}, scaled
    bits, activations = int(kind[3]), kind.partition(" by ")[2]
    codes = torch.randint(0, 256, (N, K * bits // 8), device="cuda", dtype=torch.uint8)
    scales = (torch.rand(N, K // 128, device="cuda") * 0.01 + 0.01).half()
    packed = PackedWeight(f"int{bits}", (N, K), {"codes": codes, "scales": scales}, block=(1, 128))
    dense, half = torch.randn(N, K, device="cuda", dtype=torch.float16), a.half()
    if activations == "float16":
        return half, packed, {}, lambda: torch.mm(half, dense.T)
    limit = 127.0 if activations == "int8" else 448.0
    of_rows = a.abs().amax(1, keepdim=True) / limit
    x = (a / of_rows).round().to(torch.int8) if activations == "int8" else (a / of_rows).to(torch.float8_e4m3fn)
    return x, packed, {"activation_scales": of_rows, "out_dtype": torch.float16}, lambda: torch.mm(half, dense.T)


TYPES = {"bfloat16": ("bfloat16", "bfloat16"), "e4m3": ("float8_e4m3fn", "bfloat16"), "int8": ("int8", "float16")}
"""Activations and results."""


def request(kind: str, M: int) -> Any:
    """What a problem asks of the library."""
    from tilewright.kernels.recipe import Request

    activations = kind.rpartition(" by ")[2]
    a, out = TYPES.get(activations, ("float16", "float16"))
    out = "float16" if kind.startswith("int") else out
    return Request(a, out, "token" if activations in ("int8", "e4m3") else "none", rows=M)


def tried(kind: str, M: int, N: int, K: int, weight: Any, machine: Any) -> list[dict[str, Any]]:
    """Options of a problem's kernels: the library's choice, the next by its model, and others of every kind."""
    from tilewright.matmul.tiers.base import named
    from tilewright.matmul.tiers.dispatch import candidates

    known = request(kind, M)
    listed = candidates(weight, known, machine)
    first, others = listed[1:7], listed[7:260]
    # The same draw for all rows of a shape, so that kernels serve several of them.
    order = sorted(others, key=lambda one: random.Random(named(one)).random())
    found = {named(one): one for one in [listed[0], *first, *order]}
    return list(found.values())[:PER_PROBLEM]


def build(task: tuple[Any, ...]) -> str | None:
    """In a process of its own: one kernel, compiled by a call of it; what failed."""
    import torch

    what, key, options, M = task
    try:
        x, weight, more = _held(what, M, *key)
        from tilewright.matmul.product import Product

        Product.of(x, weight, chosen=options, **more).run()
        torch.cuda.synchronize()
    except Exception as error:  # what cannot be built is said beside the times
        return f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
    return None


_LAST: dict[Any, Any] = {}


def _held(kind: str, M: int, N: int, K: int) -> Any:
    if (kind, M, N, K) not in _LAST:
        _LAST.clear()
        _LAST[kind, M, N, K] = operands(kind, M, N, K)[:3]
    return _LAST[kind, M, N, K]


def timed(runs: list[Callable[[], Any]], flush: Any) -> list[float]:
    """Medians in microseconds, in turn."""
    import torch

    times: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for found, run in zip(times, runs):
            flush.zero_()
            torch.cuda.synchronize()
            time.sleep(PAUSE)
            torch.cuda._sleep(SPIN_CYCLES)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e3)
    return [round(statistics.median(one), 2) for one in times]


def measured(problem: Problem, options: list[dict[str, Any]], failed: dict[str, str], flush: Any) -> Iterator[dict]:
    """A line for each candidate, and one for the peer."""
    import torch

    from tilewright.matmul.product import Product
    from tilewright.matmul.tiers.base import named

    kind, M, N, K = problem
    line = {"kind": kind, "M": M, "N": N, "K": K}
    x, weight, more, peer = operands(*problem)
    names, runs, expected = ["peer"], [peer], None
    for place, one in enumerate(options):
        if named(one) in failed:
            yield {**line, "options": one, "choice": place == 0, "failed": failed[named(one)]}
            continue
        try:
            made = Product.of(x, weight, chosen=one, **more)
            found = made.run().float()
            torch.cuda.synchronize()
        except Exception as error:
            yield {**line, "options": one, "choice": place == 0, "failed": repr(error)[:200]}
            continue
        expected = found if expected is None else expected
        error = ((found - expected).abs().max() / expected.abs().max()).item()
        if not error < 0.02:
            yield {**line, "options": one, "choice": place == 0, "failed": f"differs by {error:.3g}"}
            continue
        names.append(place)
        runs.append(made.run)
    for place, us in zip(names, timed(runs, flush)):
        if place == "peer":
            yield {**line, "peer": us}
        else:
            yield {**line, "options": options[place], "choice": place == 0, "us": us}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--shapes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--kinds", default="")
    options = parser.parse_args()
    begin = time.time()
    done = [json.loads(one) for one in options.log.read_text().splitlines()] if options.log.exists() else []
    names = ("K", "M", "N", "kind")
    seen = {json.dumps([one[name] for name in names if name in one]) for one in done}
    pool = multiprocessing.get_context("spawn").Pool(os.cpu_count() or 1)

    import torch

    from tilewright.matmul.tiers.base import Machine, named
    from tilewright.targets.registry import resolve

    machine = Machine(*resolve("cuda"))
    device = torch.cuda.get_device_name()
    print(device, "multiprocessors", torch.cuda.get_device_properties(0).multi_processor_count, flush=True)
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    log = options.log.open("a")

    def write(lines: Iterator[dict]) -> None:
        log.writelines(json.dumps({**one, "counted": True, "device": device}) + "\n" for one in list(lines))
        log.flush()

    def known(**line: Any) -> bool:
        return json.dumps([line[name] for name in names if name in line]) in seen

    def spent() -> float:
        return time.time() - begin

    for drawn in shapes(options.seed, options.shapes):
        found = [one for one in drawn if options.kinds in one[0]]
        if spent() > 0.6 * options.seconds:
            break
        problems: list[tuple[Any, list[dict]]] = []
        tasks: dict[Any, tuple[Any, ...]] = {}
        for kind, shape, rows in found:
            for M in rows:
                if not known(kind=kind, M=M, N=shape[0], K=shape[1]):
                    _, weight, *_ = operands(kind, 1, *shape)
                    tries = tried(kind, M, *shape, weight, machine)
                    problems.append(((kind, M, *shape), tries))
                    for one in tries:
                        tasks.setdefault((kind, shape, named(one)), (kind, shape, one, M))
        print(f"{spent():.0f} s: {len(problems)} problems, {len(tasks)} kernels", flush=True)
        answers = dict(zip(tasks, pool.map(build, tasks.values(), chunksize=2)))
        failed = {key: why for key, why in answers.items() if why}
        print(f"{spent():.0f} s: compiled, {len(failed)} failed: {list(failed.values())[:3]}", flush=True)
        for problem, tries in problems:
            if spent() > options.seconds:
                break
            kind, _, *shape = problem
            of = {name: why for (which, at, name), why in failed.items() if (which, at) == (kind, tuple(shape))}
            write(measured(problem, tries, of, flush))
            torch.cuda.empty_cache()
        print(f"{spent():.0f} s: measured", flush=True)
    pool.terminate()


if __name__ == "__main__":
    main()
