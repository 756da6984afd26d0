"""How `medium_quant_matmul` is divided: tiles and slots for a problem, by cycles found on an H200."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tilewright.kernels.code_table import table_bytes
from tilewright.kernels.epilogue import PLAIN, Epilogue
from tilewright.kernels.hopper_quant_medium import HALF, PADDING, SLAB, staged_bytes
from tilewright.kernels.repertoire import ROWS, repertoire
from tilewright.kernels.roofline import HOPPER, Speed
from tilewright.kernels.tiles import SHARED_BYTES
from tilewright.machine.fragment_records import COLUMNS, FragmentRecords

CYCLES = {
    (8, 1): 280, (8, 2): 475, (16, 1): 300, (16, 2): 500, (32, 1): 325, (32, 2): 545, (64, 1): 470, (64, 2): 765,
    (128, 1): 727, (128, 2): 1224,
    (160, 1): 843, (192, 1): 959, (224, 1): 1075, (256, 1): 1190,
}  # fmt: skip
"""Of a multiprocessor for 64 columns, by rows of A and times 128 rows of W, as measured (at 1.9 GHz)."""

START = 8000
"""Cycles until a block multiplies and after it has."""

HANDED, MOVED = 2000, 9.0
"""Cycles that handing sums over takes at least, and bytes of another block's sums that are written and read in one, all
blocks doing so."""

BAND = 4
"""Tiles of 256 rows of A beside as many of 128 rows of W as run at once: about as many bytes of both."""


Division = tuple[int, int, int]
"""Rows of A of a tile, times 128 rows of W, and blocks."""

KINDS = 8
"""Divisions of a weight: so many kernels serve all calls of more rows than those that `hopper_quant_small` is for."""


def medium_quant_choice(
    N: int,
    K: int,
    M: int,
    form: FragmentRecords,
    out: str = "float16",
    epilogue: Epilogue = PLAIN,
    speed: Speed = HOPPER,
) -> dict[str, int]:
    """The sizes that `medium_quant_matmul` is called with for a problem: of those that serve the weight, the fastest
    for its rows."""
    tokens, tiles, blocks = min(_serving(N, K, speed.cores), key=lambda one: _cycles(N, K, M, *one))
    return {**fitted(form, tokens, tiles, out, epilogue), "blocks": blocks}


RUNS: dict[int, tuple[int, tuple[int, ...]]] = {8: (16, ()), 16: (32, (16,)), 32: (64, (32,)), 64: (64, ())}
"""Rows of A of a tile of experts, and the lower heights, for runs of up to so many rows on average; for others
`LONG_RUNS`.

Runs differ: where some of them need two tiles, their weights are decoded twice, and rows of a tile that are not there
cost as much as others. Of heights that serve runs that are all alike as well as runs that are not, these lose least
(both measured).
"""

LONG_RUNS: tuple[int, tuple[int, ...]] = (128, (64, 32))


def expert_quant_choices(
    rows: int, form: FragmentRecords, out: str = "float16", epilogue: Epilogue = PLAIN, speed: Speed = HOPPER
) -> list[dict[str, Any]]:
    """Sizes of `medium_quant_matmul` for experts whose runs have about so many rows; the first ones for these, then
    those for others."""
    first = next((RUNS[most] for most in RUNS if rows <= most), LONG_RUNS)
    whole: list[tuple[int, tuple[int, ...]]] = [(tokens, ()) for tokens in (16, 32, 64, 128)]
    found: list[dict[str, Any]] = []
    for tokens, lower in dict.fromkeys([first, *RUNS.values(), LONG_RUNS, *whole]):
        sizes = fitted(form, tokens, 2, out, epilogue)
        found.append({**sizes, "promoted": sizes["promoted"] and not lower, "lower": lower, "blocks": speed.cores})
    return found


def fitted(
    form: FragmentRecords, tokens: int, tiles: int, out: str = "float16", epilogue: Epilogue = PLAIN
) -> dict[str, int]:
    """Sizes with slots of both rings: powers of two, so that little is reckoned to find one."""
    promoted = tokens <= 32 and form.group == COLUMNS and form.zero is None
    several = ((2, 1, 4, 4), (2, 1, 4, 2), (1, 1, 4, 4), (1, 1, 4, 2), (2, 1, 2, 2), (1, 1, 2, 2))
    if tokens < 128:
        several = ((2, 4, 4, 4), (2, 4, 2, 4), (2, 4, 2, 2), (1, 2, 4, 4), (1, 2, 4, 2), (1, 2, 2, 2))
    kept = staged_bytes(out, epilogue)
    sums = 2 * min(tokens, SLAB) * (SLAB * kept + PADDING)
    room = SHARED_BYTES - 1024 - table_bytes(form) - sums
    for records, halves, stages, least in several:
        weights = 128 * tiles // form.rows * records * form.words * 4
        if stages * 2 * HALF * halves * tokens + least * weights <= room:
            break
    return {
        "tokens": tokens, "tiles": tiles, "records": records, "stages": stages, "halves": halves,
        "weight_stages": least, "sharing": 2 if tokens > 128 else 1, "band": BAND if tokens >= 128 else 1,
        "promoted": promoted,
    }  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _serving(N: int, K: int, cores: int) -> tuple[Division, ...]:
    """The divisions of all kernels that calls of a weight run: a few, so that each number of rows has one that suits
    it."""
    best = list(dict.fromkeys(_fastest(N, K, M, cores) for M in ROWS))
    times = np.array([[_cycles(N, K, M, *one) for one in best] for M in ROWS])
    return tuple(best[column] for column in repertoire(times, KINDS))


def _fastest(N: int, K: int, M: int, cores: int) -> Division:
    """What takes the fewest cycles."""
    room = next((n for n in (8, 16, 32, 64, 128) if n >= M), 0)
    sizes = [(tokens, tiles) for tokens, tiles in reversed(CYCLES) if tokens <= max(room, 256 - room)]
    choices = [
        (*size, blocks)
        for size in sizes
        if -(-M // size[0]) <= 2 or size[0] >= 128
        for blocks in _grids(-(-N // (128 * size[1])) * -(-M // size[0]), cores)
    ]
    return min(choices, key=lambda choice: _cycles(N, K, M, *choice))


def _grids(count: int, cores: int) -> list[int]:
    """How many blocks could share so many tiles: all that run, or a few for each."""
    return [cores, *(count * n for n in range(cores // count, 0, -1))]


def _cycles(N: int, K: int, M: int, tokens: int, tiles: int, blocks: int) -> float:
    """About how long a block works."""
    count, steps = -(-N // (128 * tiles)) * -(-M // tokens), -(-K // (2 * COLUMNS))
    shared = count % blocks
    share = -(-shared * steps // blocks)
    found: float = START + (count // blocks * steps + share) * (2 * COLUMNS // HALF) * CYCLES[tokens, tiles]
    if shared and share < steps:
        peers = -(-steps // share) - 1
        found += HANDED + peers * 128 * tiles * tokens * 4 / MOVED
    return found
