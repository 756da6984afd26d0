"""How `wgmma_quant_matmul` is divided: tiles, slots and blocks, and what a launch with them does (`roofline.Work`).

What is said in operations and cycles fits 1,100 launches for 95 products on an H200 (int4 by float16, 2 to 7135 rows,
24 November 2026): of the candidates that were timed for a product the model chose some that were 1.3% slower than
the best, on average.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

import numpy as np

from tilewright.kernels import BESIDE, HOPPER, PLAIN, Epilogue, Number, Speed, Work, ceil_div, cycles_of, stream_k_cost
from tilewright.kernels.code_table import table_bytes
from tilewright.kernels.grouped_matmul import expected_tiles, runs_with_rows
from tilewright.kernels.hopper import SHARED_BYTES, heights_of
from tilewright.kernels.hopper_quant_wgmma import BOXED, HALF, PADDING, SLAB, staged_bytes
from tilewright.kernels.repertoire import MOST, Candidates, groups_of
from tilewright.machine import COLUMNS, FragmentRecords
from tilewright.tuning import Candidate

HIGHEST = {1: 256, 2: 128}
"""The most rows of A of a tile, by the times 128 rows of W that it has."""

PAIRED = 128
"""Rows of A of a tile above which blocks send one another the activations, in halves of a multiple of 8 rows."""

DECODED, PROMOTED, SCALED = 4.0, 2.9, 0.72
"""Operations that make an operand of a code, one whose scale is applied to sums, and of a sum that is scaled."""

APART = 0.21
"""The share of the shorter, products or what lanes do, that the longer one does not hide."""

BEGUN = 90
"""Cycles of lanes until they have the codes of 64 columns."""

COPY = 12
"""Cycles of a copy of weights that nothing hides."""

END, END_AHEAD = 5600, 4600
"""Cycles that a further tile of 128 rows of W by 256 of A costs a block, and where its first codes are decoded before
the tile ahead of it has ended."""

APART_IN_K, SPREAD_IN_K = 1.14, 1.08
"""How much longer steps take of tiles that blocks share: they begin at different columns, so that no two of them ask
the second-level cache for the same activations at the same time; and where those of a whole wave are among them."""

BEGIN = 1100
"""Cycles by which it begins later than the kernels of few rows (73 products of them, H200, 28 November 2026)."""

LOW = 128
"""Rows of A of a tile from which on short copies of W are never the slower ones (44 products, H200, H100)."""

BAND = 4
"""Tiles of 256 rows of A beside as many of 128 rows of W as run at once: about as many bytes of both."""


KINDS = MOST - 4
"""Divisions of a weight: kernels for 1, 2, 8 and 16 rows stand beside them (`hopper_quant.small_candidates`)."""


@functools.lru_cache(maxsize=256)
def wgmma_quant_candidates(
    N: int,
    K: int,
    form: FragmentRecords,
    out: str = "float16",
    epilogue: Epilogue = PLAIN,
    speed: Speed = HOPPER,
    few: int = 0,
) -> WgmmaCandidates:
    """Candidates for the product of a weight: every tile, low ones in long copies of W as well as in short ones, on
    all multiprocessors or on as many as tiles of whole columns make, in pairs where the tiles across W make pairs;
    another kernel serves calls of up to `few` rows."""
    found = []
    for tiles, highest in HIGHEST.items():
        heights = heights_of(form.operand, highest)
        for tokens, short in [(one, True) for one in heights] + [(one, False) for one in heights if one < LOW]:
            sizes = fitted(form, tokens, tiles, out, epilogue, short)
            pairs, across = sizes["sharing"], ceil_div(N, 128 * tiles)
            for sharing in {pairs, 1 if across % pairs else pairs}:  # the last of an odd number has no partner
                groups = groups_of(ceil_div(across, sharing), speed.cores // sharing)
                if sharing != pairs:
                    groups.pop()
                found += [{**sizes, "sharing": sharing, "blocks": sharing * one} for one in groups]
    return WgmmaCandidates(found, N, K, form, speed, few)


class WgmmaCandidates(Candidates):
    """Candidates for the product of a weight."""

    def __init__(self, of: list[dict[str, int]], N: int, K: int, form: FragmentRecords, speed: Speed, few: int) -> None:
        super().__init__(of, speed, KINDS, few)
        self.N, self.K, self.form = N, K, form

    def work(self, M: int) -> Work:
        """See `Candidates`."""
        of, form = self.columns, self.form
        tokens, sharing, rows = of["tokens"], of["sharing"], 128 * of["tiles"]
        down, groups = ceil_div(M, tokens), of["blocks"] // sharing
        count, chunks = ceil_div(self.N, rows * sharing) * down, ceil_div(self.K, COLUMNS * of["records"])
        sums = rows * tokens
        alone, share, exchange = stream_k_cost(count, chunks, groups, sums)
        part = share / chunks
        waves = alone + part * np.where(exchange > 0, np.where(part < 1, APART_IN_K, SPREAD_IN_K), 1.0)
        # Whose share is no whole tile, and who goes on with whole ones, ends one more.
        ends = np.where(tokens >= BOXED, END_AHEAD, END) * sums / (128 * 256)
        exchange = exchange + np.where((exchange > 0) & (count >= groups), -part % 1 * ends, 0.0)
        # Rows behind the last one: of a launch's slowest block where each has one tile, else of all on average.
        missing = (down * tokens - M) / np.where(waves > 1, down, 1)
        return _work(
            of,
            form,
            self.K,
            self.speed,
            height=tokens,
            brought=(tokens - missing) / sharing,
            blocks=np.minimum(of["blocks"], count * sharing),
            waves=waves,
            # Weights come at an even pace, which hides behind the products of those before.
            weights=self.N * self.K,
            others=2 * M * (self.K + self.N),
            empty=missing / sharing,
            ends=ends,
            exchange=exchange,
        )


def _work(
    of: Mapping[str, Number],
    form: FragmentRecords,
    K: int,
    speed: Speed,
    height: Number,
    brought: Number,
    blocks: Number,
    waves: Number,
    weights: Number,
    others: Number,
    decoded: Number = DECODED,
    apart: Number = APART,
    **more: Number,
) -> Work:
    """What launches do of which so many blocks work, each at so many tiles.

    Parameters
    ----------
    of : sizes, or columns of them.
    height, brought : rows of A that a product has, and those that a block asks for.
    weights, others : codes, and bytes of all else, from memory and to it.
    decoded : operations that make an operand of a code where its scale is applied to it.
    """
    rows, promoted = 128 * of["tiles"], of["promoted"] > 0
    record, weights = 2 * form.words / form.rows * rows, weights // COLUMNS * 4 * form.words / form.rows
    lanes = rows * HALF * np.where(promoted, PROMOTED, decoded)
    lanes = lanes + np.where(promoted, rows * of["tokens"] / 2 * SCALED, 0.0)
    return Work(
        size=2,
        blocks=blocks,
        resident=speed.cores,
        waves=waves,
        steps=ceil_div(K, COLUMNS * of["records"]) * of["records"] * (COLUMNS // HALF),
        products=rows * height * HALF,
        memory=weights + others,
        beside=BESIDE * others / (weights + others),
        shared=record + 3 * height * 2 * HALF,
        loads=record + brought * 2 * HALF,
        lanes=lanes + BEGUN * speed.rates.lanes,
        apart=apart,
        fixed=COPY / of["records"],
        begins=BEGIN,
        busy=blocks / speed.cores,
        **more,
    )


EXPERT_TILES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (8, ()), (16, ()), (32, (16,)), (32, ()), (64, (32, 16)), (64, (32,)), (64, ()), (128, (64, 32)), (128, ()),
)  # fmt: skip
"""Rows of A of a tile of experts, and the lower heights that the last rows of a run may have."""

IN_TURN, DECODED_FREELY, PROMOTED_APART = 64, 3.2, 0.4
"""Rows of A of a tile from which warpgroups multiply in turn; operations that make an operand of a code where they do
not; and the share of the shorter that is not hidden where sums are promoted, for which a warpgroup waits for all of its
products."""

LOWER_APART = 0.9
"""The same, besides, of rows that a tile of a run's last rows has not."""


