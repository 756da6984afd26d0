"""Atomic operations: on one element, or on a whole tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import ops
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32
from tilewright.language.buffers import BufferProxy, borrow_extents, region_of, vector_in
from tilewright.language.mistakes import NumberExpected, OperatorMismatch, TileExpected
from tilewright.language.proxies import (
    Element,
    Scalar,
    Value,
    Variable,
    as_expr,
    check_scope,
    describe,
    is_number,
    named_by_author,
    one_of,
)
from tilewright.language.recording import in_kernel, made_word, record_operator, statement_here, word
from tilewright.language.tensor_proxies import TensorProxy
from tilewright.language.vectors import Vector, lanes_of
from tilewright.ops import TMA, TMA_STORES

ORDERS = {None: "relaxed", "relaxed": "relaxed", "consume": "acquire", "acquire": "acquire", "release": "release",
          "acq_rel": "acq_rel", "seq_cst": "seq_cst"}  # fmt: skip


def _order(name: object, what: str) -> str:
    known = [order for order in ORDERS if order]
    return ORDERS[None if name is None else one_of(name, known, f"the memory order of {what}")]


def _place(value: object, role: str, what: str) -> ir.Region:
    """The one element that `value` names."""
    if not isinstance(value, (Element, Variable)):
        raise TileExpected(f"the {role} of {what}", describe(value), "an element such as A[i, j]")
    check_scope(value.frame)
    return ir.Region(value.buffer, value.indices, (1,) * len(value.indices))


def _common_place(value: object, what: str, kind: str = "add") -> ir.Region:
    """The same in memory that threads have in common: of fragments and locals each has some of its own."""
    place = _place(value, "destination", what)
    for problem in ops.Atomic(place, ir.const(0), kind).check():
        raise OperatorMismatch(what, problem)
    return place


def _atomic(kind: str) -> Callable[..., Any]:
    what = f"T.atomic_{kind}"

    def call(
        dst: object,
        value: object,
        memory_order: object = None,
        return_prev: bool = False,
        use_tma: bool = False,
        annotations: object = None,
    ) -> Any:
        builder = in_kernel(what)
        order = _order(memory_order, what)
        if isinstance(dst, Element) and is_number(value):
            place = _common_place(dst, what, kind)
            made = ir.Call(place.dtype, f"atomic_{kind}", (place, as_expr(value, place.dtype), order))
            if return_prev:
                return named_by_author(made, "previous", what)
            builder.append(ir.Evaluate(made, span=statement_here()))
            return None
        if return_prev:
            raise NumberExpected(f"return_prev of {what}", "False on tiles", "True")
        operand: ir.Region | ir.Expr = (
            region_of(value, f"the value of {what}")
            if isinstance(value, TensorProxy)
            else as_expr(value, what=f"the value of {what}")
        )
        if isinstance(dst, Element) and isinstance(operand, ir.Region):
            destination = borrow_extents(dst, operand)
        else:
            destination = region_of(dst, f"the destination of {what}")
        if use_tma:
            _by_engine(destination, operand, kind, what)
            return None
        record_operator(ops.Atomic(destination, operand, kind, order, span=statement_here()), what)
        return None

    parameters = {
        "dst": "an element, or a tile or slice.", "value": "a scalar, or (for tiles) a tile of the same shape.",
        "memory_order": "relaxed unless given.", "return_prev": "give back the element's old value.",
        "use_tma": "have the copy engine (sm_90 and above) add a shared tile to a tensor; it has been read when the "
            "statement ends.",
        "annotations": "accepted for TileLang's sake.",
    }  # fmt: skip
    meaning = f"``dst = dst {kind} value``, each element atomically."
    example = "for i in T.Parallel(64):", f"    T.atomic_{kind}(N[0], N[i])"
    return made_word(call, f"atomic_{kind}", meaning, parameters, *example)


def _by_engine(destination: ir.Region, value: ir.Region | ir.Expr, kind: str, what: str) -> None:
    """The engine's own addition, and the wait until it has read the tile."""
    if kind != "add" or not isinstance(value, ir.Region) or value.buffer.scope != "shared":
        raise NumberExpected(f"use_tma of {what}", "False: the copy engine adds shared tiles to tensors", "True")
    if destination.buffer.scope != "global" or value.dtype != destination.dtype:
        found = f"{value.dtype} to {destination.buffer.scope} {destination.dtype}"
        raise NumberExpected(f"use_tma of {what}", "False unless a tensor of the tile's dtype gets the sum", found)
    span = statement_here()
    how = ops.CopySchedule(prefer=TMA)
    operator = ops.Copy(value, destination, how, adds=True, token=TMA_STORES, span=span)
    record_operator(operator, what)
    builder = in_kernel(what)
    builder.append(ir.Commit(TMA_STORES, span=span))
    builder.append(ir.Wait(TMA_STORES, 0, True, span=span))


