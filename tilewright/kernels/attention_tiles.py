"""How attention is divided on a GPU: by the machine for many queries and keys, by a model of it for sizes that are expected."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tilewright
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
"""Warpgroups of 64 queries each, and registers of a thread for scores, weights and result beside all else; measured on an H200."""

MOST_KEYS = 128
"""Of a step: more leave no room for the next tile's queries, and are masked in vain where they cross the diagonal."""

CONSUMING, PRODUCING = 216, 40
"""Registers of a thread that computes, and of one that loads, of 128 each in two blocks of a multiprocessor."""

TOGETHER = 8
"""Heads of which causal blocks take the tiles in turn (measured on an H200)."""

SHARED_BYTES = 192 << 10
"""For queries, keys and values, beside the boxes through which results leave."""

LARGEST = 227 << 10
"""Shared memory of a block."""

BESIDE = 48
"""Registers of a thread beside scores, weights and result."""

PRODUCT = 1.094 / 1024
"""Cycles of a multiprocessor for the products of an element of the scores, for each column of a head."""

EXPONENT = {1: 0.2, 2: 0.104, 3: 0.092}
"""Cycles of a multiprocessor for all else of an element, by the warpgroups of a block; the longer of the two is what counts, but for a
single warpgroup, beside which no other one multiplies."""

EXPONENT_BESIDE = 0.083
"""The same of two blocks of a warpgroup each."""

STEP = 220
"""Cycles that a step costs whatever its keys."""

TILE, TILE_AHEAD, TILE_BESIDE = 4783, 3109, 4388
"""Cycles that begin and end of a tile cost: by itself, where its queries have been loaded beside the tile before, and of two blocks that
work side by side."""

BOXES = 16 << 10
"""Shared memory of a warpgroup's boxes, through which results leave."""

LAST = 1.1
"""Tiles by which blocks of a causal grid, which claim them, end one after the other."""

START = 3000
"""Cycles of a launch."""

MEMORY_RATE, SHORTER = 2400, 0.28
"""Bytes a cycle of memory, and the share of the shorter of the two, work and memory, that the longer one does not hide."""

ALIKE = 1.04
"""What takes at most so much more than the best is as good: the earlier candidate is taken, so that few kernels serve many lengths."""

WIDTHS = (128, 64, 96, 80, 48, 32, 160, 112, 144)
"""Keys of a step, those first that suit most lengths."""

BESIDE_KEYS = 96
"""Keys of a step at most of two blocks that share a multiprocessor: with more, their registers spill or their loads wait (measured)."""

ADDING = 5000
"""Cycles of a second kernel, which adds what blocks found that divide the keys."""


