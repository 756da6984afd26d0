"""The library's public entry, `quant_matmul`, at shapes and numbers of rows that nobody named, beside torch's, Triton's and Humming's products.

    PYTHONPATH=. python benchmarks/front_door.py --seed $(git rev-parse HEAD) --log front_door.jsonl [--count 40] [--seconds 450] [--slice 2/4]

Weights are those of published language models and random ones, rows random in each of six ranges.  Every case is drawn from the
seed; its raw times go to the log as a line of JSON, and a second call times what is in no log yet.  Blocks have a case of each product
and range, so that a run that is cut short has about as many of each; of two blocks the first case is timed whose kernels are built.
Other processes build them (`builds_ahead.py`) while cases are timed on the device: paced medians, the L2 cache flushed before each
launch, all of a case in turn in one process; results are compared with the dense product first.  A peer that does not take a case is a
word in its line.  The table at the end gives the geometric mean and the worst ratio for each kind of product and range of rows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from builds_ahead import GROUP, Builds, Case, count_entries
from gemm import Run, timed
from gemm_shapes import WEIGHTS
from peers import HUMMING, Humming
from triton_matmul import triton_matmul

from docs.front_door_page import RANGES, lines, table
from tilewright.matmul import PackedWeight, quant_matmul

Makers = dict[str, Callable[[], Run]]
"""What makes the callable of each product, by name."""

KINDS = ("bfloat16", "int4 by float16", "int4 by int8", "int4 by e4m3", "int2 by int8", "e4m3 by e4m3")
OF_EACH = len(KINDS) * len(RANGES)
"""Cases of a block, one of each kind and range."""

TOLERANCE = 0.02
"""The largest error beside the largest result: codes of 4 bits by activations of 8."""

UNROUNDED = 0.05
"""The same for torch's float16 product, whose activations are not rounded to 8 bits as those of the product beside it."""


def drawn(seed: str, count: int) -> list[Case]:
    """Cases in an order that mixes kinds and ranges, so that a run cut short has some of each."""
    chance = random.Random(seed)
    shapes = WEIGHTS + [(chance.randrange(8, 112) * 256, chance.randrange(8, 112) * 128) for _ in range(len(WEIGHTS))]
    cases = []
    for _ in range(count):
        for low, high in RANGES:
            for kind in KINDS:
                rows = min(high, max(low, round(math.exp(chance.uniform(math.log(low), math.log(high))))))
                cases.append((kind, rows, *chance.choice(shapes)))
    return cases


