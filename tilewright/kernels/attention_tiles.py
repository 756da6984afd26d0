"""How attention is divided: on a CPU by the number of queries; on a GPU by the machine for many queries and keys, by a
model of it for sizes that are expected."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tilewright
from tilewright.ir.dtypes import DType
from tilewright.machine.arch import Arch

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
    splits : blocks that divide the keys of a tile, and leave what they found for a second kernel.
    """

    block_M: int = 64
    block_N: int = 64
    threads: int = 128
    num_stages: int = 2
    blocks: int = 1
    together: bool = False
    splits: int = 1


WARPGROUPS = ((3, 128), (2, 192), (1, 192))
"""Warpgroups of 64 queries each, and registers of a thread for scores, weights and result beside all else; measured on
an H200."""

MOST_KEYS = 128
"""Of a step: more leave no room for the next tile's queries, and are masked in vain where they cross the diagonal."""

CONSUMING, PRODUCING = 216, 40
"""Registers of a thread that computes, and of one that loads, of 128 each in two blocks of a multiprocessor."""

CONSUMING_WELL = 180
"""What of them scores, weights, result and all else may take: with more, two blocks are slower than one (measured)."""

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

LARGEST = 227 << 10
"""Shared memory of a block."""

BESIDE = 48
"""Registers of a thread beside scores, weights and result."""

PRODUCT, SHARED = 0.0009, 0.167
"""Cycles of a multiprocessor for the products of an element of the scores, for each column of a head; and how much
longer they take where steps have 64 keys: queries are read from shared memory once for each."""

EXPONENT = {1: 0.054, 2: 0.105, 3: 0.0842}
"""Cycles of a multiprocessor for all else of an element, by the warpgroups of a block; beside the products, but for a
single warpgroup, beside which no other one multiplies."""

EXPONENT_BESIDE = 0.0692
"""The same of two blocks of a warpgroup each."""

HIDING = 3.67
"""How well products and all else hide one another: the power of which the two take the mean."""

STEP = 227
"""Cycles that a step costs whatever its keys."""

TILE, TILE_AHEAD, TILE_BESIDE = 3920, 2354, 2547
"""Cycles that begin and end of a tile cost: by itself, where its queries have been loaded beside the tile before, and
of two blocks that work side by side."""

BOXES = 16 << 10
"""Shared memory of a warpgroup's boxes, through which results leave."""

LAST = 1.0
"""Tiles by which blocks of a causal grid, which claim them, end one after the other."""

START = 8850
"""Cycles of a launch."""

MEMORY_RATE, OVER_MEMORY, OVER_WORK = 2790, 0.39, 0.27
"""Bytes a cycle of memory, and the share of work that memory's time does not hide where that is longer, and the other
way round."""

USUAL, ALIKE, ALIKE_FEW = 1.04, 1.02, 1.05
"""How much more than the best the usual tiles may take, and other ones (of few queries) that come earlier: so few
kernels serve many lengths."""

WIDTHS, NARROWEST = (128, 64, 96, 80, 48, 32, 160, 112), 48
"""Keys of a step, those first that suit most lengths; and the fewest where more have room."""

ADDING = 8800
"""Cycles of a second kernel, which adds what blocks found that divide the keys."""


def attention_tiles(arch: Arch | None, dtype: str, dim: int, queries: int | None = None) -> AttentionTiles:
    """Tiles that suit a machine.

    On Hopper a warpgroup holds 64 rows: ``dim / 2`` registers of the result, ``block_N / 2`` of scores and half of that
    of weights. Three warpgroups hide most of the exponents' time, where their registers and shared memory hold 128
    keys.

    Parameters
    ----------
    arch : None where it is not known.
    dim : of a head.
    queries : how many there are at most, where that is known.
    """
    if arch is not None and not arch.has_threads and queries is not None:
        # A core computes every row of a block, those behind the last query too.
        return AttentionTiles(block_M=min(FEW_QUERIES, 1 << max(0, queries - 1).bit_length()))
    if arch is None or not arch.has_threads:
        return AttentionTiles()
    few = queries is not None and queries <= FEW_QUERIES
    if not arch.has("wgmma") or tilewright.dtype(dtype).bits != 16:
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
    product = next((one for one in arch.matrix_instructions if one.a == one.b == dtype and one.a_fragment), None)
    slots = tiles.num_stages if any(one.asynchronous for one in arch.copy_instructions) else 1
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
    on_their_way = 2 * keys * dim * dtype.bits // 32 // threads
    held = rows * (dim + SCORE * keys) // threads + operands + on_their_way + BESIDE_STAGED
    return held <= arch.launch_registers(threads)


def heads_together(heads: int) -> int:
    """Heads whose tiles are claimed in turn: as many as divide all, up to `TOGETHER`."""
    return max(count for count in range(1, TOGETHER + 1) if heads % count == 0)


def on_hopper(arch: Arch | None) -> bool:
    """Whether blocks can be divided into roles that claim tiles."""
    return arch is not None and arch.has_threads and arch.has("wgmma")


