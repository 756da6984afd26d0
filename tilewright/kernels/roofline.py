"""The one model of speed: a kernel says what a launch of it does (`Work`), a machine what it does in a cycle (`Speed`),
and `cycles_of` how long that takes.

A multiprocessor takes one piece of work after the other, and all of them in waves. A step takes as long as its
products, as shared memory takes to be written and read for them, as the second-level cache takes to bring the operands,
or as the lanes take for what they work out beside the products, whichever is longest, a little more where two of them
are nearly as long, and a share of what lanes do that does not hide. A launch takes as long as the steps of its busiest
multiprocessor, or as memory takes for all operands, and a share of the shorter of the two. Long launches meet the power
limit, where bytes that move cost products.

Kernels know no machine: what they say is counted, or measured once in cycles that nothing hides (barriers, ends of
tiles), which are much the same on all machines. What cannot be counted is corrected by `matmul.tuning.tune`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.dtypes import ALL
from tilewright.machine import Arch, Rates
from tilewright.machine.nvidia import device_of

Number = Any
"""A number, or a column of them: one for each way to divide the work."""

KINDS = {"int8": 1, "bfloat16": 2, "tfloat32": 4, "float64": 8}
"""Bytes of operands, and the type of these that stands for all."""

REACHED = 0.80825
"""The share of memory's rate on a data sheet that a kernel's loads reach (H200)."""

BESIDE = 0.31
"""Share of the shorter of the two, products or memory, that the longer one does not hide."""

HEAT, HOT = 0.345, 1_800_000
"""How much slower products become, when they are at the power limit, that as many cycles bring operands; and cycles
until then."""

PARTNERS, CLUSTER = 0.02, 450
"""The share of its products that blocks of a cluster wait for one another where the power limit does not slow them down
anyway, and cycles that each doubling of a cluster that shares loads costs a launch."""

AGAIN = 0.51
"""The share of memory's time, where that is what a product waits for, that it costs that several clusters ask for what
is on its way."""

HIDDEN, SHALLOW = 2.0e-6, 0.8
"""Seconds of memory's rate whose bytes must be on their way at once, and what is lost where next to none are: the loss
grows with the square of what is missing (few rows, H200)."""

FIXUP, FIXUP_EACH, FIXUP_PEER, FIXUP_POWER = 5500, 0.43, 0.07, 0.77
"""Cycles in which blocks exchange partial sums in stream-K, for each sum of a tile, and for each of them that a further
block has made; they fall by this power of the part of a tile that a block has not (H200)."""

PIECES = 2000
"""Cycles that it costs besides where ranges end within tiles, so that a block has segments of two (W4A16, H200)."""

SPREAD, SPREAD_EACH = 2, 0.25
"""Tiles of a partial wave are shared with those of a whole one where so many times as many are no more than a wave; and
cycles of exchanging each sum of a tile then (54 kernels with and without it, H200, 28 November 2026: 1.05 times as fast
on average, the slowest 0.984; where more tiles are left, 35 kernels, 1.005 and 0.96)."""

POWER = 0.12
"""How much slower products are where all cores multiply all the time than where hardly any does: the clock follows what
the machine draws, more the more of it works, so it counts the square of the share of the cores that work."""

NEAR = 10
"""What a step waits for adds up where several take nearly as long, as the sum of these powers of them: loads that take
98% of the time of the products make a step 6% longer, those that take 70% make it no longer."""

EMPTY = 4
"""Cycles of the copy engine for a row of a box that it fills with zeros: more than for one that it brings."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A machine, as the model sees it.

    Attributes
    ----------
    products : multiplications of matrices in a cycle of a core, by the bytes of an operand.
    cache_bytes : size of the second-level cache.
    """

    cores: int
    rates: Rates
    products: tuple[tuple[int, float], ...]
    cache_bytes: float = 0

    @property
    def cache(self) -> float:
        """Bytes a cycle that the second-level cache gives each core where all of them ask."""
        return min(self.rates.port, self.rates.cache / self.cores)

    @property
    def memory(self) -> float:
        """Bytes a cycle that memory gives all of them."""
        return self.rates.bytes / self.rates.cycles * REACHED

    def product_rate(self, size: int) -> float:
        """Multiplications a cycle of operands of so many bytes; where the machine has none, of the next wider ones,
        which they become there, or its lanes'."""
        return next((rate for wide, rate in self.products if wide >= size), self.rates.lanes)

    def resident(self, cluster: Number, stay: bool = False) -> Number:
        """Blocks in clusters of so many that run at once, one a core; numbers or columns of them.

        Where blocks `stay` and none may wait for another to end, a cluster of more than two is left out: devices differ
        by one.
        """
        shares = dict(self.rates.clusters)

        def count(blocks: int) -> int:
            fits = int(self.cores * shares[blocks]) // blocks * blocks
            return max(blocks, fits - blocks * (stay and blocks > 2))

        if isinstance(cluster, np.ndarray):
            return np.array([count(int(one)) for one in cluster])
        return count(cluster)


