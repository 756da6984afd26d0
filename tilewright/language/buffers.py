"""Stand-ins for tensors and tiles: indexing records loads, stores and regions."""

from __future__ import annotations

from typing import Any, NoReturn, overload

from tilewright.ir import INT32, DType, size_text
from tilewright.ir import nodes as ir
from tilewright.language import mistakes
from tilewright.language.dtypes import NumberType
from tilewright.language.math import index_to_coordinates
from tilewright.language.mistakes_of_scopes import ValueOutOfScope
from tilewright.language.proxies import (
    Element,
    Scalar,
    Value,
    Variable,
    an_integer,
    as_expr,
    check_scope,
    describe,
    from_extent,
    is_number,
    known_value,
)
from tilewright.language.reaches import is_negative
from tilewright.language.recording import Frame, active, in_kernel, statement_here
from tilewright.language.tensor_proxies import TensorProxy, length
from tilewright.language.vectors import Vector, common_lanes, kept, lane_of

TILELANG_SCOPES = {"shared": "shared.dyn", "fragment": "local.fragment", "scalar": "local.var"}
"""TileLang's names of memories, where they are not ours."""


def _run(start: ir.Extent, size: ir.Extent, what: str) -> Vector:
    """Neighbouring indices from `start` on."""
    if not isinstance(size, int):
        raise mistakes.NumberExpected(what, "one of known size", size_text(size))
    return Vector(size, lambda lane: Scalar(start + as_expr(lane), lane.frame))


def vector_in(value: object, dtype: DType | None = None) -> object:
    """The elements of a slice along one dimension as a vector, of a type where one is said; anything else as it is."""
    if not isinstance(value, RegionProxy):
        return value
    what, region = "the slice that is assigned", value.region
    wide = [dimension for dimension, size in enumerate(region.extents) if size != 1] or [len(region.extents) - 1]
    if len(wide) > 1:
        raise mistakes.ScalarExpected(what, "a slice along two dimensions")
    size = region.extents[wide[0]]
    lanes = _run(region.starts[wide[0]], size, what)
    if dtype is not None and dtype.lanes != lanes.lanes:
        raise mistakes.NumberExpected(
            f"a value of {dtype}", f"one of {dtype.lanes} elements", f"a slice of {lanes.lanes}"
        )

    def of(lane: Scalar) -> Scalar:
        at = [lanes.of(lane).expr if place == wide[0] else start for place, start in enumerate(region.starts)]
        element = Element(region.buffer, tuple(at), lane.frame)
        return element if dtype is None else Scalar(as_expr(element, dtype.scalar), lane.frame)

    return Vector(lanes.lanes, of)


