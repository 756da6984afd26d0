"""Random tile programs, and whether every way to run one gives the same numbers.

A seed is a program, its arguments and the machines it is compiled for: the interpreter says what is right, and every target of
the registry is compared with it, texts for GPUs in the emulator under several schedules.

    python tests/fuzz/tile_fuzz.py 17                                       # one program, and what each way makes of it
    python tests/fuzz/tile_fuzz.py 0 4999 --workers 14 --log fuzz.log       # goes on where it was stopped
    python tests/fuzz/tile_fuzz.py 0 4999 --workers 14 --log gpu.log --gpu  # really, on the GPU that is here
    python tests/fuzz/tile_fuzz.py 0 4999 --coverage                        # what these programs reach
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import judge
from bold_writer import BoldWriter
from course_writer import writer_of
from engine_writer import EngineWriter
from fuzz_writer import Writer
from gathering_writer import GatheringWriter
from hand_writer import HandWriter
from judge import Verdict
from mixed_writer import MixedWriter
from own_writer import OwnWriter
from parting_writer import PartingWriter
from product_writer import ProductWriter
from scaled_writer import ScaledWriter
from shrink import shrunk
from swarm_writer import SwarmWriter
from thread_writer import ThreadWriter
from tile_programs import TileProgram
from tile_writer import TileWriter
from wide_writer import WideWriter
from word_writer import WordWriter
from workers import Workers

from tilewright.ir.nodes import TILE_OPERATORS

SLOW = 120.0
"""Seconds after which a program counts as one that hangs."""

REPEATED = 3
"""Runs of each program on a GPU."""


PIPELINES, LOOPS, ROWS, MIXED, ENGINE, SWARM = 1_000_000, 1_100_000, 1_500_000, 2_000_000, 3_000_000, 4_000_000
SCALED, THREADS, OWN, HAND, WORDS = 5_000_000, 6_000_000, 7_000_000, 8_000_000, 9_000_000
PRODUCTS, PARTING, WIDE, COURSES = 9_500_000, 9_700_000, 9_850_000, 9_960_000
"""Seeds from here on are programs around products in pipelined loops: plain ones, loops of every kind, rows brought one by one;
programs in which any statement stands in any context, such that give tiles to the copy engine, and such that do few kinds of things often;
products of 8-bit floats with scales; programs in which threads speak for themselves, such in which they change what they have under
conditions, such whose authors do by hand what the compiler does for others, such that say whatever the language has words for, such
around products of which every part is drawn, and around those of loops whose warps may part, such whose places are reckoned in 64 bits,
and such whose loops, returns and kernels are in an order of their own."""

ALL = 10_000_000
"""Seeds from here on are programs of all families in turn."""

IN_TURN = (
    SWARM,
    0,
    OWN,
    ENGINE,
    PRODUCTS,
    HAND,
    WORDS,
    LOOPS,
    MIXED,
    PIPELINES,
    SWARM,
    PARTING,
    ROWS,
    THREADS,
    SCALED,
    PARTING,
    PARTING,
    WIDE,
    COURSES,
)

FAMILIES = {
    "tiles": 0, "pipelines": PIPELINES, "loops": LOOPS, "rows": ROWS, "mixed": MIXED, "engine": ENGINE, "swarm": SWARM, "scaled": SCALED,
    "threads": THREADS, "own": OWN, "hand": HAND, "words": WORDS, "products": PRODUCTS, "parting": PARTING, "wide": WIDE,
    "courses": COURSES,
}  # fmt: skip
"""The first seed of each."""


def own_seed(seed: int) -> int:
    """The seed that a program of all families in turn has in its family."""
    if seed < ALL:
        return seed
    turn, place = divmod(seed - ALL, len(IN_TURN))
    before = IN_TURN[:place].count(IN_TURN[place])
    first = IN_TURN[place]
    room = min(other for other in (*FAMILIES.values(), ALL) if other > first) - first
    return first + (50_000 + turn * IN_TURN.count(first) + before) % room


def program_of(seed: int) -> TileProgram:
    """The program of a seed."""
    seed = own_seed(seed)
    if seed < PIPELINES:
        return TileWriter(seed).write()
    if seed >= COURSES:
        return writer_of(seed - COURSES).write()
    if seed >= WIDE:
        return WideWriter(seed - WIDE).write()
    if seed >= PARTING:
        return PartingWriter(seed - PARTING).write()
    if seed >= PRODUCTS:
        return ProductWriter(seed - PRODUCTS).write()
    if seed >= WORDS:
        return WordWriter(seed - WORDS).write()
    if seed >= HAND:
        return HandWriter(seed - HAND).write()
    if seed >= OWN:
        return OwnWriter(seed - OWN).write()
    if seed >= THREADS:
        return ThreadWriter(seed - THREADS).write()
    if seed >= SCALED:
        return ScaledWriter(seed).write()
    if seed >= SWARM:
        return SwarmWriter(seed - SWARM).write()
    if seed >= MIXED:
        return EngineWriter(seed - ENGINE).write() if seed >= ENGINE else MixedWriter(seed - MIXED).write()
    writer = GatheringWriter if seed >= ROWS else BoldWriter if seed >= LOOPS else Writer
    return writer(seed - PIPELINES).write()


def targets_of(seed: int, program: TileProgram) -> tuple[str, ...]:
    """The machines that a seed's program is for, whatever other families are in turn with its own."""
    return program.machines or judge.targets_of(own_seed(seed))


