"""Where each tile lies in the block's shared memory: tiles whose lives do not meet share their bytes.

Before::

    a = shared(float32[1024])
    b = shared(float32[1024])
    c = shared(float32[1024])
    a[tx] = A[tx]
    b[tx] = a[tx]
    c[tx] = b[tx]
    A[tx] = c[tx]

After, in a kernel with the attributes ``shared_offsets=(0, 4096, 0), shared_bytes=8192``::

    a = shared(float32[1024])
    b = shared(float32[1024])
    c = shared(float32[1024])
    a[tx] = A[tx]
    b[tx] = a[tx]
    sync_threads(dtype=bool)
    c[tx] = b[tx]
    A[tx] = c[tx]

A tile lives from the first to the last statement of the kernel's outermost sequence that mentions it; one that cp.async
fills, until what is under way has been waited for, whether or not anybody reads it. Before bytes change hands there is
a barrier; where the program has none, one is added. Copies of a loop's last iteration that no wait of the loop stands
behind are waited for before that. Tiles that `overlay_rings` named may lie where rings do, and tiles
declared below the outermost sequence whose lifetimes are disjoint share bytes too. Tiles that the copy engine or
matrix instructions read by descriptor keep their bytes to themselves, since what they do is not over when the statement
is; so do all tiles of a kernel that some threads may leave early, which a barrier would wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.errors import SharedMemoryExceeded, Span
from tilewright.ir import find, holds, perform, performed, root, uses
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.passes import Context, map_kernels
from tilewright.passes.thread.disjoint_lifetimes import declared_below, disjoint_lifetimes, read_until

OVERLAID = "overlaid"
"""Attribute of `overlay_rings`: names of tiles, and of the rings that are used no more when those are."""

OFFSETS, BYTES = "shared_offsets", "shared_bytes"
"""Attributes of a kernel: the byte at which each tile and barrier starts, in the order of their declarations; and how
many bytes the block needs."""

_ALIGNMENT = 16

_AT_ONCE = frozenset(
    {"load_matrix", "load_matrix_trans", "store_matrix", "store_matrix_trans", "gmma_descriptor", "simdgroup_store"}
)
"""Functions whose work on a tile is over, or waited for, before its last statement ends; for copies see
`_ASYNCHRONOUS`."""

_LOADS = frozenset({"box_load", "box_load_hint", "bulk_load", "bulk_load_hint"})
_STORES = frozenset({"box_store", "box_reduce_add", "bulk_store"})
"""What the engine does for the block alone."""

_ASYNCHRONOUS = frozenset({"async_copy", "async_copy_zfill"})
"""Copies that may be under way until a wait; those of a tile that is not read are not waited for before its last
statement."""


def plan_shared_memory(function: ir.Function, context: Context) -> ir.Function:
    """Give every shared tile and barrier its place.

    Raises
    ------
    SharedMemoryExceeded : the tiles that live at once need more than a block has; names each of them.
    """
    return map_kernels(function, lambda kernel: _plan(kernel, context.arch))


@dataclass(slots=True)
class _Tile:
    """A tile while its place is looked for: lives in statements ``first`` to ``last`` of the outermost sequence."""

    allocate: ir.Allocate
    size: int
    alignment: int
    first: int
    last: int
    offset: int = 0
    behind: frozenset[str] = frozenset()
    """Names of the rings whose bytes it may take."""
    disjoint: frozenset[ir.Buffer] = frozenset()
    """Tiles whose lifetimes its own does not meet."""
    in_flight: bool = False
    """Whether copies into it may be under way behind its last statement."""

    @property
    def name(self) -> str:
        return self.allocate.buffer.name

    @property
    def end(self) -> int:
        return self.offset + self.size

    def interferes(self, other: _Tile) -> bool:
        """Whether both live at some moment."""
        apart = other.name in self.behind or self.name in other.behind or other.allocate.buffer in self.disjoint
        return not apart and self.first <= other.last and other.first <= self.last

    def overlaps(self, other: _Tile) -> bool:
        """Whether both have a byte in common."""
        return self.offset < other.end and other.offset < self.end


def shared_allocations(kernel: ir.Kernel) -> list[ir.Allocate]:
    """Declarations of memory that threads share, in the order of `OFFSETS`."""
    return [
        node
        for node in find(kernel.body, ir.Allocate)
        if node.buffer.source is None and node.buffer.scope in ("shared", "barrier")
    ]


def shared_places(kernel: ir.Kernel) -> list[tuple[int, int, str]]:
    """Of each tile and barrier of a kernel its first byte, the byte behind its last one, and its name."""
    declared = [node.buffer for node in shared_allocations(kernel)]
    placed = zip(declared, kernel.attribute(OFFSETS, ()), strict=True)
    return [(first, first + one.dtype.nbytes(one.size), one.name) for one, first in placed]


def _plan(kernel: ir.Kernel, arch: Arch) -> ir.Kernel:
    statements = kernel.body.statements
    tiles = _lives(kernel, statements, arch)
    if not tiles:
        return kernel
    placed: list[_Tile] = []
    for tile in sorted(tiles, key=lambda one: (-one.alignment, -one.size)):
        tile.offset = _lowest(tile, [other for other in placed if other.interferes(tile)])
        placed.append(tile)
    total = max(tile.end for tile in tiles)
    if total > arch.shared_bytes:
        raise _exceeded(tiles, total, arch)
    barriers = [position for position, statement in enumerate(statements) if performed(statement) == "sync_threads"]
    published = {
        tile.first
        for tile in tiles
        for other in tiles
        if other.last < tile.first and tile.overlaps(other) and not any(other.last < b < tile.first for b in barriers)
    }
    landing = {
        other.last + 1
        for tile in tiles
        for other in tiles
        if other.in_flight and other.last < tile.first and tile.overlaps(other)
    }
    body = kernel.body
    if published or landing:
        made: list[ir.Statement] = []
        for position, statement in enumerate(statements):
            if position in landing:
                made.append(perform("async_copy_wait", ir.const(0), span=statement.span))
            if position in published:
                made.append(perform("sync_threads", span=statement.span))
            made.append(statement)
        body = replace(body, statements=tuple(made))
    attributes = tuple((name, value) for name, value in kernel.attributes if name not in (OFFSETS, BYTES))
    offsets = tuple(tile.offset for tile in tiles)
    return replace(kernel, body=body, attributes=(*attributes, (OFFSETS, offsets), (BYTES, total)))


@dataclass(slots=True)
class _Uses:
    """Where the statements of a sequence use shared memory, and by what."""

    places: dict[ir.Buffer, list[int]] = field(default_factory=dict)
    matrix: set[ir.Buffer] = field(default_factory=set)
    lasting: set[ir.Buffer] = field(default_factory=set)
    """What functions are given of which we do not know when they are through."""
    loaded: dict[ir.Buffer, int] = field(default_factory=dict)
    stored: set[ir.Buffer] = field(default_factory=set)
    landing: dict[ir.Buffer, tuple[int, int]] = field(default_factory=dict)
    """Where the last copy into a tile begins, and how many waits stand before it."""
    waits: list[int] = field(default_factory=list)

    def add(self, position: int, node: ir.Buffer | ir.Call) -> None:
        if isinstance(node, ir.Buffer):
            self.places.setdefault(root(node), []).append(position)
            return
        regions = {root(part.buffer) for part in node.regions}
        self.matrix |= regions if not node.function.startswith(("async_copy", "atomic", "simdgroup")) else set()
        if node.function in _LOADS:
            self.loaded.update(dict.fromkeys(regions, position))
        elif node.function in _STORES:
            self.stored |= regions
        elif node.function in _ASYNCHRONOUS:
            self.landing.update(dict.fromkeys(regions, (position, len(self.waits))))
        elif node.function == "async_copy_wait":
            self.waits.append(position)
        elif node.function not in _AT_ONCE:
            self.lasting |= regions

    def in_flight(self, buffer: ir.Buffer) -> bool:
        """Whether the wait that ends a tile's life stands before the last copy into it, in the same loop: for copies
        of the last iteration it is none, unless what they bring is read there."""
        position, before = self.landing.get(buffer, (0, 0))
        return position in self.waits[:before] and position not in self.waits[before:]

    def life(self, buffer: ir.Buffer, read: Mapping[ir.Buffer, int], end: int) -> tuple[int, int]:
        """The first and the last statement in which a tile's bytes are its own."""
        places = self.places[buffer]
        first, last = min(places), max(places)
        if buffer in self.landing:
            last = max(last, next((at for at in self.waits if at >= self.landing[buffer][0]), end))
        if buffer in self.loaded:
            # What is read behind the statement that loads it has been waited for.
            first, last = 0, last if last > self.loaded[buffer] else end
        return first, end if buffer in self.stored else max(last, read.get(buffer, 0))


