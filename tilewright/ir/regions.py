"""What expressions read: buffers, and regions of them.

What they mean is said in `nodes`, which publishes everything here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tilewright.ir.dtypes import DType
from tilewright.ir.expressions import Const, Expr, Extent, Record, const, is_literal, node

SCOPES = ("global", "shared", "fragment", "local", "scalar", "register", "barrier")
"""Where a buffer lives.  ``fragment`` is a tile spread over the registers of a block's threads, ``local``
an array of each thread, ``scalar`` one mutable value (`T.alloc_var`), ``register`` what a fragment or
local becomes in a thread program."""


GLOBAL_ALIGNMENT = 16
"""Bytes that addresses of global buffers are multiples of, unless a buffer says otherwise."""


def known(extents: Iterable[Extent]) -> tuple[int, ...] | None:
    """Sizes as ints; None where one is symbolic."""
    found: list[int] = []
    for extent in extents:
        if not isinstance(extent, int):
            return None
        found.append(extent)
    return tuple(found)


@node
class Buffer(Record):
    """A named array of elements in one memory.

    Attributes
    ----------
    shape : extents, outermost first.  Only global buffers may have symbolic ones.
    strides : in elements, for global buffers and local views of them that are not row-major; else None.
    source : the buffer that this one is a view of; both start at the same byte, row-major.  A ``local`` (later
        ``register``) view of a global buffer promises that every access through it is in bounds.
    packed : a global buffer whose physical order the compiler chooses (`T.Packed`): the caller passes
        what ``kernel.pack`` made of the row-major array.
    alignment : bytes that the address of a global buffer is a multiple of, where blocks are many threads.
    placed : a global buffer that lies where the first value of its `Allocate` in a kernel says, a uint64: what an entry
        of a table of pointers points to. Its extents may depend on what the kernel knows there.
    """

    name: str
    shape: tuple[Extent, ...]
    dtype: DType
    scope: str = "global"
    strides: tuple[Extent, ...] | None = None
    source: Buffer | None = None
    packed: bool = False
    alignment: int = GLOBAL_ALIGNMENT
    placed: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as ints.  Raises ValueError where an extent is symbolic."""
        shape = known(self.shape)
        if shape is None:
            raise ValueError(f"buffer {self.name} has a symbolic shape")
        return shape

    @property
    def size(self) -> int:
        """Number of elements, where the shape is static."""
        return math.prod(self.static_shape)


@node
class Region(Record):
    """A rectangular part of a buffer: a start and an extent for each dimension."""

    buffer: Buffer
    starts: tuple[Expr, ...]
    extents: tuple[Extent, ...]

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def shape(self) -> tuple[Extent, ...]:
        return self.extents

    @property
    def static_extents(self) -> tuple[int, ...]:
        """The extents as ints.  Raises ValueError where one is symbolic."""
        extents = known(self.extents)
        if extents is None:
            raise ValueError(f"a region of {self.buffer.name} has symbolic extents")
        return extents

    @property
    def size(self) -> int:
        """Number of elements, where the extents are static."""
        return math.prod(self.static_extents)

    @property
    def tile_shape(self) -> tuple[Extent, ...]:
        """The extents without dimensions of extent 1 (all of them kept where every one is 1)."""
        kept = tuple(extent for extent in self.extents if not (isinstance(extent, int) and extent == 1))
        return kept or (1,)

    @property
    def static_tile_shape(self) -> tuple[int, ...]:
        """The same as ints.  Raises ValueError where one is symbolic."""
        return tuple(extent for extent in self.static_extents if extent != 1) or (1,)

    @property
    def is_whole(self) -> bool:
        """True where it provably covers the whole buffer."""
        return all(is_literal(start, 0) for start in self.starts) and all(
            a is b or (isinstance(a, int) and a == b) for a, b in zip(self.extents, self.buffer.shape, strict=True)
        )


def known_extent(extent: Extent) -> Extent:
    """An extent as an int where it is a literal."""
    return int(extent.value) if isinstance(extent, Const) else extent


def whole(buffer: Buffer) -> Region:
    """The region that covers all of `buffer`."""
    return Region(buffer, tuple(const(0) for _ in buffer.shape), buffer.shape)
