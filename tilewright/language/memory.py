"""Tiles, arrays, mutable scalars and workspaces; views of them."""

from __future__ import annotations

import math
from typing import Any, NoReturn, cast

from tilewright.ir import Allocate, Buffer, Extent, dtypes, known
from tilewright.language.buffers import BufferProxy, WideBufferProxy, vector_in
from tilewright.language.mistakes import NumberExpected, TileExpected, ViewMismatch
from tilewright.language.proxies import Variable, as_expr, describe, one_of
from tilewright.language.recording import author_facing, check_tile_place, current, in_kernel, statement_here, word
from tilewright.language.tensors import TensorAnnotation, element_dtype, shape_of, static_shape_of, strides_of
from tilewright.language.vectors import VectorVariable

FIXED = (
    "tiles have fixed sizes: let a loop go through the dimension tile by tile, use `tile[0:n]` of the largest that "
    "there can be, or make it a T.const size"
)
"""What to do instead of a tile whose size is known only at launch."""


class _Empty:
    """Stands for a tile without elements, which a kernel declares where it leaves the tile out."""

    def __init__(self, what: str) -> None:
        self.__dict__["_what"] = what

    def _fail(self, *_: object) -> NoReturn:
        raise NumberExpected(f"an extent of {self.__dict__['_what']}", "a positive integer: the tile is used", "0")

    __getattr__ = __getitem__ = __setitem__ = __iter__ = _fail


def _allocate(shape: object, dtype: object, scope: str, what: str) -> BufferProxy:
    """Record a tile of known shape in the innermost open block, unless it has no elements."""
    builder = in_kernel(what)
    if scope in ("shared", "fragment"):
        check_tile_place(builder, what)
    sizes = static_shape_of(shape, what, FIXED)
    for size in sizes:
        if size < 0:
            raise NumberExpected(f"an extent of {what}", "a size that is not negative", str(size))
    if 0 in sizes:
        return cast(BufferProxy, _Empty(what))
    record = dtypes.dtype(dtype)
    lanes = () if record.lanes == 1 else (record.lanes,)
    buffer = Buffer(builder.take_name("tile"), (*sizes, *lanes), record.scalar, scope)
    builder.append(Allocate(buffer, span=statement_here()))
    return (WideBufferProxy if lanes else BufferProxy)(buffer, builder.frame)


@word
def alloc_shared(shape: object, dtype: object, scope: str = "shared.dyn") -> BufferProxy:
    """A tile in the memory that the threads of a block share.

    Parameters
    ----------
    dtype : of an element.
    shape : ints.
    scope : accepted for TileLang's sake; there is one kind of shared memory.

    Examples
    --------
    >>> stage = T.alloc_shared((64, 64), "float32")
    >>> T.copy(A, stage)
    """
    return _allocate(shape, dtype, "shared", "T.alloc_shared")


@word
def alloc_fragment(shape: object, dtype: object, scope: str = "local.fragment") -> BufferProxy:
    """A tile distributed over the registers of a block's threads; the compiler chooses the layout.

    Parameters
    ----------
    shape : ints.
    dtype : of an element.
    scope : accepted for TileLang's sake.

    Examples
    --------
    >>> total = T.alloc_fragment((64, 64), "float32")
    >>> T.clear(total)
    """
    return _allocate(shape, dtype, "fragment", "T.alloc_fragment")


@word
def alloc_local(shape: object, dtype: object, scope: str = "local") -> BufferProxy:
    """An array of each thread.

    Parameters
    ----------
    shape : ints.
    dtype : of an element.
    scope : accepted for TileLang's sake.

    Examples
    --------
    >>> own = T.alloc_local((4,), "float32")
    >>> own[0] = A[tx % 64, 0]
    >>> C[tx % 64, 0] = own[0]
    """
    return _allocate(shape, dtype, "local", "T.alloc_local")


_SCOPES = {
    "shared": "shared", "shared.dyn": "shared", "local.fragment": "fragment", "fragment": "fragment", "local": "local",
}  # fmt: skip


