"""How `byte_quant_matmul` is divided: tiles, slots and clusters for a problem, found on an H200."""

from __future__ import annotations

import functools

import numpy as np

from tilewright.kernels.hopper_quant_bytes_plan import PIECE
from tilewright.kernels.hopper_quant_bytes_results import PADDING
from tilewright.kernels.repertoire import ROWS, repertoire
from tilewright.kernels.roofline import HOPPER, Speed
from tilewright.kernels.tiles import SHARED_BYTES
from tilewright.machine.fragment_records import COLUMNS, FragmentRecords

GROUP = {"plain": (0.03, 2.44), "int8": (0.05, 3.58), "running": (0.32, 1.77), "float": (0.05, 3.29)}
"""Microseconds of 128 columns for 128 rows of W, and nanoseconds more for each row of A that they are multiplied by, at
the clock that the power limit leaves."""

START, ENDED, LEFT, HANDED = 8.0, 1.1, 2.1, 14.0
"""Microseconds until a block multiplies and after it has; that a tile takes to end, and one of 256 rows of A where
blocks stay; that handing over sums of 256 rows of A takes (of 128 rows nothing is seen of it)."""

MOST_OF = 0.9
"""What part of the blocks that run at once must have a tile of its own, so that not all of them hand sums over."""

BAND = 4
"""Tiles of A's rows that are walked before the next rows of W."""

HEIGHTS = (80, 96, 112, 160, 192, 224)
"""Rows of A of a tile, beside 128 and 256: those of a tile that are not there cost as much as others."""

FEW, KINDS = 64, 8
"""Rows of A up to which tiles have room for twice as many at most, and the kernels that serve all others."""

RUNNING = {128: False, 192: True}
"""Whether warpgroups take turns, by the rows of A of a tile whose sums run on: a thread holds a total beside each
sum."""


def byte_quant_choice(
    N: int, K: int, M: int, form: FragmentRecords, promoted: bool, running: bool = False, speed: Speed = HOPPER
) -> dict[str, int]:
    """The sizes that `byte_quant_matmul` is called with for `M` rows of A: of those that serve the weight, the fastest
    for these.

    Parameters are as for `byte_quant_fastest`.
    """
    across = form.shape(N, K)[1]
    if M <= FEW:
        return byte_quant_fastest(
            N, K, next(rows for rows in (8, 16, 32, FEW) if rows >= M), form, promoted, running, speed
        )
    choices = [one for one in _serving(N, K, form, promoted, running, speed) if _suits(N, M, one, speed)]
    if not choices:
        return byte_quant_fastest(N, K, M, form, promoted, running, speed)
    return min(choices, key=lambda sizes: _microseconds(N, across, M, form, promoted, sizes, speed))


def _suits(N: int, M: int, sizes: dict[str, int], speed: Speed) -> bool:
    """Whether blocks that stay have tiles enough, so that not all of them hand sums over, and those that divide K run
    at once."""
    if sizes["cluster"] > 1:
        return _tiles(N, M, sizes) * sizes["cluster"] <= speed.resident(sizes["cluster"], stay=True)
    return not sizes["blocks"] or _tiles(N, M, sizes) >= MOST_OF * speed.cores // sizes["sharing"]


@functools.lru_cache(maxsize=1024)
def _serving(
    N: int, K: int, form: FragmentRecords, promoted: bool, running: bool, speed: Speed
) -> list[dict[str, int]]:  # fmt: skip
    """The sizes of all kernels that calls of more than `FEW` rows run: a few, so that each number of rows has one that
    suits it."""
    across, rows = form.shape(N, K)[1], [M for M in ROWS if M > FEW]
    found = [byte_quant_fastest(N, K, M, form, promoted, running, speed) for M in rows]
    best = list({repr(sizes): sizes for sizes in found}.values())
    times = [
        [
            _microseconds(N, across, M, form, promoted, one, speed) if _suits(N, M, one, speed) else np.inf
            for one in best
        ]
        for M in rows
    ]
    return [best[column] for column in repertoire(np.array(times), KINDS)]


