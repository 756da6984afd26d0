"""How attention is divided: on a CPU by the number of queries; on a GPU by the machine for many queries and keys, by a
model of it for sizes that are expected."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tilewright
from tilewright.ir.dtypes import DType
from tilewright.kernels import Speed, Work, ceil_div, cycles_of, hopper, speed_of
from tilewright.kernels.cluster_sums import PADDING
from tilewright.machine import Arch, MatrixInstruction

FEW_QUERIES = 64
"""Up to so many queries, blocks of as many rows are as good as larger ones, and there are more of them."""


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """How the scores of a head are divided.

    Attributes
    ----------
    block_M, block_N : queries of a block, and keys of one step.
    threads : of the warps that compute.
    num_stages : tiles of keys and values that are held.
    blocks : that share a multiprocessor: one's first and last products leave room for the other's.
    together : whether all heads that share keys are rows of the same tiles, as suits few queries.
    splits : blocks that split the keys of a tile, and combine their results: in shared memory where a cluster has as
        many, else by a second kernel.
    kept : rows of a block that are stored: the matrix instruction has more than a few queries need; 0 for all.
    """

    block_M: int = 64
    block_N: int = 64
    threads: int = 128
    num_stages: int = 2
    blocks: int = 1
    together: bool = False
    splits: int = 1
    kept: int = 0

    @property
    def stored_rows(self) -> int:
        """Rows of a block that are stored."""
        return self.kept or self.block_M


WARPGROUPS = ((3, 128), (2, 192), (1, 192))
"""Warpgroups of 64 queries each, and registers of a thread for scores, weights and result beside all else; measured on
an H200."""

MOST_KEYS = 128
"""Of a step: more leave no room for the next tile's queries, and are masked in vain where they cross the diagonal."""

CONSUMING_WELL = 180
"""Registers of a thread for scores, weights, result and all else: with more, two blocks of several steps are slower
than one (measured)."""

WARP_TILES = (
    (128, 64, 256), (64, 64, 128), (128, 32, 256), (64, 32, 128), (64, 16, 128), (32, 16, 256), (32, 16, 64),
    (16, 16, 128), (16, 16, 32),
    (16, 8, 32),
)  # fmt: skip
"""Queries, keys of a step and threads where warps multiply by themselves: the first that a machine has room for."""

SCORE, BESIDE_STAGED = 3, 32
"""Registers of a thread for each of its scores (it, its exponent, the mask), and for all else, where the next tiles
wait in registers: clang spills beyond, and not below (compiled for AMD's machines with heads of 64 to 256)."""

TOGETHER = 8
"""Heads of which causal blocks take the tiles in turn (measured on an H200)."""

SHARED_BYTES = 192 << 10
"""For queries, keys and values, beside the boxes through which results leave."""

BESIDE = 48
"""Registers of a thread beside scores, weights and result."""

BESIDE_OPERANDS = 20
"""Registers of a thread beside the operands of one matrix instruction, all of which have to be among those of the
launch (the assembler refuses others)."""

EXPONENT, EXPONENT_BESIDE = {1: 7.0, 2: 12.0, 3: 10.0}, 8.0
"""Operations of an element of the scores beside its products, by the warpgroups of a block, and of two blocks of a
warpgroup each."""

APART, ALONE = 0.29, 0.9
"""The share of the shorter, products or all else, that the longer one does not hide, and of a single warpgroup, beside
which no other one multiplies."""

STEP, TILE = 150, 2400
"""Cycles of a step, and of a tile's begin and end, that nothing hides."""

BOXES = 16 << 10
"""Shared memory of a warpgroup's boxes, through which results leave."""

LAST = 1.8
"""Tiles by which blocks of a causal grid, which claim them, end one after the other."""

USUAL, ALIKE, ALIKE_FEW = 1.04, 1.02, 1.01
"""How much more than the best the usual tiles may take, and other ones that come earlier, for many queries and for few:
so few kernels serve many lengths."""

WIDTHS, NARROWEST = (128, 64, 96, 80, 48, 32, 160, 112, 16), 48
"""Keys of a step, those first that suit most lengths; and the fewest where more have room and there are more."""

