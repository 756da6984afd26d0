"""Candidates for `byte_quant_matmul`, and what a launch with each of them does (`roofline.Work`).

What is said in operations and cycles fits 800 launches for 52 products on an H200 (int4 by int8 and e4m3, int2 by int8,
2 to 7136 rows, 24 November 2026): of the candidates that were timed for a product the model chose some that were
0.5% slower than the best, on average.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import product

import numpy as np

from tilewright.kernels import BESIDE, HOPPER, SHARED_BYTES, Speed, Work, ceil_div, heights_of, in_pieces, stream_k_cost
from tilewright.kernels.hopper_quant_bytes_plan import CONVERTED, MOST, PIECE, decodes_ahead
from tilewright.kernels.hopper_quant_bytes_results import PADDING
from tilewright.kernels.repertoire import Candidates, groups_of
from tilewright.machine import COLUMNS, FragmentRecords

DECODED = {True: 0.9, False: 1.6}
"""Operations that make an operand of a code, by whether operands are integers; codes of 8 bits need half of them."""

SCALED = {"running": 1.5, "int8": 2.8, "float": 0.6}
"""Operations that a sum of a group takes on its way into the total."""

EACH, OVERLAPPED, STAYS = {True: 0, False: 30}, {True: 35, False: 0}, {True: 0, False: 40}
"""Cycles of 128 columns by whether operands are integers: of each of their products, whose end is waited for; those of
a product that the next one hides; and those of blocks that stay, which reckon where their slots are (15 products, 290
times, H100, 28 November 2026; with them the model loses 0.013 on 108 products of e4m3, without them 0.019)."""

APART = 0.66
"""The share of the shorter, products or what lanes do, that the longer one does not hide."""

STEP, COPY, AHEAD = 30, 245, 210
"""Cycles of 128 columns that nothing hides, of a copy of weights, and of one whose first codes are decoded beside the
product before."""

TWICE = {True: 0, False: 75}
"""Cycles of 128 columns besides of tiles of twice 128 rows of W, by whether operands are integers: their weights stand
in few slots (98 products of e4m3, H200, 28 November 2026; two that change their kernel take 0.95 and 0.90)."""

BEGIN = 1500
"""Cycles that it costs a launch that its blocks stay."""

NEXT, NEXT_RUN, ANOTHER = 4500, 6000, 4000
"""Cycles that a further tile of 128 rows of W by 256 of A costs, and where its sums run on; and those that another
block costs besides, whatever its tile, where none stays that has brought its first operands before (34 products, 176
times, 24 November 2026; 23 products, 350 times, 27 November 2026; 220 products of all logs, 28 November 2026)."""

APART_IN_K = {True: 0.0, False: 0.1}
"""How much longer steps take of tiles that pairs of blocks share, where they share none of a whole wave, by whether
operands are integers: they begin at different columns and ask for different activations (169 products of e4m3, 28
November 2026: 0.08 to 0.12 are as good, and without it pairs stay where those that do not are 5 to 10% faster)."""

CLUSTER_SUMS, EACH_CLUSTER_SUM = 1600, 0.1
"""Cycles in which blocks of a cluster that divide K hand sums over, and for each sum of a tile, for each of them but
one."""

BAND = 4
"""Tiles of A's rows that are walked before the next rows of W."""

BOXES = 4 * 2 * 64 * 64
"""Bytes of boxes that sums leave through: two of each of two warpgroups, 64 rows of W by 64 of A."""

FEW, SHARED = 128, (144, 160, 176, 192, 224, 256)
"""Rows of A of a tile: the most of blocks that are alone, or divide K, which may have as many as a product takes; those
of two that send one another the activations."""

WHOLE, BOTH = 192, 200
"""The most of those rows that one product takes, so that a thread holds its sums beside all totals; registers of
totals, codes and the sums of two products, and those that turn sums of int32 into floats, with which the second product
may run while the first one's sums are scaled."""

SHARE = 8
"""Each of two blocks brings a multiple of so many rows of A of what both multiply at once."""

FEW_COPIES = 8
"""Copies of 128 columns of W of a product of which even single ones may be the fastest."""

RUNNING = {128: False, 192: True}
"""Whether warpgroups take turns, by the rows of A of a tile whose sums run on: a thread holds a total beside each
sum."""


@functools.lru_cache(maxsize=256)
def byte_quant_candidates(
    N: int, K: int, form: FragmentRecords, promoted: bool, running: bool = False, speed: Speed = HOPPER
) -> ByteCandidates:
    """Candidates for the product of a weight whose sums of groups are scaled (`promoted`) or not, and may run on from
    group to group (`running`)."""
    down, across, _ = form.shape(N, K)
    divisions = _divisions(form, promoted, running, down * form.rows, K, speed.cores)
    sizes = [fitted(form, one, across) for one in divisions]
    suited = [one for one in sizes if one["part"] % (SHARE * one["sharing"]) == 0]
    suited = [one for one in suited if (one["records"] % 2 == 0 if one["blocks"] else _leaves(form, one))]
    return ByteCandidates(suited, N, K, form, promoted, speed)


