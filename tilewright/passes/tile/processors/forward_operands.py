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
from collections.abc import Sequence

from tilewright.ir import accesses, changed, holds, of_views, root, same, walk, without_tiles
from tilewright.ir import nodes as ir
from tilewright.machine import Arch, OperandPlan, TilePlan, first_match
from tilewright.ops import Copy, Decode, Gemm
from tilewright.passes import Context, Fact
from tilewright.passes.forwarding import Filled, ScopedForwarding
from tilewright.passes.rows import unproven_beginning
from tilewright.passes.tile.gemms.gemm_candidates import replanned
from tilewright.passes.tile.processors.plan_operand_layouts import LANE_BYTES

SOURCES: Fact[dict[ir.Region, ir.Region]] = Fact("staged_sources", dict)
"""For a region that a gemm reads, the global region that was copied into it, beyond whose end are zeros."""
FEW_ROWS = 32
"""Up to this many rows, unpacking codes in every micro-kernel costs less than storing them unpacked."""


def forward_operands(function: ir.Function, context: Context) -> ir.Function:
    """Let gemms read the sources of tiles that a machine without shared memory need not stage."""
    return function.with_body(_Forward(function, context)(function.body))


class StagedOperands(ScopedForwarding):
    """Finds the whole tiles that gemms read as ``"a"`` or ``"b"``, each with the one copy (or plain decode) of a
    read-only global region that writes it, which surely has happened before, in the same iteration of every loop.

    Subclasses say which gemms read the region instead; tiles that none reads any more go, with what filled them.

    Attributes
    ----------
    readers, writers : how often memory is read, and written, by operators and by single loads and stores.
    found : the operands: the gemm, the operand's name, and what fills its tile.
    dead : the tiles that are gone.
    """

    def __init__(self, function: ir.Function, context: Context) -> None:
        super().__init__(function)
        self.context = context
        self.found: list[tuple[Gemm, str, Copy | Decode]] = []
        self.dead: set[ir.Buffer] = set()

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        self.views, self.safe = of_views(kernel.body), {buffer for buffer, _ in kernel.safe_values}
        touching = [accesses(node) for node in walk(kernel.body)]
        self.readers, self.writers = (Counter(root(one) for both in touching for one in both[side]) for side in (0, 1))
        kernel = super().visit_Kernel(kernel)
        return without_tiles(kernel, self.dead) if self.dead else kernel

    def reads_source(self, gemm: Gemm, name: str, filling: Copy | Decode) -> bool:
        """Whether a gemm shall read what an operand's tile was filled from."""
        return False

    def reading(self, statement: ir.Statement, known: list[Filled]) -> ir.Statement:
        filled = {one.tile: one for one in known}

        def read(gemm: Gemm) -> Gemm:
            sources: dict[str, ir.Region] = {}
            for name, region in (("a", gemm.a), ("b", gemm.b)):
                one = filled.get(region.buffer)
                if one is None or not region.is_whole:
                    continue
                assert isinstance(one.statement, (Copy, Decode))
                self.found.append((gemm, name, one.statement))
                if self.reads_source(gemm, name, one.statement):
                    sources[name] = one.statement.source
                    one.used += 1
            return replanned(gemm, self.context.arch, **sources) if sources else gemm

        return changed(statement, Gemm, by=read)

    def filled(self, statement: ir.Statement, beside: Sequence[ir.Statement], position: int) -> Filled | None:
        if not isinstance(statement, (Copy, Decode)) or not _is_plain(statement):
            return super().filled(statement, beside, position)
        tile, source = statement.destination.buffer, root(statement.source.buffer)
        alone = self.writers[tile] == 1 and tile.scope != "global" and tile not in self.views
        whole = statement.destination.is_whole and source not in self.writers
        return Filled(statement, tile, (), statement.source) if alone and whole else None

    def left(self, statement: ir.Statement, filled: Filled) -> list[ir.Statement]:
        if not filled.used or filled.used != self.readers[filled.tile]:
            return [statement]
        self.dead.add(filled.tile)
        return []


class _Forward(StagedOperands):
    def reads_source(self, gemm: Gemm, name: str, filling: Copy | Decode) -> bool:
        """Whether it may; of others it is noted where their tiles came from, if zeros lie beyond its end."""
        region, source, arch = getattr(gemm, name), filling.source, self.context.arch
        if source.buffer in self.safe:
            return False  # what a gemm does not read counts as zero
        stays = shift_ends_with(gemm, name, source)
        if not stays and name == "a":
            return False
        reaching = (-2,) if name == "a" else (-2, -1)  # columns of a left one are not counted up to the tensor's end
        copied = name == "a" and gemm.m > FEW_ROWS and not _leaves_room(gemm, arch) and not _is_shifted(gemm)
        inside = not copied and not unproven_beginning(source, self.analyzer, reaching)
        if inside and _suits(gemm, name, filling, arch):
            return True
        if stays and tells_ends(filling, region):
            self.context.facts[SOURCES][region] = source
        return False


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


def _is_plain(statement: Copy | Decode) -> bool:
    """Whether the tile holds the source's own numbers, in a type that holds all of them."""
    source, target = statement.source.dtype, statement.destination.dtype
    if isinstance(statement, Decode):
        if statement.scale is not None or statement.zero is not None or statement.codebook is not None:
            return False
        return source.is_integer and target.contains(source)
    return source == target