def expert_quant_choices(
    experts: int,
    rows: int,
    N: int,
    K: int,
    form: FragmentRecords,
    out: str = "float16",
    epilogue: Epilogue = PLAIN,
    speed: Speed = HOPPER,
) -> list[Candidate]:
    """Sizes of `wgmma_quant_matmul` for experts whose runs have about so many rows, those that take the fewest cycles
    first.

    How long runs are is not known: `ALIKE` of `grouped_matmul` says what is thought of them. Of 183 products with runs
    of three kinds, 1,743 times on an H200, to which the four numbers above are fitted, the first ones take 2.1% longer
    than the best; a table by rows alone had chosen ones that take 2.4% longer (28 November 2026).
    """
    found: list[Candidate] = []
    for tokens, lower in EXPERT_TILES:
        sizes = fitted(form, tokens, 2, out, epilogue)
        promoted = sizes["promoted"] and not lower
        found.append({**sizes, "promoted": promoted, "lower": lower, "blocks": speed.cores})
    return sorted(
        found, key=lambda sizes: float(cycles_of(_of_experts(sizes, experts, max(1, rows), N, K, form, speed), speed))
    )


def _of_experts(sizes: Candidate, experts: int, rows: int, N: int, K: int, form: FragmentRecords, speed: Speed) -> Work:
    """What a launch for experts does, each of its tiles as high as they are on average."""
    heights = (sizes["tokens"], *sizes["lower"], 0)
    tiles = expected_tiles(rows, heights[0])
    height = (
        sum((one - less) * expected_tiles(rows, heights[0], less) for one, less in itertools.pairwise(heights)) / tiles
    )
    count, area = experts * tiles * ceil_div(N, 128 * sizes["tiles"]), sizes["tiles"] * heights[0] / 256
    blocks = min(sizes["blocks"], count)
    return _work(
        sizes,
        form,
        K,
        speed,
        height=height,
        brought=height,
        blocks=blocks,
        waves=count / sizes["blocks"],
        weights=experts * runs_with_rows(rows) * N * K,
        others=2 * experts * rows * (K + N),
        decoded=DECODED if heights[0] >= IN_TURN else DECODED_FREELY,
        apart=(PROMOTED_APART if sizes["promoted"] else APART) + LOWER_APART * (1 - height / heights[0]),
        ends=END * area,
    )