def _divisions(
    form: FragmentRecords, promoted: bool, running: bool, rows: int, K: int, cores: int
) -> Iterator[dict[str, int]]:
    """All candidates, with the most slots and records that might fit."""
    across, copied = form.shape(rows, K)[1], ceil_div(K, COLUMNS)
    # Longer copies are faster, where they do not reach further behind K's end.
    copies: tuple[int, ...] = (4, 2) if copied % 4 in (1, 2) else (4,)
    if copied <= FEW_COPIES:  # the first product waits for all of a copy
        copies = (4, 2, 1)
    # Sums of int8 are converted too before they are scaled; e4m3 is faster without turns.
    ping_pong = promoted and form.operand.is_integer
    plain = promoted and form.zero is None  # zeros of groups take registers
    usual = {"sharing": 1, "blocks": 0, "band": 1, "running": False, "overlaps": False}
    for tokens in heights_of(form.operand, FEW):
        for (warpgroups, tiles), records in product(((1, 1), (2, 1), (2, 2)), copies if tokens < 80 else (2,)):
            held = tokens * tiles // 2 + tokens + COLUMNS // form.sets // 4
            # Of eight products in the text the assembler spills sums of floats earlier; those of int32 less than alone.
            most = MOST if records * tiles == 8 and not form.operand.is_integer else BOTH
            overlaps = plain and held + CONVERTED * form.operand.is_integer <= most
            sizes = {
                **usual, "tokens": tokens, "part": tokens, "warpgroups": warpgroups, "tiles": tiles, "cluster": 1,
                "records": records, "overlaps": overlaps,
                "turns": ping_pong and (warpgroups, tiles) == (2, 1) and tokens >= 80 and not overlaps,
            }  # fmt: skip
            for cluster in (1, 2, 4) if tiles == 1 else (1,):
                yield {**sizes, "cluster": cluster}
            # Odd multiples of 8 rows were slower than the next even ones here (H200).
            if promoted and warpgroups == 2 and across % 2 == 0 and tokens % 16 == 0:
                for groups in groups_of(ceil_div(rows, 128 * tiles), cores):
                    yield {**sizes, "blocks": groups, "band": BAND}
    usual |= {"warpgroups": 2, "tiles": 1, "records": 2, "cluster": 1}
    for tokens in SHARED:
        parts = 1 if not promoted or (plain and tokens <= WHOLE) else 2 if plain else 4
        usual |= {"tokens": tokens, "part": tokens // parts, "sharing": 2}
        yield {**usual, "turns": ping_pong}
        if promoted and across % 2 == 0:
            for groups in groups_of(ceil_div(rows, 256), cores // 2):
                yield {**usual, "turns": parts > 1, "blocks": 2 * groups, "band": BAND}
    for tokens, turns in RUNNING.items() if running and across % 2 == 0 else ():
        usual |= {"tokens": tokens, "part": tokens, "sharing": 1, "turns": turns}
        for groups in groups_of(ceil_div(rows, 128), cores):
            yield {**usual, "blocks": groups, "band": BAND, "running": True}


def _leaves(form: FragmentRecords, sizes: dict[str, int]) -> bool:
    """Whether sums that leave at once fit the larger ring."""
    slab = 64 * sizes["warpgroups"]
    piece = in_pieces(sizes["part"], PIECE if sizes["cluster"] == 1 else sizes["part"])[0][1]
    of_w = 4 * sizes["weight_stages"] * (slab * sizes["tiles"] // form.rows) * sizes["records"] * form.words
    return 4 * piece * (slab + PADDING) <= max(sizes["stages"] * sizes["tokens"] * COLUMNS, of_w)


class ByteCandidates(Candidates):
    """Candidates for the product of a weight."""

    def __init__(
        self, of: list[dict[str, int]], N: int, K: int, form: FragmentRecords, promoted: bool, speed: Speed
    ) -> None:
        super().__init__(of, speed)
        self.N, self.K, self.form, self.promoted = N, K, form, promoted
        self.ahead = np.array([promoted and decodes_ahead(form, one) for one in self.of])

    def fits(self, M: int) -> np.ndarray:
        """Whether blocks that divide K run at once."""
        cluster = self.columns["cluster"]
        return (cluster == 1) | (self._tiles(M) * cluster <= self.speed.resident(cluster, stay=True))

    def _tiles(self, M: int) -> np.ndarray:
        """How many tiles there are, those of blocks that send one another activations as one."""
        of = self.columns
        rows = 64 * of["warpgroups"] * of["tiles"] * of["sharing"]
        return np.asarray(ceil_div(self.N, rows) * ceil_div(M, of["tokens"]))

    def work(self, M: int) -> Work:
        """See `Candidates`."""
        of, form = self.columns, self.form
        chunks = ceil_div(self.K, COLUMNS * of["records"])
        tokens, cluster, sharing, stay = of["tokens"], of["cluster"], of["sharing"], of["blocks"] > 0
        rows, tiles, down = 64 * of["warpgroups"] * of["tiles"], self._tiles(M), ceil_div(M, tokens)
        resident = np.where(stay, of["blocks"], self.speed.resident(cluster * sharing)) // sharing
        sums = rows * tokens
        waves = ceil_div(tiles * cluster, resident)
        alone, share, exchange = stream_k_cost(tiles, chunks, resident, sums)
        part = share / chunks
        apart = np.where((sharing > 1) & (part < 1) & (exchange > 0), APART_IN_K[form.operand.is_integer], 0.0)
        even = alone + part * (1 + apart)
        exchange = np.where(stay, exchange, 0.0)
        # The first copy of weights hides nothing; blocks that stay ask for those of a tile during the one ahead of it.
        first = 1 / (ceil_div(chunks, cluster) * np.where(stay, np.maximum(1, even), 1))
        cluster_sums = np.where(cluster > 1, CLUSTER_SUMS + EACH_CLUSTER_SUM * sums * (cluster - 1), 0.0)
        # Rows behind the last one: of a launch's slowest block where each has one tile, else of all on average.
        missing = (down * tokens - M) / np.where((waves > 1) | stay, down, 1)
        operand = "int8" if form.operand.is_integer else "float"
        scaled = np.where(of["running"] > 0, SCALED["running"], SCALED[operand]) * form.sets if self.promoted else 0.0
        decoded = DECODED[form.operand.is_integer] * (0.5 if form.bits == 8 else 1.0)
        record = 4 * form.words / form.rows * rows
        whole = form.operand.is_integer
        groups = (of["tiles"] * tokens // of["part"] * form.sets) * self.promoted
        fixed = STEP + (EACH[whole] - OVERLAPPED[whole] * of["overlaps"]) * groups + STAYS[whole] * stay
        return Work(
            size=1,
            beside=BESIDE + (1 - BESIDE) * first,
            blocks=tiles * cluster * sharing,
            resident=resident * sharing,
            waves=np.where(stay, even, waves),
            steps=ceil_div(chunks, cluster) * of["records"],
            products=sums * COLUMNS,
            memory=4 * self.N * chunks * of["records"] * form.words / form.rows + M * self.K + 2 * M * self.N,
            shared=record + tokens * COLUMNS * (1 + of["warpgroups"] * of["tiles"]),
            loads=record + (tokens - missing) * COLUMNS / sharing,
            empty=missing / sharing,
            lanes=rows * COLUMNS * decoded + sums * scaled,
            apart=APART,
            fixed=fixed + np.where(self.ahead, AHEAD, COPY) / of["records"] + TWICE[whole] * (of["tiles"] == 2),
            ends=np.where(of["running"] > 0, NEXT_RUN, NEXT) * sums / (128 * 256) + np.where(stay, 0, ANOTHER),
            exchange=exchange + cluster_sums,
            begins=np.where(stay, BEGIN, 0.0),
        )


def fitted(form: FragmentRecords, sizes: dict[str, int], across: int) -> dict[str, int]:
    """Sizes with slots of both rings: eight of activations at most, and what is left for weights, of which copies take
    no part twice. Blocks that stay have powers of two, so that little is reckoned to find one.

    Where not even two copies of weights fit, they are shorter, and blocks of fewer rows.
    """
    slab, activations, stay = 64 * sizes["warpgroups"], sizes["tokens"] * COLUMNS, bool(sizes.get("blocks"))
    # Blocks that stay have a place of their own that sums leave through.
    room = SHARED_BYTES - 2048 - (max(BOXES, 4 * PIECE * (slab + PADDING)) if stay else 0)
    least = 3 if sizes.get("running") else 2  # sums that run on need the scale of the next copy's first group early
    whole = power_of_two if stay else int
    for tiles in range(sizes["tiles"], 0, -1):
        for records in (n for n in (4, 2, 1) if n <= sizes["records"] and across % n == 0):
            weights = 4 * (slab * tiles // form.rows) * records * form.words
            fewest = least + least % 2 if stay else least
            stages = min(8, (room - fewest * weights) // activations)
            if stages >= 2:
                stages = whole(stages)
                rest = whole(min(5, (room - stages * activations) // weights))
                return {**sizes, "tiles": tiles, "records": records, "stages": stages, "weight_stages": rest}
    raise AssertionError("two records and two columns of activations fit every multiprocessor")


def power_of_two(most: int) -> int:
    """The largest one that is no more."""
    return 1 << most.bit_length() - 1
