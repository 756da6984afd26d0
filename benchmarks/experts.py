"""Experts in one launch on a Hopper GPU, beside the dense kernel of the same tier at equal work, and torch's grouped products.

    PYTHONPATH=.:benchmarks python benchmarks/experts.py [--cases bf16:64x4096x7168:8,...] [--rounds 9]

A case is a kind, a size experts x N x K, and the rows of each expert; ``~64`` are ragged runs of 64 on average, some empty.  Kinds:
``bf16``, ``e4m3`` (scales of tokens and channels) and ``w4`` (int4 in groups of 128 by float16).  The dense product has one
weight of experts * N rows and as many rows of activations as each expert has: the same bytes of weights and as many operations.
Microseconds are medians of paced launches, as in `benchmarks/gemm.py`; results are compared with float64 on rows of every expert.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from gemm import PAUSE, Runs, timed
from quant import warm_up

from tilewright.matmul import PackedExperts, PackedWeight
from tilewright.matmul.grouped_calls import GroupedCall
from tilewright.matmul.product import Product

CASES = ",".join(
    [f"{kind}:64x4096x7168:{rows}" for kind in ("bf16", "w4", "e4m3") for rows in ("8", "64", "256", "~64")]
    + ["w4:8x14336x4096:16", "w4:8x14336x4096:512", "w4:256x2048x4096:~8", "e4m3:256x4096x4096:~64"]
)


def weights(kind: str, experts: int, N: int, K: int) -> list[PackedWeight]:
    """Random weights, made on the GPU."""
    made = []
    for _ in range(experts):
        if kind == "bf16":
            made.append(PackedWeight("bfloat16", (N, K), {"codes": torch.randn(N, K, device="cuda").bfloat16()}))
        elif kind == "e4m3":
            scales = torch.rand(N, 1, device="cuda") * 0.02 + 0.01
            codes = torch.randn(N, K, device="cuda").to(torch.float8_e4m3fn).view(torch.uint8)
            made.append(PackedWeight("e4m3", (N, K), {"codes": codes, "scales": scales}, block=(1, K)))
        else:
            scales = (torch.rand(N, K // 128, device="cuda") * 0.02 + 0.01).half()
            codes = torch.randint(0, 256, (N, K // 2), dtype=torch.uint8, device="cuda")
            made.append(PackedWeight("int4", (N, K), {"codes": codes, "scales": scales}, block=(1, 128)))
    return made


def joined(each: list[PackedWeight]) -> PackedWeight:
    """One weight with the rows of all."""
    first = each[0]
    arrays = {name: torch.cat([one.held[name] for one in each]) for name in first.held}
    return PackedWeight(first.format, (first.shape[0] * len(each), first.shape[1]), arrays, block=first.block)


def dense(weight: PackedWeight) -> torch.Tensor:
    """What a weight stands for, float32 on the GPU."""
    if weight.format.name == "bfloat16":
        return weight.codes.float()
    if weight.format.name == "e4m3":
        return weight.codes.view(torch.float8_e4m3fn).float() * weight.held["scales"]
    codes = weight.codes
    fields = torch.stack([codes & 15, codes >> 4], -1).reshape(weight.shape).to(torch.int8)
    numbers = ((fields + 8) % 16 - 8).float()
    return numbers * weight.held["scales"].float().repeat_interleave(weight.block[1], 1)


def runs_of(text: str, experts: int) -> list[int]:
    """Rows of each expert."""
    if not text.startswith("~"):
        return [int(text)] * experts
    mean = int(text[1:])
    shares = torch.rand(experts).pow(2) * (torch.rand(experts) > 0.1)
    return [round(share) for share in (shares / shares.sum() * mean * experts).tolist()]


def activations(kind: str, rows: int, K: int) -> tuple[torch.Tensor, Any]:
    x = torch.randn(rows, K, device="cuda")
    if kind == "e4m3":
        return x.to(torch.float8_e4m3fn), torch.rand(rows, 1, device="cuda") * 0.02 + 0.01
    return x.to(torch.bfloat16 if kind == "bf16" else torch.float16), None


def wrong(x: torch.Tensor, scales: Any, each: list[PackedWeight], sizes: list[int], found: torch.Tensor) -> float:
    """The largest error of the first and the last row of each expert, beside the largest value."""
    worst, start = 0.0, 0
    for weight, size in zip(each, sizes, strict=True):
        if size:
            rows = torch.tensor([start, start + size - 1], device="cuda")
            exact = x[rows].double() @ dense(weight).double().T
            exact = exact if scales is None else exact * scales[rows].double()
            worst = max(worst, float((found[rows].double() - exact).abs().max() / exact.abs().max()))
        start += size
    return worst


def peers(kind: str, x: torch.Tensor, scales: Any, each: list[PackedWeight], sizes: list[int]) -> Runs:
    """Torch's grouped products, where this version has them."""
    ends = torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)
    found: dict[str, Callable[[], Any]] = {}
    if kind == "bf16":
        stacked = torch.stack([one.codes for one in each]).transpose(1, 2)
        found["torch _grouped_mm"] = lambda: torch._grouped_mm(x, stacked, offs=ends)
    elif kind == "e4m3":
        stacked = torch.stack([one.codes.view(torch.float8_e4m3fn) for one in each]).transpose(1, 2)
        of_rows = scales.reshape(-1)
        of_columns = torch.stack([one.held["scales"].reshape(-1) for one in each])
        found["torch _scaled_grouped_mm"] = lambda: torch._scaled_grouped_mm(
            x, stacked, of_rows, of_columns, offs=ends, out_dtype=torch.bfloat16
        )
    good: Runs = {}
    for name, run in found.items():
        try:
            run()
            good[name] = run
        except (RuntimeError, AttributeError) as error:
            print(f"  {name}: {str(error).splitlines()[0][:100]}")
    return good


def case(kind: str, experts: int, N: int, K: int, rows: str) -> Runs:
    """Ours, the dense product at equal work, and torch's."""
    sizes = runs_of(rows, experts)
    each = weights(kind, experts, N, K)
    out = "float16" if kind == "w4" else "bfloat16"
    x, scales = activations(kind, sum(sizes), K)
    runs = peers(kind, x, scales, each, sizes)
    stacked, whole = PackedExperts(each), joined(each)
    call = GroupedCall.of(x, stacked, torch.tensor(sizes, device="cuda"), scales, None, out)
    assert isinstance(call, GroupedCall), call
    error = wrong(x, scales, list(stacked), sizes, call.run())
    if not error < 2e-2:
        print(f"  WRONG: error {error:.3g}")
    of_one, token_scales = activations(kind, -(-sum(sizes) // experts), K)
    product = Product.of(of_one, whole, activation_scales=token_scales, out_dtype=out)
    product.run()
    return {"dense, equal work": product.run, "ours": call.run, **runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    warm_up()
    for text in options.cases.split(","):
        kind, size, rows = text.split(":")
        experts, N, K = map(int, size.split("x"))
        torch.manual_seed(0)
        runs = case(kind, experts, N, K, rows)
        found = timed(runs, options.rounds, PAUSE)
        base = found["dense, equal work"]
        times = ", ".join(f"{name} {seconds * 1e6:.1f} us ({base / seconds:.3f})" for name, seconds in found.items())
        print(f"{text:28}{times}", flush=True)
        del runs
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