def fitted(
    form: FragmentRecords,
    tokens: int,
    tiles: int,
    out: str = "float16",
    epilogue: Epilogue = PLAIN,
    short: bool = False,
) -> dict[str, int]:
    """Sizes with slots of both rings, powers of two, so that little is reckoned to find one; copies of weights that are
    scaled as codes may be `short`: one record, so that K and shares along it seldom end within one."""
    promoted = tokens <= 32 and form.group == COLUMNS and form.zero is None
    several = [(2, 1, 4, 4), (2, 1, 4, 2), (1, 1, 4, 4), (1, 1, 4, 2), (2, 1, 2, 2), (1, 1, 2, 2)]
    if tokens < LOW:
        several = [(2, 4, 4, 4), (2, 4, 2, 4), (2, 4, 2, 2), (1, 2, 4, 4), (1, 2, 4, 2), (1, 2, 2, 2)]
    if short and not promoted:
        several = [one for one in several if one[0] == 1]
    kept = staged_bytes(out, epilogue)
    sums = 2 * min(tokens, SLAB) * (SLAB * kept + PADDING)
    room = SHARED_BYTES - 1024 - table_bytes(form) - sums
    for records, halves, stages, least in several:
        weights = 128 * tiles // form.rows * records * form.words * 4
        if stages * 2 * HALF * halves * tokens + least * weights <= room:
            break
    return {
        "tokens": tokens, "tiles": tiles, "records": records, "stages": stages, "halves": halves,
        "weight_stages": least, "sharing": 2 if tokens > PAIRED and tokens % 16 == 0 else 1,
        "band": BAND if tokens >= 128 else 1, "promoted": promoted,
    }  # fmt: skip