def suited_tiles(
    arch: Arch | None, dtype: str, heads: tuple[int, int, int], dim: int, causal: bool
) -> Callable[[int, int], AttentionTiles]:
    """Tiles by numbers of queries and keys, which are rounded so that lengths which grow ask for few kernels.

    Parameters
    ----------
    heads : batch, heads of queries and heads of keys.
    """

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
    """Tiles that take the fewest cycles for sizes that are expected, by a model of Hopper; elsewhere as
    `attention_tiles`.

    Parameters
    ----------
    heads : batch, heads of queries and heads of keys.
    sizes : queries and keys.
    """
    queries, keys = sizes
    if not on_hopper(arch) or tilewright.dtype(dtype).bits != 16:
        return attention_tiles(arch, dtype, dim, queries)
    assert arch is not None
    usual = attention_tiles(arch, dtype, dim)
    work = _Work(*heads, queries, keys, dim, causal, arch.cores)
    found = [(work.cycles(one), one) for one in work.candidates()]
    least = min(cycles for cycles, _ in found)
    if work.cycles(usual) <= USUAL * least:
        return usual
    alike = ALIKE_FEW if work.few else ALIKE
    return next(one for cycles, one in found if cycles <= alike * least)


@dataclass(frozen=True, slots=True)
class _Work:
    """Attention of a size, and what it takes."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    causal: bool
    cores: int

    @property
    def few(self) -> bool:
        """Whether the queries that share keys fit one block, so that memory is what counts."""
        return self.queries * (self.heads // self.kv_heads) <= FEW_QUERIES

    def candidates(self) -> Iterator[AttentionTiles]:
        """Tiles whose registers and shared memory suffice."""
        group = self.heads // self.kv_heads
        for groups, blocks in ((1, 2), (2, 1), (3, 1), (1, 1)):
            # Two blocks even out tiles of unequal lengths, and keep more bytes on their way; heads that are no spans of
            # a swizzle take them too long.
            if blocks == 2 and (self.dim % 64 or not (self.causal or self.few)):
                continue
            rows = 64 * groups
            most = self._most_keys(groups, blocks)
            if groups == 3 and most < MOST_KEYS:
                continue
            for keys in (width for width in WIDTHS if min(most, NARROWEST) <= width <= most):
                for together in (False, True)[: 1 + (group > 1 and self.queries < rows)]:
                    for splits in (1, 2, 4, 8, 16, 32):
                        if splits == 1 or -(-self.keys // keys) >= 2 * splits:
                            yield AttentionTiles(rows, keys, 2 * rows, 2, blocks, together, splits)

    def _most_keys(self, groups: int, blocks: int) -> int:
        """Keys of a step for which warpgroups have registers, and a block shared memory."""
        registers = CONSUMING_WELL if blocks == 2 else {1: 240, 2: 240, 3: 160}[groups]
        room = (LARGEST if blocks == 1 else LARGEST // 2 - (1 << 10)) - groups * BOXES
        return min((registers - BESIDE - self.dim // 2) * 4 // 3, (room // (2 * self.dim) - 64 * groups) // 4)

    def cycles(self, tiles: AttentionTiles) -> float:
        """Cycles of a launch."""
        joined = self.heads // self.kv_heads if tiles.together else 1
        lines, own_heads = self.queries * joined, self.heads // joined
        down, running = -(-lines // tiles.block_M), self.cores * tiles.blocks
        blocks = down * own_heads * self.batch * tiles.splits
        steps = [self._steps(tiles, block, joined) for block in range(down)]
        if self.causal and blocks > running:
            waves, turns = blocks / running + LAST, sum(steps) / down
        else:
            waves, turns = -(-blocks // running), max(steps)
        beside = tiles.blocks == 2 and blocks > self.cores
        begin = TILE_BESIDE if beside else TILE_AHEAD if self._loads_ahead(tiles, blocks) else TILE
        multiplying = START + waves * (turns * self._step(tiles, beside) + begin)
        size = self.batch * self.dim * 2
        memory = START + size * (2 * self.queries * self.heads + 2 * self.keys * self.kv_heads) / MEMORY_RATE
        adding = 0.0
        if tiles.splits > 1:
            adding = ADDING + 2 * tiles.splits * self.batch * self.heads * self.queries * self.dim * 4 / MEMORY_RATE
        hidden = OVER_WORK * memory if multiplying > memory else OVER_MEMORY * multiplying
        return max(multiplying, memory) + hidden + adding

    def _step(self, tiles: AttentionTiles, beside: bool) -> float:
        """Cycles of a step of the blocks of a multiprocessor; of two `beside` one another both do one."""
        groups = tiles.threads // 128
        products = self.dim * PRODUCT * (1 + SHARED * 64 / tiles.block_N)
        rest = EXPONENT_BESIDE if beside else EXPONENT[groups]
        alone = groups == 1 and not beside
        each = products + rest if alone else (products**HIDING + rest**HIDING) ** (1 / HIDING)
        return (1 + beside) * (STEP + tiles.block_M * tiles.block_N * each)

    def _loads_ahead(self, tiles: AttentionTiles, blocks: int) -> bool:
        """Whether the next tile's queries have a slot of their own (`passes/tile/grids/second_slots.py`), and gain by
        it (larger heads do not)."""
        held = (2 * tiles.block_M + 2 * tiles.num_stages * tiles.block_N) * self.dim * 2
        room = LARGEST - held - tiles.threads // 128 * BOXES
        return self.dim <= 128 and tiles.splits == 1 and blocks > self.cores and room >= 2 << 10

    def _steps(self, tiles: AttentionTiles, block: int, joined: int) -> int:
        """Steps of a block of rows, its share of them where several divide the keys."""
        seen = self.keys
        if self.causal and joined == 1:
            seen = max(0, min(self.keys, (block + 1) * tiles.block_M + self.keys - self.queries))
        steps = -(-seen // tiles.block_N)
        return -(-steps // tiles.splits)