SPLITS, CLUSTERED, KEPT = (1, 2, 4, 8, 16, 32), 8, (8, 16, 32, 64)
"""Blocks that split the keys, how many of them may be a cluster, and rows of a block that are stored."""

COMBINING, COMBINING_EACH, COMBINING_SUM, COMBINING_KERNEL = 500, 200, 0.5, 8500
"""Cycles in which the blocks of a cluster combine their results, for each block, and for each element of a result; and
of a kernel of its own in place of the first and the third (128 drawn shapes on an H200, in graphs)."""


def attention_tiles(arch: Arch | None, dtype: str, dim: int, queries: int | None = None) -> AttentionTiles:
    """Tiles that suit a machine, where it is known, for heads of so many elements and at most so many queries, where
    that is.

    On Hopper a warpgroup holds 64 rows: ``dim / 2`` registers of the result, ``block_N / 2`` of scores and half of that
    of weights. Three warpgroups hide most of the exponents' time, where their registers and shared memory hold 128
    keys.
    """
    if arch is not None and not arch.has_threads and queries is not None:
        # A core computes every row of a block, those behind the last query too.
        return AttentionTiles(block_M=min(FEW_QUERIES, 1 << max(0, queries - 1).bit_length()))
    if arch is None or not arch.has_threads:
        return AttentionTiles()
    few = queries is not None and queries <= FEW_QUERIES
    if not arch.starts_products or tilewright.dtype(dtype).bits != 16:
        kind = tilewright.dtype(dtype)
        candidates = [AttentionTiles(*one) for one in WARP_TILES[dim > 128 or kind.bits != 16 :]]
        suited = [one for one in candidates if one.block_M <= FEW_QUERIES or not few]
        return next((one for one in suited if _fits(arch, kind, dim, one)), candidates[-1])
    for groups, registers in WARPGROUPS:
        rows = 64 * groups
        held = min((registers - dim // 2) * 4 // 3, (SHARED_BYTES // (2 * dim) - rows) // 4)
        if (groups == 1 or not few) and (groups < 3 or held >= MOST_KEYS):
            keys = min(held, MOST_KEYS)
            return AttentionTiles(rows, max(16, keys // 16 * 16), 128 * groups)
    return AttentionTiles()


def _fits(arch: Arch, dtype: DType, dim: int, tiles: AttentionTiles) -> bool:
    """Whether a block has shared memory for tiles, and a thread registers where those hold tiles on their way."""
    rows, keys, threads = tiles.block_M, tiles.block_N, tiles.threads
    product = next(
        (one for one in arch.products(MatrixInstruction) if one.a == one.b == dtype and one.a_fragment), None
    )
    slots = tiles.num_stages if arch.starts_wide_copies else 1
    # Lanes that hold copies of an operand, or floats, take no results as they lie: scores go through shared memory.
    copies = 2 if product is not None and product.a_fragment is not None and product.a_fragment.replicas else 1
    moved = copies > 1 or (product is not None and dtype.bits == 32)
    shared = (rows + 2 * slots * keys) * dim * dtype.bits // 8 + (4 * rows * keys if moved else 0)
    if threads // arch.warp_size > rows // 16:  # warps share rows: so do their scores, and the rows' maxima and sums
        shared += 4 * rows * (2 * keys + 1)
    if shared > arch.shared_bytes:
        return False
    if product is None:  # each thread has elements of its own, and reads what it multiplies
        return threads == 2 * rows and rows <= 64
    if not arch.has("register_staging"):
        return True
    own_rows = max(16, rows * arch.warp_size // threads)
    operands = copies * own_rows * (dim + keys) * dtype.bits // 32 // arch.warp_size
    on_their_way = 0 if arch.starts_wide_copies else 2 * keys * dim * dtype.bits // 32 // threads
    held = rows * (dim + SCORE * keys) // threads + operands + on_their_way + BESIDE_STAGED
    return held <= arch.launch_registers(threads)


def heads_together(heads: int) -> int:
    """Heads whose tiles are claimed in turn: as many as divide all, up to `TOGETHER`."""
    return max(count for count in range(1, TOGETHER + 1) if heads % count == 0)


def register_budget(blocks: int) -> tuple[int, int]:
    """Registers of a thread that computes and of one that loads, where several blocks of two warpgroups share a
    multiprocessor.

    Examples
    --------
    >>> register_budget(2), register_budget(3)
    ((216, 40), (136, 24))
    """
    producing = 40 if blocks == 2 else 24
    return 2 * _launched(blocks) - producing, producing


def _launched(blocks: int) -> int:
    """Registers of a thread at launch, which is what the assembler gives an instruction's operands."""
    return 256 // blocks // 8 * 8


def on_hopper(arch: Arch | None) -> bool:
    """Whether blocks can be divided into roles that claim tiles."""
    return arch is not None and arch.has_threads and arch.starts_products


def in_cluster(arch: Arch | None, splits: int, dim: int) -> bool:
    """Whether blocks that split the keys are a cluster, in which each finishes as many columns of the result."""
    return on_hopper(arch) and 1 < splits <= CLUSTERED and dim % splits == 0


def suited_tiles(
    arch: Arch | None, dtype: str, heads: tuple[int, int, int], dim: int, causal: bool
) -> Callable[[int, int], AttentionTiles]:
    """Tiles by numbers of queries and keys, which are rounded so that lengths which grow ask for few kernels; `heads`
    are the batch, heads of queries and heads of keys."""

    def choose(queries: int, keys: int) -> AttentionTiles:
        return tiles_for(arch, dtype, heads, (_rounded(queries), _rounded(keys)), dim, causal)

    return choose


def _rounded(size: int) -> int:
    """The next number of at most five binary digits."""
    step = 1 << max(0, size.bit_length() - 5)
    return -(-size // step) * step


@functools.lru_cache(maxsize=4096)
def tiles_for(
    arch: Arch | None, dtype: str, heads: tuple[int, int, int], sizes: tuple[int, int], dim: int, causal: bool = False
) -> AttentionTiles:
    """Tiles that take the fewest cycles for sizes (queries and keys) that are expected, by a model of Hopper; elsewhere
    as `attention_tiles`. `heads` as in `suited_tiles`."""
    queries, keys = sizes
    if not on_hopper(arch) or tilewright.dtype(dtype).bits != 16:
        return attention_tiles(arch, dtype, dim, queries)
    assert arch is not None
    usual = attention_tiles(arch, dtype, dim)
    work = Attention(*heads, queries, keys, dim, causal, speed_of(arch))
    found = [(work.cycles(one), one) for one in work.candidates()]
    least = min(cycles for cycles, _ in found)
    if work.cycles(usual) <= USUAL * least:
        return usual
    alike = ALIKE_FEW if work.few else ALIKE
    return next(one for cycles, one in found if cycles <= alike * least)


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of a size, and what it takes."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    causal: bool
    speed: Speed

    @property
    def few(self) -> bool:
        """Whether memory is what counts."""
        return self.queries <= FEW_QUERIES

    def candidates(self) -> Iterator[AttentionTiles]:
        """Tiles whose registers and shared memory suffice."""
        group = self.heads // self.kv_heads
        for groups, blocks in ((1, 2), (2, 1), (3, 1), (1, 1), (1, 3), (1, 4)):
            # Several blocks even out tiles of unequal lengths, and keep more bytes in flight.
            if blocks > 1 and not (self.few or (blocks == 2 and self.causal and self.dim % 64 == 0)):
                continue
            for together in (True, False)[group == 1 or self.queries >= 64 * groups :]:
                lines = self.queries * (group if together else 1)
                kept = next((one for one in KEPT if lines <= one), 0)
                for splits in SPLITS:
                    yield from self._of_widths(groups, blocks, together, splits, kept)

    def _of_widths(self, groups: int, blocks: int, together: bool, splits: int, kept: int) -> Iterator[AttentionTiles]:
        """Tiles by their numbers of keys, for which warpgroups have registers, and a block shared memory."""
        rows = 64 * groups
        room = hopper.SHARED_BYTES // blocks - (1 << 10) * (blocks > 1)
        room -= 4 * (kept or rows) * (self.dim + PADDING) + (1 << 10) if 1 < splits <= CLUSTERED else groups * BOXES
        most = (room // (2 * self.dim) - rows) // 4
        if groups == 3 and min(most, (160 - BESIDE - self.dim // 2) * 4 // 3) < MOST_KEYS:
            return
        for keys in WIDTHS:
            whole = self.few and keys >= self.keys
            registers = register_budget(blocks)[0] if blocks > 1 else {1: 240, 2: 240, 3: 160}[groups]
            registers = CONSUMING_WELL if blocks == 2 and not whole else registers
            held = min(most, (registers - BESIDE - self.dim // 2) * 4 // 3)
            if blocks > 1:
                held = min(held, (_launched(blocks) - BESIDE_OPERANDS - self.dim // 2) * 4)
            wide = whole or keys >= (min(held, NARROWEST) if blocks <= 2 else NARROWEST)
            if keys <= held and wide and (splits == 1 or -(-self.keys // keys) >= splits):
                yield AttentionTiles(rows, keys, 2 * rows, 2, blocks, together, splits, kept)

    def cycles(self, tiles: AttentionTiles) -> float:
        """Cycles of a launch."""
        return float(cycles_of(self.work(tiles), self.speed))

    def work(self, tiles: AttentionTiles) -> Work:
        """What a launch does; several blocks of a multiprocessor are one that does the steps of all."""
        joined = self.heads // self.kv_heads if tiles.together else 1
        down, running = ceil_div(self.queries * joined, tiles.stored_rows), self.speed.cores * tiles.blocks
        blocks = down * self.heads // joined * self.batch * tiles.splits
        steps = [self._steps(tiles, block, joined) for block in range(down)]
        waves, each = ceil_div(blocks, running), float(max(steps))
        if self.causal and blocks > running:
            waves, each = blocks / running + LAST, sum(steps) / down
        both = min(tiles.blocks, ceil_div(blocks, self.speed.cores))
        beside, groups, row = both > 1, tiles.threads // 128, 2 * self.dim
        scores = both * tiles.block_M * tiles.block_N
        results = self.batch * self.heads * self.queries
        # Keys behind the last one, of both tiles of a step.
        missing = 2 * max(0.0, tiles.block_N - self.keys / max(1.0, each * tiles.splits))
        return Work(
            size=2,
            blocks=blocks,
            resident=running,
            waves=waves,
            steps=each,
            products=2 * scores * self.dim,
            memory=2 * row * (results + self.batch * self.keys * self.kv_heads),
            shared=both * row * (2 * groups * tiles.block_N + tiles.block_M),
            loads=2 * both * row * tiles.block_N,
            empty=missing,
            lanes=scores * (EXPONENT_BESIDE if beside else EXPONENT[groups]),
            apart=ALONE if groups == 1 and not beside else APART,
            fixed=both * STEP,
            ends=TILE,
            begins=TILE,
            exchange=self._combining(tiles, waves),
            in_flight=tiles.num_stages * 2 * row * tiles.block_N if self.few else 0,
        )

    def _combining(self, tiles: AttentionTiles, waves: float) -> float:
        """Cycles in which blocks that split the keys combine their results."""
        if tiles.splits == 1:
            return 0.0
        if tiles.splits > CLUSTERED:
            return COMBINING_KERNEL + COMBINING_EACH * tiles.splits
        of_sums = COMBINING_SUM * tiles.stored_rows * self.dim
        return waves * (COMBINING + COMBINING_EACH * tiles.splits + of_sums)

    def _steps(self, tiles: AttentionTiles, block: int, joined: int) -> int:
        """Steps of a block of rows, its share of them where several divide the keys."""
        seen = self.keys
        if self.causal and joined == 1:
            seen = max(0, min(self.keys, (block + 1) * tiles.stored_rows + self.keys - self.queries))
        steps = -(-seen // tiles.block_N)
        return -(-steps // tiles.splits)
