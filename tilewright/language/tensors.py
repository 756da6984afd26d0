"""What tensors a function takes and makes: annotations, symbolic sizes, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir import FLOAT32, GLOBAL_ALIGNMENT, UINT64, Allocate, Buffer, DType, Extent, Let, Var, dtypes
from tilewright.ir.signature import ADDRESSED
from tilewright.language.buffers import BufferProxy
from tilewright.language.dtypes import NumberType
from tilewright.language.mistakes import NumberExpected
from tilewright.language.mistakes_of_scopes import ConstOutsideDirect, UnboundSize
from tilewright.language.proxies import Scalar, as_expr, constant, constant_that, describe, extent, from_extent
from tilewright.language.recording import author_facing, current, in_kernel, statement_here, word
from tilewright.language.several import Several


@dataclass(frozen=True, slots=True)
class TensorType:
    """An annotation: the shape, dtype and memory order of a tensor parameter.

    Attributes
    ----------
    extents, element : its shape and the type of its elements, as nodes have them.
    steps : strides in elements; None for a row-major tensor.
    packed : the compiler chooses the physical order, and ``kernel.pack`` makes it.
    pointers : its elements are addresses.
    """

    extents: tuple[Extent, ...]
    element: DType
    steps: tuple[Extent, ...] | None = None
    packed: bool = False
    pointers: bool = False

    @property
    def shape(self) -> tuple[int | Scalar, ...]:
        """Its extents as authors have them."""
        return tuple(from_extent(size) for size in self.extents)

    @property
    def dtype(self) -> NumberType:
        """The type of its elements as authors have it."""
        return NumberType(self.element)

    def buffer(self, name: str) -> Buffer:
        """A global buffer of this type."""
        return Buffer(name, self.extents, self.element, "global", self.steps, packed=self.packed)


def shape_of(sizes: object, what: str) -> tuple[Extent, ...]:
    """A shape from what an author writes: a sequence of sizes, or one size."""
    if not isinstance(sizes, (tuple, list)):
        sizes = (sizes,)
    shape = tuple(extent(size, f"an extent of {what}") for size in sizes)
    for size in shape:
        if isinstance(size, int) and size < 0:
            raise NumberExpected(f"an extent of {what}", "a size that is not negative", str(size))
    return shape


def strides_of(steps: object, sizes: Sequence[Extent], what: str) -> tuple[Extent, ...]:
    """Strides of a shape, from the same."""
    strides = shape_of(steps, what)
    if len(strides) != len(sizes):
        raise NumberExpected(what, f"{len(sizes)} numbers, one a dimension", str(len(strides)))
    return strides


def static_shape_of(sizes: object, what: str, hint: str | None = None) -> tuple[int, ...]:
    """A shape of ints from the same, for what must have a known size."""
    given = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    return tuple(constant(size, f"an extent of {what}", hint) for size in given)


class TensorAnnotation:
    """``T.Tensor(shape, dtype)`` or ``T.Tensor[shape, dtype]``."""

    def __init__(self, name: str, packed: bool = False) -> None:
        self.name, self.packed = name, packed

    @author_facing
    def __call__(self, shape: object, dtype: object = "float32") -> TensorType:
        """A contiguous (row-major) tensor.

        Parameters
        ----------
        shape : extents: ints, `T.const` or `T.dynamic` symbols, expressions of them.
        dtype : a name, a `T` dtype, a NumPy or torch type; `ptr` for a table of pointers, whose entries `make_tensor`
            takes.
        """
        pointers = isinstance(dtype, PointerAnnotation)
        return TensorType(
            shape_of(shape, f"T.{self.name}"), element_dtype(dtype), packed=self.packed, pointers=pointers
        )

    def __getitem__(self, key: object) -> TensorType:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) == 2 and isinstance(parts[0], (tuple, list)):
            return self(*parts)
        if parts and not isinstance(parts[-1], (int, Scalar)):
            return self(parts[:-1], parts[-1])
        return self(parts)


Packed = TensorAnnotation("Packed", packed=True)


class StridedAnnotation:
    """``T.StridedTensor(shape, strides, dtype)`` or ``T.StridedTensor[shape, strides, dtype]``."""

    @author_facing
    def __call__(self, shape: object, strides: object = None, dtype: object = "float32") -> TensorType:
        """A tensor with the given strides, in elements; they may be symbolic."""
        sizes = shape_of(shape, "T.StridedTensor")
        if strides is None:
            return TensorType(sizes, element_dtype(dtype))
        return TensorType(sizes, element_dtype(dtype), strides_of(strides, sizes, "the strides"))

    def __getitem__(self, key: object) -> TensorType:
        made: TensorType = self(*key) if isinstance(key, tuple) else self(key)
        return made


StridedTensor = StridedAnnotation()


def _split(names: str | Sequence[str]) -> list[str]:
    if not isinstance(names, (str, list, tuple)):
        raise NumberExpected("the name of a size", "an identifier such as 'M'", describe(names))
    parts = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    for name in parts:
        if not isinstance(name, str) or not name.isidentifier():
            raise NumberExpected("the name of a size", "an identifier such as 'M'", describe(name))
    return parts


@word
def dynamic(name: str | Sequence[str], dtype: object = "int32") -> Any:
    """Sizes known only at launch: one kernel serves all of them.

    Parameters
    ----------
    name : ``"m"`` for one symbol, ``"m, n"`` for several.
    dtype : an integer type. A call is refused in which a sum or product of sizes, such as ``m * n``, is beyond it.

    Returns
    -------
    a symbolic scalar, or a tuple of them.

    Examples
    --------
    >>> m = T.dynamic("m")
    >>> @T.prim_func
    ... def example(A: T.Tensor((m, 64), "float32"), C: T.Tensor((m, 64), "float32")):
    ...     with T.Kernel(T.ceildiv(m, 16)) as bx:
    ...         T.copy(A[bx * 16 : bx * 16 + 16, 0:64], C[bx * 16, 0])
    """
    symbols = tuple(Scalar(Var(dtypes.dtype(dtype), one)) for one in _split(name))
    return symbols[0] if len(symbols) == 1 else symbols


symbolic = dynamic


@word
def const(name: str | Sequence[str], dtype: object = "int32") -> Any:
    """Sizes that are Python ints in the kernel: bound from the shapes of the arguments (direct style only).

    Each stands alone as an extent or a stride of an annotated tensor, or is passed by its name in the call.

    Parameters
    ----------
    name : ``"M"`` for one size, ``"M, N"`` for several.
    dtype : accepted for TileLang's sake.
    """
    builder = current("T.const")
    if builder.style != "direct":
        raise ConstOutsideDirect("T.const")
    values = tuple(_size(builder, one, dtypes.dtype(dtype)) for one in _split(name))
    return values[0] if len(values) == 1 else Several.of("T.const", f"{', '.join(_split(name))} = T.const(...)", values)


def _size(builder: Any, name: str, dtype: DType) -> Any:
    if builder.sizes is None:
        return Scalar(builder.symbols.setdefault(name, Var(dtype, name)))
    if name not in builder.sizes:
        raise UnboundSize(name)
    return builder.sizes[name]


@word
def empty(*shape: object, dtype: object = None) -> BufferProxy:
    """An output tensor, made for each call; the function must return it.

    Parameters
    ----------
    shape : extents, as several arguments or one tuple; a dtype may follow.
    dtype : default float32.
    """
    sizes = list(shape)
    if dtype is None and len(sizes) > 1 and not isinstance(sizes[-1], (int, Scalar)):
        dtype = sizes.pop()
    builder = current("T.empty")
    flat = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    record = element_dtype("float32" if dtype is None else dtype)
    buffer = Buffer(builder.take_name("output"), shape_of(flat, "T.empty"), record)
    builder.outputs[buffer] = statement_here()
    return BufferProxy(buffer)


class PointerAnnotation:
    """``T.ptr`` or ``T.ptr(dtype)``: a tensor parameter whose shape `make_tensor` says."""

    def __init__(self, dtype: DType | None = None) -> None:
        self.dtype = dtype

    @author_facing
    def __call__(
        self, dtype: object = None, storage_scope: str = "global", is_size_var: bool = False
    ) -> PointerAnnotation:
        """A pointer to elements of a dtype, in global memory."""
        if storage_scope != "global":
            raise NumberExpected("storage_scope of T.ptr", "'global'", repr(storage_scope))
        return PointerAnnotation(None if dtype is None else dtypes.dtype(dtype))


ptr = PointerAnnotation()

handle = ptr
"""TVM's word for a pointer that a function takes."""