class BufferProxy(TensorProxy):
    """A buffer as authors see it: ``A[i, j]`` loads or stores, ``A[0:64, k]`` is a region, ``A.shape`` its sizes."""

    __slots__ = ("_buffer", "frame")

    def __init__(self, buffer: ir.Buffer, frame: Frame | None = None) -> None:
        self._buffer, self.frame = buffer, frame

    @property
    def buffer(self) -> ir.Buffer:
        """The buffer, for use where the author stands now.

        Raises
        ------
        ValueOutOfScope : it lives in a kernel or a loop that has ended.
        """
        if self.frame is not None and not self.frame.is_open:
            raise ValueOutOfScope(f"the {self._buffer.scope} tile {self._buffer.name!r}", self.frame.describe())
        return self._buffer

    @property
    def name(self) -> str:
        return self._buffer.name

    @property
    def description(self) -> str:
        return f"the {'tensor' if self._buffer.scope == 'global' else 'tile'} {self._buffer.name!r}"

    @property
    def shape(self) -> tuple[int | Scalar, ...]:
        return tuple(from_extent(size) for size in self._buffer.shape)

    @property
    def dtype(self) -> NumberType:
        return NumberType(self._buffer.dtype)

    @property
    def ndim(self) -> int:
        return self._buffer.rank

    @property
    def data(self) -> BufferProxy:
        """Its memory, for `T.Tensor` and `T.decl_buffer` of another shape."""
        return self

    @property
    def strides(self) -> tuple[int | Scalar, ...]:
        """Elements from one index to the next along each dimension."""
        if self._buffer.strides is not None:
            return tuple(from_extent(step) for step in self._buffer.strides)
        steps: list[int | Scalar] = [1]
        for size in self.shape[:0:-1]:
            steps.insert(0, size * steps[0])
        return tuple(steps[: self.ndim])

    def scope(self) -> str:
        """Where it lies, as TileLang calls that: ``"global"``, ``"shared.dyn"``, ``"local.fragment"`` or
        ``"local"``."""
        return TILELANG_SCOPES.get(self._buffer.scope, self._buffer.scope)

    def access_ptr(
        self,
        access_mask: object = "rw",
        ptr_type: object = "handle",
        content_lanes: int = 1,
        offset: Value = 0,
        extent: object = None,
    ) -> Any:  # a pointer, which kernels hand on or index
        """`T.access_ptr` of its first element, or of the one `offset` behind it in row-major order."""
        from tilewright.language.external import access_ptr  # which speaks of buffers

        if isinstance(offset, int) and offset == 0:
            return access_ptr(self, access_mask) if extent is None else access_ptr(self, access_mask, extent=extent)
        place = self[tuple(index_to_coordinates(offset, self.shape))]
        return access_ptr(place, access_mask, *(() if extent is None else (extent,)))

    def __len__(self) -> int:
        size = self._buffer.shape[0]
        if not isinstance(size, int):
            raise mistakes.NumberExpected(
                "len()", "a tensor whose first extent is known", f"{self.description}, whose is not"
            )
        return size

    def __repr__(self) -> str:
        sizes = ", ".join(str(getattr(size, "name", size)) for size in self._buffer.shape)
        return f"<{self._buffer.scope} {self._buffer.name}[{sizes}] {self._buffer.dtype}>"

    @overload
    def __getitem__(self, key: Value | tuple[Value, ...]) -> Element: ...
    @overload
    def __getitem__(self, key: object) -> Element | RegionProxy | Vector: ...
    def __getitem__(self, key: object) -> Element | RegionProxy | Vector:
        parts = self._parts(key)
        buffer = self.buffer
        lanes = common_lanes(*parts)
        if lanes is not None:
            return Vector(lanes, lambda lane: self[tuple(lane_of(part, lane) for part in parts)])
        if not any(isinstance(part, slice) for part in parts):
            indices = tuple(self._index(part, dimension) for dimension, part in enumerate(parts))
            known = (known_value(part) for part in parts)
            from_end = tuple(max(0, -part) if isinstance(part, int) else 0 for part in known)
            return Element(buffer, indices, _deepest(self.frame, parts), from_end)
        starts: list[ir.Expr] = []
        extents: list[ir.Extent] = []
        for dimension, part in enumerate(parts):
            start, size = self._slice(part, dimension) if isinstance(part, slice) else (self._index(part, dimension), 1)
            starts.append(start)
            extents.append(size)
        return RegionProxy(ir.Region(buffer, tuple(starts), tuple(extents)), _deepest(self.frame, parts))

    def __setitem__(self, key: object, value: object) -> None:
        builder = in_kernel(f"a store to {self.description}")
        parts = self._parts(key)
        if any(isinstance(part, slice) for part in parts):
            if not isinstance(value, (RegionProxy, Vector)):
                raise mistakes.ScalarExpected("an assignment", f"a slice of {self.description}")
            value, parts = vector_in(value), self._ramps(parts)
        lanes = common_lanes(*parts, value)
        if lanes is not None:
            self._set_lanes(parts, value, lanes)
            return
        buffer = self.buffer
        indices = tuple(self._index(part, dimension) for dimension, part in enumerate(parts))
        if not is_number(value):
            raise mistakes.ScalarExpected(f"an element of {self.description}", describe(value))
        builder.append(ir.Store(buffer, indices, as_expr(value, buffer.dtype), span=statement_here()))

    def _ramps(self, parts: tuple[object, ...]) -> tuple[object, ...]:
        """The indices with vectors in place of slices: of one element but for one of them."""
        made: list[object] = []
        wide = 0
        for dimension, part in enumerate(parts):
            if not isinstance(part, slice):
                made.append(part)
                continue
            start, size = self._slice(part, dimension)
            if size == 1:
                made.append(Scalar(start, _deepest(self.frame, parts)))
                continue
            made.append(_run(start, size, f"a slice of {self.description} that is assigned to"))
            wide += 1
        if wide > 1:
            raise mistakes.ScalarExpected("an assignment", f"a slice of {self.description} along two dimensions")
        return tuple(made)

    def _set_lanes(self, parts: tuple[object, ...], value: object, lanes: int) -> None:
        """Store a vector: a loop over its lanes, all of which may go at once."""
        builder = in_kernel(f"a store to {self.description}")
        var, span = ir.Var(INT32, "lane"), statement_here()
        frame = builder.push("T.vectorized", span)
        lane = Scalar(var, frame)
        self[tuple(lane_of(part, lane) for part in parts)] = lane_of(value, lane)
        body = builder.pop(frame)
        builder.append(ir.For(var, ir.const(0), ir.const(lanes), ir.const(1), body, "vectorize", span=span))

    def _parts(self, key: object) -> tuple[object, ...]:
        """One index or slice a dimension."""
        parts = key if isinstance(key, tuple) else (key,)
        if any(part is Ellipsis for part in parts):
            at = next(i for i, part in enumerate(parts) if part is Ellipsis)
            missing = self._buffer.rank - len(parts) + 1
            parts = (*parts[:at], *[slice(None)] * missing, *parts[at + 1 :])
        if len(parts) != self._buffer.rank:
            raise mistakes.WrongRank(self.description, self._buffer.rank, len(parts))
        return parts

    def _index(self, value: object, dimension: int) -> ir.Expr:
        """An index as an expression; what is always negative counts from the end."""
        value = known_value(value)
        if isinstance(value, Scalar) and value.expr.dtype.is_integer:
            found = as_expr(value)
            builder = active()
            if builder is not None and is_negative(found, builder.ranges):
                size = self._buffer.shape[dimension]
                found = found + ir.cast(ir.expr(size), found.dtype)
            return ir.cast(found, INT32) if found.dtype.bits < 32 else found
        if isinstance(value, int) and not isinstance(value, bool):
            return self._known_index(value, dimension)
        if isinstance(value, float) or (isinstance(value, Scalar) and value.expr.dtype.is_float):
            raise mistakes.FloatIndex(self.description, describe(value))
        raise mistakes.NumberExpected(f"an index of {self.description}", an_integer(value), describe(value))

    def _known_index(self, value: int, dimension: int) -> ir.Expr:
        size = self._buffer.shape[dimension]
        if isinstance(size, int) and size:  # a tensor without elements stands for one that conditions leave out
            if not -size <= value < size:
                raise mistakes.IndexOutOfRange(value, dimension, self.description, size)
            return ir.const(value % size)
        return ir.const(value) if value >= 0 else ir.expr(size + value)

    def _slice(self, part: slice, dimension: int) -> tuple[ir.Expr, ir.Extent]:
        """Start and extent of a slice."""
        if isinstance(step := known_value(part.step), Scalar) or step not in (None, 1):
            raise mistakes.SliceStep()
        size = self._buffer.shape[dimension]
        start = self._bound(part.start, 0, dimension)
        stop = self._bound(part.stop, size, dimension)
        extent = length(start, stop)
        if isinstance(extent, int) and extent <= 0 and isinstance(begin := known_value(part.start), Scalar):
            # ``A[k - 1 : k]`` of a first turn, which a condition leaves out: it lies before the tensor.
            plain = ir.cast(as_expr(begin), INT32)
            if isinstance(length(plain, stop), int):
                start, extent = plain, length(plain, stop)
        if isinstance(extent, int):
            known_start = start if isinstance(start, int) else None
            beyond = known_start is not None and isinstance(size, int) and known_start + extent > size
            if extent <= 0 or (beyond and self._buffer.scope != "global"):
                given = ((known_value(part.start), start), (known_value(part.stop), stop))
                said = ("" if one is None else str(one) if isinstance(one, int) else size_text(at) for one, at in given)
                raise mistakes.IndexOutOfRange(":".join(said), dimension, self.description, size)
        return ir.expr(start), extent

    def _bound(self, value: object, default: ir.Extent, dimension: int) -> ir.Extent:
        value = known_value(value)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool):
            return value if value >= 0 else self._buffer.shape[dimension] + value
        return self._index(value, dimension)