def verdict(task: tuple[int, TileProgram | None, tuple[str, ...], bool]) -> Verdict:
    """What its targets make of a seed's program, or of one given."""
    seed, program, targets, gpu = task
    program = program or program_of(seed)
    return _on_gpu(program) if gpu else judge.judged(program, targets or targets_of(seed, program))


def _on_gpu(program: TileProgram) -> Verdict:
    """The same on the device that is here: compiled for it, run some times, compared with the interpreter."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
    from device_arrays import run_on_device

    from tilewright.errors import ExecutionError, TilewrightError

    try:
        kernel = program.compile("cuda")
    except TilewrightError as error:
        if judge.is_ours(error):
            return Verdict("fails", "gpu", f"{type(error).__name__}: {str(error)[:300]}")
        return Verdict("refused", "gpu", f"{type(error).__name__}: {error.message[:200]}")
    try:
        expected = judge.run(kernel.interpret, program.arguments)
    except ExecutionError as error:
        return Verdict("invalid", "interpreter", f"{type(error).__name__}: {error.message[:200]}")
    for _ in range(REPEATED):
        try:
            wrong = judge.different(program, run_on_device(kernel, program.arguments), expected)
        except Exception as error:
            return Verdict("fails", "gpu", f"{type(error).__name__}: {str(error)[:300]}")
        if wrong:
            return judge.unwritten(program, kernel, expected) or Verdict("fails", "gpu", wrong)
    return Verdict("agrees")


def _spoilt(result: Verdict | None) -> bool:
    """Whether a device's context may be of no more use."""
    return (
        result is not None
        and result.way == "gpu"
        and ("LaunchFailed" in result.what or "DriverError" in result.what or "CUDA" in result.what)
    )


def answered(result: Verdict | None, reason: str) -> Verdict:
    return result or Verdict("fails", "process", reason)


# Many seeds --------------------------------------------------------------------------------------


def hunt(seeds: Sequence[int], options: argparse.Namespace) -> list[tuple[int, Verdict]]:
    """Judge seeds in several processes until the time is over; a log is gone on with where an earlier hunt stopped."""
    found: dict[int, Verdict] = {}
    if options.log is not None and options.log.exists():
        for line in options.log.read_text().splitlines():
            record = json.loads(line)
            found[record["seed"]] = Verdict(record["kind"], record["way"], record["what"])
    tasks = [(seed, None, tuple(options.target or ()), options.gpu) for seed in seeds if seed not in found]
    until = time.monotonic() + options.seconds
    with Workers(verdict, options.workers, SLOW, _spoilt) as workers:
        for task, result, reason in workers.results(tasks, until):
            seed, one = task[0], answered(result, reason)
            found[seed] = one
            if options.log is not None:
                with options.log.open("a") as out:
                    out.write(json.dumps({"seed": seed, "kind": one.kind, "way": one.way, "what": one.what}) + "\n")
            if one.kind in ("fails", "invalid"):
                print(seed, str(one)[:400], flush=True)
                if options.first:
                    break
    return [(seed, found[seed]) for seed in seeds if seed in found]


def summary(verdicts: Iterable[tuple[int, Verdict]]) -> str:
    """How many of each kind; failures by what they have in common."""
    kinds = collections.Counter(one.kind for _, one in verdicts)
    lines = [", ".join(f"{count} {kind}" for kind, count in kinds.most_common())]
    families: dict[tuple[str, str, str], list[int]] = {}
    for seed, one in verdicts:
        if one.kind != "agrees":
            word = one.what.split(": ")[1 if one.kind == "refused" and one.what.startswith("c") else 0][:60]
            families.setdefault((one.kind, one.way.split(" ")[0], word), []).append(seed)
    for family, seeds in sorted(families.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(seeds):6} {' '.join(family)}: {seeds[:6]}")
    return "\n".join(lines)