ATOMICS: dict[str, Callable[..., object]] = {
    f"atomic_{kind}": _atomic(kind) for kind in ("add", "max", "min", "and", "or", "xor")
}
"""The atomic operations by name."""


@word
def atomic_load(src: object, memory_order: str = "seq_cst") -> Scalar:
    """The value of an element, read atomically.

    Parameters
    ----------
    src : an element of a tensor or a shared tile.
    memory_order : ``"relaxed"``, ``"acquire"`` or ``"seq_cst"``.

    Examples
    --------
    >>> C[i, 0] = T.atomic_load(N[i])
    """
    in_kernel("T.atomic_load")
    place = _common_place(src, "T.atomic_load")
    loaded = ir.Call(place.dtype, "atomic_load", (place, _order(memory_order, "T.atomic_load")))
    return named_by_author(loaded, "loaded", "T.atomic_load")


@word
def atomic_store(dst: object, src: object, memory_order: str = "seq_cst") -> None:
    """Write an element atomically.

    Parameters
    ----------
    dst : an element of a tensor or a shared tile.
    src : a scalar.
    memory_order : ``"relaxed"``, ``"release"`` or ``"seq_cst"``.

    Examples
    --------
    >>> T.atomic_store(N[i], 3)
    """
    builder = in_kernel("T.atomic_store")
    place = _common_place(dst, "T.atomic_store")
    order = _order(memory_order, "T.atomic_store")
    call = ir.Call(
        place.dtype, "atomic_store", (place, as_expr(src, place.dtype, "the value of T.atomic_store"), order)
    )
    builder.append(ir.Evaluate(call, span=statement_here()))


def _packed(count: int) -> Callable[..., Any]:
    what = f"T.atomic_addx{count}"

    def call(dst: object, value: object, return_prev: bool = False, memory_order: object = None) -> Any:
        builder = in_kernel(what)
        order, span = _order(memory_order, what), statement_here()
        lane = ir.Var(INT32, "lane")
        place = _common_place(_element(dst, count, Scalar(lane), "destination", what), what)
        value_there = as_expr(_element(value, count, Scalar(lane), "value", what), place.dtype, f"the value of {what}")
        added = ir.Call(place.dtype, "atomic_add", (place, value_there, order))
        if not return_prev:
            body = ir.seq(ir.Evaluate(added, span=span))
            builder.append(ir.For(lane, ir.const(0), ir.const(count), ir.const(1), body, "vectorize", span=span))
            return None
        before = ir.Buffer(builder.take_name("previous"), (count,), place.dtype, "local")
        builder.append(ir.Allocate(before, span=span))
        body = ir.seq(ir.Store(before, (lane,), added, span=span))
        builder.append(ir.For(lane, ir.const(0), ir.const(count), ir.const(1), body, span=span))
        return lanes_of(before, builder.frame)

    parameters = {
        "dst": "the first of the elements, in a tensor or a shared tile; or a slice of them.",
        "value": "the first of the values, an element of a buffer; or a slice or a vector of them.",
        "return_prev": "give back the old values, a vector.",
        "memory_order": "accepted for TileLang's sake: relaxed.",
    }  # fmt: skip
    meaning = (
        f"`atomic_add` on {count} consecutive elements, from the first ones given.\n\n"
        f"One access where the machine has such a one, and the first is known to be a multiple of {count}."
    )
    example = "for j in T.Parallel(8):", f"    {what}(C[0, j * {count}], A[0, j * {count}])"
    return made_word(call, f"atomic_addx{count}", meaning, parameters, *example)


def _element(value: object, count: int, lane: Scalar, role: str, what: str) -> Value:
    """One of `count` neighbours: of a vector's or a slice's, or of those that begin with an element."""
    if isinstance(value, BufferProxy):
        value = value[(slice(None),) * len(value.shape)]
    vector = vector_in(value)
    if isinstance(vector, Vector):
        if vector.lanes != count:
            raise NumberExpected(f"the {role} of {what}", f"{count} values", str(vector.lanes))
        return vector.of(lane)
    first = _place(value, role, what)
    return Element(first.buffer, (*first.starts[:-1], first.starts[-1] + lane.expr), lane.frame)


atomic_addx2, atomic_addx4 = _packed(2), _packed(4)
