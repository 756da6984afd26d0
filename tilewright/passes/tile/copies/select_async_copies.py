"""Chooses which copies from global to shared memory are asynchronous, and says why the others are not.

Before::

    copy(source=A[k * 64 : +64, :], destination=tile)

After, where rows of the tile consist of pieces that the machine moves by itself::

    copy(source=A[k * 64 : +64, :], destination=tile, prefer="cp_async")

Parallel loops in pipelines that only bring rows (`gathers.py`) are treated alike.  The choice stands in the operator (``prefer``), so that it survives every rewriting; what the author prefers wins
where it can be done, and a warning says so where it cannot.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.arith import Analyzer
from tilewright.errors import NotAsynchronous
from tilewright.ir.dtypes import DType
from tilewright.ir.nodes import (
    Buffer,
    Channel,
    Const,
    Expr,
    Function,
    Kernel,
    Load,
    Parallel,
    Pipelined,
    Region,
)
from tilewright.ir.signature import root
from tilewright.ir.visitor import find, walk
from tilewright.layout.layout import Layout
from tilewright.machine.arch import Arch
from tilewright.machine.instructions import GLOBAL, SHARED, CopyInstruction
from tilewright.ops.base import kept_axes
from tilewright.ops.copy import Copy
from tilewright.passes.context import CHOICES, Context
from tilewright.passes.rows import conversion_misfit, is_plain_tensor, row_misfit, runs_of
from tilewright.passes.scoped import ScopedRewriter
from tilewright.passes.tile.copies.gathers import gather_bytes, gather_of

CP_ASYNC = "cp_async"
SYNC = "sync"
THREADS = "threads"
BY_HAND = f"{CP_ASYNC}_by_hand"
"""The token of what authors start and wait for by themselves."""


def select_async_copies(function: Function, context: Context) -> Function:
    """Write into every copy from global to shared memory whether it is asynchronous."""
    body = _Select(function, context)(function.body)
    return function if body is function.body else function.with_body(body)


def asynchronous_copy(arch: Arch) -> CopyInstruction | None:
    """The machine's instruction by which one thread starts a copy of a few bytes into shared memory."""
    return next(
        (one for one in arch.copy_instructions
         if one.function == CP_ASYNC and (one.source, one.destination) == (GLOBAL, SHARED)), None)  # fmt: skip


def piece_bytes(copy: Copy, instruction: CopyInstruction, analyzer: Analyzer, layout: Layout | None) -> int | str:
    """How many bytes one instruction moves of a copy from global to shared memory, or why none can.

    Parameters
    ----------
    layout : of the shared tile, where it is known already.
    """
    source, destination = copy.source, copy.destination
    converts = conversion_misfit(source.dtype, destination.dtype)
    if converts is not None:
        return converts
    if not is_plain_tensor(source.buffer):
        return "elements of the source are no whole bytes in their order"
    if not analyzer.divides(source.buffer.shape[-1], source.dtype.per_byte):
        return f"rows of {source.buffer.name} may end within a byte"
    if destination.buffer.source is not None:
        return "the destination is a view"
    rank = len(copy.destination.tile_shape)
    axes = kept_axes(source, rank), kept_axes(destination, rank)
    for region, kept in zip((source, destination), axes, strict=True):
        if kept is None or kept[-1] != len(region.extents) - 1:
            return f"neighbours in the tile are no neighbours in {region.buffer.name}"
    if any(
        isinstance(node, Load) and node.buffer.scope in ("fragment", "local") for s in source.starts for node in walk(s)
    ):
        return "threads would have to agree on where it starts"  # fmt: skip
    columns = destination.tile_shape[-1]
    assert isinstance(columns, int)
    for size in instruction.bytes:
        width = size * 8 // source.dtype.stored_bits
        if (
            width
            and columns % width == 0
            and _rows_start_at(source, width, analyzer)
            and _runs(destination, width, layout)
        ):
            return size  # fmt: skip
    return f"rows do not consist of pieces of {instruction.bytes[-1]} bytes"


def _rows_start_at(region: Region, width: int, analyzer: Analyzer) -> bool:
    """Whether each row of a global region starts at a multiple of `width` elements."""
    size = width * region.dtype.stored_bits // 8
    return analyzer.divides(region.starts[-1], width) and row_misfit(region.buffer, size, analyzer) is None


def _runs(region: Region, width: int, layout: Layout | None) -> bool:
    """Whether `width` neighbours of a shared region lie side by side, at a multiple of it."""
    start = region.starts[-1]
    if not isinstance(start, Const) or start.value % width:
        return False
    if layout is None:
        return region.buffer.static_shape[-1] % width == 0
    return runs_of(layout, width)