class WideBufferProxy(BufferProxy):
    """A buffer whose elements are vectors (bfloat16x2): its last dimension are their lanes, of which ``A[i]`` names no
    single one."""

    __slots__ = ()

    def __getitem__(self, key: object) -> Any:  # a vector where an element is named, else what a buffer gives
        found = super().__getitem__(key)
        named = key if isinstance(key, tuple) else (key,)
        whole = isinstance(found, RegionProxy) and not any(
            isinstance(part, slice) or part is Ellipsis for part in named
        )
        vector = vector_in(found) if whole else found
        return kept(vector, "element") if isinstance(vector, Vector) else vector

    @property
    def shape(self) -> tuple[int | Scalar, ...]:
        return super().shape[:-1]

    @property
    def dtype(self) -> NumberType:
        return NumberType(self._buffer.dtype.with_lanes(int(super().shape[-1])))

    def _parts(self, key: object) -> tuple[object, ...]:
        given = key if isinstance(key, tuple) else (key,)
        named = len(given) == self._buffer.rank - 1 and not any(part is Ellipsis for part in given)
        return super()._parts((*given, slice(None)) if named else given)


class RegionProxy(TensorProxy):
    """A rectangular part of a buffer, as a slice gives it."""

    __slots__ = ("_region", "frame")

    def __init__(self, region: ir.Region, frame: Frame | None) -> None:
        self._region, self.frame = region, frame

    @property
    def region(self) -> ir.Region:
        check_scope(self.frame)
        return self._region

    @property
    def buffer(self) -> BufferProxy:
        """The tensor or tile that it is a part of."""
        return BufferProxy(self._region.buffer, self.frame)

    @property
    def description(self) -> str:
        return f"a slice of {self._region.buffer.name!r}"

    @property
    def shape(self) -> tuple[int | Scalar, ...]:
        return tuple(from_extent(size) for size in self._region.extents)

    @property
    def dtype(self) -> NumberType:
        return NumberType(self._region.dtype)

    def __getitem__(self, key: object) -> NoReturn:
        raise mistakes.TensorOperand("indexing", self.description)