@functools.lru_cache(maxsize=256)
def speed_of(arch: Arch | None) -> Speed:
    """The rates of a machine; those of an H200 for a GPU without known rates, and where there is no GPU."""
    if arch is None or not arch.has_threads:
        return HOPPER
    sizes = {kind: arch.product_rate(ALL[kind], ALL[kind]) / 2 for kind in KINDS}
    products = tuple((KINDS[kind], rate) for kind, rate in sizes.items() if rate)
    return Speed(arch.cores, arch.rates or HOPPER.rates, products, arch.l2_bytes)


def hopper_speed(cores: int | None = None) -> Speed:
    """A Hopper with so many multiprocessors; by default an H200."""
    device = device_of("sm_90", cores)
    assert device is not None
    of = dict(device.rates.products)
    products = tuple((size, of[kind] / 2) for kind, size in KINDS.items())
    return Speed(cores or device.cores, device.rates, products, device.l2_bytes)


HOPPER = hopper_speed()
"""An H200, for which kernels are made where nobody says a machine."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch does.

    Attributes
    ----------
    size : bytes of an operand of the products.
    blocks, resident : pieces of work, and blocks that run at once.
    waves : pieces that the busiest block takes: of stream-K not a whole number.
    steps : of a piece.
    products : multiplications of a step, those of an instruction that works at a part of its rate as more.
    shared : bytes of shared memory that a step writes and reads.
    loads : bytes that a step's block asks the second-level cache for.
    empty : rows of a step's boxes beyond the tensor's end, which the copy engine fills with zeros.
    lanes : operations of a step beside its products, as many as a core has lanes for in a cycle count as one cycle.
    apart : the part of the shorter, products or lanes, that the longer does not hide.
    fixed : cycles of a step that nothing hides.
    serial : cycles of a step of one consumer, without overlap.
    storing : cycles in which one consumer stores its sums while another multiplies.
    ends : cycles between two pieces of a block.
    exchange : cycles in which blocks exchange partial sums.
    memory, ahead : bytes from and to memory, and those that several clusters load at the same time.
    in_flight : bytes of memory that a block has in flight; 0 where these are always enough.
    beside : the part of the shorter, all of that or memory, that the longer does not hide.
    cluster : blocks that share loads.
    begins : cycles before the first step and behind the last, beyond the machine's launch.
    busy : the part of the cores that work at a time; None where all pieces are whole.
    """

    size: int
    blocks: Number
    resident: Number
    waves: Number
    steps: Number
    products: Number
    memory: Number
    shared: Number = 0.0
    loads: Number = 0.0
    empty: Number = 0.0
    lanes: Number = 0.0
    apart: Number = 0.0
    fixed: Number = 0.0
    serial: Number = 0.0
    storing: Number = 0.0
    ends: Number = 0.0
    exchange: Number = 0.0
    ahead: Number = 0.0
    in_flight: Number = 0.0
    beside: Number = BESIDE
    cluster: Number = 1
    begins: Number = 0.0
    busy: Number | None = None


