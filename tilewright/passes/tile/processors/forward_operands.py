"""Gemm operands that were only copied next to the block are read where they came from.

A machine whose blocks share no memory of their own gains nothing from staging a tile that is read as it lies
in the source: a few rows of the left operand, and packed weights, whose codes are unpacked in registers.  Many
rows are better read from a compact copy; of that it is only noted where it came from.

Before::

    copy(source=A[m * 16 : +16, k * 128 : +128], destination=a)
    decode(destination=w, source=W[n * 64 : +64, k * 128 : +128])
    gemm(a=a, b=w, c=c, transpose_b=True)

After (``W`` is packed)::

    gemm(a=A[m * 16 : +16, k * 128 : +128], b=W[n * 64 : +64, k * 128 : +128], c=c, transpose_b=True)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tilewright.ir import accesses, bodies, changed, holds, of_views, same, walk, without_tiles
from tilewright.ir import nodes as ir
from tilewright.machine import Arch, OperandPlan, TilePlan, first_match
from tilewright.ops import Copy, Decode, Gemm
from tilewright.passes import Context, Fact, ScopedRewriter, map_kernels
from tilewright.passes.rows import unproven_beginning
from tilewright.passes.tile.gemms.gemm_candidates import replanned
from tilewright.passes.tile.processors.plan_operand_layouts import LANE_BYTES

SOURCES: Fact[dict[ir.Region, ir.Region]] = Fact("staged_sources", dict)
"""For a region that a gemm reads, the global region that was copied into it, beyond whose end are zeros."""
FEW_ROWS = 32
"""Up to this many rows, unpacking codes in every micro-kernel costs less than storing them unpacked."""


def forward_operands(function: ir.Function, context: Context) -> ir.Function:
    """Let gemms read the sources of tiles that a machine without shared memory need not stage."""
    return map_kernels(function, lambda kernel: _forward(kernel, function, context))


def _forward(kernel: ir.Kernel, function: ir.Function, context: Context) -> ir.Kernel:
    beginnings = _Beginnings(function)
    beginnings(kernel)
    changes: dict[Gemm, dict[str, ir.Region]] = {}
    readers = reader_counts(kernel)
    served: dict[ir.Buffer, int] = {}
    safe = {buffer for buffer, _ in kernel.safe_values}
    sources = context.facts[SOURCES]
    for gemm, name, region, filled in staged_operands(kernel):
        if filled.source.buffer in safe:  # what a gemm does not read counts as zero
            continue
        stays = shift_ends_with(gemm, name, filled.source)
        if not stays and name == "a":
            continue
        copied = gemm.m > FEW_ROWS and not _leaves_room(gemm, context.arch) and not _is_shifted(gemm)
        in_place = filled in beginnings.of(name) and not (name == "a" and copied)
        if in_place and _suits(gemm, name, filled, context.arch):
            changes.setdefault(gemm, {})[name] = filled.source
            served[region.buffer] = served.get(region.buffer, 0) + 1
        elif stays and tells_ends(filled, region):
            sources[region] = filled.source
    if not changes:
        return kernel
    dead = {buffer for buffer, count in served.items() if count == readers.get(buffer)}
    new = {gemm: replanned(gemm, context.arch, **regions) for gemm, regions in changes.items()}
    body = changed(kernel.body, Gemm, by=lambda gemm: new.get(gemm, gemm))
    body = changed(body, Copy, Decode, by=lambda one: None if one.destination.buffer in dead else one)
    return without_tiles(kernel.with_body(body), dead)


def tells_ends(filling: ir.Statement, tile: ir.Region) -> bool:
    """Whether what lies beyond the source's end is zero in the tile, and where that is may be asked again later."""
    if not isinstance(filling, Copy) or filling.source.buffer.scope != "global":
        return False
    in_order = filling.source.extents[-2:] == tile.tile_shape  # no heads between rows and columns
    return in_order and not any(holds(start, ir.Load) for start in filling.source.starts)


def shift_ends_with(gemm: Gemm, name: str, source: ir.Region) -> bool:
    """Whether rows (or columns) of c change by nothing where those of an operand's source have come to their end.

    A shift is added to products of zeros too, unless it ends there itself, or what multiplies it does."""
    if gemm.shift is None:
        return True
    turned = gemm.transpose_a if name == "a" else not gemm.transpose_b
    axis = -1 if turned else -2
    ending = (gemm.shift,) if name == "a" else (gemm.scale_b, gemm.shift_b)
    return any(
        one is not None
        and one.buffer.scope == source.buffer.scope == "global"
        and same(ir.expr(one.starts[-1]), ir.expr(source.starts[axis]))
        and same(ir.expr(one.buffer.shape[-1]), ir.expr(source.buffer.shape[axis]))
        for one in ending
    )