def _deepest(frame: Frame | None, parts: tuple[object, ...]) -> Frame | None:
    """The innermost of the lists that a buffer and its indices belong to."""
    for part in parts:
        for value in (part.start, part.stop) if isinstance(part, slice) else (part,):
            found = value.frame if isinstance(value, Scalar) else None
            if found is not None and (frame is None or found.depth > frame.depth):
                frame = found
    return frame


def region_of(value: object, what: str, expected: str = "a tensor, a tile, a slice or an element of one") -> ir.Region:
    """A whole buffer or a slice as a region; a single element as the region of that element.

    Raises
    ------
    TileExpected : it is none of these.
    """
    if isinstance(value, BufferProxy):
        return ir.whole(value.buffer)
    if isinstance(value, RegionProxy):
        return value.region
    if isinstance(value, (Element, Variable)):
        check_scope(value.frame)
        return ir.Region(value.buffer, value.indices, tuple(1 for _ in value.indices))
    raise mistakes.TileExpected(what, describe(value), expected)


def row(region: ir.Region, count: int) -> ir.Region:
    """So many elements along the last dimension, from the first of a region on."""
    return ir.Region(region.buffer, region.starts, (*(1 for _ in region.starts[:-1]), count))


def borrow_extents(head: Element, other: ir.Region) -> ir.Region:
    """The region that starts at `head` and is as large as `other`: extents right-aligned, the missing ones 1."""
    check_scope(head.frame)
    rank = head.buffer.rank
    extents = other.extents if len(other.extents) <= rank else other.tile_shape
    if len(extents) > rank:
        raise mistakes.WrongRank(f"the tensor {head.buffer.name!r}", rank, len(extents))
    for dimension, (left, extent) in enumerate(zip(head.from_end, (*[1] * (rank - len(extents)), *extents))):
        if left and isinstance(extent, int) and extent > left:
            raise mistakes.PassesTheEnd(-left, extent, dimension, head.buffer.name)
    return ir.Region(head.buffer, head.indices, (*[1] * (rank - len(extents)), *extents))