@word
def alloc_buffer(shape: object, dtype: object = "float32", scope: str = "global") -> BufferProxy:
    """A buffer in the memory that `scope` names.

    Parameters
    ----------
    shape, dtype : of the buffer.
    scope : ``"global"``, ``"shared"``, ``"shared.dyn"``, ``"local"`` or ``"local.fragment"``.

    Examples
    --------
    >>> scratch = T.alloc_buffer((64, 64), "float32", scope="shared")
    >>> T.copy(A, scratch)
    """
    if scope == "global":
        return alloc_global(shape, dtype)
    one_of(scope, [*_SCOPES, "global"], "the scope of T.alloc_buffer")
    return _allocate(shape, dtype, _SCOPES[scope], "T.alloc_buffer")


@word
def alloc_var(dtype: object, *initial: object, init: object = None, scope: str = "local.var") -> Any:
    """A mutable scalar: assigning to its name stores into it, in loops and branches too.

    Parameters
    ----------
    dtype : of the scalar; of a type such as ``float32x4`` it is a vector.
    initial : the first value, by position.
    scope : accepted for TileLang's sake.
    init : the first value, as second argument or by name; without one the scalar has no value yet.

    Examples
    --------
    >>> count = T.alloc_var("int32", init=0)
    >>> for k in T.serial(4):
    ...     count = count + k
    >>> C[0, 0] = count
    """
    builder = in_kernel("T.alloc_var")
    values = [value for value in (*initial, init) if value is not None and not isinstance(value, str)]
    if len(values) > 1:
        raise NumberExpected("T.alloc_var", "one first value", str(len(values)))
    record = dtypes.dtype(dtype)
    if record.lanes > 1:
        array = Buffer(builder.take_name("var"), (record.lanes,), record.scalar, "local")
        builder.append(Allocate(array, span=statement_here()))
        made = VectorVariable(array, builder.frame)
        for value in values:
            made.store(vector_in(value, record))
        return made
    first = as_expr(values[0], record, "the first value of T.alloc_var") if values else None
    buffer = Buffer(builder.take_name("var"), (), record, "scalar")
    builder.append(Allocate(buffer, first, span=statement_here()))
    return Variable(buffer, (), builder.frame)


@word
def alloc_global(shape: object, dtype: object, scope: str = "global") -> BufferProxy:
    """A workspace in global memory that lives for one call; it may have symbolic extents.

    A workspace that is accessed by atomics is zero before the first call; on a GPU later calls find the contents that
    the previous call left, so kernels with counters have to reset them.

    Parameters
    ----------
    shape : ints or symbolic sizes.
    dtype : of an element.
    scope : accepted for TileLang's sake.

    Examples
    --------
    >>> work = T.alloc_global((64, 64), "float32")
    >>> T.copy(A, work)
    >>> T.copy(work, C)
    """
    builder = current("T.alloc_global")
    buffer = Buffer(builder.take_name("workspace"), shape_of(shape, "T.alloc_global"), element_dtype(dtype))
    builder.allocate_on_host(buffer)
    return BufferProxy(buffer)


