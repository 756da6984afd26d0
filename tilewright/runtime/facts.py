"""Fact classes: what is known of tensors only at launch, and lets the compiler do better or forces it to do worse.

How many bytes a tensor's address and the steps between its rows are multiples of decides whether rows can be
moved by the copy engine and in the widest vectors (16 bytes, 32 where the machine has them), by narrower pieces, or
element by element. A kernel is compiled for the best class at once; a call whose tensors are of another one compiles a
variant for it.

Where one tensor is passed twice, the kernel is made for one. Passes take tensors as distinct; a program that has one
tensor where two were is right without their knowing, if blocks and iterations do not touch what others write. Where
nobody can prove that, the author says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tilewright.ir import BOOL, MAY_SHARE, Buffer, Function, entry_parameters, evaluate, key, substitute
from tilewright.ir.nodes import GLOBAL_ALIGNMENT, Assume, Binary, Const, Expr, Seq, Var
from tilewright.passes.in_place_updates import changes_in_place
from tilewright.passes.lower.flatten_buffers import strides_of
from tilewright.runtime.tensors import is_tensor, tensor_view

FactClass: TypeAlias = tuple[int, ...]
"""Bytes, a power of two up to the machine's widest access, for each buffer among the parameters: its address and rows
are multiples of them.

0 where rows of elements that share bytes may end within one.
"""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """What decides the class of one parameter.

    Attributes
    ----------
    place : among the entry arguments.
    rows : what fixed strides are multiples of.
    strides : those known only at launch, in elements.
    extents : likewise; a tensor without elements is nowhere, so that the copy engine, whose smallest tensor has one,
        must not read it.
    """

    buffer: Buffer
    place: int
    rows: int
    strides: tuple[Expr, ...]
    extents: tuple[Expr, ...]


class FactClasses:
    """The fact classes of one function.

    Parameters
    ----------
    function : as traced.
    widest : bytes of the machine's widest access.
    """

    def __init__(self, function: Function, widest: int = GLOBAL_ALIGNMENT) -> None:
        self.function, self.widest = function, widest
        self.parameters = entry_parameters(function)
        self.tensors = tuple(
            _tensor(param, place, widest) for place, param in enumerate(self.parameters) if isinstance(param, Buffer)
        )
        # Fixed strides are no part of a class: passes see them, and addresses may be multiples of more.
        self.best: FactClass = tuple(widest for _ in self.tensors)

    def of(self, entry: Sequence[Any]) -> FactClass:
        """The class of a call with these entry arguments; addresses are numbers."""
        sizes = {var: value for var, value in zip(self.parameters, entry, strict=True) if isinstance(var, Var)}
        return tuple(_class(tensor, int(entry[tensor.place]), sizes, self.widest) for tensor in self.tensors)

    def assuming(self, of: FactClass) -> Function:
        """The program told that its tensors are of a class."""
        facts: dict[object, Assume] = {}
        changed: dict[Buffer, Buffer] = {}
        for tensor, size in zip(self.tensors, of, strict=True):
            buffer = tensor.buffer
            address = max(size, 1)
            if address != buffer.alignment:
                changed[buffer] = replace(buffer, alignment=address)
            for stride in tensor.strides:
                unit = _unit(buffer, size)
                if unit > 1:
                    rest = Binary(stride.dtype, "floormod", stride, Const(stride.dtype, unit))
                    condition = Binary(BOOL, "eq", rest, Const(stride.dtype, 0))
                    facts.setdefault((key(stride), unit), Assume(condition, span=self.function.span))
        body = Seq((*facts.values(), *self.function.body.statements), span=self.function.body.span)
        told = self.function if not facts else replace(self.function, body=body)
        return substitute(told, {}, changed) if changed else told

    @property
    def depend_on_sizes(self) -> bool:
        """Whether sizes known only at launch decide the class, besides addresses."""
        return any(tensor.strides for tensor in self.tensors)

    def text(self, of: FactClass) -> str:
        """A class in words, for ``explain()``."""
        parts = [
            f"{tensor.buffer.name} {max(min(size, tensor.rows), tensor.buffer.dtype.nbytes(1))}"
            for tensor, size in zip(self.tensors, of, strict=True)
        ]
        return f"addresses and rows at multiples of bytes: {', '.join(parts)}"


def _tensor(buffer: Buffer, place: int, widest: int) -> _Tensor:
    outer = () if buffer.packed else strides_of(buffer)[:-1]
    if buffer.strides is None and outer:
        outer = buffer.shape[-1:]  # all steps are multiples of a row
    rows = widest
    for stride in outer:
        if isinstance(stride, int):
            rows = _largest(rows, lambda size, stride=stride: stride % _unit(buffer, size) == 0)
    strides, extents = (tuple(one for one in given if isinstance(one, Expr)) for given in (outer, buffer.shape))
    return _Tensor(buffer, place, rows, strides, () if buffer.packed else extents)


def _class(tensor: _Tensor, address: int, sizes: Mapping[Var, int], widest: int) -> int:
    if any(evaluate(extent, sizes) == 0 for extent in tensor.extents):
        return tensor.buffer.dtype.nbytes(1)
    strides = [evaluate(stride, sizes) for stride in tensor.strides]

    def holds(size: int) -> bool:
        unit = _unit(tensor.buffer, size)
        return address % size == 0 and all(stride % unit == 0 for stride in strides)

    return _largest(widest, holds)


def _largest(size: int, holds: Any) -> int:
    while size and not holds(size):
        size //= 2
    return size


def _unit(buffer: Buffer, size: int) -> int:
    """Elements in so many bytes."""
    return max(1, size * 8 // buffer.dtype.stored_bits)


def shared_places(function: Function, values: Sequence[object], written: Collection[Buffer]) -> tuple[int, ...]:
    """For each input the first whose memory it has, read in the same way, where one of them is written; else itself.

    Parameters
    ----------
    values : one an input.
    written : parameters that the kernel writes.
    """
    first: dict[object, int] = {}
    found = []
    for number, (param, value) in enumerate(zip(function.inputs, values, strict=True)):
        key: object = number
        if isinstance(param, Buffer) and is_tensor(value):
            view = tensor_view(value)
            key = (view.pointer, view.shape, view.strides, param.dtype, param.shape, param.strides)
        found.append(first.setdefault(key, number))
    changed = {place for param, place in zip(function.inputs, found) if param in written}
    return tuple(place if place in changed else number for number, place in enumerate(found))


def as_one(function: Function, found: Sequence[int]) -> Function | None:
    """The function with one tensor for those of one place; None where it might not mean what it says then."""
    inputs, named = function.inputs, function.attribute(MAY_SHARE, ())
    pairs = ((inputs[number], inputs[place]) for number, place in enumerate(found) if number != place)
    gone = {one: kept for one, kept in pairs if isinstance(one, Buffer) and isinstance(kept, Buffer)}
    params = tuple(param for param in function.params if param not in gone)
    made = replace(function, params=params, body=substitute(function.body, buffers=gone))
    told = all(one.name in named and kept.name in named for one, kept in gone.items())
    return made if told or all(changes_in_place(made, kept) for kept in gone.values()) else None
