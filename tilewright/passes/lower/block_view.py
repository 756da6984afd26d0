"""What an operator's lowering may ask of the block it runs in: threads, layouts, places in memory, guards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from tilewright.errors import InternalError
from tilewright.ir import nodes as ir
from tilewright.layout import Layout, shared_rows
from tilewright.passes.context import Context, Fact
from tilewright.passes.lower.role_threads import RoleThreads

BLOCK: Fact[BlockView] = Fact("block")
"""The block in which an override's operator runs; set only while an override lowers one."""


class BlockView(RoleThreads):
    """The threads that execute a statement, and where they find tiles.

    Attributes
    ----------
    layouts : of fragments and shared tiles, those that are not row-major as declared.
    safe : what the author wants read beyond a tensor's bounds, where that is not zero.
    cluster : blocks of the cluster.
    open : buffers allocated in each sequence around the statement at hand.
    """

    def __init__(self, function: ir.Function, context: Context) -> None:
        super().__init__(function, context)
        self.layouts: dict[ir.Buffer, Layout] = {}
        self.safe: dict[ir.Buffer, ir.Expr] = {}
        self.cluster = 1
        self.open: list[set[ir.Buffer]] = []

    @abstractmethod
    def physical(self, buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        """A shared access in the one dimension of its layout, as one of a fragment's only register; others
        unchanged."""

    @abstractmethod
    def guard(
        self, buffer: ir.Buffer, indices: Sequence[ir.Expr], last: Sequence[ir.Expr] | None = None
    ) -> ir.Expr | None:
        """The condition under which a global access is in bounds, up to the element at `last` where it has several;
        None where it always is."""

    def registers(self, buffer: ir.Buffer) -> ir.Buffer:
        """The register array that a fragment has become."""
        return self.map_buffer(buffer)

    def shared(self, region: ir.Region, offsets: Sequence[ir.Expr]) -> ir.Region:
        """The place in memory of the element at `offsets` from the start of a shared region."""
        indices = [start + offset for start, offset in zip(region.starts, offsets, strict=True)]
        buffer, places = self.physical(region.buffer, indices)
        return ir.Region(buffer, places, (1,) * len(places))

    def piece(self, region: ir.Region) -> ir.Region:
        """The place in memory of the first byte of a contiguous shared region.

        Raises
        ------
        InternalError : its tile does not lie row by row.
        """
        tile = region.buffer
        layout = self.layouts.get(tile)
        if layout is not None and layout != (rows := shared_rows(tile.static_shape, tile.dtype.stored_bits, None)):
            memory = layout.places[-1]
            if not np.array_equal(layout.table(memory), rows.table(memory)):
                raise InternalError(f"{tile.name} is moved byte by byte, but its layout is not row-major: {layout}")
        return self.shared(region, [ir.const(0)] * len(region.extents))

    @property
    def group_barrier(self) -> ir.Expr:
        """The named barrier of the executing thread's warpgroup."""
        return self.simplify(self.groups_before + self.warpgroup + self.barriers.operators)

    def lives(self, buffer: ir.Buffer) -> bool:
        """Whether a buffer that the kernel allocates is still there where the operator stands."""
        return any(buffer in here for here in self.open)

    def of_token(self, token: str | None) -> list[ir.TileOperator]:
        """The operators of the role, or block, with a token; the synchronous ones for None."""
        return [node for node in self.operators if node.token == token]

    def simplify(self, value: ir.Expr) -> ir.Expr:
        return self.analyzer.simplify(value)

    def visited(self, values: Sequence[ir.Expr]) -> list[ir.Expr]:
        """Index expressions of the tile program as those of a thread."""
        return [self.visit(value) for value in values]

    def safe_value(self, tensor: ir.Buffer) -> ir.Expr | None:
        """What the author wants read beyond a tensor's bounds, where that is not zero."""
        value = self.safe.get(tensor)
        return None if value is None else ir.cast(value, tensor.dtype)