class _Beginnings(ScopedRewriter):
    """Finds the statements whose source begins inside its buffer, and among these the copies that leave it at most by
    its last rows."""

    def __init__(self, function: ir.Function) -> None:
        super().__init__(function)
        self.inside: set[ir.Statement] = set()
        self.whole_columns: set[ir.Statement] = set()

    def of(self, operand: str) -> set[ir.Statement]:
        """The statements whose source an operand may be read in: a left one's columns are not counted up to the
        tensor's end."""
        return self.whole_columns if operand == "a" else self.inside

    def visit_Copy(self, copy: Copy) -> Copy:
        if not unproven_beginning(copy.source, self.analyzer):
            self.inside.add(copy)
        if not unproven_beginning(copy.source, self.analyzer, reaching=(-2,)):
            self.whole_columns.add(copy)
        return copy

    def visit_Decode(self, decode: Decode) -> Decode:
        if not unproven_beginning(decode.source, self.analyzer):
            self.inside.add(decode)
        return decode


def _is_shifted(gemm: Gemm) -> bool:
    """Whether rows of a are copied in any case, on their way into the instruction's range."""
    return isinstance(gemm.plan, OperandPlan) and gemm.plan.left_offset != 0


def _leaves_room(gemm: Gemm, arch: Arch) -> bool:
    """Whether the right operand's panels leave most of the first-level cache to rows that fall on one set of it."""
    elements = gemm.k * arch.vector_bytes // LANE_BYTES
    return 8 * gemm.b.dtype.nbytes(elements) <= arch.l1_bytes


def _suits(gemm: Gemm, name: str, filled: Copy | Decode, arch: Arch) -> bool:
    """Whether the gemm reads the source as well as the tile."""
    source, tile = filled.source, getattr(gemm, name)
    if source.buffer.scope != "global" or source.tile_shape != tile.tile_shape or source.buffer.source is not None:
        return False
    if len(source.tile_shape) != 2 or any(holds(start, ir.Load) for start in source.starts):
        return False
    if name == "b":
        unpacked = isinstance(filled, Decode) and (source.dtype.is_packed or tile.dtype.is_float)
        if not source.buffer.packed or (unpacked and gemm.m > FEW_ROWS):
            return False
        same_types = isinstance(gemm.plan, TilePlan) and source.dtype == tile.dtype
        by_vectors = not isinstance(gemm.plan, TilePlan) and first_match(gemm.a.dtype, source.dtype, arch) is not None
        return (same_types or by_vectors) and source.extents[-2:] == source.tile_shape
    columns, extent = source.buffer.shape[-1], source.extents[-1]
    contiguous = source.buffer.strides is None or ir.is_literal(source.buffer.strides[-1], 1)
    inside = isinstance(columns, int) and isinstance(extent, int) and columns % extent == 0
    return (
        not gemm.transpose_a
        and source.dtype == tile.dtype
        and not source.buffer.packed
        and contiguous
        and inside
        and source.extents[-2:] == source.tile_shape
        and not source.dtype.is_packed
    )


def staged_operands(kernel: ir.Kernel) -> Iterator[tuple[Gemm, str, ir.Region, Copy | Decode]]:
    """The whole tiles that gemms read as ``"a"`` or ``"b"``, each with the one copy (or plain decode) of a read-only
    global region that writes it, which surely has happened before, in the same iteration of every loop."""
    writers: dict[ir.Buffer, list[object]] = {}
    views = of_views(kernel.body)
    for node in walk(kernel.body):
        for buffer in accesses(node)[1]:
            writers.setdefault(buffer, []).append(node)

    def fills(statement: Copy | Decode) -> bool:
        tile = statement.destination.buffer
        alone = writers[tile] == [statement] and tile.scope != "global" and tile not in views
        whole = statement.destination.is_whole and statement.source.buffer not in writers
        return alone and whole and _is_plain(statement)

    def below(
        node: ir.Statement, known: Mapping[ir.Buffer, Copy | Decode]
    ) -> Iterator[tuple[Gemm, str, ir.Region, Copy | Decode]]:
        if isinstance(node, ir.Seq):
            here = dict(known)
            for statement in node.statements:
                yield from below(statement, here)
                if isinstance(statement, (Copy, Decode)) and fills(statement):
                    here[statement.destination.buffer] = statement
        elif isinstance(node, Gemm):
            operands = (("a", node.a), ("b", node.b))
            yield from (
                (node, name, one, known[one.buffer]) for name, one in operands if one.is_whole and one.buffer in known
            )
        else:
            for body in bodies(node):
                yield from below(body, known)

    yield from below(kernel.body, {})


def _is_plain(statement: Copy | Decode) -> bool:
    """Whether the tile holds the source's own numbers, in a type that holds all of them."""
    source, target = statement.source.dtype, statement.destination.dtype
    if isinstance(statement, Decode):
        if statement.scale is not None or statement.zero is not None or statement.codebook is not None:
            return False
        return source.is_integer and target.contains(source)
    return source == target


def reader_counts(kernel: ir.Kernel) -> Counter[ir.Buffer]:
    """How often each buffer is read, by operators and by single loads."""
    return Counter(buffer for node in walk(kernel.body) for buffer in accesses(node)[0])