def cycles_of(work: Work, speed: Speed) -> Number:
    """Estimated cycles of a launch."""
    products = work.products / speed.product_rate(work.size)
    loads = work.loads / speed.cache * np.minimum(1.0, work.blocks / work.resident)
    shared, brought = work.shared / speed.rates.shared, loads + EMPTY * work.empty
    fed = (products**NEAR + shared**NEAR + brought**NEAR) ** (1 / NEAR)
    fed = np.maximum(fed, work.serial)
    lanes = work.lanes / speed.rates.lanes
    step = np.maximum(fed, lanes) + work.apart * np.minimum(fed, lanes) + work.fixed
    busy = np.minimum(1.0, work.blocks / (speed.cores * work.waves)) if work.busy is None else work.busy
    step = step * (1 + POWER * busy**2 * np.minimum(1.0, products / step))
    piece = work.steps * step
    piece = np.maximum(piece, (piece + work.storing) / 2)
    multiplying = work.waves * piece
    hot = np.minimum(1.0, multiplying / HOT)
    heat = HEAT * work.waves * work.steps * loads * hot
    multiplying = multiplying * (1 + np.where(work.cluster > 1, PARTNERS * (1 - hot), 0.0)) + heat
    memory = work.memory / speed.memory * _shallow(work, speed)
    again = AGAIN * work.ahead / speed.memory * np.minimum(1.0, memory / multiplying)
    longer, shorter = np.maximum(multiplying, memory), np.minimum(multiplying, memory)
    ends = work.ends * np.maximum(0.0, work.waves - 1) + work.exchange + work.begins
    return longer + work.beside * shorter + again + speed.rates.launch + ends + CLUSTER * np.log2(work.cluster)


def _shallow(work: Work, speed: Speed) -> Number:
    """How much longer memory takes where few bytes are on their way: blocks that do not run at once begin when others
    end, and of the last ones there may be few."""
    enough = HIDDEN * speed.rates.cycles * speed.memory
    full, rest = np.divmod(work.blocks, work.resident)
    lost = [SHALLOW * np.maximum(0.0, 1 - count * work.in_flight / enough) ** 2 for count in (work.resident, rest)]
    return 1 + np.where(work.in_flight, full * work.resident * lost[0] + rest * lost[1], 0.0) / work.blocks


def shared_tiles(tiles: Number, groups: Number) -> Number:
    """How many tiles groups of blocks share: those of the partial wave, and where they are few those of a whole one."""
    left = tiles % groups
    return left + np.where((left > 0) & (left * SPREAD <= groups) & (tiles >= groups), groups, 0)


def stream_k_cost(tiles: Number, steps: Number, groups: Number, sums: Number) -> tuple[Number, Number, Number]:
    """Stream-K: the tiles that each group of blocks computes alone, its steps along K of shared ones, and the cycles in
    which groups exchange `sums` partial sums of a tile."""
    shared = shared_tiles(tiles, groups)
    share = np.where(shared > 0, np.maximum(ceil_div(shared * steps, groups), least_steps(steps)), 0)
    peers = ceil_div(steps, np.maximum(share, 1)) - 1
    part = share / steps
    each = FIXUP_EACH + FIXUP_PEER * np.maximum(0, peers - 1)
    exchange = (FIXUP + each * sums) * np.maximum(0.0, 1 - part) ** FIXUP_POWER
    exchange = exchange + np.where(part > 1, SPREAD_EACH * sums, 0.0)
    exchange = exchange + np.where(steps % np.maximum(share, 1) > 0, PIECES, 0)
    return (tiles - shared) // groups, share, np.where((shared > 0) & (share != steps), exchange, 0.0)


def least_steps(steps: Number) -> Number:
    """The fewest steps along K that a group takes of a tile: the group that stores it adds the partial sums of the
    others one after the other, each of which takes about half a step.

    Examples
    --------
    >>> int(least_steps(26)), int(least_steps(1))
    (3, 0)
    """
    return np.sqrt(steps // 2).astype(int)


def ceil_div(count: Any, size: Any) -> Any:
    """How many times `size` covers `count`; numbers or columns of them."""
    return -(-count // size)
