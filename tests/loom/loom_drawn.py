"""Machines like the one that nobody makes, drawn by a seed: fewer or more lanes, registers, shared memory and instructions."""

from __future__ import annotations

import random
from dataclasses import replace

from loom_machine import LOOM

from tilewright.machine.arch import Arch


def drawn_machine(random: random.Random) -> Arch:
    """What any maker could build: products are those of 64 lanes, and need what loads their operands."""
    pick = random.choice
    lanes = pick((64, 64, 32, 16))
    some = tuple(one for one in LOOM.matrix_instructions if random.random() < 0.6)
    products = some if lanes == 64 and random.random() < 0.6 else ()
    return replace(
        LOOM,
        warp_size=lanes,
        matrix_instructions=products,
        copy_instructions=LOOM.copy_instructions if products else pick((LOOM.copy_instructions, ())),
        features=frozenset(one for one in LOOM.features if one == "threads" or random.random() < 0.7),
        registers=pick((32, 64, 96, 128, 255, 256, 512)),
        shared_bytes=pick((8, 16, 32, 48, 64)) << 10,
        vector_bytes=pick((4, 8, 16, 16)),
        max_threads=pick((128, 256, 512, 1024)),
        cores=pick((1, 3, 20, 200)),
        l2_bytes=pick((0, 1 << 20, 5 << 20)),
        rates=pick((None, LOOM.rates)),
    )
