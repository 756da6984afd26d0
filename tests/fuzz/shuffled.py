"""Texts of programs in a process whose sets lie in an order of its own: nothing of it may show in what the compiler gives.

Nodes of programs are told apart by where they are in memory, which differs from process to process and mostly does not: a text that depends on the
order of a set of them is another one once in many runs.  Here each node has a place in sets that a salt decides.

    python tests/fuzz/shuffled.py SALT SEED...     # a line for each target of each seed: a digest of its text, or its error
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tile_fuzz

from tilewright.errors import TilewrightError
from tilewright.ir.expressions import Record


def shuffle(salt: int) -> None:
    """From here on each node that is asked for its place in a set has one that the salt decides."""
    chooser, places = random.Random(salt), dict[int, int]()

    def place(node: Record) -> int:
        return places.setdefault(id(node), chooser.getrandbits(60))

    Record.__hash__ = place  # type: ignore[method-assign]


def told(seed: int, target: str) -> str:
    """What a target makes of a seed's program."""
    try:
        text = tile_fuzz.program_of(seed).compile(target).get_kernel_source()
    except TilewrightError as error:
        text = str(error)
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> None:
    os.environ["TILEWRIGHT_CACHE"] = "0"
    warnings.simplefilter("ignore")
    shuffle(int(sys.argv[1]))
    for seed in map(int, sys.argv[2:]):
        for target in tile_fuzz.targets_of(seed, tile_fuzz.program_of(seed)):
            print(seed, target, told(seed, target), flush=True)


if __name__ == "__main__":
    main()
