"""Planted faults: what the emulator must notice, by the thousand.

Two kinds.  *Calls* of the vocabulary are left out or changed while a text runs (no compilation: the core knows each call's line);
*mutations* change the text itself (`mutator`).  A fault is

- ``reported`` when a check names it, ``wrong`` when the result leaves its bounds, ``crashed`` or ``hung`` when the run does;
- ``harmless`` when no bit of the result changes under 18 schedules, of which 12 find memory poisoned differently each time and are launched twice;
- ``missed`` otherwise, ``invalid`` when the text no longer compiles.

Run as a program, it tries all faults (or a seeded sample) and writes the table of `docs/lab/planted_faults.md`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from emulator_kernels import KERNELS, TEXTS, Kernel, Problem, correct, fresh
from mutator import mutants

from tilewright.emulator import Fault
from tilewright.errors import TilewrightError

TRIED = (("late", 0), ("early", 0), ("random", 2), ("late", 1), ("random", 3), ("early", 1))
"""Schedules of the ordinary hunt; the first three find nearly everything."""

HARMLESS_SCHEDULES = 12
SECONDS = 60
"""Processor time after which a fault's runs hang."""

SKIPPED = {
    "sync_threads", "named_barrier_sync", "named_barrier_arrive", "sync_warp", "mbarrier_init", "mbarrier_arrive", "mbarrier_arrive_cluster",
    "mbarrier_arrive_expect_tx", "mbarrier_wait", "fence_mbarrier_init", "fence_proxy_async", "a fence", "cp_async", "cp_async_commit",
    "cp_async_wait", "cp_async_mbarrier_arrive", "bulk_load", "tma_load", "tma_store", "bulk_commit", "bulk_wait", "wgmma", "wgmma_fence",
    "wgmma_commit", "wgmma_wait", "setmaxnreg", "cluster_arrive", "cluster_wait", "ldmatrix", "stmatrix", "mma", "an atomic",
}  # fmt: skip
DELTAS = {
    "mbarrier_init": (1, -1), "mbarrier_arrive_expect_tx": (16, -16, 1024), "named_barrier_sync": (32, -32), "named_barrier_arrive": (32,),
    "cp_async_wait": (1, 2), "bulk_wait": (1,), "wgmma_wait": (1,), "bulk_load": (16, -16), "tma_load": (8, -8, 64), "tma_store": (8,),
    "ldmatrix": (1, -1, 4), "stmatrix": (1, -1), "cp_async": (-2, -16), "wgmma": (2, 64), "setmaxnreg": (8, -16),
}  # fmt: skip
FLIPS = {
    "mbarrier_wait": (1,),
    "named_barrier_sync": (1, 4),
    "named_barrier_arrive": (4,),
    "tma_load": (1, 2, 3),
    "tma_store": (1, 2),
    "wgmma": (2, 64),
}


@dataclass(frozen=True)
class Planted:
    """One fault of one kernel: calls changed at run time, or another text."""

    kernel: str
    what: str
    line: int
    call: Fault | None = None
    text: str | None = None

    def __str__(self) -> str:
        return f"{self.kernel}.cu:{self.line} {self.what}"