def _lives(kernel: ir.Kernel, statements: Sequence[ir.Statement], arch: Arch) -> list[_Tile]:
    uses_of = _Uses()
    for position, statement in enumerate(statements):
        for node in uses(statement):
            if isinstance(node, (ir.Buffer, ir.Call)):
                uses_of.add(position, node)
    leaves_early = holds(kernel.body, ir.Return)
    overlaid, rings = kernel.attribute(OVERLAID, ((), ()))
    declared = shared_allocations(kernel)
    by_others = uses_of.lasting
    kept = {one.buffer for one in declared if leaves_early or one.buffer.scope == "barrier" or one.buffer in by_others}
    read = read_until(statements)
    engine = {*uses_of.landing, *uses_of.loaded, *uses_of.stored, *read}
    below = declared_below(kernel).intersection(one.buffer for one in declared) - kept - engine
    disjoint = disjoint_lifetimes(kernel, below)
    tiles = []
    for allocate in declared:
        buffer, size = allocate.buffer, allocate.buffer.dtype.nbytes(allocate.buffer.size)
        first, last = 0, len(statements)
        if buffer not in uses_of.places and buffer.scope == "shared":
            size = 0  # nobody uses it
        elif buffer not in kept:
            first, last = uses_of.life(buffer, read, len(statements))
        alignment = arch.tile_alignment if buffer in uses_of.matrix and buffer.scope == "shared" else _ALIGNMENT
        before = frozenset(rings if buffer.name in overlaid else ())
        others = frozenset(other for pair in disjoint if buffer in pair for other in pair if other is not buffer)
        tiles.append(_Tile(allocate, size, alignment, first, last, 0, before, others, uses_of.in_flight(buffer)))
    return tiles


def _lowest(tile: _Tile, others: Sequence[_Tile]) -> int:
    """The lowest place for a tile beside those that live with it."""
    starts = sorted({0, *(-(-other.end // tile.alignment) * tile.alignment for other in others)})
    return next(
        start for start in starts if all(start + tile.size <= other.offset or other.end <= start for other in others)
    )


def _exceeded(tiles: Sequence[_Tile], total: int, arch: Arch) -> SharedMemoryExceeded:
    largest = max(tiles, key=lambda tile: tile.size)
    lines = [
        f"{tile.name} ({_kind(tile.allocate.buffer)}{_line(tile.allocate.span)}): {tile.size} bytes"
        for tile in tiles
        if tile.size
    ]
    return SharedMemoryExceeded(
        f"the shared tiles of this kernel need {total} bytes at once, but a block of {arch.name} has "
        f"{arch.shared_bytes}: " + "; ".join(lines),
        span=largest.allocate.span,
        hint="make tiles smaller, or let T.Pipelined have fewer stages",
    )


def _kind(buffer: ir.Buffer) -> str:
    return f"{buffer.size} x {buffer.dtype}"


def _line(span: Span | None) -> str:
    return f", line {span.line}" if span is not None else ""
