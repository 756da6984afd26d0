"""How tiles are moved: what authors ask for and passes choose. None of it changes a number."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.nodes import UNPRINTED, Buffer
from tilewright.ops.gemm_plan import GemmPlan

TMA, BULK = "tma", "bulk"
"""What `CopySchedule.prefer` says of a copy that the engine makes: boxes of a tensor, or bytes in one piece."""

ENGINE = (TMA, BULK)

CP_ASYNC, SYNC, THREADS = "cp_async", "sync", "threads"
"""What it says of threads: they start pieces, they load and store, or whichever of both can be done."""

QUADS = "quads"
"""What it says of a copy from global memory into the right operand of a matrix instruction that moves 16 bytes at once:
four lanes exchange words afterwards."""

OWN = "own"
"""What it says of a transposition: each thread has blocks of whole words, and transposes them among its registers."""

SLOTS = f"{CP_ASYNC}_slots"
"""Token of copies whose arrivals a channel counts."""

BY_HAND = f"{CP_ASYNC}_by_hand"
"""The token of what authors start and wait for by themselves."""

TMA_LOADS = "tma"
"""The token of loads by the engine that the author's barriers count."""

TMA_STORES = "tma_store"
"""The token of the author's copies out of shared tiles by the engine."""


@dataclass(frozen=True, slots=True)
class Staging:
    """How a fragment leaves through shared memory.

    Attributes
    ----------
    boxes : shared boxes, those of a warpgroup one after the other.
    width : columns of the accumulator that a box has; where it leaves transposed they are the box's rows.
    count : boxes of a warpgroup.
    plan : of the gemm whose accumulator's layout the fragment has.
    is_first : whether nothing can have left through the boxes before.
    """

    boxes: Buffer
    width: int
    count: int
    plan: GemmPlan
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class CopySchedule:
    """Hints of one copy or transposition. Programs print them as operands of it.

    Attributes
    ----------
    coalesced_width : elements a thread moves at once, where the author insists; else None.
    prefer : the author's choice of instruction, then what `select_copies` chose: a word of the above, or None.
    eviction : ``"evict_first"``, ``"evict_last"``, ``"evict_normal"`` or None: a hint to the L2 cache.
    multicast : all blocks of the cluster make the very same copy, so that each may load a part of it for all.
    peers : where not all of them do: of how many blocks each is one that do, and how far apart their ranks are, the
        distance first.
    staging : how the engine stores a fragment.
    prefetch : bytes that cp.async advises the L2 cache to fetch around each piece: 64, 128, 256 or None.
    """

    coalesced_width: int | None = None
    prefer: str | None = None
    eviction: str | None = None
    multicast: bool = False
    peers: tuple[int, int] | None = None
    prefetch: int | None = None
    staging: Staging | None = field(default=None, metadata=UNPRINTED)

    @property
    def by_engine(self) -> bool:
        """Whether the copy engine moves the tile."""
        return self.prefer in ENGINE
