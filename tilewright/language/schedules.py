"""`T.WSSchedule` and its kin: which warps do what, in the words of programs that say so themselves.

The program means the same without them; the compiler divides the work by itself, so they are checked and then left.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tilewright.language.branches import BlockContext
from tilewright.language.buffers import BufferProxy
from tilewright.language.mistakes import NumberExpected, TileExpected
from tilewright.language.proxies import constant_within, describe
from tilewright.language.recording import called, in_kernel, word

WSID = called("WSID")("tl.ws_op_id")
"""The key of ``annotations`` under which a statement has a name."""


@called("WSSyncKind")
class WSSyncKind(enum.Enum):
    """What a role does at a pipeline."""

    PRODUCER_ACQUIRE, PRODUCER_COMMIT, CONSUMER_WAIT, CONSUMER_RELEASE = range(4)


@called("WSRole")
@dataclass(frozen=True)
class WSRole:
    """Neighbouring warps with one duty.

    Attributes
    ----------
    warps_lo, warps_hi : the first warp, and the one behind the last.
    max_nreg : registers of a thread; 0 leaves them.
    """

    name: str
    warps_lo: int = field(kw_only=True)
    warps_hi: int = field(kw_only=True)
    max_nreg: int = field(kw_only=True, default=0)


@called("WSPipeline")
@dataclass(frozen=True)
class WSPipeline:
    """Tiles that one role fills and another reads.

    Attributes
    ----------
    depth : how many of each there are.
    """

    name: str
    buffers: Sequence[object]
    depth: int


@called("WSInstr")
class WSInstr:
    """A step of a role."""


@called("WSOpRef")
@dataclass(frozen=True)
class WSOpRef(WSInstr):
    """The statement of a name."""

    id: str


@called("WSSync")
@dataclass(frozen=True)
class WSSync(WSInstr):
    """A role's statements in a software pipeline, a number of iterations ahead."""

    kind: WSSyncKind
    pipeline: str
    stage: int = 0

    @classmethod
    def producer_acquire(cls, pipeline: str, stage: int = 0) -> WSSync:
        """Wait until a tile may be filled."""
        return cls(WSSyncKind.PRODUCER_ACQUIRE, pipeline, stage)

    @classmethod
    def producer_commit(cls, pipeline: str, stage: int = 0) -> WSSync:
        """Say that it is filled."""
        return cls(WSSyncKind.PRODUCER_COMMIT, pipeline, stage)

    @classmethod
    def consumer_wait(cls, pipeline: str, stage: int = 0) -> WSSync:
        """Wait until a tile is filled."""
        return cls(WSSyncKind.CONSUMER_WAIT, pipeline, stage)

    @classmethod
    def consumer_release(cls, pipeline: str, stage: int = 0) -> WSSync:
        """Say that it has been read."""
        return cls(WSSyncKind.CONSUMER_RELEASE, pipeline, stage)


@called("WSScope")
@dataclass(frozen=True)
class WSScope:
    """What each role does in a loop, or in the kernel around all loops.

    Attributes
    ----------
    bodies : by the role's name; a text is the statement of that name.
    """

    ROOT: ClassVar[str] = "tl.ws_scope_root"
    id: str
    bodies: Mapping[str, Sequence[WSInstr | str]]


@called("WSSchedule")
@dataclass(frozen=True)
class WSSchedule:
    """Who does what in a kernel.

    Attributes
    ----------
    num_warps : of all roles.
    """

    num_warps: int
    roles: Sequence[WSRole]
    pipelines: Sequence[WSPipeline]
    scopes: Sequence[WSScope]

    def __post_init__(self) -> None:
        if self.num_warps < 1 or self.num_warps % 4:
            raise NumberExpected("num_warps of T.WSSchedule", "a multiple of 4", str(self.num_warps))


@word
def annotate_ws_schedule(schedule: object) -> None:
    """Accepted for TileLang's sake: the compiler divides the kernel's work among warps, and the program means the same.

    Parameters
    ----------
    schedule : a `WSSchedule`.

    Examples
    --------
    >>> T.annotate_ws_schedule(T.WSSchedule(4, [T.WSRole("all", warps_lo=0, warps_hi=4)], [], []))
    """
    in_kernel("T.annotate_ws_schedule")
    if not isinstance(schedule, WSSchedule):
        raise NumberExpected("the argument of T.annotate_ws_schedule", "a T.WSSchedule", describe(schedule))


@word
def annotate_ws_pipeline_depth(depth_map: Mapping[BufferProxy, int]) -> None:
    """Accepted for compatibility with TileLang: the compiler chooses the number of buffers.

    Parameters
    ----------
    depth_map : a number from 1 up for each tile.

    Examples
    --------
    >>> T.annotate_ws_pipeline_depth({shared: 2})
    """
    for buffer, depth in dict(depth_map).items():
        if not isinstance(buffer, BufferProxy):
            raise TileExpected("a key of T.annotate_ws_pipeline_depth", describe(buffer))
        constant_within(depth, "a depth of T.annotate_ws_pipeline_depth", 1, 64)


class NamedStatements(BlockContext):
    """The ``with`` frame of `ws_op`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


@word
def ws_op(op_id: str) -> NamedStatements:
    """``with T.ws_op("name"):`` names the statements in it, for `WSSchedule`.

    Parameters
    ----------
    op_id : a text.

    Examples
    --------
    >>> with T.ws_op("load"):
    ...     T.copy(A, shared)
    """
    if not isinstance(op_id, str) or not op_id:
        raise NumberExpected("the name of T.ws_op", "a text", describe(op_id))
    return NamedStatements()
