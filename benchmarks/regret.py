"""How much slower the kernels are that the model of speed would choose than the best of those that were timed: no GPU is needed.

    PYTHONPATH=. python benchmarks/regret.py [benchmarks/results/2026-11-24-h200-candidates.jsonl]

The log is that of `candidates.py`, or lists the kernels of a weight once and then times them by number (``...-choices.jsonl``), or has a
line a case (``...-old-new.jsonl``), or is that of `attention.py`.  For each kind of product: problems, the mean and the worst regret of what the library chose when the log was
made, and of the model, which takes what it finds fastest of the candidates that it knows; last how far the model's ratios are from the
measured ones, for candidates within half of the best.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tilewright.ir.dtypes import ALL
from tilewright.kernels import HOPPER, ceil_div, roofline, tile_launches
from tilewright.kernels.attention_tiles import Attention, AttentionTiles
from tilewright.kernels.hopper_quant_bytes_choice import ByteCandidates, byte_quant_candidates
from tilewright.kernels.hopper_quant_wgmma_choice import wgmma_quant_candidates
from tilewright.kernels.repertoire import Candidates
from tilewright.kernels.tile_launches import Parts, cycles_of_parts, launches_of
from tilewright.kernels.tiles import CLUSTERS, TileTable, table_of
from tilewright.machine import COLUMNS, FragmentRecords
from tilewright.matmul.tiers.scaled import tiles_of

NAMES_BEFORE = {'"turned"': '"swapped"', '"kernel": "medium"': '"kernel": "wgmma"'}
"""What logs from before 28 November 2026 call otherwise."""

LOG = Path(__file__).parent / "results" / "2026-11-24-h200-candidates.jsonl"

SIZES = ("tokens", "warpgroups", "tiles", "records", "cluster", "sharing", "blocks", "running", "part", "overlaps")
"""What tells ways to divide a low-bit product apart."""

DIVIDED = 28
"""Cycles of a step by which kernels were slower when the logs were made, in rings of no power of two slots: they divided by
the number of slots, where kernels count on from step to step today and the model has no such cycles. Lines that say
``counted`` are of such kernels."""

PADDED = 4 * COLUMNS
"""Columns of which kernels of low-bit weights multiplied a multiple when the logs were made; they shared tiles among any number of
blocks and had long copies, and tiles of the same columns of a dense product did not begin together. Lines with ``since`` are of
kernels of that day or later, which are as the model has them."""

TREES = ("main", "new")
"""Whose kernels the model speaks of, where a log times those of several trees."""

SPREAD = "2026-11-28 spread"
"""Lines since then are of kernels that share few tiles of a partial wave beside those of a whole one."""

Problem = tuple[Any, ...]


def problems(log: Path = LOG) -> dict[Problem, list[dict[str, Any]]]:
    """Lines of the log that have a time, by problem."""
    found: dict[Problem, list[dict[str, Any]]] = defaultdict(list)
    kernels: dict[Problem, list[dict[str, Any]]] = {}
    for text in log.read_text().splitlines():
        for before, now in NAMES_BEFORE.items():
            text = text.replace(before, now)
        line = json.loads(text)
        if "kernels" in line:
            kernels[line["kind"], line["N"], line["K"]] = line["kernels"]
        elif "times" in line:
            problem = line["kind"], line["M"], line["N"], line["K"]
            listed = kernels[line["kind"], line["N"], line["K"]]
            counted = line.get("counted", False)
            found[problem] += [
                {"options": listed[number], "choice": False, "us": us, "counted": counted}
                for number, us in line["times"]
            ]
        elif "ours" in line:
            tried = [
                {"options": one["tiles"], "choice": not at, "us": one["us"]} for at, one in enumerate(line["ours"])
            ]
            found[("attention", *line["case"])] += tried
        elif "case" in line:
            for one in line["lines"]:
                if "us" in one and one.get("variant") in TREES:
                    told = {"choice": one["what"] == "old", "counted": True, "since": line.get("since", "")}
                    found[tuple(line["case"])].append({**one, **told})
        elif "us" in line and "M" in line:
            found[line["kind"], line["M"], line["N"], line["K"]].append(line)
    return found


def candidates_of(kind: str, N: int, K: int) -> Candidates:
    """The ways of a low-bit product, as the log's weights have them: groups of 128 with float16 scales near one another."""
    bits, activations = int(kind[3]), kind.rpartition(" ")[2]
    operand = {"float16": "float16", "int8": "int8", "e4m3": "float8_e4m3fn"}[activations]
    form = FragmentRecords(bits, ALL[operand], ALL["float16"])
    if activations == "float16":
        return wgmma_quant_candidates(N, K, form, few=16)
    of = byte_quant_candidates(N, K, form, True, activations == "int8").of
    # Until 28 November 2026 no product began before the sums of the one before it were scaled, and pairs took their rows in two.
    before = [{**one, "overlaps": False} for one in of]
    halves = [{**one, "part": one["tokens"] // 2} for one in before if one["sharing"] == 2]
    return ByteCandidates([*of, *before, *halves], N, K, form, True, HOPPER)


def modelled(problem: Problem, lines: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """Lines whose candidates the model knows, and the cycles that it gives them."""
    kind, *size = problem
    if kind == "attention":
        work = Attention(*size, HOPPER)
        yield from ((line, work.cycles(AttentionTiles(**line["options"]))) for line in lines)
    elif "parts" in lines[0]["options"]:
        for line in lines:
            parts = tuple((part["columns"], tiles_of(part)) for part in line["options"]["parts"])
            if any(one.splits not in CLUSTERS for _, one in parts) or any(one.splits > 1 for _, one in parts[1:]):
                continue
            divided = 0 if line.get("counted") else DIVIDED * _divided_steps(parts, size[0], size[2])
            with _as_made(line):
                cycles = cycles_of_parts(parts, size[0], size[2])
            yield line, cycles + divided
    else:
        is_new = bool(lines[0].get("since"))
        candidates = candidates_of(kind, size[1], size[2] if is_new else ceil_div(size[2], PADDED) * PADDED)
        with _as_made(lines[0]):
            times = candidates.cycles(size[0])
        names = [name for name in SIZES if name != "records" or is_new or "float16" not in kind]
        told = {_key(one, names): float(cycles) for one, cycles in zip(candidates.of, times)}
        for line in lines:
            key = _key(line["options"], names)
            if key in told and line["options"].get("kernel", "wgmma") == "wgmma":
                yield line, told[key]


@contextmanager
def _as_made(line: dict[str, Any]) -> Iterator[None]:
    """The model of kernels that were made when a line was."""
    with ExitStack() as before:
        if line.get("since", "") < SPREAD:
            before.enter_context(patch.object(roofline, "SPREAD", 1 << 20))
        if not line.get("since"):
            before.enter_context(patch.object(roofline, "least_steps", np.zeros_like))
            before.enter_context(patch.object(tile_launches, "begin_together", _of_those_that_stay))
        yield


def _of_those_that_stay(table: TileTable, *_: object) -> np.ndarray:
    return table.stays & (table.splits == 1) & (table.along_N == 1)


def _divided_steps(parts: Parts, M: int, K: int) -> int:
    """Steps of one block, of dense products in the logs, that divided by a number of slots."""
    steps = 0
    for columns, one in parts:
        if one.stages & one.stages - 1:
            waves = launches_of(table_of((one,)), M, columns, K, HOPPER).one(0).waves
            steps += waves * -(-K // (one.block_K * one.splits))
    return steps


def _key(options: dict[str, Any], names: list[str]) -> tuple[int, ...]:
    return tuple(int(options.get(name, 0)) for name in names)


def regrets(log: Path = LOG, least: int = 3) -> dict[str, np.ndarray]:
    """For each kind and problem of which so many kernels were timed: the regret of the library then, of the model, and how far its
    ratios are from those measured."""
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for problem, lines in problems(log).items():
        known = list(modelled(problem, lines))
        if len(known) < least:
            continue
        us, cycles = np.array([line["us"] for line, _ in known]), np.array([cycles for _, cycles in known])
        then = min((line["us"] for line in lines if line["choice"]), default=np.nan)
        best = min(line["us"] for line in lines)
        near = (us < 1.5 * us.min()) & np.isfinite(cycles)
        ratios = np.log(cycles[near] / us[near])
        found[problem[0]].append(
            (then / best - 1, us[cycles.argmin()] / us.min() - 1, float(abs(ratios - np.median(ratios)).mean()))
        )
    return {kind: np.array(numbers) for kind, numbers in found.items()}


def main() -> None:
    log = Path(sys.argv[1]) if len(sys.argv) > 1 else LOG
    print("| product | problems | regret then: mean, worst | the model's: mean, worst | its ratios are off by |")
    print("| --- | --- | --- | --- | --- |")
    for kind, numbers in regrets(log).items():
        then, now, off = numbers.T
        print(
            f"| {kind} | {len(numbers)} | {np.nanmean(then):.3f}, {np.nanmax(then):.3f} | {now.mean():.3f}, {now.max():.3f}"
            f" | {off.mean():.3f} |"
        )


if __name__ == "__main__":
    main()
