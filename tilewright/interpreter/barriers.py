"""Barriers that authors handle by hand while a program runs: mbarriers, named barriers, barriers of clusters; and how
far the roles of channels have come.

Copies land where they are issued, so that bytes announced and bytes landed meet at once; what is left to wait for are
threads, and blocks that load for others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import BarrierMisuse, InternalError, RolesDeadlocked
from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.ir.nodes import Call, Channel, Const, Expr, Region

Waiting = Generator[None, None, None]


@dataclass(slots=True)
class Barrier:
    """One mbarrier.

    Attributes
    ----------
    count : arrivals that a phase needs.
    left : those of them that are missing in this phase.
    bytes : announced and not landed; negative where they landed first.
    phase : how many phases are complete.
    """

    name: str
    count: int
    left: int
    bytes: int = 0
    phase: int = 0

    def arrive(self, threads: int) -> None:
        if threads > self.left:
            raise BarrierMisuse(
                f"{threads} threads arrive at {self.name} at once, but its phase waits for {self.left} of {self.count}",
                hint="make it for as many arrivals, or let fewer threads arrive",
            )
        self.left -= threads
        self._settle()

    def announce(self, count: int) -> None:
        self.bytes += count
        self._settle()

    def _settle(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.phase += 1
            self.left = self.count

    def passes(self, parity: int) -> bool:
        """Whether the phase of this parity is complete."""
        return self.phase % 2 != parity

    def describe(self, parity: int) -> str:
        missing = f"{self.left} of {self.count} arrivals" if self.left else f"{self.bytes} bytes"
        return f"parity {parity} of {self.name}, whose phase {self.phase} lacks {missing}"


@dataclass(slots=True)
class NumberedBarrier:
    """A barrier of the block that has a number."""

    arrived: int = 0
    times: int = 0

    def arrive(self, number: int, threads: int, count: int) -> None:
        self.arrived += threads
        if self.arrived > count:
            raise BarrierMisuse(
                f"{self.arrived} threads come to the named barrier {number}, which waits for {count}",
                hint="write the same arrive_count at all its places: all threads that wait or arrive there",
            )
        if self.arrived == count:
            self.arrived, self.times = 0, self.times + 1


def executing(state: Evaluator) -> int:
    """How many threads execute the statement at hand."""
    if not state.lanes:
        return math.prod(state.threads)
    return int(np.count_nonzero(state.active))


def barriers_of(state: Evaluator, region: Region, *more: object, rows: Any = None) -> Iterator[tuple[Any, ...]]:
    """The barriers that a statement's threads name, each with how many do, and with the values of `more` there."""
    row = (state.barriers if rows is None else rows).get(region.buffer)
    if row is None:
        raise InternalError(f"the barriers {region.buffer.name} are used but not made", span=state.span)
    values = [state.value(region.starts[0]), *more]
    if not any(isinstance(value, np.ndarray) and value.ndim for value in values):
        yield (_at(row, int(values[0]), region), executing(state), *values[1:])
        return
    spread = [np.broadcast_to(value, state.lanes)[state.active] for value in values]
    kinds, counts = np.unique(np.stack([part.astype(np.int64) for part in spread]), axis=1, return_counts=True)
    for place in range(kinds.shape[1]):
        yield (_at(row, int(kinds[0, place]), region), int(counts[place]), *map(int, kinds[1:, place]))


def _at(row: list[Barrier], index: int, region: Region) -> Barrier:
    if not 0 <= index < len(row):
        raise BarrierMisuse(f"there is no {region.buffer.name}[{index}]: the row has {len(row)}")
    return row[index]


def _parts(node: Call) -> tuple[Region, list[Expr]]:
    region, *rest = node.arguments
    assert isinstance(region, Region)
    return region, [part for part in rest if isinstance(part, Expr)]


# What happens at once -----------------------------------------------------------------------------


def _begin(state: Any, node: Call) -> Waiting:
    """Barriers come to be; where other blocks use them, all blocks meet before anyone does."""
    region, counts = _parts(node)
    numbers = [int(count.value) for count in counts if isinstance(count, Const)]
    name = region.buffer.name
    state.barriers[region.buffer] = [
        Barrier(f"{name}[{place}]" if len(numbers) > 1 else name, count, count) for place, count in enumerate(numbers)
    ]
    if "cluster" in node.arguments:
        yield from _cluster_sync(state, node)


def _arrive(state: Evaluator, node: Call) -> int:
    for barrier, threads in barriers_of(state, _parts(node)[0]):
        barrier.arrive(threads)
    state.woken += 1
    return 0


def _arrive_in_block(state: Evaluator, node: Call) -> int:
    region, (rank,) = _parts(node)
    ranks = np.asarray(state.value(rank))
    for number in np.unique(np.broadcast_to(ranks, state.lanes)[state.active] if state.lanes else ranks):
        if not 0 <= number < len(state.peer_barriers):
            raise BarrierMisuse(f"there is no block {number} in a cluster of {len(state.peer_barriers)}")
        chosen = np.logical_and(state.active, ranks == number) if state.lanes else state.mask
        with state.masked(chosen):
            for barrier, threads in barriers_of(state, region, rows=state.peer_barriers[int(number)]):
                barrier.arrive(threads)
    state.woken += 1
    return 0


def _expect(arrives: bool) -> Callable[[Evaluator, Call], int]:
    def run(state: Evaluator, node: Call) -> int:
        region, (number,) = _parts(node)
        for barrier, threads, count in barriers_of(state, region, state.value(number)):
            barrier.bytes += int(count) * threads
            if arrives:
                barrier.arrive(threads)
        state.woken += 1
        return 0

    return run