class _Select(ScopedRewriter):
    def __init__(self, function: Function, context: Context) -> None:
        super().__init__(function)
        self.context = context
        self.instruction = asynchronous_copy(context.arch)
        self.layouts: dict[Buffer, Any] = {}
        self.slots: set[Buffer] = set()
        self.safe: dict[Buffer, Expr] = {}
        self.threads: tuple[Any, ...] = ()
        self.in_pipeline = False

    def visit_Kernel(self, kernel: Kernel) -> Any:
        self.threads = kernel.thread_vars
        self.layouts = {buffer: layout for buffer, layout in kernel.layouts if isinstance(layout, Layout)}
        self.slots = {buffer for node in find(kernel, Channel) for buffer in node.buffers}
        self.safe = dict(kernel.safe_values)
        return super().visit_Kernel(kernel)

    def visit_Pipelined(self, loop: Pipelined) -> Any:
        before, self.in_pipeline = self.in_pipeline, True
        made = super().generic(loop)
        self.in_pipeline = before
        return made

    def visit_Parallel(self, loop: Parallel) -> Any:
        """A loop that brings rows, where a pipeline or its author can start it ahead; elsewhere threads load and store."""
        by_author = loop.token == BY_HAND and loop.prefer is None
        gather = gather_of(loop) if (self.in_pipeline or by_author) and loop.prefer is None else None
        if gather is None or gather.tile in self.slots or any(node in self.threads for node in walk(loop)):
            if by_author:
                self.context.warn(
                    "this loop cannot be cp.async: it does more than copy rows to a shared tile", loop.span
                )
            return replace(loop, token=None) if by_author else loop
        found: int | str = "the machine has none"
        if self.instruction is not None:
            found = gather_bytes(gather, self.instruction, self.analyzer, self.layouts.get(gather.tile))
        if not self._fills_with_zero(gather.source.buffer):
            found = "what is out of bounds is not zero"
        place = f"{loop.span.file}:{loop.span.line}: " if loop.span else ""
        if isinstance(found, str):
            if by_author:
                self.context.warn(f"this loop cannot be cp.async: {found}", loop.span)
            self._choices.append(f"{place}loop: loads and stores (not cp_async: {found})")
            return replace(loop, token=None) if by_author else loop
        self._choices.append(f"{place}loop: cp_async of {found} bytes")
        return replace(loop, prefer=CP_ASYNC)

    def visit_Copy(self, copy: Copy) -> Copy:
        memories = (copy.source.buffer.scope, copy.destination.buffer.scope)
        if memories != (GLOBAL, SHARED) or copy.prefer not in (None, THREADS, CP_ASYNC):
            return copy
        if copy.destination.buffer in self.slots:  # the channel says how its slots are filled
            return copy
        found = self._size(copy)
        place = f"{copy.span.file}:{copy.span.line}: " if copy.span else ""
        if isinstance(found, int):
            self._choices.append(f"{place}copy: cp_async of {found} bytes")
            return copy if copy.prefer == CP_ASYNC else replace(copy, prefer=CP_ASYNC)
        if copy.prefer == CP_ASYNC and copy.token is not None:
            raise NotAsynchronous(
                f"this copy cannot be cp.async: {found}", span=copy.span,
                hint="write T.copy, which also takes instructions that are not asynchronous",
            )  # fmt: skip
        if copy.prefer == CP_ASYNC:
            self.context.warn(f"this copy cannot be cp_async: {found}", copy.span)
        self._choices.append(f"{place}copy: loads and stores (not cp_async: {found})")
        return replace(copy, prefer=SYNC)

    @property
    def _choices(self) -> list[str]:
        return self.context.facts[CHOICES]

    def _size(self, copy: Copy) -> int | str:
        if self.instruction is None:
            return "the machine has none"
        if not self._fills_with_zero(copy.source.buffer):
            return "what is out of bounds is not zero"
        return piece_bytes(copy, self.instruction, self.analyzer, self.layouts.get(copy.destination.buffer))

    def _fills_with_zero(self, buffer: Buffer) -> bool:
        value = self.safe.get(root(buffer))
        return value is None or is_zero(value, buffer.dtype)


def is_zero(value: Expr, dtype: DType) -> bool:
    """Whether all bits of a literal are zero."""
    return isinstance(value, Const) and value.value == 0 and not str(value.value).startswith("-")
