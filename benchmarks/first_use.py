"""What the first product of a kind costs: a fresh process and an empty cache for each case, nothing tuned.

    python benchmarks/first_use.py [--only mxfp4 W8A8] [--tune 20] [--again]

Milliseconds on the clock from the import of the package to the result (that of torch and the making of its context
are another library's, and so is the quantisation of a weight).  Columns: the import, the weight's bytes into a
`PackedWeight`, the call up to its first result, and of that lowering (on this thread), the device's compiler (the sum of
all threads) and the longest text; the total is of the first three.  ``--tune`` measures instead how long it takes to
choose among so many candidates, the first use included; ``--again`` a second process, which finds what the first one kept.
NVRTC keeps what it compiled as the driver does (`CUDA_CACHE_PATH`): each case has a directory of its own for that.  Where there is no GPU the kernels are compiled for sm_90a and not run;
``--clock cpu`` counts processor time there.  Python's own compiled files are warm, as those of an installed package are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).parents[1]
N, K, EXPERTS = 4096, 4096, 8
CASES: dict[str, dict[str, Any]] = {
    **{f"W4A16 g128, M={rows}": {"weight": "int4", "group": 128, "rows": rows} for rows in (1, 16, 256, 4096)},
    "mxfp4, M=1": {"weight": "mxfp4", "dtype": "bfloat16", "rows": 1},
    "mxfp4, M=256": {"weight": "mxfp4", "dtype": "bfloat16", "rows": 256},
    "nf4, M=64": {"weight": "nf4", "group": 64, "rows": 64},
    "W8A8, M=256": {"weight": "int8", "rows": 256, "quantize": "int8"},
    "W4A8, M=256": {"weight": "int4", "group": 128, "rows": 256, "quantize": "int8"},
    "e4m3 blocks, M=256": {"weight": "fp8_block", "rows": 256, "quantize": "float8_e4m3fn"},
    "act-order W4A16, M=16": {"weight": "int4", "group": 128, "rows": 16, "act_order": True},
    "grouped bfloat16, M=256": {"weight": "bfloat16", "dtype": "bfloat16", "rows": 256, "experts": True},
    "grouped W4A16, M=256": {"weight": "int4", "group": 128, "rows": 256, "experts": True},
    "general: float32 by int4, M=16": {"weight": "int4", "group": 128, "dtype": "float32", "rows": 16},
    "dense bfloat16, M=256": {"weight": "bfloat16", "dtype": "bfloat16", "rows": 256},
    "attention of 32 heads": {"program": "attention"},
    "2 x + 1 of each element": {"program": "elementwise"},
}


clock = time.perf_counter


class Clock:
    """Time spent below some functions, whatever thread runs them."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {"lowering": [], "compiler": []}

    def around(self, name: str, function: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> Any:
            started = clock()
            try:
                return function(*arguments, **named)
            finally:
                self.spent[name].append(clock() - started)

        return timed


def quantised(case: dict[str, Any]) -> Any:
    """The weight of a case; nothing of the package's that is timed is used yet, but what quantising needs."""
    from tilewright.quant import QuantizedWeight, quantize

    rng = np.random.default_rng(0)
    if case["weight"] == "bfloat16":
        from tilewright.formats import number_format
        from tilewright.ir.dtypes import ALL

        return QuantizedWeight(rng.standard_normal((N, K)).astype(ALL["bfloat16"].numpy), number_format("bfloat16"))
    made = quantize(
        rng.standard_normal((N, K)).astype(np.float32),
        case["weight"],
        **({"group": case["group"]} if "group" in case else {}),
    )
    if case.get("act_order"):
        order = rng.permutation(K) // case["group"]
        made = QuantizedWeight(
            made.codes, made.format, made.scales, made.zeros, made.zeros_mode, made.block, g_idx=order.astype(np.int32)
        )
    return made


def program(name: str) -> Callable[[], Any]:
    """The first call of a kernel without a weight; it needs a GPU."""
    import torch

    from tilewright.kernels.attention import flash_attention
    from tilewright.kernels.elementwise import elementwise

    if name == "attention":
        q, k, v = (torch.randn(1, 32, 2048, 128, dtype=torch.float16, device="cuda") for _ in range(3))
        return lambda: flash_attention(q, k, v, causal=True, dtype="float16")
    x = torch.randn(4096, 4096, device="cuda")
    return lambda: elementwise(lambda a: a * 2 + 1, [tuple(x.shape)], ["float32"], "float32")(x)


def measure(case: dict[str, Any], topk: int, which: str) -> dict[str, float]:
    """The figures of one case, in milliseconds."""
    global clock
    clock = time.perf_counter if which == "wall" else time.process_time
    has_gpu = False
    try:
        import torch

        has_gpu = torch.cuda.is_available()
        if has_gpu:
            torch.ones(1, device="cuda")
    except ImportError:
        pass
    started = clock()
    import tilewright
    from tilewright.matmul import PackedExperts, PackedWeight, grouped_matmul, quant_matmul
    from tilewright.matmul.grouped_calls import GroupedCall
    from tilewright.matmul.product import Product
    from tilewright.matmul.tuning import tune, tune_grouped
    from tilewright.runtime import kernel as kernels
    from tilewright.targets.cuda.nvrtc import Nvrtc

    imported = clock() - started
    watch = Clock()
    kernels.lowered = watch.around("lowering", kernels.lowered)
    Nvrtc.compile = watch.around("compiler", Nvrtc.compile)  # type: ignore[method-assign]
    if "program" in case:
        first_call = program(case["program"])
        torch.cuda.synchronize()
        started = clock()
        first_call()
        torch.cuda.synchronize()
        return columns_of(imported, 0.0, clock() - started, watch)
    made = quantised(case)
    device = "cuda" if has_gpu else None
    started = clock()
    weight = PackedWeight.pack(made, device)
    packed = clock() - started
    name, rows = case.get("dtype", "float16"), case["rows"]
    if has_gpu:
        x = torch.randn(rows, K, dtype=getattr(torch, name), device="cuda")
        torch.cuda.synchronize()
    else:
        x = np.random.default_rng(1).standard_normal((rows, K)).astype(tilewright.dtype(name).numpy)
    options = {"quantize": case["quantize"]} if "quantize" in case else {}
    experts = PackedExperts([weight] * EXPERTS) if case.get("experts") else None
    sizes = [rows // EXPERTS] * EXPERTS
    started = clock()
    if topk and experts is not None:
        tune_grouped(x, experts, sizes, topk=topk, **options)
    elif topk:
        tune(x, weight, topk=topk, **options)
    elif has_gpu:
        grouped_matmul(x, experts, sizes, **options) if experts is not None else quant_matmul(x, weight, **options)
        torch.cuda.synchronize()
    else:
        target = "cuda -arch=sm_90a"
        if experts is not None:
            every = [kernel for kernel, _ in GroupedCall.of(x, experts, sizes, target=target, **options).launches]
        else:
            every = list(Product.of(x, weight, target=target, **options).prepared.kernels)
        for kernel in every:
            kernel.begin()
        for kernel in every:
            kernel.resources()
    return columns_of(imported, packed, clock() - started, watch)


def columns_of(imported: float, packed: float, first: float, watch: Clock) -> dict[str, float]:
    """A line of the table, in milliseconds."""
    compiled = watch.spent["compiler"] or [0.0]
    seconds = {
        "import": imported, "pack": packed, "first call": first, "lowering": sum(watch.spent["lowering"]), "compiler": sum(compiled),
        "longest": max(compiled), "total": imported + packed + first,
    }  # fmt: skip
    return {**{part: value * 1e3 for part, value in seconds.items()}, "texts": len(watch.spent["compiler"])}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", nargs="*", default=[""], help="cases whose name has one of these in it")
    options.add_argument("--tune", type=int, default=0, help="candidates to choose among")
    options.add_argument("--again", action="store_true", help="a second process with what the first one left on disk")
    options.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options.add_argument("--case", default="", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.case:
        print(json.dumps(measure(CASES[given.case], given.tune, given.clock)))
        return
    columns = ("import", "pack", "first call", "lowering", "compiler", "longest", "texts", "total")
    print(f"| | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}", flush=True)
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        run_cases([name for name in CASES if any(part in name for part in given.only)], given, columns, environment)


def run_cases(names: list[str], given: argparse.Namespace, columns: Sequence[str], environment: dict[str, str]) -> None:
    """Print a line for each case; the first is run once before, for Python's compiled files."""
    for number, name in enumerate([*names[:1], *names]):
        with tempfile.TemporaryDirectory() as cache:
            command = [
                sys.executable,
                __file__,
                "--case",
                name,
                "--tune",
                str(given.tune if number else 0),
                "--clock",
                given.clock,
            ]
            own = {**environment, "TILEWRIGHT_CACHE_DIR": cache, "CUDA_CACHE_PATH": cache + "/driver"}
            for _ in range(1 + given.again):
                done = subprocess.run(command, capture_output=True, text=True, env=own)
        if not number:
            continue
        if done.returncode:
            print(f"| {name} | {done.stderr.strip().splitlines()[-1]} |", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"| {name} | {' | '.join(f'{found[column]:.0f}' for column in columns)} |", flush=True)


if __name__ == "__main__":
    main()
