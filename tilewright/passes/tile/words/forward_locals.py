"""Arrays that all threads fill alike from tensors, element for element, are read where they came from.

Before::

    mask = local(bool[8])
    for k in range(8):
        mask[k] = Mask[by, bx, k]
    for k in pipelined(bx + 1, stages=1):
        if mask[k]:
            ...

After::

    for k in pipelined(bx + 1, stages=1):
        if Mask[by, bx, k]:
            ...

Registers have no addresses: an array of a thread that a loop's variable indexes lies in slow memory, and what its
elements decide is known to no other warp. An element of a tensor that nobody writes is at hand for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from tilewright.interpreter.varying import find_varying
from tilewright.ir.effects import has_effect, root, touched
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    Function,
    Kernel,
    Let,
    Load,
    Parallel,
    Region,
    Seq,
    Statement,
    Store,
    Var,
)
from tilewright.ir.visitor import changed, declared, find, put, substitute, without_tiles
from tilewright.passes.context import Context
from tilewright.passes.scoped import map_kernels

T = TypeVar("T")


def forward_locals(function: Function, context: Context) -> Function:
    """Replace what is read of arrays that hold elements of tensors by those elements."""
    return map_kernels(function, _forwarded)


@dataclass(frozen=True, slots=True)
class Filled:
    """How an array is filled: by one loop over all of it.

    Attributes
    ----------
    loop : the statement that does it, to go with the array.
    indices : the variables that stand for an element's place; where there is but one, that place may be written there.
    value : of that element.
    """

    loop: Statement
    indices: tuple[Expr, ...]
    value: Expr

    def at(self, place: tuple[Expr, ...]) -> Expr:
        """The value of the element at a place."""
        places = zip(self.indices, place, strict=True)
        return substitute(self.value, {index: here for index, here in places if isinstance(index, Var)})


def _forwarded(kernel: Kernel) -> Kernel:
    arrays = set(declared(kernel.body, "local"))
    arrays -= {root(node.buffer) for node in find(kernel.body, Region)}
    indexed = {node.buffer for node in find(kernel.body, Load) if not all(isinstance(i, Const) for i in node.indices)}
    arrays &= indexed
    if not arrays:
        return kernel
    stores = list(find(kernel.body, Store))
    arrays = {one for one in arrays if sum(store.buffer is one for store in stores) == 1}
    arrays -= find_varying(kernel).names
    found = dict(_fillings(kernel.body, arrays, touched(kernel.body).writes))
    return replace(kernel, body=again(found, kernel.body)) if found else kernel


def _fillings(node: Seq, arrays: set[Buffer], written: Collection[Buffer]) -> Iterator[tuple[Buffer, Filled]]:
    """Arrays that the statement behind their declaration, or one soon after it, fills before anything reads them."""
    for body in find(node, Seq):
        declared = [one.buffer for one in body.statements if isinstance(one, Allocate) and one.buffer in arrays]
        for array in declared:
            using = [one for one in body.statements if _mentions(one, array)]
            filled = filling(using[0], array) if using else None
            if filled is not None and is_lasting(filled.value, written):
                yield array, filled


def _mentions(statement: Statement, array: Buffer) -> bool:
    return any(node.buffer is array for node in find(statement, Load, Store))


def filling(statement: Statement, array: Buffer) -> Filled | None:
    """The value of each element where `statement` does nothing but fill all of an array."""
    extents: dict[Var, object] = {}
    names: dict[Var, Expr] = {}
    inner: object = statement
    while isinstance(inner, (For, Parallel)):
        if isinstance(inner, For):
            if inner.numbers is None or inner.numbers.start != 0 or inner.numbers.step != 1:
                return None
            extents[inner.var] = inner.numbers.stop
        else:
            extents.update(zip(inner.vars, inner.extents, strict=True))
        *named, inner = inner.body.statements or (None,)
        for one in named:
            if not isinstance(one, Let):
                return None
            names[one.var] = substitute(one.value, names)
    if not isinstance(inner, Store) or inner.buffer is not array:
        return None
    moving = [index for index in inner.indices if isinstance(index, Var)]
    if len(moving) != len(extents) or set(moving) != set(extents):
        return None
    sizes = [extents[index] if isinstance(index, Var) else 1 for index in inner.indices]
    whole = all(size == extent for size, extent in zip(sizes, array.shape, strict=True))
    return Filled(statement, inner.indices, substitute(inner.value, names)) if whole else None


def is_lasting(value: Expr, written: Collection[Buffer]) -> bool:
    """Whether a value is that of tensors which the kernel does not write, so that it is the same wherever it is asked
    for."""
    loads = [node.buffer for node in find(value, Load)]
    lasting = all(buffer.scope == "global" and root(buffer) not in written for buffer in loads)
    return bool(loads) and lasting and not has_effect(value)


def again(found: Mapping[Buffer, Filled], node: T) -> T:
    """`node` without some arrays and the loops that fill them: elements are read from where they came from."""

    def read(load: Load) -> Expr:
        filled = found.get(load.buffer)
        return load if filled is None else filled.at(tuple(changed(index, Load, by=read) for index in load.indices))

    node = put(without_tiles(node, found), {filled.loop: None for filled in found.values()})
    return changed(node, Load, by=read)