def _arrive_named(state: Evaluator, node: Call) -> int:
    number, count = (int(part.value) for part in node.arguments if isinstance(part, Const))
    state.barriers.setdefault(number, NumberedBarrier()).arrive(number, executing(state), count)
    state.woken += 1
    return 0


SPECIAL_CALLS["signal_arrive"] = SPECIAL_CALLS["async_copy_signal_arrive_noinc"] = _arrive
SPECIAL_CALLS["signal_arrive_cluster"] = _arrive_in_block
SPECIAL_CALLS["signal_expect_tx"] = _expect(False)
SPECIAL_CALLS["signal_arrive_expect_tx"] = _expect(True)
SPECIAL_CALLS["named_barrier_arrive"] = _arrive_named
SPECIAL_CALLS["cluster_rank"] = lambda state, node: state.rank


# What waits ---------------------------------------------------------------------------------------


def _wait(state: Any, node: Call) -> Waiting:
    region, (parity,) = _parts(node)
    wanted = list(barriers_of(state, region, state.value(parity)))
    for barrier, _, bit in wanted:
        while not barrier.passes(int(bit)):
            state.awaited = barrier.describe(int(bit))
            yield
    state.awaited = ""
    state.woken += 1


def _sync_named(state: Any, node: Call) -> Waiting:
    number, count = (int(part.value) for part in node.arguments if isinstance(part, Const))
    barrier = state.barriers.setdefault(number, NumberedBarrier())
    before = barrier.times
    _arrive_named(state, node)
    while barrier.times == before:
        state.awaited = f"the named barrier {number}, to which {barrier.arrived} of {count} threads came"
        yield
    state.awaited = ""
    state.woken += 1


def _cluster_arrive(state: Any, node: Call) -> None:
    state.cluster_arrivals[state.rank, state.role] = state.cluster_arrivals.get((state.rank, state.role), 0) + 1
    state.woken += 1


def _cluster_wait(state: Any, node: Call) -> Waiting:
    number = state.cluster_arrivals.get((state.rank, state.role), 0)
    lines = [(rank, role) for rank in range(max(1, len(state.peers))) for role in state.others_in_block()]
    while any(state.cluster_arrivals.get(line, 0) < number for line in lines):
        state.awaited = "a barrier of the cluster"
        yield
    state.awaited = ""
    state.woken += 1


def _cluster_sync(state: object, node: Call) -> Waiting:
    _cluster_arrive(state, node)
    yield from _cluster_wait(state, node)


def _only_arrive(state: object, node: Call) -> Waiting:
    _cluster_arrive(state, node)
    yield from ()


WAITING_CALLS: dict[str, Callable[[Any, Call], Waiting]] = {
    "begin_barriers": _begin, "signal_wait": _wait, "named_barrier_sync": _sync_named, "cluster_sync": _cluster_sync,
    "cluster_wait": _cluster_wait,
    "cluster_arrive": _only_arrive, "cluster_arrive_relaxed": _only_arrive, "grid_sync": _cluster_sync,
}  # fmt: skip
"""Calls that may wait for other lines of execution; they stand alone as statements."""


Line = tuple[str, int]
"""A role's name and the number of its instance."""


class ChannelState:
    """The state of one channel of one block: iterations that each writer published and each reader released.

    Parameters
    ----------
    instances : of each role, by its name.
    """

    def __init__(self, channel: Channel, instances: Mapping[str, int]) -> None:
        self.channel = channel
        self.published = {(name, i): 0 for name in channel.writers for i in range(instances[name])}
        self.released = {(name, i): 0 for name in channel.readers for i in range(instances[name])}
        self.read: set[int] = set()
        """What some instance has released of a channel whose readers alternate."""

    def is_free(self, role: Line, number: int) -> bool:
        """Whether a writer may fill the slot of iteration `number`."""
        if self.channel.alternate:
            return number < self.channel.stages or number - self.channel.stages in self.read
        return all(count > number - self.channel.stages for count in self._others(self.released, role))

    def is_full(self, role: Line, number: int) -> bool:
        """Whether a reader may read the slot of iteration `number`."""
        return all(count > number for count in self._others(self.published, role))

    def _others(self, counts: dict[Line, int], role: Line) -> Iterable[int]:
        """How far those have come that share slots with a line of execution: itself alone where slots are private."""
        return [counts[role]] if self.channel.is_private else counts.values()

    def pass_on(self, role: Line, number: int, verb: str) -> None:
        """A role publishes or releases iteration `number`.

        Raises
        ------
        RolesDeadlocked : it is not the role's next one.
        """
        if self.channel.alternate and verb == "release":
            self._read(role, number)
            return
        counts = self.published if verb == "publish" else self.released
        if counts[role] != number:
            raise RolesDeadlocked(
                f"the role {role[0]!r} means to {verb} iteration {number} of {self.channel.name!r}, but its next "
                f"is {counts[role]}",
                hint="every role goes through the iterations 0, 1, 2, ... of a channel, one after the other",
            )
        counts[role] += 1

    def _read(self, role: Line, number: int) -> None:
        """An instance of readers that alternate releases iteration `number`; the others leave it out."""
        if number in self.read or number < self.released[role]:
            raise RolesDeadlocked(
                f"the role {role[0]!r} releases iteration {number} of {self.channel.name!r} for the second time",
                hint="each iteration of a channel whose readers alternate belongs to one of them",
            )
        self.read.add(number)
        self.released[role] = number + 1