def element_dtype(dtype: object) -> DType:
    """The dtype of a tensor's elements; an entry of a table of pointers (`ptr`) is an address of 64 bits."""
    record = UINT64 if isinstance(dtype, PointerAnnotation) else dtypes.dtype(dtype)
    if record.lanes > 1:
        numbers = f"a type of numbers, such as {record.scalar}, and a last dimension of {record.lanes}"
        raise NumberExpected("the dtype of a tensor", numbers, str(record))
    return record


class PointerProxy:
    """A parameter declared as `ptr`, until `make_tensor` says what it points to."""

    description = "a pointer"

    def __init__(self, name: str, dtype: DType | None) -> None:
        self.name, self.dtype = name, dtype


@word
def make_tensor(
    ptr: object, shape: object, dtype: object = None, strides: object = None, alignment: object = GLOBAL_ALIGNMENT
) -> BufferProxy:
    """The tensor that a pointer points to.

    Callers pass a tensor of this shape and dtype for a pointer that is a parameter, or its address, of which nothing is
    checked; the second and later tensors that it makes see the same memory in other shapes. For a table of pointers
    they pass a list of tensors, or (on a device) a tensor of their addresses; what an entry points to is made in the
    kernel.

    Parameters
    ----------
    dtype : of an element; the pointer's where None, float32 where it has none.
    ptr : a parameter annotated with `ptr`; or an entry ``table[i]`` of a parameter ``T.Tensor(shape, T.ptr)``, or any
        other address of 64 bits, on which all threads of the block agree.
    shape : extents, which may be scalar parameters; of an entry, anything that the kernel knows.
    strides : in elements; row-major where None.
    alignment : bytes that an entry's address is a multiple of.
    """
    sizes = shape_of(shape, "T.make_tensor")
    steps = None if strides is None else strides_of(strides, sizes, "the strides of T.make_tensor")
    if isinstance(ptr, Scalar) and ptr.expr.dtype.is_integer and ptr.expr.dtype.bits == 64:
        return _pointed_to(ptr, sizes, steps, dtype, alignment)
    if not isinstance(ptr, PointerProxy):
        expected = "a parameter annotated with T.ptr, or an entry of a tensor of T.ptr"
        raise NumberExpected("the pointer of T.make_tensor", expected, describe(ptr))
    record = (ptr.dtype or FLOAT32) if dtype is None else element_dtype(dtype)
    builder = current("T.make_tensor")
    known = builder.params[ptr.name]
    if isinstance(known, Buffer):
        name = builder.take_name(f"{ptr.name}_view")
        return BufferProxy(Buffer(name, sizes, record, "global", steps, source=known))
    made = Buffer(ptr.name, sizes, record, "global", steps)
    builder.params[ptr.name] = made
    builder.attributes[ADDRESSED] = (*builder.attributes.get(ADDRESSED, ()), ptr.name)
    return BufferProxy(made)


