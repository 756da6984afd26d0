"""Attention forward on a Hopper GPU beside torch's `scaled_dot_product_attention`.

    PYTHONPATH=. python benchmarks/attention.py [--cases 16x32x512x128,2x64/8x1:8192x128c,...] [--tiles 128x128,64x64*2/4t,...]

A case is ``batch x heads[/kv_heads] x queries[:keys] x dim``, with ``c`` behind it a causal one.  Tiles are ``queries x keys``
of a step, ``+n`` n slots of keys and values, ``*n`` n blocks a multiprocessor, ``/n`` keys in n parts, ``t`` heads that
share keys together, ``s`` one tile a block, in this order.  Times are medians of paced launches in turn: single ones 10 ms apart,
the host's part hidden, the L2 cache flushed.  The first row of ours is the library's choice.  Results are compared with torch's.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import tilewright
from tilewright.kernels.attention import flash_attention
from tilewright.kernels.attention_tiles import AttentionTiles, tiles_for
from tilewright.passes.context import Schedule
from tilewright.targets.cuda.arch import detect

CASES = (
    "16x32x512x128,16x32x512x128c,32x32x256x128,8x32x1024x128,8x32x1024x128c,8x32x2048x64,8x32x2048x64c,4x32x4096x128"
)
FLUSH = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
SPIN_CYCLES = 2_000_000
PAUSE = 0.01


def paced(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Medians in microseconds of functions that are launched in turn."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            FLUSH.zero_()
            torch.cuda._sleep(SPIN_CYCLES)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            samples[name].append(begin.elapsed_time(end) * 1e3)
            time.sleep(PAUSE)
    return {name: statistics.median(times) for name, times in samples.items()}


def measure(case: str, tried: list[str], rounds: int) -> None:
    found = re.fullmatch(r"(\d+)x(\d+)(?:/(\d+))?x(\d+)(?::(\d+))?x(\d+)(c?)", case)
    assert found is not None, case
    batch, heads, kv_heads, M, N, dim = (int(one) if one else 0 for one in found.groups()[:6])
    kv_heads, N, causal = kv_heads or heads, N or M, bool(found[7])
    q = torch.randn(batch, heads, M, dim, device="cuda").half()
    k, v = (torch.randn(batch, kv_heads, N, dim, device="cuda").half() for _ in range(2))
    seen = sum(min(N, max(0, i + N - M + 1)) for i in range(M)) if causal else M * N
    work = 4 * batch * heads * seen * dim / 1e6
    moved = (2 * q.numel() + 2 * k.numel()) * 2 / 1e3
    mask = torch.ones(M, N, dtype=torch.bool, device="cuda").tril(N - M) if causal and M != N else None

    def peer() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=kv_heads != heads
        )

    runs: dict[str, Callable[[], Any]] = {"torch": peer}
    for text in ["", *tried]:
        tiles, persistent = variant(text)
        jitted = tilewright.jit(flash_attention.direct.function, schedule=Schedule(persistent=persistent))
        try:
            kernel = jitted.compile(q, k, v, causal=causal, dtype="float16", tiles=tiles, expected=(M, N))
            out = kernel(q, k, v)
        except Exception as error:
            print(f"  {text}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            continue
        wrong = (out.float() - peer().float()).abs().max().item()
        if not wrong < 2e-2:
            print(f"  {text}: WRONG by {wrong}", flush=True)
        runs[f"ours {text or chosen(heads, kv_heads, batch, M, N, dim, causal)}"] = lambda kernel=kernel: kernel(
            q, k, v
        )
    for run in runs.values():
        run()
    times = paced(runs, rounds)
    print(f"{case}", flush=True)
    for name, spent in times.items():
        print(
            f"  {spent:9.1f} us {work / spent:6.0f} TFLOP/s {moved / spent:6.0f} GB/s {times['torch'] / spent:6.3f}  {name}",
            flush=True,
        )


def chosen(heads: int, kv_heads: int, batch: int, M: int, N: int, dim: int, causal: bool) -> AttentionTiles:
    return tiles_for(detect(), "float16", (batch, heads, kv_heads), (M, N), dim, causal)


def variant(text: str) -> tuple[AttentionTiles | None, bool | None]:
    """Tiles as their text says, the library's where there is none."""
    if not text:
        return None, None
    found = re.fullmatch(r"(\d+)x(\d+)(?:\+(\d+))?(?:\*(\d+))?(?:/(\d+))?(t?)(s?)", text)
    assert found is not None, text
    rows, keys, stages, blocks, splits = (int(one or 0) for one in found.groups()[:5])
    tiles = AttentionTiles(rows, keys, 2 * rows, stages or 2, blocks or 1, bool(found[6]), splits or 1)
    return tiles, False if found[7] else None


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--cases", default=CASES)
    options.add_argument("--tiles", default="")
    options.add_argument("--rounds", type=int, default=9)
    given = options.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    for case in given.cases.split(","):
        measure(case, [one for one in given.tiles.split(",") if one], given.rounds)