def byte_quant_fastest(
    N: int, K: int, M: int, form: FragmentRecords, promoted: bool, running: bool = False, speed: Speed = HOPPER
) -> dict[str, int]:
    """The sizes that take the least time for `M` rows of A, found on an H200.

    Where W has rows for a block on most multiprocessors, K stays whole; else clusters divide it, and blocks have half
    as many rows where all of them still run at once. Many tiles are shared by blocks that stay, where that takes less
    time.

    Parameters
    ----------
    promoted : whether sums of groups are scaled.
    running : whether sums may run on from group to group.
    """
    across = form.shape(N, K)[1]
    alone = _alone(N, M, form, promoted, speed)
    choices = [alone]
    if alone["tokens"] >= 128 and alone["cluster"] == 1 and alone["warpgroups"] == 2:
        lower = {**alone, "tiles": 1, "sharing": 1}
        # Few rows of A beside many of W ask the second-level cache for more than it gives, where they are not the only
        # ones.
        choices += [{**lower, "tokens": n, "part": n} for n in HEIGHTS if n < 128 and 2 * n >= M]
    if not promoted and alone["tokens"] == 256:
        choices += [{**alone, "tokens": n, "part": n} for n in HEIGHTS if n > 128]
    if promoted and alone["tokens"] >= 128 and alone["cluster"] == 1 and across % 2 == 0:
        stay = {"warpgroups": 2, "tiles": 1, "records": 2, "ahead": 1, "cluster": 1, "blocks": speed.cores}
        staying = []
        for tokens in (*(n for n in HEIGHTS if n > 128), 256) if M > 128 else ():
            part = _part(form, promoted) * tokens // 256
            staying.append({**stay, "tokens": tokens, "part": part, "sharing": 2, "turns": True, "running": False})
        for tokens, turns in RUNNING.items() if running else ():
            staying.append({**stay, "tokens": tokens, "part": tokens, "sharing": 1, "turns": turns, "running": True})
        choices += [sizes for sizes in staying if _suits(N, M, sizes, speed)]
    best = min(choices, key=lambda sizes: _microseconds(N, across, M, form, promoted, sizes, speed))
    if best["blocks"]:
        best["band"] = min(BAND, -(-M // best["tokens"]))
    return fitted(form, best, across)


def _part(form: FragmentRecords, promoted: bool) -> int:
    """Rows of A of one product, of 256: zeros of groups take registers, which sums of fewer rows leave."""
    return 256 if not promoted else 128 if form.zero is None else 64


def _alone(N: int, M: int, form: FragmentRecords, promoted: bool, speed: Speed) -> dict[str, int]:
    """Sizes with a block for each tile."""
    tokens = next((n for n in (8, 16, 32, 64, 128) if n >= M), 256)
    if tokens == 256 and -(-N // 128) * -(-M // 256) < 100:
        tokens = 128
    sizes = {"tokens": tokens, "part": tokens, "tiles": 1, "cluster": 1, "sharing": 1, "ahead": 1, "records": 2}
    sizes |= {"warpgroups": 2, "turns": False, "blocks": 0, "running": False}
    # Sums of int8 are converted too before they are scaled; e4m3 is faster without turns.
    in_turns = promoted and form.operand.is_integer
    if tokens == 256:
        return sizes | {"sharing": 2, "part": _part(form, promoted), "turns": in_turns}
    blocks = -(-N // 128) * -(-M // tokens)
    sizes["tiles"] = 2 if blocks >= 200 else 1
    # As many as divide K as run at once: a second wave of a few blocks takes as long as the first.
    sizes["cluster"] = max((c for c in (1, 2, 4) if blocks * c <= speed.resident(c, stay=True)), default=1)
    sizes["records"] = 2 if tokens == 128 else 4
    if 2 * blocks * sizes["cluster"] <= speed.resident(sizes["cluster"], stay=True):
        sizes["warpgroups"] = 1
    elif tokens == 128 and sizes["tiles"] == 1:
        sizes["turns"] = in_turns
    return sizes


def _microseconds(
    N: int, across: int, M: int, form: FragmentRecords, promoted: bool, sizes: dict[str, int], speed: Speed
) -> float:  # fmt: skip
    """About how long a product takes with two warpgroups a block and K whole."""
    kind = (
        "running" if sizes["running"] else "plain" if not promoted else "int8" if form.operand.is_integer else "float"
    )
    once, each = GROUP[kind]
    group = sizes["tiles"] * (once + each * sizes["tokens"] / 1000)
    groups, tiles = speed.cores // sizes["sharing"], _tiles(N, M, sizes)
    waves = -(-tiles // groups)
    if not sizes["blocks"]:
        return START + waves * (across * group + ENDED)
    handed = HANDED * max(0, sizes["tokens"] - 128) / 128 if tiles % groups else 0.0
    return START + tiles * across / groups * group + waves * LEFT * sizes["tokens"] / 256 + handed


def _tiles(N: int, M: int, sizes: dict[str, int]) -> int:
    """How many tiles there are, those of blocks that send one another activations as one."""
    return -(-N // (64 * sizes["warpgroups"] * sizes["tiles"] * sizes["sharing"])) * -(-M // sizes["tokens"])


def fitted(form: FragmentRecords, sizes: dict[str, int], across: int) -> dict[str, int]:
    """Sizes with slots of both rings: eight of activations at most, and what is left for weights, of which copies take
    no part twice.

    Where not even two copies of weights fit, they are shorter, and blocks of fewer rows.
    """
    slab, activations = 64 * sizes["warpgroups"], sizes["tokens"] * COLUMNS
    # Blocks that stay have a place of their own that sums leave through.
    room = SHARED_BYTES - 2048 - (4 * PIECE * (slab + PADDING) if sizes.get("blocks") else 0)
    least = 3 if sizes.get("running") else 2  # sums that run on need the scale of the next copy's first group early
    for tiles in range(sizes["tiles"], 0, -1):
        for records in (n for n in (4, 2, 1) if n <= sizes["records"] and across % n == 0):
            weights = 4 * (slab * tiles // form.rows) * records * form.words
            stages = min(8, (room - least * weights) // activations)
            if stages >= 2:
                rest = min(5, (room - stages * activations) // weights)
                return {**sizes, "tiles": tiles, "records": records, "stages": stages, "weight_stages": rest}
    raise AssertionError("two records and two columns of activations fit every multiprocessor")
