"""Epilogue staging: accumulators are stored through boxes in shared memory by the copy engine.

Before (in a role; ``total`` is the accumulator of a gemm on warpgroups)::

    copy(total, C[row : +128, column : +256])

After::

    total_staging = shared(bfloat16[4, 64, 64])     # before the roles: two boxes a warpgroup
    ...
    copy(total, C[row : +128, column : +256], prefer="tma")

The boxes are double-buffered: a warpgroup fills one while the engine reads the other. Their layout is fixed here. A
fragment that a loop computes from an accumulator, element for element (scales, bias, activations), is stored likewise.
So is one that `T.transpose` stores: its halves are transposed into boxes of as many columns as an instruction has rows.
Where a block has one tile only, its ring buffer is free by then, and gives room for all boxes (`overlay_rings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir import INT32, DType, Rewritten, find, having, root, touched, variables, walk
from tilewright.ir import nodes as ir
from tilewright.layout import shared_rows
from tilewright.machine import REGISTERS, SHARED, Arch, CopyEngine
from tilewright.ops import TMA, Copy, GemmPlan, Product, Staging, Transpose
from tilewright.passes import Context, ScopedRewriter
from tilewright.passes.rows import box_unsupported, is_plain_tensor, placed_unsupported
from tilewright.passes.tile.copies.engine_checks import leaving_unsupported
from tilewright.passes.tile.copies.filled_tiles import slot_buffers
from tilewright.passes.tile.grids.form_clusters import depending
from tilewright.passes.tile.pipelines.tiles_after_rings import after_rings
from tilewright.passes.tile.roles.divide_roles import MIN_BLOCKS, SPECIALIZED
from tilewright.passes.tile.words.widen_indices import is_long

BOXES = 2
"""The fewest boxes of a warpgroup; it gets more where there is room, so that it need not wait for the engine."""

MOST_COLUMNS = 128
"""Columns of an accumulator that become the rows of one box."""

_TALKING = {"grid_sync", "atomic_load", "atomic_store", *(f"atomic_{kind}" for kind in ("add", "max", "min", "or"))}
"""Calls by which blocks may signal one another that data is stored."""

Leaving = Copy | Transpose
"""Operators that store a fragment."""


def stage_epilogue(function: ir.Function, context: Context) -> ir.Function:
    """Choose the copies of accumulators that the copy engine stores, and give them boxes."""
    engine = context.arch.copy_engine
    if engine is None or not context.arch.moves_matrices(REGISTERS, SHARED):
        return function
    return function.with_body(_Stage(function, context, engine)(function.body))


def box_widths(plan: GemmPlan, dtype: DType, transposed: bool, arch: Arch) -> list[int]:
    """Columns of an accumulator that a box may have, those that make the fewest boxes first, of these the narrowest.

    Sixteen columns are packed at once, the last eight of boxes that leave transposed too. Where a width does not divide
    an instruction's columns, what is left goes through part of a box. A box is as long as the machine's copy engine
    takes it, and its rows no wider than the widest swizzle.
    """
    longest = 0 if arch.copy_engine is None else arch.copy_engine.box
    columns = plan.instruction.n
    row = max((8 * span // dtype.bits for span in arch.spans), default=longest)
    if plan.instruction.m > longest or columns % (8 if transposed else 16) or (transposed and plan.instruction.m > row):
        return []
    most = min(MOST_COLUMNS if transposed else row, columns)
    widths = {most, *range(16, most + 1, 16)} if transposed else {64, 32, 16}
    found = [width for width in widths if width <= min(most, longest)]
    return sorted(found, key=lambda width: (-(-columns // width), width))


def box_columns(plan: GemmPlan, width: int) -> list[tuple[int, int]]:
    """The first of the columns of a warpgroup that each box takes, and how many."""
    size = plan.instruction.n
    inside = [(first, min(width, size - first)) for first in range(0, size, width)]
    return [(number * size + first, columns) for number in range(plan.tiles_n) for first, columns in inside]


def box_shape(plan: GemmPlan, width: int, transposed: bool) -> tuple[int, int]:
    """Rows and columns of a box."""
    return (width, plan.instruction.m) if transposed else (plan.instruction.m, width)


class _Stage(ScopedRewriter):
    def __init__(self, function: ir.Function, context: Context, engine: CopyEngine) -> None:
        super().__init__(function)
        self.context, self.engine = context, engine
        self.made: list[ir.Buffer] = []
        self.first_of_role = 0
        self.owned: set[ir.Buffer] = set()
        self.role: ir.Role | None = None
        self.loops: list[ir.Var] = []

    def visit_Kernel(self, kernel: ir.Kernel) -> ir.Kernel:
        self.kernel = kernel
        self.room = shared_room(kernel, self.context.arch) - shared_bytes(kernel, self.context.arch)
        self.ring_room = sum(_tile_bytes(one, self.context.arch) for one in slot_buffers(kernel))
        self.accumulators = {
            gemm.c.buffer: gemm.plan
            for gemm in find(kernel.body, Product)
            if isinstance(gemm.plan, GemmPlan) and gemm.plan.instruction.asynchronous and not gemm.plan.is_part
        }
        for node in find(kernel.body, Copy, ir.Parallel):
            self._follow(node)
        self.stored = {
            buffer
            for node in find(kernel.body, ir.Store, ir.TileOperator, ir.Call)
            if not (isinstance(node, Leaving) and node.source.buffer in self.accumulators)
            for buffer in touched(node).writes
        }
        self.order = list(walk(kernel.body))
        self.blocks_talk = any(isinstance(node, ir.Call) and node.function in _TALKING for node in self.order)
        self.made = []
        made = super().visit_Kernel(kernel)
        spans = self.context.arch.spans
        layouts = tuple(
            (one, shared_rows(one.static_shape, one.dtype.stored_bits, box_span(one, spans))) for one in self.made
        )
        return replace(made, layouts=(*made.layouts, *layouts)) if layouts else made

    def _follow(self, node: ir.Statement) -> None:
        """Fragments that are computed from an accumulator, element for element, have its layout."""
        pairs: list[tuple[ir.Buffer, ir.Buffer]] = []
        if isinstance(node, Copy) and node.source.is_whole and node.destination.is_whole:
            pairs = [(node.source.buffer, node.destination.buffer)]
        elif isinstance(node, ir.Parallel) and len(node.vars) == 2:
            touched = [
                one
                for one in find(node.body, ir.Load, ir.Store)
                if len(one.indices) == 2 and all(index is var for index, var in zip(one.indices, node.vars))
            ]
            read = [one.buffer for one in touched if isinstance(one, ir.Load)]
            pairs = [(source, one.buffer) for one in touched if isinstance(one, ir.Store) for source in read]
        for source, made in pairs:
            plan = self.accumulators.get(source)
            if plan is not None and made.scope == "fragment" and made.shape == (plan.m, plan.n):
                self.accumulators.setdefault(made, plan)

    def _is_read_behind(self, copy: Leaving) -> bool:
        """Whether the kernel reads what the copy stores: after it, or anywhere if blocks signal one another."""
        tensor = root(copy.destination.buffer)
        behind = self.blocks_talk
        for node in self.order:
            behind = behind or node is copy
            if behind and isinstance(node, (ir.Load, ir.TileOperator, ir.Call)) and tensor in touched(node).reads:
                return True
        return False

    def visit_Roles(self, roles: ir.Roles) -> Rewritten:
        before = len(self.made)
        result = self.generic(roles)
        shared = [one for one in self.made[before:] if one not in self.owned]
        return [*(ir.Allocate(one, span=roles.span) for one in shared), result]

    def visit_Role(self, role: ir.Role) -> ir.Role:
        self.role = role
        known = self.kernel.attribute(SPECIALIZED)  # in an author's roles another one may still fill a ring
        self.behind = after_rings(role, slot_buffers(self.kernel)) if known else ()
        before = self.first_of_role = len(self.made)
        made = super().visit_Role(role)
        self.role = None
        if role.instances == 1 or len(self.made) == before:
            return made
        # Each instance has boxes of its own, since the role declares them.
        self.owned.update(self.made[before:])
        boxes = [ir.Allocate(one, span=role.span) for one in self.made[before:]]
        return replace(made, body=replace(made.body, statements=(*boxes, *made.body.statements)))

    def visit_For(self, loop: ir.For) -> Rewritten:
        with having(self, loops=[*self.loops, loop.var]):
            return super().visit_For(loop)

    def visit_While(self, loop: ir.While) -> Rewritten:
        with having(self, loops=[*self.loops, ir.Var(INT32, "iteration")]):
            return self.generic(loop)

    def visit_Copy(self, copy: Leaving) -> ir.Statement:
        plan = self.accumulators.get(copy.source.buffer)
        if plan is None or self.role is None or copy.destination.buffer.scope != "global":
            return copy
        reason = self._unsupported(copy, plan)
        if reason is not None:
            self.context.chose(f"{copy.name}: stores by threads (not tma_store: {reason})", copy.span)
            return copy
        staging = self._boxes(copy, plan)
        shape = staging.boxes.static_shape
        packing = "stmatrix" if copy.destination.dtype.bits == 16 else "pairs"
        self.context.chose(f"{copy.name}: {packing} and tma_store in boxes of {shape[1]} x {shape[2]}", copy.span)
        return replace(copy, schedule=replace(copy.schedule, prefer=TMA, staging=staging))

    def _boxes(self, copy: Leaving, plan: GemmPlan) -> Staging:
        """Boxes for a copy: those of another copy with the same shape, or new ones."""
        groups, dtype, transposed = plan.warps_m * plan.warps_n, copy.destination.dtype, isinstance(copy, Transpose)
        instances = 1 if self.role is None else self.role.instances
        known = self._like(copy, plan)
        if known is not None:
            return Staging(known, known.static_shape[1 if transposed else 2], known.static_shape[0] // groups, plan)
        room = self._room_for(copy) // instances
        widths = box_widths(plan, dtype, transposed, self.context.arch)
        if self.loops:  # a single box would be waited for at each store, so its parts alternate
            widths.sort(key=lambda width: plan.tiles_m * len(box_columns(plan, width)) == 1)
        width = next(width for width in widths if self._least(plan, width, dtype) <= room)
        needed = plan.tiles_m * len(box_columns(plan, width))
        size = groups * dtype.nbytes(plan.instruction.m * width)
        count = next(
            (count for count in range(needed, BOXES, -1) if needed % count == 0 and count * size <= room), BOXES
        )
        shape = (count * groups, *box_shape(plan, width, transposed))
        boxes = ir.Buffer(f"{copy.source.buffer.name}_staging", shape, dtype, "shared")
        self.made.append(boxes)
        self.room -= instances * dtype.nbytes(boxes.size)
        return Staging(boxes, width, count, plan, is_first=not self.loops)

    def _room_for(self, copy: Leaving) -> int:
        """Bytes for boxes: free ones, and the ring buffers' where no loop needs them any more."""
        is_behind = any(node is copy for statement in self.behind for node in walk(statement))
        return self.room + self.ring_room if is_behind else self.room

    visit_Transpose = visit_Copy

    @staticmethod
    def _least(plan: GemmPlan, width: int, dtype: DType) -> int:
        """Bytes of the fewest boxes of a width."""
        return BOXES * plan.warps_m * plan.warps_n * dtype.nbytes(plan.instruction.m * width)

    def _like(self, copy: Leaving, plan: GemmPlan) -> ir.Buffer | None:
        """Boxes of another copy of the same role that suit this one too; roles run concurrently."""
        groups, transposed = plan.warps_m * plan.warps_n, isinstance(copy, Transpose)
        shapes = {
            box_shape(plan, width, transposed)
            for width in box_widths(plan, copy.destination.dtype, transposed, self.context.arch)
        }
        alike = (made for made in self.made[self.first_of_role :] if made.dtype == copy.destination.dtype)
        fit = (made for made in alike if made.static_shape[0] % groups == 0 and made.static_shape[1:] in shapes)
        return next(fit, None)

    def _unsupported(self, copy: Leaving, plan: GemmPlan) -> str | None:
        """Why an accumulator is not stored through shared memory; None where it is."""
        target, tensor, transposed = copy.destination, copy.destination.buffer, isinstance(copy, Transpose)
        if copy.schedule.prefer not in (None, TMA):
            return f"the author asks for {copy.schedule.prefer}"
        halves = tensor.dtype.bits == 16 and tensor.dtype.is_float
        as_it_is = copy.source.dtype == tensor.dtype and (halves or tensor.dtype.bits == 32)
        if not as_it_is and not (halves and copy.source.dtype.name in ("float32", "int32")):
            return f"{copy.source.dtype} to {tensor.dtype} is not packed in pairs"
        if transposed and not halves:
            return f"matrices of {tensor.dtype} are not transposed on their way"
        if not is_plain_tensor(tensor) or not copy.source.is_whole or tensor.rank < 2:
            return "parts are stored by their elements"
        if root(tensor).placed:
            return placed_unsupported(root(tensor))
        if any(extent != 1 for extent in target.extents[:-2]) or tuple(target.extents[-2:]) != (
            (plan.n, plan.m) if transposed else (plan.m, plan.n)
        ):
            return f"rows of the tile are no rows of {tensor.name}"
        if any(map(is_long, tensor.shape)):
            return f"coordinates of 32 bits do not reach all of {tensor.name}"
        if root(tensor) in self.stored:
            return f"threads store to {tensor.name} as well, and the engine does not see their stores without a fence"
        if self._is_read_behind(copy):
            return f"the kernel reads {tensor.name} as well, and the engine's stores land later than those of threads"
        where = {one for start in target.starts for one in variables(start)}
        if not all(where & depending(self.kernel, var) for var in self.loops):
            return f"a loop stores the same rows of {tensor.name} again, and stores of the engine are in no order"
        reason = box_unsupported(target, self.engine.unit, self.analyzer)
        reason = reason or leaving_unsupported(target, self.engine, self.analyzer)
        if reason is not None:
            return reason
        widths = box_widths(plan, tensor.dtype, transposed, self.context.arch)
        if not widths:
            return f"{plan.instruction.m} x {plan.instruction.n} elements do not divide into boxes"
        needed = self._least(plan, min(widths), tensor.dtype)
        needed *= 1 if self.role is None else self.role.instances
        full = needed > self._room_for(copy) and self._like(copy, plan) is None
        return f"{needed} bytes of shared memory are not left" if full else None


