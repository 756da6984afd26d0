"""Faults planted in lowered programs: what a wrong compiler would emit, by the hundred, and what the emulator says.

Most are *mutants in one text*: every site of a final program is numbered (`fault_sites`), and the kernel takes one more parameter that
says which of them is wrong, so that one compilation serves all.  *Stage faults* are planted before channels and copies are lowered
(`stage_faults`).  Verdicts are those of `planted_faults`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import random
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from fault_sites import PLANTED, Planter, Site
from planted_faults import HARMLESS_SCHEDULES, TRIED, in_child
from planted_kernels import kernels_to_plant_in
from planted_verdicts import Verdict, read_log, table
from repository_programs import Program, differences
from stage_faults import stage_sites, with_stage_fault

from tilewright import compiler
from tilewright.errors import EmulationError, TilewrightError
from tilewright.runtime.emulation import emulate_program
from tilewright.runtime.kernel import Kernel


@dataclass
class Prepared:
    """A kernel of the repository, its right result, and the faults to try."""

    program: Program
    architecture: str
    sites: list[Site]
    kernel: Kernel = field(repr=False)
    arguments: tuple[Any, ...] = field(repr=False)
    expected: list[np.ndarray] = field(repr=False)
    mutants: compiler.Program = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.program.name} {self.architecture}"


def prepare(program: Program, architecture: str, most: int, seed: int = 0) -> Prepared:
    """Compile a kernel with at most `most` faults of its text, a seeded choice, and all its stage faults up to half as many."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel, arguments = program.make(architecture)
        kernel = kernel.variant(*arguments)
    lister = Planter(frozenset())
    lister(kernel.program.final)
    chosen = _sample(lister.sites, most, seed)
    planter = Planter(frozenset(site.number for site in chosen))
    final = planter(kernel.program.final)
    assert planter.sites == lister.sites
    final = replace(final, params=(*final.params, PLANTED))
    traced = replace(kernel.program.traced, params=(*kernel.program.traced.params, PLANTED))
    mutants = replace(kernel.program, traced=traced, final=final, source=kernel.target.emit(final, kernel.arch))
    expected = _run(mutants, arguments, 0)
    assert not differences(expected, _run(kernel.program, arguments, None), 0.0), (
        f"{program.name}: the mutants' text is wrong without a fault"
    )
    sites = [*chosen, *_sample(stage_sites(kernel), most // 2, seed)]
    return Prepared(program, architecture, sites, kernel, arguments, expected, mutants)


def _sample(sites: Sequence[Site], most: int, seed: int) -> list[Site]:
    """A seeded choice that takes kinds in turn, so that rare ones are not lost among constants."""
    by_kind: dict[str, list[Site]] = {}
    for site in random.Random(seed).sample(list(sites), len(sites)):
        by_kind.setdefault(site.kind, []).append(site)
    chosen: list[Site] = []
    while len(chosen) < min(most, len(sites)):
        for kind in sorted(by_kind):
            if by_kind[kind] and len(chosen) < most:
                chosen.append(by_kind[kind].pop())
    return sorted(chosen, key=lambda site: (site.stage, site.number))


def _run(
    program: compiler.Program,
    arguments: Sequence[Any],
    planted: int | None,
    awaited: Sequence[int] = (),
    **options: Any,
) -> list[np.ndarray]:
    """The outputs and the arrays given, after a run with a fault in force; `awaited` are the numbers of those that a
    kernel before may still be writing."""
    given = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
    outputs = emulate_program(
        program, [*given, *([] if planted is None else [planted])], workers=1,
        unsettled=[given[number] for number in awaited], **options,
    )  # fmt: skip
    return [np.asarray(array) for array in (*outputs, *given) if isinstance(array, np.ndarray)]


def awaited(program: compiler.Program, arguments: Sequence[Any]) -> tuple[int, ...]:
    """The numbers of the arrays that a right program touches behind its wait for the kernel before alone: all but weights
    that it reads early by its caller's leave."""
    found: list[int] = []
    if "griddepcontrol_wait" in program.source.text:
        for number, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                with contextlib.suppress(EmulationError):
                    _run(program, arguments, None, (number,))
                    found.append(number)
    return tuple(found)


def judge(one: Prepared, site: Site, schedules: int = HARMLESS_SCHEDULES) -> tuple[str, str]:
    """What becomes of a fault: its class, and the kinds of reports or the schedule that tell."""
    program, planted = one.mutants, site.number
    if site.stage:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program, planted = with_stage_fault(one.kernel, site.stage), None  # type: ignore[assignment]
        except TilewrightError as error:
            return "invalid", type(error).__name__
        if program.source.text == one.kernel.program.source.text:
            return "invalid", "the text is the same"
    return verdict(program, one.arguments, planted, one.expected, one.program.bound, schedules)


def verdict(
    program: compiler.Program,
    arguments: Sequence[Any],
    planted: int | None,
    expected: Sequence[np.ndarray],
    bound: float,
    schedules: int = HARMLESS_SCHEDULES,
    waited: Sequence[int] = (),
) -> tuple[str, str]:
    """What becomes of a program that may be wrong, under the schedules of the hunt."""
    for schedule, seed, poison, launches in _schedules(schedules):
        how = {"schedule": schedule, "seed": seed, "poison": poison, "seconds": 10.0, "launches": launches}
        try:
            found = _run(program, arguments, planted, waited, **how)
        except EmulationError as error:
            return "reported", ",".join(sorted({report.kind for report in error.reports}))
        except TilewrightError as error:
            return "invalid", f"{type(error).__name__}: {error}"[:200]
        if differences(found, expected, bound):
            return "wrong", f"{schedule} {seed}, {launches} launches"
        if differences(found, expected, 0.0):
            return "missed", f"{schedule} {seed}, {launches} launches"
    return "harmless", ""


MOST = 72
"""Faults of a kernel's text; half as many again are planted before channels are lowered."""


def _schedules(count: int) -> Iterator[tuple[str, int, int, int]]:
    """Schedule, seed, what memory is poisoned with, and launches: what harms only the next launch is not found by one."""
    for schedule, seed in TRIED:
        yield schedule, seed, 0x7FF7A5A57FF7A5A5, 1
    for i in range(count):
        yield ("late", "early", "random")[i % 3], 4 + i, random.Random(i).getrandbits(64), 2


def hunt(most: int = MOST, names: set[str] | None = None, sample: int | None = None, seed: int = 0) -> list[Verdict]:
    """Plant faults in every kernel (`sample` of each where given) and judge them, each in a process of its own."""
    found: list[Verdict] = []
    for program, architecture in kernels_to_plant_in():
        if names is not None and program.name not in names:
            continue
        one = prepare(program, architecture, most, seed)
        for site in one.sites if sample is None else random.Random(7).sample(one.sites, sample):
            found.append((one.name, site, *in_child(judge, one, site)))
    return found


@functools.cache
def _prepared(number: int, most: int, seed: int) -> Prepared:
    return prepare(*kernels_to_plant_in()[number], most, seed)


SHARES = 9
"""Each kernel's faults are judged in so many parts, which several processes take."""


def _judge_share(task: tuple[int, int, int, int]) -> list[Verdict]:
    number, share, most, seed = task
    one = _prepared(number, most, seed)
    return [(one.name, site, *in_child(judge, one, site)) for site in one.sites[share::SHARES]]


def hunt_in_processes(
    most: int, seed: int, log: Path, workers: int, seconds: float, names: Sequence[str] | None = None
) -> list[Verdict]:
    """Judge the faults of all kernels, or those of some names, until the time is over, gone on with where an earlier hunt with that log stopped."""
    known = log.read_text().splitlines() if log.exists() else []
    done = {tuple(json.loads(line)["task"]) for line in known}
    chosen = [i for i, (program, _) in enumerate(kernels_to_plant_in()) if names is None or program.name in names]
    tasks = [(number, share, most, seed) for number in chosen for share in range(SHARES)]
    end = time.monotonic() + seconds
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        waiting = {task: pool.apply_async(_judge_share, (task,)) for task in tasks if task not in done}
        while waiting and time.monotonic() < end:
            time.sleep(0.2)
            for task in [task for task, result in waiting.items() if result.ready()]:
                verdicts = [[name, asdict(site), *said] for name, site, *said in waiting.pop(task).get()]
                with log.open("a") as out:
                    out.write(json.dumps({"task": task, "verdicts": verdicts}) + "\n")
        pool.terminate()
    if waiting:
        print(f"the time is over: {len(waiting)} of {len(tasks)} shares are left")
    return read_log(log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=MOST)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of faults")
    parser.add_argument(
        "--log", type=Path, required=True, help="of verdicts; shares that it holds already are left out"
    )
    parser.add_argument("--kernels", nargs="*", help="names; all where left out")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    how = (options.workers, options.seconds, options.kernels)
    text = table(hunt_in_processes(options.most, options.seed, options.log, *how))
    (options.output.write_text if options.output else print)(text)


if __name__ == "__main__":
    main()
