"""Random pipelined tile programs, and whether every way to run one gives the same bits.

A seed is a program, its arguments and the machine it is compiled for.  Values are small integers, so that sums are the same in any order
and a float is either right or wrong.  `python tests/fuzz/pipeline_programs.py SEED` shows one and says what each way makes of it.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from bold_writer import BoldWriter
from device_arrays import run_on_device
from fuzz_writer import FuzzedProgram, Writer
from gathering_writer import GatheringWriter

from tilewright.errors import InternalError, TilewrightError

SCHEDULES = (("late", 0), ("early", 1), ("random", 2), ("random", 3))
"""What a program is run under; `POISON` makes what nobody wrote differ from run to run."""

POISON = 0x9E3779B97F4A7C15

REFUSALS = (
    "PipelinePlanError",
    "LayoutConflict",
    "SharedMemoryExceeded",
    "RegistersExceeded",
    "TooManyRegisters",
    "SharedMemoryFull",
)
"""Errors that tell an author of a limit: a program that meets one is no failure, as long as few do."""


BOLD, GATHERING = 100_000, 500_000
"""Seeds from here on are programs of the bold writer, and of the gathering one; those before keep what they have always meant."""


def program_of(seed: int) -> FuzzedProgram:
    """The program of a seed; the same for ever, so that a failure's seed is a test."""
    writer = GatheringWriter if seed >= GATHERING else BoldWriter if seed >= BOLD else Writer
    return writer(seed).write()


# Running ------------------------------------------------------------------------------------------


def run(way: Callable[..., Any], arguments: Sequence[Any], **options: Any) -> list[np.ndarray]:
    """What one way returns, and leaves in the arrays given."""
    given = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
    result = way(*given, **options)
    results = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    return [np.asarray(array) for array in (*results, *given) if isinstance(array, np.ndarray)]


def verdict(seed: int, schedules: Sequence[tuple[str, int]] = SCHEDULES, device: bool = False) -> str:
    """``agrees``, ``refused: ..`` for a limit that the compiler tells of, or what went wrong."""
    program = program_of(seed)
    try:
        kernel = program.compile()
    except InternalError as error:
        return f"compiler: {type(error).__name__}: {error.message[:300]}"
    except TilewrightError as error:
        return f"refused: {type(error).__name__}: {error.message[:200]}"
    except Exception as error:
        return f"compiler: {type(error).__name__}: {error}"[:300]
    expected = run(kernel.interpret, program.arguments)
    ways: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
        (
            f"{schedule} {order}",
            kernel.emulate,
            {"schedule": schedule, "seed": order, "poison": POISON * (number + 1) % 2**64, "seconds": 60.0},
        )
        for number, (schedule, order) in enumerate(schedules)
    ]
    if device:
        ways.append(("device", kernel, {}))
    for name, way, options in ways:
        try:
            found = run_on_device(way, program.arguments) if way is kernel else run(way, program.arguments, **options)
        except Exception as error:
            return f"{name}: {type(error).__name__}: {error}"[:1500]
        for position, (one, other) in enumerate(zip(found, expected, strict=True)):
            if one.tobytes() != other.tobytes():
                return f"{name}: array {position} differs in {int((one != other).sum())} of {one.size} places"
    return "agrees"


def _line(task: tuple[int, bool]) -> str:
    """A seed's verdict in one line of a log."""
    seed, device = task
    found = verdict(seed, device=device)
    return f"{seed} {program_of(seed).architecture} " + found.replace("\n", " | ")[:900]


def hunt(seeds: Sequence[int], log: Path | None, workers: int, seconds: float, device: bool = False) -> None:
    """Judge seeds in several processes until the time is over; a log is gone on with where an earlier hunt stopped."""
    known = log.read_text().splitlines() if log is not None and log.exists() else []
    done = {int(line.split()[0]) for line in known}
    end = time.monotonic() + seconds
    lines = [line for line in known if int(line.split()[0]) in set(seeds)]
    tasks = [(seed, device) for seed in seeds if seed not in done]
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=50) as pool:
        for line in pool.imap_unordered(_line, tasks):
            lines.append(line)
            if log is not None:
                with log.open("a") as out:
                    out.write(line + "\n")
            if line.split()[2] != "agrees":
                print(line[:420], flush=True)
            if time.monotonic() > end:
                print(f"the time is over: {len(seeds) - len(lines)} seeds are left")
                pool.terminate()
                break
    print(dict(collections.Counter(line.split(maxsplit=2)[2].split(":")[0] for line in lines)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+", help="one seed, or the first and the last")
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no more seeds are judged")
    parser.add_argument("--log", type=Path, help="a line for each seed; seeds that it holds already are left out")
    options = parser.parse_args()
    if len(options.seeds) == 1:
        print(program_of(options.seeds[0]).text)
        print(program_of(options.seeds[0]).architecture, verdict(options.seeds[0], device=options.device))
        return
    seeds = range(options.seeds[0], options.seeds[1] + 1)
    hunt(seeds, options.log, options.workers, options.seconds, options.device)


if __name__ == "__main__":
    sys.exit(main())