def box_span(boxes: ir.Buffer, spans: Sequence[int]) -> int | None:
    """The swizzle span of boxes, one of the machine's; None where they are not swizzled."""
    row = boxes.static_shape[-1] * boxes.dtype.stored_bits // 8
    return row if row in spans else None


def shared_room(kernel: ir.Kernel, arch: Arch) -> int:
    """Bytes of shared memory of a block, given the blocks per multiprocessor that the author asks for."""
    return arch.block_shared_bytes(kernel.attribute(MIN_BLOCKS, 1))


def shared_bytes(kernel: ir.Kernel, arch: Arch) -> int:
    """Bytes of shared memory that a kernel takes, each tile where matrix instructions can read it, and its channels'
    barriers."""
    total = arch.tile_alignment
    for node in find(kernel.body, ir.Allocate, ir.Role):
        if isinstance(node, ir.Allocate):
            total += _tile_bytes(node.buffer, arch)
        else:  # each instance of a role has its own tiles
            total += (node.instances - 1) * sum(_tile_bytes(one.buffer, arch) for one in find(node.body, ir.Allocate))
    return total


def _tile_bytes(tile: ir.Buffer, arch: Arch) -> int:
    owns, unit = tile.scope == "shared" and tile.source is None, arch.tile_alignment
    return -(-tile.dtype.nbytes(tile.size) // unit) * unit if owns else 0
