"""What an operator's lowering may ask of the block it runs in: threads, layouts, places in memory, guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.arith import Analyzer
from tilewright.errors import InternalError
from tilewright.ir import nodes as ir
from tilewright.layout import Layout, shared_rows
from tilewright.passes.context import Fact

if TYPE_CHECKING:
    from tilewright.passes.lower.assign_threads import Assign

BLOCK: Fact[BlockView] = Fact("block")
"""The block in which an override's operator runs; set only while an override lowers one."""


@dataclass(frozen=True, slots=True)
class BlockView:
    """What an operator's lowering may ask of the block it runs in (``context.facts[BLOCK]``)."""

    owner: Assign

    @property
    def thread(self) -> ir.Expr:
        """Index of the executing thread."""
        return self.owner.thread

    @property
    def threads(self) -> int:
        return self.owner.threads

    def barrier(self) -> ir.Statement:
        """A barrier of all threads that execute the operator."""
        return ir.Evaluate(self.owner.barrier())

    def layout(self, buffer: ir.Buffer) -> Layout:
        """Layout of a fragment or a shared tile."""
        return self.owner.layouts[buffer]

    def memory_layout(self, buffer: ir.Buffer) -> Layout | None:
        """Layout of a shared tile, None where it is row-major as declared."""
        return self.owner.layouts.get(buffer)

    def registers(self, buffer: ir.Buffer) -> ir.Buffer:
        """The register array that a fragment has become."""
        return self.owner.map_buffer(buffer)

    def shared(self, region: ir.Region, offsets: Sequence[ir.Expr]) -> ir.Region:
        """The place in memory of the element at `offsets` from the start of a shared region."""
        indices = [start + offset for start, offset in zip(region.starts, offsets, strict=True)]
        buffer, places = self.owner.physical(region.buffer, indices)
        return ir.Region(buffer, places, (1,) * len(places))

    def piece(self, region: ir.Region) -> ir.Region:
        """The place in memory of the first byte of a contiguous shared region.

        Raises
        ------
        InternalError : its tile does not lie row by row.
        """
        tile = region.buffer
        layout = self.memory_layout(tile)
        if layout is not None and layout != (rows := shared_rows(tile.static_shape, tile.dtype.stored_bits, None)):
            memory = layout.places[-1]
            if not np.array_equal(layout.table(memory), rows.table(memory)):
                raise InternalError(f"{tile.name} is moved byte by byte, but its layout is not row-major: {layout}")
        return self.shared(region, [ir.const(0)] * len(region.extents))

    @property
    def warpgroup(self) -> ir.Expr:
        """Index of the executing thread's warpgroup, the same in all lanes of a warp."""
        return self.owner.warpgroup

    @property
    def cluster(self) -> int:
        """Blocks of the cluster."""
        return self.owner.cluster

    @property
    def group_barrier(self) -> ir.Expr:
        """The named barrier of the executing thread's warpgroup."""
        groups = self.owner.groups_before + self.warpgroup
        return self.simplify(groups + self.owner.barriers.operators)

    def lives(self, buffer: ir.Buffer) -> bool:
        """Whether a buffer that the kernel allocates is still there where the operator stands."""
        return any(buffer in here for here in self.owner.open)

    def operators(self, token: str | None) -> list[ir.TileOperator]:
        """The operators of the role, or block, with a token; the synchronous ones for None."""
        return [node for node in self.owner.operators if node.token == token]

    @property
    def analyzer(self) -> Analyzer:
        """What is known where the operator stands."""
        return self.owner.analyzer

    def simplify(self, value: ir.Expr) -> ir.Expr:
        return self.owner.analyzer.simplify(value)

    def visited(self, values: Sequence[ir.Expr]) -> list[ir.Expr]:
        """Index expressions of the tile program as those of a thread."""
        return [self.owner.visit(value) for value in values]

    def guard(self, buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> ir.Expr | None:
        """The condition under which a global access is in bounds; None where it always is."""
        return self.owner.guard(buffer, indices)

    def safe_value(self, tensor: ir.Buffer) -> ir.Expr | None:
        """What the author wants read beyond a tensor's bounds, where that is not zero."""
        value = self.owner.safe.get(tensor)
        return None if value is None else ir.cast(value, tensor.dtype)

    def at_end(self, key: ir.Buffer, statement: ir.Statement) -> None:
        """Add a statement to the end of the role, once for each `key`."""
        self.owner.endings.setdefault(key, statement)

    def bind(self, var: ir.Var, extent: int) -> None:
        """Tell the simplifier the range of a new variable."""
        self.owner.analyzer.bind_extent(var, extent)