@word
def match_buffer(
    param: object,
    shape: object,
    dtype: object = None,
    strides: object = None,
    elem_offset: object = None,
    scope: str = "global",
    align: int = 0,
    offset_factor: int = 0,
) -> BufferProxy:
    """The tensor that a parameter annotated with `handle` is: callers pass one of this shape and dtype, which is
    checked, and its sizes are bound.

    Parameters
    ----------
    param : the parameter.
    shape : extents; sizes that only a call knows are `dynamic`, or ``T.int32()`` before the kernel.
    dtype : of an element; the pointer's where None, float32 where it has none.
    strides : in elements; row-major where None or empty.
    elem_offset, scope, align, offset_factor : 0 or None, ``"global"``; accepted for TVM's sake.
    """
    if not isinstance(param, PointerProxy) or elem_offset not in (None, 0) or scope != "global":
        expected = "a parameter annotated with T.handle, without elem_offset, in global memory"
        raise NumberExpected("what T.match_buffer declares", expected, f"{describe(param)}, {elem_offset}, {scope!r}")
    builder = current("T.match_buffer")
    if isinstance(builder.params[param.name], Buffer):
        raise NumberExpected("what T.match_buffer declares", "declared once", f"{param.name}, declared before")
    made: BufferProxy = make_tensor(param, shape, dtype, strides or None)
    addressed = builder.attributes.pop(ADDRESSED)
    if len(addressed) > 1:
        builder.attributes[ADDRESSED] = addressed[:-1]
    return made


@word
def make_tensor_from_addr(
    addr: object, shape: object, dtype: object = None, strides: object = None, storage_scope: str = "global"
) -> BufferProxy:
    """`make_tensor` of an address.

    Parameters
    ----------
    addr : as ``ptr`` of `make_tensor`.
    shape, dtype, strides : as those of `make_tensor`.
    storage_scope : ``"global"``.
    """
    if storage_scope != "global":
        raise NumberExpected("storage_scope of T.make_tensor_from_addr", "'global'", repr(storage_scope))
    made: BufferProxy = make_tensor(addr, shape, dtype, strides)
    return made


def _pointed_to(
    address: Scalar, sizes: tuple[Extent, ...], steps: tuple[Extent, ...] | None, dtype: object, alignment: object
) -> BufferProxy:
    """A tensor whose address the kernel knows."""
    builder = in_kernel("T.make_tensor of an entry")
    what = "the alignment of T.make_tensor"
    bytes_ = constant_that(lambda number: number > 0 == number & (number - 1), alignment, what, "a power of two")
    span = statement_here()

    def known(size: Extent) -> Extent:
        """An extent under a name of its own, which no pass takes apart."""
        if isinstance(size, (int, Var)):
            return size
        var = Var(size.dtype, "extent")
        builder.append(Let(var, size, span=span))
        return var

    shape = tuple(map(known, sizes))
    strides = None if steps is None else tuple(map(known, steps))
    name = builder.take_name("tensor")
    record = FLOAT32 if dtype is None else element_dtype(dtype)
    made = Buffer(name, shape, record, "global", strides, alignment=bytes_, placed=True)
    builder.append(Allocate(made, as_expr(address, UINT64), span=span))
    return BufferProxy(made, builder.frame)
