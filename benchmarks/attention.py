"""Attention forward on a Hopper GPU beside all backends of torch's `scaled_dot_product_attention`.

    PYTHONPATH=. python benchmarks/attention.py --seed $(git rev-parse HEAD) --log attention.jsonl [--cases 60] [--queries few] [--slice 1/2] [--seconds 60] [--others 5]
    PYTHONPATH=. python benchmarks/attention.py --read attention.jsonl

Shapes are drawn: batches of 1 to 64, 1 to 64 heads of which 1 to 8 share their keys, heads of 64 to 256, 1 to 4096 keys, and one
query or 2 to 16 (`--queries few`), or as many queries as keys, causal or not (`many`).  Times are medians of CUDA graphs in turn, each
with the L2 cache flushed.  Every backend is called as it is (with `enable_gqa`), with the queries of a group as rows where there is no
mask, and with keys and values repeated beforehand where it takes no groups; the fastest counts.  `--others n` measures n more
candidates of the model of speed, the best of their kind, of which the reading makes the regret of the choice.
Kernels are compiled beforehand by processes that never see torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.attention import flash_attention
from tilewright.kernels.attention_tiles import Attention, AttentionTiles, tiles_for
from tilewright.kernels.roofline import speed_of
from tilewright.targets.registry import resolve

Case = tuple[int, int, int, int, int, int, bool]
"""Batch, heads, heads of keys, queries, keys, the size of a head, whether causal."""

BYTES = {"few": 1 << 29, "many": 1 << 28}
"""Of keys and values at most."""

BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")

SPIN_CYCLES = 150_000


def drawn(seed: str, queries: str) -> Iterator[Case]:
    rng = random.Random(f"{seed} {queries}")
    while True:
        group = rng.randint(1, 8)
        kv_heads, batch = rng.randint(1, 64 // group), int(2 ** rng.uniform(0, 6.02))
        dim = rng.choice([64, 64, 80, 96, 128, 128, 128, 192, 256])
        N = int(2 ** rng.uniform(0, 12)) if rng.random() < 0.4 else rng.randint(1, 4096)
        M = N if queries == "many" else 1 if rng.random() < 0.65 else rng.randint(2, 16)
        size = batch * kv_heads * N * dim * 4
        # Few of those whose time is that of memory alone.
        if size < BYTES[queries] and (size < 1 << 27 or rng.random() < 0.4):
            yield batch, kv_heads * group, kv_heads, M, N, dim, queries == "many" and rng.random() < 0.5


def present() -> Any:
    return resolve("cuda")[1]


def candidates(case: Case, arch: Any, others: int) -> list[AttentionTiles]:
    """The choice, and the best of other kinds by the model."""
    batch, heads, kv_heads, M, N, dim, causal = case
    work = Attention(*case, speed_of(arch))
    kinds: dict[object, AttentionTiles] = {}
    for one in sorted(work.candidates(), key=work.cycles):
        kinds.setdefault((one.blocks, one.splits, one.block_M), one)
    chosen = tiles_for(arch, "float16", (batch, heads, kv_heads), (M, N), dim, causal)
    return [chosen, *itertools.islice((one for one in kinds.values() if one != chosen), others)]


def made(on: Any, case: Case, tiles: AttentionTiles, tensors: tuple[Any, Any, Any] | None = None) -> Any:
    batch, heads, kv_heads, M, N, dim, causal = case
    shapes = [(batch, heads, M, dim), *[(batch, kv_heads, N, dim)] * 2]
    attend = flash_attention if tensors else flash_attention.on(on)
    arrays = tensors or [np.broadcast_to(np.zeros(1, np.float16), shape) for shape in shapes]
    return attend.compile(*arrays, causal=causal, dtype="float16", tiles=tiles)


def build(task: tuple[Any, Case, AttentionTiles]) -> str:
    try:
        return str(made(*task).path) and ""
    except Exception as problem:
        return f"{type(problem).__name__}: {str(problem).splitlines()[0]}"


def peers(q: Any, k: Any, v: Any, causal: bool) -> dict[str, Callable[[], Any]]:
    """Torch's backends in every form that they take."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    group = q.shape[1] // k.shape[1]
    rows = q.view(q.shape[0], k.shape[1], -1, q.shape[3])
    wide = [one.repeat_interleave(group, 1) for one in (k, v)] if k.numel() * group < 1 << 29 else []
    forms: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {"": ((q, k, v), {"enable_gqa": group > 1})}
    if group > 1 and not causal:
        forms["rows "] = ((rows, k, v), {})
    if group > 1 and wide:
        forms["repeated "] = ((q, *wide), {})
    found: dict[str, Callable[[], Any]] = {}
    for name, (form, (arrays, more)) in itertools.product(BACKENDS, forms.items()):

        def run(name: str = name, arrays: Any = arrays, more: Any = more) -> Any:
            with sdpa_kernel(getattr(SDPBackend, name)):
                return torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=causal, **more)

        with suppress(RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run()
            found[f"torch {form}{name.lower()}"] = run
    return found


def captured(run: Callable[[], Any]) -> tuple[Any, Any]:
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


def timed(graphs: list[Any], flush: Any, rounds: int = 15) -> list[float]:
    """Medians in microseconds of graphs in turn."""
    import torch

    times: list[list[float]] = [[] for _ in graphs]
    for number in range(rounds):
        for at in [*range(number % len(graphs), len(graphs)), *range(number % len(graphs))]:
            flush.zero_()
            torch.cuda._sleep(SPIN_CYCLES)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs[at].replay()
            end.record()
            end.synchronize()
            times[at].append(begin.elapsed_time(end) * 1e3)
    return [round(statistics.median(one), 2) for one in times]


def measured(case: Case, tried: list[AttentionTiles], flush: Any) -> dict[str, Any]:
    import torch

    batch, heads, kv_heads, M, N, dim, causal = case
    q = torch.randn(batch, heads, M, dim, device="cuda").half()
    k, v = (torch.randn(batch, kv_heads, N, dim, device="cuda").half() for _ in range(2))
    runs, lines = peers(q, k, v, causal), []
    reference = next(iter(runs.values()))().float()
    for tiles in tried:
        kernel = made(None, case, tiles, (q, k, v))
        runs[repr(tiles)] = lambda kernel=kernel: kernel(q, k, v)
    graphs = {name: captured(run) for name, run in runs.items()}
    times = dict(zip(graphs, timed([graph for graph, _ in graphs.values()], flush)))
    for tiles in tried:
        error = (graphs[repr(tiles)][1].float() - reference).abs().max().item()
        assert error < 1e-2, f"{case}, {tiles}: wrong by {error}"
        lines.append({"tiles": asdict(tiles), "us": times[repr(tiles)]})
    best = min((spent, name) for name, spent in times.items() if name.startswith("torch"))
    return {
        "case": case,
        "torch": best,
        "peers": {name: times[name] for name in times if name.startswith("torch")},
        "ours": lines,
    }


def read(path: str) -> None:
    """The table of a log: ratios of torch's best to the choice, and the regret of the choice."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for name, of in (("one query", [line for line in lines if line["case"][3] == 1]), ("2 to 16 queries", [line for line in lines if 1 < line["case"][3] <= 16]),
                     ("many", [line for line in lines if line["case"][3] > 16])):  # fmt: skip
        if not of:
            continue
        ratios = sorted((line["torch"][0] / line["ours"][0]["us"], line["case"]) for line in of)
        regrets = [line["ours"][0]["us"] / min(one["us"] for one in line["ours"]) - 1 for line in of]
        mean = math.exp(statistics.mean(math.log(ratio) for ratio, _ in ratios))
        print(f"| {name} | {len(of)} | {mean:.3f} | {sum(ratio < 1 for ratio, _ in ratios)} | {ratios[0][0]:.3f} | {ratios[0][1]} | {statistics.mean(regrets):.3f} | {max(regrets):.3f} |")  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seed", default="0")
    options.add_argument("--log", default="attention.jsonl")
    options.add_argument("--cases", type=int, default=60)
    options.add_argument("--queries", choices=("few", "many"), default="few")
    options.add_argument("--slice", default="1/1")
    options.add_argument("--seconds", type=float, default=480)
    options.add_argument("--others", type=int, default=0)
    options.add_argument("--read")
    given = options.parse_args()
    if given.read:
        return read(given.read)
    begin, (part, parts) = time.time(), map(int, given.slice.split("/"))
    forked = multiprocessing.get_context("fork")
    with forked.Pool(1) as asking:
        arch = asking.apply(present)
    cases = list(itertools.islice(drawn(given.seed, given.queries), given.cases))[part - 1 :: parts]
    tried = {case: candidates(case, arch, given.others) for case in cases}
    with forked.Pool(max(1, (os.cpu_count() or 1) // parts)) as pool, open(given.log, "a") as log:
        built = {case: [pool.apply_async(build, ((arch, case, one),)) for one in of] for case, of in tried.items()}
        import torch

        flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
        for case, of in tried.items():
            if time.time() - begin > given.seconds:
                break
            failed = [one.get() for one in built[case]]
            for one, why in zip(of, failed):
                if why:
                    print(case, one, why, flush=True)
            line = measured(case, [one for one, why in zip(of, failed) if not why], flush)
            log.write(json.dumps(line) + "\n")
            log.flush()
            print(f"{case}: {line['torch'][0] / line['ours'][0]['us']:.3f}, {line['ours'][0]['us']} us, {line['torch'][1]} {line['torch'][0]} us, {of[0]}", flush=True)  # fmt: skip
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
