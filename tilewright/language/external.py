"""Functions in the device's language and pointers for them, and `dp4a`: what single threads call."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from tilewright.ir import BOOL, changed, dtypes, find
from tilewright.ir import nodes as ir
from tilewright.language.buffers import BufferProxy, RegionProxy, region_of, row
from tilewright.language.dtypes import NumberType
from tilewright.language.mistakes import NumberExpected, TileExpected
from tilewright.language.proxies import Element, Scalar, Value, as_expr, constant, describe, is_number, named_by_author
from tilewright.language.recording import called, current, in_kernel, made_word, statement_here, word

NOTHING = ("handle", "void", "", None)
"""Result types of functions that are called for their effect."""

_FIRST = "first"
"""The type of a result stands before its function."""

WRITES = ("r", "w", "rw")

BYTES = {("int8", "int8"): "s8s8", ("uint8", "int8"): "u8s8", ("uint8", "uint8"): "u8u8", ("int8", "uint8"): "s8u8"}


@word
def import_source(source: object = None) -> None:
    """Put source code in the device's language before the kernels, for instance functions for `call_extern`.

    The emulator compiles it too: write it in C++, ``__device__`` before each function, or in the words of
    `docs/cuda_vocabulary.md`.

    Parameters
    ----------
    source : the text; None for none.

    Examples
    --------
    >>> T.import_source("__device__ float twice(float x) { return 2 * x; }")
    >>> C[tx // 64, tx % 64] = T.call_extern("float32", "twice", A[tx // 64, tx % 64])
    """
    if source is None:
        return
    if not isinstance(source, str):
        raise NumberExpected("the argument of T.import_source", "a text", describe(source))
    attributes = current("T.import_source").attributes
    if source not in attributes.get("sources", ()):
        attributes["sources"] = (*attributes.get("sources", ()), source)


@word
def call_extern(*args: object, dtype: object = _FIRST) -> Value | None:
    """Call a function of the device's own language (`import_source`), in each executing thread.

    Parameters
    ----------
    args : the type of its result, ``"handle"`` or ``"void"`` where it has none; its name, a text; then what it is
        given: numbers, and pointers: `access_ptr`, `address_of`, or a whole buffer that is no fragment.  The function
        may write through its pointers.
    dtype : the type of its result, in place of the first argument.  It may be left out for a function whose result is
        not used.

    Returns
    -------
    its result, or None.

    Examples
    --------
    >>> T.import_source("__device__ float twice(float x) { return 2 * x; }")
    >>> C[tx // 64, tx % 64] = T.call_extern("float32", "twice", A[tx // 64, tx % 64])
    """
    builder = in_kernel("T.call_extern")
    if isinstance(dtype, str) and dtype == _FIRST:
        dtype, *args = args or (None,)  # type: ignore[assignment]
    func_name, *given = args or (None,)
    if not isinstance(func_name, str) or not func_name.replace("::", "_").isidentifier():
        raise NumberExpected("the function of T.call_extern", "its name", describe(func_name))
    arguments = tuple(_argument(one, f"an argument of {func_name}") for one in given)
    if dtype in NOTHING:
        builder.append(ir.Evaluate(ir.Call(BOOL, "call_extern", (func_name, *arguments)), span=statement_here()))
        return None
    record = dtypes.dtype(dtype)
    return named_by_author(ir.Call(record, "call_extern", (func_name, *arguments)), "result", "T.call_extern")


def without_results(body: ir.Seq) -> ir.Seq:
    """A traced program without names for results that are not used."""
    if not any(isinstance(one, ir.Call) and one.function == "call_extern" for one in find(body, ir.Call)):
        return body
    mentioned = Counter(find(body, ir.Var))

    def discarded(let: ir.Let) -> ir.Let | ir.Evaluate:
        """A call whose result is not used becomes a statement: the function may return nothing."""
        call = let.value
        if isinstance(call, ir.Call) and call.function == "call_extern" and mentioned[let.var] == 1:
            return ir.Evaluate(ir.Call(BOOL, call.function, call.arguments), span=let.span)
        return let

    return changed(body, ir.Let, by=discarded)


def _argument(value: object, what: str) -> ir.Expr | ir.Region:
    if isinstance(value, BufferProxy):
        value = access_ptr(value)
    if isinstance(value, RegionProxy):
        if value.region.buffer.scope == "fragment":
            raise TileExpected(what, f"the fragment {value.region.buffer.name!r}", "memory: copy it to a tile first")
        return value.region
    if is_number(value):
        return as_expr(value, what=what)
    raise TileExpected(what, describe(value), "a number, T.access_ptr(...) or T.address_of(...)")


@called("tvm_access_ptr")
@word
def access_ptr(
    base: object,
    access_type: Any = "r",
    *extents: object,
    offset: object = 0,
    extent: object = None,
    ignore_last_ndim: int = 0,
) -> RegionProxy:
    """A pointer to an element, for functions of the device's language and raw copies.

    Parameters
    ----------
    base : a buffer (its first element), a slice, or an element.
    access_type : ``"r"``, ``"w"`` or ``"rw"``; or 1, 2, 3 for them.
    extents : the number of elements, or the extents of the last dimensions, that are accessed; by default all.
    offset : elements skipped at the beginning, along the last dimension.
    extent : the number of elements along the last dimension, in place of `extents`.
    ignore_last_ndim : how many of the last indices of `base` are taken as 0.

    Examples
    --------
    >>> T.import_source("__device__ void twice(float* x) { *x *= 2; }")
    >>> T.call_extern("void", "twice", T.access_ptr(C[tx // 64, tx % 64], "rw"))
    """
    what = "T.access_ptr"
    if isinstance(base, NumberType):
        return _as_in_tvm(access_type, *extents)
    access_type = {1: "r", 2: "w", 3: "rw"}.get(access_type, access_type)
    if access_type not in WRITES:
        raise NumberExpected(f"access_type of {what}", "one of 'r', 'w', 'rw'", repr(access_type))
    region = region_of(base, f"the base of {what}", "a buffer, or an element such as A[i, j]")
    if ignore_last_ndim:
        kept = max(0, len(region.starts) - constant(ignore_last_ndim, f"ignore_last_ndim of {what}"))
        region = replace(region, starts=tuple(s if i < kept else ir.const(0) for i, s in enumerate(region.starts)))
    if extent is not None:
        extents = (extent,)
    elif len(extents) == 1 and isinstance(extents[0], (tuple, list)):
        extents = tuple(extents[0])
    given = tuple(constant(one, f"an extent of {what}") for one in extents)
    if given:
        region = ir.Region(region.buffer, region.starts, (*(1,) * (len(region.starts) - len(given)), *given))
    if not (isinstance(offset, int) and offset == 0):
        moved = region.starts[-1] + as_expr(offset, what=f"the offset of {what}")
        region = ir.Region(region.buffer, (*region.starts[:-1], moved), region.extents)
    return RegionProxy(region, getattr(base, "frame", None))


def _as_in_tvm(buffer: object, offset: object = 0, extent: object = None, mask: object = 3) -> RegionProxy:
    """TVM's arguments behind `T.type_annotation`: a buffer, an offset in elements in row-major order, an extent and an
    access mask."""
    if not isinstance(buffer, BufferProxy):
        raise TileExpected("the base of T.tvm_access_ptr", describe(buffer), "a buffer, such as A.data")
    rest = as_expr(offset, what="the offset of T.tvm_access_ptr")
    indices: list[Scalar] = []
    for size in reversed(buffer.buffer.shape[1:]):
        indices.append(Scalar(rest % size))
        rest = rest // size
    place = (Scalar(rest), *reversed(indices))
    found: RegionProxy = access_ptr(buffer[place], mask, extent=extent)
    return found


@word
def type_annotation(dtype: object) -> NumberType:
    """The element type of `access_ptr`, which is the first argument in TVM's programs.

    Parameters
    ----------
    dtype : a type's name or one of `T`'s.

    Examples
    --------
    >>> T.import_source("__device__ void twice(float* x) { *x *= 2; }")
    >>> T.call_extern("void", "twice", T.access_ptr(T.type_annotation("float32"), C.data, tx, 1, 3))
    """
    return NumberType(dtype)


address_of = made_word(
    lambda obj: access_ptr(obj, "rw"),
    "address_of",
    "The place of an element, such as ``T.address_of(A[i, j])``.",
    {"obj": "of a buffer that is no fragment."},
    'T.import_source("__device__ void twice(float* x) { *x *= 2; }")',
    'T.call_extern("void", "twice", T.address_of(C[tx // 64, tx % 64]))',
)


@word
def dp4a(A: object, B: object, C: object) -> None:
    """``C += A[0] * B[0] + A[1] * B[1] + A[2] * B[2] + A[3] * B[3]`` on bytes, in each thread.

    Parameters
    ----------
    A, B : the first of four int8 or uint8 elements each, at multiples of four: a buffer, or an element such as
        ``A[i * 4]``.
    C : an element of int32 (uint32 where both are unsigned).

    Examples
    --------
    >>> bytes = T.alloc_local((4,), "int8")
    >>> total = T.alloc_local((1,), "int32")
    >>> for k in T.serial(4):
    ...     bytes[k] = k
    >>> total[0] = 0
    >>> T.dp4a(bytes, bytes, total)
    """
    builder = in_kernel("T.dp4a")
    left, right = (_four(one, f"operand {name} of T.dp4a") for name, one in (("A", A), ("B", B)))
    total = access_ptr(C[0] if isinstance(C, BufferProxy) and C.ndim == 1 else C, "rw").region
    kinds = BYTES.get((left.dtype.name, right.dtype.name))
    if kinds is None or total.dtype.name not in ("int32", "uint32"):
        found = f"{left.dtype}, {right.dtype} and {total.dtype}"
        raise NumberExpected("T.dp4a", "bytes, and a sum of 32 bits", found)
    total = ir.Region(total.buffer, total.starts, (1,) * len(total.starts))
    builder.append(ir.Evaluate(ir.Call(BOOL, "dp4a", (left, right, total)), span=statement_here()))


def _four(value: object, what: str) -> ir.Region:
    if not isinstance(value, (BufferProxy, Element)):
        raise TileExpected(what, describe(value), "a buffer of bytes, or an element such as A[i * 4]")
    return row(region_of(value, what), 4)
