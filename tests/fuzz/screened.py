"""What a tree makes of programs whose emitted texts are not those of another tree.

A change of the compiler that leaves the text of a program as it was changes nothing that the program does.  So texts are compared first,
which takes a tenth of the time that running them does: `defects.py` asks a tree with a defect about those programs alone that it changes.
And of these only where the compilation goes through the lines that the defect changes (`reached`).

    python tests/fuzz/screened.py 10000000 10000039                         # a line for each program: the digests of its texts, what it reaches
    python tests/fuzz/screened.py 10000000 10000039 --than those            # of the programs that differ: what becomes of them
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import judge
import tile_fuzz
from reached import touched, watched

from tilewright.errors import TilewrightError
from tilewright.runtime.kernel import Kernel


def targets(seed: int) -> tuple[str, ...]:
    return tile_fuzz.program_of(seed).machines or judge.targets_of(seed)


def screens(seed: int) -> tuple[str, ...]:
    """The first machine of each kind among a seed's targets."""
    chosen = targets(seed)
    kinds = dict.fromkeys(one.split()[0] for one in chosen)
    return tuple(next(one for one in chosen if one.startswith(kind)) for kind in kinds)


def told_by(seed: int, reached: Mapping[str, Sequence[str]], defect: str) -> tuple[str, ...]:
    """The machines whose texts are to be compared: most passes are every machine's, and the processor and NVIDIA's tell of them."""
    mine = tuple(target for target in screens(seed) if not defect or defect in reached[target])
    return tuple(one for one in mine if one.startswith(("cpu", "cuda"))) or mine


def digests(seed: int, chosen: Sequence[str]) -> dict[str, str]:
    """What compilers are given for a seed's program."""
    return {target: _digest(seed, target) for target in chosen}


def _digest(seed: int, target: str) -> str:
    program = tile_fuzz.program_of(seed)
    try:
        made: Kernel = program.compile(target).variant(*program.arguments)
        said = repr(made.program.source)
    except (TilewrightError, *judge.BROKEN) as error:
        said = type(error).__name__
    except Exception as error:  # a defect of the compiler, which running the program tells
        said = f"traceback {type(error).__name__}"
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _defects() -> dict[str, str]:
    return {path.stem: path.read_text() for path in (Path(__file__).resolve().parent / "defects").glob("*.patch")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs=2, help="the first and the last")
    parser.add_argument("--than", type=Path, help="digests of the other tree")
    parser.add_argument("--defect", default="", help="that this tree has: programs that do not reach it are left out")
    parser.add_argument("--all", action="store_true", help="run every program, on all of its targets")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    known = {one["seed"]: one for one in map(json.loads, options.than.read_text().splitlines())} if options.than else {}
    lines, unknown = (
        touched(_defects(), Path(__file__).resolve().parents[2]) if not (options.than or options.all) else ({}, set())
    )
    if lines:
        os.environ["TILEWRIGHT_CACHE"] = "0"  # what was compiled before goes through nothing
    with tile_fuzz.Workers(tile_fuzz.verdict, 1, tile_fuzz.SLOW) as workers:
        for seed in range(options.seeds[0], options.seeds[1] + 1):
            if not (options.than or options.all):
                made, found = {}, {}
                for target in screens(seed):
                    with watched(lines) as reached:
                        made[target] = _digest(seed, target)
                    found[target] = sorted(reached | unknown)
                print(json.dumps({"seed": seed, "texts": made, "reached": found}), flush=True)
                continue
            chosen = targets(seed)
            if not options.all:
                here = digests(seed, told_by(seed, known[seed]["reached"], options.defect))
                chosen = tuple(one for one in here if here[one] != known[seed]["texts"][one])
            if not chosen:
                continue
            verdict = tile_fuzz.answered(*workers.ask((seed, None, chosen, False)))
            print(
                json.dumps([seed, {"kind": verdict.kind, "way": verdict.way, "what": verdict.what, "targets": chosen}]),
                flush=True,
            )
            if verdict.kind in ("fails", "invalid"):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