def attention_tiles(arch: Arch | None, dtype: str, dim: int, queries: int | None = None) -> AttentionTiles:
    """Tiles that suit a machine.

    On Hopper a warpgroup holds 64 rows: ``dim / 2`` registers of the result, ``block_N / 2`` of scores and half of that of
    weights.  Three warpgroups hide most of the exponents' time, where their registers and shared memory hold 128 keys.

    Parameters
    ----------
    arch : None where it is not known.
    dim : of a head.
    queries : how many there are at most, where that is known.
    """
    if arch is None or not arch.has_threads or tilewright.dtype(dtype).bits != 16:
        return AttentionTiles()
    few = queries is not None and queries <= FEW_QUERIES
    if not arch.has("wgmma"):
        return AttentionTiles(64, 64, 128) if few or dim > 128 else AttentionTiles(128, 64, 256)
    for groups, registers in WARPGROUPS:
        rows = 64 * groups
        held = min((registers - dim // 2) * 4 // 3, (SHARED_BYTES // (2 * dim) - rows) // 4)
        if (groups == 1 or not few) and (groups < 3 or held >= MOST_KEYS):
            keys = min(held, MOST_KEYS)
            return AttentionTiles(rows, max(16, keys // 16 * 16), 128 * groups)
    return AttentionTiles()


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
    """Tiles that take the fewest cycles for sizes that are expected, by a model of Hopper; elsewhere as `attention_tiles`.

    Parameters
    ----------
    heads : batch, heads of queries and heads of keys.
    sizes : queries and keys.
    """
    queries, keys = sizes
    usual = attention_tiles(arch, dtype, dim, queries)
    if not on_hopper(arch) or tilewright.dtype(dtype).bits != 16:
        return usual
    assert arch is not None
    work = _Work(*heads, queries, keys, dim, causal, arch.cores)
    found = [(work.cycles(one), one) for one in (usual, *work.candidates())]
    least = min(cycles for cycles, _ in found)
    return next(one for cycles, one in found if cycles <= ALIKE * least)


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

    def candidates(self) -> Iterator[AttentionTiles]:
        """Tiles whose registers and shared memory suffice."""
        group = self.heads // self.kv_heads
        for groups, blocks in ((1, 1), (2, 1), (3, 1), (1, 2)):
            rows = 64 * groups
            most = self._most_keys(groups, blocks)
            if groups == 3 and most < MOST_KEYS:
                continue
            for keys in (width for width in WIDTHS if width <= most):
                for together in (False, True)[: 1 + (group > 1 and self.queries < rows)]:
                    for splits in (1, 2, 4, 8, 16, 32):
                        if splits == 1 or -(-self.keys // keys) >= 2 * splits:
                            yield AttentionTiles(rows, keys, 2 * rows, 2, blocks, together, splits)

    def _most_keys(self, groups: int, blocks: int) -> int:
        """Keys of a step for which warpgroups have registers, and a block shared memory."""
        registers = CONSUMING if blocks == 2 else {1: 240, 2: 240, 3: 160}[groups]
        room = (LARGEST if blocks == 1 else LARGEST // 2 - (1 << 10)) // (2 * self.dim)
        widest = BESIDE_KEYS if blocks == 2 else max(WIDTHS)
        return min((registers - BESIDE - self.dim // 2) * 4 // 3, (room - 64 * groups) // 4, widest)

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
        begin = TILE_BESIDE if tiles.blocks == 2 else TILE_AHEAD if self._loads_ahead(tiles, blocks) else TILE
        multiplying = START + waves * (turns * self._step(tiles) + begin)
        size = self.batch * self.dim * 2
        memory = size * (2 * self.queries * self.heads + 2 * self.keys * self.kv_heads) / MEMORY_RATE
        adding = 0.0
        if tiles.splits > 1:
            adding = ADDING + 2 * tiles.splits * self.batch * self.heads * self.queries * self.dim * 4 / MEMORY_RATE
        return max(multiplying, memory) + SHORTER * min(multiplying, memory) + adding

    def _step(self, tiles: AttentionTiles) -> float:
        """Cycles of a step of the blocks of a multiprocessor."""
        groups = tiles.threads // 128
        products, rest = self.dim * PRODUCT, EXPONENT_BESIDE if tiles.blocks == 2 else EXPONENT[groups]
        alone = groups == tiles.blocks == 1
        each = products + rest if alone else max(products, rest)
        return tiles.blocks * (STEP + tiles.block_M * tiles.block_N * each)

    def _loads_ahead(self, tiles: AttentionTiles, blocks: int) -> bool:
        """Whether the next tile's queries have a slot of their own (`passes/tile/second_slots.py`)."""
        held = (2 * tiles.block_M + 2 * tiles.num_stages * tiles.block_N) * self.dim * 2
        room = LARGEST - held - tiles.threads // 128 * BOXES
        return tiles.splits == 1 and blocks > self.cores and room >= 2 << 10

    def _steps(self, tiles: AttentionTiles, block: int, joined: int) -> int:
        """Steps of a block of rows, its share of them where several divide the keys."""
        seen = self.keys
        if self.causal and joined == 1:
            seen = max(0, min(self.keys, (block + 1) * tiles.block_M + self.keys - self.queries))
        steps = -(-seen // tiles.block_N)
        return -(-steps // tiles.splits)
