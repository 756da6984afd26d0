"""Products of int8 with weights in BitBLAS's bytes on a GPU, beside our own order and cuBLASLt.

    PYTHONPATH=.:benchmarks python benchmarks/bitblas_bytes.py [--size 1024x17280x3200] [--rounds 15] [--ways] [--tune]

*call*: what a program with ``import bitblas`` gets for the bytes of ``propagate_b=3``, for a fixed M and for any: up to `ladder.FEW` rows they
are multiplied as they lie, more in our own order, which is made when the tensor is first seen.  *raw*: as they lie; *own order*: a weight in that.
``--ways`` times all candidates of the kernel that reads the bytes, ``--tune`` runs `hardware_aware_finetune` before.  Microseconds
and TOPS, paced medians, L2 flushed; results are compared with ``torch._int_mm``'s bit by bit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from gemm import PAUSE, timed
from quant import warm_up

from tilewright.compat import bitblas
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.matmul.product import Product
from tilewright.matmul.tiers import ladder
from tilewright.matmul.weight_forms import MatmulCall

LEAST = 32
"""Rows that torch's product takes."""


def operator(M: Any, N: int, K: int) -> Any:
    """BitBLAS's operator of int8 by int8 with int32 sums."""
    config = bitblas.MatmulConfig(
        M=M, N=N, K=K, A_dtype="int8", W_dtype="int8", accum_dtype="int32", out_dtype="int32", layout="nt",
        propagate_b=3,
    )  # fmt: skip
    return bitblas.Matmul(config, enable_tuning=False)


def runs(M: int, N: int, K: int, ways: bool, tune: bool) -> dict[str, Callable[[], Any]]:
    """Ways to the same product."""
    a = torch.randint(-128, 128, (M, K), dtype=torch.int8, device="cuda")
    w = torch.randint(-128, 128, (N, K), dtype=torch.int8, device="cuda")
    packed = PackedWeight("int8", (N, K), {"codes": w.view(torch.uint8)})
    out = torch.empty(M, N, dtype=torch.int32, device="cuda")
    full = torch.zeros(max(M, LEAST), K, dtype=torch.int8, device="cuda")
    full[:M] = a
    found = {"torch._int_mm": lambda: torch._int_mm(full, w.T), "own order": lambda: quant_matmul(a, packed, out=out)}
    for name, rows in (("static", M), ("dynamic", [M])):
        made = operator(rows, N, K)
        raw = made.transform_weight(w.cpu()).cuda()
        if tune and name == "static":
            began = time.perf_counter()
            made.hardware_aware_finetune(topk=20)
            print(f"tuned in {time.perf_counter() - began:.1f} s: {made.tuned}", flush=True)
        found[f"call, {name}"] = lambda made=made, raw=raw: made(a, raw, output=out)
    found["raw"] = made._raw(MatmulCall(a, raw, output=out)).run
    if ways:
        facts, request = made.config.facts(), replace(made.config.request(), rows=M)
        given, operands, result = made._checked(MatmulCall(a, raw, output=out))
        for chosen in ladder.candidates(facts, request, made.arch):
            prepared = made._prepared(given, a, request, chosen)
            label = " ".join(f"{name}={value}" for name, value in chosen.items() if name not in ("ahead", "turns"))
            found[label] = Product(prepared, operands, result, request, made.arch).run
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="1024x17280x3200")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ways", action="store_true")
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for size in options.size.split(","):
        M, N, K = map(int, size.split("x"))
        ways = runs(M, N, K, options.ways, options.tune)
        expected = ways["torch._int_mm"]()[:M]
        for name, run in ways.items():
            assert torch.equal(run()[:M], expected), name
        warm_up()
        print(size)
        for name, seconds in timed(ways, options.rounds, PAUSE).items():
            print(f"  {seconds * 1e6:9.1f} us {2e-12 * M * N * K / seconds:8.1f} TOPS  {name}", flush=True)


if __name__ == "__main__":
    main()