def by_family(verdicts: Iterable[tuple[int, Verdict]]) -> str:
    """A table: how many programs of each family there were of each kind."""
    counts: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in [*FAMILIES, "all"]}
    for seed, one in verdicts:
        family = max((name for name, first in FAMILIES.items() if first <= own_seed(seed)), key=FAMILIES.__getitem__)
        kind = "died" if one.way == "process" else one.kind
        counts[family][kind] += 1
        counts["all"][kind] += 1
    kinds = ("agrees", "refused", "fails", "invalid", "died")
    lines = [f"| family | {' | '.join(kinds)} |", f"| --- |{' ---: |' * len(kinds)}"]
    lines += [f"| {name} | {' | '.join(str(of[kind]) for kind in kinds)} |" for name, of in counts.items() if of]
    return "\n".join(lines)


def coverage(seeds: Iterable[int]) -> str:
    """What the programs of seeds reach: for each operator, its kinds, dimensions, types and stages; and everything else, counted."""
    counts: collections.Counter[tuple[str, ...]] = collections.Counter()
    programs = 0
    for seed in seeds:
        counts.update(program_of(seed).features)
        programs += 1
    lines = [f"{programs} programs"]
    for name in TILE_OPERATORS:
        reached = [words for words in counts if words[:2] == ("operator", name)]
        axes = [
            sorted({words[at] for words in reached if len(words) > at})
            for at in range(2, max(map(len, reached), default=2))
        ]
        lines.append(
            f"{name}: {sum(counts[words] for words in reached)} statements, {len(reached)} combinations of "
            + " x ".join(str(len(axis)) for axis in axes)
        )
        lines += [f"    {', '.join(axis)}" for axis in axes]
    others: dict[str, collections.Counter[str]] = {}
    for words, count in counts.items():
        if words[0] != "operator":
            others.setdefault(words[0], collections.Counter())[" ".join(words[1:])] += count
    for kind, values in sorted(others.items()):
        lines.append(
            f"{kind}: {sum(values.values())} times, {len(values)} kinds; "
            + ", ".join(f"{word} {count}" for word, count in values.most_common(12))
        )
    return "\n".join(lines)


# One seed ----------------------------------------------------------------------------------------


def small(seed: int, one: Verdict, options: argparse.Namespace) -> TileProgram:
    """The program of a seed that fails, made small."""
    targets = targets_of(seed, program_of(seed))
    mine = (
        tuple(target for target in targets if one.way.startswith(target + " ") or one.way == target)
        or tuple(options.target or ())
        or targets
    )
    with Workers(verdict, 1, SLOW, _spoilt) as workers:
        return shrunk(
            program_of(seed),
            one,
            lambda program: answered(*workers.ask((seed, program, mine, options.gpu))),
            options.shrink,
        )


def shown(program: TileProgram) -> str:
    """A program as text, with what it is called with."""
    values = [f"# {param.name} = {_called(param.value)}" for param in program.used]
    return "\n".join([program.text, *values])


def _called(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") and value.shape else repr(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="+", help="one seed, or the first and the last")
    parser.add_argument("--gpu", action="store_true", help="run on the GPU that is here")
    parser.add_argument("--target", action="append", help="in place of those that the seed names")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no more seeds are begun")
    parser.add_argument("--log", type=Path, help="a line for each seed; seeds that it holds already are left out")
    parser.add_argument("--shrink", type=float, default=0.0, metavar="SECONDS", help="make each failing program small")
    parser.add_argument("--first", action="store_true", help="stop at the first failure")
    parser.add_argument("--part", default="0/1", metavar="K/N", help="every Nth seed, from the Kth on")
    parser.add_argument("--families", action="store_true", help="print a table of the families, too")
    parser.add_argument("--coverage", action="store_true", help="print what the programs reach, and run none")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    part, parts = map(int, options.part.split("/"))
    seeds = range(options.seeds[0] + part, options.seeds[-1] + 1, parts)
    if options.coverage:
        print(coverage(seeds))
        return 0
    verdicts = hunt(seeds, options)
    if len(seeds) == 1:
        print(shown(program_of(seeds[0])))
    print(summary(verdicts))
    if options.families:
        print(by_family(verdicts))
    failures = [(seed, one) for seed, one in verdicts if one.kind in ("fails", "invalid")]
    for seed, one in failures if options.shrink else []:
        made = small(seed, one, options)
        print(f"\n# seed {seed}: {one}\n{shown(made)}", flush=True)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