def call_faults(kernel: Kernel, census: dict[tuple[str, str, int], int]) -> list[Planted]:
    """Faults at every call of the vocabulary that a kernel executes."""
    faults: list[Planted] = []
    for (operation, file, line), count in sorted(census.items()):
        if file != kernel.file:
            continue

        def add(what: str, line: int = line, operation: str = operation, **change: Any) -> None:
            faults.append(Planted(kernel.name, what, line, Fault(kernel.file, line, operation, **change)))

        if operation in SKIPPED:
            add(f"{operation} removed", skip=True)
            if count > 1:
                add(f"{operation} removed in the first half of its executions", skip=True, last=count // 2 - 1)
                add(f"{operation} removed in the second half of its executions", skip=True, first=count // 2)
                add(f"{operation} removed once", skip=True, first=count // 3, last=count // 3)
        for delta in DELTAS.get(operation, ()):
            add(f"{operation} with its number changed by {delta}", delta=delta)
            if count > 3:
                add(
                    f"{operation} with its number changed by {delta} from its second third on",
                    delta=delta,
                    first=count // 3,
                )
        for flip in FLIPS.get(operation, ()):
            add(f"{operation} with bits {flip} flipped", flip=flip)
            if count > 3:
                add(f"{operation} with bits {flip} flipped from its middle on", flip=flip, first=count // 2)
    return faults


def text_mutations(kernel: Kernel) -> list[Planted]:
    """Faults made by changing the text of a kernel's body."""
    return [Planted(kernel.name, one.what, one.line, text=one.text) for one in mutants(kernel.text)]


def _bits(problem: Problem) -> bytes:
    return b"".join(array.tobytes() for array in problem.outputs)


def _launched_again(
    kernel: Kernel, problem: Problem, attempt: Problem, text: str | None, **options: Any
) -> tuple[str, str] | None:
    """What a second launch says, with outputs as they were, where the first one changed anything else: a counter, a flag."""
    if not correct(attempt):
        return None
    changed = any(
        isinstance(after, np.ndarray)
        and all(after is not one for one in attempt.outputs)
        and before.tobytes() != after.tobytes()
        for before, after in zip(problem.arguments, attempt.arguments, strict=True)
    )
    if not changed:
        return None
    for before, after in zip(problem.outputs, attempt.outputs, strict=True):
        after[...] = before
    found = kernel.run(attempt, text, workers=1, **options)
    if found.reports:
        return "reported", ",".join(sorted({report.kind for report in found.reports})) + " at the second launch"
    return None if correct(attempt) else ("wrong", "second launch")


def judge(
    kernel: Kernel, problem: Problem, expected: bytes, planted: Planted, schedules: int = HARMLESS_SCHEDULES
) -> tuple[str, str]:
    """What becomes of a fault: its class, and the kinds of reports or the schedule that tell."""
    options: dict[str, Any] = {"seconds": 10.0, **({"faults": [planted.call]} if planted.call else {})}
    for schedule, seed in TRIED:
        attempt = fresh(problem)
        try:
            found = kernel.run(attempt, planted.text, schedule=schedule, seed=seed, workers=1, **options)
        except TilewrightError as error:
            return ("invalid", "") if "refuses" in str(error) else ("reported", type(error).__name__)
        if found.reports:
            return "reported", ",".join(sorted({report.kind for report in found.reports}))
        if not correct(attempt):
            return "wrong", f"{schedule} {seed}"
    for i in range(schedules):
        attempt = fresh(problem)
        poison = random.Random(i).getrandbits(64)
        schedule = ("late", "early", "random")[i % 3]
        found = kernel.run(attempt, planted.text, schedule=schedule, seed=4 + i, workers=1, poison=poison, **options)
        if found.reports:
            return "reported", ",".join(sorted({report.kind for report in found.reports}))
        bits = _bits(attempt)
        again = _launched_again(
            kernel, problem, attempt, planted.text, schedule=schedule, seed=4 + i, poison=poison, **options
        )
        if again:
            return again
        if bits != expected:
            return ("wrong" if not correct(attempt) else "missed"), f"{schedule} {4 + i}"
    return "harmless", ""


def in_child(function: Any, *arguments: Any) -> tuple[str, str]:
    """The verdict of a function run in a child process, which may crash or hang (use up its seconds of processor time)."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(write, json.dumps(function(*arguments)).encode()[:60000])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return ("hung", "") if name in ("SIGXCPU", "SIGKILL") else ("crashed", name)
    return tuple(json.loads(answer)) if answer else ("crashed", "")  # type: ignore[return-value]


def keep(record_property: Callable[[str, str], None], verdicts: Iterable[tuple[str, str]]) -> None:
    """Verdicts in numbers and what was missed, with a proof's result (``--junitxml``); of faults' names and what became of each."""
    known = list(verdicts)
    record_property("verdicts", json.dumps(collections.Counter(said for _, said in known)))
    record_property("missed", json.dumps([name for name, said in known if said == "missed"]))


@dataclass(frozen=True)
class Prepared:
    """A kernel with a problem, the bits of its right result and all faults that can be planted in it."""

    kernel: Kernel
    problem: Problem
    expected: bytes
    faults: list[Planted]


def prepare(kernel: Kernel, seed: int = 1) -> Prepared:
    """Run a kernel without faults and list what can be planted in it."""
    problem = kernel.make(np.random.default_rng(seed))
    clean = fresh(problem)
    result = kernel.run(clean, schedule="late", census=True, workers=1)
    if result.reports or not correct(clean):
        raise AssertionError(f"{kernel.name} is not right without a fault: {result.reports}")
    return Prepared(kernel, problem, _bits(clean), call_faults(kernel, dict(result.census)) + text_mutations(kernel))


_prepared: dict[str, Prepared] = {}
"""What the processes of a hunt share by being forked."""


def _verdict(planted: Planted) -> tuple[str, str]:
    one = _prepared[planted.kernel]
    return in_child(judge, one.kernel, one.problem, one.expected, planted)


def hunt(
    sample: int | None,
    seed: int,
    names: set[str] | None = None,
    say: bool = False,
    jobs: int = 1,
    share: tuple[int, int] = (0, 1),
) -> list[tuple[Planted, str, str]]:
    """Plant faults (all, a seeded sample, or every so many-th) and judge each, several at once if there are processors to spare."""
    _prepared.update({kernel.name: prepare(kernel) for kernel in KERNELS if names is None or kernel.name in names})
    faults = [fault for name in _prepared if names is None or name in names for fault in _prepared[name].faults]
    if sample is not None and sample < len(faults):
        faults = random.Random(seed).sample(faults, sample)
    faults = faults[share[0] :: share[1]]
    verdicts = []
    with contextlib.ExitStack() as stack:
        if jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("fork").Pool(jobs))
            answers = pool.imap(_verdict, faults)
        else:
            answers = map(_verdict, faults)
        for number, (planted, (verdict, detail)) in enumerate(zip(faults, answers)):
            verdicts.append((planted, verdict, detail))
            if say and verdict not in ("reported", "wrong", "invalid"):
                print(f"{number}/{len(faults)} {verdict:9} {planted} {detail}", flush=True)
    return verdicts


def caught_share(verdicts: list[tuple[Planted, str, str]]) -> float:
    """Share of the faults that do harm and were caught."""
    counts = collections.Counter(verdict for _, verdict, _ in verdicts)
    caught = counts["reported"] + counts["wrong"] + counts["hung"] + counts["crashed"]
    return caught / max(1, caught + counts["missed"])


REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"call moves",
        r"",
        "the two statements commute, or another barrier of the same kind follows before anything depends on their order",
    ),
    (
        r"16 becomes|1024 becomes|32 becomes 33",
        r"wgmma_descriptor|wgmma_advance",
        "a descriptor drops the low four bits, and ignores the leading offset of swizzled K-major tiles",
    ),
    (r"wgmma with", r"wgmma_rs", "the descriptor of an operand in registers is not read"),
    (
        r"flipped|'\+' becomes '-'|3 becomes",
        r"named_barrier",
        "every use of that barrier changes its id alike, or a free id is taken",
    ),
    (r"setmaxnreg", r"", "the emulator has registers enough; the pool still covers the change"),
    (
        r"guard is dropped|0 becomes 1|'==' becomes '!='",
        r"== 0|== 128",
        "another thread does the same work once, or all threads store the same value",
    ),
    (
        r"fence_mbarrier_init removed",
        r"",
        "no copy engine and no peer uses these barriers: the block barrier that follows suffices",
    ),
    (r"sync_warp removed", r"", "nothing is handed over between its lanes; it only brings them together"),
    (r"cluster_wait removed", r"", "nothing is reached in a peer after the last arrival"),
    (
        r"removed in|removed once",
        r"",
        "those executions have nothing to wait for: a first lap, a first use of a buffer, or a last tile",
    ),
    (r"removed", r"", "another wait or barrier on every path implies it"),
    (
        r"becomes",
        r"for \(|if \(|\? ",
        "the bound or guard is not reached, or the extra work is overwritten or not used, at this problem's sizes",
    ),
    (
        r"",
        r"",
        "the expression has the same value for every thread of this problem, or the place is merely another free one",
    ),
)
"""Why a fault does no harm: the first entry whose patterns fit the fault and its line."""


def reason(planted: Planted) -> str:
    """The reason why a harmless fault is one."""
    line = (TEXTS / f"{planted.kernel}.cu").read_text().split("\n")[planted.line - 1]
    return next(why for what, where, why in REASONS if re.search(what, planted.what) and re.search(where, line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernels", nargs="*")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    started = time.time()
    verdicts = hunt(
        options.sample, options.seed, set(options.kernels) if options.kernels else None, say=True, jobs=options.jobs
    )
    counts = collections.Counter(verdict for _, verdict, _ in verdicts)
    kinds = collections.Counter(
        kind for _, verdict, detail in verdicts if verdict == "reported" for kind in detail.split(",")
    )
    print(dict(counts), f"{caught_share(verdicts):.4f} caught", f"{time.time() - started:.0f} s")
    print(dict(kinds))
    if options.output:
        options.output.write_text(table(verdicts, options))


def table(verdicts: list[tuple[Planted, str, str]], options: argparse.Namespace) -> str:
    """The result as a page of documentation."""
    counts = collections.Counter(verdict for _, verdict, _ in verdicts)
    lines = [
        "# Planted faults", "",
        f"Result of `python tests/unit/emulator/planted_faults.py`, {datetime.date.today().isoformat()}, "
        f"{'all faults' if options.sample is None else f'a sample of {options.sample}, seed {options.seed}'}.", "",
        "| verdict | faults |", "| --- | --- |", *[f"| {verdict} | {count} |" for verdict, count in counts.most_common()], "",
        f"Caught of those that do harm: {100 * caught_share(verdicts):.2f} %.", "",
        "*Reported*: a check names it. *Wrong*: the result leaves its bounds. *Harmless*: no bit changes under 50 schedules with memory poisoned "
        "differently each time. *Missed*: bits change within the bounds and nothing is reported. *Invalid*: the text no longer compiles.", "",
        "| kernel | reported | wrong | hung, crashed | missed | harmless | invalid |", "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name in sorted({planted.kernel for planted, _, _ in verdicts}):
        c = collections.Counter(verdict for planted, verdict, _ in verdicts if planted.kernel == name)
        lines.append(
            f"| {name} | {c['reported']} | {c['wrong']} | {c['hung'] + c['crashed']} | {c['missed']} | {c['harmless']} | {c['invalid']} |"
        )
    for wanted in ("missed", "hung", "crashed"):
        lines += ["", f"## {wanted.capitalize()}", ""]
        lines += [f"- {planted} {detail}".rstrip() for planted, verdict, detail in verdicts if verdict == wanted]
    lines += ["", "## Harmless, by reason", ""]
    for _, _, why in REASONS:
        names = [str(planted) for planted, verdict, _ in verdicts if verdict == "harmless" and reason(planted) == why]
        if names:
            lines += [f"**{why[0].upper()}{why[1:]}** ({len(names)})", "", "; ".join(names), ""]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
