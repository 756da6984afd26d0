"""Which shared tiles a producer's warps can fill ahead, and the channels by which consumers get them.

A producer can fill a tile if every statement that writes it only loads data; if its writers and readers stand in one
sequence, its *home*, the writers first and covering the tile; and if nothing leaves the home in between. Successive
loops that use the same tiles are homes of their own, and slots are counted on from one to the next. Tiles with the same
live range share a channel; tiles that are released at different points do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.interpreter.over_threads import over_threads
from tilewright.ir import LOOPS, declared, find, header, leaving, own_writes, root
from tilewright.ir import nodes as ir
from tilewright.ops import Copy
from tilewright.passes.tile.pipelines.pipeline_plan import said
from tilewright.passes.tile.pipelines.tile_views import sees_all, views_of
from tilewright.passes.tile.roles.role_analysis import RoleAnalysis, RoleSite, operands


@dataclass(frozen=True, slots=True)
class LiveRange:
    """The statements of a sequence from the first that fills a tile to the last that reads it.

    Attributes
    ----------
    home : the sequence.
    filled, read : first and last position in it of the statements that fill, and that read.
    """

    home: ir.Seq
    filled: tuple[int, int]
    read: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Link:
    """Tiles of one channel, with their live ranges: several where successive loops use the same tiles.

    Attributes
    ----------
    stages : slots of their ring.
    late : whether only statements behind the loops read them: they are loaded last.
    """

    tiles: tuple[ir.Buffer, ...]
    ranges: tuple[LiveRange, ...]
    stages: int
    late: bool = False

    def at(self, home: ir.Seq) -> LiveRange | None:
        """The live range in a sequence."""
        return next((one for one in self.ranges if one.home is home), None)


@dataclass(slots=True)
class ProducerPlan:
    """The loads of a kernel that a producer executes.

    Attributes
    ----------
    moved : the leaves that the producer executes.
    prepared : shared tiles that it reads, filled by all warps before the roles begin.
    scalars : mutable scalars of which it has its own.
    refused : loads of pipelined loops that stay where they are: the statement and the reason.
    """

    analysis: RoleAnalysis
    links: list[Link]
    moved: set[ir.Statement]
    prepared: set[ir.Buffer]
    scalars: set[ir.Buffer]
    refused: list[tuple[ir.Statement, str]]


def plan_producer(analysis: RoleAnalysis, wanted: Mapping[ir.Pipelined, int], behind: bool = True) -> ProducerPlan:
    """Plan which tiles of a kernel the producer fills.

    Parameters
    ----------
    wanted : the loops that are to overlap, with the slots of their rings.
    behind : whether tiles count too that are read behind these loops alone.
    """
    return _Planner(analysis, wanted, behind).run()


@dataclass(slots=True)
class _Planner:
    analysis: RoleAnalysis
    wanted: Mapping[ir.Pipelined, int]
    behind: bool
    refused: dict[ir.Buffer, str] = field(default_factory=dict)
    prepared: set[ir.Buffer] = field(default_factory=set)
    scalars: set[ir.Buffer] = field(default_factory=set)

    def run(self) -> ProducerPlan:
        tiles = [tile for tile in declared(self.analysis.kernel.body, "shared") if self._is_wanted(tile)]
        while True:
            left = [tile for tile in tiles if tile not in self.refused]
            moved = self.analysis.loads_into(left)
            places = [self._place(tile, moved) for tile in left]
            found = {tile: place for tile, place in zip(left, places, strict=True) if not isinstance(place, str)}
            self.refused.update((t, place) for t, place in zip(left, places, strict=True) if isinstance(place, str))
            if all(tile not in self.refused for tile in left):
                self._values(moved)
            if all(tile not in self.refused for tile in left):
                return ProducerPlan(
                    self.analysis, list(_grouped(found)), moved, self.prepared, self.scalars, list(self._refusals())
                )

    # Candidates -----------------------------------------------------------------------------------

    def _is_wanted(self, tile: ir.Buffer) -> bool:
        """Whether a loop that is to overlap reads what global memory fills, or stands before all that do."""
        writers, readers = self.analysis.writers(tile), self.analysis.readers(tile)
        if not any(self._is_load(site) for site in writers) or not readers:
            return False
        return self._is_read_in_loops(readers) or (self.behind and self._is_late(writers, readers))

    def _is_read_in_loops(self, readers: Iterable[RoleSite]) -> bool:
        return any(one in self.wanted for site in readers for one in site.around())

    def _is_late(self, writers: Sequence[RoleSite], readers: Sequence[RoleSite]) -> bool:
        """Whether a loop that is to overlap stands between the copies that fill a tile and those who read it."""
        home = _common([*writers, *readers])
        filled, read = ([_position(site, home) for site in sites] for sites in (writers, readers))
        between = home.statements[max(filled) + 1 : min(read)]
        copied = all(isinstance(site.statement, Copy) and site.steps[-1][0] is home for site in writers)
        return copied and any(one in self.wanted for part in between for one in find(part, ir.Pipelined))

    def _is_load(self, site: RoleSite) -> bool:
        """Whether a statement brings data from global memory, not from tiles that are filled on the way."""
        reads = self.analysis.effects[site.statement].reads
        on_the_way = (one for one in reads if one.scope == "shared" and not self.analysis.is_early(one))
        return any(one.scope == "global" for one in reads) and next(on_the_way, None) is None

    # One tile -------------------------------------------------------------------------------------

    def _place(self, tile: ir.Buffer, moved: set[ir.Statement]) -> Link | str:
        """Where a tile is handed over, or why it cannot be."""
        analysis = self.analysis
        writers, readers = analysis.writers(tile), analysis.readers(tile)
        parts = (part for site in writers for part in find(site.statement, ir.Statement))
        filled = {one for part in parts for one in own_writes(part)}
        for view in views_of(analysis.kernel):
            if root(view) is tile and not sees_all(view):
                return (
                    f"{tile.name} is also {'filled' if view in filled else 'used'} as {view.name}, which has "
                    "fewer bytes"
                )
        stays = next((site.statement for site in writers if site.statement not in moved), None)
        if stays is not None:
            return f"{said(stays)} writes {tile.name} from more than tensors that the kernel only reads"
        found = self._ranges(tile, writers, readers)
        if isinstance(found, str):
            return found
        late = not self._is_read_in_loops(readers)
        return Link((tile,), tuple(found), max(self._stages(writer) for writer in writers), late)

    def _ranges(
        self, tile: ir.Buffer, writers: Sequence[RoleSite], readers: Sequence[RoleSite]
    ) -> list[LiveRange] | str:
        """Where a tile is filled and read: in one sequence, or in each of several parts of it for itself."""
        if not writers or not readers:
            return f"{tile.name} carries values from one iteration to the next"
        home = _common([*writers, *readers])
        filled = [_position(site, home) for site in writers]
        read = [_position(site, home) for site in readers]
        parts = sorted({*filled, *read})
        if max(filled) >= min(read):
            groups = [
                [[site for site in sites if _position(site, home) == part] for sites in (writers, readers)]
                for part in parts
            ]
            if len(parts) == 1:
                groups = _by_branch(writers, readers, home)
            if len(groups) == 1:
                return f"{tile.name} carries values from one iteration to the next"
            found: list[LiveRange] = []
            for mine in groups:
                inner = self._ranges(tile, mine[0], mine[1])
                if isinstance(inner, str):
                    return inner
                found += inner
            return found
        certain = [list(_written(site.statement, tile)) if site.steps[-1][0] is home else [] for site in writers]
        if not _bits(tile, itertools.chain(*certain)).all():
            return f"not all of {tile.name} is filled where it is read"
        again = _filled_again(tile, zip(writers, certain, strict=True))
        if again is not None:
            return f"{said(again.statement)} writes to {tile.name} where a copy into it may be under way"
        leaving = self._leaves(home, min(filled), max(read))
        if leaving is not None:
            return f"{said(leaving)} may leave before {tile.name} is read"
        return [LiveRange(home, (min(filled), max(filled)), (min(read), max(read)))]

    def _stages(self, writer: RoleSite) -> int:
        loops = [self.wanted[one] for one in writer.around() if isinstance(one, ir.Pipelined) and one in self.wanted]
        return loops[-1] if loops else 1

    def _leaves(self, home: ir.Seq, first: int, last: int) -> ir.Statement | None:
        """A statement that leaves a sequence between two positions."""
        return next((node for statement in home.statements[first : last + 1] for node in leaving(statement)), None)

    # Values ---------------------------------------------------------------------------------------

    def _values(self, moved: set[ir.Statement]) -> None:
        """Refuse tiles whose loads need what only the work computes."""
        self.prepared, self.scalars = set(), set()
        for site in self.analysis.sites:
            if site.statement not in moved:
                continue
            prepared = {one for one in self.analysis.effects[site.statement].reads if one.scope == "shared"}
            seen: set[object] = set()
            reason = self.analysis.obstacle(self._needed(site), prepared, seen)
            if reason is not None:
                self.refused.update((one, reason) for one in self._reached(site.statement, moved))
            self.prepared |= prepared
            self.scalars |= {one for one in seen if isinstance(one, ir.Buffer)}
        for tile in self.prepared:
            self.refused.setdefault(tile, "loads of others depend on it")

    def _needed(self, site: RoleSite) -> list[ir.Expr]:
        """What must be known to execute a leaf: its operands, where its tensors lie, the conditions around it, those
        that leave its loops."""
        around = list(site.around())
        for other in self.analysis.sites:
            if isinstance(other.statement, (ir.Break, ir.Continue)) and any(
                one in around for one in other.around() if isinstance(one, LOOPS)
            ):
                around += other.around()
        places = self.analysis.places(site.statement)
        return [*operands(site.statement), *places, *(value for one in around for value in header(one))]

    def _reached(self, leaf: ir.Statement, moved: set[ir.Statement]) -> set[ir.Buffer]:
        """The tiles that a moved leaf has a part in."""
        buffers = set(self.analysis.effects[leaf].writes)
        while True:
            more = {
                one
                for other in moved
                if self.analysis.effects[other].reads & buffers
                for one in self.analysis.effects[other].writes
            }
            if more <= buffers:
                return {one for one in buffers if one.scope == "shared"}
            buffers |= more

    # What is said ---------------------------------------------------------------------------------

    def _refusals(self) -> Iterator[tuple[ir.Statement, str]]:
        """The loads of wanted loops that stay, each once."""
        for tile, reason in self.refused.items():
            for site in self.analysis.writers(tile):
                if any(one in self.wanted for one in site.around() if isinstance(one, ir.Pipelined)):
                    yield site.statement, reason
                    break


def _common(found: Iterable[RoleSite]) -> ir.Seq:
    """The innermost sequence that holds all sites."""
    first, *rest = found
    home = first.steps[0][0]
    for body, _ in first.steps:
        if all(site.position_in(body) is not None for site in rest):
            home = body
    return home


def _by_branch(writers: Sequence[RoleSite], readers: Sequence[RoleSite], home: ir.Seq) -> list[list[list[RoleSite]]]:
    """Writers and readers by the ways of the condition in `home` that they all stand in, of which one is gone."""

    def way(site: RoleSite) -> ir.Seq | None:
        place = next(place for place, (body, _) in enumerate(site.steps) if body is home)
        return site.steps[place + 1][0] if place + 1 < len(site.steps) else None

    ways = list(dict.fromkeys(id(way(site)) for site in (*writers, *readers)))
    return [[[site for site in sites if id(way(site)) == one] for sites in (writers, readers)] for one in ways]


def _position(site: RoleSite, home: ir.Seq) -> int:
    position = site.position_in(home)
    assert position is not None
    return position


def _grouped(links: Mapping[ir.Buffer, Link]) -> Iterator[Link]:
    """Links with the same live ranges, joined."""
    groups: dict[Any, list[Link]] = {}
    for link in links.values():
        read = tuple((one.home, one.read) for one in link.ranges)
        groups.setdefault((read, link.stages, link.late), []).append(link)
    for members in groups.values():
        ranges = []
        for alike in zip(*(one.ranges for one in members), strict=True):
            filled = min(one.filled[0] for one in alike), max(one.filled[1] for one in alike)
            ranges.append(replace(alike[0], filled=filled))
        yield replace(members[0], tiles=tuple(tile for one in members for tile in one.tiles), ranges=tuple(ranges))


# What is covered ----------------------------------------------------------------------------------

Part = tuple[ir.Buffer, tuple[Any, ...]]
"""Elements of a tile: the tile or a view of it, and indices of NumPy."""


def _filled_again(tile: ir.Buffer, writers: Iterable[tuple[RoleSite, list[Part]]]) -> RoleSite | None:
    """A writer of bits that one before it writes, too: whoever fills tiles ahead does not wait between the two.

    What a writer certainly writes is given with it; one that may write more may write everything.
    """
    filled = _bits(tile, ())
    for site, parts in writers:
        mine = _bits(tile, parts) if len(parts) == _writes(site.statement, tile) else ~_bits(tile, ())
        if (filled & mine).any():
            return site
        filled |= mine
    return None


def _writes(leaf: ir.Statement, tile: ir.Buffer) -> int:
    """How many places of a leaf write to a tile."""
    if isinstance(leaf, ir.TileOperator):
        return sum(root(region.buffer) is tile for region in leaf.effects().writes)
    return sum(root(store.buffer) is tile for store in find(leaf, ir.Store))


def _bits(tile: ir.Buffer, parts: Iterable[Part]) -> np.ndarray:
    """Which bits of a tile are meant by elements of it and of its views."""
    written: dict[ir.Buffer, np.ndarray] = {}
    for buffer, indices in parts:
        written.setdefault(buffer, np.zeros(buffer.static_shape, bool))[indices] = True
    bits = np.zeros(tile.size * tile.dtype.stored_bits, bool)
    for buffer, elements in written.items():
        bits |= np.repeat(elements.reshape(-1), buffer.dtype.stored_bits)
    return bits


def _written(leaf: ir.Statement, tile: ir.Buffer) -> Iterator[Part]:
    """The elements of a tile that a leaf certainly writes, whatever happens."""
    if isinstance(leaf, ir.Parallel):
        values = _loop_values(leaf)
        for statement in leaf.body.statements if values else ():
            if isinstance(statement, ir.Let):
                value = over_threads(statement.value, values)
                values.update({} if value is None else {statement.var: np.asarray(value)})
            elif isinstance(statement, ir.Store) and _shows(statement.buffer, tile):
                indices = [over_threads(index, values) for index in statement.indices]
                if all(one is not None for one in indices):
                    yield statement.buffer, tuple(indices)
    elif isinstance(leaf, ir.TileOperator):
        for region in leaf.effects().writes:
            box = _box(region) if _shows(region.buffer, tile) else None
            if box is not None:
                yield region.buffer, box


def _shows(buffer: ir.Buffer, tile: ir.Buffer) -> bool:
    return buffer is tile or (root(buffer) is tile and sees_all(buffer))


def _box(region: ir.Region) -> tuple[slice, ...] | None:
    ends = []
    for start, extent in zip(region.starts, region.extents, strict=True):
        if not isinstance(start, ir.Const) or not isinstance(extent, int):
            return None
        ends.append(slice(int(start.value), int(start.value) + extent))
    return tuple(ends)


def _loop_values(loop: ir.Parallel) -> dict[ir.Var, np.ndarray]:
    """Every value of a loop's variables, an axis each; nothing where they are known only at launch."""
    if not all(isinstance(extent, int) for extent in loop.extents):
        return {}
    return dict(zip(loop.vars, np.ogrid[tuple(slice(0, extent) for extent in loop.extents)], strict=True))
