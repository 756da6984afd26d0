"""`T.alloc_reducer` and its kin: values that the iterations of parallel loops combine into a few elements.

A reducer is a shared tile that iterations change atomically, so that it may be changed from any loop, under any
condition.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir import ALL, Binary, Buffer, DType, Load, same
from tilewright.ir.dtypes import dtype as record_of
from tilewright.language.atomics import ATOMICS
from tilewright.language.buffers import BufferProxy
from tilewright.language.memory import alloc_shared
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import Element, Scalar, describe, one_of
from tilewright.language.recording import Frame, word
from tilewright.language.tile_ops import copy, fill

OPERATIONS = {"sum": "add", "max": "max", "min": "min", "bitand": "and", "bitor": "or", "bitxor": "xor"}
"""The atomic operation of each way to combine."""


def neutral(op: str, dtype: DType) -> int | float:
    """What changes nothing."""
    if op in ("sum", "bitor", "bitxor"):
        return 0
    if op == "bitand":
        return -1 if dtype.kind == "int" else dtype.maximum
    if dtype.is_float and dtype.infinities:
        return float("-inf") if op == "max" else float("inf")
    return dtype.minimum if op == "max" else dtype.maximum


class ReducerElement(Element):
    """An element of a reducer."""

    __slots__ = ("op",)
    op: str


class ReducerProxy(BufferProxy):
    """A reducer: its elements are changed by `reducer_update`, or by ``acc[i] += value``."""

    description = "a reducer"

    def __init__(self, buffer: Buffer, frame: Frame | None, op: str) -> None:
        super().__init__(buffer, frame)
        self.op = op

    def __getitem__(self, key: object) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, Element):
            return found
        made = ReducerElement(found.buffer, found.indices, found.frame)
        made.op = self.op
        return made

    def __setitem__(self, key: object, value: object) -> None:
        place, wanted = self[key], OPERATIONS[self.op]
        expr = value.expr if isinstance(value, Scalar) else None
        if isinstance(place, ReducerElement) and isinstance(expr, Binary) and expr.op == wanted:
            here = Load(place.buffer.dtype, place.buffer, place.indices)
            for old, new in ((expr.left, expr.right), (expr.right, expr.left)):
                if same(old, here):
                    ATOMICS[f"atomic_{wanted}"](place, Scalar(new, getattr(value, "frame", None)))
                    return
        raise NumberExpected(
            "an assignment to a reducer", f"acc[i] combined with a value by {self.op!r}", describe(value)
        )


@word
def alloc_reducer(shape: object, dtype: object, op: str = "sum", replication: object = None) -> ReducerProxy:
    """A reduction variable (array) for the iterations of `T.Parallel`.

    Parameters
    ----------
    shape, dtype : of the elements.
    op : ``"sum"``, ``"max"``, ``"min"``, ``"bitand"``, ``"bitor"``, ``"bitxor"``.
    replication : accepted for TileLang's sake.

    Examples
    --------
    >>> total = T.alloc_reducer((64,), "float32", op="sum")
    >>> T.reducer_init(total)
    >>> for y, x in T.Parallel(64, 64):
    ...     T.reducer_update(total[y], A[y, x])
    >>> T.finalize_reducer(total, row)
    >>> T.copy(row, C[0, 0:64])
    """
    one_of(op, OPERATIONS, "op of T.alloc_reducer")
    record = record_of(dtype)
    if record.bits < 32:  # atomics are of 32 bits at least; what leaves is rounded once
        record = ALL["float32"] if record.is_float else ALL[f"{'u' * (record.kind == 'uint')}int32"]
    tile: BufferProxy = alloc_shared(shape, record)
    return ReducerProxy(tile.buffer, tile.frame, op)


def _reducer(value: object, what: str) -> ReducerProxy:
    if not isinstance(value, ReducerProxy):
        raise NumberExpected(f"the reducer of {what}", "what T.alloc_reducer gives", describe(value))
    return value


@word
def reducer_init(reducer: object, init: object = None) -> None:
    """Initialise every element to `init`, or to the neutral element.

    Parameters
    ----------
    reducer : made by `alloc_reducer`.
    init : a number; None for the neutral element.

    Examples
    --------
    >>> total = T.alloc_reducer((64,), "float32")
    >>> T.reducer_init(total)
    >>> for y, x in T.Parallel(64, 64):
    ...     T.reducer_update(total[y], A[y, x])
    >>> T.finalize_reducer(total, row)
    """
    found = _reducer(reducer, "T.reducer_init")
    fill(found, neutral(found.op, found.buffer.dtype) if init is None else init)


@word
def reducer_update(target: object, value: object) -> None:
    """Combine a value into an element, ``acc[i]``.

    Parameters
    ----------
    target : an element of a reducer.
    value : a scalar.

    Examples
    --------
    >>> total = T.alloc_reducer((64,), "float32")
    >>> T.reducer_init(total)
    >>> for y, x in T.Parallel(64, 64):
    ...     T.reducer_update(total[y], A[y, x])
    >>> T.finalize_reducer(total, row)
    """
    if not isinstance(target, ReducerElement):
        raise NumberExpected(
            "the element of T.reducer_update", "an element of T.alloc_reducer such as acc[i]", describe(target)
        )
    ATOMICS[f"atomic_{OPERATIONS[target.op]}"](target, value)


@word
def finalize_reducer(reducer: object, dst: object = None, batch: int = 1, annotations: object = None) -> None:
    """The results: copied to a tile, or left where they are.

    Parameters
    ----------
    reducer : made by `alloc_reducer`.
    dst : of the reducer's shape.
    batch, annotations : accepted for TileLang's sake.

    Examples
    --------
    >>> total = T.alloc_reducer((64,), "float32", op="max")
    >>> T.reducer_init(total)
    >>> for y, x in T.Parallel(64, 64):
    ...     T.reducer_update(total[y], A[y, x])
    >>> T.finalize_reducer(total, row)
    """
    found = _reducer(reducer, "T.finalize_reducer")
    if dst is not None:
        copy(found, dst)