def runs(kind: str, M: int, N: int, K: int) -> tuple[Makers, Run]:
    """What makes the callables, ours first, and one that gives what they should."""
    half = torch.bfloat16 if kind == "bfloat16" else torch.float16
    a = torch.randn(M, K, device="cuda")
    if kind == "bfloat16":
        x, weight = a.to(half), torch.randn(N, K, device="cuda", dtype=half)
        packed = PackedWeight("bfloat16", (N, K), {"codes": weight})
        vendor = lambda: torch.mm(x, weight.T)  # noqa: E731
        both: Makers = {"cublas": lambda: vendor, "triton": lambda: triton_matmul(x, weight)}
        return {"ours": lambda: lambda: quant_matmul(x, packed), **both}, vendor
    if kind == "e4m3 by e4m3":
        return _eights(a, torch.randn(N, K, device="cuda"))
    of, _, activations = kind.partition(" by ")
    bits = int(of[3:])
    codes = torch.randint(0, 1 << bits, (N, K), device="cuda", dtype=torch.uint8)
    of_groups = (torch.rand(N, K // GROUP, device="cuda") * 0.01 + 0.01).to(half)
    numbers = codes.to(half) - ((codes >> bits - 1) << bits).to(half)
    dense = (numbers.view(N, -1, GROUP) * of_groups[:, :, None]).view(N, K)
    packed = PackedWeight(of, (N, K), {"codes": _side_by_side(codes, bits), "scales": of_groups}, block=(1, GROUP))
    x, given, scales = a.to(half), a.to(half), None
    if activations != "float16":
        limit = 127.0 if activations == "int8" else 448.0
        scales = a.abs().amax(1, keepdim=True) / limit
        given = (a / scales).round().to(torch.int8) if activations == "int8" else (a / scales).to(torch.float8_e4m3fn)
        expected = lambda: (given.float() * scales) @ dense.float().T  # noqa: E731
        ours = lambda: quant_matmul(given, packed, activation_scales=scales, out_dtype=half)  # noqa: E731
    else:
        expected = lambda: torch.mm(x, dense.T)  # noqa: E731
        ours = lambda: quant_matmul(x, packed)  # noqa: E731
    made: Makers = {"ours": lambda: ours, "torch": lambda: lambda: torch.mm(x, dense.T)}
    if HUMMING:
        made["humming"] = lambda: _humming(codes ^ (1 << bits - 1), bits, of_groups, given, scales, half)
    return made, expected


def _side_by_side(codes: Any, bits: int) -> Any:
    """Codes as bytes, low bits first."""
    parts = codes.view(codes.shape[0], -1, 8 // bits)
    return sum(parts[:, :, place] << bits * place for place in range(8 // bits)).to(torch.uint8).contiguous()


def _eights(a: Any, w: Any) -> tuple[Makers, Run]:
    e4m3 = torch.float8_e4m3fn
    of_rows, of_columns = a.abs().amax(1, keepdim=True) / 448, w.abs().amax(1, keepdim=True) / 448
    x, codes = (a / of_rows).to(e4m3), (w / of_columns).to(e4m3)
    packed = PackedWeight("float8_e4m3fn", tuple(w.shape), {"codes": codes.view(torch.uint8), "scales": of_columns})

    def scaled() -> Any:
        return torch._scaled_mm(
            x, codes.T, scale_a=of_rows, scale_b=of_columns.T, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    made: Makers = {
        "ours": lambda: lambda: quant_matmul(x, packed, activation_scales=of_rows, out_dtype=torch.bfloat16),
        "scaled_mm fast": lambda: scaled,
    }
    return made, lambda: (x.float() * of_rows) @ (codes.float() * of_columns).T


def _humming(codes: Any, bits: int, of_groups: Any, given: Any, scales: Any, half: torch.dtype) -> Any:
    weight = Humming(f"uint{bits}", codes, of_groups, given.dtype, half)
    out = torch.empty(given.shape[0], codes.shape[0], device="cuda", dtype=half)
    return lambda: (weight(given, out, scales), out)[1]


def measured(case: Case, rounds: int) -> dict[str, Any]:
    """Times of a case, in microseconds, or what went wrong."""
    kind, M, N, K = case
    line: dict[str, Any] = {"kind": kind, "M": M, "N": N, "K": K}
    makers, reference = runs(*case)
    expected = reference().float()
    largest, good = expected.abs().max(), {}
    for name, maker in makers.items():
        try:
            run = maker()
            error = ((run().float() - expected).abs().max() / largest).item()
        except Exception as problem:  # a peer that does not take the shape is no reason to stop
            line[name] = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0][:120]}"
            continue
        if error < (UNROUNDED if name == "torch" else TOLERANCE):
            good[name] = run
        else:
            line[name] = f"wrong by {error:.3g}"
    times = timed(good, rounds, 0.004)
    return line | {name: round(seconds * 1e6, 2) for name, seconds in times.items()}


def told(logs: list[Path]) -> None:
    """The table of some logs, and what was wrong."""
    print(table([line for log in logs for line in lines(log)]))
    for one in (json.loads(text) for log in logs for text in log.read_text().splitlines()):
        for name in set(one) - {"kind"}:
            if isinstance(one[name], str):
                print(f"{one['kind']} {one['M']} x {one['N']} x {one['K']}: {name}: {one[name]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", default="")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--count", type=int, default=40, help="shapes for each kind and range of rows")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--slice", default="1/1", help="2/4: the second of four parts of the cases, one for each GPU")
    parser.add_argument("--done", type=Path, nargs="*", default=[], help="logs of earlier calls, whose cases are done")
    parser.add_argument("--tables", type=Path, nargs="+", help="only the tables of these logs")
    options = parser.parse_args()
    if options.tables:
        return told(options.tables)
    if not options.seed or not options.log:
        parser.error("--seed and --log say which cases are drawn and where their times are kept")
    deadline = time.time() + options.seconds
    logs = [log for log in (options.log, *options.done) if log.exists()]
    cases = _left(options, logs)
    made = count_entries()
    builds = Builds(cases, max(1, (os.cpu_count() or 1) // int(options.slice.partition("/")[2])), HUMMING)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {len(cases)} cases left", flush=True)
    left = list(range(len(cases)))
    with options.log.open("a") as log:
        while left and time.time() < deadline:
            made.clear()
            asked, missing = time.time(), builds.missing(left[0])
            number = builds.ready(left[: 2 * OF_EACH], deadline)
            if time.time() >= deadline:
                break
            left.remove(number)
            begin = time.time()
            log.write(json.dumps(_line(cases[number], options.rounds)) + "\n")
            log.flush()
            torch.cuda.empty_cache()
            torch.cuda.synchronize()  # no line behind one that broke the device
            times = f"{begin - asked:.1f} s for kernels, {time.time() - begin:.1f} s to time"
            late = f", built late: {' '.join(made)}" if made else ""
            first = f" (before it: {cases[left[0]]} waits for {missing})" if missing and left else ""
            print(f"{deadline - time.time():.1f} s left: {cases[number]}: {times}{late}{first}", flush=True)
    builds.close()
    print(f"{len(left)} cases left")
    told([options.log, *(log for log in logs if log != options.log)])


def _left(options: argparse.Namespace, logs: list[Path]) -> list[Case]:
    """The cases of this call's slice that no log has."""
    part, parts = map(int, options.slice.split("/"))
    mine = [one for at, one in enumerate(drawn(options.seed, options.count)) if at // OF_EACH % parts == part - 1]
    found = (json.loads(text) for log in logs for text in log.read_text().splitlines())
    done = {(one["kind"], one["M"], one["N"], one["K"]) for one in found}
    return [one for one in mine if options.kinds in one[0] and one not in done]


def _line(case: Case, rounds: int) -> dict[str, Any]:
    """Times of a case, or why there are none."""
    try:
        return measured(case, rounds)
    except (RuntimeError, ValueError) as problem:
        return dict(zip(("kind", "M", "N", "K"), case)) | {"ours": f"{type(problem).__name__}: {str(problem)[:120]}"}


if __name__ == "__main__":
    main()
