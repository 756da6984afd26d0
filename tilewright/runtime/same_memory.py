"""Tensors of a call that are the same memory: where one is passed twice, the kernel is made for one.

Passes take tensors as distinct; a program that has one tensor where two were is right without their knowing, if blocks
and iterations do not touch what others write.  Where nobody can prove that, the author says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tilewright.ir import MAY_SHARE, Buffer, Function, substitute
from tilewright.passes.in_place_updates import changes_in_place
from tilewright.runtime.tensors import is_tensor, tensor_view


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