@word
def view(src: BufferProxy, shape: object = None, dtype: object = None, strides: object = None) -> BufferProxy:
    """The same memory under another shape or dtype.

    Parameters
    ----------
    src : a tensor, a shared tile or a fragment.
    shape : of the view; that of `src` where None.
    dtype : of the view; that of `src` where None.
    strides : of a tensor's view, in elements; row-major where None, as views of tiles are.

    Raises
    ------
    ViewMismatch : the view would need more or fewer bytes, or memory order is not row-major.

    Examples
    --------
    >>> bits = T.view(A, dtype="int32")
    >>> N[i] = bits[i, 0]
    """
    base = _whole_buffer(src, "T.view")
    record = base.dtype if dtype is None else dtypes.dtype(dtype)
    sizes: tuple[Extent, ...] = base.shape if shape is None else shape_of(shape, "T.view")
    if base.strides is not None or base.packed:
        raise ViewMismatch(base.name, "is not row-major")
    if shape is None and record.stored_bits != base.dtype.stored_bits:
        sizes = (*base.shape[:-1], _converted(base, record))
    steps = None if strides is None else _strides(base, sizes, strides_of(strides, sizes, "the strides of T.view"))
    there, wanted, by = known(base.shape), known(sizes), None if steps is None else known(steps)
    if there is not None and wanted is not None and (steps is None or by is not None):
        reach = math.prod(wanted)
        if by is not None and reach:
            reach = 1 + sum((size - 1) * step for size, step in zip(wanted, by, strict=True))
        old, new = base.dtype.nbytes(math.prod(there)), record.nbytes(reach)
        if old != new if by is None else old < new:
            raise ViewMismatch(base.name, f"has {old} bytes, but the view needs {new}")
    name = current("T.view").take_name(f"{base.name}_view")
    return BufferProxy(Buffer(name, sizes, record, base.scope, steps, source=base.source or base), src.frame)


def _strides(base: Buffer, sizes: tuple[Extent, ...], steps: tuple[Extent, ...]) -> tuple[Extent, ...] | None:
    """Strides of a view, None where they are those of a row-major one."""
    row_major: list[int | None] = [1]
    for size in sizes[:0:-1]:
        inner = row_major[0]
        row_major.insert(0, inner * size if isinstance(size, int) and inner is not None else None)
    if list(steps) == row_major:
        return None
    if base.scope != "global":
        raise NumberExpected("the strides of T.view", f"{tuple(row_major)}: a view of a tile is row-major", f"{steps}")
    return steps


class TensorWord(TensorAnnotation):
    """``T.Tensor``: an annotation, or within a program the memory of a buffer in another shape."""

    @author_facing
    def __call__(self, shape: object, dtype: object = "float32", data: BufferProxy | None = None) -> Any:
        """A row-major tensor; with `data` (``buffer.data``) not a new one, but what `view` makes of that buffer."""
        return super().__call__(shape, dtype) if data is None else view(data, shape, dtype)


Tensor = TensorWord("Tensor")


@word
def alias(buffer: BufferProxy, shape: object, dtype: object) -> BufferProxy:
    """Another tile in the first bytes of a shared tile, whose contents are no longer needed.

    Parameters
    ----------
    buffer : made by `alloc_shared`.
    shape, dtype : of the new tile.

    Raises
    ------
    ViewMismatch : the tile has fewer bytes.

    Examples
    --------
    >>> again = T.alias(shared, (64, 128), "float16")
    >>> T.clear(again)
    """
    base = _whole_buffer(buffer, "T.alias")
    record, sizes = dtypes.dtype(dtype), static_shape_of(shape, "T.alias")
    needed = record.nbytes(math.prod(sizes))
    there = base.dtype.nbytes(math.prod(base.static_shape))
    if needed > there:
        raise ViewMismatch(base.name, f"has {there} bytes, but the view needs {needed}")
    name = current("T.alias").take_name(f"{base.name}_alias")
    return BufferProxy(Buffer(name, sizes, record, base.scope, source=base.source or base), buffer.frame)


def _converted(base: Buffer, record: dtypes.DType) -> int:
    last = base.shape[-1]
    if not isinstance(last, int) or last * base.dtype.stored_bits % record.stored_bits:
        raise ViewMismatch(base.name, f"has rows that do not divide into {record}")
    return last * base.dtype.stored_bits // record.stored_bits


@word
def reshape(src: BufferProxy, shape: object) -> BufferProxy:
    """The same elements in row-major order under another shape.

    Parameters
    ----------
    src : a tensor or a tile.
    shape : of as many elements.

    Examples
    --------
    >>> flat = T.reshape(A, (4096,))
    >>> C[0, 0] = flat[65]
    """
    return view(src, shape)


def _whole_buffer(value: object, what: str) -> Buffer:
    if not isinstance(value, BufferProxy):
        raise TileExpected(what, describe(value))
    return value.buffer
